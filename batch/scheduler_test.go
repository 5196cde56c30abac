package batch_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"headgate/batch"
)

// scheduled is a scheduler with the batches that it picks from, in a store's place.
type scheduled struct {
	*batch.Scheduler
	now     float64 // seconds
	waiting []batch.Waiting
	cost    map[string]int64 // tokens of an item's prompt
	line    map[string]int64 // the last that was claimed
	flights []flown          // in the order in which they were claimed
}

type flown struct {
	batch   string
	line    int64
	started bool
}

func newScheduled(p batch.Pace) *scheduled {
	return &scheduled{Scheduler: batch.NewScheduler(p), cost: map[string]int64{}, line: map[string]int64{}}
}

func (s *scheduled) of(id string) *batch.Waiting {
	i := slices.IndexFunc(s.waiting, func(w batch.Waiting) bool { return w.Batch == id })
	if i < 0 {
		return nil
	}
	return &s.waiting[i]
}

// add makes a batch of a tenant, ready to run, with a window.
func (s *scheduled) add(id, tenant, class string, items int64, from, to float64, tokens int64) {
	s.waiting = append(s.waiting, batch.Waiting{Batch: id, Tenant: tenant, Class: class, Created: second(from), Deadline: second(to), Ready: items, Total: items})
	s.cost[id] = tokens
	s.Waiting(s.waiting)
}

// next claims the next pick, of which there are no more than the batch has.
func (s *scheduled) next() (p batch.Pick, n int, ok bool, at time.Time) {
	p, ok, at = s.Next(second(s.now))
	if !ok {
		return p, 0, false, at
	}
	w := s.of(p.Batch)
	var claims []batch.Claim
	for range min(int64(p.N), w.Ready) {
		s.line[p.Batch]++
		line := s.line[p.Batch]
		claims = append(claims, batch.Claim{Item: batch.Item{Batch: p.Batch, Line: line, Prefix: uint64(line), Tokens: s.cost[p.Batch]}})
		s.flights = append(s.flights, flown{batch: p.Batch, line: line})
	}
	w.Ready -= int64(len(claims))
	w.Running += int64(len(claims))
	s.Claimed(second(s.now), p, claims)
	return p, len(claims), true, at
}

func (s *scheduled) start(i int) {
	f := &s.flights[i]
	f.started = true
	s.Started(second(s.now), f.batch, f.line)
}

func (s *scheduled) end(i int, output int64) {
	f := s.flights[i]
	s.flights = slices.Delete(s.flights, i, i+1)
	w := s.of(f.batch)
	w.Running--
	w.Done++
	s.Ended(f.batch, f.line, s.cost[f.batch], output)
}

