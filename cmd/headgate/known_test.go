package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"headgate/config"
	"headgate/engine"
	"headgate/probe"
	"headgate/simengine"
)

// profileOf is a profile with some findings, all of them shown.
func profileOf(kind engine.Kind, found map[probe.Subject]any) *probe.Profile {
	p := &probe.Profile{Format: probe.Format, Kind: kind, Version: "1", Model: "m"}
	for _, s := range probe.Subjects {
		f := probe.Finding{Subject: s, Confidence: probe.Unknown, Evidence: []string{"e"}}
		if v, ok := found[s]; ok {
			f.Value, f.Confidence = v, probe.Shown
			if _, number := v.(float64); number {
				f.Unit = map[probe.Subject]string{probe.Slots: "sequences", probe.AbortSeconds: "s"}[s]
				if f.Unit == "" {
					f.Unit = "tokens"
				}
			}
		}
		p.Findings = append(p.Findings, f)
	}
	return p
}

// TestKnownEngine: a profile stands in for what is not said, and what is said is done
// and warned of where it was shown to be otherwise.
func TestKnownEngine(t *testing.T) {
	yes := true
	vllm := map[probe.Subject]any{probe.Slots: 4.0, probe.KVTokens: 5120.0, probe.MaxContext: 4096.0, probe.PrioritySign: probe.LowerFirst, probe.PrefixCache: probe.None}
	split := map[probe.Subject]any{probe.KVLayout: probe.PerSlot, probe.KVTokens: 8192.0, probe.Slots: 4.0, probe.MaxContext: 2048.0, probe.PrioritySign: probe.Ignored}
	model := []engine.Model{{ID: "m"}}
	for _, c := range []struct {
		name    string
		profile *probe.Profile
		err     error
		config  config.Engine
		caps    engine.Capabilities
		want    engine.Capabilities
		warned  []string
	}{
		{
			name: "fills", profile: profileOf(engine.VLLM, vllm),
			caps: engine.Capabilities{Kind: engine.VLLM, Version: "1", Models: model, KVTokens: 5120, MaxContext: 4096},
			want: engine.Capabilities{Kind: engine.VLLM, Version: "1", Models: model, Slots: 4, KVTokens: 5120, MaxContext: 4096, Priority: true},
		},
		{
			name: "contradicts", profile: profileOf(engine.VLLM, vllm), config: config.Engine{Slots: 8, PrefixCaching: &yes},
			caps:   engine.Capabilities{Kind: engine.VLLM, Version: "1", Models: model, Slots: 8, KVTokens: 5120, MaxContext: 8192, PrefixCache: true},
			want:   engine.Capabilities{Kind: engine.VLLM, Version: "1", Models: model, Slots: 8, KVTokens: 5120, MaxContext: 8192, PrefixCache: true, Priority: true},
			warned: []string{"the configuration says of the engine's slots", "said=8 shown=4", "the engine says of the engine's max_context", "said=8192 shown=4096", "the configuration says of the engine's prefix_cache"},
		},
		{
			name: "slots that divide the KV", profile: profileOf(engine.LlamaCpp, split),
			caps: engine.Capabilities{Kind: engine.LlamaCpp, Version: "1", Models: model, Slots: 4, KVTokens: 2048, MaxContext: 2048, Fatal: true},
			want: engine.Capabilities{Kind: engine.LlamaCpp, Version: "1", Models: model, Slots: 4, KVTokens: 8192, MaxContext: 2048},
		},
		{
			name: "another version", profile: profileOf(engine.VLLM, vllm),
			caps:   engine.Capabilities{Kind: engine.VLLM, Version: "2", Models: model},
			want:   engine.Capabilities{Kind: engine.VLLM, Version: "2", Models: model, Slots: 4, KVTokens: 5120, MaxContext: 4096, Priority: true},
			warned: []string{"another version"},
		},
		{
			name: "another model", profile: profileOf(engine.VLLM, vllm),
			caps: engine.Capabilities{Kind: engine.VLLM, Models: []engine.Model{{ID: "n"}}}, want: engine.Capabilities{Kind: engine.VLLM, Models: []engine.Model{{ID: "n"}}},
			warned: []string{"another engine, and is not used"},
		},
		{
			name: "another kind", profile: profileOf(engine.LlamaCpp, split),
			caps: engine.Capabilities{Kind: engine.VLLM, Models: model}, want: engine.Capabilities{Kind: engine.VLLM, Models: model},
			warned: []string{"another engine, and is not used"},
		},
		{
			name: "nothing to be read", err: errors.New("no such file"),
			caps: engine.Capabilities{Kind: engine.VLLM, Models: model}, want: engine.Capabilities{Kind: engine.VLLM, Models: model},
			warned: []string{"no such file"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			k := &knownEngine{pool: "p", config: &c.config, log: slog.New(slog.NewTextHandler(&log, nil)), profile: c.profile, err: c.err}
			if d := cmp.Diff(c.want, k.found(c.caps)); d != "" {
				t.Errorf("-want +have:\n%s", d)
			}
			for _, w := range c.warned {
				if !strings.Contains(log.String(), w) {
					t.Errorf("no %q in\n%s", w, &log)
				}
			}
			if len(c.warned) == 0 && log.Len() > 0 {
				t.Errorf("it warns:\n%s", &log)
			}
		})
	}
}

