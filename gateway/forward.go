package gateway

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/control"
	"headgate/egress"
	"headgate/identity"
	"headgate/journal"
	"headgate/relay"
	"headgate/wire"
)

// Forwarding. In a fleet a request that would have to wait here goes to a replica that
// would surely start it at once: as the client's own bytes and headers, so that it is
// authenticated, classed and judged there as if it had come there, and its answer is
// passed back as it is. What one replica says to the other beside that is one header
// with a proof that it is of the fleet.
//
// A request goes one hop: one that comes with that header is served where it is,
// whatever the header says, so that no disagreement of replicas about secrets, clocks or
// configuration can send it in circles. Only with a valid proof is what it says believed.
//
// It is dispatched once: its body goes out only when the replica asks for it (100
// Continue), and from then on it is sent to nobody else and does not run here either. A
// replica that does not ask can't have run it: it is gone, or stopped with its port
// open, or refuses. The request is then served here, where it would have waited.
//
// Alternatives: a protocol between replicas could carry over more (the place in a
// queue, the quota that was taken), and would be a second way into the data plane, to be
// kept as safe and as compatible as the first.

// Router says where a request that would have to wait here is to be sent.
type Router interface {
	// Route returns the replica; ok is false if the request stays.
	Route(pool, request string, need *control.Need) (to control.Member, ok bool)
	// Unreached is told of a replica that did not take a request.
	Unreached(replica string)
}

// Forwarding is how requests go to other replicas of the fleet.
type Forwarding struct {
	Router Router
	// Secret is the fleet's, by which replicas know each other.
	Secret identity.Secret
	// Connect is how long a connection may take to be there, and then the replica to ask
	// for the body.
	Connect time.Duration
	dial    func(ctx context.Context, network, address string) (net.Conn, error) // of tests; nil: TCP
	// Roots are whose certificates are taken from replicas with an https address; nil:
	// the system's.
	Roots *x509.CertPool
}

const (
	headerForwarded = "Headgate-Forwarded" // replica;request id;unix ms;proof
	headerReplica   = "Headgate-Replica"   // who has served a request of a fleet
)

// mostSkew is how far the clocks of two replicas may differ, the time on the way
// included.
const mostSkew = 30 * time.Second

const (
	// hopIdle is shorter than servers keep idle connections, so that none breaks just
	// when it is used.
	hopIdle = idleConnection / 2
	// mostEvent is the largest event of a stream that is passed on whole, in bytes. Of
	// a larger one a client may see a part when the replica breaks off.
	mostEvent = 1 << 20
	firstRead = 16 << 10
	// mostHeader is the largest header of an answer that is passed on, in bytes.
	mostHeader = 1 << 20
)

var errStopped = errors.New("the gateway is shutting down")

// forwarder sends requests on, and knows those that others have sent.
type forwarder struct {
	Forwarding
	replica   string
	transport *http.Transport
	sent      *prometheus.CounterVec
	received  *prometheus.CounterVec

	killed context.Context
	kill   context.CancelFunc
	mu     sync.Mutex
	active int
	drain  bool
	idle   chan struct{} // closed when active falls to 0 while draining
}

func newForwarder(f Forwarding, replica string, reg prometheus.Registerer) *forwarder {
	v := &forwarder{
		Forwarding: f, replica: replica, idle: make(chan struct{}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_forwards_total",
			Help: "Requests that another replica was to serve, by outcome: answered, with whatever status; unreachable, which did not take the request, and served here; failed, because the replica broke off; left, because the client did.",
		}, []string{"pool", "outcome"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_forwarded_received_total",
			Help: "Requests that say that another replica has sent them, by proof: valid or invalid. Invalid ones are clients that pretend, or replicas whose secrets or clocks differ.",
		}, []string{"proof"}),
	}
	v.killed, v.kill = context.WithCancel(context.Background())
	dialer := &net.Dialer{
		Timeout: f.Connect, Control: egress.Guard,
		// A machine that is gone says nothing; a stream of it would never end.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	dial := dialer.DialContext
	if f.dial != nil {
		dial = f.dial
	}
	v.transport = &http.Transport{
		DialContext:            dial,
		MaxResponseHeaderBytes: mostHeader,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: f.Roots}, TLSHandshakeTimeout: f.Connect, ExpectContinueTimeout: f.Connect,
		TLSNextProto:       map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1: a connection is one request's at a time
		DisableCompression: true, MaxIdleConnsPerHost: 256, IdleConnTimeout: hopIdle,
	}
	reg.MustRegister(v.sent, v.received)
	return v
}

// errNotAsked is that a replica has not asked for a body in time.
var errNotAsked = errors.New("the replica did not ask for the body")

// errNotTaken is that a replica has answered without having asked for the body.
var errNotTaken = errors.New("the replica did not take the request")

