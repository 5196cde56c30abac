package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// next is the rig's configuration with other classes, and engines that are called by
// their names: those that it has keep their adapters.
func (g *rig) next(classes []admission.ClassSpec, engines ...string) Config {
	c := Config{Capacity: 1 << 10, IdleTimeout: idleTimeout, MaxAnswer: 1 << 20, Resolve: resolveTo(classes)}
	for _, spec := range classes {
		c.Classes = append(c.Classes, spec.Name)
	}
	for _, name := range engines {
		e := Engine{Name: name, ObserveEvery: observeEvery, Open: func() (engine.Adapter, error) { return nil, errors.New("is not new") }}
		for k := range classes {
			e.Priority = append(e.Priority, 100*k)
		}
		c.Engines = append(c.Engines, e)
	}
	return c
}

// another adds an engine to a configuration.
func (g *rig) another(c *Config, name string, o enginetest.Options) {
	e := enginetest.New(g.t, o)
	g.engines = append(g.engines, e)
	ec := e.Config()
	ec.Capabilities.Slots = o.Slots
	re := Engine{Name: name, Key: "new", ObserveEvery: observeEvery, Open: func() (engine.Adapter, error) { return adapters.New(ec.Kind, ec) }}
	re.Priority = make([]int, len(c.Classes))
	c.Engines = append(c.Engines, re)
}

func (g *rig) change(c Config) {
	g.t.Helper()
	change, err := g.pool.Prepare(c)
	if err == nil {
		err = change.Commit()
	}
	if err != nil {
		g.t.Fatal(err)
	}
	settle()
}

// TestChangeOfLimits: what runs goes on, what waits is judged anew, and what comes is
// judged by the new table.
func TestChangeOfLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2}}, classes: []admission.ClassSpec{loose("a"), loose("b")}})
		first, call := answering(g, "a", true)
		tight := loose("b")
		tight.Ceiling[admission.Slots], tight.Depth = 0, 0
		g.change(g.next([]admission.ClassSpec{loose("a"), tight}, "e0"))
		g.wantCode(first, "running")
		refused := g.serve("b", sent(true, ""))
		if code := refused.code(); code == "" || code == "running" {
			t.Errorf("a class that may have nothing: %q", code)
		}
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(first, "")
		g.change(g.next([]admission.ClassSpec{loose("a"), loose("b")}, "e0"))
		again, call := answering(g, "b", true)
		if n := strings.Count(string(call.Body), `"priority":`); n != 0 {
			t.Errorf("an engine without priorities got %s", call.Body)
		}
		call.Finish("stop")
		settle()
		g.wantCode(again, "")
		g.wantEmpty()
	})
}

// TestChangeOfClasses: a class that is new can be used; one that is gone takes nothing
// more and lets what runs finish; one that comes back is the same.
func TestChangeOfClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: []admission.ClassSpec{loose("a"), loose("b")}})
		runs, call := answering(g, "b", true)
		waits := g.serve("b", sent(true, ""))
		g.change(g.next([]admission.ClassSpec{loose("a"), loose("c")}, "e0"))
		g.wantCode(runs, "running")
		g.wantCode(waits, wire.CodeDraining)
		g.wantCode(g.serve("b", sent(true, "")), wire.CodeDraining)
		g.wantCode(g.serve("x", sent(true, "")), wire.CodeClassNotPermitted)
		if got := fmt.Sprint(g.pool.Classes()); got != "[a c]" || g.pool.HasClass("b") {
			t.Errorf("classes %s", got)
		}
		call.Finish("stop")
		settle()
		g.wantCode(runs, "")
		c, call := answering(g, "c", true)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
		g.change(g.next([]admission.ClassSpec{loose("a"), loose("b"), loose("c")}, "e0"))
		back, call := answering(g, "b", true)
		call.Finish("stop")
		settle()
		g.wantCode(back, "")
		if n := len(g.pool.Snapshot().Classes); n != 3 {
			t.Errorf("%d classes in the table, want 3", n)
		}
		g.wantEmpty()
	})
}

