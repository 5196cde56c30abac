// Package relayed has the items of batches carried by the relay: chosen a pool, admitted
// and given way like live requests of their class and tenant, and never as HTTP.
package relayed

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"time"

	"headgate/batch"
	"headgate/journal"
	"headgate/relay"
	"headgate/wire"
	"headgate/wire/responses"
)

// Permit tells whether who made a batch may use a model now; known is false if he is
// not configured at this moment.
type Permit func(key, model string) (may, known bool)

// Runner is a batch.Runner over the pools that there are at the moment.
type Runner struct {
	pools   func() []*relay.Pool
	permit  Permit
	unasked func(*relay.Call, *wire.Error)
}

var _ batch.Runner = (*Runner)(nil)

// New returns a Runner. Without a permit everything is permitted. unasked is told of what is
// refused before any pool has it, as a pool's own is of what it has had; nil: nobody is told.
func New(pools func() []*relay.Pool, permit Permit, unasked func(*relay.Call, *wire.Error)) *Runner {
	return &Runner{pools, permit, unasked}
}

// Run implements batch.Runner.
func (r *Runner) Run(ctx context.Context, j *batch.Job) (*batch.Answer, error) {
	now := time.Now()
	i, err := parse(j, now)
	s := &sink{job: j}
	req := &wire.Request{} // of what can't be read
	var pool *relay.Pool
	if err == nil {
		req = i.request
		pool, err = r.choose(j, req)
	}
	c := call(j, req, now)
	if err == nil {
		err = serve(ctx, pool, j, c, s)
	}
	if err == nil && s.body == nil {
		err = wire.Internal() // an answer that has ended was given
	}
	if err == nil {
		err = i.finish(s)
	}
	if err == nil {
		return s.answered(i.request.API), nil
	}
	a := failed(i, s, err)
	if pool == nil && !a.Retry && r.unasked != nil { // what is tried again is not refused yet
		c.Account = &journal.Account{}
		r.unasked(c, err)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return a, nil
}

// call is a job as a pool has it.
func call(j *batch.Job, req *wire.Request, now time.Time) *relay.Call {
	return &relay.Call{
		ID: j.ID, Request: req, Class: j.Class, Tenant: j.Tenant, Principal: j.Key, Arrived: now, Session: req.CacheKey, Kept: j.Kept,
	}
}

// choose is the pool that a job may use now.
func (r *Runner) choose(j *batch.Job, req *wire.Request) (*relay.Pool, *wire.Error) {
	if r.permit != nil {
		switch may, known := r.permit(j.Key, req.Model); {
		case !known:
			// It may be on its way here: another replica has had it, or the file is written
			// anew. Else the batch lapses.
			return nil, wire.NewError(wire.CodeIdentityUnavailable, "the key or rule %s that made the batch is not configured here, or has expired", j.Key)
		case !may:
			return nil, wire.ModelNotFound(req.Model, nil)
		}
	}
	return relay.Choose(r.pools(), req.Model, j.Class)
}

func serve(ctx context.Context, pool *relay.Pool, j *batch.Job, call *relay.Call, s *sink) *wire.Error {
	if j.Checkpoint != nil {
		call.Checkpoint = func(kept []byte, tokens int) {
			s.output = int64(tokens)
			j.Checkpoint(s.output, func() json.RawMessage { return kept })
		}
	}
	if j.Wasted != nil {
		call.Wasted = func(tokens int) { j.Wasted(int64(tokens)) }
	}
	return pool.Serve(ctx, call, s)
}

// item is a request as its endpoint understands it.
type item struct {
	request *wire.Request
	told    *responses.Answer // what a response says beside the chat that it is made of; nil: it is none
}

func parse(j *batch.Job, now time.Time) (item, *wire.Error) {
	var i item
	var err *wire.Error
	if j.Endpoint == responses.Path {
		var r *responses.Request
		if r, err = responses.Translate(j.Body); err == nil {
			i = item{r.Chat, &responses.Answer{ID: j.ID, Created: now.Unix(), Echo: r.Echo}}
		}
	} else {
		err = wire.RouteNotFound(j.Endpoint)
		for _, api := range []wire.API{wire.Chat, wire.Completions, wire.Embeddings} {
			if api.Path() == j.Endpoint {
				i.request, err = wire.Parse(api, j.Body)
			}
		}
	}
	if err == nil && i.request.Stream {
		// Nobody would read its events.
		err = wire.InvalidField("stream", strconv.FormatBool(true), "false or left out, in a batch")
	}
	return i, err
}

// finish makes the endpoint's answer of the relay's.
func (i *item) finish(s *sink) *wire.Error {
	s.usage = s.body
	if i.told == nil {
		return nil
	}
	body, err := responses.Response(s.body, *i.told)
	if err != nil {
		return wire.UpstreamError("the engine's answer can't be told as a response: %v", err)
	}
	s.body = body
	return nil
}

// failed is what a batch makes of an error.
func failed(i item, s *sink, err *wire.Error) *batch.Answer {
	if i.told != nil {
		err = responses.Name(err)
	}
	a := &batch.Answer{Status: err.Status, Body: err.JSON(), Loan: s.loan, Output: s.output, RetryAfter: err.Retry}
	switch err.Code {
	case wire.CodeQueueFull, wire.CodeQueueTimeout, wire.CodeDraining, wire.CodeEngineBusy, wire.CodeEngineLoading, wire.CodeEngineUnavailable:
		a.Retry, a.Refused = true, batch.RefusedClass
	case wire.CodeTenantQueueFull, wire.CodeRateLimited:
		a.Retry, a.Refused = true, batch.RefusedTenant
	case wire.CodeBalanceExhausted:
		a.Retry, a.Refused, a.RetryAfter = true, batch.RefusedTenant, operatorLook
	case wire.CodeIdentityUnavailable:
		a.Retry, a.Refused, a.RetryAfter = true, batch.RefusedBatch, operatorLook
	case wire.CodeUpstreamError, wire.CodeUpstreamTorn, wire.CodeUpstreamTimeout, wire.CodeLoanEnded, wire.CodeInternal:
		a.Retry = true
	}
	return a
}

// operatorLook is how long an item waits before it looks whether an operator has refilled its tenant's
// balance, or brought its key back. Nobody knows when that will be.
const operatorLook = 30 * time.Second

// sink collects an answer.
type sink struct {
	job    *batch.Job
	loan   bool
	body   []byte
	usage  []byte // the body that tells the usage
	output int64  // tokens so far
}

var _ relay.Sink = (*sink)(nil)

// Admitted implements relay.Sink.
func (s *sink) Admitted(d relay.Decision) {
	s.loan = d.Loan
	if s.job.Started != nil {
		s.job.Started()
	}
}

// Event implements relay.Sink. No item is streamed.
func (s *sink) Event([]byte) error { return nil }

// KeepAlive implements relay.Sink.
func (s *sink) KeepAlive() error { return nil }

// Answer implements relay.Sink.
func (s *sink) Answer(body []byte) error {
	s.body = bytes.Clone(body)
	return nil
}

// Started implements relay.Sink. A batch has no status to have been told.
func (s *sink) Started() bool { return false }

func (s *sink) answered(api wire.API) *batch.Answer {
	a := &batch.Answer{Status: 200, Body: s.body, Loan: s.loan, Output: s.output}
	if c, err := wire.ParseChunk(api, s.usage); err == nil && c.HasUsage {
		a.Prompt, a.Output = int64(c.Usage.Prompt), int64(c.Usage.Completion)
	}
	return a
}
