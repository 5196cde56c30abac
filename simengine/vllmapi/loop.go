package vllmapi

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"headgate/simengine"
)

var errClosed = errors.New("the engine is shutting down")

// command is what a handler asks of the loop, with the time it asked.
type command struct {
	at    simengine.Time
	job   *job // submit it, or abort of it ...
	abort bool
	child int                // ... this sequence, all of them when negative
	ids   []string           // abort the sequences with these external ids, all when job and ids are nil
	step  chan<- runningStep // tell of the step that runs
}

// job is one HTTP request: as many sequences as it has prompts times choices.
type job struct {
	children []*child
	wake     chan struct{} // ready has something

	mu    sync.Mutex
	ready []delivery
	err   error
}

// child is one sequence. Its first part is set by the handler before it is
// submitted, the second is the loop's, and the third is guarded by job.mu.
type child struct {
	job      *job
	index    int
	external string // the id by which /abort_requests knows it
	request  simengine.Request
	prompt   int // tokens

	id    simengine.ID
	ended bool

	arrived, scheduled, first, last simengine.Time
	output                          int  // tokens
	cached                          int  // tokens
	finished                        bool // by itself
}

// delivery is what one step brought to one sequence.
type delivery struct {
	child  int
	token  simengine.Token
	filled bool   // there is a token
	finish string // why it ended, "" while it runs
}

func (j *job) deliver(d delivery) {
	j.mu.Lock()
	j.ready = append(j.ready, d)
	j.mu.Unlock()
	signal(j.wake)
}

// admitted notes the first step.
func (c *child) admitted(ev simengine.Event) {
	c.job.mu.Lock()
	c.scheduled, c.cached = ev.At, int(ev.Cached)
	c.job.mu.Unlock()
}

// generated notes a token.
func (c *child) generated(ev simengine.Event, finished bool) {
	c.job.mu.Lock()
	c.last, c.output = ev.At, int(ev.Output)
	if c.output == 1 {
		c.first = ev.At
	}
	c.finished = finished
	c.job.mu.Unlock()
}

func (j *job) fail(err error) {
	j.mu.Lock()
	j.err = err
	j.mu.Unlock()
	signal(j.wake)
}

// take swaps what was delivered for an empty batch.
func (j *job) take(batch []delivery) ([]delivery, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ready, batch = batch[:0], j.ready
	return batch, j.err
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// submit hands a job to the loop, unless the server is full or closed.
func (s *Server) submit(j *job) *apiError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return unavailable(errClosed.Error())
	}
	if most := s.cfg.MaxQueuedRequests; most > 0 && s.live+len(j.children) > most {
		return queueFull(s.live, len(j.children), most)
	}
	s.live += len(j.children)
	s.commandLocked(command{job: j})
	return nil
}

// abort ends one sequence of a job, or all of them when child is negative.
func (s *Server) abort(j *job, child int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commandLocked(command{job: j, abort: true, child: child})
}

// abortIDs ends the sequences with these external ids, all of them when ids is
// empty.
func (s *Server) abortIDs(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commandLocked(command{abort: true, ids: ids})
}

// runningStep is the answer to Server.Step.
type runningStep struct {
	step simengine.Step
	left time.Duration
	ok   bool
}

// Step tells what the engine does at this moment, and how long that still takes
// before it looks at what is new; ok is false if no step runs.
func (s *Server) Step() (step simengine.Step, left time.Duration, ok bool) {
	answer := make(chan runningStep, 1)
	s.mu.Lock()
	if s.closed {
		close(answer)
	}
	s.commandLocked(command{step: answer})
	s.mu.Unlock()
	a := <-answer
	return a.step, a.left, a.ok
}

// commandLocked stamps a command. The clock is read under the lock, so that
// stamps are in the order of the inbox and never before what the loop has
// already let happen.
func (s *Server) commandLocked(c command) {
	if s.closed {
		return
	}
	c.at = s.now()
	s.inbox = append(s.inbox, c)
	signal(s.wake)
}

func (s *Server) now() simengine.Time { return simengine.Time(time.Since(s.start)) }

// owner is the loop's own state.
type owner struct {
	*Server
	running map[uint64]*child // by Request.Tag
	serial  uint64
	events  []simengine.Event
}

