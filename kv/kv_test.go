package kv

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

func golden(t *testing.T, file, got string) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

func model(t testing.TB, name string) *Model {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "configs", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := ReadConfig(b, "")
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

func engine(t testing.TB, name, flags string) *Engine {
	t.Helper()
	e, err := ReadEngine(name, flags)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// compute answers a question of a model and an engine by their names.
func compute(t testing.TB, config, name, flags string, q Question) *Report {
	t.Helper()
	q.Model, q.Engine = model(t, config), engine(t, name, flags)
	r, err := Compute(q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRoundUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int64Range(0, 1<<40).Draw(t, "tokens")
		block := rapid.Int64Range(0, 4096).Draw(t, "block")
		got := RoundUp(tokens, block)
		if got < tokens || (block > 1 && (got%block != 0 || got-tokens >= block)) || (block <= 1 && got != tokens) {
			t.Fatalf("RoundUp(%d, %d) = %d", tokens, block, got)
		}
	})
}

// TestModels prints what each public model's layers cost, and where every number
// was read. The configs say which repository has them whole.
func TestModels(t *testing.T) {
	files, err := filepath.Glob("testdata/configs/*.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d configs, %v", len(files), err)
	}
	var b strings.Builder
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		r := compute(t, name, "", "", Question{})
		fmt.Fprintf(&b, "%s\n  a token %d, in a window %d more, a sequence %d\n", name, r.BytesPerToken, r.SlidingPerToken, r.BytesPerSequence)
		for _, g := range r.Groups {
			fmt.Fprintf(&b, "  %d %s, window %d: %d a token, %d a sequence\n", g.Layers, g.Kind, g.Window, g.PerToken, g.PerSequence)
		}
		for _, f := range r.Findings {
			fmt.Fprintf(&b, "    %s = %s: %s\n", f.What, f.Value, f.How)
		}
	}
	golden(t, "models.txt", b.String())
}

// TestPublishedPerToken: what is published of these models, on one card.
func TestPublishedPerToken(t *testing.T) {
	for _, c := range []struct {
		config, cache string
		tp            int64
		want          int64
		tokensPerGiB  int64
	}{
		{"qwen2.5-1.5b", "", 1, 28672, 37449},
		{"qwen3-8b", "", 1, 147456, 7281},
		{"llama-3.1-8b", "", 1, 131072, 8192},
		{"llama-3.1-70b", "", 1, 327680, 3276},
		{"llama-3.1-70b", "", 8, 40960, 26214},
		{"llama-3.1-70b", "", 16, 40960, 26214}, // a head on each of 8, each twice
		{"llama-3.1-8b", "q8_0", 1, 69632, 15420},
		{"llama-3.1-8b", "q4_0", 1, 36864, 29127},
		{"deepseek-v3", "", 1, 70272, 15279},
		{"deepseek-v3", "", 8, 70272, 15279}, // replicated
		{"deepseek-v3", "fp8", 1, 35136, 30559},
		{"deepseek-v3", "fp8_ds_mla", 1, 40016, 26832},
		{"falcon-7b", "", 1, 8192, 131072},
		{"qwen3.5-27b", "fp8", 1, 32768, 0},
	} {
		r := compute(t, c.config, "", "", Question{CacheType: c.cache, TP: c.tp, Budget: 1 << 30})
		if r.BytesPerToken != c.want {
			t.Errorf("%s %s tp %d: %d bytes a token, want %d", c.config, c.cache, c.tp, r.BytesPerToken, c.want)
		}
		if c.tokensPerGiB > 0 && r.Pool.Tokens != c.tokensPerGiB {
			t.Errorf("%s %s tp %d: %d tokens a GiB, want %d", c.config, c.cache, c.tp, r.Pool.Tokens, c.tokensPerGiB)
		}
	}
}

