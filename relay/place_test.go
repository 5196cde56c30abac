package relay

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
)

// TestFreedSlotIsWhomItWasFreedFor is case 4: what a recall gets back goes to the
// request that opened it, whoever has waited for longer and whoever comes
// meanwhile: where the loan is left to end by itself, where it is ended and the
// engine is sent both at once, and where it has to confirm the first.
func TestFreedSlotIsWhomItWasFreedFor(t *testing.T) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.LlamaCpp} {
		for _, mode := range []admission.Mode{admission.Attrition, admission.ReclaimNow} {
			t.Run(fmt.Sprintf("%s/%s", kind, mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					classes := reclaimer(1)
					classes[1].Mode = mode
					no := false
					g := newRig(t, options{
						engines: []enginetest.Options{{Kind: kind, Slots: 1, Ghosts: true}}, classes: classes,
						configure: func(c *engine.Config) { c.Capabilities.TokenIDs = &no },
					})
					_, loan := answering(g, "batch", false)
					others := []*client{g.serve("batch", sent(false, ""))}
					wants := g.serve("interactive", sent(true, ""))
					others = append(others, g.serve("batch", sent(false, "")), g.serve("interactive", sent(true, "")))
					if mode == admission.Attrition {
						loan.Finish("stop")
						settle()
					} else {
						<-loan.Gone()
						settle()
						// A third comes between the abort and the slot.
						others = append(others, g.serve("batch", sent(false, "")))
						loan.Free()
					}
					pass(5 * time.Second)
					if len(wants.decisions) != 1 {
						t.Errorf("%d admissions of the request that the slot was freed for\n%s", len(wants.decisions), g.pool.Snapshot())
					}
					for _, c := range others {
						if len(c.decisions) > 0 {
							t.Errorf("%s was let in", c.id)
						}
						c.cancel()
					}
					finish(g, wants)
				})
			})
		}
	}
}

// TestReclaimedKeepsItsPlace is case 5: who was interrupted runs again before those
// of its class that came after it, whether it goes on or starts over, and is not
// passed by them while it waits.
func TestReclaimedKeepsItsPlace(t *testing.T) {
	for _, goesOn := range []bool{true, false} {
		t.Run(fmt.Sprintf("goes on=%t", goesOn), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{classes: reclaimer(1), configure: func(c *engine.Config) { c.Capabilities.TokenIDs = &goesOn }})
				pass(time.Second)
				e := g.engines[0]
				batch := g.serve("batch", sent(false, `,"max_tokens":9`))
				first := e.Accept(t)
				first.Send(opened + saidWith("a", `,"token_ids":[1]`, ""))
				settle()
				later := g.serve("batch", sent(false, ""))
				wants := g.serve("interactive", sent(true, ""))
				<-first.Gone()
				latest := g.serve("batch", sent(false, ""))
				finish(g, wants)
				for i, c := range []*client{batch, later, latest} {
					pass(2 * time.Second)
					call := e.Accept(t)
					if n := len(c.decisions); i == 0 && n != 2 || i > 0 && n != 1 {
						t.Errorf("%s, in place %d, was let in %d times", c.id, i, n)
					}
					call.Emit(1)
					call.Finish("stop")
					settle()
					g.wantCode(c, "")
				}
				pass(time.Second)
				g.wantEmpty()
			})
		})
	}
}
