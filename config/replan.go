package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"headgate/identity"
	"headgate/replan"
)

// Replan switches the pool's one engine between named serving profiles, with what waits
// and with what sessions were promised: see docs/replan.md. Absent: the engine stays as
// it is.
type Replan struct {
	// Home is the profile to be in when nothing is there; absent: the first.
	Home string `yaml:"home,omitempty"`
	// Dwell is the least time from one switch to the next, 1s to 24h. What a switch gains is reckoned over it.
	Dwell time.Duration `yaml:"dwell"`
	// IdleAfter is how long nothing must run or wait before the engine goes home, 1s to 24h.
	IdleAfter time.Duration `yaml:"idle_after"`
	// ContentionAfter is how long requests must wait for what another profile has, 100ms to 24h. Raise it if the engine is switched for what would have passed.
	ContentionAfter time.Duration `yaml:"contention_after"`
	// DrainTimeout is how long what runs may take to end before a switch is given up, 1s to 24h. Loans are called in as their classes give them back.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// MaxPerHour bounds the switches that are begun in any hour, 1 to 3600. An operator's are counted and not bounded.
	MaxPerHour int `yaml:"max_per_hour"`
	// SessionTimeout is how long after its last request a session keeps what it was promised, and with it the engine in a profile that gives it, 1s to 24h.
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// Sessions is how many sessions may be promised more than every profile gives at a time, 1 to 65536; the next ones get none until one ends.
	Sessions int `yaml:"sessions"`
	// DryRun decides and writes down, and switches nothing. Required with mode: observe.
	DryRun bool `yaml:"dry_run"`
	// Profiles are the ways in which the engine can be run, 2 to 16.
	Profiles []Profile `yaml:"profiles"`
}

// SetDefaults suits an engine that restarts in a minute.
func (r *Replan) SetDefaults() {
	*r = Replan{
		Dwell: 10 * time.Minute, IdleAfter: 10 * time.Minute, ContentionAfter: 30 * time.Second, DrainTimeout: time.Minute,
		MaxPerHour: 4, SessionTimeout: 15 * time.Minute, Sessions: 256,
	}
}

// Profile is one way of running an engine.
type Profile struct {
	// Name of the profile in logs, journal, metrics and the Headgate-Profile header; unique in the pool.
	Name string `yaml:"name"`
	// Slots is how many sequences the engine runs at once in this profile.
	Slots int64 `yaml:"slots"`
	// KVTokens is how many tokens its KV cache holds, shared by all slots.
	KVTokens int64 `yaml:"kv_tokens"`
	// MaxContext is the longest sequence in tokens, prompt and output. The smallest of all profiles is what every session has, and what /v1/models tells.
	MaxContext int64 `yaml:"max_context"`
	// Cost is how long a switch to the profile is believed to take until one was measured, at most 1h.
	Cost time.Duration `yaml:"cost"`
	// Switch is how the engine is taken to the profile; absent in all profiles: they differ in admission's limits only.
	Switch *Hook `yaml:"switch,omitempty"`
}

// SetDefaults is the guess for an engine with a model of some GB.
func (p *Profile) SetDefaults() { p.Cost = time.Minute }

// Hook is a command to run or a URL to call.
type Hook struct {
	// Command is a program and its arguments, run without a shell with HEADGATE_POOL, HEADGATE_ENGINE and HEADGATE_PROFILE in its environment. It ends with status 0 when the switch is under way; what it starts may go on.
	Command []string `yaml:"command,omitempty" show:"redacted"`
	// URL is called instead, http or https. A status of 2xx says that the switch is under way.
	URL string `yaml:"url,omitempty" show:"redacted"`
	// Method of the call: POST, PUT, PATCH or GET; absent: POST.
	Method string `yaml:"method,omitempty"`
	// Body of the call, sent as application/json.
	Body string `yaml:"body,omitempty" show:"redacted"`
	// KeyEnv names the environment variable that holds a bearer token for the URL, if it wants one.
	KeyEnv string `yaml:"key_env,omitempty"`
	// Timeout is how long the switch may take until the engine is ready in the profile, 1s to 1h. Beyond it the switch has failed, and the engine is taken back.
	Timeout time.Duration `yaml:"timeout"`
}

