package relay

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

// TestQueuedClientsVanish is case 1: every count returns to zero, and the next
// request starts at once.
func TestQueuedClientsVanish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := loose("interactive")
		class.Depth = 50
		g := newRig(t, options{classes: []admission.ClassSpec{class}})
		_, call := answering(g, "interactive", true)
		var waiting []*client
		for range class.Depth {
			waiting = append(waiting, g.serve("interactive", sent(true, "")))
		}
		g.wantCode(g.serve("interactive", sent(true, "")), wire.CodeQueueFull)
		for _, c := range waiting {
			c.cancel()
		}
		settle()
		for _, c := range waiting {
			g.wantCode(c, wire.CodeClientClosed)
		}
		if n := g.pool.Snapshot().Classes[0].Queue; n != 0 {
			t.Errorf("%d still wait", n)
		}
		next := g.serve("interactive", sent(true, ""))
		call.Finish("stop")
		g.engines[0].Accept(t).Finish("stop")
		settle()
		g.wantCode(next, "")
		g.wantEmpty()
	})
}

// TestLimitHoldsUnderLoad is case 3: two hundred callers, four slots, and an
// engine that counts; clients leave at every moment.
func TestLimitHoldsUnderLoad(t *testing.T) {
	const slots, callers = 4, 200
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: slots}},
			classes: lender(),
		})
		e := g.engines[0]
		var work sync.WaitGroup
		answered := 0
		work.Go(func() {
			for {
				// It gives up half a minute after the last of them.
				call := e.Accept(quiet{t})
				if call == nil {
					return
				}
				answered++
				if n := e.Running() + e.Waiting(); n > slots {
					t.Errorf("%d requests are in the engine, which has %d slots", n, slots)
				}
				work.Go(func() {
					call.Headers()
					for range 3 {
						time.Sleep(20 * time.Millisecond)
						call.Emit(1)
					}
					call.Finish("stop")
				})
			}
		})
		var clients []*client
		for i := range callers {
			class, stream := "interactive", i%2 == 0
			if i%3 == 0 {
				class = "batch"
			}
			c := g.begin(class, sent(stream, ""), g.pool.Serve)
			clients = append(clients, c)
			if i%5 == 0 {
				after := rand.N(4 * time.Second)
				work.Go(func() {
					select {
					case <-time.After(after):
						c.cancel()
					case <-c.done:
					}
				})
			}
		}
		for _, c := range clients {
			<-c.done
			if code := c.code(); code != "" && code != wire.CodeClientClosed && code != wire.CodeLoanEnded {
				t.Errorf("%s: %s", c.id, code)
			}
			if c.late {
				t.Errorf("%s: the sink was used after Serve had returned", c.id)
			}
		}
		pass(10 * time.Second)
		g.wantEmpty()
		work.Wait()
		if answered < callers/2 {
			t.Errorf("%d calls reached the engine", answered)
		}
		wantOneReleaseEach(t, g.events())
	})
}

// quiet is a test for which it is no failure that no request comes.
type quiet struct{ testing.TB }

func (quiet) Fatal(...any) {}

// TestRefusedHoldsNothing is case 6, over every refusal that a pool knows.
func TestRefusedHoldsNothing(t *testing.T) {
	class := loose("interactive")
	class.Depth, class.TenantDepth, class.MaxWait = 2, 1, 5*time.Second
	for _, tt := range []struct {
		name string
		code string
		run  func(g *rig) *client
	}{
		{"too long", wire.CodeContextLength, func(g *rig) *client {
			return g.serve("interactive", strings.Replace(sent(true, ""), "hello", strings.Repeat("many words ", 4000), 1))
		}},
		{"too many sequences", wire.CodeExceedsCapacity, func(g *rig) *client { return g.serve("interactive", sent(true, `,"n":2`)) }},
		{"the tenant's share", wire.CodeTenantQueueFull, func(g *rig) *client {
			g.serve("interactive", sent(true, ""))
			return g.serve("interactive", sent(true, ""))
		}},
		{"waited too long", wire.CodeQueueTimeout, func(g *rig) *client {
			c := g.serve("interactive", sent(true, ""))
			pass(4 * time.Second)
			g.wantCode(c, "running")
			pass(time.Second)
			return c
		}},
		{"a class that the pool has not", wire.CodeClassNotPermitted, func(g *rig) *client { return g.serve("other", sent(true, "")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{classes: []admission.ClassSpec{class}})
				first, call := answering(g, "interactive", true)
				before := g.pool.Snapshot().Used
				c := tt.run(g)
				g.wantCode(c, tt.code)
				if c.Started() || len(c.decisions) > 0 {
					t.Error("the sink of a refused call was used")
				}
				if s := g.pool.Snapshot(); s.Used != before {
					t.Errorf("used %v, was %v", s.Used, before)
				}
				pass(6 * time.Second) // whoever else waits
				call.Finish("stop")
				settle()
				g.wantCode(first, "")
				g.wantEmpty()
			})
		})
	}
}

// TestFullPoolRefuses: the bound on all requests of a pool is a refusal like
// another, counted and written down.
func TestFullPoolRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{pool: func(c *Config) { c.Capacity = 2 }})
		_, call := answering(g, "interactive", true)
		second := g.serve("interactive", sent(true, ""))
		third := g.serve("interactive", sent(true, ""))
		g.wantCode(third, wire.CodeQueueFull)
		call.Finish("stop")
		g.engines[0].Accept(t).Finish("stop")
		settle()
		g.wantCode(second, "")
		g.wantEmpty()
		if got, want := story(g.events(), third.id), "arrived rejected(queue_full)"; got != want {
			t.Errorf("story %s, want %s", got, want)
		}
		if n := g.metric("headgate_requests_total", "outcome", "rejected_queue_full"); n != 1 {
			t.Errorf("%v refusals are counted, want 1", n)
		}
	})
}

