package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"headgate/control"
	"headgate/control/etcd"
	"headgate/identity"
)

// Control says how replicas share the engines of all pools: by grants of one leader,
// kept in a store that all of them reach. Absent: this process has the engines to itself.
type Control struct {
	// Store is where grants, demand and members are kept: etcd, or memory, which only this process sees, to try a configuration with one replica.
	Store string `yaml:"store"`
	// Fleet is the fleet's name, by which its keys begin in etcd: /headgate/FLEET/. Those who share other engines need another.
	Fleet string `yaml:"fleet"`
	// Replica is this process's name in the fleet, which no other process may have at the same time; absent: the host's name. It should outlive a restart, or what survives of a replica stays reserved for a name that never comes back.
	Replica string `yaml:"replica,omitempty"`
	// Replicas is the most replicas there will be, 1 to 1000. Floors have to fit beside what survives of so many, and to be of use when they are split between so many. Absent: 16, or 1 with store: memory.
	Replicas int `yaml:"replicas,omitempty"`
	// Campaign is whether this process may lead the fleet. Say false where headgate controller does it.
	Campaign bool `yaml:"campaign"`
	// TTL is how long a lease lasts without news, 2s to 5m. So long a replica that is dead keeps its grants, and one that can't reach the store goes on. Raise it where the store may be away for longer.
	TTL time.Duration `yaml:"ttl"`
	// Heartbeat is how often a replica says what it uses though nothing has changed, 500ms to 5m, at most ttl.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Timeout bounds a request to the store, 100ms to 1m. Longer, a member that hangs is felt for longer; shorter than a few round trips with their writes to disk, what would have succeeded fails.
	Timeout time.Duration `yaml:"timeout"`
	// ClockDrift is the part of a lease's time by which the clocks of a replica and of the store may differ at its end, 0% to 50%. A replica stops so much earlier.
	ClockDrift Share `yaml:"clock_drift"`
	// Starve is for how long a request that has to borrow waits before it may have what other replicas of its class have borrowed beyond an equal share, 10ms to 1h.
	Starve time.Duration `yaml:"starve"`
	// Endpoints are the URLs of all members of etcd, such as http://127.0.0.1:2379; all http or all https.
	Endpoints []string `yaml:"endpoints,omitempty"`
	// Username to authenticate by, where etcd wants one.
	Username string `yaml:"username,omitempty"`
	// PasswordEnv names the environment variable that holds the user's password.
	PasswordEnv string `yaml:"password_env,omitempty"`
	// TLS says how etcd is spoken to by https; absent: by the system's authorities.
	TLS *ControlTLS `yaml:"tls,omitempty"`
	// Forward has requests that would have to wait here served by replicas that would start them at once; absent: they wait.
	Forward *Forward `yaml:"forward,omitempty"`
}

// SetDefaults suits etcd in the same network.
func (c *Control) SetDefaults() {
	*c = Control{
		Fleet: "default", Campaign: true, TTL: 6 * time.Second, Heartbeat: 5 * time.Second, Timeout: 2 * time.Second,
		ClockDrift: 2, Starve: time.Second,
	}
}

// ControlTLS are files for https.
type ControlTLS struct {
	// CA is a file with the authorities that may have signed the members' certificates; absent: the system's.
	CA string `yaml:"ca,omitempty"`
	// Cert is a file with this process's certificate, where etcd wants one.
	Cert string `yaml:"cert,omitempty"`
	// Key is a file with the certificate's key.
	Key string `yaml:"key,omitempty"`
}

// PoolControl is what of a fleet is a pool's own.
type PoolControl struct {
	// Survival is what each replica may go on using of each engine when it has no lease. It is withheld from all others, for each replica that is known, so a fleet without a store still serves, and a fleet with one has less to lend. Absent: nothing, so that a replica without a lease admits nothing.
	Survival Survival `yaml:"survival,omitempty"`
	// Unit is one request's need, below which a part of a guarantee is of no use.
	Unit Unit `yaml:"unit,omitempty"`
}

// IsZero tells whether nothing is said.
func (p PoolControl) IsZero() bool { return p == PoolControl{} }

