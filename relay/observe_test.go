package relay

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

func two(slots int) []enginetest.Options {
	return []enginetest.Options{{Kind: engine.VLLM, Slots: slots}, {Kind: engine.VLLM, Slots: slots}}
}

func (g *rig) state(i int) string { return g.pool.Engines()[i].State }

func TestEngineThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{before: func(e *enginetest.Engine) { e.Answer("/health", 503, "") }})
		e := g.engines[0]
		early := g.serve("interactive", sent(true, ""))
		g.wantCode(early, wire.CodeEngineUnavailable)
		if err := g.pool.Ready(); err == nil || !strings.Contains(err.Error(), "no engine has answered yet; engine e0: ") {
			t.Errorf("ready: %v", err)
		}
		if g.pool.Match("test-model") > 0 || g.pool.Snapshot() != nil {
			t.Error("the pool knows an engine that nobody has seen")
		}
		e.Answer("/health", 0, "")
		pass(observeEvery)
		if err := g.pool.Ready(); err != nil || g.pool.Match("test-model") == 0 {
			t.Errorf("ready: %v", err)
		}
		// Down, it is refused at once; back, it is served at once.
		e.Answer("/health", 503, "")
		pass(observeEvery)
		g.wantCode(g.serve("interactive", sent(true, "")), wire.CodeEngineUnavailable)
		if g.pool.Ready() == nil {
			t.Error("ready without an engine")
		}
		e.Answer("/health", 0, "")
		pass(observeEvery)
		c, call := answering(g, "interactive", true)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
		if got, want := story(g.events(), early.id), "arrived rejected(unavailable)"; got != want {
			t.Errorf("story %s, want %s", got, want)
		}
	})
}

// TestLoadingIsNotDown is a part of case 11: busy, loading and down are three
// states.
func TestLoadingIsNotDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.LlamaCpp, Slots: 1}}})
		e := g.engines[0]
		e.Answer("/health", 503, `{"error":{"message":"Loading model"}}`)
		pass(observeEvery)
		if got := g.state(0); got != "loading" {
			t.Fatalf("state %s, want loading", got)
		}
		c := g.serve("interactive", sent(true, ""))
		g.wantCode(c, "running")
		pass(time.Minute)
		g.wantCode(c, "running")
		e.Answer("/health", 0, "")
		pass(observeEvery)
		call := e.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
		if d := c.decisions[0]; !d.Queued || d.Wait < time.Minute {
			t.Errorf("decision %+v", d)
		}
		g.wantEmpty()
	})
}

// TestFirstLoadIsToldApart: before the pool knows what its engine is there is no
// queue, but the client is told that the engine is on its way.
func TestFirstLoadIsToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM}}}) // slots: 0, not said
		if g.state(0) != "loading" {
			t.Fatalf("state %s, want loading", g.state(0))
		}
		g.wantCode(g.serve("interactive", sent(true, "")), wire.CodeEngineLoading)
		if err := g.pool.Ready(); err == nil || !strings.Contains(err.Error(), "slots") {
			t.Errorf("ready: %v, want the field that is missing", err)
		}
	})
}

// TestLateSamples: an engine that answers late is taken for busy, for a while.
func TestLateSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		e := g.engines[0]
		e.Answer("/health", 500, "")
		pass(downAfter - time.Second)
		if got := g.state(0); got != "ready" {
			t.Errorf("state %s after %v without a sample, want ready", got, downAfter-time.Second)
		}
		c, call := answering(g, "interactive", true)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
		pass(2 * time.Second)
		if got := g.state(0); got != "down" {
			t.Errorf("state %s after %v without a sample, want down", got, downAfter+time.Second)
		}
		e.Answer("/health", 0, "")
		pass(observeEvery)
		if got := g.state(0); got != "ready" {
			t.Errorf("state %s, want ready", got)
		}
		// The row starts anew.
		e.Answer("/health", 500, "")
		pass(downAfter - time.Second)
		if got := g.state(0); got != "ready" {
			t.Errorf("state %s, want ready", got)
		}
	})
}

// TestUnreachableEngineIsNotTheEnd is case 11: a request whose engine refuses
// the connection goes to another, and one without another is told at once.
func TestUnreachableEngineIsNotTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(c *Config) {
			for i := range c.Engines {
				c.Engines[i].ObserveEvery = time.Hour
			}
		}
		g := newRig(t, options{engines: two(1), pool: slow})
		g.engines[0].Close()
		var clients []*client
		for range 2 {
			clients = append(clients, g.serve("interactive", sent(true, "")))
		}
		for _, c := range clients {
			g.wantCode(c, "running")
			call := g.engines[1].Accept(t)
			call.Emit(1)
			call.Finish("stop")
			settle()
			g.wantCode(c, "")
		}
		if g.state(0) != "down" {
			t.Errorf("e0 is %s, want down", g.state(0))
		}
		g.engines[1].Close()
		last := g.serve("interactive", sent(true, ""))
		// It was admitted to an engine that then turned out to be gone: it
		// waits for one, it is not lost.
		g.wantCode(last, "running")
		g.wantCode(g.serve("interactive", sent(true, "")), wire.CodeEngineUnavailable)
		last.cancel()
		settle()
		g.wantCode(last, wire.CodeClientClosed)
		g.wantEmpty()
		events := g.events()
		retried := 0
		for _, e := range events {
			if e.Kind == journal.Ended && e.Cause == admission.CauseUnreachable.String() {
				retried++
			}
			if e.Kind == journal.Scheduled && e.Engine == "e0" {
				t.Error("an attempt that never reached its engine is said to have been scheduled")
			}
		}
		if retried < 2 {
			t.Errorf("%d attempts found no engine, want at least 2", retried)
		}
		wantOneReleaseEach(t, events)
	})
}

func TestTwoEnginesShareTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: two(2)})
		for range 4 {
			g.serve("interactive", sent(true, ""))
		}
		var calls []*enginetest.Call
		for _, e := range g.engines {
			if n := e.Waiting(); n != 2 {
				t.Errorf("%d calls on one engine, want 2", n)
			}
			for range 2 {
				calls = append(calls, e.Accept(t))
			}
		}
		fifth := g.serve("interactive", sent(true, ""))
		if s := g.pool.Snapshot(); s.Classes[0].Queue != 1 {
			t.Errorf("%d wait, want 1", s.Classes[0].Queue)
		}
		calls[3].Finish("stop")
		call := g.engines[1].Accept(t)
		call.Finish("stop")
		settle()
		g.wantCode(fifth, "")
		for _, c := range calls[:3] {
			c.Finish("stop")
		}
		settle()
		g.wantEmpty()
	})
}

// TestRestartedEngineIsAskedAgain: what an engine is may have changed while it
// was away, or between two samples.
func TestRestartedEngineIsAskedAgain(t *testing.T) {
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("outage seen=%t", seen), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2, Manual: true}}})
				e := g.engines[0]
				_, call := answering(g, "interactive", true)
				e.Step()
				pass(observeEvery)
				if kv := g.pool.Snapshot().Envelope.KV; kv != 16384 {
					t.Fatalf("envelope of %d tokens, want 16384", kv)
				}
				call.Finish("stop")
				if seen {
					e.Answer("/health", 503, "")
					pass(observeEvery)
					e.Answer("/health", 0, "")
				}
				e.Answer("/metrics", 200, `vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:generation_tokens_total{engine="0"} 0
vllm:prompt_tokens_total{engine="0"} 0
vllm:cache_config_info{block_size="32",num_gpu_blocks="101"} 1
`)
				pass(observeEvery)
				s := g.pool.Snapshot()
				if s.Envelope.KV != 3200 || s.Rev != 2 {
					t.Errorf("envelope of %d tokens in revision %d, want 3200 in 2", s.Envelope.KV, s.Rev)
				}
			})
		})
	}
}

// TestEngineThatFitsNoTableIsKeptOut: its old numbers would promise what it no
// longer has.
func TestEngineThatFitsNoTableIsKeptOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := loose("interactive")
		class.Floor = admission.Of(1, 8192)
		g := newRig(t, options{classes: []admission.ClassSpec{class}})
		e := g.engines[0]
		small := func(blocks int) string {
			return fmt.Sprintf("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%d\"} 1\n", blocks)
		}
		e.Answer("/health", 503, "")
		pass(observeEvery)
		e.Answer("/metrics", 200, small(101))
		e.Answer("/health", 0, "")
		pass(time.Second)
		if g.state(0) != "loading" {
			t.Errorf("state %s, want loading", g.state(0))
		}
		if err := g.pool.Ready(); err == nil || !strings.Contains(err.Error(), "floor") {
			t.Errorf("ready: %v, want why no table fits", err)
		}
		e.Answer("/metrics", 200, small(1025))
		pass(observeEvery)
		if err := g.pool.Ready(); err != nil || g.state(0) != "ready" {
			t.Errorf("state %s: %v", g.state(0), err)
		}
	})
}

// TestFloorsThatTakeTwoEngines: neither engine alone is enough for the floors.
func TestFloorsThatTakeTwoEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := loose("interactive")
		class.Floor = admission.Of(2, 1024)
		g := newRig(t, options{engines: two(1), classes: []admission.ClassSpec{class}})
		pass(observeEvery)
		if err := g.pool.Ready(); err != nil {
			t.Fatal(err)
		}
		if s := g.pool.Snapshot(); s.Envelope.Slots != 2 {
			t.Errorf("envelope of %d slots, want 2", s.Envelope.Slots)
		}
	})
}

// TestStuckGaugeBlocksNobody is case 12: after a mass abort the gauges stay at
// their last value until the engine makes another step.
func TestStuckGaugeBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 4, Manual: true}}})
		e := g.engines[0]
		var clients []*client
		for range 4 {
			c, _ := answering(g, "interactive", true)
			clients = append(clients, c)
		}
		e.Step()
		pass(time.Second)
		for _, c := range clients {
			c.cancel()
		}
		pass(30 * time.Second)
		for _, c := range clients {
			g.wantCode(c, wire.CodeClientClosed)
		}
		g.wantEmpty()
		for range 4 {
			g.serve("interactive", sent(true, ""))
			e.Accept(t).Finish("stop")
		}
		settle()
		g.wantEmpty()
		wantOneReleaseEach(t, g.events())
	})
}

// TestOwnExhaustionIsNotTheEngines: a process without descriptors left must not
// take its engine for dead.
func TestOwnExhaustionIsNotTheEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out atomic.Bool
		g := newRig(t, options{
			pool: func(c *Config) { c.Engines[0].ObserveEvery = time.Hour },
			configure: func(c *engine.Config) {
				dial := c.DialContext
				c.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if out.Load() {
						return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("socket", syscall.EMFILE)}
					}
					return dial(ctx, network, addr)
				}
			},
		})
		out.Store(true)
		for _, e := range g.pool.cfg.Engines {
			e.Adapter.Close() // its idle connections
		}
		c := g.serve("interactive", sent(true, ""))
		g.wantCode(c, wire.CodeInternal)
		if g.state(0) != "ready" {
			t.Errorf("the engine is %s", g.state(0))
		}
		out.Store(false)
		next, call := answering(g, "interactive", true)
		call.Finish("stop")
		settle()
		g.wantCode(next, "")
		g.wantEmpty()
	})
}
