package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/admission"
	"headgate/config"
	"headgate/control"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/journal"
	"headgate/probe"
	"headgate/quota/keeper"
	"headgate/relay"
	"headgate/telemetry/otlp"
	"headgate/telemetry/spans"
	"headgate/wire"
)

// maxRunning bounds the requests that one pool runs at a time, beside those
// that wait in its queues; no engine of today comes near it.
const maxRunning = 8192

// shared is what all pools of a process have in common.
type shared struct {
	start   time.Time
	journal *journal.Writer // nil: none
	log     *slog.Logger
	metrics *relay.Metrics
	limits  *keeper.Keeper
	replica control.ID                     // zero: the process has its pools to itself
	unasked func(*relay.Call, *wire.Error) // nil: nobody writes down what batches come to
}

// poolConfig is what a pool of the configuration is made of, or changed to. Its
// engines have no adapters yet.
func poolConfig(cfg *config.Config, i int, s *shared) relay.Config {
	c := &cfg.Pools[i]
	rc := relay.Config{
		Name: c.Name, Models: c.Models, Capacity: maxRunning, Observe: c.Mode == config.ModeObserve,
		IdleTimeout: cfg.Limits.IdleTimeout, Keepalive: cfg.Limits.Keepalive, MaxAnswer: maxAnswer,
		Start: s.start, Journal: s.journal, Log: s.log, Metrics: s.metrics, Spans: cfg.Admin.OTLPTraces, Limits: s.limits,
		Resolve: func(engines []admission.EngineSpec) (*admission.Table, error) {
			t, err := table(&c.Policy, func(e config.Envelope) ([]config.Capacity, []config.Problem) { return cfg.Resolve(i, e) }, engines)
			if err == nil && cfg.Control != nil {
				// The leader would refuse it too, and not here, where it is looked for.
				_, err = fitting(cfg, i, sizes(engines))
			}
			return t, err
		},
		Replica: s.replica, Unasked: s.unasked,
	}
	if cfg.Control != nil {
		rc.ClockDrift, rc.Fingerprint = cfg.Control.ClockDrift.Fraction(), cfg.Fingerprint(i)
	}
	for _, a := range c.Aliases {
		rc.Aliases = append(rc.Aliases, relay.Alias(a))
	}
	for k := range c.Classes {
		rc.Classes = append(rc.Classes, c.Classes[k].Name)
		rc.Capacity += c.Classes[k].Queue.Depth
	}
	for k := range c.Engines {
		rc.Engines = append(rc.Engines, engineConfig(c, &c.Engines[k], s.log))
	}
	return rc
}

// newPoolConfig is poolConfig for a pool that is new: what needs a restart to change is
// made for those.
func newPoolConfig(cfg *config.Config, i int, s *shared) (rc relay.Config, err error) {
	rc = poolConfig(cfg, i, s)
	rc.Replan, err = replanConfig(&cfg.Pools[i])
	return rc, err
}

// sizes are what the engines that are known hold.
func sizes(engines []admission.EngineSpec) map[string]config.Envelope {
	all := map[string]config.Envelope{}
	for i := range engines {
		if e := &engines[i]; !e.Closed {
			all[e.Name] = config.Envelope{Slots: e.Slots, KVTokens: e.KV}
		}
	}
	return all
}

// spareQueue is how much deeper all queues of a pool together may become while the
// process runs.
const spareQueue = 1 << 13

// buildPool makes a pool. It knows nothing of its engines until it runs.
func buildPool(rc relay.Config) (*relay.Pool, error) {
	rc.Capacity += spareQueue
	for k := range rc.Engines {
		e := &rc.Engines[k]
		var err error
		if e.Adapter, err = e.Open(); err != nil {
			for _, opened := range rc.Engines[:k] {
				opened.Adapter.Close()
			}
			return nil, fmt.Errorf("pool %s: engine %s: %w", rc.Name, e.Name, err)
		}
	}
	return relay.New(rc), nil
}

// buildExporter makes the exporter that is configured; nil: there is none.
func buildExporter(c *config.OTLP, reg *prometheus.Registry, version string, start time.Time, log *slog.Logger) (*otlp.Exporter, error) {
	if c.Endpoint == "" {
		return nil, nil
	}
	oc := otlp.Config{
		Endpoint: strings.TrimSuffix(c.Endpoint, "/"), Traces: c.Traces, Metrics: c.Metrics, Logs: c.Logs, MetricsEvery: c.MetricsEvery,
		Gather: reg, Register: reg, Queue: c.Queue, Version: version, Start: start, Log: log,
	}
	if c.HeadersEnv != "" {
		var err error
		if oc.Headers, err = otlp.ParseHeaders(os.Getenv(c.HeadersEnv)); err != nil {
			return nil, fmt.Errorf("otlp.headers_env: variable %s: %w", c.HeadersEnv, err)
		}
	}
	return otlp.New(oc), nil
}

// takeSpans hands a span to the pool whose attempt it is of.
func takeSpans(pools func() []*relay.Pool) func(spans.Span) spans.Outcome {
	return func(s spans.Span) spans.Outcome {
		for _, p := range pools() {
			if o := p.Span(s); o != spans.Unknown {
				return o
			}
		}
		return spans.Unknown
	}
}