// handover is a body that is there only for a replica that has asked for it.
type handover struct {
	body  *bytes.Reader
	asked atomic.Bool
	state atomic.Int32
	taken func() // is told that it is begun
}

// The states of a handover, of which each is for good: some of it went out, or is about
// to; nothing of it has, nor will.
const (
	handoverBegun = 1 + iota
	handoverWithdrawn
)

func (b *handover) begun() bool { return b.state.Load() == handoverBegun }

// withdraw keeps a body that has not begun from being sent, by a transport that is still
// at it, and tells whether it has not.
func (b *handover) withdraw() bool {
	return b.state.CompareAndSwap(0, handoverWithdrawn) || b.state.Load() == handoverWithdrawn
}

func (b *handover) Read(p []byte) (int, error) {
	if !b.asked.Load() {
		return 0, errNotAsked
	}
	switch {
	case b.state.CompareAndSwap(0, handoverBegun):
		b.taken()
	case !b.begun():
		return 0, errNotAsked
	}
	return b.body.Read(p)
}

// received notes whether a request comes from another replica, and takes over its
// name for it where that is proven. The header goes no further.
func (g *Gateway) received(w *response, r *http.Request) {
	if g.cfg.Fleet != nil {
		w.header.Set(headerReplica, g.cfg.Fleet.Replica)
	}
	lines := r.Header.Values(headerForwarded)
	if len(lines) == 0 {
		return
	}
	r.Header.Del(headerForwarded)
	w.hopped = true
	if g.forwarder == nil {
		return
	}
	from, id, ok := g.forwarder.verify(lines, r, w.arrived)
	if !ok {
		g.forwarder.received.WithLabelValues("invalid").Inc()
		return
	}
	g.forwarder.received.WithLabelValues("valid").Inc()
	w.from = from
	w.identify(id)
}

// proof is what only a replica of the fleet can say: that a request with this line was
// sent to that replica.
func (f *forwarder) proof(line, to string, r *http.Request) []byte {
	mac := hmac.New(sha256.New, []byte(f.Secret.Reveal()))
	_, _ = io.WriteString(mac, "headgate forwarded 1\n"+line+"\n"+to+"\n"+r.Method+" "+r.URL.RequestURI())
	return mac.Sum(nil)
}

func (f *forwarder) line(id, to string, now time.Time, r *http.Request) string {
	line := f.replica + ";" + id + ";" + strconv.FormatInt(now.UnixMilli(), 10)
	return line + ";" + base64.RawURLEncoding.EncodeToString(f.proof(line, to, r))
}

