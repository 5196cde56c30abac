package config

import (
	"time"

	"headgate/certs"
	"headgate/identity"
	"headgate/journal"
	"headgate/telemetry"
)

// Config is a whole configuration file, with the defaults filled in.
type Config struct {
	// Version of the form of this file; this build reads 1. A file of a newer one is refused.
	Version int `yaml:"version"`
	// Listen is the address that clients call, host:port. Port 0 picks a free one.
	Listen string `yaml:"listen"`
	// TLS is how clients speak https to the gateway: see docs/tls.md; absent: they speak http.
	TLS    *certs.Config `yaml:"tls,omitempty"`
	Admin  Admin         `yaml:"admin"`
	Limits Limits        `yaml:"limits"`

	Log      telemetry.Config `yaml:"log"`
	Journal  journal.Config   `yaml:"journal"`
	Identity identity.Config  `yaml:",inline"`

	OTLP      OTLP      `yaml:"otlp"`
	Estimates Estimates `yaml:"estimates,omitempty"`

	// Control makes this process one of several that share the pools' engines.
	Control *Control `yaml:"control,omitempty"`

	// Batch says where files and batches are kept and how batches are run; absent: /v1/files and /v1/batches are no routes.
	Batch *Batch `yaml:"batch,omitempty"`

	// Audit says where decisions are written down, one record a request and one for each thing that an operator does: see docs/audit.md; absent: nowhere.
	Audit *Audit `yaml:"audit,omitempty"`

	// Console is what the web console shows beside what the process knows itself: see docs/console.md.
	Console Console `yaml:"console,omitempty"`

	// Pools are the engines behind the gateway and how they are shared.
	Pools []Pool `yaml:"pools"`

	src  *source
	file []identity.Key // of keys_file
}

// SetDefaults listens on the loopback only: who opens the gateway to a network
// says so.
func (c *Config) SetDefaults() { c.Version, c.Listen = 1, "127.0.0.1:8080" }

// Admin is the listener for operators.
type Admin struct {
	// Listen is the address of /healthz, /readyz, /metrics, /api and /debug, host:port.
	Listen string `yaml:"listen"`
	// TLS is how operators speak https to it; absent: they speak http. It has files of its own.
	TLS *certs.Config `yaml:"tls,omitempty"`
	// Keys of operators, scrapers and engines, without one of which the listener answers nothing but /healthz and /readyz. Absent: it asks for no key, which is an error unless it listens on this machine's loopback or open is true.
	Keys []identity.AdminKey `yaml:"keys,omitempty"`
	// Open is true where the listener asks for no key though others than this machine reach it. Whoever reaches it can drain pools and read memory, with prompts in it.
	Open bool `yaml:"open,omitempty"`
	// OTLPTraces is whether engines may export their spans to /v1/traces of this listener, which makes exact when they began a request. An engine on another machine has to reach it.
	OTLPTraces bool `yaml:"otlp_traces"`
}

// SetDefaults listens on the loopback only.
func (a *Admin) SetDefaults() { a.Listen = "127.0.0.1:9090" }

// OTLP says to which collector the process exports what it says about itself, in
// OTLP over HTTP. A collector that is slow or away delays nothing: what does not
// fit the queue is dropped and counted.
type OTLP struct {
	// Endpoint is the collector's URL, to which /v1/traces, /v1/metrics and /v1/logs are added, such as http://127.0.0.1:4318; absent: nothing is exported.
	Endpoint string `yaml:"endpoint,omitempty"`
	// HeadersEnv names the environment variable that holds headers for the collector, such as a key: name=value, several with commas between them, values percent-encoded.
	HeadersEnv string `yaml:"headers_env,omitempty"`
	// Traces is whether a span is exported for each sampled request, each of its waits and each of its attempts.
	Traces bool `yaml:"traces"`
	// Metrics is whether what /metrics shows is exported too.
	Metrics bool `yaml:"metrics"`
	// Logs is whether what is logged is exported too.
	Logs bool `yaml:"logs"`
	// Sample is the share of requests that are traced, such as 5%. It is drawn for each.
	Sample Share `yaml:"sample"`
	// FollowParent lets the sampled flag of a client's traceparent decide whether its request is traced, where it sends one. Only for clients that may decide what is stored; a trace is continued in any case.
	FollowParent bool `yaml:"follow_parent"`
	// MetricsEvery is how often metrics are exported, 1s to 1h.
	MetricsEvery time.Duration `yaml:"metrics_every"`
	// Queue is how many spans, and how many lines of the log, may wait for the collector. Raise it when headgate_otlp_items_total counts dropped ones while the collector is well.
	Queue int `yaml:"queue"`
}