// TestRecallIsTold: the journal's lines of a recall name the request that it was
// opened for, the last one too, when that request is long over.
func TestRecallIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		classes := lender()
		classes[0].Floor = admission.Of(2, 4096)
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2}}, classes: classes})
		e := g.engines[0]
		var loans []*enginetest.Call
		for range 2 {
			_, call := answering(g, "batch", true)
			loans = append(loans, call)
			pass(time.Second)
		}
		wants := g.serve("interactive", sent(true, ""))
		loans[0].Finish("stop")
		call := e.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(wants, "")
		loans[1].Finish("stop")
		settle()
		var got []string
		for _, ev := range g.events() {
			if ev.Recall != 0 && ev.Request == "" {
				got = append(got, string(ev.Kind))
				if ev.For != wants.id {
					t.Errorf("%s is for %q, want %s", ev.Kind, ev.For, wants.id)
				}
			}
		}
		if want := "recall_opened recall_granted recall_served recall_settled recall_closed"; strings.Join(got, " ") != want {
			t.Errorf("recall: %s, want %s", strings.Join(got, " "), want)
		}
	})
}

// TestReclaimIsTold: the end of a reclaimed attempt names the request that it
// made room for.
func TestReclaimIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: lender(), configure: neverContinued})
		c, _ := answering(g, "batch", true)
		recalled(g)
		g.wantCode(c, wire.CodeLoanEnded)
		found := false
		for _, e := range g.events() {
			if e.Kind == journal.Ended && e.Request == c.id {
				found = true
				if want := g.last.id; e.For != want {
					t.Errorf("ended for %q, want %s", e.For, want)
				}
			}
		}
		if !found {
			t.Error("no end")
		}
	})
}

// TestQueueTimeIsOfTheFirstAdmission: the histogram of waits has each request
// once, however often it runs.
func TestQueueTimeIsOfTheFirstAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: lender()})
		c, _ := begun(g, "batch", false)
		recalled(g)
		pass(lender()[0].IdleAfter)
		finish(g, c)
		if n := g.metric("headgate_queue_wait_seconds", "class", "batch"); n != 1 {
			t.Errorf("%v waits, want 1", n)
		}
	})
}

// TestBrokenClientEndsTheAttempt: a client whose connection broke is dropped at the first event
// that does not reach it, whatever the engine still says.
func TestBrokenClientEndsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := answering(g, "interactive", true, func(c *client) {
			c.onEvent = func(n int) error {
				if n > 1 {
					return errors.New("broken pipe")
				}
				return nil
			}
		})
		<-call.Gone()
		settle()
		g.wantCode(c, wire.CodeClientClosed)
		if c.events != 2 {
			t.Errorf("%d events were tried, want 2", c.events)
		}
	})
}

// TestCollector: every number of the core is there, under configured names only.
func TestCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: lender()})
		_, call := answering(g, "batch", true)
		g.serve("batch", sent(true, ""))
		for name, want := range map[string]float64{
			"headgate_class_queue": 1, "headgate_class_loans": 1, "headgate_loans_total": 1,
			"headgate_offered_total": 2, "headgate_admitted_total": 1,
		} {
			if got := g.metric(name, "class", "batch"); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		if got := g.metric("headgate_engine_ready", "engine", "e0"); got != 1 {
			t.Errorf("engine_ready is %v", got)
		}
		if got := g.metric("headgate_class_used", "resource", "slots"); got != 1 {
			t.Errorf("%v slots are used, want 1", got)
		}
		call.Finish("stop")
		g.engines[0].Accept(t).Finish("stop")
		settle()
	})
}

// metric adds up the samples of a metric that have a label's value; of a
// histogram, its count.
func (g *rig) metric(name, label, value string) float64 {
	g.t.Helper()
	families, err := g.metrics.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == label && l.GetValue() == value {
					sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	return sum
}

// TestHintIsOfTheCallersQueue is case 16: the class that is behind gives a hint,
// the one that is not is served.
func TestHintIsOfTheCallersQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		classes := lender()
		classes[1].Depth = 6
		g := newRig(t, options{classes: classes})
		e := g.engines[0]
		for range 7 {
			g.serve("batch", sent(true, ""))
		}
		early := g.serve("batch", sent(true, ""))
		g.wantCode(early, wire.CodeQueueFull)
		if early.err.Retry != 0 {
			t.Errorf("hint %v without any evidence", early.err.Retry)
		}
		for range 6 {
			pass(2 * time.Second)
			e.Accept(t).Finish("stop")
			settle()
			g.serve("batch", sent(true, ""))
		}
		late := g.serve("batch", sent(true, ""))
		g.wantCode(late, wire.CodeQueueFull)
		// Six wait and one is served every two seconds; up to a quarter is jitter.
		if r := late.err.Retry; r < 14*time.Second || r > 14*time.Second*5/4 {
			t.Errorf("hint %v, want 14 s and up to a quarter more", r)
		}
		for range 7 {
			e.Accept(t).Finish("stop")
			settle()
		}
		g.wantEmpty()
	})
}
