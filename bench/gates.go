package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"headgate/sim"
)

// Names of the gates.
const (
	GateSchedule   = "schedule_delay"
	GateRate       = "rate"
	GateCPU        = "generator_cpu"
	GateGC         = "gc_pause"
	GateClock      = "clock"
	GateForced     = "forced_output"
	GateTrace      = "trace"
	GateRestart    = "engine_restart"
	GateForeign    = "foreign_requests"
	GateStartKV    = "start_kv"
	GateMemory     = "memory"
	GateBatchQueue = "batch_queue"
	GateDrain      = "drain"
)

// Evidence is what gates judge beside a run's lines. Nil, and a negative number
// where it is said, is what nobody could see.
type Evidence struct {
	// Real is what only a run in real time has; nil in virtual time.
	Real *Real
	// Output tokens that each request was to have, by its line's index; nil where
	// nothing is forced.
	Output []int
	// Trace is the canonical hash of what was sent; First that of the earlier run of
	// the same source, "" for the first.
	Trace, First string
	// StartKV is the share of KV in use before the run; FirstKV of the earlier run.
	StartKV, FirstKV *float64
}

// Real is evidence of real time.
type Real struct {
	CPU        time.Duration // that the generator's process used
	Wall       time.Duration // on the monotonic clock
	WallClock  time.Duration // the same on the wall clock
	GCPause    time.Duration // the longest
	Running    *float64      // requests in the engine that were not sent by us, before the first or during the run
	Restarted  string        // how it was seen, "" if it was not
	CanRestart bool          // the engine tells enough to see one
	Pressure   *time.Duration
	SwapIn     *int64 // pages
}

// Judge gives every gate's word on a run.
func (p *Plan) Judge(lines []sim.RequestLine, e *Evidence) []Gate {
	var all []Gate
	if e.Real != nil {
		all = append(all,
			scheduleGate(lines, &p.Gates, time.Duration(p.OnTime.TTFT)), rateGate(lines, &p.Gates), cpuGate(e.Real, &p.Gates),
			gcGate(e.Real, &p.Gates), clockGate(e.Real, &p.Gates))
	}
	if e.Output != nil {
		all = append(all, forcedGate(lines, e.Output))
	}
	all = append(all, traceGate(e))
	if e.Real != nil {
		all = append(all, restartGate(e.Real), foreignGate(e.Real))
	}
	all = append(all, kvGate(e, &p.Gates))
	if e.Real != nil {
		all = append(all, memoryGate(e.Real, &p.Gates))
	}
	all = append(all, batchGate(lines, &p.Gates, p.OnTime.Class), drainGate(lines))
	for i := range all {
		all[i].Waived = slices.Contains(p.Waive, all[i].Name)
	}
	return all
}

// GateNames lists them, in the order in which they are shown.
func GateNames() []string {
	return []string{GateSchedule, GateRate, GateCPU, GateGC, GateClock, GateForced, GateTrace, GateRestart, GateForeign, GateStartKV, GateMemory, GateBatchQueue, GateDrain}
}

// most is a gate that holds up to its limit.
func most(name string, value, limit float64, unit, words string, args ...any) Gate {
	value = math.Round(value*1e6) / 1e6
	return Gate{Name: name, OK: value <= limit, Value: &value, Limit: limit, Unit: unit, Words: fmt.Sprintf(words, args...)}
}

func unknown(name string, limit float64, unit, words string) Gate {
	return Gate{Name: name, Unknown: true, Limit: limit, Unit: unit, Words: words}
}

// scheduleGate: a generator that sends late measures itself. Whoever times from
// the real send does not see it.
func scheduleGate(lines []sim.RequestLine, g *Limits, ttft time.Duration) Gate {
	limit := min(ms(g.ScheduleDelay), g.ScheduleDelayShare*ms(Duration(ttft)))
	var delays []float64
	for i := range lines {
		if l := &lines[i]; l.SentMS != nil {
			delays = append(delays, *l.SentMS-*l.ArrivalMS)
		}
	}
	if len(delays) == 0 {
		return unknown(GateSchedule, limit, "ms", "nothing was sent")
	}
	return most(GateSchedule, quantile(delays, 99), limit, "ms", "99 of 100 requests were sent at most so late")
}

// rateGate: the requests were sent at the trace's rate, counted from the first to
// the last.
func rateGate(lines []sim.RequestLine, g *Limits) Gate {
	var meant, sent []float64
	for i := range lines {
		if l := &lines[i]; l.SentMS != nil {
			meant, sent = append(meant, *l.ArrivalMS), append(sent, *l.SentMS)
		}
	}
	offered := 0
	for i := range lines {
		if lines[i].Outcome != sim.Skipped {
			offered++
		}
	}
	if len(sent) < 2 {
		return unknown(GateRate, g.RateOff, "share", "fewer than two requests were sent")
	}
	rate := float64(len(sent)) / float64(offered)
	if span := slices.Max(meant) - slices.Min(meant); span > 0 { // what arrives all at once has no rate
		rate *= span / (slices.Max(sent) - slices.Min(sent))
	}
	off := math.Abs(rate - 1)
	return most(GateRate, off, g.RateOff, "share", "the rate at which requests were sent is off the trace's by so much; %d of %d were sent", len(sent), offered)
}