// TestPublishedPool: the numbers of a public post-mortem. A token takes 32 KiB on
// each card; the pool of 150,816 tokens, told as 4.7 GB, is 4,713 MiB; 131,072
// tokens take 4.00, eight times that many 32.0, which are GiB. And the mistake that
// it tells of: fewer slots leave a session no more of the pool.
func TestPublishedPool(t *testing.T) {
	budget, err := ParseBytes("4713MiB")
	if err != nil {
		t.Fatal(err)
	}
	q := Question{Budget: budget, Sessions: 8, Context: 131072}
	var limits []Limit
	for _, slots := range []int{8, 2} {
		r := compute(t, "llama-3.1-8b", VLLM, fmt.Sprintf("-tp 4 --max-num-seqs %d", slots), q)
		if r.BytesPerToken != 32<<10 || r.Pool.Tokens != 150816 || r.Asked.Each != 4<<30 || r.Asked.All != 32<<30 || *r.Fits {
			t.Errorf("%+v, pool %+v, asked %+v", r, r.Pool, r.Asked)
		}
		if r.Sharing != SharedPool || r.Slots != int64(slots) {
			t.Errorf("%s, %d slots", r.Sharing, r.Slots)
		}
		limits = append(limits, *r.MaxSessions)
		if r.Share[0] != (Share{1, 131072}) {
			t.Errorf("one session has %+v", r.Share[0])
		}
	}
	if limits[0] != limits[1] {
		t.Errorf("with 8 slots %+v, with 2 %+v", limits[0], limits[1])
	}
	if got := fmt.Sprintf("%.1f", float64(budget)/(1<<30)); got != "4.6" {
		t.Errorf("4,713 MiB are %s GiB", got)
	}
}

// TestVLLMLogs: vLLM's own figure for a hybrid model, as a public repository quotes
// its log: 4.99 GiB a card, two cards, fp8, 131,072 tokens at most.
func TestVLLMLogs(t *testing.T) {
	budget, err := ParseBytes("4.99GiB")
	if err != nil {
		t.Fatal(err)
	}
	r := compute(t, "qwen3.5-27b", VLLM, "-tp 2 --kv-cache-dtype fp8_e4m3 --max-model-len 131072", Question{Budget: budget, Context: 131072})
	if r.Pool.Tokens != 302921 || r.Block != 1568 || r.MaxSessions.N != 2 {
		t.Errorf("pool %+v, blocks of %d, %+v sessions", r.Pool, r.Block, r.MaxSessions)
	}
}

// TestLlamaServerTakes: what llama-server b11669 prints as its buffer for a model
// whose tokens take 1 KiB in f16, and as its slots' context.
func TestLlamaServerTakes(t *testing.T) {
	config := `{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"hidden_size":256,"max_position_embeddings":8192}`
	m, err := ReadConfig([]byte(config), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags   string
		sharing Sharing
		bytes   int64
		slot    int64
	}{
		{"-c 4096 -np 3", PerSlot, 4608 << 10, 1536},
		{"-c 4096 -np 3 -kvu -ctk q8_0 -ctv q8_0", SharedPool, 2176 << 10, 4096},
		{"-c 1000", SharedPool, 1 << 20, 1024},
	} {
		r, err := Compute(Question{Model: m, Engine: engine(t, LlamaServer, c.flags)})
		if err != nil {
			t.Fatal(err)
		}
		if r.Sharing != c.sharing || r.Allocated != c.bytes || r.SlotTokens != c.slot {
			t.Errorf("%s: %s, %d bytes, %d tokens a slot", c.flags, r.Sharing, r.Allocated, r.SlotTokens)
		}
	}
}

