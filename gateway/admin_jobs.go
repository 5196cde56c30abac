package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"headgate/batch"
	"headgate/identity"
	"headgate/journal"
	"headgate/wire"
)

// JobView is one batch on /api/batches/jobs. What its tenant wrote, in its lines, its
// metadata and its answers, is not here.
type JobView struct {
	ID       string       `json:"id"`
	Tenant   string       `json:"tenant"`
	Key      string       `json:"key"` // name of the principal that made it
	Class    string       `json:"class"`
	Endpoint string       `json:"endpoint"`
	Status   batch.Status `json:"status"`
	Created  time.Time    `json:"created"`
	Expires  time.Time    `json:"expires"` // the end of its window
	Ended    *time.Time   `json:"ended"`   // null: not yet
	Counts   countsJSON   `json:"items"`
	// Tokens of its answers, and what was generated and is in none.
	Prompt int64 `json:"prompt_tokens"`
	Output int64 `json:"output_tokens"`
	Wasted int64 `json:"wasted_tokens"`
	// Sizes of its files; 0: there is none, or not any more.
	OutputBytes int64 `json:"output_bytes"`
	ErrorBytes  int64 `json:"error_bytes"`
	// Problems are where its input file is wrong, of one that failed; Left is how many more
	// there are.
	Problems []JobProblem `json:"problems"`
	Left     int          `json:"problems_left_out,omitempty"`
}

// JobProblem is a place of an input file that can't be run, by the code of what is wrong.
type JobProblem struct {
	Code  string `json:"code"`
	Param string `json:"param,omitempty"`
	Line  int64  `json:"line,omitempty"` // from 1 on; 0: of the whole file
}

// JobsView is /api/batches/jobs: a page of all tenants' batches, newest first.
type JobsView struct {
	Jobs []JobView `json:"jobs"`
	More bool      `json:"more"` // the next page is ?after= the last one's id
}

// mostProblems is how many of a job's are shown.
const mostProblems = 10

func jobView(j *batch.Summary) JobView {
	v := JobView{
		ID: j.ID, Tenant: j.Tenant, Key: j.Key, Class: j.Class, Endpoint: j.Endpoint, Status: j.Status,
		Created: j.Created.UTC(), Expires: j.Expires.UTC(), Ended: orNull(j.Ended().UTC()),
		Counts: countsJSON{j.Counts.Total, j.Counts.Completed, j.Counts.Failed}, Prompt: j.Counts.Prompt, Output: j.Counts.Output, Wasted: j.Counts.Wasted,
		OutputBytes: j.OutputBytes, ErrorBytes: j.ErrorBytes, Problems: []JobProblem{},
	}
	for i, e := range j.Errors {
		if i == mostProblems {
			v.Left = len(j.Errors) - i
			break
		}
		v.Problems = append(v.Problems, JobProblem{e.Code, e.Param, e.Line})
	}
	return v
}

// jobs answers with a page of batches.
func (g *Gateway) jobs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	open := false
	switch text := q.Get("open"); text {
	case "", "false":
	case "true":
		open = true
	default:
		http.Error(w, fmt.Sprintf("open is %.40q, must be true or false", text), http.StatusBadRequest)
		return
	}
	jobs, more, failed := g.cfg.Batches.Summaries(r.Context(), pageQuery(r), open)
	if failed != nil {
		adminError(w, failed)
		return
	}
	v := JobsView{Jobs: []JobView{}, More: more}
	for i := range jobs {
		v.Jobs = append(v.Jobs, jobView(&jobs[i]))
	}
	writeJSON(w, v)
}

// adminError tells an operator what a client would be told.
func adminError(w http.ResponseWriter, err *wire.Error) { http.Error(w, err.Message, err.Status) }

// cancelJob begins to end a tenant's batch, as the tenant could itself.
func (g *Gateway) cancelJob(w http.ResponseWriter, r *http.Request) {
	if !ownJSON(w, r) {
		return
	}
	var in struct {
		Tenant string `json:"tenant"`
		Reason string `json:"reason"`
	}
	err := object(http.MaxBytesReader(w, r.Body, maxSwitchBody), &in)
	switch {
	case err != nil:
	case in.Tenant == "":
		err = errors.New(`the body must have "tenant", whose batch it is`)
	case len(in.Reason) > maxReason:
		err = fmt.Errorf("reason has %d bytes, must be at most %d", len(in.Reason), maxReason)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	of := &identity.Principal{Tenant: in.Tenant}
	was, failed := g.cfg.Batches.Batch(r.Context(), of, r.PathValue("batch"))
	if failed != nil {
		adminError(w, failed)
		return
	}
	b, failed := g.cfg.Batches.Cancel(r.Context(), of, was.ID)
	if failed != nil {
		adminError(w, failed)
		return
	}
	use := journal.Switch{
		Name: "cancel " + b.ID, From: string(was.Status), To: string(b.Status),
		Actor: actor(r), Remote: r.RemoteAddr, Reason: clean(in.Reason, maxReason),
	}
	g.cfg.Log.Warn("an operator has a batch cancelled", "batch", b.ID, "tenant", b.Tenant, "from", use.From, "to", use.To, "actor", use.Actor, "remote", use.Remote, "reason", use.Reason)
	if g.cfg.Journal != nil {
		g.cfg.Journal.Append(&journal.Event{Kind: journal.Switched, Mono: int64(time.Since(g.cfg.Start)), Tenant: b.Tenant, Switch: &use})
	}
	writeJSON(w, jobView(&batch.Summary{Batch: b}))
}
