// Package sglang is the adapter for SGLang's server. It was written by SGLang's
// documents and sources and has met a fake only.
//
// # Ending an attempt
//
// SGLang acts on a closed connection two seconds late, and some releases not at
// all: the disconnect makes them forget the request's id, so that the abort which
// follows finds nothing and the request decodes to its limit. An attempt is
// therefore ended by POST /abort_request first, and its connection closed after.
// That request is answered 200 for ids that do not exist, too, and proves nothing.
// It matches all ids that begin with the one given: every attempt's has the same
// length and is unique.
//
// # Confirmation
//
// GET /v1/loads is a snapshot that the scheduler writes after every prefill, all
// the time while idle, and every 15 decode steps otherwise. It has no time in it.
// But a snapshot that differs from the one before was written after that one was
// asked for, and so it is as good as one that was taken then: package release is
// given it as a fresh sample of that moment. What did not change says nothing,
// except that an engine without a request and without a token in use has let go of
// what it once had: it had written a snapshot before its first answer.
//
// A snapshot counts the decoding batch and the queue, but not the batch that is in
// its prefill. So it may lack attempts that have just begun, and load is compared
// with those only which it must include: answered before it was written, and live
// still. Whatever of it may be the adapter's own is not taken for foreign.
//
// What may go wrong is early by one prefill at most: an attempt aborted in its
// prefill can be in neither count, which is why it takes two snapshots, and none
// while a prompt waits in pieces; and a request that the engine retracted is in
// neither while it's computed again.
//
// # Alternatives
//
// /health generates a token on an idle engine. The gauges of /metrics are written
// every 40 decode steps; they are used where there is no /v1/loads. A chat's token
// ids can't be had: a streamed chat with return_token_ids is refused, /tokenize
// takes no messages, and the ids of a whole answer come with a generation. A chat
// as a completion of such ids would lose the server's defaults for sampling and its
// parsers. So a chat is sent without the wish for ids.
package sglang

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/release"
	"headgate/engine/upstream"
	"headgate/wire"
)

const (
	maxDocument = 8 << 20 // bytes
	minPause    = 10 * time.Millisecond
	maxPause    = 250 * time.Millisecond
	ridDigits   = 32
)

// Adapter implements engine.Adapter.
type Adapter struct {
	*upstream.Client
	salt  [16]byte
	watch *release.Watcher
	// lowFirst: the server takes lower priorities first, as the body's are. It says
	// so among its capabilities.
	lowFirst atomic.Bool
	refused  atomic.Pointer[error] // why the last abort was not taken; nil: it was

	looking chan struct{} // one look at a time, so that snapshots come in order

	mu      sync.Mutex
	own     own
	left    []time.Time // when attempts left own, since the snapshot's moment
	waiters int         // confirmations waited for
	closed  time.Time
	seen    snapshots
	judged  int // version of seen that confirmations have had
	noted   int // and that was looked at for foreign load
}

// New makes an adapter from a configuration that was found valid.
func New(cfg engine.Config) (*Adapter, error) {
	a := &Adapter{looking: make(chan struct{}, 1), own: own{}}
	_, _ = rand.Read(a.salt[:]) // does not fail
	a.watch = release.New(release.Config{
		Sample: a.sample, Min: minPause, Max: maxPause, Grace: cfg.AbortGrace, By: engine.ByProgress,
	})
	client, err := upstream.New(cfg, upstream.Hooks{Timing: timing, Confirm: a.confirm, Watch: a.watch, End: a.end})
	if err != nil {
		return nil, err
	}
	a.Client = client
	return a, nil
}

// rid is an attempt's id at the engine.
func (a *Adapter) rid(at *engine.Attempt) string {
	sum := sha256.Sum256(append(a.salt[:], at.ID...))
	return hex.EncodeToString(sum[:])[:ridDigits]
}

// end implements upstream.Hooks.
func (a *Adapter) end(at *engine.Attempt) {
	a.leave(at)
	body := []byte(`{"rid":"` + a.rid(at) + `"}`)
	r, err := a.Post(context.Background(), "/abort_request", body, maxDocument)
	if err == nil && r.Status != http.StatusOK {
		err = fmt.Errorf("post /abort_request: status %d: the engine takes no aborts from here", r.Status)
	}
	if err != nil {
		a.refused.Store(&err)
		return
	}
	a.refused.Store(nil)
}

