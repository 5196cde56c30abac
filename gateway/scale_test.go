package gateway

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/identity"
	"headgate/relay"
)

var streams = flag.Int("streams", 2000, "streams that BenchmarkScale opens at once")

const (
	probes     = 2000 // events whose latency is measured
	requests   = 500  // whole requests, likewise
	probeBody  = `{"model":"test-model","stream":true,"messages":[{"role":"user","content":"probe"}]}`
	quickBody  = `{"model":"test-model","stream":true,"messages":[{"role":"user","content":"quick"}]}`
	streamBody = `{"model":"test-model","stream":true,"messages":[{"role":"user","content":"stream"}]}`
)

// BenchmarkScale holds many streams open in one process, once straight to an
// upstream, once through a bare httputil.ReverseProxy and once through the
// gateway, and reports what each way costs beyond the straight one: memory of an
// idle stream (heap and stacks after a collection), and the time that one event
// and a first byte take while all streams get an event a second.
//
// The upstream and the clients are in the process too, so that it needs four
// file descriptors a stream: ulimit -n 8192 for 2000.
func BenchmarkScale(b *testing.B) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		b.Fatal(err)
	}
	if need := uint64(4**streams + 192); files.Cur < need {
		b.Fatalf("ulimit -n is %d, %d streams need %d", files.Cur, *streams, need)
	}
	for b.Loop() {
		up := newUpstream(b)
		target := &url.URL{Scheme: "http", Host: up.addr}
		direct := measure(b, up, up.addr)
		plain := httputil.NewSingleHostReverseProxy(target)
		plain.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // the clients leave in the end
		proxy := measure(b, up, listen(b, &http.Server{Handler: readFirst(plain)}))
		gate := measure(b, up, startGateway(b, target.String()))
		for _, m := range []struct {
			way string
			cost
		}{{"straight", direct}, {"proxy", proxy}, {"headgate", gate}} {
			b.Logf("%-8s %6.1f KiB a stream (heap %.1f, stacks %.1f), %.1f goroutines, event %v (p99 %v), first byte %v (p99 %v)", m.way,
				(m.heap+m.stack)/1024, m.heap/1024, m.stack/1024, m.goroutines, m.event.p50, m.event.p99, m.first.p50, m.first.p99)
		}
		ours, theirs := gate.heap+gate.stack-direct.heap-direct.stack, proxy.heap+proxy.stack-direct.heap-direct.stack
		b.ReportMetric(ours, "B/stream")
		b.ReportMetric(ours/theirs, "memory/proxy")
		b.ReportMetric(float64(gate.event.p50-direct.event.p50)/float64(proxy.event.p50-direct.event.p50), "event/proxy")
		b.ReportMetric(float64(gate.first.p50-direct.first.p50)/float64(proxy.first.p50-direct.first.p50), "first/proxy")
		b.ReportMetric(float64(gate.event.p50-direct.event.p50), "ns/event")
		b.ReportMetric(float64(gate.first.p50-direct.first.p50), "ns/first")
	}
}

// readFirst reads the body before it is passed on. Without it an upstream that
// answers at once breaks some of a ReverseProxy's connections: the server closes
// the body when the answer begins, while the transport still looks for its end.
func readFirst(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(w, r)
	})
}

type cost struct {
	heap, stack, goroutines float64 // of one stream, bytes
	event, first            spread
}

type spread struct{ p50, p99 time.Duration }

func spreadOf(all []time.Duration) spread {
	slices.Sort(all)
	return spread{all[len(all)/2], all[len(all)*99/100]}
}

// measure opens the streams at addr.
func measure(b *testing.B, up *upstream, addr string) (c cost) {
	b.Helper()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		return conn
	}
	send := func(conn net.Conn, body string) {
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chat, len(body), body); err != nil {
			b.Fatal(err)
		}
	}
	heap, stack, goroutines := memory()
	conns := make([]net.Conn, *streams)
	buf := make([]byte, 4096)
	for i := range conns {
		conns[i] = dial()
		send(conns[i], streamBody)
		await(b, conns[i], buf)
	}
	for range 5 { // buffers get the size they have in a running stream
		up.round()
		for _, conn := range conns {
			await(b, conn, buf)
		}
	}
	h, s, g := memory()
	n := float64(*streams)
	c.heap, c.stack, c.goroutines = float64(h-heap)/n, float64(s-stack)/n, float64(g-goroutines)/n

	// From here on every stream gets an event a second, spread over it.
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() { up.ticks(stop) })
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Time{})
		load.Go(func() { _, _ = io.Copy(io.Discard, conn) })
	}
	conn := dial()
	send(conn, probeBody)
	await(b, conn, buf)
	var took []time.Duration
	for range probes {
		up.probe <- struct{}{}
		sent := await(b, conn, buf)
		took = append(took, time.Since(sent))
	}
	c.event, took = spreadOf(took), nil
	_ = conn.Close()

	conn = dial()
	in := bufio.NewReader(conn)
	for range requests {
		start := time.Now()
		send(conn, quickBody)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := res.Body.Read(buf[:1]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			b.Fatal(err)
		}
	}
	c.first = spreadOf(took)
	_ = conn.Close()
	close(stop)
	for _, conn := range conns {
		_ = conn.Close()
	}
	load.Wait()
	up.running.Wait()
	return c
}

// memory is what is in use after what can be given back was.
func memory() (heap, stack, goroutines int64) {
	for range 4 { // a collection halves a stack that is too large
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse), int64(m.StackInuse), int64(runtime.NumGoroutine())
}

