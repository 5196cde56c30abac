package relay

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
)

// TestScheduledInterval: of an engine that does not tell when it began, it is
// known that it was before the first token by what such a prompt takes.
func TestScheduledInterval(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cached bool
		width  time.Duration // of the second's interval
	}{{"no cache", false, 2 * time.Second}, {"a cache of which nothing is said", true, 3 * time.Second}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{configure: func(c *engine.Config) { c.Capabilities.PrefixCache = &tt.cached }})
				prompt := strings.Replace(sent(true, ""), "hello", strings.Repeat("hello ", 100), 1)
				for _, took := range []time.Duration{time.Second, 3 * time.Second} {
					pass(time.Second)
					c := g.serve("interactive", prompt)
					call := g.engines[0].Accept(t)
					pass(took)
					call.Emit(1)
					call.Finish("stop")
					settle()
					g.wantCode(c, "")
				}
				var widths []time.Duration
				for _, e := range g.events() {
					if e.Kind == journal.Scheduled {
						widths = append(widths, time.Duration(e.ScheduledUpperNS-e.ScheduledNS))
					}
				}
				if len(widths) != 2 || widths[0] != time.Second || widths[1] != tt.width {
					t.Errorf("intervals of %v, want 1s and %v", widths, tt.width)
				}
			})
		})
	}
}

// TestPrefills: the estimate exceeds no recent time of a comparable prompt, and
// there is one whenever there was such a prompt.
func TestPrefills(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p prefills
		var all []prefill
		for range rapid.IntRange(0, 200).Draw(t, "prompts") {
			s := prefill{rapid.IntRange(1, 200).Draw(t, "tokens"), time.Duration(rapid.IntRange(1, 1000).Draw(t, "took"))}
			p.add(s.tokens, s.took)
			all = append(all, s)
		}
		tokens := rapid.IntRange(1, 300).Draw(t, "of")
		var want time.Duration
		for _, s := range all[max(0, len(all)-64):] {
			if s.tokens <= tokens && s.tokens*2 >= tokens && (want == 0 || s.took < want) {
				want = s.took
			}
		}
		if got := p.least(tokens); got != want {
			t.Fatalf("%d tokens take %v at the least, want %v", tokens, got, want)
		}
	})
}

// TestLearnsWhatWasComputed: what an engine says at the end of an answer that it found in its
// cache is taken off what the prefill is learned by, whether or not prompts can be split there.
func TestLearnsWhatWasComputed(t *testing.T) {
	caches := true
	for name, configure := range map[string]func(*engine.Config){"split": func(*engine.Config) {}, "whole": neverContinued} {
		t.Run(name, func(t *testing.T) {
			learnsWhatWasComputed(t, func(c *engine.Config) {
				c.Capabilities.PrefixCache = &caches
				configure(c)
			})
		})
	}
}

func learnsWhatWasComputed(t *testing.T, configure func(*engine.Config)) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{configure: configure})
		for _, s := range []struct {
			cached int
			took   time.Duration
		}{{60, time.Second}, {60, 100 * time.Millisecond}} {
			pass(time.Second)
			c := g.serve("interactive", strings.Replace(sent(true, ""), "hello", strings.Repeat("hello ", 100), 1))
			call := g.engines[0].Accept(t)
			pass(s.took)
			call.Emit(1)
			call.Send(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"test-model","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" +
				`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"test-model","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":1,"total_tokens":101,` +
				fmt.Sprintf(`"prompt_tokens_details":{"cached_tokens":%d}}}`, s.cached) + "\n\n")
			call.End()
			settle()
			g.wantCode(c, "")
		}
		var d admission.Demands
		g.pool.mu.Lock()
		g.pool.core.decider.(*admission.Core).Demands(&d)
		g.pool.mu.Unlock()
		least := map[int32]time.Duration{}
		for _, p := range d.Engines[0].Speed.Prefills {
			least[p.Tokens] = time.Duration(p.Took)
		}
		if len(least) != 1 || least[40] != 100*time.Millisecond {
			t.Errorf("prefills are %v, want 40 tokens in 100ms, as the faster of two", least)
		}
	})
}