// SetDefaults exports everything once there is an endpoint. The queue has the
// spans of about a thousand requests.
func (o *OTLP) SetDefaults() {
	*o = OTLP{Traces: true, Metrics: true, Logs: true, Sample: 100, MetricsEvery: 15 * time.Second, Queue: 4096}
}

// Estimates says what of what was learned outlives the process.
type Estimates struct {
	// File to keep in what was learned about prompts' tokens, by pool and model, written every minute and at the end, and read at the start; absent: learned anew. Its directory must be writable.
	File string `yaml:"file,omitempty"`
}

// IsZero tells whether nothing does.
func (e Estimates) IsZero() bool { return e == Estimates{} }

// Limits bound what one client can take of the gateway. A value of 0 is not
// "no limit" unless that is said.
type Limits struct {
	// BodyBytes is the largest request body. Raise it for prompts with images.
	BodyBytes Bytes `yaml:"body_bytes"`
	// HeaderBytes is the largest request header.
	HeaderBytes Bytes `yaml:"header_bytes"`
	// HeaderTimeout is how long a client may take to send a header.
	HeaderTimeout time.Duration `yaml:"header_timeout"`
	// BodyTimeout is how long a client may take to send a body. Raise it for large bodies over slow links.
	BodyTimeout time.Duration `yaml:"body_timeout"`
	// IdleTimeout is how long an engine may be silent between two tokens of a running answer before it counts as failed. It does not limit a whole answer. Raise it above the longest prefill of the slowest engine.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// ClientStallTimeout is how long a client may leave a stream unread before its request ends and frees its capacity. It has up to a sixteenth more.
	ClientStallTimeout time.Duration `yaml:"client_stall_timeout"`
	// Keepalive is the time after which a silent stream gets a comment, so that it does not look dead to the client or to proxies on the way. 0 sends none.
	Keepalive time.Duration `yaml:"keepalive"`
	// MaxConnections is how many client connections may be open at once; the next ones wait to be accepted. Each needs a file descriptor, and a running request a second one.
	MaxConnections int `yaml:"max_connections"`
	// DrainTimeout is how long running requests may take to finish when the process is told to stop.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// Tenants are those with limits of their own on what they use, by requests, tokens or a balance: see docs/limits.md. At most 10000.
	Tenants []TenantLimits `yaml:"tenants,omitempty"`
	// OtherTenants are the limits of each tenant that is not in tenants; absent: it has none.
	OtherTenants *TenantRates `yaml:"other_tenants,omitempty"`
	// OthersTogether are the limits of all those tenants together, so that tenants that come and go take nothing of those with a name in tenants; absent: there are none.
	OthersTogether *TenantRates `yaml:"others_together,omitempty"`
	// MaxTenants is how many of those tenants may have used something within a window before further ones share one account, with the limits of one, 100 to 10000000. Each takes some 200 bytes.
	MaxTenants int `yaml:"max_tenants"`
	// BalanceFile is the file with the balances of tenants; required where one has a balance. Its directory must be writable, and one process at a time may have it.
	BalanceFile string `yaml:"balance_file,omitempty"`
}

// SetDefaults suits interactive chat on engines that prefill in seconds.
func (l *Limits) SetDefaults() {
	*l = Limits{
		BodyBytes: 16 * mib, HeaderBytes: 64 * kib,
		HeaderTimeout: 10 * time.Second, BodyTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		ClientStallTimeout: 30 * time.Second, Keepalive: 10 * time.Second,
		MaxConnections: 8192, DrainTimeout: time.Minute, MaxTenants: 100_000,
	}
}