func (s *Server) loop(ctx context.Context) {
	o := &owner{Server: s, running: map[uint64]*child{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var commands []command
	for {
		s.mu.Lock()
		commands, s.inbox = s.inbox, commands[:0]
		now := s.now()
		s.mu.Unlock()
		for i := range commands {
			o.advance(commands[i].at)
			o.apply(&commands[i])
			commands[i] = command{}
		}
		o.advance(now)
		o.publish()

		if at, ok := s.engine.Next(); ok {
			timer.Reset(time.Until(s.start.Add(time.Duration(at))))
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-s.wake:
		case <-ctx.Done():
			o.close()
			return
		}
	}
}

// close fails everything that is in the server.
func (o *owner) close() {
	o.mu.Lock()
	o.closed = true
	left := o.inbox
	o.inbox = nil
	o.live = 0
	o.mu.Unlock()
	for _, c := range left {
		switch {
		case c.step != nil:
			close(c.step)
		case c.job != nil && !c.abort:
			c.job.fail(errClosed)
		}
	}
	for _, c := range o.running {
		c.job.fail(errClosed)
	}
}

func (o *owner) apply(c *command) {
	if c.step != nil {
		if step, ok := o.engine.Step(); ok {
			c.step <- runningStep{step, time.Duration(step.Ends - c.at), true}
		}
		close(c.step)
		return
	}
	if !c.abort {
		o.begin(c.job, c.at)
		return
	}
	if c.job != nil {
		for _, ch := range c.job.children {
			if c.child < 0 || c.child == ch.index {
				o.end(ch, c.at)
			}
		}
		return
	}
	for _, ch := range o.running {
		if len(c.ids) == 0 || slices.Contains(c.ids, ch.external) {
			o.end(ch, c.at)
		}
	}
}

func (o *owner) begin(j *job, at simengine.Time) {
	for _, ch := range j.children {
		o.serial++
		ch.request.Tag = o.serial
		j.mu.Lock()
		ch.arrived = at
		j.mu.Unlock()
		id, err := o.engine.Submit(at, ch.request)
		ch.request.Prompt = nil
		if err != nil {
			o.gone(ch)
			j.fail(err)
			continue
		}
		ch.id = id
		o.running[o.serial] = ch
	}
}

func (o *owner) end(ch *child, at simengine.Time) {
	if ch.id == 0 || ch.ended {
		return
	}
	if err := o.engine.Abort(at, ch.id); err != nil {
		panic("vllmapi: " + err.Error()) // the inbox is in order of time
	}
}

func (o *owner) gone(ch *child) {
	ch.ended = true
	o.mu.Lock()
	o.live--
	o.mu.Unlock()
}

// publish shows the engine's gauges; before anything is delivered, so that who
// has an answer never finds its request still running.
func (o *owner) publish() {
	o.mu.Lock()
	o.stats = o.engine.Stats()
	o.mu.Unlock()
}

// advance lets the model run up to now and hands out what came of it.
func (o *owner) advance(now simengine.Time) {
	o.events = o.engine.Advance(now, o.events[:0])
	if len(o.events) > 0 {
		o.publish()
	}
	for i, ev := range o.events {
		ch := o.running[ev.Tag]
		switch ev.Kind {
		case simengine.Scheduled:
			if ev.Output == 0 && ch.scheduled == 0 {
				ch.admitted(ev)
			}
		case simengine.Generated:
			o.metrics.token(ch, ev.At)
			d := delivery{child: ch.index, token: ev.Token, filled: true}
			if i+1 < len(o.events) && o.events[i+1].Kind == simengine.Finished && o.events[i+1].ID == ev.ID {
				d.finish = o.events[i+1].Reason.String()
			}
			ch.generated(ev, d.finish != "")
			if d.finish != "" {
				o.metrics.finished(ch)
				if o.spans != nil {
					o.spans.finished(ch)
				}
				delete(o.running, ev.Tag)
				o.gone(ch)
			}
			ch.job.deliver(d)
		case simengine.Aborted:
			delete(o.running, ev.Tag)
			o.gone(ch)
			ch.job.deliver(delivery{child: ch.index, finish: "abort"})
		}
	}
}
