package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"headgate/admission"
	"headgate/egress"
	"headgate/engine"
	"headgate/engine/adapters"
)

// Engine is an engine as it is configured.
type Engine struct {
	Name string
	// Config is how it is spoken to. Its Capabilities are those that it says itself.
	Config engine.Config
	// Said is what the configuration says that it is.
	Said engine.Override
	// Every is how often its load is read.
	Every time.Duration
	// Planned tells that its slots, KV and context change with its serving profile, of which
	// the configuration has the numbers.
	Planned bool
	// Complete adds what a profile knows, and calls amiss for what contradicts it; nil: there
	// is no profile.
	Complete func(c engine.Capabilities, amiss func(what string)) engine.Capabilities
}

// Pool is a pool as it is configured.
type Pool struct {
	Name    string
	Engines []Engine
	Models  []string // names and beginnings of names with a *
	Aliases []Alias
	// Fits tells whether what classes are promised fits what was found; nil: it does.
	Fits func([]admission.EngineSpec) error
}

// Alias is a further name of a model.
type Alias struct{ Name, Model string }

// Check looks at a pool's engines, beside each other.
func (p *Pool) Check() Check {
	return Check{Of: "pool " + p.Name, Run: p.run}
}

func (p *Pool) run(ctx context.Context, r *Reporter) {
	found := make([]*engine.Capabilities, len(p.Engines))
	var all sync.WaitGroup
	for i := range p.Engines {
		all.Go(func() { found[i] = p.Engines[i].look(ctx, r) })
	}
	all.Wait()
	// Engines that were looked at beside each other are told of in their order.
	order := map[string]int{}
	for i := range p.Engines {
		order[p.Engines[i].of()] = i
	}
	r.mu.Lock()
	slices.SortStableFunc(r.found, func(a, b Finding) int { return cmp.Compare(order[a.Of], order[b.Of]) })
	r.mu.Unlock()
	var served []string
	var specs []admission.EngineSpec
	whole := true
	for i, c := range found {
		if c == nil {
			whole = false
			continue
		}
		for _, m := range c.Models {
			served = append(served, m.ID)
		}
		if c.Slots < 1 || c.KVTokens < 1 {
			whole = false
		}
		specs = append(specs, admission.EngineSpec{
			Name: p.Engines[i].Name, Slots: int64(c.Slots), KV: int64(c.KVTokens), Block: max(int64(c.BlockSize), 1), MaxContext: int64(c.MaxContext),
			Ordered: c.Priority, Fatal: c.Fatal,
		})
	}
	if whole && p.Fits != nil {
		if err := p.Fits(specs); err != nil {
			r.Found(PoolFits, err.Error(), "lower the floors, or give them as shares such as 75%; or give the engines more")
		}
	}
	if slices.Contains(found, nil) {
		return // what is missing may be the model
	}
	for _, m := range p.Models {
		begin, any := strings.CutSuffix(m, "*")
		if !slices.ContainsFunc(served, func(s string) bool { return s == m || any && strings.HasPrefix(s, begin) }) {
			r.Found(ModelUnknown, fmt.Sprintf("%s is in models; the engines list %s", m, listed(served)),
				"write a name that the engines list, or start an engine with it; as it is, the name stands for the first model that each lists")
		}
	}
	for _, a := range p.Aliases {
		if !slices.Contains(served, a.Model) {
			r.Found(AliasUnknown, fmt.Sprintf("alias %s is for %s; the engines list %s", a.Name, a.Model, listed(served)), "give the alias a model that the engines list")
		}
	}
}

// listed are some names.
func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) > 8 {
		return strings.Join(names[:8], ", ") + fmt.Sprintf(" and %d more", len(names)-8)
	}
	return strings.Join(names, ", ")
}

func (e *Engine) of() string { return "engine " + e.Name }

