package kv

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Sharing is whether sessions share an engine's KV.
type Sharing string

const (
	SharedPool Sharing = "shared pool" // any session may use all that is free
	PerSlot    Sharing = "per slot"    // a session has its slot's part, however idle the others are
	NotSaid    Sharing = "not said"    // no engine was named
)

// The engines whose rules are known.
const (
	VLLM        = "vllm"
	SGLang      = "sglang"
	LlamaServer = "llama-server"
)

// Engines are the names that ReadEngine knows.
func Engines() []string { return []string{LlamaServer, SGLang, VLLM} }

// Engine is what an engine's name and flags say about its KV. Numbers are 0 where
// no flag says them.
type Engine struct {
	Name     string
	Sharing  Sharing
	Why      string
	Findings []Finding

	Slots      int64 // sequences that run at once
	MaxContext int64 // of a session, in tokens
	Pool       int64 // tokens of all, where a flag fixes them
	Block      int64 // tokens
	UsualBlock int64 // tokens, where no flag says it
	Chunk      int64 // tokens of one step
	TP, PP     int64

	KeyType, ValueType       string // as elements names them; "" for the default
	ConvType, StateType      string
	SlidingFull              bool // sliding layers keep all tokens
	PrefixCaching            bool
	SlidingShare, StateShare float64 // sglang: of sliding tokens to full ones, of state to KV
	States                   int64   // sglang: its pool of states
}

// flagKind is what a flag takes.
type flagKind int

const (
	number flagKind = iota
	text
	ratio
	yes
	no
	refused // it changes the KV in a way that is not computed here
)

// flagSpec is a flag's canonical name and what it takes.
type flagSpec struct {
	name string
	kind flagKind
}

// flags are those that matter to the KV, by every spelling. Others are skipped.
var flags = map[string]map[string]flagSpec{
	VLLM: {
		"--tensor-parallel-size": {"tp", number}, "-tp": {"tp", number},
		"--pipeline-parallel-size": {"pp", number}, "-pp": {"pp", number},
		"--kv-cache-dtype": {"kv", text}, "--block-size": {"block", number},
		"--max-model-len": {"context", number}, "--max-num-seqs": {"slots", number},
		"--max-num-batched-tokens": {"chunk", number},
		"--enable-prefix-caching":  {"prefix", yes}, "--no-enable-prefix-caching": {"prefix", no},
		"--mamba-cache-dtype": {"conv", text}, "--mamba-ssm-cache-dtype": {"state", text},
		"--disable-hybrid-kv-cache-manager": {"sliding-full", yes},
		"--decode-context-parallel-size":    {"", refused}, "-dcp": {"", refused}, "--num-gpu-blocks-override": {"", refused},
		"--speculative-config": {"", refused}, "--hf-overrides": {"", refused}, "--mamba-block-size": {"", refused},
	},
	SGLang: {
		"--tp": {"tp", number}, "--tp-size": {"tp", number}, "--tensor-parallel-size": {"tp", number},
		"--pp": {"pp", number}, "--pp-size": {"pp", number}, "--pipeline-parallel-size": {"pp", number},
		"--kv-cache-dtype": {"kv", text}, "--page-size": {"block", number},
		"--context-length": {"context", number}, "--max-running-requests": {"slots", number},
		"--max-total-tokens": {"pool", number}, "--chunked-prefill-size": {"chunk", number},
		"--disable-radix-cache": {"prefix", no}, "--disable-hybrid-swa-memory": {"sliding-full", yes},
		"--swa-full-tokens-ratio": {"sliding-share", ratio}, "--mamba-full-memory-ratio": {"state-share", ratio},
		"--max-mamba-cache-size": {"states", number}, "--mamba-ssm-dtype": {"state", text},
		"--enable-dp-attention": {"", refused}, "--attention-context-parallel-size": {"", refused},
		"--speculative-algorithm": {"", refused}, "--json-model-override-args": {"", refused},
	},
	LlamaServer: {
		"-c": {"context", number}, "--ctx-size": {"context", number},
		"-np": {"slots", number}, "--parallel": {"slots", number},
		"-kvu": {"unified", yes}, "--kv-unified": {"unified", yes},
		"-no-kvu": {"unified", no}, "--no-kv-unified": {"unified", no},
		"-ctk": {"key", text}, "--cache-type-k": {"key", text},
		"-ctv": {"value", text}, "--cache-type-v": {"value", text},
		"-ub": {"chunk", number}, "--ubatch-size": {"chunk", number}, "--swa-full": {"sliding-full", yes},
		"--override-kv": {"", refused}, "-md": {"", refused}, "--model-draft": {"", refused},
		"-sm": {"", refused}, "--split-mode": {"", refused}, "-ts": {"", refused}, "--tensor-split": {"", refused},
		"-nkvo": {"", refused}, "--no-kv-offload": {"", refused},
	},
}