// await reads one event of a chunked stream, and returns when it was sent.
func await(b *testing.B, in net.Conn, buf []byte) time.Time {
	b.Helper()
	_ = in.SetReadDeadline(time.Now().Add(30 * time.Second))
	n := 0
	for {
		got, err := in.Read(buf[n:])
		if err != nil {
			b.Fatalf("after %q: %v", buf[:n], err)
		}
		n += got
		if bytes.HasSuffix(buf[:n], []byte("\n\n\r\n")) {
			break
		}
	}
	_, stamp, _ := bytes.Cut(buf[:n], []byte("at "))
	stamp, _, _ = bytes.Cut(stamp, []byte(" "))
	at, err := strconv.ParseInt(string(stamp), 10, 64)
	if err != nil {
		b.Fatalf("%q: %v", buf[:n], err)
	}
	return epoch.Add(time.Duration(at))
}

// epoch carries the monotonic clock between the upstream and the clients.
var epoch = time.Now()

// upstream is an engine that sends an event when it is told to.
type upstream struct {
	addr  string
	probe chan struct{}

	running sync.WaitGroup // answers
	mu      sync.Mutex
	open    map[chan struct{}]struct{}
}

func newUpstream(b *testing.B) *upstream {
	u := &upstream{probe: make(chan struct{}), open: map[chan struct{}]struct{}{}}
	u.addr = listen(b, &http.Server{Handler: u})
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"test-model","object":"model"}]}`)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	u.running.Add(1)
	defer u.running.Done()
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(finish string) {
		fmt.Fprintf(w, "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":\"test-model\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"at %d \"},\"finish_reason\":%s}]}\n\n",
			time.Since(epoch), finish)
		_ = http.NewResponseController(w).Flush()
	}
	switch {
	case bytes.Contains(body, []byte("quick")):
		event("null")
		event(`"stop"`)
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
		return
	case bytes.Contains(body, []byte("probe")):
		event("null")
		u.follow(r.Context(), u.probe, event)
		return
	}
	tick := make(chan struct{}, 1)
	u.mu.Lock()
	u.open[tick] = struct{}{} // before its client knows of it
	u.mu.Unlock()
	event("null")
	u.follow(r.Context(), tick, event)
	u.mu.Lock()
	delete(u.open, tick)
	u.mu.Unlock()
}

func (u *upstream) follow(ctx context.Context, tick <-chan struct{}, event func(string)) {
	for {
		select {
		case <-tick:
			event("null")
		case <-ctx.Done():
			return
		}
	}
}

// all returns the open streams.
func (u *upstream) all() []chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []chan struct{}
	for c := range u.open {
		all = append(all, c)
	}
	return all
}

// round sends every stream an event.
func (u *upstream) round() {
	for _, c := range u.all() {
		select {
		case c <- struct{}{}:
		default: // a stream that broke, which its client will say
		}
	}
}

// ticks sends every stream an event a second until stop.
func (u *upstream) ticks(stop <-chan struct{}) {
	all := u.all()
	each := time.NewTicker(10 * time.Millisecond)
	defer each.Stop()
	for at := 0; ; {
		select {
		case <-stop:
			return
		case <-each.C:
		}
		for range max(len(all)/100, 1) {
			select {
			case all[at%len(all)] <- struct{}{}:
			default: // it has not got to the last one yet
			}
			at++
		}
	}
}

// listen serves on a socket of the loopback.
func listen(b *testing.B, s *http.Server) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// startGateway starts one in front of the upstream, with room for all.
func startGateway(b *testing.B, target string) string {
	b.Helper()
	var ec engine.Config
	ec.SetDefaults()
	ec.Kind, ec.URL = engine.OpenAI, target
	ec.Capabilities = engine.Override{Slots: 2 * *streams, KVTokens: 1 << 30, BlockSize: 16, MaxContext: 1 << 17}
	adapter, err := adapters.New(ec.Kind, ec)
	if err != nil {
		b.Fatal(err)
	}
	log, metrics := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	pool := relay.New(relay.Config{
		Name: "main", Classes: []string{"interactive"}, Capacity: 2 * *streams,
		Engines:     []relay.Engine{{Name: "gpu0", Adapter: adapter, ObserveEvery: time.Second, Priority: []int{0}}},
		IdleTimeout: time.Hour, Keepalive: time.Hour, MaxAnswer: 1 << 20, Start: time.Now(), Log: log, Metrics: relay.NewMetrics(metrics),
		Resolve: func(engines []admission.EngineSpec) (*admission.Table, error) {
			t := &admission.Table{Engines: engines}
			all := t.Envelope()
			t.Classes = []admission.ClassSpec{{Name: "interactive", Floor: all, Ceiling: all, DefaultOut: 64}}
			return t, nil
		},
	})
	auth, err := identity.New(identity.Config{Anonymous: &identity.Anonymous{Tenant: "all", Classes: []string{"interactive"}}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	g := New(Config{
		Limits: Limits{BodyBytes: 1 << 20, HeaderBytes: 64 << 10, HeaderTimeout: time.Minute, BodyTimeout: time.Minute, ClientStall: time.Minute, Connections: 4 * *streams},
		Auth:   auth, Pools: []*relay.Pool{pool}, Log: log, Metrics: metrics,
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { pool.Run(ctx) })
	running.Go(func() { _ = g.Serve(l) })
	b.Cleanup(func() {
		stop()
		now, cancel := context.WithCancel(context.Background())
		cancel()
		g.Drain(now)
		running.Wait()
	})
	for pool.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	return l.Addr().String()
}
