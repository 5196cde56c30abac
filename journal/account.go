package journal

// Account is what a request came to, made of its events: where it ran, by what right, how
// often it gave way, and what it used.
type Account struct {
	Pool, Engine, Class string
	Model               string // a configured name
	Admitted, Queued    bool
	Shadow              bool // the pool only observed
	Loans, Reclaims     int  // of its admissions those by borrowing, and how many were ended by force
	Grant               string
	Revision            uint64
	Cause               string // of its end
	Peer                string // the replica that it was sent on to
	QueueNS             int64
	PromptTokens        int64
	CachedTokens        int64
	OutputTokens        int64
}

// reclaimed is the cause of an attempt that was ended by force, as admission has it.
const reclaimed = "reclaimed"

// Note takes one event of the request, in their order. Of what comes when it is over it
// takes nothing.
func (a *Account) Note(e *Event) {
	switch e.Kind {
	case Arrived:
		*a = Account{Pool: e.Pool, Class: e.Class, Model: e.Model, PromptTokens: e.PromptTokens}
	case Queued:
		a.Queued = true
	case Admitted:
		a.Admitted, a.Shadow, a.Engine, a.Grant, a.Revision = true, e.Shadow, e.Engine, e.Grant, e.Revision
		a.QueueNS = e.QueueNS
		if e.Loan {
			a.Loans++
		}
	case Ended:
		if e.Cause == reclaimed {
			a.Reclaims++
		}
	case Forwarded:
		a.Pool, a.Class, a.Peer = e.Pool, e.Class, e.Peer
	case Rejected:
		a.Cause, a.QueueNS = e.Cause, e.QueueNS
		a.Revision = max(a.Revision, e.Revision)
	case Finished:
		a.Cause = e.Cause
		if e.PromptTokens > 0 {
			a.PromptTokens = e.PromptTokens
		}
		a.CachedTokens, a.OutputTokens = e.CachedTokens, e.OutputTokens
	}
}
