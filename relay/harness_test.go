package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a pool over fake engines, in one synctest bubble.
type rig struct {
	t       testing.TB
	pool    *Pool
	metrics *prometheus.Registry
	engines []*enginetest.Engine
	stop    context.CancelFunc
	stopped chan struct{}
	writer  *journal.Writer
	lines   bytes.Buffer // the journal's, once it is closed
	served  int
	last    *client
}

// options of a rig. The zero value is one vLLM of one slot and one class.
type options struct {
	engines   []enginetest.Options
	before    func(*enginetest.Engine) // the pool runs
	configure func(*engine.Config)
	pool      func(*Config)
	classes   []admission.ClassSpec
	resolve   func([]admission.EngineSpec) (*admission.Table, error)
}

// neverContinued makes an engine's answers start over when they are interrupted.
func neverContinued(c *engine.Config) {
	no := false
	c.Capabilities.TokenIDs, c.Capabilities.TextCompletions, c.Capabilities.FinalMessage = &no, &no, engine.FinalTurn
}

const (
	observeEvery = 250 * time.Millisecond
	idleTimeout  = time.Minute
)

// loose is a class without any limit but the envelope.
func loose(name string) admission.ClassSpec {
	return admission.ClassSpec{Name: name, Ceiling: admission.Of(1<<20, 1<<30), IdleAfter: time.Minute, Depth: 1 << 10, DefaultOut: 64}
}

// resolveTo makes tables of the classes.
func resolveTo(classes []admission.ClassSpec) func([]admission.EngineSpec) (*admission.Table, error) {
	return func(specs []admission.EngineSpec) (*admission.Table, error) {
		table := &admission.Table{Engines: specs, Classes: append([]admission.ClassSpec(nil), classes...)}
		for k := range table.Classes {
			c := &table.Classes[k]
			e := table.Envelope()
			for r := range c.Ceiling {
				c.Ceiling[r] = min(c.Ceiling[r], e[r])
			}
		}
		var wrong error
		table.Validate(func(path string, value any, allowed string) {
			wrong = errors.Join(wrong, fmt.Errorf("%s is %v, must be %s", path, value, allowed))
		})
		return table, wrong
	}
}

func newRig(t testing.TB, o options) *rig {
	t.Helper()
	if o.engines == nil {
		o.engines = []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}
	}
	if o.classes == nil {
		o.classes = []admission.ClassSpec{loose("interactive")}
	}
	if o.resolve == nil {
		o.resolve = resolveTo(o.classes)
	}
	g := &rig{t: t, metrics: prometheus.NewRegistry(), stopped: make(chan struct{})}
	start := time.Now()
	g.writer = journal.NewWriter(&g.lines, journal.Options{Buffer: 1 << 14, Start: start})
	cfg := Config{
		Name: "main", Capacity: 1 << 10, IdleTimeout: idleTimeout, MaxAnswer: 1 << 20, Start: start,
		Journal: g.writer, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Metrics: NewMetrics(g.metrics), Resolve: o.resolve,
	}
	for _, c := range o.classes {
		cfg.Classes = append(cfg.Classes, c.Name)
	}
	for i, eo := range o.engines {
		e := enginetest.New(t, eo)
		g.engines = append(g.engines, e)
		ec := e.Config()
		// vLLM does not say how many sequences it runs.
		ec.Capabilities.Slots = eo.Slots
		if eo.Kind == engine.OpenAI {
			ec.Capabilities.KVTokens, ec.Capabilities.MaxContext = 16384, 4096
		}
		if o.configure != nil {
			o.configure(&ec)
		}
		a, err := adapters.New(ec.Kind, ec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		re := Engine{Name: fmt.Sprintf("e%d", i), Adapter: a, ObserveEvery: observeEvery}
		for k := range o.classes {
			re.Priority = append(re.Priority, 10*k)
		}
		cfg.Engines = append(cfg.Engines, re)
		if o.before != nil {
			o.before(e)
		}
	}
	if o.pool != nil {
		o.pool(&cfg)
	}
	g.pool = New(cfg)
	g.metrics.MustRegister(NewCollector(func() []*Pool { return []*Pool{g.pool} }))
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	go func() {
		g.pool.Run(ctx)
		close(g.stopped)
	}()
	t.Cleanup(func() { g.events() })
	settle()
	return g
}

// settle lets everything that can happen now happen.
func settle() { synctest.Wait() }

// pass lets time pass, and everything happen that it brings.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// events stops the pool and returns its journal.
func (g *rig) events() []journal.Event {
	g.stop()
	<-g.stopped
	g.pool.Drain(context.Background())
	if err := g.writer.Close(); err != nil {
		g.t.Error(err)
	}
	if n := g.writer.Stats().Dropped; n > 0 {
		g.t.Errorf("%d events were dropped", n)
	}
	r := journal.NewReader(bytes.NewReader(g.lines.Bytes()))
	var all []journal.Event
	for {
		var e journal.Event
		switch err := r.Next(&e); {
		case err == io.EOF:
			return all
		case err != nil:
			g.t.Error(err)
			return all
		}
		all = append(all, e)
	}
}

