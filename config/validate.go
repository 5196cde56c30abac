package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"headgate/egress"
	"headgate/identity"
)

// Bounds of numbers; the products of what they bound stay within 64 bits.
const (
	maxPools    = 64
	maxEngines  = 64
	maxClasses  = 64
	maxSlots    = 1_000_000
	maxKV       = 1_000_000_000_000
	maxDuration = 24 * time.Hour
	maxWindow   = time.Hour
	maxReclaims = 10_000
	maxName     = 256 // bytes of a model's name
)

// validate checks every value, then the rules between them.
func (c *Config) validate(l *list) {
	c.version(l)
	c.listeners(l)
	c.Limits.validate(l.below("limits"))
	c.Log.Validate(l.below("log"))
	c.Journal.Validate(l.below("journal"))
	c.Identity.Validate(l.bad)
	c.Admin.validate(l)
	c.OTLP.validate(l)
	if c.Control != nil {
		c.Control.validate(l)
	}
	if i := slices.IndexFunc(c.Limits.Tenants, func(t TenantLimits) bool { return t.Balance != nil }); i >= 0 && c.Control != nil && c.Control.Store == StoreEtcd {
		l.warn(fmt.Sprintf("limits.tenants[%d].balance", i), "each replica has a balance of its own: refill each")
	}
	if c.Batch != nil {
		c.Batch.validate(l.below("batch"))
		if c.Control != nil && c.Control.Store == StoreEtcd && c.Batch.PostgresEnv == "" {
			l.warn("batch", "without postgres_env files and batches are this replica's own: a client has to come back to the replica that has them")
		}
	}
	if c.TLS != nil {
		c.TLS.Validate(l.below("tls"))
	}
	if c.Admin.TLS != nil {
		c.Admin.TLS.Validate(l.below("admin.tls"))
	}
	if c.Audit != nil {
		c.Audit.validate(l, c.OTLP.Endpoint != "")
	}
	if n := len(c.Pools); n < 1 || n > maxPools {
		l.bad("pools", n, fmt.Sprintf("1 to %d pools", maxPools))
	}
	pools, engines, models := unique{}, unique{}, unique{}
	for i := range c.Pools {
		p, at := &c.Pools[i], fmt.Sprintf("pools[%d]", i)
		pools.name(l, at+".name", p.Name)
		if p.Mode != ModeEnforce && p.Mode != ModeObserve {
			l.bad(at+".mode", p.Mode, "enforce or observe")
		}
		errors := Errors(l.problems)
		p.validate(l, at, engines)
		if p.Replan != nil && c.Control != nil {
			l.bad(at+".replan", "a mapping", "nothing "+inFleet+": replicas that share an engine can't each decide what it is")
		}
		c.shared(i, l, Errors(l.problems) == errors)
		for j, m := range p.Models {
			switch path := fmt.Sprintf("%s.models[%d]", at, j); {
			case m == "" || len(m) > maxName:
				l.bad(path, m, "a model name of 1 to 256 bytes")
			case strings.Contains(strings.TrimSuffix(m, "*"), "*"):
				l.bad(path, m, "a model name, or the beginning of one and a * behind it")
			default:
				models.add(l, path, m, "a model that no other pool answers to")
			}
		}
		p.aliases(l, at, models)
		if len(p.Models) == 0 && len(c.Pools) > 1 {
			l.warn(at, "models is absent, so which of several pools answers to a model depends on what the engines say")
		}
	}
	c.classesExist(l)
}

// aliases checks the further names of the pool's models. One that leads to another
// would name a model that no engine has.
func (p *Pool) aliases(l *list, at string, models unique) {
	for i, a := range p.Aliases {
		path := fmt.Sprintf("%s.aliases[%d]", at, i)
		if a.Name == "" || len(a.Name) > maxName || strings.Contains(a.Name, "*") {
			l.bad(path+".name", a.Name, "a model name of 1 to 256 bytes without *")
		} else {
			models.add(l, path+".name", a.Name, "a model that nothing else answers to")
		}
		switch other := slices.IndexFunc(p.Aliases, func(o Alias) bool { return o.Name == a.Model }); {
		case a.Model == "" || len(a.Model) > maxName:
			l.bad(path+".model", a.Model, "a model name of 1 to 256 bytes, as the engines list it")
		case other >= 0:
			l.bad(path+".model", a.Model, fmt.Sprintf("a model that the engines have; this is an alias, %s.aliases[%d]", at, other))
		}
	}
}

