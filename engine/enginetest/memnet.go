package enginetest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Listener is a network in memory: a net.Listener and the DialContext that
// reaches it. Unlike net.Pipe its connections are buffered, as a socket is, so
// that a server that writes does not wait for a client that does not read; and
// unlike sockets they block in a way that testing/synctest understands.
type Listener struct {
	mu     sync.Mutex
	closed bool
	conns  chan net.Conn
	done   chan struct{}
	dialed int
}

// NewListener returns an open listener.
func NewListener() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// DialContext connects. A closed listener refuses as a socket does.
func (l *Listener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := pipe()
	select {
	case <-l.done:
	default:
		select {
		case l.conns <- server:
			l.mu.Lock()
			l.dialed++
			l.mu.Unlock()
			return client, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-l.done:
		}
	}
	return nil, &net.OpError{Op: "dial", Net: "mem", Addr: address{}, Err: syscall.ECONNREFUSED}
}

// Dialed is the number of connections made so far.
func (l *Listener) Dialed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dialed
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.done)
	}
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "mem" }
func (address) String() string  { return "mem" }

func pipe() (a, b net.Conn) {
	x, y := newHalf(), newHalf()
	return &conn{in: x, out: y}, &conn{in: y, out: x}
}

type conn struct{ in, out *half }

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }
func (c *conn) LocalAddr() net.Addr         { return address{} }
func (c *conn) RemoteAddr() net.Addr        { return address{} }

func (c *conn) Close() error {
	c.in.close(net.ErrClosed, syscall.EPIPE)
	c.out.close(io.EOF, net.ErrClosed)
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	c.in.setReadDeadline(t)
	return nil // writes never block
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setReadDeadline(t)
	return nil
}

func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// half is one direction.
type half struct {
	mu       sync.Mutex
	change   *sync.Cond
	buf      []byte
	readErr  error // once the buffer is empty
	writeErr error
	deadline time.Time
	timer    *time.Timer
}

func newHalf() *half {
	h := &half{}
	h.change = sync.NewCond(&h.mu)
	return h
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case errors.Is(h.readErr, net.ErrClosed):
			return 0, h.readErr
		case !h.deadline.IsZero() && !time.Now().Before(h.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			h.buf = h.buf[n:]
			return n, nil
		case h.readErr != nil:
			return 0, h.readErr
		}
		h.change.Wait()
	}
}

func (h *half) write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.writeErr != nil {
		return 0, h.writeErr
	}
	h.buf = append(h.buf, p...)
	h.change.Broadcast()
	return len(p), nil
}

// close sets what the two ends see from now on; the first to close wins.
func (h *half) close(read, write error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readErr == nil || errors.Is(read, net.ErrClosed) {
		h.readErr = read
	}
	if h.writeErr == nil || errors.Is(write, net.ErrClosed) {
		h.writeErr = write
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.change.Broadcast()
}

func (h *half) setReadDeadline(t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = t
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	// A timer that is due at once has crashed Go 1.26's runtime in a bubble of
	// testing/synctest under the race detector.
	switch left := time.Until(t); {
	case t.IsZero():
	case left <= 0:
		h.change.Broadcast()
	default:
		h.timer = time.AfterFunc(left, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.change.Broadcast()
		})
	}
	h.change.Broadcast()
}
