package gateway

import (
	"net/http"
	"time"

	"headgate/batch"
)

// BatchTenantView is what a tenant has of batches, on /api/batches. Rates are the
// difference of two looks.
type BatchTenantView struct {
	Tenant  string     `json:"tenant"`
	Backlog int64      `json:"backlog"` // items that are not done
	Running int64      `json:"running"` // of those, claimed by a worker
	Oldest  *time.Time `json:"oldest"`  // when the oldest batch was made that has some; null: none has
	// Since the process began: items that got their line, of those that ran on a loan at last
	// and that failed, tokens of their answers, of those on a loan, and what was generated and
	// is in no answer.
	Done    int64 `json:"done"`
	OnLoans int64 `json:"done_on_loans"`
	Failed  int64 `json:"failed"`
	Output  int64 `json:"output_tokens"`
	Lent    int64 `json:"output_tokens_on_loans"`
	Wasted  int64 `json:"wasted_tokens"`
}

// batchTenants tells operators what tenants have of batches, by name.
func batchTenants(tenants func() []batch.TenantStatus) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		views := []BatchTenantView{}
		for _, t := range tenants() {
			views = append(views, BatchTenantView{
				Tenant: t.Tenant, Backlog: t.Backlog, Running: t.Running, Oldest: orNull(t.Oldest),
				Done: t.Done, OnLoans: t.OnLoans, Failed: t.Failed, Output: t.Output, Lent: t.OutputOnLoans, Wasted: t.Wasted,
			})
		}
		writeJSON(w, views)
	}
}
