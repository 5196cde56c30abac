package relay

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

func on(actor string) SwitchState { return SwitchState{On: true, Actor: actor} }

// TestSwitchDrain: what comes and what waits is refused, what runs finishes, a change
// of the configuration leaves it so, and off again it serves as before.
func TestSwitchDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: []admission.ClassSpec{loose("a")}})
		runs, call := answering(g, "a", true)
		waits := g.serve("a", sent(true, ""))
		g.pool.Set(SwitchDrain, on("ann"))
		settle()
		g.wantCode(waits, wire.CodeDraining)
		g.wantCode(g.serve("a", sent(true, "")), wire.CodeDraining)
		g.change(g.next([]admission.ClassSpec{loose("a")}, "e0"))
		g.wantCode(g.serve("a", sent(true, "")), wire.CodeDraining)
		g.wantCode(runs, "running")
		call.Finish("stop")
		settle()
		g.wantCode(runs, "")
		if err := g.pool.Ready(); err != nil || !g.pool.Drained() {
			t.Errorf("ready %v, drained %v", err, g.pool.Drained())
		}
		g.pool.Set(SwitchDrain, SwitchState{})
		again, call := answering(g, "a", true)
		call.Finish("stop")
		settle()
		g.wantCode(again, "")
		g.wantEmpty()
	})
}

// TestSwitchBypass: what waits goes to the engine at once, and all that comes, through
// a change of the configuration; and then no more.
func TestSwitchBypass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}, classes: []admission.ClassSpec{loose("a")}})
		var calls []*enginetest.Call
		_, call := answering(g, "a", true)
		calls = append(calls, call)
		g.serve("a", sent(true, ""))
		g.pool.Set(SwitchBypass, on(""))
		calls = append(calls, g.engines[0].Accept(t))
		tight := loose("a")
		tight.Depth = 0
		g.change(g.next([]admission.ClassSpec{tight}, "e0"))
		g.serve("a", sent(true, ""))
		calls = append(calls, g.engines[0].Accept(t))
		if s := g.pool.Snapshot(); s.Used.Slots != 3 || !s.Bypassed {
			t.Errorf("after three requests:\n%v", s)
		}
		g.pool.Set(SwitchBypass, SwitchState{})
		g.wantCode(g.serve("a", sent(true, "")), wire.CodeQueueFull)
		for _, call := range calls {
			call.Finish("stop")
		}
		settle()
		g.wantEmpty()
	})
}

// TestSwitchLending: nobody borrows while it is paused, and what is lent is called in
// if that is asked for.
func TestSwitchLending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, batch := loose("a"), loose("b")
		own.Floor, batch.Mode = admission.Of(1, 1<<10), admission.ReclaimNow
		own.IdleAfter = 0
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2}}, classes: []admission.ClassSpec{own, batch}})
		lent := g.serve("b", sent(true, ""))
		call := g.engines[0].Accept(t)
		g.pool.Set(SwitchLending, on(""))
		waits := g.serve("b", sent(true, ""))
		g.wantCode(lent, "running")
		g.wantCode(waits, "running")
		if s := g.pool.Snapshot(); !s.Paused || s.Loans != 1 || s.Classes[1].Queue != 1 {
			t.Errorf("paused:\n%v", s)
		}
		g.pool.Set(SwitchLending, SwitchState{On: true, Recall: true})
		<-call.Gone()
		pass(2 * observeEvery * 10)
		if s := g.pool.Snapshot(); s.Used.Slots != 0 || s.Classes[1].Queue != 2 || s.Classes[1].Counts.Reclaims != 1 {
			t.Errorf("called in:\n%v", s)
		}
		g.pool.Set(SwitchLending, SwitchState{})
		for range 2 {
			g.engines[0].Accept(t).Finish("stop")
		}
		settle()
		g.wantCode(lent, "")
		g.wantCode(waits, "")
	})
}

// TestSwitched: every use is in the journal, a change or not, and the metric tells how
// it is.
func TestSwitched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{before: func(e *enginetest.Engine) { e.Close() }}) // it works without a table
		g.pool.Set(SwitchBypass, SwitchState{On: true, Actor: "ann", Remote: "192.0.2.1:7", Reason: "it is stuck"})
		g.pool.Set(SwitchBypass, on("bob"))
		g.pool.Set(SwitchLending, SwitchState{On: true, Recall: true})
		families, err := g.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "headgate_switch" {
					got[m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		if d := cmp.Diff(map[string]float64{"lending_paused": 1, "drain": 0, "bypass": 1}, got); d != "" {
			t.Error(d)
		}
		if got, want := fmt.Sprint(g.pool.Problems()), "[pool main: switch lending_paused is on, recall pool main: switch bypass is on]"; got != want {
			t.Errorf("problems %s, want %s", got, want)
		}
		var uses []journal.Switch
		for _, e := range g.events() {
			if e.Kind == journal.Switched {
				uses = append(uses, *e.Switch)
			}
		}
		if d := cmp.Diff([]journal.Switch{
			{Name: "bypass", From: "off", To: "on", Actor: "ann", Remote: "192.0.2.1:7", Reason: "it is stuck"},
			{Name: "bypass", From: "on", To: "on", Actor: "bob"},
			{Name: "lending_paused", From: "off", To: "on, recall"},
		}, uses); d != "" {
			t.Error(d)
		}
	})
}