// Survival is a survival floor, on each engine.
type Survival struct {
	// Slots is a number of sequences on each engine.
	Slots int64 `yaml:"slots,omitempty"`
	// KVTokens is a number of KV tokens on each engine.
	KVTokens int64 `yaml:"kv_tokens,omitempty"`
}

// IsZero tells whether nothing survives.
func (s Survival) IsZero() bool { return s == Survival{} }

// Unit is one request's need.
type Unit struct {
	// KVTokens is how many KV tokens a request of the pool takes at least, 1 or more; absent: the smallest of its classes' outputs that are reserved for a request without a limit (default_output, at most max_output).
	KVTokens int64 `yaml:"kv_tokens,omitempty"`
}

// IsZero tells whether it is left to the classes.
func (u Unit) IsZero() bool { return u == Unit{} }

// The values of Control.Store.
const (
	StoreMemory = "memory"
	StoreEtcd   = "etcd"
)

// inFleet marks what only a replica of a fleet is refused.
const inFleet = " in a fleet (control)"

// Bounds of Control.
const (
	leastTTL, mostTTL = 2 * time.Second, 5 * time.Minute
	loginTTL          = 6 * time.Second
	defaultReplicas   = 16
)

// replicas is the most there will be.
func (c *Control) replicas() int {
	switch {
	case c.Replicas != 0:
		return c.Replicas
	case c.Store == StoreMemory:
		return 1
	}
	return defaultReplicas
}

func (c *Control) validate(l *list) {
	bad := l.below("control")
	for _, n := range []struct{ key, name string }{{"fleet", c.Fleet}, {"replica", c.Replica}} {
		if (n.name != "" || n.key == "fleet") && !identity.ValidName(n.name) {
			bad(n.key, n.name, identity.NameRule)
		}
	}
	if c.Replicas < 0 || c.Replicas > control.MaxReplicas {
		bad("replicas", c.Replicas, fmt.Sprintf("1 to %d, or absent", control.MaxReplicas))
	}
	duration(bad, "ttl", c.TTL, leastTTL, mostTTL, false)
	duration(bad, "heartbeat", c.Heartbeat, 500*time.Millisecond, mostTTL, false)
	duration(bad, "timeout", c.Timeout, 100*time.Millisecond, time.Minute, false)
	duration(bad, "starve", c.Starve, 10*time.Millisecond, time.Hour, false)
	if c.TTL < c.Heartbeat && c.TTL >= leastTTL && c.Heartbeat <= mostTTL {
		path := "ttl"
		if !l.src.says("control.ttl") {
			path = "heartbeat"
		}
		l.bad("control."+path, fmt.Sprintf("a ttl of %s with a heartbeat of %s", formatDuration(c.TTL), formatDuration(c.Heartbeat)),
			"a ttl of at least the heartbeat, or a lease ends before a replica has said twice what it uses")
	}
	if c.ClockDrift > 50 {
		bad("clock_drift", c.ClockDrift, "0% to 50%")
	}
	if c.Forward != nil {
		c.Forward.validate(l, c.Store)
	}
	switch c.Store {
	case StoreMemory:
		c.inMemory(l)
	case StoreEtcd:
		c.inEtcd(l)
	default:
		bad("store", c.Store, "memory or etcd")
	}
}

// inMemory checks what a store in the process leaves to say.
func (c *Control) inMemory(l *list) {
	if c.Replicas > 1 {
		l.bad("control.replicas", c.Replicas, "1 with store: memory, which no other process sees; replicas that share engines need store: etcd")
	}
	const none = "nothing with store: memory"
	for _, s := range []struct {
		key   string
		given bool
		value string
	}{
		{"endpoints", len(c.Endpoints) > 0, strings.Join(c.Endpoints, ", ")}, {"username", c.Username != "", c.Username},
		{"password_env", c.PasswordEnv != "", identity.Redacted}, {"tls", c.TLS != nil, "a mapping"},
	} {
		if s.given {
			l.bad("control."+s.key, s.value, none)
		}
	}
	if !c.Campaign {
		l.bad("control.campaign", "false", "true with store: memory, in which nobody else can lead")
	}
}

