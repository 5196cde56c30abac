package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/admission"
	"headgate/batch"
	"headgate/control"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/identity"
	"headgate/journal"
	"headgate/quota/keeper"
	"headgate/relay"
	"headgate/wire"
)

const (
	aliceKey  = "hg_ABCDEFGHIJKLMNOPQRSTUVWXYZa" // both classes, by header and tier
	bobKey    = "hg_0123456789abcdefghijklmnopq" // batch only
	engineKey = "engine-key-0123456789"
)

// setup is what a test wants otherwise.
type setup struct {
	engine    enginetest.Options
	limits    Limits
	keepalive time.Duration
	idle      time.Duration
	slots     int
	depth     int
	tenant    int
	wait      time.Duration
	models    []string
	noEngine  bool
	anonymous bool // and no keys
	callers   func(*identity.Config)
	reclaim   bool                // loans are ended at once
	observe   bool                // the pool does
	replan    *relay.Replan       // of the pool
	objective admission.Objective // of interactive
	slo       bool                // alice may have limits of her own, from 100 ms on
	fleet     *Fleet              // that the pool is of, as replica a if none is said
	wrap      func(engine.Adapter) engine.Adapter
	beside    *rig        // another replica, whose engine is shared
	forward   *Forwarding // to the others of it
	journal   *journal.Writer
	batches   *batch.Service
	tenants   *keeper.Keeper // of limits
	audit     *stored        // where decisions are written down; nil: nowhere
	listener  net.Listener
	dial      func(context.Context, string, string) (net.Conn, error)
}

