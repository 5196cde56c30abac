package live

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/bench"
	"headgate/sim"
	"headgate/trace"
)

// ahead is how long before its moment a request is made ready.
const ahead = 200 * time.Millisecond

// run is one run in progress. Each request's line is written by its own goroutine
// only.
type run struct {
	job    *bench.Job
	engine *engine
	arm    *arm
	client *http.Client
	ids    []string // the gateway's, by line
	ended  []time.Time
}

func newRun(j *bench.Job, e *engine, a *arm) *run {
	return &run{
		job: j, engine: e, arm: a, ids: make([]string, len(j.Lines)), ended: make([]time.Time, len(j.Lines)),
		client: &http.Client{Transport: &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 4096, DisableCompression: true}},
	}
}

// all sends every request at its moment, counted from start, and returns when the
// last has ended or the time for that is over.
func (r *run) all(ctx context.Context, start time.Time) error {
	defer r.client.CloseIdleConnections()
	entries := r.job.Trace.Entries
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	if n := len(entries); n > 0 {
		within, cancel = context.WithDeadline(within, start.Add(entries[n-1].Arrival+time.Duration(r.job.Plan.Workload.Drain)))
		defer cancel()
	}
	var sending sync.WaitGroup
	for i := range entries {
		if r.job.Lines[i].Outcome == sim.Skipped {
			continue
		}
		if !pause(within, time.Until(start.Add(entries[i].Arrival-ahead))) {
			r.job.Lines[i].Outcome = bench.TimedOut // the machine slept past the end
			continue
		}
		sending.Go(func() { r.send(within, start, i) })
	}
	sending.Wait()
	return ctx.Err()
}

// send sends one request and writes down what became of it.
func (r *run) send(ctx context.Context, start time.Time, i int) {
	e, l := &r.job.Trace.Entries[i], &r.job.Lines[i]
	since := func(at time.Time) *float64 { v := millis(at.Sub(start)); return &v }
	clients := r.job.Plan.Clients(r.job.Arm)
	patient := ctx
	if wait, ok := clients.Patience[e.Class]; ok {
		var cancel context.CancelFunc
		patient, cancel = context.WithDeadline(ctx, start.Add(e.Arrival+wait))
		defer cancel()
	}
	req, err := r.request(patient, e, l.Tenant)
	if err != nil {
		l.Outcome, l.Cause = sim.Failed, err.Error()
		return
	}
	if !pause(ctx, time.Until(start.Add(e.Arrival))) {
		l.Outcome = bench.TimedOut
		return
	}
	l.SentMS = since(time.Now())
	a := r.ask(req)
	for n := 1; n < clients.Attempts && a.outcome == sim.Rejected && pause(patient, clients.Wait(n, e.Draw.RetryJitter)); n++ {
		if req, err = r.request(patient, e, l.Tenant); err != nil {
			l.Outcome, l.Cause = sim.Failed, err.Error()
			return
		}
		a = r.ask(req)
	}
	if a.outcome != sim.Completed && patient.Err() != nil && ctx.Err() == nil {
		a.outcome, a.cause, a.status = sim.Failed, admission.CauseClientGone.String(), 0
	}
	r.ids[i], r.ended[i] = a.id, time.Now()
	if !a.first.IsZero() {
		l.FirstTokenMS = since(a.first)
	}
	l.Outcome, l.Cause, l.Status, l.RetryAfterMS, l.Output = a.outcome, a.cause, a.status, a.retryAfter, a.output
	if a.outcome == sim.Completed {
		l.DoneMS = since(a.done)
		l.InTime = a.done.Sub(start) <= r.job.Trace.Workload.Duration()
		if a.prompt > 0 {
			l.Prompt = a.prompt
		}
	}
}

// request makes the request of an entry.
func (r *run) request(ctx context.Context, e *trace.Entry, tenant string) (*http.Request, error) {
	w := &r.job.Plan.Workload
	limit := e.MaxTokens
	if w.ForcedOutput {
		limit = e.Output
	}
	b := fmt.Appendf(make([]byte, 0, 256+4*e.PromptTokens), `{"model":%q,"stream":true,"stream_options":{"include_usage":true},"temperature":0`, r.engine.model)
	if limit > 0 {
		b = fmt.Appendf(b, `,"max_tokens":%d`, limit)
	}
	if w.ForcedOutput && r.engine.kind != "openai" {
		b = append(b, `,"ignore_eos":true`...)
	}
	if p := r.arm.priority; p != nil {
		b = fmt.Appendf(b, `,"priority":%d`, p[e.Class])
	}
	b = appendPrompt(append(b, `,"prompt":`...), e, r.job.Source.Seed, w.TextPrompts || r.engine.kind == "openai")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.arm.url+"/v1/completions", strings.NewReader(string(append(b, '}'))))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	// A connection that the other end closes in the moment in which it is used again says
	// nothing of the request: it goes out on a new one. The key itself is not sent.
	req.Header["Idempotency-Key"] = []string{}
	r.arm.sign(req.Header, caller{e.Class, tenant})
	return req, nil
}