// verify returns who has sent a request on and its id.
func (f *forwarder) verify(lines []string, r *http.Request, now time.Time) (from, id string, ok bool) {
	if len(lines) != 1 {
		return "", "", false
	}
	end := strings.LastIndexByte(lines[0], ';')
	if end < 0 {
		return "", "", false
	}
	line := lines[0][:end]
	proof, err := base64.RawURLEncoding.DecodeString(lines[0][end+1:])
	if err != nil || !hmac.Equal(proof, f.proof(line, f.replica, r)) {
		return "", "", false
	}
	parts := strings.Split(line, ";")
	if len(parts) != 3 {
		return "", "", false
	}
	at, err := strconv.ParseInt(parts[2], 10, 64)
	if age := now.Sub(time.UnixMilli(at)); err != nil || age < -mostSkew || age > mostSkew {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// forward lets another replica serve a call that would have to wait here, where one
// would surely start it; done is false if it is to be served here. The error is the
// client's, as of Pool.Serve.
func (g *Gateway) forward(w *response, r *http.Request, pool *relay.Pool, call *relay.Call) (done bool, failure *wire.Error) {
	body := w.body
	w.body = nil // it is not kept while the call runs
	f := g.forwarder
	if f == nil || w.hopped || body == nil {
		return false, nil
	}
	need, short := pool.Short(call)
	if !short {
		return false, nil
	}
	to, ok := f.Router.Route(pool.Name(), call.ID, &need)
	if !ok || !f.begin() {
		return false, nil
	}
	defer f.end()
	outcome, failure := f.carry(w, r, pool, call, to, body)
	f.sent.WithLabelValues(pool.Name(), outcome).Inc()
	if outcome == hopUnreachable {
		f.Router.Unreached(to.Replica)
	} else if call.Account != nil {
		call.Account.Note(&journal.Event{Kind: journal.Forwarded, Pool: pool.Name(), Class: call.Class, Peer: to.Replica})
	}
	return outcome != hopUnreachable, failure
}

// The outcomes of a hop.
const (
	hopAnswered    = "answered"
	hopUnreachable = "unreachable"
	hopFailed      = "failed"
	hopLeft        = "left"
)

// carry sends a request to a replica and passes on its answer.
func (f *forwarder) carry(w *response, r *http.Request, pool *relay.Pool, call *relay.Call, to control.Member, body []byte) (outcome string, failure *wire.Error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(f.killed, func() { cancel(errStopped) })()
	sent := &handover{body: bytes.NewReader(body), taken: func() { pool.Forwarded(call, to.Replica) }}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got100Continue: func() { sent.asked.Store(true) },
	})
	// A body that can't be had a second time is why the transport never repeats it.
	out, err := http.NewRequestWithContext(ctx, r.Method, strings.TrimSuffix(to.Address, "/")+r.URL.RequestURI(), io.NopCloser(sent))
	if err != nil {
		return hopUnreachable, nil
	}
	out.ContentLength = int64(len(body))
	copyHeader(out.Header, r.Header)
	out.Header.Set("Expect", "100-continue")
	out.Header.Set(headerForwarded, f.line(call.ID, to.Replica, time.Now(), r))
	if w.span != nil {
		out.Header.Set("Traceparent", w.span.Traceparent())
		w.span.Text("headgate.forwarded", to.Replica)
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "") // none, instead of the transport's own
	}
	res, err := f.transport.RoundTrip(out)
	if err == nil {
		defer func() { _ = res.Body.Close() }()
		if err = errNotTaken; sent.begun() {
			err = w.pass(res)
		}
	}
	if err == nil {
		return hopAnswered, nil
	}
	if ctx.Err() == nil && sent.withdraw() {
		return hopUnreachable, nil
	}
	if !w.started {
		w.header.Set(headerReplica, to.Replica)
		w.decided("forwarded", time.Since(w.arrived), false)
	}
	switch {
	case errors.Is(context.Cause(ctx), errStopped):
		return hopFailed, wire.Draining()
	case ctx.Err() != nil || errors.Is(err, errClientGone):
		return hopLeft, wire.ClientClosed()
	case w.started:
		return hopFailed, wire.NewError(wire.CodeUpstreamTorn, "replica %s, which served the request, broke off before the end of its answer", to.Replica)
	}
	return hopFailed, wire.UpstreamError("replica %s, to which the request was sent, broke off before it answered: it may have run", to.Replica)
}

// hopByHop are headers that are of a connection and not of a message.
var hopByHop = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect"}

// copyHeader copies a message's headers, and not those of its connection.
func copyHeader(dst, src http.Header) {
	for k, v := range src {
		dst[k] = v
	}
	for _, line := range src["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			delete(dst, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	for _, name := range hopByHop {
		delete(dst, name)
	}
}

// errClientGone is that the client does not take its answer.
var errClientGone = errors.New("the client does not read")

// pass gives the client another replica's answer, as it comes.
func (w *response) pass(res *http.Response) error {
	copyHeader(w.header, res.Header)
	w.status, w.started = res.StatusCode, true
	w.stream = strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
	w.deadline()
	w.out.WriteHeader(res.StatusCode)
	if w.stream {
		_ = w.control.Flush()
	}
	buf := make([]byte, 0, firstRead)
	for {
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, 2*cap(buf)), buf...)
		}
		n, err := res.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		end := len(buf)
		if w.stream && err == nil && len(buf) < mostEvent {
			end = wholeEvents(buf)
		} else if w.stream && err != nil && err != io.EOF {
			end = wholeEvents(buf) // what follows is an error
		}
		if end > 0 {
			if w.write(buf[:end]) != nil {
				return errClientGone
			}
			buf = buf[:copy(buf, buf[end:])]
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// wholeEvents is the length of the whole events at the beginning of b, 0 if the first
// is not over yet.
func wholeEvents(b []byte) int {
	end := 0
	for _, blank := range []string{"\n\n", "\n\r\n"} {
		if i := bytes.LastIndex(b, []byte(blank)); i >= 0 {
			end = max(end, i+len(blank))
		}
	}
	return end
}

// begin counts a request that is sent on, unless no more are.
func (f *forwarder) begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.drain {
		return false
	}
	f.active++
	return true
}

func (f *forwarder) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active--; f.drain && f.active == 0 {
		close(f.idle)
	}
}

// finish lets what was sent on come to its end until ctx ends, and ends the rest. It
// returns how many that were.
func (f *forwarder) finish(ctx context.Context) int {
	f.mu.Lock()
	f.drain = true
	left := f.active
	f.mu.Unlock()
	defer f.transport.CloseIdleConnections()
	if left == 0 {
		return 0
	}
	select {
	case <-f.idle:
		return 0
	case <-ctx.Done():
	}
	f.mu.Lock()
	left = f.active
	f.mu.Unlock()
	f.kill()
	<-f.idle
	return left
}
