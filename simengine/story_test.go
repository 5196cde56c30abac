package simengine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestStories walks testdata/stories: scripts that tell what the scheduler does
// and why, rewritten with -rewrite. Every step takes 10 ms, so times count
// steps. Commands:
//
//	new [policy=fcfs] [blocks=N] [block=N] [len=N] [seqs=N] [budget=N]
//	    [threshold=N] [watermark=X] [caching] [nolag] [nogate] [nochunks]
//	llama-server slots=N ctx=N [unified] [budget=N] [prefill=MS]
//	                   a prompt token takes MS more, nothing by default
//	submit             a request a line: TAG prompt=N out=N [priority=N] [text=N]
//	abort TAG...
//	step [N]           let N boundaries pass, 1 by default; prints what was seen
//	run                step until idle
//	state
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := &story{ids: map[uint64]ID{}}
		datadriven.RunTest(t, path, s.command)
	})
}

type story struct {
	e   *Engine
	ids map[uint64]ID
}

func (s *story) command(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		return s.create(t, d)
	case "llama-server":
		return s.createSlots(t, d)
	case "submit":
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			out.WriteString(s.submit(t, line))
		}
		return out.String()
	case "abort":
		for _, arg := range d.CmdArgs {
			var tag uint64
			scan(t, arg.Key, "%d", &tag)
			if err := s.e.Abort(s.e.now, s.ids[tag]); err != nil {
				return err.Error()
			}
		}
		return ""
	case "step":
		n := 1
		if len(d.CmdArgs) > 0 {
			scan(t, d.CmdArgs[0].Key, "%d", &n)
		}
		return s.step(n)
	case "run":
		return s.step(1 << 20)
	case "state":
		return s.e.String()
	}
	t.Fatalf("unknown command %q", d.Cmd)
	return ""
}

func (s *story) create(t *testing.T, d *datadriven.TestData) string {
	cfg := DefaultConfig()
	for _, arg := range d.CmdArgs {
		value := strings.Join(arg.Vals, "")
		switch arg.Key {
		case "policy":
			cfg.Policy = Policy(value)
		case "blocks":
			scan(t, value, "%d", &cfg.NumBlocks)
		case "block":
			scan(t, value, "%d", &cfg.BlockSize)
		case "len":
			scan(t, value, "%d", &cfg.MaxModelLen)
		case "seqs":
			scan(t, value, "%d", &cfg.MaxNumSeqs)
		case "budget":
			scan(t, value, "%d", &cfg.MaxBatchedTokens)
		case "threshold":
			scan(t, value, "%d", &cfg.LongPrefillThreshold)
		case "watermark":
			scan(t, value, "%g", &cfg.Watermark)
		case "caching":
			cfg.PrefixCaching = true
		case "nolag":
			cfg.OutputLag = false
		case "nogate":
			cfg.WholePromptGate = false
		case "nochunks":
			cfg.ChunkedPrefill = false
		default:
			t.Fatalf("new: unknown argument %q", arg.Key)
		}
	}
	return s.start(cfg, 0)
}

func (s *story) createSlots(t *testing.T, d *datadriven.TestData) string {
	var slots, context, budget int
	var prefill float64
	unified := false
	for _, arg := range d.CmdArgs {
		value := strings.Join(arg.Vals, "")
		switch arg.Key {
		case "slots":
			scan(t, value, "%d", &slots)
		case "ctx":
			scan(t, value, "%d", &context)
		case "unified":
			unified = true
		case "budget":
			scan(t, value, "%d", &budget)
		case "prefill":
			scan(t, value, "%g", &prefill)
		default:
			t.Fatalf("llama-server: unknown argument %q", arg.Key)
		}
	}
	cfg := LlamaServerConfig(slots, context, unified)
	if budget > 0 {
		cfg.MaxBatchedTokens = budget
	}
	return s.start(cfg, prefill)
}

// start begins a story on an idle engine whose steps take 10 ms, and prefill ms
// more for every token of a prompt.
func (s *story) start(cfg Config, prefill float64) string {
	step := &cfg.Model.Step
	step.Base, step.PrefillToken, step.FirstDecode, step.MoreDecode, step.ContextToken = 10, prefill, 0, 0, 0
	cfg.Model.Idle.Penalty = 0
	e, err := New(cfg)
	if err != nil {
		return err.Error()
	}
	s.e = e
	return ""
}

func (s *story) submit(t *testing.T, line string) string {
	fields := strings.Fields(line)
	var r Request
	scan(t, fields[0], "%d", &r.Tag)
	r.Seed = r.Tag
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "prompt":
			scan(t, value, "%d", &r.Synthetic)
		case "out":
			scan(t, value, "%d", &r.MaxTokens)
		case "priority":
			scan(t, value, "%d", &r.Priority)
		case "text":
			scan(t, value, "%d", &r.Seed)
		default:
			t.Fatalf("submit: unknown field %q", f)
		}
	}
	id, err := s.e.Submit(s.e.now, r)
	if err != nil {
		return err.Error() + "\n"
	}
	s.ids[r.Tag] = id
	return ""
}

// step prints one line for each boundary at which something was seen.
func (s *story) step(n int) string {
	var out strings.Builder
	for range n {
		at, ok := s.e.Next()
		if !ok {
			out.WriteString("idle\n")
			break
		}
		events := s.e.Advance(at, nil)
		if len(events) == 0 {
			continue
		}
		fmt.Fprintf(&out, "%v:", time.Duration(at))
		for i, ev := range events {
			if i > 0 {
				out.WriteByte(',')
			}
			switch ev.Kind {
			case Generated:
				fmt.Fprintf(&out, " r%d token %d", ev.Tag, ev.Output)
			case Finished:
				fmt.Fprintf(&out, " r%d finished (%s)", ev.Tag, ev.Reason)
			case Scheduled:
				fmt.Fprintf(&out, " r%d scheduled", ev.Tag)
				if ev.Cached > 0 {
					fmt.Fprintf(&out, " with %d tokens cached", ev.Cached)
				}
			default:
				fmt.Fprintf(&out, " r%d %s", ev.Tag, ev.Kind)
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func scan(t *testing.T, value, format string, into any) {
	t.Helper()
	if _, err := fmt.Sscanf(value, format, into); err != nil {
		t.Fatalf("%q: %v", value, err)
	}
}
