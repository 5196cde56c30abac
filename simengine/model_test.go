package simengine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestModelFile(t *testing.T) {
	m1, err := os.ReadFile("models/m1.json")
	if err != nil {
		t.Fatal(err)
	}
	good := string(m1)
	for _, c := range []struct{ from, to, says string }{
		{`"base_ms": 54.7`, `"base_ms": 0`, "step.base_ms: 0: allowed: milliseconds above 0"},
		{`"base_ms": 54.7`, `"base": 54.7`, "step.base: unknown field: allowed: base_ms, prefill_token_ms"},
		{`"base_ms": 54.7,`, ``, "step.base_ms: missing"},
		{`"base_ms": 54.7`, `"base_ms": "54"`, "base_ms"},
		{`"prefill_token_ms": 1.752`, `"prefill_token_ms": -1`, "step.prefill_token_ms: -1: allowed: milliseconds from 0 to 60000"},
		{`"penalty_ms": 124`, `"penalty_ms": 1e9`, "idle.penalty_ms: 1e+09: allowed"},
		{`"name": "m1"`, `"name": ""`, "name: : allowed: a name"},
		{`"overhead_ms": 6`, `"overhead_ms": 6, "speed": 2`, "speed: unknown field"},
		{`"idle": {`, `"idle": 7, "x": {`, "allowed"},
		{`"name"`, `name`, "invalid character"},
	} {
		bad := strings.Replace(good, c.from, c.to, 1)
		if bad == good {
			t.Fatalf("%q is not in m1.json", c.from)
		}
		if _, err := ParseModel([]byte(bad)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v: want %q", c.to, err, c.says)
		}
	}
	path := filepath.Join(t.TempDir(), "engine.json")
	if err := os.WriteFile(path, m1, 0o644); err != nil {
		t.Fatal(err)
	}
	if m, err := LoadModel(path); err != nil || m != DefaultModel() {
		t.Errorf("loaded %+v, %v", m, err)
	}
	for _, missing := range []string{path + "x", "m2", "", "models/m1"} {
		if _, err := LoadModel(missing); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", missing)) || !strings.Contains(err.Error(), "built in are bloom-176b") {
			t.Errorf("missing file: %v", err)
		}
	}
	if _, err := LoadModel(filepath.Dir(path)); err == nil || strings.Contains(err.Error(), "built in") {
		t.Errorf("a directory: %v", err)
	}
}

// TestModels: every built-in model loads under its own name, and says where its
// figures are from.
func TestModels(t *testing.T) {
	names := Models()
	if !slices.IsSorted(names) || !slices.Contains(names, "m1") || !slices.Contains(names, "llama2-70b-a100-80gb-tp8") {
		t.Errorf("built-in models: %v", names)
	}
	for _, name := range names {
		m, err := LoadModel(name)
		if err != nil {
			t.Error(err)
		} else if m.Name != name || m.Source == "" {
			t.Errorf("model %s names itself %q, from %q", name, m.Name, m.Source)
		}
	}
}

// TestSpeed: speed 2 makes every step take twice as long.
func TestSpeed(t *testing.T) {
	for _, speed := range []float64{0.5, 1, 2} {
		cfg := DefaultConfig()
		cfg.Speed = speed
		d := newDriver(t, cfg)
		d.run([]arrival{{0, Request{Synthetic: 1607, MaxTokens: 64}}})
		base := newDriver(t, DefaultConfig())
		base.run([]arrival{{0, Request{Synthetic: 1607, MaxTokens: 64}}})
		for i, ev := range d.events {
			if diff := float64(ev.At) - speed*float64(base.events[i].At); diff > 100 || diff < -100 {
				t.Fatalf("speed %g: event %d at %d ns: want %g times %d", speed, i, ev.At, speed, base.events[i].At)
			}
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.Speed = 0 }, "speed: 0: allowed: a factor above 0"},
		{func(c *Config) { c.NumBlocks = 1 }, "num_gpu_blocks: 1: allowed: blocks from 2"},
		{func(c *Config) { c.NumBlocks = 200 }, "max_model_len: 4096: allowed: at most the KV pool's 3184 tokens"},
		{func(c *Config) { c.ChunkedPrefill = false }, "max_num_batched_tokens: 2048: allowed: at least max_model_len 4096"},
		{func(c *Config) { c.ChunkedPrefill = false; c.MaxBatchedTokens = 4096; c.LongPrefillThreshold = 1 }, "long_prefill_token_threshold: 1: allowed: 0"},
		{func(c *Config) { c.Watermark = 1 }, "watermark: 1: allowed"},
		{func(c *Config) { c.Policy = "lifo" }, "policy: lifo: allowed: fcfs, priority"},
		{func(c *Config) { c.Model.Step.Base = -1 }, "model.step.base_ms: -1"},
		{func(c *Config) { c.Scheduler = "sglang" }, "scheduler: sglang: allowed: vllm, llama-server"},
		{func(c *Config) { *c = LlamaServerConfig(0, 4096, false) }, "max_num_seqs: 0: allowed: sequences from 1"},
		{func(c *Config) { *c = LlamaServerConfig(8, 8, false) }, "max_model_len: 1: allowed: tokens from 2"},
		{func(c *Config) { c.Scheduler = LlamaServer }, "block_size: 16: allowed: 1, a cell of one token, with the scheduler llama-server; whole_prompt_gate: true: allowed: false with the scheduler llama-server; policy: priority: allowed: fcfs with the scheduler llama-server; output_lag: true"},
		{func(c *Config) { *c = LlamaServerConfig(8, 4096, true); c.PrefixCaching, c.Watermark = true, 0.1 }, "watermark: 0.1: allowed: 0 with the scheduler llama-server; prefix_caching: true: allowed: false"},
		{func(c *Config) { *c = LlamaServerConfig(8, 4096, true); c.MaxBatchedTokens = 7 }, "max_num_batched_tokens: 7: allowed: at least max_num_seqs"},
	} {
		cfg := DefaultConfig()
		c.change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: want %q", err, c.says)
		}
	}
}

func TestSubmitErrors(t *testing.T) {
	e := newDriver(t, DefaultConfig()).e
	for _, c := range []struct {
		req  Request
		says string
	}{
		{Request{MaxTokens: 1}, "prompt: 0 tokens"},
		{Request{Synthetic: 4096, MaxTokens: 1}, "prompt: 4096 tokens: allowed: fewer than the model's 4096"},
		{Request{Synthetic: -1, MaxTokens: 1}, "synthetic: -1"},
		{Request{Synthetic: 1}, "max_tokens: 0: allowed: at least 1"},
		{Request{Synthetic: 1, MaxTokens: 1, MinTokens: 2}, "min_tokens: 2: allowed: 0 to max_tokens 1"},
		{Request{Prompt: []Token{5, VocabSize}, MaxTokens: 1}, "prompt[1]: token id"},
	} {
		if _, err := e.Submit(0, c.req); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v: want %q", c.req, err, c.says)
		}
	}
	if _, busy := e.Next(); busy || e.Stats().Waiting != 0 {
		t.Errorf("refused requests left something: %+v", e.Stats())
	}
	if _, err := e.Submit(1000, Request{Synthetic: 1, MaxTokens: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Submit(999, Request{Synthetic: 1, MaxTokens: 1}); err == nil || !strings.Contains(err.Error(), "backwards") {
		t.Errorf("submit in the past: %v", err)
	}
}