// SetDefaults waits for a large model.
func (h *Hook) SetDefaults() { h.Timeout = 10 * time.Minute }

// HookMethods are the values of Hook.Method.
var HookMethods = []string{"POST", "PUT", "PATCH", "GET"}

// HomeIndex is the index of the home profile.
func (r *Replan) HomeIndex() int {
	return max(slices.IndexFunc(r.Profiles, func(p Profile) bool { return p.Name == r.Home }), 0)
}

// replanned checks what the pool's replan says, whose figures are its engine's. It
// returns whether the profiles have any.
func (p *Pool) replanned(l *list, pool string) (ok bool) {
	r, at, errors := p.Replan, pool+".replan", Errors(l.problems)
	if len(p.Engines) > 1 {
		l.bad(at, "a mapping", fmt.Sprintf("nothing in a pool of %d engines: give the one that is switched a pool of its own", len(p.Engines)))
	}
	if p.Mode == ModeObserve && !r.DryRun {
		l.bad(at+".dry_run", r.DryRun, "true with mode: observe, which decides nothing")
	}
	for i := range p.Engines {
		e, path := &p.Engines[i], fmt.Sprintf("%s.engines[%d]", pool, i)
		if e.Kind == KindOpenAI {
			l.bad(path+".kind", e.Kind, "vllm, sglang or llamacpp with replan: an openai engine says nothing of itself, so nobody could tell whether it is in its profile")
			continue
		}
		for _, n := range []struct {
			key   string
			value int64
		}{{"slots", e.Slots}, {"kv_tokens", e.KVTokens}, {"max_context", e.MaxContext}} {
			if n.value != 0 {
				l.bad(path+"."+n.key, n.value, "nothing with replan: each of its profiles has its own")
			}
		}
	}
	below := l.below(at)
	for _, d := range []struct {
		key   string
		d     time.Duration
		least time.Duration
	}{
		{"dwell", r.Dwell, time.Second}, {"idle_after", r.IdleAfter, time.Second}, {"contention_after", r.ContentionAfter, 100 * time.Millisecond},
		{"drain_timeout", r.DrainTimeout, time.Second}, {"session_timeout", r.SessionTimeout, time.Second},
	} {
		duration(below, d.key, d.d, d.least, maxDuration, false)
	}
	if r.MaxPerHour < 1 || r.MaxPerHour > 3600 {
		l.bad(at+".max_per_hour", r.MaxPerHour, "1 to 3600")
	}
	if r.Sessions < 1 || r.Sessions > 1<<16 {
		l.bad(at+".sessions", r.Sessions, "1 to 65536")
	}
	if n := len(r.Profiles); n < 2 || n > replan.MaxProfiles {
		l.bad(at+".profiles", n, fmt.Sprintf("2 to %d profiles", replan.MaxProfiles))
		return false
	}
	names := unique{}
	hooks := 0
	for i := range r.Profiles {
		q, path := &r.Profiles[i], fmt.Sprintf("%s.profiles[%d]", at, i)
		names.name(l, path+".name", q.Name)
		q.validate(l, path)
		if q.Switch != nil {
			hooks++
		}
	}
	if hooks > 0 && hooks < len(r.Profiles) {
		l.bad(at+".profiles", fmt.Sprintf("a switch in %d of %d", hooks, len(r.Profiles)), "a switch in all of them, or in none: then only admission's limits change")
	}
	if r.Home != "" && !slices.ContainsFunc(r.Profiles, func(q Profile) bool { return q.Name == r.Home }) {
		l.bad(at+".home", r.Home, "the name of one of the profiles")
	}
	return Errors(l.problems) == errors
}