func (c *Config) listeners(l *list) {
	for _, a := range []struct{ path, addr string }{{"listen", c.Listen}, {"admin.listen", c.Admin.Listen}} {
		_, port, err := net.SplitHostPort(a.addr)
		if n, errPort := strconv.ParseUint(port, 10, 16); err != nil || errPort != nil || strconv.FormatUint(n, 10) != port {
			l.bad(a.path, a.addr, "host:port with a port of 0 to 65535, such as 127.0.0.1:8080")
		}
	}
	if _, port, _ := net.SplitHostPort(c.Listen); c.Listen == c.Admin.Listen && port != "0" {
		path, other := "admin.listen", "listen"
		if !l.src.says(path) {
			path, other = other, path
		}
		l.bad(path, c.Listen, "an address of its own: "+other+" has this one")
	}
}

func (a *Admin) validate(l *list) {
	identity.ValidateAdminKeys(a.Keys, l.below("admin"))
	switch host, _, err := net.SplitHostPort(a.Listen); {
	case a.Open && len(a.Keys) > 0:
		l.bad("admin.open", true, "false with keys: a listener that asks for one is not open")
	case err == nil && !identity.Loopback(host) && a.unasked():
		l.bad("admin.listen", a.Listen, allowedAdmin)
	}
}

// unasked tells whether the listener asks for no key without having been told to.
func (a *Admin) unasked() bool { return len(a.Keys) == 0 && !a.Open }

const allowedAdmin = "an address of the loopback, such as 127.0.0.1:9090, or any with admin.keys, or with admin.open: true if nobody but operators reaches it"

// Exposed is an error if others than this machine reach the admin listener at an
// address, and it would ask them for no key. Flags give addresses, and files that are
// read again give keys.
func (a *Admin) Exposed(listen string) error {
	if host, _, err := net.SplitHostPort(listen); err == nil && !identity.Loopback(host) && a.unasked() {
		return fmt.Errorf("admin listener: address %s: allowed is %s", listen, allowedAdmin)
	}
	return nil
}

func (o *OTLP) validate(l *list) {
	if o.Endpoint != "" {
		baseURL(l, "otlp.endpoint", o.Endpoint, "name the collector's headers by headers_env")
	}
	if s := o.HeadersEnv; s != "" && !envName(s) {
		l.bad("otlp.headers_env", identity.Redacted, allowedEnv)
	}
	duration(l.below("otlp"), "metrics_every", o.MetricsEvery, time.Second, time.Hour, false)
	if o.Queue < 16 || o.Queue > 1<<16 {
		l.bad("otlp.queue", o.Queue, "16 to 65536")
	}
}

func (m *Limits) validate(bad func(path string, value any, allowed string)) {
	if m.BodyBytes < 1*kib || m.BodyBytes > gib {
		bad("body_bytes", m.BodyBytes, "1KiB to 1GiB")
	}
	if m.HeaderBytes < 1*kib || m.HeaderBytes > mib {
		bad("header_bytes", m.HeaderBytes, "1KiB to 1MiB")
	}
	for _, d := range []struct {
		path string
		d    time.Duration
		zero bool // allowed
	}{
		{"header_timeout", m.HeaderTimeout, false}, {"body_timeout", m.BodyTimeout, false}, {"idle_timeout", m.IdleTimeout, false},
		{"client_stall_timeout", m.ClientStallTimeout, false}, {"keepalive", m.Keepalive, true}, {"drain_timeout", m.DrainTimeout, true},
	} {
		duration(bad, d.path, d.d, time.Millisecond, maxDuration, d.zero)
	}
	m.tenants(bad)
	if m.MaxConnections < 1 || m.MaxConnections > 1_000_000 {
		bad("max_connections", m.MaxConnections, "1 to 1000000")
	}
}

func duration(bad func(path string, value any, allowed string), path string, d, least, most time.Duration, zero bool) {
	if zero && d == 0 || d >= least && d <= most {
		return
	}
	allowed := formatDuration(least) + " to " + formatDuration(most)
	if zero {
		allowed = "0, or " + allowed
	}
	bad(path, formatDuration(d), allowed)
}

func (p *Pool) validate(l *list, at string, engines unique) {
	if n := len(p.Engines); n < 1 || n > maxEngines {
		l.bad(at+".engines", n, fmt.Sprintf("1 to %d engines", maxEngines))
	}
	for i := range p.Engines {
		path := fmt.Sprintf("%s.engines[%d]", at, i)
		engines.name(l, path+".name", p.Engines[i].Name)
		e := p.inProfile(p.Engines[i])
		e.validate(l, path)
	}
	profiles := p.Replan != nil && p.replanned(l, at)
	if p.Boundary < 0 || p.Boundary > 64 {
		l.bad(at+".boundary", p.Boundary, "0 to 64 requests")
	}
	if errors := Errors(l.problems); p.Policy.validate(l, at+".") == errors && len(p.Classes) <= maxClasses {
		if profiles {
			p.checkProfiles(at+".", l)
		} else {
			p.check(at+".", p.Envelope(), l)
		}
	}
}

