package advise

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/engine"
	"headgate/probe"
	"headgate/prove"
	"headgate/simengine"
	"headgate/trace"
)

// said are findings in words, contradictions with a mark.
func said(all []Finding) string {
	var lines []string
	for _, f := range all {
		mark := "  "
		if f.Contradiction {
			mark = "! "
		}
		lines = append(lines, mark+f.Where+": "+f.Text)
	}
	return strings.Join(lines, "\n")
}

func found(findings ...probe.Finding) *probe.Profile {
	p := &probe.Profile{Model: "small"}
	for _, f := range findings {
		f.Confidence, f.Evidence = probe.Shown, []string{"it was seen"}
		p.Findings = append(p.Findings, f)
	}
	return p
}

// TestAudit: each contradiction that a configuration can have with itself, the engine and the
// traffic is found, and where there is none nothing is said.
func TestAudit(t *testing.T) {
	sound := func() *Config {
		return &Config{IdleTimeout: 2 * time.Minute, DrainTimeout: time.Minute, Pools: []Pool{{
			Name: "main", Engines: []Engine{{Name: "gpu0", Kind: engine.VLLM, Slots: 8, KVTokens: 150816, MaxLength: 16384}},
			Classes: []Class{{Name: "interactive", Floor: 7, Wait: 5 * time.Second, TTFT: 5 * time.Second, E2E: time.Minute}, {Name: "batch", Floor: 1}},
		}}}
	}
	number := func(s probe.Subject, n float64) probe.Finding { return probe.Finding{Subject: s, Value: n} }
	word := func(s probe.Subject, w string) probe.Finding { return probe.Finding{Subject: s, Value: w} }
	yes := true
	steps := found()
	steps.StepTimes = &simengine.Model{}
	steps.StepTimes.Step.PrefillToken = 10
	for _, tt := range []struct {
		name    string
		change  func(*Config, *Pool, *Engine, *Class)
		profile *probe.Profile
		client  time.Duration
		want    []string
	}{
		{"sound", nil, found(number(probe.Slots, 8), number(probe.KVTokens, 150816), word(probe.KVLayout, probe.Shared), word(probe.PrefixCache, probe.Kept), word(probe.PrioritySign, probe.LowerFirst)), 20 * time.Second, []string{
			"  pool main, class batch: a request may wait without limit, and clients leave after 20s (told)", "  limits.idle_timeout: an engine may be silent for 2m0s"}},
		{"slots and context against a shared KV", func(_ *Config, _ *Pool, e *Engine, _ *Class) { e.MaxLength = 131072 }, nil, 0, []string{
			"  pool main, engine gpu0: 8 slots of 131072 tokens each would want 1048576, and the shared KV has 150816: 1 sessions of that length run at once, whatever the slots"}},
		{"and against a part for each slot", nil, found(word(probe.KVLayout, probe.PerSlot), number(probe.Slots, 10)), 0, nil},
		{"a slot's part is too small", func(_ *Config, _ *Pool, e *Engine, _ *Class) { e.MaxLength = 32768 }, found(word(probe.KVLayout, probe.PerSlot)), 0, []string{
			"! pool main, engine gpu0: max_context is 32768 tokens, and each of the 8 slots has its own 18852 of the KV"}},
		{"it is not known whether slots divide it", func(_ *Config, _ *Pool, e *Engine, _ *Class) { e.Kind, e.MaxLength = engine.LlamaCpp, 32768 }, nil, 0, []string{"which `headgate probe` tells"}},
		{"longer than the KV", func(_ *Config, _ *Pool, e *Engine, _ *Class) { e.MaxLength = 200000 }, nil, 0, []string{"! pool main, engine gpu0: max_context is 200000 tokens, and the KV has 150816"}},
		{"less than was said", nil, found(number(probe.Slots, 4), number(probe.KVTokens, 60000), number(probe.MaxContext, 8192)), 0, []string{
			"! pool main, engine gpu0: slots is 8, and the probe found 4 (shown)", "! pool main, engine gpu0: kv_tokens is 150816, and the probe found 60000 (shown)",
			"! pool main, engine gpu0: max_context is 16384, and the probe found 8192 (shown)", "! pool main: floors of 8 slots are owed at every moment, and the engine runs 4 sequences at once (shown)"}},
		{"priorities and prefixes", func(_ *Config, _ *Pool, e *Engine, _ *Class) { e.Priority, e.PrefixCaching = &yes, &yes }, found(word(probe.PrioritySign, probe.Ignored), word(probe.PrefixCache, probe.None)), 0, []string{
			"! pool main, engine gpu0: priority is true, and the probe found that priorities are ignored", "! pool main, engine gpu0: prefix_caching is true"}},
		{"waits", func(c *Config, _ *Pool, _ *Engine, k *Class) { k.Wait, c.IdleTimeout = time.Minute, 0 }, nil, 30 * time.Second, []string{
			"! pool main, class interactive: a request may wait for 1m0s before it is refused, and is late when its answer takes longer than 1m0s",
			"! pool main, class interactive: a request may wait for 1m0s, and clients leave after 30s (told)", "  pool main, class batch: a request may wait without limit"}},
		{"a wait that is late, not lost", func(_ *Config, _ *Pool, _ *Engine, k *Class) { k.Wait = 10 * time.Second }, nil, 0, []string{"  pool main, class interactive: a request may wait for 10s before it is refused, and is late when its first token"}},
		{"a silent engine", nil, steps, 0, []string{"! pool main, engine gpu0: limits.idle_timeout is 2m0s, and by the probed step times a prompt of 16384 tokens is computed for 2m44s"}},
		{"an alias of nothing", func(_ *Config, p *Pool, e *Engine, _ *Class) {
			p.Aliases, e.Models = []Alias{{"fast", "gone"}, {"deep", "large"}}, []engine.Model{{ID: "small"}, {ID: "large", Unloaded: true}, {ID: "lora", Parent: "small"}}
		}, nil, 0, []string{
			"! pool main: alias fast points to model gone, which engine gpu0 does not list", "! pool main: alias deep points to model large, which is not resident at engine gpu0",
			"! pool main, engine gpu0: it loads models on demand, and one may evict another: resident are small, not resident large"}},
		{"an alias of another model than was probed", func(_ *Config, p *Pool, _ *Engine, _ *Class) { p.Aliases = []Alias{{"fast", "large"}} }, found(), 0, []string{"  pool main: alias fast points to model large, and the probed engine answered as small"}},
		{"one model, unloaded", func(_ *Config, _ *Pool, e *Engine, _ *Class) {
			e.Models = []engine.Model{{ID: "small", Unloaded: true}}
		}, nil, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := sound()
			p := &c.Pools[0]
			if tt.change != nil {
				tt.change(c, p, &p.Engines[0], &p.Classes[0])
			}
			all := Audit(c, "", tt.profile, nil, Client{tt.client, "told"})
			got := said(all)
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("lacks %q", want)
				}
			}
			if len(all) != len(tt.want) {
				t.Errorf("%d findings, want %d:\n%s", len(all), len(tt.want), got)
			}
		})
	}
	// The profile is of one engine of two.
	c := sound()
	c.Pools[0].Engines = append(c.Pools[0].Engines, Engine{Name: "gpu1", Kind: engine.VLLM, Slots: 8})
	few := found(number(probe.Slots, 4))
	if got := said(Audit(c, "gpu1", few, nil, Client{})); !strings.Contains(got, "engine gpu1: slots is 8") || strings.Contains(got, "gpu0") {
		t.Errorf("%s", got)
	}
	if all := Audit(c, "", few, nil, Client{}); len(all) != 0 {
		t.Errorf("of which engine is not said: %s", said(all))
	}
}

