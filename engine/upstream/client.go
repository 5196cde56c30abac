// Package upstream is the HTTP side that all adapters share: it sends an
// attempt, reads what comes back event by event, ends it, and fetches small
// documents (metrics, health, model lists).
//
// # Connections
//
// Inference servers speak HTTP/1.1 (uvicorn, cpp-httplib), where the only way
// to end a request is to close its connection. An attempt that may be
// interrupted therefore gets a connection of its own, which carries nothing
// before or after it. All others share pooled ones. vLLM, SGLang and
// llama-server drop an idle connection after 5 s, so the pool lets go of one
// after 4; llama-server also does after 100 requests, unannounced, and then a
// request meets a closing connection now and then. net/http sends such a
// request again by itself, on another connection, if three things hold: the
// connection had been used before, not a byte of an answer had come, and the
// request is idempotent. A generation is declared so (an empty Idempotency-Key,
// which is never put on the wire), because it changes nothing at the engine and
// the closed connection has ended whatever was begun. A fresh connection never
// qualifies, so nothing is sent twice to an engine that dies of it.
//
// # What is not done
//
// No proxy is taken from the environment, no redirect followed, nothing
// compressed, and no header of a client passed on: what is sent is the
// adapter's own, and it goes to the configured address only, unless that turns out
// to be one of the link (package egress).
package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"headgate/egress"
	"headgate/engine"
	"headgate/engine/release"
	"headgate/identity"
)

const (
	idleTimeout = 4 * time.Second // servers: 5 s
	idleConns   = 256
	maxRefusal  = 64 << 10 // bytes of an error's body that are kept
	maxHeader   = 1 << 20
)

// Hooks are what makes a client an adapter.
type Hooks struct {
	// Timing reads an engine's own account of a request out of an event that
	// carries usage or a finish reason; nil result: there is none.
	Timing func(data []byte) *engine.Timing
	// Confirm waits for the release of a closed attempt.
	Confirm func(context.Context, *release.Ticket) engine.Confirmation
	// Watch is what Confirm looks for evidence with; nil: the engine shows none.
	Watch *release.Watcher
	// End asks the engine to end an attempt that has not ended by itself; nil: it
	// has no request for that. It is called once, before the attempt's connection
	// is closed, which waits for it and nobody else does: it bounds itself. See
	// ending.go.
	End func(*engine.Attempt)
}

// Client speaks to one engine.
type Client struct {
	cfg   engine.Config
	hooks Hooks
	root  *url.URL
	key   identity.Secret

	pooled, own *http.Transport
	ledger      Ledger
}

// New makes a client from a configuration that was found valid. It dials
// nothing.
func New(cfg engine.Config, hooks Hooks) (*Client, error) {
	root, err := cfg.Root()
	if err != nil {
		return nil, err
	}
	key, err := cfg.Key()
	if err != nil {
		return nil, err
	}
	secure, err := cfg.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	c := &Client{cfg: cfg, hooks: hooks, root: root, key: key, ledger: newLedger()}
	c.pooled = transport(cfg, secure)
	c.own = transport(cfg, secure)
	c.own.DisableKeepAlives = true
	return c, nil
}

func transport(cfg engine.Config, secure *tls.Config) *http.Transport {
	dial := cfg.DialContext
	if dial == nil {
		d := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second}
		if !cfg.AllowLinkLocal {
			d.Control = egress.Guard
		}
		dial = d.DialContext
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            dial,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		TLSClientConfig:        secure,
		DisableCompression:     true,
		MaxIdleConns:           idleConns,
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleTimeout,
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              protocols,
	}
}

// Ledger is the account of the attempts at the engine.
func (c *Client) Ledger() *Ledger { return &c.ledger }

// Share implements engine.Shared.
func (c *Client) Share(wanted func()) {
	if c.hooks.Watch != nil {
		c.hooks.Watch.Share(wanted)
	}
}

// Others implements engine.Shared.
func (c *Client) Others(all []engine.Presence) {
	if c.hooks.Watch != nil {
		c.hooks.Watch.Others(all)
	}
}

// Attending implements engine.Shared.
func (c *Client) Attending() engine.Attendance {
	a := c.ledger.attending()
	a.Doubts = c.hooks.Watch != nil && c.hooks.Watch.Doubts()
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.root.String())) // does not fail
	a.Place = h.Sum32()
	return a
}

// Close drops idle connections.
func (c *Client) Close() {
	c.pooled.CloseIdleConnections()
	c.own.CloseIdleConnections()
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.root.String()+path, body)
	if err != nil {
		return nil, err
	}
	for name, value := range c.cfg.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("User-Agent", "headgate")
	if !c.key.Empty() {
		value := c.key.Reveal()
		if http.CanonicalHeaderKey(c.cfg.APIKeyHeader) == "Authorization" {
			value = "Bearer " + value
		}
		req.Header.Set(c.cfg.APIKeyHeader, value)
	}
	return req, nil
}

// Dispatch implements engine.Adapter.
func (c *Client) Dispatch(ctx context.Context, a *engine.Attempt) (engine.Stream, error) {
	path := a.API.Path()
	if path == "" {
		return nil, fmt.Errorf("dispatch: api %d: allowed are chat, completions and embeddings", a.API)
	}
	res, place, cut, err := c.open(ctx, path, a)
	if err != nil {
		return nil, err
	}
	return newStream(ctx, c, a, res, place, cut), nil
}