// inEtcd checks how etcd is reached.
func (c *Control) inEtcd(l *list) {
	if len(c.Endpoints) == 0 {
		l.bad("control.store", StoreEtcd, "etcd with endpoints, the URLs of its members")
		return
	}
	switch {
	case c.TTL%time.Second != 0:
		l.bad("control.ttl", formatDuration(c.TTL), "whole seconds with store: etcd, which counts no parts of one")
	case c.Username != "" && c.TTL < loginTTL && c.TTL >= leastTTL:
		l.bad("control.ttl", formatDuration(c.TTL), fmt.Sprintf("at least %s with a username: a login takes etcd up to a few tenths of a second, and a lease must not end of it", formatDuration(loginTTL)))
	}
	e := c.Etcd()
	e.Validate(func(path string, value any, allowed string) {
		switch path {
		case "fleet":
			if !identity.ValidName(c.Fleet) {
				return // which is reported
			}
		case "key_file":
			path, value, allowed = "tls", "cert or key alone", "both, or neither"
		case "request_timeout":
			return // which is timeout
		// Of two that belong together the one that is given is where somebody looks.
		case "username":
			path, value, allowed = "password_env", identity.Redacted, "nothing without username"
		case "password_env":
			path, value, allowed = "username", c.Username, "a user with password_env"
		}
		l.bad("control."+path, value, allowed)
	})
	if s := c.PasswordEnv; s != "" && !envName(s) {
		l.bad("control.password_env", identity.Redacted, allowedEnv)
	}
	if c.TLS != nil && strings.HasPrefix(c.Endpoints[0], "http://") {
		l.bad("control.tls", "a mapping", "nothing with http endpoints")
	}
}

// Etcd is how etcd is reached.
func (c *Control) Etcd() etcd.Config {
	var e etcd.Config
	e.SetDefaults()
	e.Endpoints, e.Fleet, e.RequestTimeout = c.Endpoints, c.Fleet, c.Timeout
	e.Username, e.PasswordEnv = c.Username, c.PasswordEnv
	if t := c.TLS; t != nil {
		e.CAFile, e.CertFile, e.KeyFile = t.CA, t.Cert, t.Key
	}
	return e
}

// shared checks what a pool is in a fleet. Its own values have been checked, and
// without a fault if sound.
func (c *Config) shared(i int, l *list, sound bool) {
	p, at := &c.Pools[i], fmt.Sprintf("pools[%d]", i)
	for _, n := range []struct {
		key   string
		value int64
		most  int64
	}{{"survival.slots", p.Control.Survival.Slots, maxSlots}, {"survival.kv_tokens", p.Control.Survival.KVTokens, maxKV}, {"unit.kv_tokens", p.Control.Unit.KVTokens, maxKV}} {
		if n.value < 0 || n.value > n.most {
			l.bad(at+".control."+n.key, n.value, fmt.Sprintf("1 to %d, or absent", n.most))
			sound = false
		}
	}
	if c.Control == nil {
		if !p.Control.IsZero() {
			l.bad(at+".control", "a mapping", "nothing without control at the top of the file, which makes this a replica of a fleet")
		}
		return
	}
	if p.Boundary > 0 {
		l.bad(at+".boundary", p.Boundary, "0"+inFleet+": requests beyond an engine's slots would be in no replica's grant")
	}
	if p.Mode == ModeObserve {
		l.bad(at+".mode", p.Mode, "enforce"+inFleet+": what a replica that observes passes on is in no grant, and the others count on all that is. Observe before the replicas share, each for itself")
	}
	if (p.Control.Survival.Slots > 0) != (p.Control.Survival.KVTokens > 0) {
		l.bad(at+".control.survival", fmt.Sprintf("%d slots, %d KV tokens", p.Control.Survival.Slots, p.Control.Survival.KVTokens), "both slots and kv_tokens, or one is of no use")
		sound = false
	}
	if !sound || c.Control.Replicas < 0 || c.Control.Replicas > control.MaxReplicas {
		return
	}
	c.fits(i, c.Shared(i, nil), l)
}

// Check is what Parse finds wrong with the values as they now are.
func (c *Config) Check() []Problem {
	l := &list{src: c.src}
	c.validate(l)
	sortProblems(l.problems)
	return l.problems
}

