package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"headgate/engine"
	"headgate/engine/release"
	"headgate/wire"
	"headgate/wire/sse"
)

const (
	// drainTime is how long the end of a pooled answer is waited for after its
	// terminator, so that the connection can be used again.
	drainTime  = 100 * time.Millisecond
	drainBytes = 4 << 10
)

// stream is one answered attempt.
type stream struct {
	client *Client
	ctx    context.Context // the attempt's own: tells why a read failed
	at     *engine.Attempt
	api    wire.API
	choice int // finish reasons that make a whole answer
	header http.Header
	body   io.ReadCloser
	cut    func() // closes the connection whatever is read of it
	watch  func() bool
	pooled bool
	events *sse.Reader // nil: the answer is one document

	// Next's own.
	finished int
	seen     atomic.Bool // an event with data was handed out
	over     atomic.Bool // the engine has ended the attempt by its own word

	mu     sync.Mutex
	place  *Place
	err    error       // what Next returns from now on
	closed atomic.Bool // there is one
	ending *ending     // set once the connection is closed, or is to be
}

func newStream(ctx context.Context, c *Client, a *engine.Attempt, res *http.Response, place *Place, cut func()) *stream {
	s := &stream{
		client: c, ctx: ctx, at: a, api: a.API, choice: max(a.N, 1),
		header: res.Header, body: res.Body, pooled: !a.Interruptible, place: place,
	}
	s.cut = func() { _ = s.body.Close() } // returns once the connection is closed
	if c.hooks.End != nil {
		s.body = pump(res.Body)
		s.cut = func() { cut(); _ = res.Body.Close() }
	}
	// Some servers answer a request for a stream with a document: an error, or
	// all of it at once.
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if a.Stream && media != "application/json" {
		s.events = sse.NewReader(s.body, c.cfg.MaxEvent)
	}
	if c.hooks.End != nil {
		s.mu.Lock() // it may be cancelled already
		s.watch = context.AfterFunc(ctx, s.cancelled)
		s.mu.Unlock()
	}
	return s
}

// cancelled ends an attempt whose connection does not hang on its context.
func (s *stream) cancelled() {
	if !s.over.Load() {
		_ = s.end(context.Cause(s.ctx))
	}
}

func (s *stream) Header() http.Header { return s.header }

// Next implements engine.Stream.
func (s *stream) Next() (engine.Delta, error) {
	if err := s.ended(); err != nil {
		return engine.Delta{}, err
	}
	if s.over.Load() {
		s.drain()
		return engine.Delta{}, s.end(io.EOF)
	}
	var d engine.Delta
	var err error
	s.place.Reading()
	if s.events == nil {
		d, err = s.document()
	} else {
		err = s.nextEvent(&d)
	}
	s.place.Read()
	if err != nil {
		if s.ctx.Err() != nil {
			err = context.Cause(s.ctx)
		}
		return engine.Delta{}, s.end(err)
	}
	// An abort may have come while the event was read.
	if err := s.ended(); err != nil {
		return engine.Delta{}, err
	}
	return d, nil
}

// nextEvent fills d in, since what is copied is what was just written, for which the
// processor waits.
func (s *stream) nextEvent(d *engine.Delta) error {
	ev, err := s.events.Next()
	if err != nil && (!errors.Is(err, io.ErrUnexpectedEOF) || len(ev.Data) == 0) {
		if errors.Is(err, io.EOF) && s.finished < s.choice {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	d.Raw, d.Data = ev.Raw, ev.Data
	if len(bytes.TrimSpace(ev.Data)) == 0 {
		// A comment may pass; what is neither comment nor data is no event.
		if !bytes.HasPrefix(bytes.TrimLeft(ev.Raw, "\r\n"), []byte(":")) {
			d.Raw = nil
		}
		return nil
	}
	chunk, parseErr := wire.ParseChunk(s.api, ev.Data)
	switch {
	case err != nil && (parseErr != nil || !chunk.Done):
		// Cut inside an event; only a terminator may lack its blank line.
		return io.ErrUnexpectedEOF
	case ev.Name == "error" && chunk.Err == nil:
		d.Chunk = wire.Chunk{Err: wire.FromUpstream(http.StatusBadGateway, ev.Data, nil)}
	case parseErr != nil:
		return fmt.Errorf("unreadable event from the engine: %w", parseErr)
	case chunk.Done && s.finished == 0:
		// A terminator says that the stream is over, not that the answer is.
		return io.ErrUnexpectedEOF
	default:
		d.Chunk = chunk
	}
	// The end of an answer is told in two or three events, which mostly come together.
	d.More = (d.Finished > 0 || d.UsageOnly) && s.events.More()
	s.took(d)
	return nil
}

// document reads an answer that is not a stream.
func (s *stream) document() (engine.Delta, error) {
	limit := s.client.cfg.MaxAnswer
	body, err := io.ReadAll(io.LimitReader(s.body, int64(limit)+1))
	if err != nil {
		return engine.Delta{}, err
	}
	if len(body) > limit {
		return engine.Delta{}, fmt.Errorf("answer longer than max_answer_bytes %d", limit)
	}
	d := engine.Delta{Raw: body, Data: body}
	d.Chunk, err = wire.ParseChunk(s.api, body)
	if err != nil {
		return engine.Delta{}, fmt.Errorf("unreadable answer from the engine: %w", err)
	}
	d.Tokens = max(d.Tokens, d.Usage.Completion)
	s.took(&d)
	s.over.Store(true)
	return d, nil
}

// took keeps the books of an event.
func (s *stream) took(d *engine.Delta) {
	s.seen.Store(true)
	s.finished += d.Finished
	if d.Done || d.Err != nil {
		s.over.Store(true)
	}
	s.place.Heard(d.Tokens > 0, s.finished >= s.choice || s.over.Load())
	if s.client.hooks.Timing != nil && (d.HasUsage || d.Finished > 0) {
		d.Timing = s.client.hooks.Timing(d.Data)
	}
}

// drain reads the rest of an answer that is over, so that its connection goes
// back to the pool.
func (s *stream) drain() {
	if !s.pooled {
		return
	}
	stop := time.AfterFunc(drainTime, func() { _ = s.body.Close() })
	defer stop.Stop()
	_, _ = io.CopyN(io.Discard, s.body, drainBytes)
}

func (s *stream) ended() error {
	if !s.closed.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// end closes the connection, unless an abort did, and returns what Next is to
// return.
func (s *stream) end(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked(err)
	return s.err
}

func (s *stream) closeLocked(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	s.closed.Store(true)
	if err == io.EOF {
		s.over.Store(true)
	}
	t := &release.Ticket{Answered: true, Seen: s.seen.Load()}
	if s.watch == nil {
		s.ending = s.client.end(nil, t, s.cut)
		s.place.Leave()
		return
	}
	s.watch()
	_ = s.body.Close() // lets go of Next
	s.place.Leave()
	at := s.at
	if s.over.Load() {
		at = nil
	}
	s.ending = s.client.end(at, t, s.cut)
}

// Abort implements engine.Stream.
func (s *stream) Abort(ctx context.Context) engine.Confirmation {
	s.mu.Lock()
	s.closeLocked(engine.ErrAborted)
	e := s.ending
	s.mu.Unlock()
	if s.over.Load() {
		return engine.Confirmation{By: engine.ByCompletion, At: e.at()}
	}
	return e.confirm(ctx, s.client)
}
