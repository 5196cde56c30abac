package upstream

import (
	"context"
	"io"
	"net/http"
	"time"

	"headgate/engine"
	"headgate/engine/release"
)

// An engine with a request that ends an attempt may need it before the attempt's
// connection is closed (SGLang forgets an id with its connection). But net/http
// closes a connection as soon as the request's context ends. So with Hooks.End an
// attempt's request runs under a context of its own. When the attempt is to end,
// whoever waits for it is let go at once: the answer is read through a pipe, and
// the headers are waited for in a goroutine. Behind their back End is called,
// then the connection is closed, and only then a confirmation is looked for.

// ending is an attempt that is on its way out.
type ending struct {
	ticket *release.Ticket
	closed chan struct{} // nil: was closed at once
}

// end closes an attempt's connection, after Hooks.End if there is that and the
// engine has not ended the attempt itself (a is nil then).
func (c *Client) end(a *engine.Attempt, t *release.Ticket, closeIt func()) *ending {
	if c.hooks.End == nil || a == nil {
		closeIt()
		t.Closed = time.Now()
		return &ending{ticket: t}
	}
	e := &ending{ticket: t, closed: make(chan struct{})}
	go func() {
		defer close(e.closed)
		c.hooks.End(a)
		closeIt()
		t.Closed = time.Now()
	}()
	return e
}

// at is when the attempt was closed, or now if it still is to be.
func (e *ending) at() time.Time {
	if e.closed != nil {
		return time.Now()
	}
	return e.ticket.Closed
}

// confirm waits until the attempt is closed, and for its release.
func (e *ending) confirm(ctx context.Context, c *Client) engine.Confirmation {
	if e.closed != nil {
		select {
		case <-e.closed:
		case <-ctx.Done():
			return engine.Confirmation{At: time.Now()}
		}
	}
	return c.hooks.Confirm(ctx, e.ticket)
}

// roundTrip sends an attempt. With Hooks.End it returns when ctx ends, also while
// the request is still out; left is closed when it no longer is.
func (c *Client) roundTrip(ctx context.Context, via http.RoundTripper, req *http.Request, sent func() bool, cut func()) (res *http.Response, left chan struct{}, err error) {
	left = make(chan struct{})
	if c.hooks.End == nil {
		defer close(left)
		res, err = via.RoundTrip(req)
		return res, left, err
	}
	type answer struct {
		res *http.Response
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		defer close(left)
		res, err := via.RoundTrip(req)
		answers <- answer{res, err} // if nobody wants it any more, cut closes it
	}()
	select {
	case a := <-answers:
		return a.res, left, a.err
	case <-ctx.Done():
	}
	if !sent() {
		cut()
		<-left
	}
	return nil, left, context.Cause(ctx)
}

// pump reads ahead of a pipe, so that closing the pipe lets go of its reader while
// the connection behind it stays open.
func pump(body io.Reader) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, body)
		_ = w.CloseWithError(err) // nil: io.EOF
	}()
	return r
}
