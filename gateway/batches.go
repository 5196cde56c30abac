package gateway

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"headgate/batch"
	"headgate/identity"
	"headgate/wire"
)

const (
	batchesPath = "/v1/batches"
	batchPrefix = batchesPath + "/"
	cancelEnd   = "/cancel"
	outputEnd   = "/output"
	errorsEnd   = "/errors"
)

var (
	batchRoute   = route{"batch", allowGet, (*Gateway).batch}
	cancelRoute  = route{"batch_cancel", allowPost, (*Gateway).cancel}
	resultsRoute = route{"batch_results", http.MethodGet, (*Gateway).results}
)

// findBatch is find for files and batches.
func findBatch(path string) (route, bool) {
	for _, rt := range []struct {
		prefix, end string
		route       route
	}{
		{filePrefix, "/content", contentRoute}, {filePrefix, "", fileRoute},
		{batchPrefix, cancelEnd, cancelRoute}, {batchPrefix, outputEnd, resultsRoute}, {batchPrefix, errorsEnd, resultsRoute}, {batchPrefix, "", batchRoute},
	} {
		if _, ok := name(path, rt.prefix, rt.end); ok {
			return rt.route, true
		}
	}
	switch path {
	case filesPath:
		return route{"files", allowGet + ", " + http.MethodPost, (*Gateway).files}, true
	case batchesPath:
		return route{"batches", allowGet + ", " + http.MethodPost, (*Gateway).batches}, true
	}
	return route{}, false
}

// batchJSON is a batch as OpenAI tells it. What is not there yet is null.
type batchJSON struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"`
	Endpoint string            `json:"endpoint"`
	Errors   *lineErrorsJSON   `json:"errors"`
	Input    string            `json:"input_file_id"`
	Window   string            `json:"completion_window"`
	Status   batch.Status      `json:"status"`
	Output   *string           `json:"output_file_id"`
	Error    *string           `json:"error_file_id"`
	Created  seconds           `json:"created_at"`
	Started  seconds           `json:"in_progress_at"`
	Expires  seconds           `json:"expires_at"`
	Final    seconds           `json:"finalizing_at"`
	Done     seconds           `json:"completed_at"`
	Failed   seconds           `json:"failed_at"`
	Expired  seconds           `json:"expired_at"`
	Stopping seconds           `json:"cancelling_at"`
	Stopped  seconds           `json:"cancelled_at"`
	Counts   countsJSON        `json:"request_counts"`
	Usage    usageJSON         `json:"usage"`
	Metadata map[string]string `json:"metadata"` // null where there is none
}

type lineErrorsJSON struct {
	Object string          `json:"object"`
	Data   []lineErrorJSON `json:"data"`
}

type lineErrorJSON struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int64  `json:"line"`
}

