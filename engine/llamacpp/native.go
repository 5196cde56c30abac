package llamacpp

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"headgate/engine"
	"headgate/engine/release"
	"headgate/engine/upstream"
	"headgate/identity"
)

const (
	maxRefusal  = 64 << 10 // bytes of an error's body that are kept
	idleTimeout = 4 * time.Second
)

// native posts to the engine's own route for streams. What package upstream says of
// connections holds for these too.
type native struct {
	cfg         engine.Config
	root        *url.URL
	key         identity.Secret
	pooled, own *http.Transport

	mu    sync.Mutex
	count upstream.Count // of the attempts that the client's ledger doesn't know
}

func newNative(cfg engine.Config) (*native, error) {
	root, err := cfg.Root()
	if err != nil {
		return nil, err
	}
	key, err := cfg.Key()
	if err != nil {
		return nil, err
	}
	n := &native{cfg: cfg, root: root, key: key}
	n.pooled, n.own = transport(cfg), transport(cfg)
	n.own.DisableKeepAlives = true
	return n, nil
}

func transport(cfg engine.Config) *http.Transport {
	dial := cfg.DialContext
	if dial == nil {
		dial = (&net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:           dial,
		TLSHandshakeTimeout:   cfg.ConnectTimeout,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		DisableCompression:    true,
		IdleConnTimeout:       idleTimeout,
		ResponseHeaderTimeout: cfg.HeaderTimeout,
		Protocols:             protocols,
	}
}

func (n *native) close() {
	n.pooled.CloseIdleConnections()
	n.own.CloseIdleConnections()
}

func (n *native) add(live, pending int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count.Live += live
	n.count.Pending += pending
}

// load adds these attempts to the client's.
func (n *native) load(of upstream.Count) upstream.Count {
	n.mu.Lock()
	defer n.mu.Unlock()
	return upstream.Count{Live: of.Live + n.count.Live, Pending: of.Pending + n.count.Pending}
}

func (n *native) request(ctx context.Context, path string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.root.String()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range n.cfg.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("User-Agent", "headgate")
	req.Header.Set("Content-Type", "application/json")
	// Asking twice changes nothing, so a closed idle connection is no failure.
	req.Header["Idempotency-Key"] = []string{}
	if !n.key.Empty() {
		value := n.key.Reveal()
		if http.CanonicalHeaderKey(n.cfg.APIKeyHeader) == "Authorization" {
			value = "Bearer " + value
		}
		req.Header.Set(n.cfg.APIKeyHeader, value)
	}
	return req, nil
}

func (n *native) failure(ctx context.Context, path string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("post %s to %s: %w", path, n.root.Host, err)
}

func (n *native) refusal(res *http.Response) error {
	stop := time.AfterFunc(n.cfg.ScrapeTimeout, func() { _ = res.Body.Close() })
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // what came is what there is
	stop.Stop()
	_ = res.Body.Close()
	if !n.key.Empty() {
		body = bytes.ReplaceAll(body, []byte(n.key.Reveal()), []byte(identity.Redacted))
	}
	return &engine.StatusError{Status: res.StatusCode, Header: res.Header, Body: body}
}

// stream posts a request for a stream, which counts as the adapter's load from
// then on until the body is closed and leave was called.
func (n *native) stream(ctx context.Context, path string, at *engine.Attempt, body []byte,
	confirm func(context.Context, *release.Ticket) engine.Confirmation) (*http.Response, error) {
	var sent atomic.Bool
	req, err := n.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { sent.Store(true) },
	}), path, body)
	if err != nil {
		return nil, fmt.Errorf("dispatch: %w", err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if at.ID != "" {
		req.Header.Set("X-Request-Id", at.ID)
	}
	if at.Traceparent != "" {
		req.Header.Set("Traceparent", at.Traceparent)
	}
	via := n.own
	if !at.Interruptible {
		via = n.pooled
	}
	n.add(0, 1)
	res, err := via.RoundTrip(req)
	if err != nil {
		n.add(0, -1)
		err = n.failure(ctx, path, err)
		if !sent.Load() {
			return nil, err
		}
		t := &release.Ticket{Closed: time.Now()}
		return nil, &engine.Unanswered{Err: err, Confirm: func(ctx context.Context) engine.Confirmation { return confirm(ctx, t) }}
	}
	if res.StatusCode != http.StatusOK {
		n.add(0, -1)
		return nil, n.refusal(res)
	}
	n.add(1, -1)
	return res, nil
}

func (n *native) leave() { n.add(-1, 0) }
