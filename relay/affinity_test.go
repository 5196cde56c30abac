package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// cached is a rig of two engines that cache prefixes.
func cached(t testing.TB, slots int, classes ...admission.ClassSpec) *rig {
	yes := true
	return newRig(t, options{engines: two(slots), classes: classes, configure: func(c *engine.Config) { c.Capabilities.PrefixCache = &yes }})
}

func saying(text string) string { return strings.Replace(sent(true, ""), "hello", text, 1) }

// where serves a request to its end and tells which engine ran it.
func (g *rig) where(body string, change ...func(*Call)) int {
	g.t.Helper()
	at, call, c := g.held(body, change...)
	call.Emit(1)
	call.Finish("stop")
	settle()
	g.wantCode(c, "")
	return at
}

func (g *rig) held(body string, change ...func(*Call)) (int, *enginetest.Call, *client) {
	g.t.Helper()
	before := []int{g.engines[0].Waiting(), g.engines[1].Waiting()}
	c := g.serveCall(body, change...)
	for i, e := range g.engines {
		if e.Waiting() > before[i] {
			return i, e.Accept(g.t), c
		}
	}
	g.t.Fatalf("no request reached an engine: %s", c.code())
	return 0, nil, nil
}

// TestPrefixAffinity: what begins like something that an engine has computed goes there,
// though another is less busy, unless that is so by too much; of one tenant, and for as
// long as the engine may have it.
func TestPrefixAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cached(t, 8)
		long := strings.Repeat("the river runs to the sea. ", 400)
		home := g.where(saying(long))
		// The home is the busier one from here on.
		var kept []*enginetest.Call
		for at := -1; at != home; {
			var call *enginetest.Call
			at, call, _ = g.held(sent(true, ""))
			kept = append(kept, call)
		}
		for i := range 4 {
			if at := g.where(saying(long + fmt.Sprint("and turn ", i))); at != home {
				t.Errorf("turn %d of a prompt that engine %d has computed ran on %d", i, home, at)
			}
		}
		if at := g.where(saying("something else " + long)); at == home {
			t.Error("a prompt that is in no cache ran on the busier engine")
		}
		if at := g.where(saying(long), func(c *Call) { c.Tenant = "other" }); at == home {
			t.Error("what one tenant has computed decides for another")
		}
		// As busy as it may be, and more.
		for range 5 {
			_, call, _ := g.held(saying(long))
			kept = append(kept, call)
		}
		if at := g.where(saying(long + "x")); at == home {
			t.Error("a popular prefix fills one engine")
		}
		for _, call := range kept {
			call.Emit(1)
			call.Finish("stop")
		}
		settle()
		g.wantEmpty()
	})
}

// serveCall starts a call after it has been changed.
func (g *rig) serveCall(body string, change ...func(*Call)) *client {
	g.t.Helper()
	return g.start("interactive", body, func(ctx context.Context, call *Call, sink Sink) *wire.Error {
		for _, f := range change {
			f(call)
		}
		return g.pool.Serve(ctx, call, sink)
	})
}

// TestPrefixIsForgotten: an engine that comes back has nothing in its cache, and nobody
// believes in a cache for ever.
func TestPrefixIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cached(t, 8)
		long := strings.Repeat("the river runs to the sea. ", 400)
		home := g.where(saying(long))
		r := &record{call: g.call("interactive", saying(long)), prompt: 1000}
		r.trail = g.pool.trail(r.call)
		look := func() int32 {
			g.pool.mu.Lock()
			defer g.pool.mu.Unlock()
			e, n := g.pool.homeLocked(r)
			if n > 0 && int(e) != home {
				t.Errorf("engine %d is said to have what %d has", e, home)
			}
			return n
		}
		// The marks are powers of two: at least half is found.
		if n := look(); n < 500 || n > 1000 {
			t.Errorf("%d tokens of 1000 are said to be cached", n)
		}
		pass(markAge + time.Second)
		if n := look(); n != 0 {
			t.Errorf("%d tokens are said to be cached after %v", n, markAge)
		}
		g.where(saying(long))
		g.engines[0].Answer("/health", 503, "")
		g.engines[1].Answer("/health", 503, "")
		pass(observeEvery)
		g.engines[0].Answer("/health", 0, "")
		g.engines[1].Answer("/health", 0, "")
		pass(observeEvery)
		if n := look(); n != 0 {
			t.Errorf("%d tokens are said to be cached on an engine that was away", n)
		}
	})
}

// TestMarksAreBounded: memory does not grow with what clients send.
func TestMarksAreBounded(t *testing.T) {
	var m marks
	for i := range 3 * maxMarks {
		m.put(uint64(i), mark{})
		m.put(uint64(i), mark{epoch: 1})
	}
	if len(m.of) != maxMarks || len(m.ring) != maxMarks {
		t.Errorf("%d marks in %d places, want %d", len(m.of), len(m.ring), maxMarks)
	}
	for i := 2 * maxMarks; i < 3*maxMarks; i++ {
		if m.of[uint64(i)].epoch != 1 {
			t.Fatalf("mark %d is gone, of the newest %d", i, maxMarks)
		}
	}
}

// TestSessionIsKeptWarm: what a session has left in a cache counts as used when its
// class lends, once for all its turns, and for no longer than its class says. A name is
// its tenant's.
func TestSessionIsKeptWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := loose("interactive")
		class.Floor, class.KeepWarm = admission.Of(2, 8000), time.Minute
		g := newRig(t, options{classes: []admission.ClassSpec{class}, engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2}}})
		turn := func(session, tenant string) {
			t.Helper()
			c := g.serveCall(sent(true, ""), func(c *Call) { c.Session, c.Tenant = session, tenant })
			call := g.engines[0].Accept(t)
			call.Emit(1)
			call.Finish("stop")
			settle()
			g.wantCode(c, "")
		}
		warm := func() int64 { return g.pool.Snapshot().Classes[0].Warm }
		turn("", "acme")
		if warm() != 0 {
			t.Errorf("%d kv tokens are kept for nobody", warm())
		}
		turn("chat", "acme")
		one := warm()
		if one == 0 {
			t.Error("nothing is kept for a session")
		}
		turn("chat", "acme")
		if warm() != one {
			t.Errorf("%d kv tokens for two turns of a session, want %d", warm(), one)
		}
		turn("chat", "other")
		if warm() != 2*one {
			t.Errorf("%d kv tokens for the sessions of two tenants, want %d", warm(), 2*one)
		}
		pass(time.Minute + time.Second)
		if warm() != 0 {
			t.Errorf("%d kv tokens are kept for longer than the class says", warm())
		}
		for i := range 2 * maxSessions {
			g.pool.mu.Lock()
			n := g.pool.numberLocked(&record{call: &Call{Tenant: "acme", Session: fmt.Sprint(i)}})
			g.pool.mu.Unlock()
			if n == 0 || n > maxSessions {
				t.Fatalf("session %d has number %d", i, n)
			}
		}
		if n := len(g.pool.numbers.of); n != maxSessions {
			t.Errorf("%d sessions are remembered, want %d", n, maxSessions)
		}
		g.wantEmpty()
	})
}
