package relay

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/journal"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
	"headgate/trace"
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

// TestPieceEnds: whatever ends a piece before its time, nothing is held afterwards,
// and the request has its answer unless its client has left.
func TestPieceEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*simulated, *client)
		code string
		want string // of the first piece on
	}{
		{
			"a reclaim", func(s *simulated, _ *client) { s.interruptPiece() }, "",
			"warming dispatched ended(reclaimed) queued warming dispatched ended(finished)",
		},
		{
			"the client leaves", func(_ *simulated, c *client) { c.cancel() }, wire.CodeClientClosed,
			"warming dispatched ended(client_gone) finished(client_gone)",
		},
		{
			"the engine crashes", func(s *simulated, _ *client) {
				s.crash()
				pass(time.Second)
				s.listen()
			}, "",
			"warming dispatched ended(failed) queued admitted",
		},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", tt.name, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newCaching(t, nil)
					body := ask(wire.Chat, stream, long(1600), 30, "")
					s.busy(300)
					batch := s.batch(wire.Chat, body)
					if !s.warming(batch) {
						t.Fatal("no piece was begun")
					}
					pass(10 * simStep)
					tt.end(s, batch)
					<-batch.done
					s.wantCode(batch, tt.code)
					pass(20 * time.Second)
					s.wantEmpty()
					if got, _ := nameless(batch.text()); tt.code == "" {
						if want, _ := nameless(s.engineSays(wire.Chat, body)); stream && got != want {
							t.Errorf("the client got\n%s\nwant\n%s", got, want)
						}
					} else if batch.text() != "" {
						t.Errorf("a client that left in a piece got %s", batch.text())
					}
					events := s.events()
					// When the engine shows that it is gone is another matter.
					told := story(events, batch.id)
					if got := released.ReplaceAllString(told, ""); !strings.Contains(got, tt.want) || len(released.FindAllString(told, -1)) != 1 {
						t.Errorf("story\n got %s\nwant in it %s, and one release", told, tt.want)
					}
					wantOneReleaseEach(t, events)
				})
			})
		}
	}
}

var released = regexp.MustCompile(` released\([a-z]+\)`)

// interruptPiece ends the piece that is under way, as the core would.
func (s *simulated) interruptPiece() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for _, r := range s.pool.records {
		if r != nil && r.cancel != nil && r.admit.Op == admission.Warm {
			r.reclaimed = true
			r.cancel(errReclaimed)
		}
	}
}

// TestNotSplit: a prompt that can't be cut starts whole, after one piece that was
// tried at the most, and gets its answer.
func TestNotSplit(t *testing.T) {
	const tried = "warming ended(failed) queued admitted"
	for _, tt := range []struct {
		name, more, refused string
		story               string
	}{
		{"the engine does not tell ids", "", "/tokenize", tried},
		{"an engine that fails pieces", "", wire.Completions.Path(), "warming dispatched ended(failed) queued admitted"},
		{"a prompt of more than its ids", `,"documents":[{"text":"a"}]`, "", tried},
		{"a prompt of which all is computed", `,"prompt_logprobs":1`, "", tried},
		{"an empty list of documents", `,"documents":[]`, "", "warming dispatched ended(finished) queued warming"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newCaching(t, nil)
				s.refused.Store(tt.refused)
				s.busy(300)
				batch := s.batch(wire.Chat, ask(wire.Chat, false, long(1600), 30, tt.more))
				<-batch.done
				s.wantCode(batch, "")
				pass(20 * time.Second)
				s.wantEmpty()
				events := s.events()
				if got := story(events, batch.id); !strings.Contains(got, tt.story) {
					t.Errorf("story\n got %s\nwant in it %s", got, tt.story)
				}
				wantOneReleaseEach(t, events)
			})
		})
	}
}

// TestBusyForAPiece: an engine that has no room for a piece says nothing about the
// prompt, which is split once it has.
func TestBusyForAPiece(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCaching(t, nil)
		s.full.Store(2)
		s.busy(600)
		batch := s.batch(wire.Chat, ask(wire.Chat, false, long(1600), 30, ""))
		<-batch.done
		s.wantCode(batch, "")
		pass(20 * time.Second)
		s.wantEmpty()
		events := s.events()
		const want = "warming dispatched ended(failed) queued warming dispatched ended(failed) queued warming dispatched ended(finished)"
		if got := story(events, batch.id); !strings.Contains(got, want) {
			t.Errorf("story\n got %s\nwant in it %s", got, want)
		}
		wantOneReleaseEach(t, events)
	})
}