func cpuGate(r *Real, g *Limits) Gate {
	return most(GateCPU, r.CPU.Seconds()/max(r.Wall.Seconds(), 1e-9), g.GeneratorCPU, "processors", "the generator used so much of a processor")
}

func gcGate(r *Real, g *Limits) Gate {
	return most(GateGC, ms(Duration(r.GCPause)), ms(g.GCPause), "ms", "the generator's longest pause of its garbage collector")
}

// clockGate: all times are of the monotonic clock, but whatever else has a part in
// a run may go by the wall's.
func clockGate(r *Real, g *Limits) Gate {
	return most(GateClock, math.Abs(ms(Duration(r.WallClock-r.Wall))), ms(g.ClockDrift), "ms", "the wall clock moved by so much against the monotonic one")
}

// forcedGate: answers of other lengths than the trace's are another workload.
func forcedGate(lines []sim.RequestLine, output []int) Gate {
	unmet, first := 0, ""
	for i := range lines {
		if l := &lines[i]; l.Outcome == sim.Completed && l.Output != output[i] {
			if unmet++; first == "" {
				first = fmt.Sprintf("; %s has %d, of %d", l.ID, l.Output, output[i])
			}
		}
	}
	return most(GateForced, float64(unmet), 0, "requests", "answers that are not as long as the trace says%s", first)
}

func traceGate(e *Evidence) Gate {
	differs := 0.0
	words := "the trace is the one of the source's other runs"
	if e.First == "" {
		words = "the first run of its source"
	} else if e.First != e.Trace {
		differs, words = 1, fmt.Sprintf("the trace's hash is %s, in the source's earlier run it was %s", e.Trace, e.First)
	}
	return most(GateTrace, differs, 0, "traces", "%s", words)
}

func restartGate(r *Real) Gate {
	switch {
	case r.Restarted != "":
		return most(GateRestart, 1, 0, "restarts", "the engine restarted: %s", r.Restarted)
	case !r.CanRestart:
		return unknown(GateRestart, 0, "restarts", "the engine tells neither when its process began nor what it has done")
	}
	return most(GateRestart, 0, 0, "restarts", "the engine that ended the run is the one that began it")
}

func foreignGate(r *Real) Gate {
	if r.Running == nil {
		return unknown(GateForeign, 0, "requests", "the engine does not tell what it runs")
	}
	return most(GateForeign, *r.Running, 0, "requests", "the engine had so many that were not sent to it, before the first was or later")
}

func kvGate(e *Evidence, g *Limits) Gate {
	switch {
	case e.StartKV == nil:
		return unknown(GateStartKV, g.StartKV, "share", "the engine does not tell how much KV is in use")
	case e.First == "":
		return most(GateStartKV, 0, g.StartKV, "share", "the first run of its source, begun with %.3g of the KV in use", *e.StartKV)
	case e.FirstKV == nil:
		return unknown(GateStartKV, g.StartKV, "share", "not known of the source's earlier run")
	}
	return most(GateStartKV, math.Abs(*e.StartKV-*e.FirstKV), g.StartKV, "share", "begun with %.3g of the KV in use, the source's earlier run with %.3g", *e.StartKV, *e.FirstKV)
}

func memoryGate(r *Real, g *Limits) Gate {
	limit := ms(g.MemoryPressure)
	switch {
	case r.SwapIn != nil && *r.SwapIn > 0:
		bad := most(GateMemory, float64(*r.SwapIn), 0, "pages", "pages came back from swap")
		return bad
	case r.Pressure == nil:
		return unknown(GateMemory, limit, "ms", "this machine does not tell its memory pressure")
	}
	return most(GateMemory, ms(Duration(*r.Pressure)), limit, "ms", "something on this machine waited for memory for so long")
}

// batchGate: where no batch request was there to be served, what was lent is as
// much as there was work, not as much as there was room.
func batchGate(lines []sim.RequestLine, g *Limits, protected string) Gate {
	type span struct{ from, to float64 }
	var busy []span
	end := 0.0
	for i := range lines {
		l := &lines[i]
		if l.Outcome == sim.Skipped {
			continue
		}
		if l.Class != protected {
			to := *l.ArrivalMS
			if l.DoneMS != nil {
				to = *l.DoneMS
			} else if l.Outcome == TimedOut {
				to = math.Inf(1)
			}
			busy = append(busy, span{*l.ArrivalMS, to})
		}
		end = max(end, *l.ArrivalMS)
	}
	if len(busy) == 0 {
		bad := most(GateBatchQueue, 1, g.BatchDry, "share", "there are no batch requests")
		bad.Censors = lentMetrics
		return bad
	}
	slices.SortFunc(busy, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	dry, until := 0.0, busy[0].from
	for _, s := range busy {
		dry += max(0, s.from-until)
		until = max(until, s.to)
	}
	dry += max(0, end-until)
	if end > busy[0].from {
		dry /= end - busy[0].from
	}
	gate := most(GateBatchQueue, dry, g.BatchDry, "share", "of the time from the first batch request to the last request's arrival in which there was no batch request to serve")
	gate.Censors = lentMetrics
	return gate
}

// lentMetrics are those that say little where there was too little batch work.
var lentMetrics = []string{"batch_tokens_per_s"}

func drainGate(lines []sim.RequestLine) Gate {
	left := 0
	for i := range lines {
		if lines[i].Outcome == TimedOut {
			left++
		}
	}
	return most(GateDrain, float64(left), 0, "requests", "requests that had no end when the drain's time was over")
}