// ReadEngine reads an engine's flags as its command line has them. Flags that have
// nothing to do with its KV are skipped; one that changes it in a way that is not
// computed here is an error. An empty name is no engine: sharing is then not said.
func ReadEngine(name, line string) (*Engine, error) {
	if name == "" {
		if line != "" {
			return nil, fmt.Errorf("flags %q are of no engine: name it, one of %s", line, strings.Join(Engines(), ", "))
		}
		return &Engine{Sharing: NotSaid, Why: "no engine was named"}, nil
	}
	specs := flags[name]
	if specs == nil {
		return nil, fmt.Errorf("engine is %q: allowed are %s", name, strings.Join(Engines(), ", "))
	}
	words, err := split(line)
	if err != nil {
		return nil, err
	}
	p := &flagReader{engine: name, said: map[string]string{}, at: map[string]string{}}
	var skipped []string
	for i := 0; i < len(words); i++ {
		flag, value, given := strings.Cut(words[i], "=")
		if strings.HasPrefix(flag, "--") {
			flag = strings.ReplaceAll(flag, "_", "-")
		}
		spec, known := specs[flag]
		switch {
		case !known:
			if strings.HasPrefix(flag, "-") {
				if _, err := strconv.ParseFloat(flag, 64); err != nil {
					skipped = append(skipped, flag)
				}
			}
			continue
		case spec.kind == refused:
			return nil, fmt.Errorf("%s: it changes the KV in a way that is not computed here; leave it out to see the size without it", flag)
		case spec.kind == yes || spec.kind == no:
			value = strconv.FormatBool(spec.kind == yes)
		case !given:
			if i++; i == len(words) {
				return nil, fmt.Errorf("%s has no value", flag)
			}
			value = words[i]
		}
		p.said[spec.name], p.at[spec.name] = value, flag
	}
	e := &Engine{Name: name, PrefixCaching: true}
	e.TP, e.PP, e.Block = p.num("tp"), p.num("pp"), p.num("block")
	e.Slots, e.Chunk = p.slots(), p.num("chunk")
	e.SlidingFull = p.is("sliding-full", false)
	e.PrefixCaching = p.is("prefix", true)
	e.ConvType, e.StateType = p.said["conv"], p.said["state"]
	e.KeyType, e.ValueType = p.said["kv"], p.said["kv"]
	switch name {
	case VLLM, SGLang:
		e.MaxContext = p.num("context")
		e.Sharing = SharedPool
		e.Why = "every sequence takes from one pool as it grows; a limit on sequences divides nothing, so a lower one leaves a session no more"
	}
	switch name {
	case VLLM:
		e.UsualBlock = 16
		e.defaulted(&e.Chunk, 8192, "tokens of one step", "taken: vLLM's default depends on the card, 2048 or 8192: --max-num-batched-tokens")
	case SGLang:
		e.Pool, e.States = p.num("pool"), p.num("states")
		e.SlidingShare, e.StateShare = p.ratio("sliding-share", 0.8), p.ratio("state-share", 0.9)
		e.UsualBlock = 1
		e.defaulted(&e.Chunk, 8192, "tokens of one step", "taken: SGLang's default depends on the card, 2048 to 16384: --chunked-prefill-size")
	case LlamaServer:
		e.Pool = p.num("context")
		e.PrefixCaching = false // of no slot for another
		e.KeyType, e.ValueType = p.said["key"], p.said["value"]
		e.defaulted(&e.Chunk, 512, "tokens of one step", "the default: --ubatch-size")
		auto := e.Slots == 0
		unified := p.is("unified", auto)
		e.defaulted(&e.Slots, 4, "slots", "--parallel is auto: llama-server takes 4 and one KV for all")
		switch {
		case unified && auto && p.said["unified"] == "":
			e.Sharing, e.Why = SharedPool, "--parallel is auto, so the KV is unified: each slot may use all of --ctx-size"
		case unified:
			e.Sharing, e.Why = SharedPool, "--kv-unified: each slot may use all of --ctx-size"
		default:
			e.Sharing = PerSlot
			e.Why = fmt.Sprintf("%s without --kv-unified: each of the %d slots has 1/%d of --ctx-size, also while the others are idle", p.why("slots", "--parallel auto"), e.Slots, e.Slots)
		}
	}
	for _, t := range []string{e.KeyType, e.ValueType, e.ConvType, e.StateType} {
		if _, ok := elements[t]; t != "" && t != "auto" && !ok && p.err == nil {
			p.err = fmt.Errorf("cache type %q is not known: allowed are auto, %s", t, CacheTypes)
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	for _, key := range slices.Sorted(maps.Keys(p.said)) {
		e.Findings = append(e.Findings, Finding{p.at[key], p.said[key], "flag"})
	}
	if len(skipped) > 0 {
		e.Findings = append(e.Findings, Finding{"flags", strings.Join(skipped, " "), "skipped: taken to have nothing to do with the KV"})
	}
	return e, nil
}

// defaulted fills a number that no flag said, and says so.
func (e *Engine) defaulted(n *int64, value int64, what, how string) {
	if *n == 0 {
		*n = value
		e.Findings = append(e.Findings, Finding{what, fmt.Sprint(value), how})
	}
}

// flagReader has what was said, by canonical name. The first error stays.
type flagReader struct {
	engine   string
	said, at map[string]string
	err      error
}

func (p *flagReader) why(key, absent string) string {
	if p.said[key] == "" {
		return absent
	}
	return p.at[key] + " " + p.said[key]
}

func (p *flagReader) fail(key, allowed string) {
	if p.err == nil {
		p.err = fmt.Errorf("%s is %q: allowed: %s", p.at[key], p.said[key], allowed)
	}
}

// num is a positive number. vLLM takes 32k for 32,000 and 32K for 32,768.
func (p *flagReader) num(key string) int64 {
	s := p.said[key]
	if s == "" {
		return 0
	}
	factor := int64(1)
	if i := strings.IndexByte("kKmM", s[len(s)-1]); p.engine == VLLM && i >= 0 {
		s, factor = s[:len(s)-1], []int64{1e3, 1 << 10, 1e6, 1 << 20}[i]
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if p.engine == LlamaServer && key == "context" && n == 0 && err == nil {
		return 0 // its word for the model's own
	}
	if err != nil || n < 1 || n > maxTokens/factor {
		p.fail(key, fmt.Sprintf("an integer from 1 to %d", maxTokens))
		return 0
	}
	return n * factor
}

// slots is -1 for llama-server's auto.
func (p *flagReader) slots() int64 {
	if p.engine == LlamaServer && p.said["slots"] == "-1" {
		return 0
	}
	return p.num("slots")
}

func (p *flagReader) ratio(key string, absent float64) float64 {
	if p.said[key] == "" {
		return absent
	}
	f, err := strconv.ParseFloat(p.said[key], 64)
	if err != nil || !(f > 0 && f <= 100) {
		p.fail(key, "a number above 0, at most 100")
		return absent
	}
	return f
}

func (p *flagReader) is(key string, absent bool) bool {
	if s := p.said[key]; s != "" {
		return s == "true"
	}
	return absent
}

// split makes words of a command line. Quotes hold words together.
func split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	in := false
	for _, c := range line {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			} else {
				word.WriteRune(c)
			}
		case c == '\'' || c == '"':
			quote, in = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if in {
				words = append(words, word.String())
				word.Reset()
			}
			in = false
		default:
			word.WriteRune(c)
			in = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("flags %q: a %c is not closed", line, quote)
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}
