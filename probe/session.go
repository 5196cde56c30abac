package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/wire"
)

// Why a probe stops before it is done.
var (
	// ErrBusy is that the engine has requests that the probe did not send.
	ErrBusy = errors.New("the engine has others' requests")
	// ErrBudget is that what a subject takes is more than is left of the tokens.
	ErrBudget = errors.New("the budget of tokens is too small")
	// ErrTime is that the time is over.
	ErrTime = errors.New("the time is over")
	// ErrKey is that the engine lets the probe have nothing.
	ErrKey = errors.New("the engine does not take the key that it is sent")
)

const (
	watchEvery = 250 * time.Millisecond
	// strange samples in a row are others' requests, and not the probe's own that
	// have ended and still show.
	strange = 3
	// lingering is for how long a request that has ended may still show.
	lingering = 2 * time.Second
	// confirming bounds the wait for the confirmations of what was ended.
	confirming = 15 * time.Second
)

// session sends the probe's requests, within its bounds, and keeps what was seen of
// them.
type session struct {
	adapter engine.Adapter
	kind    engine.Kind
	model   string
	start   time.Time
	ids     []int32 // of ordinary tokens; nil: prompts are text
	random  *rand.Rand
	busy    bool
	sign    int // by which a priority is to be multiplied for the adapter to send it as it is
	stop    context.CancelCauseFunc

	mu       sync.Mutex
	changed  chan struct{} // closed at whatever happens
	requests []*request
	sent     int
	left     int64 // tokens
	spent    int64
	samples  []engine.Observation // while somebody wants them
	sampling int
	hurry    chan struct{}
	foreign  string // what was seen of others, "" nothing
	all      sync.WaitGroup
}

// request is one that was sent.
type request struct {
	seen
	s      *session
	cancel context.CancelFunc
	stream engine.Stream
	over   bool // its end is known, and where it was aborted confirmed or given up
}

func (s *session) now() time.Duration { return time.Since(s.start) }

// changedLocked wakes all who wait.
func (s *session) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await returns once cond holds, which is asked at whatever happens, with the session
// locked; false after a time. The error is that the probe has to end.
func (s *session) await(ctx context.Context, most time.Duration, cond func() bool) (bool, error) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ok, changed := cond(), s.changed
		s.mu.Unlock()
		if ok {
			return true, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// prompt is n tokens that begin like no other.
func (s *session) prompt(n int) any {
	if s.ids == nil {
		var text strings.Builder
		for range n {
			text.WriteByte(' ')
			text.WriteString(words[s.random.IntN(len(words))])
		}
		return text.String()[1:]
	}
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = s.ids[s.random.IntN(len(s.ids))]
	}
	return ids
}

// words are one token each on most engines, with the space before them.
var words = strings.Fields(`the and for that with this from have they which one were all there their been many some
time very when much other more after also than into could state only new year most over such through where
between should because each people before must through back years where much your way well down own`)

// ask is what a request is.
type ask struct {
	prompt   any // what session.prompt made
	size     int // of it, in tokens
	limit    int
	priority *int
}

func (s *session) of(size, limit int) ask {
	return ask{prompt: s.prompt(size), size: size, limit: limit}
}

// afford tells whether there are tokens for more. The error says how many are missing.
func (s *session) afford(tokens int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(tokens) > s.left {
		return fmt.Errorf("%w: it takes %d tokens, and %d are left", ErrBudget, tokens, s.left)
	}
	return nil
}