// Dispatch implements engine.Adapter.
func (a *Adapter) Dispatch(ctx context.Context, given *engine.Attempt) (engine.Stream, error) {
	at := *given
	if at.ID == "" {
		at.ID = rand.Text()
	}
	at.Body = a.body(given, a.rid(&at))
	a.mu.Lock()
	a.own[&at] = time.Time{}
	a.mu.Unlock()
	s, err := a.Client.Dispatch(ctx, &at)
	if err != nil {
		a.leave(&at)
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, there := a.own[&at]; there && at.Stream {
		a.own[&at] = time.Now()
	}
	return &stream{Stream: s, adapter: a, at: &at}, nil
}

var wish = []byte(`,"return_token_ids":true`)

// body is the attempt's, as this server wants it.
func (a *Adapter) body(at *engine.Attempt, rid string) []byte {
	body := at.Body
	if at.TokenIDs && at.API == wire.Chat && at.Stream {
		// The projection's own is the last; a quotation mark in a text is written otherwise.
		if i := bytes.LastIndex(body, wish); i >= 0 {
			body = slice(body, i, i+len(wish), "")
		}
	}
	if p := gjson.GetBytes(body, "priority"); p.Type == gjson.Number && p.Index > 0 && !a.lowFirst.Load() {
		body = slice(body, p.Index, p.Index+len(p.Raw), strconv.FormatInt(-p.Int(), 10))
	}
	// The last of several members of one name counts, so that a client's own id,
	// however it is written, is none. Of embeddings each input is to have an id of its
	// own, which the server gives them.
	if end := bytes.LastIndexByte(body, '}'); end > 0 && at.API.Generates() {
		body = slice(body, end, end, `,"rid":"`+rid+`"`)
	}
	return body
}

// slice returns b with b[from:to] replaced.
func slice(b []byte, from, to int, by string) []byte {
	out := make([]byte, 0, len(b)-(to-from)+len(by))
	return append(append(append(out, b[:from]...), by...), b[to:]...)
}

// stream notices when an attempt is over.
type stream struct {
	engine.Stream
	adapter *Adapter
	at      *engine.Attempt
}

func (s *stream) Next() (engine.Delta, error) {
	d, err := s.Stream.Next()
	if err != nil || d.Done || d.Err != nil {
		s.adapter.leave(s.at)
	}
	return d, err
}

func (s *stream) Abort(ctx context.Context) engine.Confirmation {
	s.adapter.leave(s.at)
	return s.Stream.Abort(ctx)
}

// own are the attempts at the engine, and when a streamed one was answered.
type own map[*engine.Attempt]time.Time

// before counts those that were answered before t.
func (o own) before(t time.Time) int {
	n := 0
	for _, answered := range o {
		if !answered.IsZero() && answered.Before(t) {
			n++
		}
	}
	return n
}

func (a *Adapter) leave(at *engine.Attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, there := a.own[at]; there {
		delete(a.own, at)
		a.left = append(a.left, time.Now())
	}
}

func (a *Adapter) confirm(ctx context.Context, t *release.Ticket) engine.Confirmation {
	a.mu.Lock()
	a.waiters++
	if t.Closed.After(a.closed) {
		a.closed = t.Closed
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.waiters--
	}()
	return a.watch.Wait(ctx, t)
}

var errUnchanged = errors.New("nothing was written since the last look")

// look takes one snapshot and then calls with under the lock.
func (a *Adapter) look(ctx context.Context, with func(asked, at time.Time, l load, err error)) {
	select {
	case a.looking <- struct{}{}:
		defer func() { <-a.looking }()
	case <-ctx.Done():
		now := time.Now()
		with(now, now, load{}, context.Cause(ctx))
		return
	}
	asked := time.Now()
	l, err := a.load(ctx)
	at := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.seen.take(asked, l.ranks)
		a.left = slices.DeleteFunc(a.left, func(t time.Time) bool { return t.Before(a.seen.since) })
	}
	with(asked, at, l, err)
}