// Open sends an attempt to a path of the engine's own and returns its answer, for an
// adapter without Hooks.End that reads that itself, and says so. It is in the ledger
// until it leaves.
func (c *Client) Open(ctx context.Context, path string, a *engine.Attempt) (*http.Response, *Place, error) {
	res, place, _, err := c.open(ctx, path, a)
	return res, place, err
}

// open sends an attempt and enters it into the ledger. cut ends its request.
func (c *Client) open(ctx context.Context, path string, a *engine.Attempt) (*http.Response, *Place, func(), error) {
	run, cut := ctx, context.CancelFunc(func() {})
	if c.hooks.End != nil {
		run, cut = context.WithCancel(context.WithoutCancel(ctx))
	}
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(run, &httptrace.ClientTrace{
		WroteHeaders: func() { sent.Store(true) },
	})
	req, err := c.request(traced, http.MethodPost, path, bytes.NewReader(a.Body))
	if err != nil {
		cut()
		return nil, nil, nil, fmt.Errorf("dispatch: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if a.Stream {
		req.Header.Set("Accept", "text/event-stream")
	}
	if a.ID != "" {
		req.Header.Set("X-Request-Id", a.ID)
	}
	if a.Traceparent != "" {
		req.Header.Set("Traceparent", a.Traceparent)
	}
	via := c.own
	if !a.Interruptible {
		via = c.pooled
		req.Header["Idempotency-Key"] = []string{}
	}

	place := c.ledger.Enter(a.Stream)
	res, left, err := c.roundTrip(ctx, via, req, sent.Load, cut)
	if err != nil {
		place.Leave()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		err = fmt.Errorf("dispatch to %s: %w", c.root.Host, err)
		if !sent.Load() {
			cut()
			return nil, place, nil, err
		}
		end := c.end(a, &release.Ticket{}, func() { cut(); <-left })
		return nil, place, nil, &engine.Unanswered{Err: err, Confirm: func(ctx context.Context) engine.Confirmation {
			return end.confirm(ctx, c)
		}}
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer cut()
		place.Leave()
		return nil, place, nil, c.refusal(res)
	}
	place.answered()
	return res, place, cut, nil
}

// refusal reads what there is of an error's body. An engine may quote the key
// it refuses.
func (c *Client) refusal(res *http.Response) error {
	stop := time.AfterFunc(c.cfg.ScrapeTimeout, func() { _ = res.Body.Close() })
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // what came is what there is
	stop.Stop()
	_ = res.Body.Close()
	if !c.key.Empty() {
		body = bytes.ReplaceAll(body, []byte(c.key.Reveal()), []byte(identity.Redacted))
	}
	return &engine.StatusError{Status: res.StatusCode, Header: res.Header, Body: body}
}

// Reply is a small document.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Get fetches one, of at most limit bytes, within the scrape timeout.
func (c *Client) Get(ctx context.Context, path string, limit int) (Reply, error) {
	return c.fetch(ctx, http.MethodGet, path, nil, limit)
}

// Post sends a JSON document that may arrive twice, and returns the answer, under
// the same bounds.
func (c *Client) Post(ctx context.Context, path string, body []byte, limit int) (Reply, error) {
	return c.fetch(ctx, http.MethodPost, path, body, limit)
}

func (c *Client) fetch(ctx context.Context, method, path string, doc []byte, limit int) (Reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ScrapeTimeout,
		fmt.Errorf("no answer within scrape_timeout %s: %w", c.cfg.ScrapeTimeout, context.DeadlineExceeded))
	defer cancel()
	verb := strings.ToLower(method)
	req, err := c.request(ctx, method, path, bytes.NewReader(doc))
	if err != nil {
		return Reply{}, fmt.Errorf("%s %s: %w", verb, path, err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
		req.Header["Idempotency-Key"] = []string{} // see the package comment
	}
	res, err := c.pooled.RoundTrip(req)
	if err == nil {
		defer func() { _ = res.Body.Close() }()
		var body []byte
		body, err = io.ReadAll(io.LimitReader(res.Body, int64(limit)+1))
		switch {
		case err == nil && len(body) > limit:
			err = fmt.Errorf("answer longer than the limit of %d bytes", limit)
		case err == nil:
			return Reply{Status: res.StatusCode, Header: res.Header, Body: body}, nil
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return Reply{}, fmt.Errorf("%s %s of %s: %w", verb, path, c.root.Host, err)
}

// GetOK fetches a document that must be there.
func (c *Client) GetOK(ctx context.Context, path string, limit int) ([]byte, error) {
	r, err := c.Get(ctx, path, limit)
	if err != nil {
		return nil, err
	}
	if r.Status != http.StatusOK {
		return nil, fmt.Errorf("get %s of %s: status %d", path, c.root.Host, r.Status)
	}
	return r.Body, nil
}

// State tells what the failure of a request says about an engine: Down if
// nobody listens there or the connection breaks before an answer, otherwise
// Unknown. A timeout is no sign of death: a busy engine answers late.
func State(err error) engine.State {
	for _, gone := range []error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, gone) {
			return engine.Down
		}
	}
	return engine.Unknown
}

// Capabilities of the adapter's kind, with what the configuration knows better.
func (c *Client) Override(caps engine.Capabilities) engine.Capabilities {
	caps.Kind = c.cfg.Kind
	return c.cfg.Capabilities.Apply(caps)
}