// send sends a request, and returns at once.
func (s *session) send(ctx context.Context, a ask) (*request, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	body := map[string]any{
		"model": s.model, "prompt": a.prompt, "max_tokens": a.limit, "temperature": 0, "ignore_eos": true,
		"stream": true, "stream_options": map[string]any{"include_usage": true},
	}
	r := &request{s: s}
	if a.priority != nil {
		body["priority"] = *a.priority * s.sign
		r.priority = *a.priority
	}
	if s.kind == engine.LlamaCpp {
		body["return_progress"] = true
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	if err := s.afford(a.size + a.limit); err != nil {
		return nil, err
	}
	// The request's own context: what the probe began is ended one by one, with
	// confirmation, also when the probe itself is.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	r.seen.prompt, r.limit, r.usage, r.usagePrompt, r.cached = a.size, a.limit, -1, -1, -1
	s.mu.Lock()
	s.left -= int64(a.size + a.limit)
	s.spent += int64(a.size + a.limit)
	s.sent++
	r.sent = s.now()
	s.requests = append(s.requests, r)
	name := "headgate-probe-" + strconv.FormatUint(s.random.Uint64(), 36)
	s.mu.Unlock()
	s.all.Add(1)
	go func() {
		defer s.all.Done()
		r.run(run, &engine.Attempt{API: wire.Completions, Body: data, ID: name, Stream: true, Interruptible: true})
	}()
	return r, nil
}

// run dispatches and reads.
func (r *request) run(ctx context.Context, a *engine.Attempt) {
	s := r.s
	defer r.cancel()
	stream, err := s.adapter.Dispatch(ctx, a)
	s.mu.Lock()
	r.answered, r.stream = s.now(), stream
	ending := r.aborting > 0
	s.changedLocked()
	s.mu.Unlock()
	if err != nil {
		r.unanswered(ctx, err)
		return
	}
	if ending {
		r.confirm()
	}
	for {
		d, err := stream.Next()
		s.mu.Lock()
		at := s.now()
		switch {
		case err == nil:
			r.note(at, &d)
		case errors.Is(err, io.EOF) && r.outcome == running:
			r.outcome = finished
		case r.outcome == running && r.aborting > 0:
			r.outcome = aborted
		case r.outcome == running:
			r.outcome, r.message = failed, err.Error()
		}
		if err != nil {
			r.endLocked(at)
		}
		s.changedLocked()
		s.mu.Unlock()
		if err != nil {
			// A stream that has ended is only let go of; an abort is waited for by
			// whoever asked for it.
			if !ending {
				bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), confirming)
				c := stream.Abort(bounded)
				stop()
				r.done(c.By)
			}
			return
		}
	}
}

// unanswered is the end of a request that has no answer to be read.
func (r *request) unanswered(ctx context.Context, err error) {
	s := r.s
	var status *engine.StatusError
	var open *engine.Unanswered
	s.mu.Lock()
	switch {
	case errors.As(err, &status):
		r.outcome, r.status = refused, status.Status
		r.explain(status.Body, wire.FromUpstream(status.Status, status.Body, status.Header))
		if status.Status == http.StatusUnauthorized || status.Status == http.StatusForbidden {
			s.stop(fmt.Errorf("%w: status %d", ErrKey, status.Status))
		}
	case r.aborting > 0:
		r.outcome = aborted
	default:
		r.outcome, r.message = failed, err.Error()
	}
	r.endLocked(s.now())
	s.changedLocked()
	s.mu.Unlock()
	by := engine.ByCompletion
	if errors.As(err, &open) {
		bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), confirming)
		by = open.Confirm(bounded).By
		stop()
	}
	r.done(by)
}

// done notes that nothing of the request is at the engine any more, as far as can be
// told.
func (r *request) done(by engine.ConfirmedBy) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if !r.over {
		r.confirmed, r.over = by, true
		r.s.changedLocked()
	}
}

// endLocked notes the end, and gives back what was not used of the budget.
func (r *request) endLocked(at time.Duration) {
	if r.ended > 0 {
		return
	}
	r.ended = at
	unused := r.limit - len(r.tokens)
	if r.outcome == refused {
		unused += r.seen.prompt
	}
	r.s.left += int64(max(unused, 0))
	r.s.spent -= int64(max(unused, 0))
}

// note takes in an event.
func (r *request) note(at time.Duration, d *engine.Delta) {
	if d.Err != nil {
		r.outcome = failed
		r.explain(d.Data, d.Err)
		return
	}
	if d.HasUsage {
		r.usagePrompt, r.usage = d.Usage.Prompt, d.Usage.Completion
		if v := gjson.GetBytes(d.Data, "usage.prompt_tokens_details.cached_tokens"); v.Type == gjson.Number {
			r.cached = int(v.Num)
		}
	}
	if d.Finished > 0 {
		r.finish = d.Finish
	}
	if p := gjson.GetBytes(d.Data, "prompt_progress"); p.IsObject() {
		r.evaluated = append(r.evaluated, int(p.Get("processed").Num))
		return
	}
	if d.Content || len(d.Data) > 0 && !d.Done && !d.UsageOnly && d.Finished == 0 {
		r.tokens = append(r.tokens, at)
	}
}

// limitIn finds the context limit that an engine names.
var limitIn = []*regexp.Regexp{
	regexp.MustCompile(`"n_ctx":\s*(\d+)`),
	regexp.MustCompile(`maximum context length is (\d+)`),
	regexp.MustCompile(`available context size[^0-9"]*(\d+) tokens`),
	regexp.MustCompile(`context length[^0-9"]*\(?(\d+)`),
}

func (r *request) explain(body []byte, said *wire.Error) {
	r.message = said.Message
	r.context = said.Code == wire.CodeContextLength || strings.Contains(strings.ToLower(r.message), "context size")
	for _, p := range limitIn {
		if m := p.FindSubmatch(body); m != nil {
			r.limitSaid, _ = strconv.Atoi(string(m[1]))
			return
		}
	}
}