// load is the server's, by /v1/loads, or by /metrics where it has not that one.
func (a *Adapter) load(ctx context.Context) (load, error) {
	r, err := a.Get(ctx, "/v1/loads?include=core", maxDocument)
	if err != nil {
		return load{}, err
	}
	switch r.Status {
	case http.StatusOK:
		return parseLoads(r.Body)
	case http.StatusNotFound:
	default:
		return load{}, statusError{"/v1/loads", r.Status}
	}
	if r, err = a.Get(ctx, "/metrics", maxDocument); err != nil {
		return load{}, err
	}
	switch r.Status {
	case http.StatusOK:
		return parseMetrics(r.Body)
	case http.StatusNotFound:
		return load{}, errNothing
	}
	return load{}, statusError{"/metrics", r.Status}
}

var errNothing = errors.New("neither /v1/loads nor /metrics is there")

type statusError struct {
	path   string
	status int
}

func (e statusError) Error() string { return fmt.Sprintf("get %s: status %d", e.path, e.status) }

// sample is what confirmations look at.
func (a *Adapter) sample(ctx context.Context, _ bool) (s release.Sample, err error) {
	a.look(ctx, func(asked, at time.Time, l load, e error) {
		switch {
		case errors.Is(e, errNothing):
			s = release.Sample{Asked: asked, At: at, Held: -1, Progress: -1}
		case e != nil:
			err = e
		case l.empty() && a.seen.since.Before(a.closed):
			s = release.Sample{Asked: asked, At: at, Progress: -1}
		case l.empty() || a.seen.version > a.judged:
			s = a.freshLocked(at, l, a.own.before(a.seen.since))
		default:
			err = errUnchanged
		}
		if err == nil {
			a.judged = a.seen.version
		}
	})
	return s, err
}

// freshLocked is a snapshot as a sample of the moment since which it was written.
func (a *Adapter) freshLocked(at time.Time, l load, live int) release.Sample {
	s := release.Sample{
		Asked: a.seen.since, At: at, Fresh: true, Held: l.held(), Live: live, Progress: -1,
	}
	if l.pieces > 0 {
		s.Queued = 1 // somebody may be in the middle of a prompt, and in no count
	}
	return s
}

// Observe implements engine.Adapter.
func (a *Adapter) Observe(ctx context.Context) engine.Observation {
	o := engine.Unreported(time.Now())
	a.look(ctx, func(asked, at time.Time, l load, err error) {
		o.Asked, o.At = asked, at
		var status statusError
		switch {
		case errors.Is(err, errNothing):
			o.State, o.Err = engine.Ready, err
		case errors.As(err, &status) && status.status == http.StatusServiceUnavailable:
			o.State, o.Err = engine.Loading, err
		case err != nil:
			o.State, o.Err = upstream.State(err), err
		default:
			o.State = engine.Ready
			o.Running, o.Waiting, o.KVUsed, o.KVTotal = l.running, l.waiting, l.used, l.total
			o.Progress, o.Err = int64(a.seen.version), l.missing()
			// While confirmations are waited for, their samples are taken by themselves.
			if a.waiters == 0 && a.seen.version > a.noted {
				a.noted = a.seen.version
				a.watch.Note(a.freshLocked(at, l, len(a.own)+len(a.left)))
			}
		}
	})
	if refused := a.refused.Load(); o.Err == nil && refused != nil {
		o.Err = *refused
	}
	return o
}

// Capabilities implements engine.Adapter.
func (a *Adapter) Capabilities(ctx context.Context) (engine.Capabilities, error) {
	models, err := a.Models(ctx)
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	c := engine.Capabilities{Models: models, MaxContext: upstream.LeastContext(models), TokenIDs: true, MinTokens: true, StepAborts: true,
		TextCompletions: true, FinalMessage: engine.FinalFlags}
	info, err := a.Get(ctx, "/server_info", maxDocument)
	if err == nil && info.Status == http.StatusNotFound {
		info, err = a.Get(ctx, "/get_server_info", maxDocument) // its former name
	}
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	if info.Status == http.StatusOK {
		i, err := parseInfo(info.Body)
		if err != nil {
			return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
		}
		a.lowFirst.Store(i.lowFirst)
		c.Version, c.Slots, c.KVTokens, c.BlockSize = i.version, i.slots, i.tokens, i.page
		c.Priority, c.PrefixCache = i.priority, i.prefix
		if c.MaxContext == 0 {
			c.MaxContext = i.context
		}
	}
	return a.Override(c), nil
}
