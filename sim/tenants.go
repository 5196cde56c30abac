package sim

import (
	"strconv"

	"headgate/admission"
	"headgate/quota"
)

// Tenants says whose the requests of a trace are, and what tenants may use.
type Tenants struct {
	// Of is a tenant's number for each request of the trace.
	Of []uint32
	// Limits of tenants, whose names are their numbers; zero: there are none.
	Limits quota.Table
	// Expected is the output that a request without a limit reserves, in tokens.
	Expected int
}

// books are the limits of a run's tenants.
type books struct {
	ledger *quota.Ledger
	ids    []quota.ID // by request
}

// mostAccounts is for how many tenants without limits of their own there is room.
const mostAccounts = 1 << 16

func newBooks(t *Tenants, requests int) *books {
	if t == nil {
		return nil
	}
	return &books{quota.New(&t.Limits, mostAccounts), make([]quota.ID, requests)}
}

// reserve asks for what a request may cost, as a gateway would before it offers it.
// refused is the cause of a refusal, "" of none.
func (r *runner) reserve(i int) (refused string) {
	if r.books == nil {
		return ""
	}
	q := &r.run.Records[i]
	ask := quota.Ask{Prompt: int64(q.PromptTokens), Output: int64(q.MaxTokens)}
	if q.MaxTokens == 0 {
		ask.Output = int64(r.arm.Tenants.Expected)
	}
	answer := r.books.ledger.Reserve(quota.Time(r.now), strconv.Itoa(int(r.arm.Tenants.Of[i])), ask)
	if answer.Refused {
		return "limit_" + answer.By.String()
	}
	r.books.ids[i] = answer.ID
	return ""
}

// uses charges what a request has come to.
func (r *runner) uses(i int, output int32) {
	if r.books != nil {
		r.books.ledger.Progress(quota.Time(r.now), r.books.ids[i], int64(r.run.Records[i].PromptTokens), int64(output))
	}
}

// settle ends what a request has reserved.
func (r *runner) settle(i int) {
	if r.books == nil {
		return
	}
	q := &r.run.Records[i]
	r.books.ledger.Settle(quota.Time(r.now), r.books.ids[i], quota.Use{Began: q.Scheduled >= 0, Prompt: int64(q.PromptTokens), Output: int64(q.Tokens)})
}

// of is whose a request is.
func (a *Arm) of(i int) admission.Tenant { return admission.Tenant(a.Tenants.Of[i]) }