// abort begins to end requests that have not ended.
func (s *session) abort(requests ...*request) {
	for _, r := range requests {
		s.mu.Lock()
		begin := r.ended == 0 && r.aborting == 0
		if begin {
			r.aborting = s.now()
		}
		answered := r.stream != nil
		s.mu.Unlock()
		switch {
		case begin && answered:
			s.all.Add(1)
			go func() {
				defer s.all.Done()
				r.confirm()
			}()
		case begin:
			r.cancel() // the dispatch ends, and its confirmation is waited for there
		}
	}
}

// confirm ends an answered request at the engine, and waits for the engine's word.
func (r *request) confirm() {
	ctx, stop := context.WithTimeout(context.Background(), confirming)
	defer stop()
	c := r.stream.Abort(ctx)
	r.s.mu.Lock()
	if r.ended == 0 {
		r.outcome = aborted
		r.endLocked(r.s.now())
	}
	r.s.mu.Unlock()
	r.done(c.By)
}

// clear ends requests and waits until the engine has let go of them.
func (s *session) clear(ctx context.Context, requests ...*request) error {
	s.abort(requests...)
	_, err := s.await(ctx, confirming, func() bool {
		return !slices.ContainsFunc(requests, func(r *request) bool { return !r.over })
	})
	return err
}

// close ends everything that is left, and returns how many ends are not confirmed.
func (s *session) close() int {
	s.mu.Lock()
	all := slices.Clone(s.requests)
	s.mu.Unlock()
	s.abort(all...)
	s.all.Wait() // each waits no longer than confirming
	ghosts := 0
	for _, r := range all {
		if r.confirmed == engine.Unconfirmed {
			ghosts++
		}
	}
	return ghosts
}

// look copies what has been seen of requests.
func (s *session) look(requests ...*request) []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]seen, len(requests))
	for i, r := range requests {
		all[i] = r.seen
		all[i].tokens, all[i].evaluated = slices.Clone(r.tokens), slices.Clone(r.evaluated)
	}
	return all
}

// alone sends a request and waits for its end.
func (s *session) alone(ctx context.Context, a ask) (seen, error) {
	r, err := s.send(ctx, a)
	if err != nil {
		return seen{}, err
	}
	if _, err := s.await(ctx, time.Hour, func() bool { return r.over }); err != nil {
		return seen{}, err
	}
	return s.look(r)[0], nil
}

// ours is how many of its own the engine may show.
func (s *session) ours() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, now := 0, s.now()
	for i := len(s.requests) - 1; i >= 0; i-- {
		if r := s.requests[i]; !r.over || now-r.ended < lingering {
			n++
		}
	}
	return n
}

// watch looks for others' requests until ctx ends, and ends the probe for them unless
// it may be busy. It is also who samples for an experiment.
func (s *session) watch(ctx context.Context) {
	counts, last := 0, int64(-2)
	for {
		s.mu.Lock()
		every := watchEvery
		if s.sampling > 0 {
			every = 5 * time.Millisecond
		}
		s.mu.Unlock()
		select {
		case <-time.After(every):
		case <-s.hurry: // somebody wants samples now
		case <-ctx.Done():
			return
		}
		before := s.ours()
		o := s.adapter.Observe(ctx)
		ours := max(before, s.ours())
		s.mu.Lock()
		if s.sampling > 0 {
			s.samples = append(s.samples, o)
			s.changedLocked()
		}
		s.mu.Unlock()
		// Gauges that stand still may be of any time.
		fresh := s.kind == engine.LlamaCpp || o.Progress != last
		last = o.Progress
		switch {
		case o.Running < 0 || !fresh:
			continue
		case o.Running+max(o.Waiting, 0) <= ours:
			counts = 0
			continue
		}
		if counts++; counts >= strange {
			s.mu.Lock()
			s.foreign = fmt.Sprintf("it had %d requests in and %d waiting, of which the probe had sent %d", o.Running, max(o.Waiting, 0), ours)
			s.mu.Unlock()
			if !s.busy {
				s.stop(fmt.Errorf("%w: %s", ErrBusy, s.foreign))
			}
		}
	}
}

// observe has what the engine says of its load sampled often, until the returned
// function is called, which returns the samples.
func (s *session) observe() func() []engine.Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sampling++
	from := len(s.samples)
	select {
	case s.hurry <- struct{}{}:
	default:
	}
	return func() []engine.Observation {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sampling--
		return slices.Clone(s.samples[from:])
	}
}