// rig is a gateway in front of a fake engine, and a client.
type rig struct {
	t       testing.TB
	engine  *enginetest.Engine
	pool    *relay.Pool
	gateway *Gateway
	metrics *prometheus.Registry
	log     *logBuffer
	client  *http.Client
	dial    func(context.Context, string, string) (net.Conn, error)
	served  chan error
	drained sync.Once
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func testIdentity(t testing.TB, anonymous bool) identity.Config {
	var c identity.Config
	c.Tiers.SetDefaults()
	if anonymous {
		c.Anonymous = &identity.Anonymous{Tenant: "anonymous", Classes: []string{"interactive", "batch"}, Header: true, ServiceTier: true}
		return c
	}
	hash := func(key string) string {
		h, err := identity.Hash(identity.NewSecret(key))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	c.Keys = []identity.Key{
		{Name: "alice", Tenant: "team-a", Hash: hash(aliceKey), Classes: []string{"interactive", "batch", "elsewhere"}, Header: true, ServiceTier: true},
		{Name: "bob", Tenant: "team-b", Hash: hash(bobKey), Classes: []string{"batch"}},
	}
	return c
}

// newRig starts a gateway. It must run in a bubble of testing/synctest unless
// the setup has a listener of its own.
func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&s.limits.HeaderTimeout, 10*time.Second)
	def(&s.limits.BodyTimeout, time.Minute)
	def(&s.limits.ClientStall, 30*time.Second)
	def(&s.idle, 2*time.Minute)
	def(&s.wait, 5*time.Second)
	if s.limits.BodyBytes == 0 {
		s.limits.BodyBytes = 1 << 20
	}
	if s.limits.HeaderBytes == 0 {
		s.limits.HeaderBytes = 64 << 10
	}
	if s.limits.Connections == 0 {
		s.limits.Connections = 256
	}
	if s.slots == 0 {
		s.slots = 4
	}
	r := &rig{t: t, log: &logBuffer{}, served: make(chan error, 1)}
	if r.engine = enginetest.New(t, s.engine); s.beside != nil {
		r.engine = s.beside.engine
	}
	ec := r.engine.Config()
	ec.APIKey = identity.NewSecret(engineKey)
	if s.engine.KVTokens == 0 {
		s.engine.KVTokens = 16384
	}
	// Not every kind says so itself.
	ec.Capabilities.Slots, ec.Capabilities.KVTokens = s.slots, s.engine.KVTokens
	adapter, err := adapters.New(ec.Kind, ec)
	if err != nil {
		t.Fatal(err)
	}
	if s.wrap != nil {
		adapter = s.wrap(adapter)
	}
	r.metrics = prometheus.NewRegistry()
	counted := relay.NewMetrics(r.metrics)
	log := slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var replica control.ID
	if s.fleet != nil {
		replica = replicaID(cmp.Or(s.fleet.Replica, "a"))
		s.fleet.Pools, s.fleet.Log = func() []*relay.Pool { return []*relay.Pool{r.pool} }, log
	}
	r.pool = relay.New(relay.Config{
		Name: "main", Observe: s.observe, Replan: s.replan, Replica: replica, Journal: s.journal, Limits: s.tenants, Models: s.models, Classes: []string{"interactive", "batch"}, Capacity: 256,
		Engines:     []relay.Engine{{Name: "gpu0", Adapter: adapter, ObserveEvery: 250 * time.Millisecond, Priority: []int{0, 10}}},
		IdleTimeout: s.idle, Keepalive: s.keepalive, MaxAnswer: 1 << 20, Start: time.Now(), Log: log, Metrics: counted,
		Resolve: func(engines []admission.EngineSpec) (*admission.Table, error) {
			t := &admission.Table{Engines: engines}
			envelope := t.Envelope()
			floor := admission.Of(max(envelope[admission.Slots]*3/4, 1), envelope[admission.KV]*3/4)
			for _, c := range []admission.ClassSpec{{Name: "interactive", Floor: floor}, {Name: "batch"}} {
				c.Ceiling, c.IdleAfter, c.DefaultOut = envelope, 2*time.Second, 64
				c.Depth, c.TenantDepth, c.MaxWait = s.depth, s.tenant, s.wait
				if c.Name == "interactive" {
					c.Objective = s.objective
				}
				if s.reclaim && c.Name == "batch" {
					c.Mode = admission.ReclaimNow
				}
				t.Classes = append(t.Classes, c)
			}
			return t, nil
		},
	})
	r.metrics.MustRegister(relay.NewCollector(func() []*relay.Pool { return []*relay.Pool{r.pool} }))
	callers := testIdentity(t, s.anonymous)
	if s.slo {
		callers.Keys[0].SLOHeaders, callers.Keys[0].SLOMin = true, identity.SLOMin{TTFT: 100 * time.Millisecond}
	}
	if s.callers != nil {
		s.callers(&callers)
	}
	auth, err := identity.New(callers, claimed{})
	if err != nil {
		t.Fatal(err)
	}
	r.gateway = New(Config{
		Limits: s.limits, Auth: auth, Pools: []*relay.Pool{r.pool}, Forward: s.forward, Fleet: s.fleet, Batches: s.batches, Tenants: s.tenants, Audit: s.audit.writer(t), Log: log, Metrics: r.metrics, Relay: counted,
	})

	l := s.listener
	r.dial = s.dial
	if l == nil {
		mem := enginetest.NewListener()
		l, r.dial = mem, mem.DialContext
	}
	go func() { r.served <- r.gateway.Serve(l) }()
	r.client = &http.Client{Transport: &http.Transport{DialContext: r.dial, DisableCompression: true, ExpectContinueTimeout: time.Hour, MaxIdleConnsPerHost: 64}}
	ctx, stop := context.WithCancel(context.Background())
	followed := make(chan struct{})
	if s.noEngine {
		r.engine.Close()
	}
	go func() { r.pool.Run(ctx); close(followed) }()
	t.Cleanup(func() {
		stop()
		<-followed
		r.drain(0)
		r.client.CloseIdleConnections()
	})
	if s.listener == nil {
		synctest.Wait()
	} else {
		for !s.noEngine && (s.fleet == nil && r.pool.Ready() != nil || r.pool.Snapshot() == nil) {
			time.Sleep(time.Millisecond) // the engine is asked in real time here
		}
	}
	return r
}

// drain stops the gateway once, whoever asks first.
func (r *rig) drain(after time.Duration) (ended int) {
	r.drained.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		ended = r.gateway.Drain(ctx)
		if err := <-r.served; err != nil {
			r.t.Errorf("serve: %v", err)
		}
	})
	return ended
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, s setup, test func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t, s)) })
}