// story is a request's journal in short: kinds, with causes.
func story(events []journal.Event, request string) string {
	var b strings.Builder
	for _, e := range events {
		if e.Request != request {
			continue
		}
		fmt.Fprintf(&b, " %s", e.Kind)
		if e.Cause != "" {
			fmt.Fprintf(&b, "(%s)", e.Cause)
		}
	}
	return strings.TrimSpace(b.String())
}

// client is one call and what its client sees. It is its own sink.
type client struct {
	id     string
	cancel context.CancelFunc
	done   chan struct{}
	err    *wire.Error // after done

	onEvent func(n int) error // before the nth event, from 1

	mu        sync.Mutex
	got       bytes.Buffer // events, or the answer
	alive     int          // keep-alives
	events    int
	answers   int
	decisions []Decision
	over      bool // Serve has returned
	late      bool // the sink was used after that
}

func (c *client) use(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = c.late || c.over
	f()
}

func (c *client) Admitted(d Decision) { c.use(func() { c.decisions = append(c.decisions, d) }) }
func (c *client) Event(raw []byte) error {
	n := 0
	c.use(func() { c.events++; n = c.events })
	if c.onEvent != nil {
		if err := c.onEvent(n); err != nil {
			return err
		}
	}
	c.use(func() { c.got.Write(raw) })
	return nil
}
func (c *client) KeepAlive() error { c.use(func() { c.alive++ }); return nil }
func (c *client) Answer(body []byte) error {
	if c.onEvent != nil {
		if err := c.onEvent(1); err != nil {
			return err
		}
	}
	c.use(func() { c.answers++; c.got.Write(body) })
	return nil
}

func (c *client) Started() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events+c.alive+c.answers > 0
}

func (c *client) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got.String()
}

// sent is a request's body; options change it.
func sent(stream bool, more string) string {
	return fmt.Sprintf(`{"model":"test-model","messages":[{"role":"user","content":"hello"}],"stream":%t%s}`, stream, more)
}

func (g *rig) call(class, body string) *Call {
	g.t.Helper()
	req, err := wire.Parse(wire.Chat, []byte(body))
	if err != nil {
		g.t.Fatal(err)
	}
	g.served++
	return &Call{ID: fmt.Sprintf("req_%d", g.served), Request: req, Class: class, Tenant: "acme", Principal: "ann", Arrived: time.Now()}
}

// serve starts a call and lets it come as far as it comes.
func (g *rig) serve(class, body string, change ...func(*client)) *client {
	g.t.Helper()
	return g.start(class, body, g.pool.Serve, change...)
}

func (g *rig) start(class, body string, serve serving, change ...func(*client)) *client {
	g.t.Helper()
	c := g.begin(class, body, serve, change...)
	settle()
	return c
}

type serving func(context.Context, *Call, Sink) *wire.Error

func (g *rig) begin(class, body string, serve serving, change ...func(*client)) *client {
	g.t.Helper()
	call := g.call(class, body)
	ctx, cancel := context.WithCancel(context.Background())
	c := &client{id: call.ID, cancel: cancel, done: make(chan struct{})}
	g.last = c
	for _, f := range change {
		f(c)
	}
	go func() {
		defer close(c.done)
		defer cancel()
		err := serve(ctx, call, c)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err, c.over = err, true
	}()
	return c
}

// code is how the call ended: "" for a whole answer, "running" for not yet.
func (c *client) code() string {
	select {
	case <-c.done:
	default:
		return "running"
	}
	if c.err == nil {
		return ""
	}
	return c.err.Code
}

func (g *rig) wantCode(c *client, want string) {
	g.t.Helper()
	if got := c.code(); got != want {
		g.t.Errorf("%s: code %q, want %q", c.id, got, want)
	}
}

// wantEmpty says that nothing is held, owed or waiting.
func (g *rig) wantEmpty() {
	g.t.Helper()
	s := g.pool.Snapshot()
	if s.Used != (admission.AmountView{}) || len(s.Holds) > 0 || s.Ghosts > 0 || s.Loans > 0 {
		g.t.Errorf("the core still holds something:\n%s", s)
	}
	for _, c := range s.Classes {
		if c.Queue > 0 {
			g.t.Errorf("class %s: %d wait", c.Name, c.Queue)
		}
	}
	g.wantNoRecords()
}

func (g *rig) wantNoRecords() {
	g.t.Helper()
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	kept := 0
	for _, r := range g.pool.records {
		if r != nil {
			kept++
		}
	}
	if kept > 0 || len(g.pool.free) != g.pool.cfg.Capacity || g.pool.active != 0 {
		g.t.Errorf("%d records, %d of %d free, %d active", kept, len(g.pool.free), g.pool.cfg.Capacity, g.pool.active)
	}
}
