package relay

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// checkpointed has a request served until a moment, as if the process were killed then,
// or 0 for its end, and returns what its client got and the last checkpoint.
func (s *simulated) checkpointed(api wire.API, body string, kept []byte, until time.Duration) (answer string, last []byte, tokens int) {
	s.t.Helper()
	s.wasted = -1
	call := s.callOf(api, "batch", body)
	call.Kept = kept
	call.Checkpoint = func(kept []byte, n int) {
		if n < tokens {
			s.t.Errorf("a checkpoint of %d tokens after one of %d", n, tokens)
		}
		last, tokens = kept, n
	}
	call.Wasted = func(n int) { s.wasted = n }
	c := &client{id: call.ID, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer close(c.done)
		c.err = s.pool.Serve(ctx, call, c)
	}()
	if until > 0 {
		pass(until)
		cancel()
	}
	<-c.done
	pass(2 * observeEvery)
	return c.text(), last, tokens
}

// TestCheckpointedIsExact: an answer whose calls are ended anywhere, and begun anew with
// what was checkpointed, is that of one call, and nothing that was is generated again.
func TestCheckpointedIsExact(t *testing.T) {
	resumed := 0
	rapid.Check(t, func(rt *rapid.T) {
		api := rapid.SampledFrom([]wire.API{wire.Chat, wire.Completions}).Draw(rt, "api")
		most := rapid.IntRange(1, 200).Draw(rt, "max_tokens")
		prompt := rapid.StringOfN(rapid.RuneFrom([]rune("ab é水😀")), 1, 12, -1).Draw(rt, "prompt")
		classes := reclaimer(1)
		if rapid.Bool().Draw(rt, "attrition") {
			classes[1].Mode = admission.Attrition // nothing is reclaimed, and checkpoints are kept all the same
		}
		cuts := rapid.SliceOfN(rapid.IntRange(1, 1000), 1, 4).Draw(rt, "cuts")
		body := ask(api, false, prompt, most, fmt.Sprintf(`,"min_tokens":%d,"temperature":0`, most/2))
		synctest.Test(t, func(t *testing.T) {
			s := newSimulatedOf(t, 1, classes, nil)
			want, _, _ := s.checkpointed(api, body, nil, 0)
			var kept []byte
			had := 0
			for _, cut := range cuts {
				// Its ends are between the engine's steps too.
				before := s.engineCounts("generation_tokens_total")
				answer, last, tokens := s.checkpointed(api, body, kept, time.Duration(cut)*simStep/10)
				if answer != "" {
					break
				}
				made, progress := int(s.engineCounts("generation_tokens_total")-before), max(tokens, had)-had
				if tokens > 0 {
					kept, had = last, tokens
				}
				// What the engine makes once it is told to end is on its way to nobody.
				if unseen := made - progress - s.wasted; s.wasted < 0 || unseen < 0 || unseen > 2 {
					rt.Errorf("%d tokens are wasted of %d, with %d more kept", s.wasted, made, progress)
				}
			}
			before := s.engineCounts("generation_tokens_total")
			got, _, _ := s.checkpointed(api, body, kept, 0)
			a, _ := nameless(want)
			b, _ := nameless(got)
			if a != b {
				rt.Errorf("with %d tokens kept:\n%s\nwant\n%s", had, b, a)
			}
			n := gjson.Get(want, "usage.completion_tokens").Int()
			if made := int64(s.engineCounts("generation_tokens_total") - before); made != n-int64(had) {
				rt.Errorf("%d tokens were generated where %d of %d were kept", made, had, n)
			}
			if s.wasted != 0 {
				rt.Errorf("%d tokens are wasted of a whole answer", s.wasted)
			}
			if had > 0 {
				resumed++
			}
			s.wantEmpty()
		})
	})
	if resumed == 0 {
		t.Error("nothing was ever gone on with")
	}
}

// TestCheckpointOfAnother: what can't be gone on with is begun anew.
func TestCheckpointOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, 1, nil)
		body := ask(wire.Chat, false, "hello", 100, `,"min_tokens":100,"temperature":0`)
		want, _, _ := s.checkpointed(wire.Chat, body, nil, 0)
		_, kept, tokens := s.checkpointed(wire.Chat, body, nil, 80*simStep)
		if tokens < checkpointEvery {
			t.Fatalf("a checkpoint of %d tokens", tokens)
		}
		renamed := bytes.Replace(kept, []byte(`"model":"test-model"`), []byte(`"model":"other"`), 1)
		if bytes.Equal(renamed, kept) {
			t.Fatalf("the model is not in %s", kept)
		}
		for what, other := range map[string][]byte{"no JSON": []byte("x"), "nothing": []byte("{}"), "another model's": renamed} {
			got, _, _ := s.checkpointed(wire.Chat, body, other, 0)
			a, _ := nameless(want)
			if b, _ := nameless(got); a != b {
				t.Errorf("%s: %s\nwant %s", what, b, a)
			}
		}
		s.wantEmpty()
	})
}

// TestKeptWaits: what an earlier life has kept waits at the start until each engine has said
// what it goes on with, but not for ever; and a model that none of the others serves may be that
// engine's.
func TestKeptWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent *enginetest.Engine // the last one
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}, {Kind: engine.VLLM, Slots: 1}},
			before: func(e *enginetest.Engine) {
				if silent != nil {
					e.Answer("/v1/models", 503, "")
				}
				silent = e
			},
		})
		pass(5 * time.Second)
		ask := func() *wire.Error {
			call := g.call("interactive", sent(false, ""))
			call.Kept = []byte("{}")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return g.pool.Serve(ctx, call, &client{})
		}
		if err := ask(); err == nil || err.Code != wire.CodeEngineLoading {
			t.Errorf("%v: want it to wait", err)
		}
		if _, err := Choose([]*Pool{g.pool}, "not-known", "interactive"); err == nil || err.Code != wire.CodeEngineUnavailable {
			t.Errorf("%v: want it not known which models there are", err)
		}
		pass(time.Minute)
		if err := ask(); err != nil && err.Code == wire.CodeEngineLoading {
			t.Error(err)
		}
		silent.Answer("/v1/models", 0, "")
		pass(time.Minute)
		if _, err := Choose([]*Pool{g.pool}, "not-known", "interactive"); err == nil || err.Code != wire.CodeModelNotFound {
			t.Errorf("%v: want it not found", err)
		}
	})
}

// TestWasted: what a request that gives way has generated, and begins anew without, is told.
func TestWasted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: reclaimer(1), configure: neverContinued})
		e, wasted := g.engines[0], -1
		pass(2 * time.Second) // interactive lends
		c := g.start("batch", sent(false, ""), func(ctx context.Context, call *Call, sink Sink) *wire.Error {
			call.Wasted = func(n int) { wasted = n }
			return g.pool.Serve(ctx, call, sink)
		})
		first := e.Accept(t)
		first.Start()
		first.Emit(3)
		settle()
		wants := g.serve("interactive", sent(true, ""))
		<-first.Gone()
		settle()
		finish(g, wants)
		pass(2 * time.Second)
		again := e.Accept(t)
		again.Emit(2)
		again.Finish("stop")
		settle()
		g.wantCode(c, "")
		if wasted != 3 {
			t.Errorf("%d tokens are wasted", wasted)
		}
	})
}
