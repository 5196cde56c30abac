package relay

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
)

// TestRecallIsRecorded follows a recall through all its events, on an engine of
// which it is not known when it scheduled, with a journal and without.
func TestRecallIsRecorded(t *testing.T) {
	for _, written := range []bool{true, false} {
		t.Run(fmt.Sprintf("journal=%t", written), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{
					engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1, Ghosts: true}}, classes: reclaimer(1),
					pool: func(c *Config) {
						if !written {
							c.Journal = nil
						}
					},
				})
				batch, first := answering(g, "batch", false)
				pass(time.Second)
				opened := time.Since(g.pool.Start())
				wants := g.serve("interactive", sent(true, ""))
				<-first.Gone()
				pass(300 * time.Millisecond)
				first.Free()
				pass(2 * time.Second) // until a sample shows it
				call := g.engines[0].Accept(t)
				pass(time.Second)
				token := time.Since(g.pool.Start())
				call.Emit(1)
				settle()
				call.Finish("stop")
				settle()
				g.wantCode(wants, "")

				all := g.pool.Recalls(10)
				if len(all) != 1 {
					t.Fatalf("%d recalls, want 1", len(all))
				}
				r := all[0]
				hold := uint64(0)
				if len(r.Reclaims) == 1 {
					hold = r.Reclaims[0].Hold
				}
				if hold == 0 {
					t.Fatalf("reclaims: %+v, want one", r.Reclaims)
				}
				c := r.Reclaims[0]
				if want := (journal.Reclaim{Class: "batch", Request: batch.id, Hold: hold, Sent: int64(opened), Confirmed: c.Confirmed}); c != want {
					t.Errorf("reclaim %+v, want %+v", c, want)
				}
				if r.Pool != "main" || r.Class != "interactive" || r.Request != wants.id || r.Opened != int64(opened) || r.Granted != r.Opened {
					t.Errorf("recall %+v", r)
				}
				// The returning request goes to the engine together with the abort, and
				// the loan is out when the engine has confirmed that.
				if c.Confirmed < int64(opened+300*time.Millisecond) || r.Settled != c.Confirmed || r.Served != r.Opened || r.Dispatched != r.Opened {
					t.Errorf("confirmed %d, settled %d, served %d, dispatched %d, opened %d", c.Confirmed, r.Settled, r.Served, r.Dispatched, opened)
				}
				if r.FirstToken != int64(token) || r.Scheduled != r.Dispatched || r.ScheduledUpper <= r.Scheduled || r.ScheduledUpper > r.FirstToken {
					t.Errorf("scheduled from %d to %d, dispatched %d, first token %d", r.Scheduled, r.ScheduledUpper, r.Dispatched, r.FirstToken)
				}
				for _, event := range []string{"recall_granted", "recall_served", "recall_settled", "recall_closed", "dispatched", "scheduled", "first_token"} {
					if n := g.metric("headgate_recall_seconds", "event", event); n != 1 {
						t.Errorf("%v of %s counted, want 1", n, event)
					}
				}
				pass(2 * time.Second)
				again := g.engines[0].Accept(t)
				again.Emit(1)
				again.Finish("stop")
				settle()
				g.wantCode(batch, "")
				if late := g.pool.Recalls(10); len(late) != 1 || late[0].FirstToken != r.FirstToken {
					t.Errorf("later it is %+v", late)
				}
			})
		})
	}
}

// TestRecallOfSeveralClasses: a loan is reclaimed for the class that wants it
// back, whatever its own class has recalled before.
func TestRecallOfSeveralClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		senior, interactive, batch := loose("senior"), loose("interactive"), loose("batch")
		senior.Floor, senior.IdleAfter = admission.Of(1, 2048), time.Second
		interactive.Floor, interactive.IdleAfter = admission.Of(1, 2048), time.Second
		batch.Mode, batch.Grace = admission.ReclaimNow, time.Hour
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2}}, classes: []admission.ClassSpec{senior, interactive, batch},
		})
		pass(2 * time.Second)
		for range 2 {
			answering(g, "batch", false)
		}
		pass(time.Second)
		var waiting []*client
		for _, class := range []string{"interactive", "senior"} {
			waiting = append(waiting, g.serve(class, sent(true, "")))
		}
		for range waiting {
			pass(5 * time.Second)
			call := g.engines[0].Accept(t)
			call.Emit(1)
			call.Finish("stop")
		}
		settle()
		for _, c := range waiting {
			g.wantCode(c, "")
		}
		for i, class := range []string{"senior", "interactive"} {
			all := g.pool.Recalls(10)
			if len(all) != 2 {
				t.Fatalf("%d recalls, want 2: %+v", len(all), all)
			}
			if r := all[i]; r.Class != class || len(r.Reclaims) != 1 || r.Reclaims[0].Class != "batch" || r.Reclaims[0].Confirmed == 0 {
				t.Errorf("recall %d: %+v, want %s's with one reclaim", i, r, class)
			}
		}
	})
}