const withProfile = `anonymous: {classes: [a]}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://127.0.0.1:1", profile: "FILE"}]
    classes: [{name: a}]
`

// TestProfileIsLoaded: serve does not start with a profile that can't be read.
func TestProfileIsLoaded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profile.json")
	cfg, problems := config.Parse("c", []byte(strings.ReplaceAll(withProfile, "FILE", file)))
	if cfg == nil {
		t.Fatal(problems)
	}
	e := engineConfig(&cfg.Pools[0], &cfg.Pools[0].Engines[0], slog.New(slog.DiscardHandler))
	if _, err := e.Open(); err == nil || !strings.Contains(err.Error(), file) || e.Found == nil {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// TestEngineProfile: what a probe found is what a comparison runs on, unless a flag says
// otherwise.
func TestEngineProfile(t *testing.T) {
	steps := simengine.DefaultModel()
	steps.Name = "probe"
	write := func(kind engine.Kind, found map[probe.Subject]any) string {
		p := profileOf(kind, found)
		if found[probe.Steps] != nil {
			p.StepTimes = &steps
		}
		return writeJSON(t, p)
	}
	shared := write(engine.VLLM, map[probe.Subject]any{probe.Slots: 6.0, probe.KVTokens: 8000.0, probe.KVLayout: probe.Shared, probe.ChunkTokens: 512.0,
		probe.PrefixCache: probe.Kept, probe.MaxContext: 2000.0, probe.Steps: probe.Fitted})
	split := write(engine.LlamaCpp, map[probe.Subject]any{probe.Slots: 2.0, probe.KVTokens: 8192.0, probe.KVLayout: probe.PerSlot, probe.MaxContext: 4096.0})
	for _, c := range []struct {
		args string
		want func(e *simengine.Config) bool
	}{
		{"--engine-profile " + shared, func(e *simengine.Config) bool {
			return e.MaxNumSeqs == 6 && e.NumBlocks == 501 && e.MaxBatchedTokens == 512 && e.PrefixCaching && e.MaxModelLen == 2000 && e.Model.Name == "probe" && e.Scheduler == simengine.VLLM
		}},
		{"--slots 3 --kv-blocks 400 --prefix-caching=false --max-model-len 1000 --batched-tokens 256 --engine m1 --engine-profile " + shared, func(e *simengine.Config) bool {
			return e.MaxNumSeqs == 3 && e.NumBlocks == 400 && e.MaxBatchedTokens == 256 && !e.PrefixCaching && e.MaxModelLen == 1000 && e.Model.Name == "m1"
		}},
		{"--engine-profile " + split, func(e *simengine.Config) bool {
			return e.Scheduler == simengine.LlamaServer && e.MaxNumSeqs == 2 && e.NumBlocks == 8193 && e.MaxModelLen == 4096
		}},
		{"--unified --context 1000 --engine-profile " + split, func(e *simengine.Config) bool { return e.NumBlocks == 1001 && e.MaxModelLen == 1000 }},
	} {
		var in simEngine
		f := pflag.NewFlagSet("sim", pflag.ContinueOnError)
		in.flags(f)
		if err := f.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		e, err := in.config(f.Changed)
		if err != nil || !c.want(&e) {
			t.Errorf("%s: %v, %+v", c.args, err, e)
		}
	}
	if err := os.WriteFile(shared, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := simEngine{profile: shared}
	if _, err := in.config(func(string) bool { return false }); err == nil || !strings.Contains(err.Error(), "--engine-profile: engine profile") {
		t.Errorf("error %v", err)
	}
}

func writeJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