// Shared is a pool as the leader of a fleet has it. What engines hold where the file
// leaves that to them is found, by engine; one that is in neither is not counted yet. With
// nothing found there are sizes only if the file has all, since floors may be of those that
// have still to be found.
func (c *Config) Shared(i int, found map[string]Envelope) *control.Pool {
	p := &c.Pools[i]
	all := p.Envelope()
	whole := found != nil || all.Slots > 0 && all.KVTokens > 0
	s := &control.Pool{
		Name: p.Name, Replicas: c.Control.replicas(), Survival: amount(Envelope(p.Control.Survival)),
		Unit: amount(Envelope{KVTokens: p.unit()}), Fingerprint: c.Fingerprint(i),
	}
	var sum Envelope
	for k := range p.Engines {
		e := Envelope{p.Engines[k].Slots, p.Engines[k].KVTokens}
		f := found[p.Engines[k].Name]
		if e.Slots == 0 {
			e.Slots = f.Slots
		}
		if e.KVTokens == 0 {
			e.KVTokens = f.KVTokens
		}
		if e.Slots == 0 || e.KVTokens == 0 || !whole {
			e = Envelope{}
		}
		sum.Slots += e.Slots
		sum.KVTokens += e.KVTokens
		s.Engines = append(s.Engines, control.Engine{Name: p.Engines[k].Name, Total: amount(e)})
	}
	for k := range p.Classes {
		got := p.Classes[k].resolve(sum)
		s.Classes = append(s.Classes, control.Class{
			Name: p.Classes[k].Name, Floor: amount(got.Floor), Unlent: amount(got.Unlent), Ceiling: amount(got.Ceiling),
			Windowed: p.Classes[k].Guarantee == GuaranteeWindow,
		})
	}
	return s
}

// Fingerprint is of all that Shared makes a pool of, so that replicas with other files can
// be told apart.
func (c *Config) Fingerprint(i int) string {
	p, h := &c.Pools[i], sha256.New()
	fmt.Fprintf(h, "%d %+v %d\n", c.Control.replicas(), p.Control.Survival, p.unit())
	for k := range p.Engines {
		fmt.Fprintf(h, "engine %q %d %d\n", p.Engines[k].Name, p.Engines[k].Slots, p.Engines[k].KVTokens)
	}
	for k := range p.Classes {
		cl := &p.Classes[k]
		fmt.Fprintf(h, "class %q %q %s, %s, %s\n", cl.Name, cl.Guarantee, cl.Floor, cl.Unlent, cl.Ceiling)
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// Fits tells what is wrong with a pool that Shared has made.
func (c *Config) Fits(i int, s *control.Pool) []Problem {
	l := &list{src: c.src}
	c.fits(i, s, l)
	sortProblems(l.problems)
	return l.problems
}

// fits reports at the places of the file what the pool's own rules say.
func (c *Config) fits(i int, s *control.Pool, l *list) {
	at := fmt.Sprintf("pools[%d].", i)
	s.Validate(func(path string, value any, allowed string) {
		name, rest, ofClass := strings.Cut(strings.TrimPrefix(path, "classes["), "]")
		switch {
		case path == "replicas":
			l.bad("control.replicas", value, allowed)
		case ofClass:
			k := slices.IndexFunc(s.Classes, func(c control.Class) bool { return c.Name == name })
			l.bad(fmt.Sprintf("%sclasses[%d]%s", at, k, rest), value, allowed)
		case strings.HasPrefix(path, "survival"):
			l.bad(at+"control."+path, value, allowed)
		default:
			l.bad(at+path, value, allowed)
		}
	})
}

// unit is what one request takes at least, in KV tokens.
func (p *Pool) unit() int64 {
	if n := p.Control.Unit.KVTokens; n > 0 {
		return n
	}
	least := int64(0)
	for k := range p.Classes {
		if n := int64(p.Classes[k].reserved()); least == 0 || n < least {
			least = n
		}
	}
	return least
}

// reserved is the output that is reserved for a request of the class without a limit.
func (c *Class) reserved() int32 {
	if c.MaxOutput > 0 {
		return min(c.DefaultOutput, c.MaxOutput)
	}
	return c.DefaultOutput
}

func amount(e Envelope) control.Amount { return control.Amount{e.Slots, e.KVTokens} }