// Pool is engines that serve the same models, with one envelope: what they
// hold together, in slots and in KV tokens.
type Pool struct {
	// Name of the pool in logs, journal and metrics; unique.
	Name string `yaml:"name"`
	// Models are the names the pool answers to, and with a * at the end beginnings of names, such as llama-*; the longest that fits decides between pools. A name that none of the engines lists stands for the first that each does. Absent: those its engines report.
	Models []string `yaml:"models,omitempty"`
	// Aliases are further names that the pool answers to, each for one model of its engines.
	Aliases []Alias `yaml:"aliases,omitempty"`
	// Engines of the pool, 1 to 64.
	Engines []Engine `yaml:"engines"`
	// Mode is enforce, or observe, which passes every request on at once, as if there were no gateway, and reports what enforcing would have refused, delayed, lent and reclaimed: see Observing in docs/operations.md. It can be changed while the pool runs.
	Mode string `yaml:"mode"`
	// Boundary is how many requests may be sent to an engine beyond its slots, to wait there: 0 lets none wait inside, where nobody can reorder them. 1 or 2 hides the round trip between the end of one request and the start of the next; only protected demand uses it unless the engine orders by priority.
	Boundary int `yaml:"boundary"`
	// Control is what of a fleet is the pool's own.
	Control PoolControl `yaml:"control,omitempty"`
	// Replan switches the pool's one engine between named serving profiles, with what waits and with what sessions were promised: see docs/replan.md. Absent: the engine stays as it is. Not with control.
	Replan *Replan `yaml:"replan,omitempty"`
	Policy `yaml:",inline"`
}

// SetDefaults enforces.
func (p *Pool) SetDefaults() { p.Mode = ModeEnforce }

// The modes of a pool.
const (
	ModeEnforce = "enforce"
	ModeObserve = "observe"
)

// Alias is a client's name for a model.
type Alias struct {
	// Name by which clients call the model; unique. Answers carry the engine's name.
	Name string `yaml:"name"`
	// Model is the name by which the engines know it; engines that do not list it get no such request.
	Model string `yaml:"model"`
}

// Policy is how classes share a pool. The simulator reads it from a file of its
// own too.
type Policy struct {
	// StallShare is the largest part of the time, such as 50%, for which prefills of later classes may hold up a class with an objective while that class is active. 0% is no bound. Lower it if the objective's tail suffers, raise it if batch starts too seldom.
	StallShare Share `yaml:"stall_share"`
	// ReclaimsPerSecond bounds how many loans are ended by force in a second. 0 is no bound. Each costs the engine what has to be computed again.
	ReclaimsPerSecond int `yaml:"reclaims_per_second"`
	// Classes share the pool, 1 to 64. Their order is their rank: idle capacity that two want goes to the earlier, and an objective is kept against the later ones.
	Classes []Class `yaml:"classes"`
}