// validate checks a policy whose keys stand behind at. It returns how many errors
// the list has then.
func (p *Policy) validate(l *list, at string) (errors int) {
	if n := p.ReclaimsPerSecond; n < 0 || n > maxReclaims {
		l.bad(at+"reclaims_per_second", n, fmt.Sprintf("1 to %d, or 0 for no bound", maxReclaims))
	}
	if n := len(p.Classes); n < 1 || n > maxClasses {
		l.bad(at+"classes", n, fmt.Sprintf("1 to %d classes", maxClasses))
	}
	classes := unique{}
	for i := range p.Classes {
		path := fmt.Sprintf("%sclasses[%d]", at, i)
		classes.name(l, path+".name", p.Classes[i].Name)
		p.Classes[i].validate(l, path)
	}
	return Errors(l.problems)
}

func (e *Engine) validate(l *list, at string) {
	kinds := []string{KindVLLM, KindSGLang, KindLlamaCpp, KindOpenAI}
	if !slices.Contains(kinds, e.Kind) {
		l.bad(at+".kind", e.Kind, strings.Join(kinds, ", "))
	}
	e.address(l, at)
	if s := e.APIKeyEnv; s != "" && !envName(s) {
		// What stands where a variable's name should may be the key itself.
		l.bad(at+".api_key_env", identity.Redacted, allowedEnv)
	}
	for _, n := range []struct {
		key         string
		value, most int64
	}{
		{"slots", e.Slots, maxSlots}, {"kv_tokens", e.KVTokens, maxKV}, {"block_size", e.BlockSize, 65536}, {"max_context", e.MaxContext, maxKV},
	} {
		if n.value < 0 || n.value > n.most {
			l.bad(at+"."+n.key, n.value, fmt.Sprintf("1 to %d, or absent", n.most))
		}
	}
	if e.Kind == KindOpenAI {
		for _, n := range []struct {
			key   string
			value int64
		}{{"slots", e.Slots}, {"kv_tokens", e.KVTokens}} {
			if n.value == 0 {
				l.bad(at+"."+n.key, "nothing", "a number: an engine of kind openai does not say")
			}
		}
	}
	if e.Kind == KindVLLM && e.Slots == 0 && e.Profile == "" {
		l.warn(at, "slots is absent, and vLLM says its --max-num-seqs in development mode only: without it the pool is not ready, as /readyz then says")
	}
	if s := e.ContinueChats; s != "" && s != ContinueNone && s != ContinueTrailing && s != ContinueFlags {
		l.bad(at+".continue_chats", s, "none, trailing or flags, or absent")
	}
	if e.KVTokens > 0 && e.BlockSize > e.KVTokens {
		l.bad(at+".block_size", e.BlockSize, fmt.Sprintf("at most kv_tokens, %d", e.KVTokens))
	}
	duration(l.below(at), "observe_every", e.ObserveEvery, 20*time.Millisecond, time.Minute, false)
}

// Unset warns of keys that are in a variable that is not set where the
// configuration is checked: serve does not start without it. Problems are in the
// order of the file.
func (c *Config) Unset(getenv func(string) string) []Problem {
	l := &list{src: c.src}
	for i := range c.Pools {
		for j, e := range c.Pools[i].Engines {
			if e.APIKeyEnv != "" && getenv(e.APIKeyEnv) == "" {
				l.warn(fmt.Sprintf("pools[%d].engines[%d].api_key_env", i, j), "the variable is not set here, and serve does not start without it")
			}
		}
	}
	for i := range c.Pools {
		if c.Pools[i].Replan == nil {
			continue
		}
		for j, q := range c.Pools[i].Replan.Profiles {
			if q.Switch != nil && q.Switch.KeyEnv != "" && getenv(q.Switch.KeyEnv) == "" {
				l.warn(fmt.Sprintf("pools[%d].replan.profiles[%d].switch.key_env", i, j), "the variable is not set here, and serve does not start without it")
			}
		}
	}
	if c.Control != nil && c.Control.PasswordEnv != "" && getenv(c.Control.PasswordEnv) == "" {
		l.warn("control.password_env", "the variable is not set here, and serve does not start without it")
	}
	if c.Control != nil && c.Control.Forward != nil && len(getenv(c.Control.Forward.SecretEnv)) < LeastSecret {
		l.warn("control.forward.secret_env", fmt.Sprintf("the variable does not hold %d bytes or more here, and serve does not start without it", LeastSecret))
	}
	if c.Audit != nil && c.Audit.PostgresEnv != "" && getenv(c.Audit.PostgresEnv) == "" {
		l.warn("audit.postgres_env", "the variable is not set here, and serve does not start without it")
	}
	if v := c.OTLP.HeadersEnv; v != "" && getenv(v) == "" {
		l.warn("otlp.headers_env", "the variable is not set here, and serve does not start without it")
	}
	sortProblems(l.problems)
	return l.problems
}

