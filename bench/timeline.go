package bench

import (
	"math"
	"time"

	"headgate/sim"
)

// timeline draws how things stood every TimelineEvery, from the trace's start to
// the last that came. Where there are holds, running is what has one; without
// admission it is what has a first token. The last gauges sampled by then stand
// beside it.
func timeline(lines []sim.RequestLine, holds []Hold, gauges []Point) []Point {
	end := 0.0
	for i := range lines {
		end = max(end, *lines[i].ArrivalMS, or0(lines[i].DoneMS))
	}
	step := float64(TimelineEvery) / float64(time.Millisecond)
	n := int(math.Ceil(end/step)) + 1
	points := make([]Point, n)
	for k := range points {
		points[k] = Point{AtMS: float64(k) * step, Running: map[string]int{}, Waiting: map[string]int{}}
	}
	// each calls do for the points from one time to before another.
	each := func(from, to float64, do func(*Point)) {
		for k := max(0, int(math.Ceil(from/step))); k < n && points[k].AtMS < to; k++ {
			do(&points[k])
		}
	}
	for i := range lines {
		l := &lines[i]
		if l.Outcome == sim.Skipped {
			continue
		}
		to := math.Inf(1)
		switch {
		case l.DoneMS != nil:
			to = *l.DoneMS
		case l.Outcome != TimedOut: // refused, or broken off
			to = or0(l.FirstTokenMS)
		}
		each(*l.ArrivalMS, to, func(p *Point) { p.Waiting[l.Class]++ })
		if holds == nil && l.FirstTokenMS != nil {
			each(*l.FirstTokenMS, to, func(p *Point) { p.Waiting[l.Class]--; p.Running[l.Class]++ })
		}
	}
	for _, h := range holds {
		l := &lines[h.Request]
		each(h.From, h.To, func(p *Point) {
			p.Running[l.Class]++
			p.Waiting[l.Class] = max(0, p.Waiting[l.Class]-1)
			if h.Loan {
				p.Lent++
			}
		})
		if h.Reclaimed {
			each(h.To, math.Inf(1), func(p *Point) { p.Reclaimed++ })
		}
	}
	next := 0
	var last *Point
	for k := range points {
		for ; next < len(gauges) && gauges[next].AtMS <= points[k].AtMS; next++ {
			last = &gauges[next]
		}
		if last != nil {
			points[k].EngineRunning, points[k].EngineWaiting, points[k].KVUse = last.EngineRunning, last.EngineWaiting, last.KVUse
		}
	}
	return points
}

func or0(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}