// TestChangeOfEngines: what runs on an engine that is gone finishes there; what comes
// goes to the new one, once that has said what it is, and what waits too.
func TestChangeOfEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		old, call := answering(g, "interactive", true)
		waits := g.serve("interactive", sent(true, ""))
		c := g.next([]admission.ClassSpec{loose("interactive")})
		g.another(&c, "e0", enginetest.Options{Kind: engine.VLLM, Slots: 2}) // what runs on the old one counts for its class
		g.change(c)
		pass(2 * observeEvery)
		if views := g.pool.Engines(); len(views) != 1 || views[0].State != "ready" {
			t.Fatalf("engines %+v", views)
		}
		next := g.engines[1].Accept(t)
		next.Headers()
		next.Emit(1)
		next.Finish("stop")
		settle()
		g.wantCode(waits, "")
		g.wantCode(old, "running")
		scrapes := g.engines[0].Scrapes("/metrics")
		pass(4 * observeEvery)
		if n := g.engines[0].Scrapes("/metrics"); n != scrapes {
			t.Errorf("an engine that is gone was read %d times more", n-scrapes)
		}
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(old, "")
		g.wantEmpty()
		// The old one comes back at its old place.
		back := g.next([]admission.ClassSpec{loose("interactive")}, "e0")
		back.Engines[0].Open = func() (engine.Adapter, error) {
			ec := g.engines[0].Config()
			ec.Capabilities.Slots = 1
			return adapters.New(ec.Kind, ec)
		}
		g.change(back)
		pass(2 * observeEvery)
		again, call := answering(g, "interactive", true)
		call.Finish("stop")
		settle()
		g.wantCode(again, "")
		if n := len(g.pool.live().Engines); n != 2 {
			t.Errorf("%d engines in the table, want 2", n)
		}
		g.wantEmpty()
	})
}

// TestChangeThatDoesNotFit is refused whole, and what was in force goes on.
func TestChangeThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: []admission.ClassSpec{loose("a"), loose("b")}})
		runs, call := answering(g, "a", true)
		big := loose("a")
		big.Floor = admission.Of(1<<10, 1<<20)
		rank := g.next([]admission.ClassSpec{loose("b"), loose("a")}, "e0")
		deep := g.next([]admission.ClassSpec{loose("a"), loose("b")}, "e0")
		deep.Capacity++
		closed := g.next([]admission.ClassSpec{loose("a")}, "e0", "e9")
		for name, c := range map[string]Config{
			"class a comes behind class b": rank, "a restart makes more": deep, "engine e9: is not new": closed,
			"must be": g.next([]admission.ClassSpec{big, loose("b")}, "e0"),
		} {
			before := g.pool.live()
			if _, err := g.pool.Prepare(c); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v, want %q", err, name)
			}
			if g.pool.live() != before {
				t.Errorf("%s: in force all the same", name)
			}
		}
		call.Finish("stop")
		settle()
		g.wantCode(runs, "")
		g.wantEmpty()
	})
}

// TestChangesUnderLoad: whatever is changed while calls come and go, none is lost, and
// nothing is left.
func TestChangesUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2}}, classes: []admission.ClassSpec{loose("a"), loose("b")}})
		var all []*client
		var calls []*enginetest.Call
		for i := range 60 {
			c, call := answering(g, "a", i%2 == 0)
			all = append(all, c)
			calls = append(calls, call)
			classes := []admission.ClassSpec{loose("a"), loose("b"), loose(fmt.Sprintf("c%d", i%7))}
			if i%3 == 0 {
				classes = classes[:1]
			}
			g.change(g.next(classes, "e0"))
			if i > 0 { // one runs through every change
				calls[i-1].Finish("stop")
			}
			pass(7 * time.Millisecond)
		}
		calls[len(calls)-1].Finish("stop")
		pass(10 * time.Second)
		for _, c := range all {
			g.wantCode(c, "")
		}
		g.wantEmpty()
	})
}

