package relay

import (
	"headgate/admission"
	"headgate/wire"
)

// checkpointEvery is the least number of tokens between two checkpoints. Each has the
// whole answer, so that all of them are as long as its square over this.
const checkpointEvery = 32

// checkpoints is what has been told of an attempt's answer.
type checkpoints struct {
	saved int  // tokens of the attempt that were told
	fresh bool // more than that could be
}

// restoreLocked lets a request go on from what an earlier call has kept. What another
// model has begun, or no engine goes on with any more, begins anew.
func (p *Pool) restoreLocked(r *record) {
	if r.call.Kept == nil || !r.resumable || r.call.Request.Stream {
		return
	}
	kept, collected, model, err := wire.Restore(r.call.Request, r.call.Kept, p.live().MaxAnswer)
	if err == nil {
		f := fromIDs
		if kept.FromText() {
			f = fromText
		}
		if name, able := p.continuesLocked(r.call.Request, f); able && name == model {
			r.model, r.from, r.kept, r.collected = name, f, kept, collected
			r.spent = spent{began: kept.Before(), left: kept.Before()}
			return
		}
	}
	p.cfg.Log.Warn("an answer that was begun begins anew", "pool", p.cfg.Name, "request", r.call.ID, "model", r.model, "begun_by", model, "err", err)
}

// checkpoint tells what has come of a collected answer, if there is enough that is new.
// It is called when all that is kept was gathered.
func (a *attempt) checkpoint(piece *wire.Piece, open bool) {
	a.fresh = open && piece.Sure && a.stitch.Able()
	if a.fresh && a.stitch.Kept() >= a.saved+checkpointEvery {
		a.save()
	}
}

func (a *attempt) save() {
	a.fresh, a.saved = false, a.stitch.Kept()
	kept, err := wire.Save(a.stitch, a.whole, a.record.model)
	if err != nil {
		a.pool.cfg.Log.Error("what has come of an answer can't be kept", "request", a.call.ID, "err", err)
		return
	}
	a.record.spent.left = a.stitch.Before() + a.stitch.Kept()
	a.call.Checkpoint(kept, a.record.spent.left)
}

// spent is what was generated for an answer, in tokens. Once the request is offered it is
// its goroutine's alone.
type spent struct {
	began int // by earlier calls, that this one went on from
	made  int // by this one's attempts
	left  int // of that is in the answer, or in what was checkpointed last
}

// spend counts an attempt that is over, before what is kept of it is put by.
func (a *attempt) spend() {
	s := &a.record.spent
	if s.made += a.out; a.cause == admission.CauseFinished {
		s.left = a.before + a.out
	}
}

// wasted is what was generated for nothing: it is thrown away, or generated again.
func (s *spent) wasted() int { return max(s.began+s.made-s.left, 0) }