// TestScheduler tells stories:
//
//	pace concurrency=N ahead=N quantum=N reopen=SECONDS
//	batch ID tenant=T [class=C] items=N window=SECONDS [tokens=N]
//	claim                claims all that there is to claim
//	start BATCH LINE     admission lets an item start, or `start all`
//	end BATCH LINE [output=N], or `end all`
//	refuse BATCH LINE [of=tenant | of=batch] [hint=SECONDS]
//	run for=N            lets each item start at once and take a second, N seconds; counts what ran
//	at SECONDS
func TestScheduler(t *testing.T) {
	datadriven.Walk(t, "testdata/scheduler", func(t *testing.T, path string) {
		var s *scheduled
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			arg := func(name string, otherwise int) int {
				if d.HasArg(name) {
					d.ScanArgs(t, name, &otherwise)
				}
				return otherwise
			}
			text := func(name, otherwise string) string {
				if d.HasArg(name) {
					d.ScanArgs(t, name, &otherwise)
				}
				return otherwise
			}
			find := func() int {
				return slices.IndexFunc(s.flights, func(f flown) bool {
					return f.batch == d.CmdArgs[0].Key && fmt.Sprint(f.line) == d.CmdArgs[1].Key
				})
			}
			var out strings.Builder
			switch d.Cmd {
			case "pace":
				s = newScheduled(batch.Pace{Concurrency: arg("concurrency", 100), Ahead: arg("ahead", 10), Quantum: arg("quantum", 1),
					Reopen: time.Duration(arg("reopen", 10)) * time.Second})
			case "batch":
				s.add(d.CmdArgs[0].Key, text("tenant", "a"), text("class", "batch"), int64(arg("items", 10)), s.now, s.now+float64(arg("window", 1000)), int64(arg("tokens", 100)))
			case "claim":
				for {
					p, n, ok, at := s.next()
					if !ok {
						if !at.IsZero() {
							fmt.Fprintf(&out, "nothing until %gs\n", at.Sub(second(0)).Seconds())
						}
						break
					}
					fmt.Fprintf(&out, "%s: %d of %d, from prefix %d on\n", p.Batch, n, p.N, p.After)
				}
			case "start":
				for i, f := range s.flights {
					if d.CmdArgs[0].Key == "all" && !f.started || i == max(0, find()) && d.CmdArgs[0].Key != "all" {
						s.start(i)
					}
				}
			case "end":
				if d.CmdArgs[0].Key == "all" {
					for len(s.flights) > 0 {
						s.end(0, int64(arg("output", 128)))
					}
				} else {
					s.end(find(), int64(arg("output", 128)))
				}
			case "refuse":
				f := s.flights[find()]
				s.flights = slices.Delete(s.flights, find(), find()+1)
				s.of(f.batch).Ready++
				s.of(f.batch).Running--
				of := map[string]batch.Refusal{"class": batch.RefusedClass, "tenant": batch.RefusedTenant, "batch": batch.RefusedBatch}[text("of", "class")]
				s.Refused(second(s.now), f.batch, f.line, of, time.Duration(arg("hint", 0))*time.Second)
				s.Waiting(s.waiting)
			case "run":
				ran := map[string]int{}
				var order []string
				for range arg("for", 1) {
					for {
						p, n, ok, _ := s.next()
						if !ok {
							break
						}
						if len(order) == 0 || order[len(order)-1] != p.Batch {
							order = append(order, p.Batch)
						}
						ran[p.Batch] += n
						for i, f := range s.flights {
							if !f.started {
								s.start(i)
							}
						}
					}
					s.now++
					for len(s.flights) > 0 {
						s.end(0, int64(arg("output", 128)))
					}
					s.Waiting(s.waiting)
				}
				for _, w := range s.waiting {
					fmt.Fprintf(&out, "%s of %s: %d\n", w.Batch, w.Tenant, ran[w.Batch])
				}
				if d.HasArg("order") {
					fmt.Fprintf(&out, "%s\n", strings.Join(order, " "))
				}
			case "at":
				if _, err := fmt.Sscan(d.CmdArgs[0].Key, &s.now); err != nil {
					d.Fatalf(t, "%v", err)
				}
				s.Waiting(s.waiting)
			default:
				d.Fatalf(t, "no command %s", d.Cmd)
			}
			if out.Len() == 0 {
				return ""
			}
			return out.String()
		})
	})
}

// TestSchedulerBounds: whatever happens in whatever order, no more is under way, or ahead, or offered to
// a closed gate, than may be; and where there is room and work, there is a pick.
func TestSchedulerBounds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := batch.Pace{Concurrency: rapid.IntRange(1, 12).Draw(r, "concurrency"), Ahead: rapid.IntRange(1, 6).Draw(r, "ahead"),
			Quantum: rapid.IntRange(1, 5).Draw(r, "quantum"), Reopen: 10 * time.Second}
		s := newScheduled(p)
		closed := map[string]float64{}
		ahead := func(class string) (n int) {
			for _, f := range s.flights {
				if !f.started && s.of(f.batch).Class == class {
					n++
				}
			}
			return n
		}
		pick := func(r *rapid.T) int {
			if len(s.flights) == 0 {
				r.Skip("nothing is under way")
			}
			return rapid.IntRange(0, len(s.flights)-1).Draw(r, "item")
		}
		r.Repeat(map[string]func(*rapid.T){
			"": func(r *rapid.T) {
				if len(s.flights) > p.Concurrency {
					r.Fatalf("%d are under way", len(s.flights))
				}
				for _, class := range []string{"x", "y"} {
					if n := ahead(class); n > p.Ahead {
						r.Fatalf("%d of %s are ahead", n, class)
					}
				}
			},
			"batch": func(r *rapid.T) {
				s.add(fmt.Sprint("b", len(s.waiting)), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "tenant"), rapid.SampledFrom([]string{"x", "y"}).Draw(r, "class"),
					rapid.Int64Range(1, 50).Draw(r, "items"), s.now, s.now+rapid.Float64Range(1, 1000).Draw(r, "window"), rapid.Int64Range(1, 1000).Draw(r, "tokens"))
			},
			"claim": func(r *rapid.T) {
				if _, n, ok, _ := s.next(); ok {
					f := s.flights[len(s.flights)-1]
					if n == 0 || n > p.Quantum || closed[s.of(f.batch).Class] > s.now {
						r.Fatalf("%d of %s at %g; its class is closed until %g", n, f.batch, s.now, closed[s.of(f.batch).Class])
					}
					return
				}
				for _, w := range s.waiting {
					if w.Ready > 0 && len(s.flights) < p.Concurrency && ahead(w.Class) == 0 && closed[w.Class] <= s.now {
						r.Fatalf("%s is ready, there is room, and nothing is picked", w.Batch)
					}
				}
			},
			"start": func(r *rapid.T) { s.start(pick(r)) },
			"end":   func(r *rapid.T) { s.end(pick(r), rapid.Int64Range(0, 1000).Draw(r, "output")) },
			"refuse": func(r *rapid.T) {
				i := pick(r)
				f, hint := s.flights[i], rapid.IntRange(1, 20).Draw(r, "hint")
				s.flights = slices.Delete(s.flights, i, i+1)
				w := s.of(f.batch)
				w.Running--
				w.Ready++
				closed[w.Class] = max(closed[w.Class], s.now+float64(hint))
				s.Refused(second(s.now), f.batch, f.line, batch.RefusedClass, time.Duration(hint)*time.Second)
			},
			"list": func(r *rapid.T) { s.Waiting(s.waiting) },
			"later": func(r *rapid.T) {
				s.now += rapid.Float64Range(0, 15).Draw(r, "seconds")
				s.Waiting(s.waiting)
			},
		})
	})
}

