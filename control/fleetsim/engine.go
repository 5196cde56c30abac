package fleetsim

import (
	"headgate/admission"
	"headgate/control"
)

// engine counts what was sent to it and is not over.
type engine struct {
	w       *world
	n       int // its index
	total   control.Amount
	used    control.Amount
	foreign control.Amount
}

// job is one dispatch.
type job struct {
	life   *life
	id     admission.ID
	hold   admission.Hold
	class  int
	engine int
	amount control.Amount
	lasts  Time
	limit  int32 // tokens
	there  bool  // in the engine
	over   bool  // really
	freed  bool  // for its core
	silent bool  // the engine will not say when it is over
	// survival: it was begun without a grant in force.
	survival bool
}

// longest is what is predicted of it at most, with room for clocks. An attempt that was given
// up without a word of its end is over by then, before its core believes so.
func (j *job) longest() Time { return max(Time(j.limit)*100*ms, 5*sec)*3/4 - sec }

func plus(a, b control.Amount) control.Amount  { return control.Amount{a[0] + b[0], a[1] + b[1]} }
func minus(a, b control.Amount) control.Amount { return control.Amount{a[0] - b[0], a[1] - b[1]} }
func most(a, b control.Amount) control.Amount {
	return control.Amount{max(a[0], b[0]), max(a[1], b[1])}
}
func within(a, b control.Amount) bool { return a[0] <= b[0] && a[1] <= b[1] }

// arrive is the beginning of a job, unless it was aborted before.
func (e *engine) arrive(j *job) {
	if j.over {
		return
	}
	j.there = true
	e.used = plus(e.used, j.amount)
	e.w.stats.Dispatched++
	// So few tokens that a core learns no pace from them: it is to believe that a
	// request may last.
	for n := range min(j.limit, 4) {
		e.w.at(e.w.now+j.lasts*Time(2*n+1)/9, nil, func() {
			if r := j.life.r; !j.over && j.life.alive {
				e.w.at(e.w.now+e.w.near(), &r.part, func() { r.tokens(j, n+1) })
			}
		})
	}
	e.w.at(e.w.now+j.lasts, nil, func() { e.end(j, true) })
}

// end is the end of a job; its replica hears of it if it is to be told.
func (e *engine) end(j *job, tell bool) {
	if j.over {
		return
	}
	j.over = true
	j.life.truth(j, -1)
	if j.there {
		e.used = minus(e.used, j.amount)
	}
	if r := j.life.r; tell && j.life.alive && !j.silent {
		e.w.at(e.w.now+e.w.near(), &r.part, func() { r.ended(j, admission.CauseFinished) })
	}
}

// near is how long a message between a replica and an engine takes. Of those that a
// dispatch takes none is longer than the time after which a leader believes that it
// has arrived.
func (w *world) near() Time {
	switch {
	case w.calm || !w.chance(w.p.lag):
		return w.between(50e3, 2*ms)
	case w.chance(0.2):
		return w.between(2*ms, 800*ms)
	}
	return w.between(2*ms, 50*ms)
}
