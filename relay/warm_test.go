package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/journal"
	"headgate/simengine/vllmapi"
	"headgate/wire"
)

// guarding is a pool that belongs to interactive, which bears half a second.
func guarding(slots int64) []admission.ClassSpec {
	classes := reclaimer(slots)
	classes[0].Floor = admission.Of(slots, 1<<14)
	classes[0].IdleAfter = 10 * time.Second
	classes[0].Objective.First = 500 * time.Millisecond
	return classes
}

// newCaching is a pool over a simulated engine that caches prefixes and takes a
// millisecond for a token of a prompt, of which the core has learned that.
func newCaching(t *testing.T, change func(*vllmapi.Config)) *simulated {
	t.Helper()
	s := newSimulatedOf(t, 3, guarding(3), func(c *vllmapi.Config) {
		c.Engine.PrefixCaching = true
		c.Engine.NumBlocks *= 2
		c.Engine.Model.Step.PrefillToken = 1
		c.Engine.MeanOutput = 0
		if change != nil {
			change(c)
		}
	})
	pass(12 * time.Second) // nobody is expected
	for i := range 3 {
		s.answer(wire.Completions, ask(wire.Completions, true, fmt.Sprint(i, " ", long(300)), 20, ""))
	}
	return s
}

// long is a text of so many words.
func long(words int) string { return strings.Repeat("the river ", words/2) }

// busy has an interactive request under way, for which the guard protects.
func (s *simulated) busy(tokens int) *client {
	c := s.start("interactive", ask(wire.Chat, true, "hello", tokens, ""), s.pool.Serve)
	pass(10 * simStep)
	return c
}

// batch starts a batch request.
func (s *simulated) batch(api wire.API, body string) *client {
	call := s.callOf(api, "batch", body)
	ctx, cancel := context.WithCancel(context.Background())
	c := &client{id: call.ID, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer cancel()
		c.err = s.pool.Serve(ctx, call, c)
	}()
	settle()
	return c
}

// warming tells whether a piece is at the engine.
func (s *simulated) warming(c *client) bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for _, r := range s.pool.records {
		if r != nil && r.call.ID == c.id {
			return r.stage == stageAdmitted && r.admit.Op == admission.Warm
		}
	}
	return false
}

// pieces are the events of a request's pieces that have ended.
func pieces(events []journal.Event, id string) (ended []journal.Event) {
	holds := map[uint64]bool{}
	for _, e := range events {
		switch {
		case e.Request != id:
		case e.Kind == journal.Warming:
			holds[e.Hold] = true
		case e.Kind == journal.Ended && holds[e.Hold]:
			ended = append(ended, e)
		}
	}
	return ended
}

// TestLongPromptIsSplit: a prompt that would hold up the protected class is computed
// in pieces, and its client gets the bytes that it would have got without. The
// protected class goes first between them.
func TestLongPromptIsSplit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		api    wire.API
		stream bool
		more   string
	}{
		{"chat", wire.Chat, true, ""},
		{"chat, collected", wire.Chat, false, ""},
		{"completion", wire.Completions, true, ""},
		{"completion with a salt", wire.Completions, false, `,"cache_salt":"s"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newCaching(t, nil)
				body := ask(tt.api, tt.stream, long(1600), 30, tt.more)
				other := s.busy(600)
				batch := s.batch(tt.api, body)
				// Whoever comes between two pieces is on time.
				for n := 0; batch.code() == "running" && n < 60; n++ {
					came := time.Now()
					first := time.Duration(0)
					wants := s.start("interactive", ask(wire.Chat, true, fmt.Sprint("hello ", came), 2, ""), s.pool.Serve, func(c *client) {
						c.onEvent = func(n int) error {
							if n == 1 {
								first = time.Since(came)
							}
							return nil
						}
					})
					<-wants.done
					if s.wantCode(wants, ""); first > 600*time.Millisecond {
						t.Errorf("an interactive request waited %v for its first event", first)
					}
					pass(900 * time.Millisecond)
				}
				<-other.done
				s.wantCode(batch, "")
				got, _ := nameless(batch.text())
				want, _ := nameless(s.engineSays(tt.api, body))
				for _, part := range []string{"choices.0.message.content", "choices.0.text", "choices.0.finish_reason", "usage"} {
					if a, b := gjson.Get(got, part).String(), gjson.Get(want, part).String(); a != b {
						t.Errorf("%s is %s, want %s", part, a, b)
					}
				}
				if tt.stream && got != want {
					t.Errorf("the client got\n%s\nthe engine says\n%s", got, want)
				}
				pass(time.Second)
				s.wantEmpty()
				computed := s.metric("headgate_warmed_tokens_total", "class", "batch")
				events := s.events()
				all := pieces(events, batch.id)
				if len(all) < 2 {
					t.Fatalf("%d pieces: %s", len(all), story(events, batch.id))
				}
				last := int64(0)
				for _, e := range all {
					if e.Cause != "finished" || e.PieceTokens <= last || e.PieceTokens%16 != 0 {
						t.Errorf("after %d tokens a piece of %d ended: %s", last, e.PieceTokens, e.Cause)
					}
					last = e.PieceTokens
				}
				if computed != float64(last) {
					t.Errorf("%v tokens were warmed, want %d", computed, last)
				}
				if want := "arrived queued" + strings.Repeat(" warming dispatched ended(finished) queued", len(all)) +
					" admitted dispatched first_token scheduled ended(finished) finished(finished)"; story(events, batch.id) != want {
					t.Errorf("story\n got %s\nwant %s", story(events, batch.id), want)
				}
				wantOneReleaseEach(t, events)
			})
		})
	}
}