// look says what is wrong with an engine, and returns what it is by its own word, the
// configuration's and its profile's; nil: nobody can tell.
func (e *Engine) look(ctx context.Context, r *Reporter) *engine.Capabilities {
	bad := func(k *Kind, evidence, do string) { r.FoundOf(e.of(), k, evidence, do) }
	if _, err := e.Config.Key(); err != nil {
		return nil // which is a variable that is not set
	}
	a, err := adapters.New(e.Config.Kind, e.Config)
	if err != nil {
		bad(CertUnusable, err.Error(), "name files in PEM that this user may read, in tls of the engine")
		return nil
	}
	defer a.Close()
	seen, err := adapters.Recognise(ctx, e.Config)
	if err != nil {
		k, do := e.unreached(err)
		bad(k, err.Error(), do)
		return nil
	}
	e.clock(seen, bad)
	asked, status := "/v1/models", seen.Models
	if !keyless(status) && e.Config.Kind == engine.LlamaCpp {
		// It shows its models to everybody, and the rest to who has the key.
		asked, status = "/props", seen.Props
	}
	if keyless(status) {
		evidence, do := fmt.Sprintf("GET %s: status %d", asked, status), "name the variable with its key by api_key_env"
		if e.Config.APIKeyEnv != "" {
			do = fmt.Sprintf("set variable %s to the key that the engine was started with (vLLM's and llama-server's --api-key)", e.Config.APIKeyEnv)
		}
		bad(EngineKey, evidence, do)
		return nil
	}
	if seen.Kind != "" && seen.Kind != e.Config.Kind {
		evidence, do := fmt.Sprintf("kind is %s, and it answers as %s does: %s", e.Config.Kind, seen.Kind, seen.By), fmt.Sprintf("write kind: %s", seen.Kind)
		if e.Config.Kind == engine.OpenAI {
			bad(EngineKindPlain, evidence, do+", so that its load is seen and its slots and KV are known")
		} else {
			bad(EngineKind, evidence, do)
			return nil
		}
	}
	o := e.load(ctx, a, bad)
	if o == nil {
		return nil
	}
	said, err := a.Capabilities(ctx)
	if err != nil {
		bad(EngineAnswers, err.Error(), fmt.Sprintf("see that %s is the engine itself, of kind %s, and not a page or a proxy before it", e.Config.URL, e.Config.Kind))
		return nil
	}
	if len(said.Models) == 0 {
		bad(EngineModels, "GET /v1/models lists none", "start the engine with a model")
	}
	if seen.Slots > 0 && said.Slots == 0 {
		said.Slots = seen.Slots
	}
	e.judge(&said, seen.Ordered, bad)
	if e.Said.Slots > 0 && said.Slots == 0 && o.Running > e.Said.Slots {
		bad(EngineSlotsFewer, fmt.Sprintf("slots: %d, and it runs %d now", e.Said.Slots, o.Running), "set slots to what the engine was started with (vLLM's --max-num-seqs)")
	}
	whole := e.Said.Apply(said)
	if e.Complete != nil {
		whole = e.Complete(whole, func(what string) {
			bad(EngineProfile, what, "probe the engine anew: headgate probe --url "+e.Config.URL+" --kind "+string(e.Config.Kind)+" --yes --out FILE")
		})
	}
	if whole.Slots < 1 && !e.Planned {
		bad(EngineSlotsUnknown, "slots is absent, and the engine does not say", "set slots to what the engine was started with (vLLM's --max-num-seqs); without it the pool does not get ready")
	}
	if whole.KVTokens < 1 && !e.Planned {
		bad(EngineKVUnknown, "kv_tokens is absent, and the engine does not say", "set kv_tokens to what its log says at its start; without it the pool does not get ready")
	}
	return &whole
}