// restarts has the pool find that the engine has started over.
func (s *simulated) restarts() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.pool.engines[0].epoch++
	for _, progress := range []int64{1 << 40, 1} {
		s.pool.allLocked(&admission.Event{Kind: admission.Observe, Gauge: admission.Gauge{Asked: s.pool.now(), Running: -1, KV: -1, Progress: progress, Preemptions: -1}})
	}
}

// TestRestartBetweenPieces: an engine that starts over has lost the pieces that it had
// computed, and computes them again.
func TestRestartBetweenPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCaching(t, nil)
		s.busy(900)
		batch := s.batch(wire.Chat, ask(wire.Chat, false, long(1600), 30, ""))
		// The second piece is under way.
		holds := map[admission.Hold]bool{}
		for len(holds) < 2 {
			pass(simStep)
			s.pool.mu.Lock()
			for _, r := range s.pool.records {
				if r != nil && r.call.ID == batch.id && r.stage == stageAdmitted {
					holds[r.admit.Hold] = true
				}
			}
			s.pool.mu.Unlock()
		}
		s.restarts()
		s.interruptPiece()
		<-batch.done
		s.wantCode(batch, "")
		pass(20 * time.Second)
		s.wantEmpty()
		var sent []int64
		for _, e := range s.events() {
			if e.Request == batch.id && e.Kind == journal.Dispatched && e.PieceTokens > 0 {
				sent = append(sent, e.PieceTokens)
			}
		}
		if len(sent) < 3 || sent[1] <= sent[0] || sent[2] != sent[0] {
			t.Errorf("pieces of %d tokens, want the first again after the restart", sent)
		}
	})
}

// TestMisread: an engine that makes other ids of prompts than it tells is not
// asked any more after a few.
func TestMisread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCaching(t, nil)
		inner := s.handler
		s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/tokenize" {
				_, _ = w.Write([]byte(`{"tokens":[` + strings.Repeat("1,", 1500) + `1]}`))
				return
			}
			inner.ServeHTTP(w, r)
		})
		var all []*client
		for i := range 8 {
			s.busy(300)
			c := s.batch(wire.Chat, ask(wire.Chat, false, fmt.Sprint(i, " ", long(1600)), 5, ""))
			<-c.done
			s.wantCode(c, "")
			pass(20 * time.Second)
			all = append(all, c)
		}
		s.wantEmpty()
		events := s.events()
		split, refused := 0, 0
		for _, c := range all {
			if got := story(events, c.id); strings.Contains(got, "warming dispatched") {
				split++
			} else if strings.Contains(got, "warming ended(failed) queued admitted") {
				refused++
			}
		}
		if split != maxMisread || refused == 0 {
			t.Errorf("%d requests were split, want %d, and %d not any more", split, maxMisread, refused)
		}
	})
}

// TestKeptIsWarmed: an answer that was interrupted goes on in pieces too, of its
// prompt and what is kept, and its client is shown that it still comes.
func TestKeptIsWarmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCaching(t, nil)
		body := ask(wire.Chat, true, long(1600), 60, "")
		batch := s.batch(wire.Chat, body)
		for strings.Count(batch.text(), "content") < 20 {
			pass(simStep)
		}
		other := s.busy(600)
		s.interrupt()
		<-other.done
		<-batch.done
		s.wantCode(batch, "")
		got, _ := nameless(batch.text())
		if want, _ := nameless(s.engineSays(wire.Chat, body)); got != want {
			t.Errorf("the client got\n%s\nwant\n%s", got, want)
		}
		pass(20 * time.Second)
		s.wantEmpty()
		if got := strings.ReplaceAll(story(s.events(), batch.id), " released(progress)", ""); !strings.Contains(got, "ended(reclaimed) queued warming dispatched ended(finished) queued admitted") {
			t.Errorf("its story is %s", got)
		}
		if batch.alive < 3 {
			t.Errorf("its client was shown %d times that the answer still comes", batch.alive)
		}
	})
}

var splitSeeds = flag.Int("split-seeds", 1, "seeds of TestSplitCost")

// splitCost is what an arm of TestSplitCost gave.
type splitCost struct {
	firsts           []time.Duration
	late             int
	batch            time.Duration // until the last was done, summed over seeds
	prompts, outputs float64       // tokens that the engine was asked for
	cached           float64       // of prompts, found in its cache
	pieces           float64
}