// address checks the URL.
func (e *Engine) address(l *list, at string) {
	if e.URL == "" {
		l.bad(at+".url", "nothing", allowedURL)
		return
	}
	baseURL(l, at+".url", e.URL, "name the engine's key by api_key_env")
	u, err := url.Parse(e.URL)
	if err != nil {
		return
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && egress.Refused(ip) && !e.AllowLinkLocal {
		l.bad(at+".url", u.Hostname(), "an address that is not of the link or of a metadata service, unless allow_link_local: true")
	}
	if e.TLS != nil {
		if u.Scheme == "http" {
			l.bad(at+".tls", "a mapping", "nothing with an http URL")
		}
		e.TLS.Validate(l.below(at + ".tls"))
	}
}

const (
	allowedURL = "an http or https URL of scheme, host and port, and a path if the server has one"
	allowedEnv = "the name of an environment variable: letters, digits and '_', beginning with no digit"
)

// baseURL checks a URL to which paths that begin with /v1 are added; secret says
// where its secrets belong. A refused one may hold a password, so it is not
// repeated.
func baseURL(l *list, at, text, secret string) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Opaque != "":
		l.bad(at, identity.Redacted, allowedURL)
	case u.User != nil:
		l.bad(at, identity.Redacted, "a URL without user and password: "+secret)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		l.bad(at, identity.Redacted, "a URL without query and fragment")
	case strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/v1"), strings.HasSuffix(u.Path, "/v1/traces"):
		l.bad(at, text, "the URL without /v1, which is added")
	}
}

func envName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return len(s) <= 128
}

func (c *Class) validate(l *list, at string) {
	for _, a := range []struct {
		key string
		a   Amount
	}{{"floor", c.Floor}, {"unlent", c.Unlent}, {"ceiling", c.Ceiling}, {"headroom", c.Headroom}} {
		if a.a.Slots.n > maxSlots*maxEngines {
			l.bad(at+"."+a.key+".slots", a.a.Slots, fmt.Sprintf("at most %d", maxSlots*maxEngines))
		}
		if a.a.KVTokens.n > maxKV {
			l.bad(at+"."+a.key+".kv_tokens", a.a.KVTokens, fmt.Sprintf("at most %d", maxKV))
		}
	}
	if c.Floor.zero() {
		l.warn(at, fmt.Sprintf("class %s has no floor: nothing is protected for it, and it runs only on what others leave", show(c.Name)))
	}
	duration(l.below(at), "idle_after", c.IdleAfter, time.Millisecond, maxDuration, true)
	switch c.Reclaim {
	case ReclaimDeadline:
		if c.Deadline == 0 {
			l.bad(at+".deadline", "nothing", "the life of a loan, required for reclaim: deadline")
		} else {
			duration(l.below(at), "deadline", c.Deadline, time.Millisecond, maxDuration, false)
		}
	case ReclaimAttrition, ReclaimNow:
		if c.Deadline != 0 {
			l.bad(at+".deadline", formatDuration(c.Deadline), "nothing, except for reclaim: deadline")
		}
	default:
		l.bad(at+".reclaim", c.Reclaim, "attrition, deadline or reclaim")
	}
	c.guarantee(l, at)
	if c.Reopen != ReopenIdle && c.Reopen != ReopenSettled {
		l.bad(at+".reopen", c.Reopen, "idle or settled")
	}
	for _, d := range []struct {
		key string
		d   time.Duration
	}{
		{"grace", c.Grace}, {"keep_warm", c.KeepWarm},
		{"objective.ttft", c.Objective.TTFT}, {"objective.tpot", c.Objective.TPOT}, {"objective.e2e", c.Objective.E2E},
	} {
		duration(l.below(at), d.key, d.d, time.Millisecond, maxDuration, true)
	}
	if o := c.Objective; o.E2E > 0 && o.TTFT > o.E2E {
		l.bad(at+".objective.ttft", formatDuration(o.TTFT), "at most e2e, "+formatDuration(o.E2E))
	}
	for _, n := range []struct {
		key         string
		value       int64
		least, most int64
	}{
		{"queue.depth", int64(c.Queue.Depth), 0, 100_000}, {"queue.per_tenant", int64(c.Queue.PerTenant), 0, 100_000},
		{"priority", int64(c.Priority), -1_000_000, 1_000_000}, {"pin_after", int64(c.PinAfter), 0, 100},
		{"default_output", int64(c.DefaultOutput), 1, 10_000_000}, {"max_output", int64(c.MaxOutput), 0, 10_000_000},
	} {
		if n.value < n.least || n.value > n.most {
			l.bad(at+"."+n.key, n.value, fmt.Sprintf("%d to %d", n.least, n.most))
		}
	}
	duration(l.below(at), "queue.wait", c.Queue.Wait, time.Millisecond, maxDuration, true)
}