// TestPlans prints whole reports of the engines' ways to lay memory out.
func TestPlans(t *testing.T) {
	var b bytes.Buffer
	for _, c := range []struct {
		config, engine, flags string
		q                     Question
	}{
		{"llama-3.1-8b", LlamaServer, "-c 32768 -np 4", Question{Budget: 8 << 30, Sessions: 4, Context: 16384}},
		{"llama-3.1-8b", LlamaServer, "-c 32768 -np 4 --kv-unified", Question{Budget: 8 << 30, Sessions: 2, Context: 16384, Prefix: 4096}},
		{"gemma-3-27b", LlamaServer, "-np 2 -kvu", Question{Budget: 8 << 30, Sessions: 2}},
		{"gemma-3-27b", LlamaServer, "-np 2 -kvu --swa-full", Question{Budget: 8 << 30, Sessions: 2}},
		{"qwen3-next-80b", LlamaServer, "-c 65536 -np 2", Question{Sessions: 2, Context: 32768}},
		{"gemma-3-27b", VLLM, "-tp 2 --max-model-len 131072 --max-num-batched-tokens 8192", Question{Budget: 20 << 30, Sessions: 8, Context: 32768, Prefix: 5000}},
		{"gpt-oss-20b", SGLang, "", Question{Budget: 8 << 30, Sessions: 8, Context: 32768}},
		{"qwen3-next-80b", SGLang, "--tp-size 2", Question{Budget: 8 << 30, Sessions: 8, Context: 32768}},
		{"llama-3.1-70b", VLLM, "-tp 4 -pp 3", Question{Budget: 10 << 30, Sessions: 4, Context: 32768, Prefix: 8000}},
		{"jamba-v0.1", "", "", Question{Budget: 8 << 30, Sessions: 4, Context: 32768}},
		{"mamba2-780m", "", "", Question{Budget: 1 << 30, Sessions: 4, Context: 32768}},
	} {
		fmt.Fprintf(&b, "== %s %s %s\n\n", c.config, c.engine, c.flags)
		r := compute(t, c.config, c.engine, c.flags, c.q)
		r.Findings = r.Findings[len(model(t, c.config).Findings):]
		if err := r.WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	golden(t, "plans.txt", b.String())
}

// TestRefusals prints what is said of files that can't be read.
func TestRefusals(t *testing.T) {
	var b strings.Builder
	const llama = `"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64`
	for _, config := range []string{
		`[]`, `{}`, `{"model_type":"deepseek_v4"}`, `{"model_type":"mllama","text_config":{"num_hidden_layers":2}}`,
		`{"model_type":7}`, `{"model_type":"llama"}`, `{"model_type":"llama","num_hidden_layers":0}`,
		`{"model_type":"llama","num_hidden_layers":2.5}`, `{"model_type":"llama","num_hidden_layers":100000}`,
		`{` + llama + `,"sliding_window":4096}`, `{` + llama + `,"kv_lora_rank":512}`, `{` + llama + `,"cla_share_factor":2}`,
		`{` + llama + `,"num_key_value_heads":"8"}`, `{` + llama + `,"is_encoder_decoder":true}`,
		`{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":3,"hidden_size":64}`,
		`{"model_type":"qwen3","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"hidden_size":64}`,
		`{"model_type":"mistral","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64}`,
		`{"model_type":"gemma4_text","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"head_dim":64}`,
		`{"model_type":"qwen2","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"hidden_size":64,"use_sliding_window":true,"sliding_window":9}`,
		`{"model_type":"qwen2","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"hidden_size":64,"layer_types":["full_attention"]}`,
		`{"model_type":"qwen2","num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4,"hidden_size":64,"layer_types":["lightning_attention"]}`,
		`{"model_type":"nemotron_h","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"head_dim":8,"mamba_num_heads":2,"mamba_head_dim":2,"n_groups":1,"ssm_state_size":2,"conv_kernel":2,"hybrid_override_pattern":"MX"}`,
		`{"model_type":"kimi_linear","num_hidden_layers":2,"kv_lora_rank":8,"qk_rope_head_dim":8,"linear_attn_config":{"num_heads":2,"head_dim":2,"short_conv_kernel_size":2,"kda_layers":[1],"full_attn_layers":[1]}}`,
		`{"model_type":"deepseek_v32","num_hidden_layers":2,"kv_lora_rank":8,"qk_rope_head_dim":8,"index_head_dim":128,"index_topk":2048,"index_topk_freq":4}`,
	} {
		_, err := ReadConfig([]byte(config), "")
		if err == nil {
			t.Errorf("%s was read", config)
			continue
		}
		fmt.Fprintf(&b, "%s\n  %v\n", config, err)
	}
	for _, c := range [][2]string{
		{"", "-np 4"}, {"ollama", ""}, {VLLM, "-tp"}, {VLLM, "-tp 0"}, {VLLM, "--decode-context-parallel-size 2"}, {VLLM, "--kv-cache-dtype turbo3"},
		{SGLang, "--enable-dp-attention"}, {SGLang, "--swa-full-tokens-ratio 0"}, {LlamaServer, "-c 32k"}, {LlamaServer, "-np 0"}, {LlamaServer, "-m 'a b"}, {LlamaServer, "--split-mode row"},
	} {
		_, err := ReadEngine(c[0], c[1])
		if err == nil {
			t.Errorf("%v was read", c)
			continue
		}
		fmt.Fprintf(&b, "%s %s\n  %v\n", c[0], c[1], err)
	}
	for _, c := range []struct {
		config, engine, flags string
		q                     Question
	}{
		{"llama-3.1-8b", "", "", Question{TP: 3}},
		{"llama-3.1-8b", "", "", Question{CacheType: "fp8_ds_mla"}},
		{"falcon-7b", VLLM, "-tp 2", Question{TP: 4}},
		{"llama-3.1-8b", "", "", Question{CacheType: "turbo3"}},
		{"llama-3.1-8b", VLLM, "--kv-cache-dtype fp8", Question{CacheType: "bf16"}},
		{"llama-3.1-8b", VLLM, "--max-model-len 8k", Question{Context: 8001}},
		{"llama-3.1-8b", "", "", Question{Context: 10, Prefix: 11}},
		{"llama-3.1-8b", "", "", Question{Context: -1}},
		{"llama-3.1-8b", "", "", Question{PP: 33}},
		{"llama-3.1-8b", LlamaServer, "", Question{TP: 2}},
		{"llama-3.1-8b", LlamaServer, "-np 4 -no-kvu", Question{Budget: 1 << 20}},
		{"falcon-7b", LlamaServer, "", Question{}},
		{"qwen3-next-80b", SGLang, "--max-mamba-cache-size 1000", Question{Budget: 1 << 30}},
	} {
		c.q.Model, c.q.Engine = model(t, c.config), engine(t, c.engine, c.flags)
		_, err := Compute(c.q)
		if err == nil {
			t.Errorf("%v was computed", c)
			continue
		}
		fmt.Fprintf(&b, "%s %s %s\n  %v\n", c.config, c.engine, c.flags, err)
	}
	for _, dtype := range []string{`"torch_dtype":"float32"`, `"torch_dtype":"float6"`, `"hidden_act":"silu"`, `"torch_dtype":"bfloat16","quantization_config":{"kv_cache_scheme":{"num_bits":8}}`} {
		m, err := ReadConfig([]byte("{"+llama+","+dtype+"}"), "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = Compute(Question{Model: m, Engine: engine(t, VLLM, "")}); err == nil {
			t.Errorf("%s was taken", dtype)
		}
		fmt.Fprintf(&b, "%s\n  %v\n", dtype, err)
	}
	golden(t, "refusals.txt", b.String())
}

// TestAs: a model type that isn't known can be read as one that is, and the answer
// says so.
func TestAs(t *testing.T) {
	m, err := ReadConfig([]byte(`{"model_type":"mine","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64}`), "llama")
	if err != nil || m.Architecture != "llama" || m.Findings[0].How != `asked for; the file says "mine"` {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{
		"1B": 1, "4.7GB": 4700000000, "4.7GiB": 5046586572, "4713MiB": 4941938688, "1 kB": 1000, "0.5KiB": 512, "1TiB": 1 << 40,
	} {
		if got, err := ParseBytes(s); err != nil || got != want {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
	for s, want := range map[string]string{
		"4.7": "has no unit", "4.7G": "G may be GB (10^9 bytes) or GiB (2^30 bytes): say which", "4g": "say which", "1Gb": `unit "Gb" is not known`,
		"-1GB": "no size", "1e9B": "no size", "0GB": "from 1 byte", "0.1B": "from 1 byte", "999999999999999TiB": "less than 1024 PiB", "": "no size",
	} {
		if _, err := ParseBytes(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", s, err, want)
		}
	}
}

// TestPlainAgainstLayers: the answer is that of adding up token by token and layer
// by layer.
func TestPlainAgainstLayers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &Model{Architecture: "drawn", Layers: rapid.IntRange(1, 6).Draw(t, "layers"), DType: "bfloat16"}
		var sum func(n, context int64) int64 = func(int64, int64) int64 { return 0 }
		for i := range m.Layers {
			before := sum
			heads, dim := rapid.Int64Range(1, 4).Draw(t, "heads"), rapid.Int64Range(1, 9).Draw(t, "dim")
			c := Cache{Layer: i, Kind: rapid.SampledFrom([]Kind{Full, Latent, Sliding, State, Index}).Draw(t, "kind"), KVHeads: heads, KeyDim: dim, ValueDim: dim + 1, Width: dim, Window: rapid.Int64Range(1, 50).Draw(t, "window"), State: []Part{{heads, dim, true}, {1, 3, false}}}
			m.Caches = append(m.Caches, c)
			sum = func(n, context int64) int64 {
				var held int64
				for token := range context {
					switch c.Kind {
					case Full:
						held += heads * (2*dim + 1) * 2
					case Latent:
						held += dim * 2
					case Index:
						held += dim
					case Sliding:
						if token < c.Window {
							held += heads * (2*dim + 1) * 2
						}
					}
				}
				if c.Kind == State {
					held += (heads*dim + 3) * 2
				}
				return before(n, context) + n*held
			}
		}
		q := Question{Model: m, Engine: &Engine{Sharing: NotSaid}, Sessions: rapid.Int64Range(1, 5).Draw(t, "sessions"), Context: rapid.Int64Range(1, 99).Draw(t, "context"), Budget: rapid.Int64Range(1, 1<<17).Draw(t, "budget")}
		r, err := Compute(q)
		if err != nil {
			t.Fatal(err)
		}
		want := sum(q.Sessions, q.Context)
		if r.Asked.All != want || *r.Fits != (want <= q.Budget) {
			t.Fatalf("%+v fits %v, want %d", r.Asked, *r.Fits, want)
		}
		if n := r.MaxSessions.N; n < maxSessions && (sum(n, q.Context) > q.Budget || sum(n+1, q.Context) <= q.Budget) {
			t.Fatalf("%d sessions take %d", n, sum(n, q.Context))
		}
		if l := r.MaxLength; l.By == "kv" && (sum(q.Sessions, l.N) > q.Budget && l.N > 0 || sum(q.Sessions, l.N+1) <= q.Budget) {
			t.Fatalf("%d tokens take %d", l.N, sum(q.Sessions, l.N))
		}
	})
}

// TestMonotone: a larger budget never holds less (but of states on SGLang), a longer context
// never lets in more sessions, and what a report calls largest fits where one more
// doesn't.
func TestMonotone(t *testing.T) {
	configs := []string{"llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "mistral-7b-v0.1", "qwen3.5-27b", "deepseek-v3.2", "jamba-v0.1"}
	engines := map[string][]string{"": {""}, VLLM: {"", "-pp 3", "--no-enable-prefix-caching"}, SGLang: {"", "--disable-radix-cache", "--page-size 64"}, LlamaServer: {"", "-np 3", "-np 3 -kvu", "-np 2 --swa-full"}}
	rapid.Check(t, func(rt *rapid.T) {
		config := rapid.SampledFrom(configs).Draw(rt, "config")
		name := rapid.SampledFrom(append(Engines(), "")).Draw(rt, "engine")
		flags := rapid.SampledFrom(engines[name]).Draw(rt, "flags")
		q := Question{Budget: rapid.Int64Range(4<<30, 64<<30).Draw(rt, "budget"), Sessions: rapid.Int64Range(1, 9).Draw(rt, "sessions"), Context: rapid.Int64Range(1, 40000).Draw(rt, "context")}
		a := compute(t, config, name, flags, q)
		q.Prefix = rapid.Int64Range(0, q.Context).Draw(rt, "prefix")
		shared := compute(t, config, name, flags, q)
		if shared.MaxSessions.N < a.MaxSessions.N || shared.Asked.All > a.Asked.All {
			rt.Fatalf("sharing a prefix costs: %+v, %+v", a, shared)
		}
		q.Prefix = 0
		if n := a.MaxSessions; n.By == "kv" {
			at := q
			at.Sessions = n.N + 1
			if r := compute(t, config, name, flags, at); *r.Fits {
				rt.Fatalf("%d sessions fit, too", at.Sessions)
			}
			if at.Sessions = n.N; n.N > 0 {
				if r := compute(t, config, name, flags, at); !*r.Fits {
					rt.Fatalf("%d sessions do not fit", at.Sessions)
				}
			}
		}
		longer, larger := q, q
		longer.Context += rapid.Int64Range(0, 1000).Draw(rt, "more")
		larger.Budget += rapid.Int64Range(0, 4<<30).Draw(rt, "bytes")
		if r := compute(t, config, name, flags, longer); r.MaxSessions.N > a.MaxSessions.N {
			rt.Fatalf("%d sessions of %d, %d of %d", a.MaxSessions.N, q.Context, r.MaxSessions.N, longer.Context)
		}
		if name == SGLang && a.BytesPerSequence > 0 {
			return // a state more, which the larger budget buys, is taken from the KV
		}
		if r := compute(t, config, name, flags, larger); r.MaxSessions.N < a.MaxSessions.N || r.MaxLength.N < a.MaxLength.N {
			rt.Fatalf("a larger budget holds less: %+v, %+v", a, r)
		}
	})
}

// FuzzConfig: whatever the file says, it is an error or a model whose sizes are no
// less than nothing.
func FuzzConfig(f *testing.F) {
	files, err := filepath.Glob("testdata/configs/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		m, err := ReadConfig(config, "")
		if err != nil {
			return
		}
		fuzzed(t, m)
	})
}

func fuzzed(t *testing.T, m *Model) {
	for _, name := range append(Engines(), "") {
		e := engine(t, name, "")
		r, err := Compute(Question{Model: m, Engine: e, Budget: 1 << 33, Sessions: 3, Context: 4096, CacheType: "f16"})
		if err != nil {
			continue
		}
		if r.BytesPerToken < 0 || r.SlidingPerToken < 0 || r.BytesPerSequence < 0 || r.Asked.All < r.Asked.Each || r.MaxSessions.N < 0 || r.MaxLength.N < 0 {
			t.Fatalf("%+v", r)
		}
		if *r.Fits && r.MaxSessions.N < 3 {
			t.Fatalf("3 fit, at most %d", r.MaxSessions.N)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		if err := r.WriteTable(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzFlags(f *testing.F) {
	f.Add(VLLM, "-tp 2 --max-model-len=131k --kv_cache_dtype 'fp8'")
	f.Add(SGLang, "--page-size 64 --swa-full-tokens-ratio 0.5")
	f.Add(LlamaServer, "-c 4096 -np -1 -kvu")
	f.Fuzz(func(t *testing.T, name, line string) {
		e, err := ReadEngine(name, line)
		if err == nil && (e.Sharing == "" || e.Slots < 0 || e.Pool < 0 || e.TP < 0) {
			t.Fatalf("%+v", e)
		}
	})
}