func (p *Profile) validate(l *list, at string) {
	for _, n := range []struct {
		key         string
		value, most int64
	}{{"slots", p.Slots, maxSlots}, {"kv_tokens", p.KVTokens, maxKV}, {"max_context", p.MaxContext, maxKV}} {
		if n.value < 1 || n.value > n.most {
			l.bad(at+"."+n.key, n.value, fmt.Sprintf("1 to %d", n.most))
		}
	}
	if p.KVTokens > 0 && p.MaxContext > p.KVTokens && p.MaxContext <= maxKV {
		l.bad(at+".max_context", p.MaxContext, fmt.Sprintf("at most kv_tokens, %d", p.KVTokens))
	}
	duration(l.below(at), "cost", p.Cost, time.Millisecond, time.Hour, true)
	if p.Switch != nil {
		p.Switch.validate(l, at+".switch")
	}
}

func (h *Hook) validate(l *list, at string) {
	duration(l.below(at), "timeout", h.Timeout, time.Second, time.Hour, false)
	switch {
	case len(h.Command) == 0 && h.URL == "":
		l.bad(at, "neither", "command or url")
		return
	case len(h.Command) > 0 && h.URL != "":
		l.bad(at, "both", "command or url, not both")
		return
	case len(h.Command) > 0:
		if h.Command[0] == "" {
			l.bad(at+".command[0]", "nothing", "the path of a program")
		}
		for _, n := range []struct{ key, value, shown string }{{"method", h.Method, h.Method}, {"body", h.Body, identity.Redacted}, {"key_env", h.KeyEnv, identity.Redacted}} {
			if n.value != "" {
				l.bad(at+"."+n.key, n.shown, "nothing with command")
			}
		}
		return
	}
	if u, err := url.Parse(h.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		l.bad(at+".url", identity.Redacted, "an http or https URL without user, password and fragment")
	}
	if h.Method != "" && !slices.Contains(HookMethods, h.Method) {
		l.bad(at+".method", h.Method, strings.Join(HookMethods, ", "))
	}
	if h.KeyEnv != "" && !envName(h.KeyEnv) {
		l.bad(at+".key_env", identity.Redacted, allowedEnv)
	}
}

// inProfile is an engine of the pool as the home profile has it, whose figures it does not
// repeat.
func (p *Pool) inProfile(e Engine) Engine {
	if p.Replan == nil || len(p.Replan.Profiles) == 0 {
		return e
	}
	q := p.Replan.Profiles[p.Replan.HomeIndex()]
	e.Slots, e.KVTokens, e.MaxContext = q.Slots, q.KVTokens, q.MaxContext
	return e
}

// checkProfiles checks the classes' amounts against what the pool holds in each profile.
// What is wrong in several is told once.
func (p *Pool) checkProfiles(at string, l *list) {
	told := map[string]bool{}
	for i := range p.Replan.Profiles {
		q := &p.Replan.Profiles[i]
		one := list{src: l.src}
		p.check(at, Envelope{Slots: q.Slots, KVTokens: q.KVTokens}, &one)
		for _, problem := range one.problems {
			if !told[problem.Path] {
				told[problem.Path] = true
				problem.Text += " (in profile " + q.Name + ")"
				l.problems = append(l.problems, problem)
			}
		}
	}
	for i := range p.Classes {
		wait, most := p.Classes[i].Queue.Wait, time.Duration(0)
		for k := range p.Replan.Profiles {
			if p.Replan.Profiles[k].Switch != nil {
				most = max(most, p.Replan.Profiles[k].Cost)
			}
		}
		away, takes := p.Replan.ContentionAfter, "contention_after"
		if most > 0 {
			away, takes = away+p.Replan.DrainTimeout+most, "contention_after, drain_timeout and cost"
		}
		if wait > 0 && wait < away {
			l.warn(fmt.Sprintf("%sclasses[%d]", at, i), fmt.Sprintf("a request that needs another profile may wait for it for %s, %s, and the class's queue.wait is %s: it is refused before the engine is there",
				formatDuration(away), takes, formatDuration(wait)))
		}
	}
}