// TestSchedulerFair: of tenants that have work all along, none is served more than another
// by more than what one quantum and what is under way can come to; whatever batches they have, and
// however near their ends.
func TestSchedulerFair(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := batch.Pace{Concurrency: rapid.IntRange(1, 10).Draw(r, "concurrency"), Ahead: 10, Quantum: rapid.IntRange(1, 5).Draw(r, "quantum"), Reopen: 10 * time.Second}
		s := newScheduled(p)
		const maxTokens, maxOutput = 500, 300
		tenants := []string{"a", "b", "c"}
		for _, tenant := range tenants {
			for i := range rapid.IntRange(1, 4).Draw(r, "batches") {
				s.add(fmt.Sprint(tenant, i), tenant, "batch", 1e6, 0, rapid.Float64Range(10, 5000).Draw(r, "window"), rapid.Int64Range(1, maxTokens).Draw(r, "tokens"))
			}
		}
		served := map[string]float64{}
		picks := map[string]int{}
		for range 400 {
			for {
				p, _, ok, _ := s.next()
				if !ok {
					break
				}
				picks[p.Batch]++
			}
			i := rapid.IntRange(0, len(s.flights)-1).Draw(r, "item")
			if !s.flights[i].started {
				s.start(i)
			}
			output := rapid.Int64Range(1, maxOutput).Draw(r, "output")
			f := s.flights[i]
			served[s.of(f.batch).Tenant] += float64(s.cost[f.batch] + 2*output)
			s.end(i, output)
			s.now += 0.5
		}
		least, most := math.Inf(1), 0.
		for _, tenant := range tenants {
			least, most = min(least, served[tenant]), max(most, served[tenant])
		}
		// An item's cost, as it is charged or as it is, is at most this.
		const item = maxTokens + 2*maxOutput
		if bound := float64(2*(p.Quantum+p.Concurrency)) * item; most-least > bound {
			r.Fatalf("served %v: they differ by more than %g", served, bound)
		}
	})
}

// TestSchedulerStarvesNone: every batch of a tenant is picked, however many there are with
// nearer ends.
func TestSchedulerStarvesNone(t *testing.T) {
	s := newScheduled(batch.Pace{Concurrency: 4, Ahead: 4, Quantum: 4, Reopen: 10 * time.Second})
	s.add("patient", "a", "batch", 1000, 0, 100_000, 100)
	for i := range 9 {
		s.add(fmt.Sprint("urgent", i), "a", "batch", 1e6, 0, 1000, 100)
	}
	picks := 0
	for range 900 { // until 100 s before the nine end
		for {
			p, _, ok, _ := s.next()
			if !ok {
				break
			}
			if p.Batch == "patient" {
				picks++
			}
			for i := range s.flights {
				s.start(i)
			}
		}
		for len(s.flights) > 0 {
			s.end(0, 50)
		}
		s.now++
	}
	if picks < 10 {
		t.Errorf("it was picked %d times of 900", picks)
	}
}