// Engine is one inference server.
type Engine struct {
	// Name of the engine in logs, journal and metrics; unique.
	Name string `yaml:"name"`
	// Kind of the server: vllm, sglang, llamacpp (llama-server), or openai for any other that speaks its API.
	Kind string `yaml:"kind"`
	// URL of the server without /v1, http or https. Requests go to configured URLs only.
	URL string `yaml:"url"`
	// APIKeyEnv names the environment variable that holds the key the engine wants, if it wants one.
	APIKeyEnv string `yaml:"api_key_env,omitempty"`
	// TLS is how an https URL is spoken to; absent: by the system's authorities and without a certificate.
	TLS *certs.Client `yaml:"tls,omitempty"`
	// AllowLinkLocal lets the URL lead to an address of the link or of a cloud's metadata service, such as 169.254.169.254. Otherwise such an address is refused when it is dialled, whatever name it has.
	AllowLinkLocal bool `yaml:"allow_link_local,omitempty"`
	// Slots is how many sequences the engine runs at once (vLLM's --max-num-seqs, llama-server's --parallel); absent: what the engine says, or its profile. An openai engine does not say, and vLLM only in its development mode.
	Slots int64 `yaml:"slots,omitempty"`
	// KVTokens is how many tokens the engine's KV cache holds, shared by all its slots; absent: what the engine says. An openai engine does not say.
	KVTokens int64 `yaml:"kv_tokens,omitempty"`
	// BlockSize is the number of tokens by which a sequence's KV grows; absent: what the engine says, or 1.
	BlockSize int64 `yaml:"block_size,omitempty"`
	// MaxContext is the longest sequence in tokens, prompt and output; absent: what the engine says, or all its KV tokens.
	MaxContext int64 `yaml:"max_context,omitempty"`
	// Priority tells whether the engine runs waiting requests in order of their priority (vLLM's --scheduling-policy priority); absent: what the engine says, or false. Each class's priority is then sent along.
	Priority *bool `yaml:"priority,omitempty"`
	// PrefixCaching tells whether the engine finds prompts that begin alike in its cache (vLLM's --enable-prefix-caching); absent: what the engine says, or false. A prompt whose prefill would hold a protected class up for too long is then computed in pieces, where the engine tells token ids too (vLLM does). Say false to have none.
	PrefixCaching *bool `yaml:"prefix_caching,omitempty"`
	// ContinueCompletions tells whether a completion goes on from whatever text its prompt ends with, as most servers do and Ollama does not, which makes a chat of it. Completions that gave way are then continued from their text where the engine gives no token ids; absent: true, but false for openai.
	ContinueCompletions *bool `yaml:"continue_completions,omitempty"`
	// ContinueChats tells what the engine makes of a chat that ends with a message of the assistant's: goes on with it (trailing; Ollama, mlx-lm, llama-server), does so where continue_final_message tells it to (flags; vLLM, SGLang), or answers it (none). Chats that gave way are then continued from their text where the engine gives no token ids; absent: what kind is known to do, and none for openai. Wrong, it has such answers begin anew in their middle.
	ContinueChats string `yaml:"continue_chats,omitempty"`
	// Profile is a file of headgate probe's about the engine. What it found stands in for what the engine does not say; where the engine or this configuration contradicts what was shown, serve warns and does as they say. Absent: none.
	Profile string `yaml:"profile,omitempty"`
	// ObserveEvery is how often the engine's load is read, 20ms to 1m. Shorter finds foreign load and confirms releases sooner, and costs the engine a scrape each time.
	ObserveEvery time.Duration `yaml:"observe_every"`
}

// SetDefaults samples four times a second.
func (e *Engine) SetDefaults() { e.ObserveEvery = 250 * time.Millisecond }

// The kinds of Engine.
const (
	KindVLLM     = "vllm"
	KindLlamaCpp = "llamacpp"
	KindSGLang   = "sglang"
	KindOpenAI   = "openai"
)

// The values of Engine.ContinueChats.
const (
	ContinueNone     = "none"
	ContinueTrailing = "trailing"
	ContinueFlags    = "flags"
)