// TestSplitCost prints what splitting gives and costs, as docs/lending.md has it: the
// default policy on the M1's step times at twice their length, live but in virtual
// time, on the arrivals of metal-long-context-v1.
func TestSplitCost(t *testing.T) {
	var arms [2]splitCost
	for i := range arms {
		for seed := range *splitSeeds {
			synctest.Test(t, func(t *testing.T) { measureSplit(t, uint32(seed+1), i == 1, &arms[i]) })
		}
		a := &arms[i]
		slices.Sort(a.firsts)
		at := func(share float64) float64 { return a.firsts[int(share*float64(len(a.firsts)-1))].Seconds() }
		t.Logf("split %-5t: interactive %d, first token p50 %.2f s, p95 %.2f s, max %.2f s, %d later than 5 s; batch done after %.1f s in the mean; prompt tokens %.0f, computed %.0f; output tokens %.0f; pieces %.0f",
			i == 1, len(a.firsts), at(.5), at(.95), at(1), a.late, a.batch.Seconds()/float64(*splitSeeds), a.prompts, a.prompts-a.cached, a.outputs, a.pieces)
	}
	if arms[0].pieces != 0 || arms[1].pieces == 0 {
		t.Errorf("%v pieces without splitting, %v with", arms[0].pieces, arms[1].pieces)
	}
}

func measureSplit(t *testing.T, seed uint32, split bool, to *splitCost) {
	arrivals, err := trace.Generate("metal-long-context-v1", seed)
	if err != nil {
		t.Fatal(err)
	}
	engine := simengine.DefaultConfig()
	engine.Speed, engine.PrefixCaching = 2, true
	slots, kv := int64(engine.MaxNumSeqs), int64(engine.NumBlocks-1)*int64(engine.BlockSize)
	interactive, batch := loose(trace.Interactive), loose(trace.Batch)
	interactive.Floor, interactive.Reopen = admission.Of(slots, kv/4), admission.ReopenSettled
	interactive.Objective = admission.Objective{First: 5 * time.Second, Whole: 30 * time.Second}
	batch.Floor, batch.Mode, batch.Window, batch.PinAfter = admission.Of(1, kv/2), admission.ReclaimNow, time.Minute, 2
	interactive.IdleAfter, batch.IdleAfter = 2*time.Second, 2*time.Second
	s := newSimulatedOf(t, int(slots), []admission.ClassSpec{interactive, batch}, func(c *vllmapi.Config) { c.Engine = engine })
	s.pool.mu.Lock()
	caps := &s.pool.engines[0].caps
	caps.Priority, caps.PrefixCache = true, split // as if they were configured
	s.pool.takeLocked(0)
	s.pool.mu.Unlock()
	start := time.Now()
	var running sync.WaitGroup
	var mu sync.Mutex
	for i, e := range arrivals.Entries {
		pass(time.Until(start.Add(e.Arrival)))
		body := fmt.Sprintf(`{"model":"test-model","stream":%t,"max_tokens":%d,"prompt":[%d%s]}`, e.Class == trace.Interactive, e.Output, i, strings.Repeat(",7", e.PromptTokens-1))
		call := s.callOf(wire.Completions, e.Class, body)
		c, came, first := &client{id: call.ID, done: make(chan struct{})}, time.Now(), time.Duration(0)
		c.onEvent = func(int) error {
			if first == 0 {
				first = time.Since(came)
			}
			return nil
		}
		running.Go(func() {
			if err := s.pool.Serve(t.Context(), call, c); err != nil {
				t.Errorf("%s: %v", e.ID, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if e.Class == trace.Interactive {
				to.firsts = append(to.firsts, first)
				if first > 5*time.Second {
					to.late++
				}
			}
		})
	}
	running.Wait()
	to.batch += time.Since(start)
	pass(time.Minute)
	s.wantEmpty()
	to.pieces += s.metric("headgate_pieces_total", "outcome", "finished")
	for name, n := range map[string]*float64{"prompt_tokens_total": &to.prompts, "generation_tokens_total": &to.outputs, "prefix_cache_hits_total": &to.cached} {
		*n += s.engineCounts(name)
	}
}

// engineCounts is one of the engine's own counters.
func (s *simulated) engineCounts(name string) float64 {
	s.t.Helper()
	res, err := s.direct.Get("http://engine.test/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "vllm:"+name+"{") {
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			if err != nil {
				s.t.Error(err)
			}
			sum += v
		}
	}
	return sum
}