// served is a recording of requests of two models in turn.
func served(n int, load time.Duration, beside bool) *prove.Recording {
	r := &prove.Recording{Length: time.Hour}
	for i := range n {
		q := prove.Request{Entry: trace.Entry{ID: fmt.Sprint(i), Arrival: time.Duration(i) * 10 * time.Second}, Model: "a", Engine: "gpu0"}
		if i/5%2 == 1 {
			q.Model = "b"
		}
		q.Dispatched, q.First = q.Arrival, q.Arrival+200*time.Millisecond
		if i%5 == 0 {
			q.First += load
		}
		q.Done = q.First + time.Second
		if beside {
			q.Done += 25 * time.Second
		}
		r.Requests = append(r.Requests, q)
	}
	return r
}

// TestEvictions: models that take each other's place are told from models that share an
// engine, and from one that is only slow to begin with.
func TestEvictions(t *testing.T) {
	f := Evictions(served(100, 8*time.Second, false))
	if f == nil || !f.Contradiction || !strings.Contains(f.Text, "models a, b evict each other") || !strings.Contains(f.Text, "19 changes a first token took 8.2s in the middle, else 200ms; 2m32s were spent so") {
		t.Errorf("%+v", f)
	}
	one := served(100, 8*time.Second, false)
	for i := range one.Requests {
		one.Requests[i].Model = "a"
	}
	for name, r := range map[string]*prove.Recording{"beside each other": served(100, 8*time.Second, true), "no load": served(100, 0, false), "once or twice": served(12, 8*time.Second, false), "one model": one} {
		if f := Evictions(r); f != nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestGaveUp: an age at which many clients leave is their timeout.
func TestGaveUp(t *testing.T) {
	r := served(60, 0, false)
	for i := range 20 {
		r.Requests[i].Left, r.Requests[i].Done = true, r.Requests[i].Arrival+30*time.Second+time.Duration(i)*5*time.Millisecond
	}
	if c := gaveUp(r); c.Timeout.Round(time.Second) != 30*time.Second || !strings.Contains(c.From, "20 of the 20 that left") {
		t.Errorf("%+v", c)
	}
	for i := range 20 {
		r.Requests[i].Done = r.Requests[i].Arrival + time.Duration(i+1)*3*time.Second
	}
	if c := gaveUp(r); c.Timeout != 0 {
		t.Errorf("who leaves at any age: %+v", c)
	}
	got := said(Audit(&Config{IdleTimeout: time.Second, DrainTimeout: 500 * time.Millisecond}, "", nil, served(60, 2*time.Second, false), Client{}))
	for _, want := range []string{"  limits.drain_timeout: at a stop answers have 500ms", "  limits.idle_timeout: an engine may be silent for 1s, and a first token took 2s", "! engine gpu0: models a, b evict"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %q", got, want)
		}
	}
}

// TestScanDocs: numbers that texts state in any usual form are held against the
// configuration's; its own file, other programs' flags and numbers of its own are not.
func TestScanDocs(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("ops.md", `# Running it
Start it with `+"`vllm serve m --max-num-seqs 8 --max-model-len 32k`"+`.
It was once --max-num-seqs=16 with --max-model-len 131,072.
It has 4 slots and a context of 8192 tokens; the pool is 150,816 KV tokens.
Later: 60,000 KV tokens, a 16k-token context.
tar -c 512 files
`)
	put("units/engine.service", "ExecStart=/usr/bin/llama-server -m m.gguf -c 150816 -np 2\nEnvironment=OLLAMA_NUM_PARALLEL=8\n")
	put("serve.yaml", "engines: [{slots: 99}]\n")
	put(".git/notes.md", "--parallel 77\n")
	put("main.go", "--parallel 77\n")
	stated, err := ScanDocs([]string{dir}, filepath.Join(dir, "serve.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	e := []Engine{{Name: "gpu0", Slots: 8, KVTokens: 150816, MaxLength: 32768}}
	got := strings.ReplaceAll(said(Contradicts(stated, e)), dir+string(filepath.Separator), "")
	want := `! ops.md:3: it states "--max-num-seqs=16", and the configuration's slots is 8
! ops.md:3: it states "--max-model-len 131,072", and the configuration's max_context is 32768
! ops.md:4: it states "4 slots", and the configuration's slots is 8
! ops.md:4: it states "context of 8192", and the configuration's max_context is 32768
! ops.md:5: it states "60,000 KV tokens", and the configuration's kv_tokens is 150816
! ops.md:5: it states "16k-token context", and the configuration's max_context is 32768
! units/engine.service:1: it states "-np 2", and the configuration's slots is 8`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// What the engine is left to say contradicts nothing.
	e[0].Slots = 0
	if got := said(Contradicts(stated, e)); strings.Contains(got, "slots") {
		t.Errorf("%s", got)
	}
	if _, err := ScanDocs([]string{filepath.Join(dir, "absent")}, ""); err == nil || !strings.Contains(err.Error(), "--docs: ") {
		t.Errorf("%v", err)
	}
}

// FuzzScan: no text makes it fail, and every place it finds is in the text.
func FuzzScan(f *testing.F) {
	f.Add("--parallel 8 -c 4096 llama and 12 slots, context of 8k")
	f.Add("-np=1_000,--max-model-len\t9999999999999999999999999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range scan("x", []byte(text)) {
			if !strings.Contains(text, d.Text) || !(d.Least > 0 && d.Least <= d.Most) {
				t.Fatalf("%+v", d)
			}
		}
	})
}
