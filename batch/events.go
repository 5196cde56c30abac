package batch

import (
	"time"

	"headgate/journal"
)

// Events are what happens to batches and items, for an operator. A nil *Events writes
// nothing.
type Events struct {
	journal *journal.Writer
	start   time.Time
}

// NewEvents writes to a journal whose clock began at start.
func NewEvents(w *journal.Writer, start time.Time) *Events { return &Events{w, start} }

func (e *Events) write(ev *journal.Event) {
	if e == nil {
		return
	}
	ev.Mono = int64(time.Since(e.start))
	e.journal.Append(ev)
}

// batch writes what happened to one as a whole.
func (e *Events) batch(kind journal.Kind, b *Batch) {
	ev := &journal.Event{Kind: kind, Class: b.Class, Tenant: b.Tenant, Principal: b.Key,
		Batch: &journal.Batch{ID: b.ID, Items: b.Counts.Total, Failed: b.Counts.Failed, WastedTokens: b.Counts.Wasted}}
	ev.PromptTokens, ev.OutputTokens = b.Counts.Prompt, b.Counts.Output
	if kind == journal.BatchEnded {
		if ev.State = string(b.Status); len(b.Errors) > 0 {
			ev.Cause = b.Errors[0].Code
		}
	}
	e.write(ev)
}

func (e *Events) item(kind journal.Kind, r *running) *journal.Event {
	return &journal.Event{Kind: kind, Class: r.Class, Tenant: r.Tenant, Principal: r.Key, Request: requestID(r.Batch, r.Line),
		Batch: &journal.Batch{ID: r.Batch, Line: r.Line, Attempt: r.Attempts + 1}}
}

func (e *Events) started(r *running) { e.write(e.item(journal.ItemStarted, r)) }

// over writes what became of an item's attempt.
func (e *Events) over(out write, fenced bool) {
	kind := journal.ItemEnded
	if fenced || out.outcome == nil {
		kind = journal.ItemPutBack
	}
	ev := e.item(kind, out.running)
	if ev.Cause = out.became(); fenced {
		ev.Cause = "fenced"
	}
	if a := out.answer; a != nil {
		ev.Status, ev.Loan, ev.PromptTokens, ev.OutputTokens = a.Status, a.Loan, a.Prompt, a.Output
	}
	ev.Batch.WastedTokens = out.wasted()
	e.write(ev)
}
