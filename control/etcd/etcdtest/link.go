package etcdtest

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Link is one client's way to a cluster: a proxy before each member.
type Link struct {
	c    *Cluster
	ways []*Way
}

// Link returns a way of its own for one client, until the test ends.
func (c *Cluster) Link(t testing.TB) *Link {
	t.Helper()
	l := &Link{c: c}
	for _, m := range c.members {
		l.ways = append(l.ways, newWay(t, m.address))
	}
	return l
}

// Endpoints are the URLs to configure. They stay as they are when a member is
// started again.
func (l *Link) Endpoints() (urls []string) {
	for _, w := range l.ways {
		urls = append(urls, l.c.scheme()+"://"+w.address)
	}
	return urls
}

// To is the way to one member.
func (l *Link) To(i int) *Way { return l.ways[i] }

// Cut cuts the ways to all members; Heal undoes it, and Stall.
func (l *Link) Cut() { l.each((*Way).Cut) }

// Stall holds up what is sent, either way, on connections that stay open.
func (l *Link) Stall() { l.each((*Way).Stall) }

// Heal undoes Cut and Stall.
func (l *Link) Heal() { l.each((*Way).Heal) }

func (l *Link) each(f func(*Way)) {
	for _, w := range l.ways {
		f(w)
	}
}

// Way is one proxy.
type Way struct {
	address string
	target  func() string

	mu    sync.Mutex
	cut   bool
	open  chan struct{} // closed unless it is stalled
	delay time.Duration
	conns map[net.Conn]bool
}

func newWay(t testing.TB, target func() string) *Way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Way{address: l.Addr().String(), target: target, open: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(w.open)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var serving sync.WaitGroup
		defer serving.Wait()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { w.serve(conn) })
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		w.Cut()
		w.mu.Lock()
		w.unstallLocked()
		w.mu.Unlock()
		<-done
	})
	return w
}

// Cut ends all connections and takes no other.
func (w *Way) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for c := range w.conns {
		_ = c.Close()
	}
}

// Stall holds up what is sent, either way, on connections that stay open.
func (w *Way) Stall() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unstallLocked()
	w.open = make(chan struct{})
}

// Delay adds to the time that everything takes, each way.
func (w *Way) Delay(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = d
}

// Heal undoes Cut, Stall and Delay.
func (w *Way) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut, w.delay = false, 0
	w.unstallLocked()
}

func (w *Way) unstallLocked() {
	select {
	case <-w.open:
	default:
		close(w.open)
	}
}

func (w *Way) serve(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", w.target())
	if err != nil {
		return
	}
	defer to.Close()
	w.mu.Lock()
	cut := w.cut
	w.conns[from], w.conns[to] = true, true
	w.mu.Unlock()
	if !cut {
		var both sync.WaitGroup
		both.Go(func() { w.copy(to, from) })
		w.copy(from, to)
		both.Wait()
	}
	w.mu.Lock()
	delete(w.conns, from)
	delete(w.conns, to)
	w.mu.Unlock()
}

// copy ends both connections when one has ended.
func (w *Way) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	for b := make([]byte, 64<<10); ; {
		n, err := from.Read(b)
		w.mu.Lock()
		open, delay := w.open, w.delay
		w.mu.Unlock()
		<-open
		if delay > 0 {
			time.Sleep(delay)
		}
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// peers is the way from all members to one. It tells them apart by what they say in
// each request.
type peers struct {
	address string
	mu      sync.Mutex
	to      string // host:port, "" before it listens
	cuts    map[string]bool
	running map[*http.Request]context.CancelFunc
}

func newPeers(t testing.TB) *peers {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peers{address: l.Addr().String(), cuts: map[string]bool{}, running: map[*http.Request]context.CancelFunc{}}
	transport := &http.Transport{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			p.mu.Lock()
			defer p.mu.Unlock()
			r.SetURL(&url.URL{Scheme: "http", Host: p.to})
		},
		Transport: transport, FlushInterval: -1,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     quiet,
	}
	server := &http.Server{ErrorLog: quiet, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		p.mu.Lock()
		cut := p.to == "" || p.cuts[r.Header.Get(from)]
		p.running[r] = cancel
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			delete(p.running, r)
			p.mu.Unlock()
		}()
		if cut {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r.WithContext(ctx))
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		transport.CloseIdleConnections()
		<-done
	})
	return p
}

// from is the header in which a member says who it is.
const from = "X-Server-From"

// target sets where the member listens.
func (p *peers) target(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
}

// cut ends what one member sends, or lets it send again.
func (p *peers) cut(who string, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts[who] = cut
	for r, cancel := range p.running {
		if cut && r.Header.Get(from) == who {
			cancel()
		}
	}
}

// quiet takes what the proxies say of links that were cut.
var quiet = log.New(io.Discard, "", 0)