// request builds one. Headers come in pairs; a key of alice's is sent unless
// they have an Authorization, and an empty value leaves a header out.
func (r *rig) request(method, path, body string, headers ...string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://gateway.test"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+aliceKey)
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

func (r *rig) do(req *http.Request) *http.Response {
	r.t.Helper()
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

func (r *rig) send(method, path, body string, headers ...string) answer {
	r.t.Helper()
	return r.whole(r.do(r.request(method, path, body, headers...)))
}

func (r *rig) whole(res *http.Response) answer {
	r.t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Errorf("reading the answer: %v", err)
	}
	_ = res.Body.Close()
	return answer{res.StatusCode, res.Header, string(body)}
}

// start sends a request whose answer comes later.
func (r *rig) start(method, path, body string, headers ...string) <-chan answer {
	r.t.Helper()
	req, done := r.request(method, path, body, headers...), make(chan answer, 1)
	go func() {
		res, err := r.client.Do(req)
		if err != nil {
			done <- answer{body: err.Error()}
			return
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			body = append(body, "; then "+err.Error()...)
		}
		_ = res.Body.Close()
		done <- answer{res.StatusCode, res.Header, string(body)}
	}()
	return done
}

const (
	chat        = "/v1/chat/completions"
	completions = "/v1/completions"
)

func chatBody(extra string) string {
	return `{"model":"test-model","messages":[{"role":"user","content":"hello"}]` + extra + `}`
}

// stream opens one and returns it with its call at the engine.
func (r *rig) stream(headers ...string) (*http.Response, *enginetest.Call) {
	r.t.Helper()
	got := make(chan *http.Response, 1)
	req := r.request("POST", chat, chatBody(`,"stream":true`), headers...)
	go func() {
		res, err := r.client.Do(req)
		if err != nil {
			r.t.Error(err)
		}
		got <- res
	}()
	call := r.engine.Accept(r.t)
	call.Emit(1)
	res := <-got
	r.t.Cleanup(func() { _ = res.Body.Close() })
	if first := readEvent(r.t, res.Body); !strings.Contains(first, "w1 ") {
		r.t.Fatalf("first event: %q", first)
	}
	return res, call
}

// readEvent reads up to a blank line, byte by byte, so that nothing of the next
// event is taken.
func readEvent(t testing.TB, in io.Reader) string {
	t.Helper()
	var b []byte
	one := make([]byte, 1)
	for !strings.HasSuffix(string(b), "\n\n") {
		if _, err := in.Read(one); err != nil {
			t.Fatalf("after %q: %v", b, err)
		}
		b = append(b, one[0])
	}
	return string(b)
}

// refusal is an error's body.
type refusal struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

// documented fails unless a body is an error of the documented table, with its
// status and type, and returns it.
func documented(t *testing.T, status int, body string) refusal {
	t.Helper()
	var e refusal
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Error.Code == nil || e.Error.Message == "" {
		t.Fatalf("status %d: no error body: %v: %q", status, err, body)
	}
	if !slices.ContainsFunc(wire.Table(), func(r wire.Row) bool {
		return r.Code == *e.Error.Code && r.Status == status && r.Type == e.Error.Type
	}) {
		t.Errorf("%d %s %s is not in the documented table", status, e.Error.Type, *e.Error.Code)
	}
	return e
}

// quiet fails unless the pool holds nothing and nothing waits.
func (r *rig) quiet() {
	r.t.Helper()
	time.Sleep(10 * time.Second) // confirmations take a few samples
	synctest.Wait()
	s := r.pool.Snapshot()
	if s.Used.Slots != 0 || s.Used.KV != 0 || len(s.Holds) != 0 {
		r.t.Errorf("capacity is still held:\n%s", s)
	}
	for _, c := range s.Classes {
		if c.Queue != 0 {
			r.t.Errorf("class %s: %d wait", c.Name, c.Queue)
		}
	}
}

func sleep(ms int) { time.Sleep(time.Duration(ms) * time.Millisecond) }

// loanable waits until an idle class lends.
func (r *rig) loanable() { time.Sleep(5 * time.Second) }