// Class is a service class of a pool.
type Class struct {
	// Name of the class, by which keys and the Headgate-Class header call it.
	Name string `yaml:"name"`
	// Floor is the capacity protected for the class: it gets that much back whenever it has the demand, however much others have borrowed. Instant floors of a pool sum to at most its envelope, and so do windowed ones. Without kv_tokens the class gets the same share of the KV as of the slots; without slots, none.
	Floor Amount `yaml:"floor,omitempty"`
	// Guarantee says how the floor is owed: instant, at every moment, or window, as so many slots' worth of service in every window, at the moments that harm others least. A window lets batch give way entirely for seconds and makes it good.
	Guarantee string `yaml:"guarantee"`
	// Window is over how long the floor is made good, for guarantee: window and required there, 1s to 1h.
	Window time.Duration `yaml:"window,omitempty"`
	// Unlent is the part of the floor that is never lent, so that a first request starts without any recall. Each unlent slot is idle when the class is. Not with guarantee: window, which keeps nothing at any one moment. Without kv_tokens it gets the same share of the floor's KV as of its slots.
	Unlent Amount `yaml:"unlent,omitempty"`
	// Ceiling is the most the class may use, with what it borrows; absent: the whole envelope. Lower it for a class whose requests must not fill every engine.
	Ceiling Amount `yaml:"ceiling,omitempty"`
	// Headroom is kept above the class's recent peak while it lends; absent: none. Raise it if bursts keep recalling what was just lent.
	Headroom Amount `yaml:"headroom,omitempty"`
	// IdleAfter is how far back a peak of use counts against lending, and how long the class must be idle to lend again after a recall. Raise it for bursty traffic, lower it to lend sooner. With reopen settled the class waits a sixteenth of it where all engines of the pool cache prefixes and every other class has reclaim: reclaim.
	IdleAfter time.Duration `yaml:"idle_after"`
	// Reopen says when a class that was recalled lends again: idle, once it has been idle for its idle_after; settled, once what it lent before is back too and the idle time to be expected is worth more than a recall.
	Reopen string `yaml:"reopen"`
	// Reclaim says how the class gives back what it borrowed: attrition waits for its requests to finish, deadline ends them when the life of the loan is over, reclaim ends just enough of them at once. An ended request goes on from its tokens, in its old place, where engine and request allow that; another one of which nothing was delivered runs again from its beginning, and another streamed one borrows only as grace allows and is not ended once it has a token.
	Reclaim string `yaml:"reclaim"`
	// Deadline is the life of a loan, for reclaim: deadline and required there; what runs longer may be ended once it is wanted back.
	Deadline time.Duration `yaml:"deadline,omitempty"`
	// Grace is for how long a request of the class, from its arrival, leaves it to loans to end by themselves if they are predicted to, before it has some ended. With reclaim: reclaim it is also within what time a streamed request has to be predicted to end, or it doesn't borrow.
	Grace time.Duration `yaml:"grace"`
	// PinAfter is how many times a request is ended by reclaim: reclaim before it runs to its end in any case, one of the class at a time. 0 is without end. Lower it if batch makes no progress.
	PinAfter int `yaml:"pin_after"`
	// Objective is what "on time" means for the class.
	Objective Objective `yaml:"objective,omitempty"`
	// KeepWarm is for how long the KV of a session that has had an answer counts as used when the class lends, so that its next turn finds it. 0 is not at all. A request is of the session that its Headgate-Session header names, or its prompt_cache_key.
	KeepWarm time.Duration `yaml:"keep_warm"`
	Queue    Queue         `yaml:"queue"`
	// Priority is sent to engines that order by priority; lower runs earlier.
	Priority int32 `yaml:"priority"`
	// DefaultOutput is how many tokens of output are reserved for a request that declares no limit, until real lengths have been learned.
	DefaultOutput int32 `yaml:"default_output"`
	// MaxOutput bounds every request's output and is sent to the engine, in tokens; absent: only the context does.
	MaxOutput int32 `yaml:"max_output,omitempty"`
}

// SetDefaults suits an interactive class.
func (c *Class) SetDefaults() {
	c.IdleAfter, c.Reclaim, c.DefaultOutput = 2*time.Second, ReclaimAttrition, 512
	c.Guarantee, c.Reopen, c.PinAfter = GuaranteeInstant, ReopenIdle, 2
}

// The ways of Class.Reclaim.
const (
	ReclaimAttrition = "attrition"
	ReclaimDeadline  = "deadline"
	ReclaimNow       = "reclaim"
)

// The ways of Class.Guarantee.
const (
	GuaranteeInstant = "instant"
	GuaranteeWindow  = "window"
)

// The ways of Class.Reopen.
const (
	ReopenIdle    = "idle"
	ReopenSettled = "settled"
)

// Objective is what "on time" means for a class.
type Objective struct {
	// TTFT is the longest time to the first token. While the class is active, later classes' prefills start only if it can still be met; a request that can't meet it any more lets those pass that can. Absent: no limit.
	TTFT time.Duration `yaml:"ttft,omitempty"`
	// TPOT is the longest time per output token. Later classes do not start where they would slow a running request beyond it. Absent: no limit.
	TPOT time.Duration `yaml:"tpot,omitempty"`
	// E2E is the longest time to the last token. A request that is older gets every fourth start, so that it is not passed for ever. Absent: no limit.
	E2E time.Duration `yaml:"e2e,omitempty"`
}

// IsZero tells whether there is no limit.
func (o Objective) IsZero() bool { return o == Objective{} }

// Queue bounds what waits for a class.
type Queue struct {
	// Depth is how many requests of the class may wait; the next is refused with a hint when to return. 0 lets none wait.
	Depth int `yaml:"depth"`
	// PerTenant is how many of them may be one tenant's. 0 is as many as the depth.
	PerTenant int `yaml:"per_tenant"`
	// Wait is how long a request may wait before it is refused. 0 is no limit.
	Wait time.Duration `yaml:"wait"`
}

// SetDefaults bounds one tenant to a quarter.
func (q *Queue) SetDefaults() { *q = Queue{Depth: 256, PerTenant: 64, Wait: 30 * time.Second} }