type countsJSON struct {
	Total     int64 `json:"total"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
}

type usageJSON struct {
	Input        int64 `json:"input_tokens"`
	InputDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output        int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int64 `json:"total_tokens"`
}

// orNull is a value that is null where it is zero.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func batchView(b *batch.Batch) batchJSON {
	v := batchJSON{
		ID: b.ID, Object: "batch", Endpoint: b.Endpoint, Input: b.Input, Window: batch.FormatWindow(b.Window), Status: b.Status,
		Output: orNull(b.Output), Error: orNull(b.Error), Created: seconds(b.Created), Started: seconds(b.Started), Expires: seconds(b.Expires),
		Final: seconds(b.FinalizingAt), Done: seconds(b.CompletedAt), Failed: seconds(b.FailedAt), Expired: seconds(b.ExpiredAt),
		Stopping: seconds(b.CancellingAt), Stopped: seconds(b.CancelledAt),
		Counts:   countsJSON{b.Counts.Total, b.Counts.Completed, b.Counts.Failed},
		Usage:    usageJSON{Input: b.Counts.Prompt, Output: b.Counts.Output, Total: b.Counts.Prompt + b.Counts.Output},
		Metadata: b.Metadata,
	}
	if len(b.Errors) > 0 {
		v.Errors = &lineErrorsJSON{Object: "list"}
		for _, e := range b.Errors {
			v.Errors.Data = append(v.Errors.Data, lineErrorJSON{e.Code, e.Message, orNull(e.Param), orNull(e.Line)})
		}
	}
	return v
}

// batches lists batches, or makes one.
func (g *Gateway) batches(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	if r.Method == http.MethodPost {
		return g.newBatch(w, r, p)
	}
	all, more, err := g.cfg.Batches.Batches(r.Context(), p, pageQuery(r))
	if err != nil {
		return err
	}
	return w.json(listView(all, more, batchView, func(b *batch.Batch) string { return b.ID }))
}

func (g *Gateway) batch(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	id, _ := name(r.URL.EscapedPath(), batchPrefix, "")
	b, err := g.cfg.Batches.Batch(r.Context(), p, id)
	if err != nil {
		return err
	}
	return w.json(batchView(b))
}

// cancel takes no body; OpenAI's SDKs send none.
func (g *Gateway) cancel(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	id, _ := name(r.URL.EscapedPath(), batchPrefix, cancelEnd)
	b, err := g.cfg.Batches.Cancel(r.Context(), p, id)
	if err != nil {
		return w.refuse(err)
	}
	return w.json(batchView(b))
}

func (g *Gateway) newBatch(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	body, err := g.read(w, r)
	if err != nil {
		return err
	}
	n, err := parseBatch(body)
	if err != nil {
		return err
	}
	n.Class = strings.Join(r.Header.Values(identity.ClassHeader), ", ")
	b, err := g.cfg.Batches.Create(r.Context(), p, n)
	if err != nil {
		return w.refuse(err)
	}
	return w.json(batchView(b))
}

// parseBatch reads what a batch is asked for with. A field that is not known is
// refused: it would ask for what is not done.
func parseBatch(body []byte) (*batch.NewBatch, *wire.Error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		why := "it is null"
		if err != nil {
			why = err.Error()
		}
		return nil, wire.NewError(wire.CodeInvalidJSON, "the body is not one JSON object: %s", why)
	}
	n := &batch.NewBatch{}
	text := func(to *string) func(string, json.RawMessage) *wire.Error {
		return func(name string, v json.RawMessage) *wire.Error {
			if json.Unmarshal(v, to) != nil {
				return wire.InvalidField(name, string(v), "a string")
			}
			return nil
		}
	}
	known := map[string]func(string, json.RawMessage) *wire.Error{
		"input_file_id": text(&n.Input), "endpoint": text(&n.Endpoint), "completion_window": text(&n.Window),
		"metadata": func(name string, v json.RawMessage) *wire.Error {
			if json.Unmarshal(v, &n.Metadata) != nil {
				return wire.InvalidField(name, string(v), "an object of strings")
			}
			return nil
		},
		"output_expires_after": func(name string, v json.RawMessage) *wire.Error {
			var e map[string]json.RawMessage
			if json.Unmarshal(v, &e) != nil {
				return wire.InvalidField(name, string(v), "an object with anchor and seconds")
			}
			var anchor string
			raw, anchored := e["anchor"]
			if anchored && json.Unmarshal(raw, &anchor) != nil {
				return wire.InvalidField(name+".anchor", string(raw), "created_at")
			}
			after, timed := e["seconds"]
			var err *wire.Error
			n.KeepOutput, err = expiry(name, anchored, anchor, timed, string(after))
			return err
		},
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		read, ok := known[name]
		if !ok {
			return nil, wire.InvalidField("the body's field", strconv.Quote(name), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if string(fields[name]) == "null" {
			continue
		}
		if err := read(name, fields[name]); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// headerNext is the trailer that says where the next lines of a running batch begin.
const headerNext = "Headgate-Next"

// results sends the lines of a batch that runs, as far as it has come: an addition to
// OpenAI's API, where there are none until the batch has ended.
func (g *Gateway) results(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	end := outputEnd
	id, ok := name(r.URL.EscapedPath(), batchPrefix, outputEnd)
	if !ok {
		end = errorsEnd
		id, _ = name(r.URL.EscapedPath(), batchPrefix, errorsEnd)
	}
	after := int64(0)
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = strconv.ParseInt(text, 10, 64); err != nil || after < 0 {
			return wire.InvalidField("after", text, "a number that "+headerNext+" said")
		}
	}
	b, err := g.cfg.Batches.Batch(r.Context(), p, id)
	if err != nil {
		return err
	}
	if b.Status.Ended() {
		f := map[string]string{outputEnd: b.Output, errorsEnd: b.Error}[end]
		if f == "" {
			f = "none: there was no such line"
		}
		return w.refuse(wire.WrongState("batch %s has ended with status '%s'; its lines are in a file: %s", id, b.Status, f))
	}
	w.letGo()
	w.header.Set("Content-Type", "application/jsonl")
	w.header.Set("Trailer", headerNext)
	w.header.Set("Cache-Control", "no-store")
	for {
		piece, next, err := g.cfg.Batches.Results(r.Context(), p, id, end == errorsEnd, after)
		if err != nil {
			return err
		}
		w.started = true
		if len(piece) == 0 {
			break
		}
		after = next
		if w.write(piece) != nil {
			return wire.ClientClosed()
		}
	}
	// A client that finds none has not been told all.
	w.header.Set(headerNext, strconv.FormatInt(after, 10))
	return nil
}