// guarantee checks how the floor is owed.
func (c *Class) guarantee(l *list, at string) {
	switch c.Guarantee {
	case GuaranteeInstant:
		if c.Window != 0 {
			l.bad(at+".window", formatDuration(c.Window), "nothing, except for guarantee: window")
		}
	case GuaranteeWindow:
		if c.Window == 0 {
			l.bad(at+".window", "nothing", "the time over which the floor is made good, required for guarantee: window")
		} else {
			duration(l.below(at), "window", c.Window, time.Second, maxWindow, false)
		}
		if !c.Unlent.zero() {
			l.bad(at+".unlent", c.Unlent, "nothing with guarantee: window, which keeps nothing at any one moment")
		}
		if !c.Floor.zero() && c.Floor.Slots.zero() {
			l.warn(at+".floor", fmt.Sprintf("class %s has no slots in its floor: what a window owes is counted in slots, so it is owed nothing", show(c.Name)))
		}
	default:
		l.bad(at+".guarantee", c.Guarantee, "instant or window")
	}
}

// zero tells whether nothing is meant.
func (q Quantity) zero() bool { return q.n == 0 && q.share == 0 }

// zero tells whether nothing of either resource is meant.
func (a Amount) zero() bool {
	return a.Slots.zero() && a.KVTokens.zero()
}

// classesExist checks the names by which keys, tiers and batches call classes, and
// leaves out defaults of tiers and batches that there are not.
func (c *Config) classesExist(l *list) {
	names := c.classes()
	if len(names) == 0 {
		return // which is reported, as the pools' fault
	}
	allowed := allowedClass(names)
	check := func(at string, classes []string) {
		for i, name := range classes {
			if !slices.Contains(names, name) {
				l.bad(fmt.Sprintf("%s.classes[%d]", at, i), name, allowed)
			}
		}
	}
	for i, k := range c.Identity.Keys {
		check(fmt.Sprintf("keys[%d]", i), k.Classes)
	}
	for i, r := range c.Identity.Rules {
		check(fmt.Sprintf("rules[%d]", i), r.Classes)
	}
	if a := c.Identity.Anonymous; a != nil {
		check("anonymous", a.Classes)
	}
	type named struct {
		path  string
		class *string
	}
	others := []named{{"service_tiers.flex", &c.Identity.Tiers.Flex}, {"service_tiers.priority", &c.Identity.Tiers.Priority}}
	if c.Batch != nil {
		others = append(others, named{"batch.class", &c.Batch.Class})
	}
	for _, t := range others {
		switch {
		case *t.class == "" || slices.Contains(names, *t.class):
		case l.src.says(t.path):
			l.bad(t.path, *t.class, allowed)
		default:
			*t.class = "" // the default is for files that have such a class
		}
	}
}

// classes are the names of all pools' classes.
func (c *Config) classes() (names []string) {
	for _, p := range c.Pools {
		for _, k := range p.Classes {
			if !slices.Contains(names, k.Name) {
				names = append(names, k.Name)
			}
		}
	}
	return names
}

func allowedClass(names []string) string { return "a class of some pool: " + strings.Join(names, ", ") }

// unique finds what is named twice.
type unique map[string]string // name to the path of the first

func (u unique) name(l *list, path, name string) {
	if !identity.ValidName(name) {
		l.bad(path, name, identity.NameRule)
		return
	}
	u.add(l, path, name, "a name of its own")
}

func (u unique) add(l *list, path, name, rule string) {
	if first, taken := u[name]; taken {
		l.bad(path, name, rule+"; "+first+" has this one")
		return
	}
	u[name] = path
}