// answer is what came of one request.
type answer struct {
	id             string
	first, done    time.Time
	outcome        sim.Outcome
	cause          string
	status         int
	retryAfter     *float64
	output, prompt int
}

// ask sends a request and reads its stream to the end.
func (r *run) ask(req *http.Request) (a answer) {
	res, err := r.client.Do(req)
	if err != nil {
		a.outcome, a.cause = broken(req.Context(), sim.Failed), "unreachable"
		return a
	}
	defer func() { _ = res.Body.Close() }()
	a.id = res.Header.Get("Headgate-Request-Id")
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // what there is of it is enough
		a.status, a.retryAfter, a.cause = res.StatusCode, retryAfter(res.Header), cause(body)
		a.outcome = sim.Failed
		if res.StatusCode < 500 || res.StatusCode == http.StatusServiceUnavailable {
			a.outcome = sim.Rejected
		}
		return a
	}
	finished := false
	in := bufio.NewReaderSize(res.Body, 16<<10)
	for {
		line, err := in.ReadString('\n')
		at := time.Now()
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data:"); ok {
			switch data = strings.TrimSpace(data); {
			case data == "[DONE]":
				a.done = at
			case strings.HasPrefix(data, `{"error"`) || gjson.Get(data, "error").IsObject():
				a.outcome, a.cause = sim.Failed, cause([]byte(data))
				return a
			default:
				a.chunk(data, at, &finished)
			}
		}
		if err != nil {
			switch {
			case a.cause != "": // the engine gave it up
				a.outcome = bench.Aborted
			case errors.Is(err, io.EOF) && finished && !a.done.IsZero():
				a.outcome = sim.Completed
			default:
				a.outcome, a.cause = broken(req.Context(), bench.Aborted), "stream"
			}
			return a
		}
	}
}

// chunk reads one event of a stream.
func (a *answer) chunk(data string, at time.Time, finished *bool) {
	v := gjson.GetMany(data, "choices.0", "choices.0.finish_reason", "usage.completion_tokens", "usage.prompt_tokens")
	if v[0].Exists() && a.first.IsZero() {
		a.first = at
	}
	switch reason := v[1].String(); reason {
	case "":
	case "abort", "error": // an end, but no answer: vLLM's and SGLang's words for what they gave up
		a.cause = reason
	default:
		*finished = true
	}
	if v[2].Exists() {
		a.output, a.prompt = int(v[2].Int()), int(v[3].Int())
	}
}

// broken is what a request that broke off is: our own doing where the time is over.
func broken(ctx context.Context, otherwise sim.Outcome) sim.Outcome {
	if ctx.Err() != nil {
		return bench.TimedOut
	}
	return otherwise
}

// cause is an error's code, or its type.
func cause(body []byte) string {
	for _, field := range []string{"error.code", "error.type", "type", "code"} {
		if v := gjson.GetBytes(body, field); v.Type == gjson.String && v.String() != "" {
			return v.String()
		}
	}
	return "status"
}

// retryAfter is a refusal's hint, in milliseconds.
func retryAfter(h http.Header) *float64 {
	for _, f := range []struct {
		name string
		unit float64
	}{{"Retry-After-Ms", 1}, {"Retry-After", 1000}} {
		if v, err := strconv.ParseFloat(h.Get(f.name), 64); err == nil {
			v *= f.unit
			return &v
		}
	}
	return nil
}

// prime sends the plan's first requests of each class, one after another, which
// nobody counts. They are no request of the trace.
func (r *run) prime(ctx context.Context) error {
	n := r.job.Plan.Workload.Prime
	sent := map[caller]int{}
	for i := range r.job.Lines {
		l := &r.job.Lines[i]
		c := caller{class: l.Class}
		if sent[c] >= n || l.Outcome == sim.Skipped {
			continue
		}
		sent[c]++
		e := r.job.Trace.Entries[i]
		e.ID, e.Session, e.Prefix = "prime-"+e.ID, "", nil
		req, err := r.request(ctx, &e, l.Tenant)
		if err != nil {
			return err
		}
		if a := r.ask(req); a.outcome != sim.Completed {
			return fmt.Errorf("a first request of class %s: %s %s (status %d)", l.Class, a.outcome, a.cause, a.status)
		}
	}
	return nil
}
