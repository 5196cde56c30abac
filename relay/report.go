package relay

import (
	"context"
	"net/http"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
)

// report tells the core how the attempt ended, and whether the core wants the
// request to run again.
func (a *attempt) report() (again bool) {
	a.writing.Lock()
	if a.delivered {
		a.flags |= admission.FlagDelivered
	}
	a.writing.Unlock()
	if a.confirm == nil {
		a.flags |= admission.FlagReleased
	}
	if a.fresh && a.cause != admission.CauseFinished {
		a.save()
	}
	again = a.tell()
	a.traced(time.Now())
	if a.confirm != nil {
		a.pool.tasks.Add(1)
		go a.release()
	}
	return again
}

func (a *attempt) tell() (again bool) {
	p, r := a.pool, a.record
	p.mu.Lock()
	defer p.mu.Unlock()
	r.cancel, r.stop = nil, nil
	if !a.piece() {
		a.misreadLocked()
		a.spend()
		a.store()
		r.meter.ended(a)
	}
	a.elsewhere(a.out)
	if a.cause == admission.CauseReclaimed {
		a.reclaim, a.recalled = r.reclaim, r.recalled
	}
	now := int64(p.now())
	if !a.piece() {
		a.scheduledLocked(now)
	}
	p.logLocked(r, &journal.Event{
		Kind: journal.Ended, Mono: now, Engine: a.engineName(), Hold: uint64(a.admit.Hold), Loan: a.admit.Loan, Cause: a.cause.String(), For: r.reclaim, Recall: a.recalled,
		PieceTokens: int64(a.length), PromptTokens: int64(a.prompt), CachedTokens: int64(a.cached), OutputTokens: int64(a.out),
	})
	if a.cause == admission.CauseUnreachable {
		p.stateLocked(int(a.admit.Engine), admission.Down, nil)
	}
	out := a.out
	if a.piece() {
		p.cfg.Metrics.piece(p.cfg.Name, a.call.Class, a.cause.String(), a.warmed)
	} else {
		out = max(out-r.lost, 0)
		a.learnedLocked(out)
	}
	if r.kept != nil {
		p.barLocked(r) // to what was begun the name that was asked for is nothing
	}
	p.stepLocked(r.mind, &admission.Event{Kind: admission.Ended, Hold: a.admit.Hold, Out: int32(out), Cached: int32(a.cached), Flags: a.flags, Cause: a.cause, Retry: a.retry})
	again = r.stage != stageOver
	a.comesLocked()
	if again && !a.piece() && r.kept == nil {
		r.lost += a.before // it begins anew, and the core still takes that for kept
	}
	return again
}

// learnedLocked takes what the attempt has shown of its prompt, for the price of the
// next ones and for where they are sent.
func (a *attempt) learnedLocked(out int) {
	p, r := a.pool, a.record
	if a.prompt == 0 && a.stitch != nil && a.stitch.PromptTokens() > 0 {
		a.prompt = a.stitch.PromptTokens() + a.before // of one that was cut there is no usage
	}
	if a.prompt > 0 {
		p.price.Observe(a.call.Request.Model, a.call.Request.Content, a.prompt-a.before)
		p.stepLocked(r.mind, &admission.Event{Kind: admission.Progress, Hold: a.admit.Hold, Out: int32(out), Prompt: p.sequenceLocked(a.call.Request, a.prompt+r.lost)})
	}
	p.rememberLocked(a)
}

// store puts by what the next attempt goes on from. An answer of which nothing is
// there, or which can't be continued, begins anew, if that is unseen.
func (a *attempt) store() {
	r := a.record
	r.kept, r.collected = nil, nil
	broken := (a.fault == faultBroken || a.fault == faultRefused && a.out == 0) && !a.ahead && !a.bound
	untouched := a.flags&admission.FlagUntouched != 0
	if a.stitch == nil || a.cause != admission.CauseReclaimed && !untouched && !broken {
		return
	}
	kept := a.stitch.Kept()
	if a.stitch.Cut() {
		a.out = kept
		a.flags |= admission.FlagKept
		r.kept, r.collected = a.stitch, a.whole
	}
}

// scheduledLocked writes down when the engine began to run the attempt.
func (a *attempt) scheduledLocked(now int64) {
	t := a.spannedLocked(now)
	e := a.scheduled(now)
	if e != nil {
		a.pool.logLocked(a.record, e)
	}
	if t != nil {
		t.exact = e != nil && e.ScheduledUpperNS == 0
		a.pool.overLocked(t)
	}
}

// scheduled says when the engine began to run the attempt: exactly if it told,
// else at some moment between the dispatch and the first token, less what its
// prefill surely took. Of an attempt that gave nothing it isn't known that it ever
// ran: nil.
func (a *attempt) scheduled(now int64) *journal.Event {
	at := int64(a.dispatched.Sub(a.pool.cfg.Start))
	e := &journal.Event{Kind: journal.Scheduled, Mono: now, Engine: a.engineName(), Hold: uint64(a.admit.Hold), ScheduledNS: at}
	switch {
	case a.timing != nil && a.timing.Queue >= 0:
		e.ScheduledNS += int64(a.timing.Queue)
	case !a.began.IsZero() && a.out > 0:
		e.ScheduledNS = int64(a.began.Sub(a.pool.cfg.Start))
	case !a.first.IsZero():
		e.ScheduledUpperNS = max(at+1, int64(a.first.Sub(a.pool.cfg.Start)-a.prefilled()))
	case a.out > 0:
		e.ScheduledUpperNS = now // it came as a whole
	default:
		return nil
	}
	return e
}

// release waits for the engine's word that an aborted attempt is gone.
func (a *attempt) release() {
	p := a.pool
	defer p.tasks.Done()
	ctx, cancel := context.WithTimeout(p.killCtx, confirmTimeout)
	defer cancel()
	c := a.confirm(ctx)
	if c.By == engine.Unconfirmed {
		if p.killCtx.Err() == nil {
			p.cfg.Log.Warn("the engine did not confirm a release", "pool", p.cfg.Name, "engine", a.engineName(), "request", a.call.ID)
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stepLocked(a.mind, &admission.Event{Kind: admission.Released, Hold: a.admit.Hold})
	p.logLocked(a.record, &journal.Event{
		Kind: journal.Released, Mono: int64(p.now()), Engine: a.engineName(), Hold: uint64(a.admit.Hold), Cause: string(c.By),
		For: a.reclaim, Recall: a.recalled,
	})
}

// finished writes down the end of a call.
func (p *Pool) finished(a *attempt) {
	status := http.StatusOK
	if a.err != nil && (a.cause == admission.CauseClientGone || !a.sink.Started()) {
		status = a.err.Status
	}
	e := &journal.Event{
		Kind: journal.Finished, Cause: a.cause.String(), Status: status, Engine: a.engineName(), Hold: uint64(a.admit.Hold),
		PromptTokens: int64(max(a.prompt-a.before, 0)), CachedTokens: int64(a.cached), OutputTokens: int64(a.before + a.out),
		Missed: a.judge(time.Now()),
	}
	p.log(a.record, e)
	p.cfg.Metrics.finished(p.cfg.Name, a.call.Class, a.cause.String(), time.Since(a.call.Arrived))
}