// keyless tells whether a status says that the key is not the engine's.
func keyless(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// unreached tells what it means that an engine was not reached.
func (e *Engine) unreached(err error) (*Kind, string) {
	switch {
	case errors.As(err, new(*egress.Error)):
		return EngineAway, "allow_link_local: true, if the engine is there indeed"
	case untrusted(err):
		return EngineTLS, "name the authority by tls.ca and, where the certificate is for another name, that by tls.server_name"
	case errors.As(err, new(*net.DNSError)):
		return EngineAway, "write a host in url that this machine can resolve"
	case errors.Is(err, context.DeadlineExceeded):
		return EngineAway, "see that the engine runs and that no firewall is between; a full one answers within seconds"
	}
	return EngineAway, "start the engine, or write its address in url; in a container 127.0.0.1 is the container itself"
}

// untrusted tells whether https failed, and not the way to it.
func untrusted(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, new(x509.HostnameError)) || errors.As(err, new(x509.CertificateInvalidError)) || errors.As(err, new(tls.RecordHeaderError)) ||
		strings.Contains(err.Error(), "remote error: tls: ") || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// load reads the engine's load, twice if the first time was slow; nil: it can't be gone on
// with.
func (e *Engine) load(ctx context.Context, a engine.Adapter, bad func(k *Kind, evidence, do string)) *engine.Observation {
	most := max(e.Every, leastSlow)
	began := time.Now()
	o := a.Observe(ctx)
	took := time.Since(began)
	if took > most {
		began = time.Now()
		o = a.Observe(ctx)
		took = min(took, time.Since(began))
	}
	switch {
	case o.State == engine.Loading:
		bad(EngineNotReady, "it says that it is loading", "wait for its model to be loaded")
		return nil
	case o.State != engine.Ready:
		bad(EngineNotReady, fmt.Sprintf("%v: %v", o.State, o.Err), "see the engine's log")
		return nil
	case o.Err != nil:
		bad(EngineMetrics, o.Err.Error(), e.metricsOn())
	case e.Config.Kind != engine.OpenAI && (o.Running < 0 || o.Progress < 0):
		bad(EngineMetrics, "its metrics are off", e.metricsOn())
	}
	if took > most {
		bad(EngineSlow, fmt.Sprintf("it took %v, and observe_every is %v", took.Round(time.Millisecond), e.Every), "see what else the engine's machine does, or raise observe_every")
	}
	return &o
}

// leastSlow is what a busy machine may take to answer.
const leastSlow = time.Second

// metricsOn is how an engine is made to tell its load.
func (e *Engine) metricsOn() string {
	return map[engine.Kind]string{
		engine.VLLM:     "start vLLM without --disable-log-stats, and see that /metrics of its address is its own",
		engine.SGLang:   "start SGLang with --enable-metrics",
		engine.LlamaCpp: "start llama-server with --metrics and without --no-slots",
	}[e.Config.Kind] + "; without it foreign load is not seen and the end of an abort is only waited for"
}

// judge compares what is configured with what the engine says. ordered is whether it says
// that it orders by priority; nil: it does not say.
func (e *Engine) judge(said *engine.Capabilities, ordered *bool, bad func(k *Kind, evidence, do string)) {
	type number struct {
		key              string
		configured, said int
		more, fewer      *Kind
		low              string
	}
	for _, n := range []number{
		{"slots", e.Said.Slots, said.Slots, EngineSlotsMore, EngineSlotsFewer, "what is beyond lies idle"},
		{"kv_tokens", e.Said.KVTokens, said.KVTokens, EngineKVMore, EngineKVFewer, "what is beyond is used by nobody"},
		{"max_context", e.Said.MaxContext, said.MaxContext, EngineContext, nil, ""},
		{"block_size", e.Said.BlockSize, said.BlockSize, EngineBlock, EngineBlock, ""},
	} {
		k, why := n.more, "or start the engine with more"
		if n.key == "kv_tokens" && e.Config.Kind == engine.LlamaCpp && n.configured > n.said && n.configured <= said.Slots*said.MaxContext {
			// It tells a slot's context, which is all of a pool that slots share, or the slot's
			// part of one that is divided: which it is, a probe finds.
			continue
		}
		if n.key == "kv_tokens" && e.Config.Kind == engine.VLLM && n.configured > n.said && n.configured-n.said <= said.BlockSize {
			// vLLM's log counts the block that it keeps for itself, and the adapter does not.
			continue
		}
		switch {
		case n.configured == 0 || n.said == 0 || n.configured == n.said:
			continue
		case n.configured < n.said:
			k, why = n.fewer, "unless that is meant: "+n.low
		}
		if k == nil {
			continue
		}
		if k == EngineBlock {
			why = "and reservations are rounded as the engine does"
		}
		bad(k, fmt.Sprintf("%s: %d, and the engine says %d", n.key, n.configured, n.said), fmt.Sprintf("write %s: %d, or leave it out, %s", n.key, n.said, why))
	}
	if on := e.Said.PrefixCache; on != nil && *on && !said.PrefixCache && e.tellsPrefix(said) {
		bad(EnginePrefix, "prefix_caching: true, and the engine says that it is off", "start the engine with it (vLLM's --enable-prefix-caching), or leave prefix_caching out")
	}
	if e.Config.Kind == engine.SGLang {
		ordered = &said.Priority
	}
	if on := e.Said.Priority; on != nil && *on && ordered != nil && !*ordered {
		bad(EnginePriority, "priority: true, and the engine says that it takes requests in their order", "start the engine with priorities (vLLM's --scheduling-policy priority, SGLang's --enable-priority-scheduling), or leave priority out")
	}
}

// tellsPrefix tells whether the engine says at all that it caches prefixes: vLLM does in its
// metrics, beside its KV.
func (e *Engine) tellsPrefix(said *engine.Capabilities) bool {
	return e.Config.Kind == engine.SGLang || e.Config.Kind == engine.VLLM && said.KVTokens > 0
}

// engineClock is how far an engine's clock may be off: nothing is decided by it, but logs and
// traces are laid beside each other.
const engineClock = 10 * time.Second

func (e *Engine) clock(seen adapters.Seen, bad func(k *Kind, evidence, do string)) {
	if off, ok := skew(seen.Date, seen.Sent, seen.Answered, engineClock); ok {
		bad(EngineClock, off, "have both machines keep their time (chrony, systemd-timesyncd): their logs and traces can't be laid beside each other")
	}
}