// maxAnswer bounds an answer that is collected for a client that does not want
// a stream, in bytes.
const maxAnswer = 64 << 20

func engineConfig(pool *config.Pool, c *config.Engine, log *slog.Logger) relay.Engine {
	ec := adapterConfig(c)
	ec.Capabilities = override(c)
	e := relay.Engine{
		Name: c.Name, Key: engineKey(*c), ObserveEvery: c.ObserveEvery, Boundary: int64(pool.Boundary),
		Open: func() (engine.Adapter, error) { return adapters.New(ec.Kind, ec) },
	}
	if c.Profile != "" {
		known := &knownEngine{pool: pool.Name, config: c, log: log}
		known.profile, known.err = probe.Load(c.Profile)
		e.Found = known.found
		open := e.Open
		e.Open = func() (engine.Adapter, error) {
			if known.err != nil {
				return nil, known.err
			}
			return open()
		}
	}
	for k := range pool.Classes {
		e.Priority = append(e.Priority, int(pool.Classes[k].Priority))
	}
	return e
}

// adapterConfig is how an engine is spoken to, without what the configuration says that
// it is.
func adapterConfig(c *config.Engine) engine.Config {
	var ec engine.Config
	ec.SetDefaults()
	ec.Kind, ec.URL, ec.APIKeyEnv = engine.Kind(c.Kind), c.URL, c.APIKeyEnv
	ec.TLS, ec.AllowLinkLocal = c.TLS, c.AllowLinkLocal
	return ec
}

// override is what the configuration says that an engine is.
func override(c *config.Engine) engine.Override {
	return engine.Override{
		Slots: int(c.Slots), KVTokens: int(c.KVTokens), BlockSize: int(c.BlockSize), MaxContext: int(c.MaxContext), Priority: c.Priority,
		PrefixCache: c.PrefixCaching, TextCompletions: c.ContinueCompletions, FinalMessage: engine.FinalMessage(c.ContinueChats),
	}
}

// engineKey is all that an adapter is made of.
func engineKey(c config.Engine) string {
	c.ObserveEvery = 0
	key, _ := json.Marshal(c) // of numbers, strings and flags
	return string(key)
}

// table is a policy's table for engines as they are; resolve turns its amounts
// into numbers.
func table(p *config.Policy, resolve func(config.Envelope) ([]config.Capacity, []config.Problem), engines []admission.EngineSpec) (*admission.Table, error) {
	t := &admission.Table{Engines: engines, StallShare: p.StallShare.Fraction(), ReclaimRate: p.ReclaimsPerSecond}
	for i := range engines {
		e := &engines[i]
		for _, n := range []struct {
			field string
			value int64
		}{{"slots", e.Slots}, {"kv_tokens", e.KV}} {
			if !e.Closed && n.value < 1 {
				return nil, fmt.Errorf("engine %s does not say its %s: set %s in the configuration", e.Name, n.field, n.field)
			}
		}
	}
	envelope := t.Envelope()
	shares, problems := resolve(config.Envelope{Slots: envelope[admission.Slots], KVTokens: envelope[admission.KV]})
	if shares == nil {
		first := slices.IndexFunc(problems, func(p config.Problem) bool { return !p.Warning })
		return nil, fmt.Errorf("the engines found do not fit the configuration: %v", problems[first])
	}
	for k := range shares {
		t.Classes = append(t.Classes, classSpec(&p.Classes[k], &shares[k]))
	}
	var wrong error
	t.Validate(func(path string, value any, allowed string) {
		if wrong == nil {
			wrong = fmt.Errorf("%s is %v, must be %s", path, value, allowed)
		}
	})
	return t, wrong
}

func classSpec(c *config.Class, s *config.Capacity) admission.ClassSpec {
	spec := admission.ClassSpec{
		Name: c.Name, Floor: amount(s.Floor), Unlent: amount(s.Unlent), Ceiling: amount(s.Ceiling), Headroom: amount(s.Headroom),
		IdleAfter: c.IdleAfter, Window: c.Window, Grace: c.Grace, KeepWarm: c.KeepWarm,
		Objective: admission.Objective{First: c.Objective.TTFT, Token: c.Objective.TPOT, Whole: c.Objective.E2E},
		Depth:     c.Queue.Depth, TenantDepth: c.Queue.PerTenant, MaxWait: c.Queue.Wait,
		DefaultOut: c.DefaultOutput, MaxOut: c.MaxOutput,
	}
	switch c.Reclaim {
	case config.ReclaimDeadline:
		spec.Mode, spec.LoanLife = admission.Deadline, c.Deadline
	case config.ReclaimNow:
		spec.Mode, spec.PinAfter = admission.ReclaimNow, c.PinAfter
	}
	if c.Reopen == config.ReopenSettled {
		spec.Reopen = admission.ReopenSettled
	}
	return spec
}

func amount(e config.Envelope) admission.Amount { return admission.Of(e.Slots, e.KVTokens) }
