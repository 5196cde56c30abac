package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

// asking serves a call that has limits of its own.
func (g *rig) asking(ttft, tpot time.Duration) serving {
	return func(ctx context.Context, c *Call, sink Sink) *wire.Error {
		c.TTFT, c.TPOT = ttft, tpot
		return g.pool.Serve(ctx, c, sink)
	}
}

func strict(o admission.Objective) []admission.ClassSpec {
	classes := reclaimer(1)
	classes[0].Objective = o
	return classes
}

// judgements are the counts of headgate_objectives_total that are not 0.
func (g *rig) judgements() string {
	g.t.Helper()
	families, err := g.metrics.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		if f.GetName() != "headgate_objectives_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetCounter().GetValue() == 0 {
				continue
			}
			var v []string
			for _, l := range m.GetLabel() { // by name: by, class, limit, outcome, pool
				v = append(v, l.GetValue())
			}
			all = append(all, fmt.Sprintf("%s %g", strings.Join(v[:4], " "), m.GetCounter().GetValue()))
		}
	}
	return strings.Join(all, ", ")
}

// TestBothOutcomes: where every answer was late there is a count of those in time too, which a
// share of them needs.
func TestBothOutcomes(t *testing.T) {
	reg := prometheus.NewRegistry()
	NewMetrics(reg).judged("main", "interactive", "ttft", byClass, "late")
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 2 {
		t.Fatalf("%v, %v", families, err)
	}
	for i, want := range []float64{1, 0} { // late, on_time
		if got := families[0].GetMetric()[i].GetCounter().GetValue(); got != want {
			t.Errorf("%v", families[0])
		}
	}
}

// TestOwnLimitReclaimsAtOnce: a loan that is predicted to end within what the class
// can bear is left to; one request that asks for less has it ended at once.
func TestOwnLimitReclaimsAtOnce(t *testing.T) {
	for _, own := range []time.Duration{0, time.Second} {
		t.Run(own.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{
					engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}, classes: strict(admission.Objective{First: 20 * time.Second}),
					configure: neverContinued,
				})
				paced(g)
				batch := g.serve("batch", sent(false, `,"max_tokens":100`))
				first := g.engines[0].Accept(t)
				first.Headers()
				first.Emit(2)
				settle()
				wants := g.start("interactive", sent(true, ""), g.asking(own, 0))
				pass(500 * time.Millisecond)
				if own > 0 {
					<-first.Gone()
					finish(g, wants)
					pass(2 * time.Second)
					first = g.engines[0].Accept(t)
					first.Headers()
				}
				first.Emit(98)
				first.Finish("length")
				settle()
				g.wantCode(batch, "")
				if own == 0 {
					finish(g, wants)
				}
				g.wantEmpty()
				cut := false
				for _, e := range g.events() {
					cut = cut || e.Request == batch.id && e.Kind == journal.Ended && e.Cause == "reclaimed"
					if e.Kind == journal.Arrived && e.Request == wants.id {
						if want := 20 * time.Second; own == 0 && (e.TTFTLimitNS != int64(want) || e.OwnLimits) || own > 0 && (e.TTFTLimitNS != int64(own) || !e.OwnLimits) {
							t.Errorf("it arrived with %+v", e)
						}
					}
				}
				if cut != (own > 0) {
					t.Errorf("the loan was ended: %t", cut)
				}
			})
		})
	}
}

// TestJudged: an answer is held against its class's objective and its own limits. It
// begins after 300 ms and has a token each 20 ms.
func TestJudged(t *testing.T) {
	const ms = time.Millisecond
	class := admission.Objective{First: 500 * ms, Token: 30 * ms, Whole: 2 * time.Second}
	for _, tt := range []struct {
		name       string
		of         admission.Objective
		ttft, tpot time.Duration
		end        func(*enginetest.Call, *client)
		want       admission.Objective
		missed     string
		counts     string
	}{
		{"class", class, 0, 0, nil, class, "", "class interactive e2e on_time 1, class interactive tpot on_time 1, class interactive ttft on_time 1"},
		{"own", class, 100 * ms, 10 * ms, nil, admission.Objective{First: 100 * ms, Token: 10 * ms, Whole: 2 * time.Second}, "ttft,tpot",
			"class interactive e2e on_time 1, request interactive tpot late 1, request interactive ttft late 1"},
		{"looser", admission.Objective{First: 200 * ms}, time.Second, 0, nil, admission.Objective{First: time.Second}, "", "request interactive ttft on_time 1"},
		{"late as a whole", admission.Objective{Whole: 400 * ms}, 0, 0, nil, admission.Objective{Whole: 400 * ms}, "e2e", "class interactive e2e late 1"},
		{"none", admission.Objective{}, 0, 0, nil, admission.Objective{}, "", ""},
		{"failed", class, 0, 0, func(c *enginetest.Call, _ *client) { c.Cut() }, class, "ttft,tpot,e2e",
			"class interactive e2e late 1, class interactive tpot late 1, class interactive ttft late 1"},
		{"left", class, 0, 0, func(_ *enginetest.Call, c *client) { c.cancel() }, class, "", ""},
	} {
		for _, observe := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, " observe ", observe), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, options{classes: strict(tt.of), pool: func(c *Config) { c.Observe = observe }})
					pass(time.Second)
					c := g.start("interactive", sent(true, ""), g.asking(tt.ttft, tt.tpot))
					call := g.engines[0].Accept(t)
					call.Headers()
					pass(300 * ms)
					for range 11 {
						call.Emit(1)
						pass(20 * ms)
					}
					if tt.end != nil {
						tt.end(call, c)
					} else {
						call.Finish("stop")
					}
					settle()
					if len(c.decisions) != 1 || c.decisions[0].Objective != tt.want || c.decisions[0].Observed != observe {
						t.Errorf("decided with %+v, want %+v", c.decisions, tt.want)
					}
					if got := g.judgements(); got != tt.counts {
						t.Errorf("counted\n got %s\nwant %s", got, tt.counts)
					}
					pass(time.Minute)
					for _, e := range g.events() {
						switch {
						case e.Request != c.id:
						case e.Kind == journal.Finished && e.Missed != tt.missed:
							t.Errorf("missed %q, want %q", e.Missed, tt.missed)
						case e.Kind == journal.Arrived && (e.TTFTLimitNS != int64(tt.want.First) || e.TPOTLimitNS != int64(tt.want.Token) || e.E2ELimitNS != int64(tt.want.Whole) || e.OwnLimits != (tt.ttft+tt.tpot > 0)):
							t.Errorf("arrived with %+v", e)
						}
					}
				})
			})
		}
	}
}

// TestWholeAnswerIsJudged: where an answer has no first token that is seen, all of it
// is the first.
func TestWholeAnswerIsJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: strict(admission.Objective{First: time.Second, Token: time.Millisecond})})
		c := g.start("interactive", sent(false, ""), func(ctx context.Context, call *Call, sink Sink) *wire.Error {
			req, err := wire.Parse(wire.Embeddings, []byte(`{"model":"test-model","input":"a"}`))
			if err != nil {
				t.Fatal(err)
			}
			call.Request, call.TTFT = req, 100*time.Millisecond
			return g.pool.Serve(ctx, call, sink)
		})
		call := g.engines[0].Accept(t)
		pass(200 * time.Millisecond)
		call.Document(200, vectors)
		settle()
		g.wantCode(c, "")
		if got := g.judgements(); got != "request interactive ttft late 1" {
			t.Errorf("counted %s", got)
		}
	})
}