// TestAdmittedAsItsEngineGoes: a request that is admitted to an engine in the moment in
// which a reload replaces it is not sent by what is then not known of it any more, but
// waits for the new one.
func TestAdmittedAsItsEngineGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1, Model: "real"}},
			pool:    func(c *Config) { c.Models = []string{"test-model"} },
		})
		next := g.next([]admission.ClassSpec{loose("interactive")})
		next.Models = []string{"test-model"}
		g.another(&next, "e0", enginetest.Options{Kind: engine.VLLM, Slots: 1, Model: "other"})
		change, err := g.pool.Prepare(next)
		if err != nil {
			t.Fatal(err)
		}
		c := g.start("interactive", sent(true, ""), func(ctx context.Context, call *Call, sink Sink) *wire.Error {
			r, refused := g.pool.offer(call)
			if refused != nil || r.stage != stageAdmitted {
				t.Errorf("%v, stage %d", refused, r.stage)
			}
			if err := change.Commit(); err != nil {
				t.Error(err)
			}
			return g.pool.carry(ctx, r, sink)
		})
		if n := g.engines[0].Waiting() + g.engines[0].Running(); n > 0 {
			t.Errorf("the engine that is gone has %d requests", n)
		}
		g.wantCode(c, "running")
		pass(2 * observeEvery)
		call := g.engines[1].Accept(t)
		if !strings.Contains(string(call.Body), `"model":"other"`) {
			t.Errorf("it is sent %s", call.Body)
		}
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
		g.wantEmpty()
	})
}

// TestChangeOfAModel: what waits for a model whose one engine is replaced waits for the
// new one, and is refused as soon as it is known that there will be none, as one that
// comes then. Others of the pool's models have nothing to do with it.
func TestChangeOfAModel(t *testing.T) {
	const b = `{"model":"b","messages":[{"role":"user","content":"hello"}]}`
	classes := []admission.ClassSpec{loose("interactive")}
	for _, tt := range []struct {
		name   string
		models []string // before and after
		change func(*rig, *Config)
		at     int    // the engine that serves it in the end
		model  string // as it is asked
		code   string
	}{
		{name: "replaced", at: 2, model: "b", change: func(g *rig, c *Config) {
			g.another(c, "e1", enginetest.Options{Kind: engine.VLLM, Slots: 2, Model: "b"})
		}},
		{name: "replaced, and named", models: []string{"test-model", "b"}, at: 2, model: "b", change: func(g *rig, c *Config) {
			c.Models = []string{"test-model", "b"}
			g.another(c, "e1", enginetest.Options{Kind: engine.VLLM, Slots: 2, Model: "b"})
		}},
		{name: "replaced by one without it", code: wire.CodeModelNotFound, change: func(g *rig, c *Config) {
			g.another(c, "e1", enginetest.Options{Kind: engine.VLLM, Slots: 2, Model: "c"})
		}},
		{name: "removed", code: wire.CodeModelNotFound, change: func(*rig, *Config) {}},
		{name: "not named any more", models: []string{"test-model", "b"}, code: wire.CodeModelNotFound, change: func(g *rig, c *Config) {
			c.Models = []string{"test-model"}
			g.another(c, "e1", enginetest.Options{Kind: engine.VLLM, Slots: 2, Model: "b"})
		}},
		{name: "another model's name now", at: 0, model: "test-model", change: func(_ *rig, c *Config) {
			c.Aliases = []Alias{{Name: "b", Model: "test-model"}}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{
					engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 4}, {Kind: engine.VLLM, Slots: 1, Model: "b"}},
					pool:    func(c *Config) { c.Models = tt.models },
				})
				runs := g.serve("interactive", b)
				old := g.engines[1].Accept(t)
				waits := g.serve("interactive", b)
				other, call := answering(g, "interactive", true)
				next := g.next(classes, "e0")
				tt.change(g, &next)
				g.change(next)
				if tt.code == "" && tt.at > 0 {
					g.wantCode(waits, "running")
				}
				pass(2 * observeEvery)
				g.wantCode(runs, "running")
				if tt.code != "" {
					g.wantCode(waits, tt.code)
				} else {
					got := g.engines[tt.at].Accept(t)
					if !strings.Contains(string(got.Body), fmt.Sprintf(`"model":%q`, tt.model)) {
						t.Errorf("it is sent %s", got.Body)
					}
					got.Emit(1)
					got.Finish("stop")
					settle()
					g.wantCode(waits, "")
				}
				for _, c := range []*enginetest.Call{old, call} {
					c.Emit(1)
					c.Finish("stop")
				}
				settle()
				g.wantCode(runs, "")
				g.wantCode(other, "")
				g.wantEmpty()
			})
		})
	}
}
