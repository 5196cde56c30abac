package bench

import (
	"slices"
	"strconv"
	"time"

	"headgate/sim"
)

// Runners.
const (
	Live = "live" // real processes in real time
	Sim  = "sim"  // virtual time
)

// Plan is one comparison, written down before it runs.
type Plan struct {
	Name       string `yaml:"name"`
	Hypothesis string `yaml:"hypothesis"`
	Runner     string `yaml:"runner"` // Live or Sim

	Engine    Engine   `yaml:"engine"`
	Arms      []Arm    `yaml:"arms"`
	Workload  Workload `yaml:"workload"`
	OnTime    OnTime   `yaml:"on_time"`
	Compare   Compare  `yaml:"compare"`
	Secondary []string `yaml:"secondary"` // metrics that are shown and decide nothing
	Gates     Limits   `yaml:"gates"`
	// Waive names gates that are reported and do not make a run invalid. What is
	// waived is part of the plan, so it is known before any result is.
	Waive []string `yaml:"waive"`
	Stop  Stop     `yaml:"stop"`

	raw    []byte
	file   string // its name; paths in it are relative to that
	sha256 string
}

// Engine is what all arms run on: exactly one of the two.
type Engine struct {
	Simulated *Simulated `yaml:"simulated"`
	Served    *Served    `yaml:"served"`
}

// Simulated is the engine model, in virtual time or as a process of its own.
// Zero is the published experiment's value.
type Simulated struct {
	Model         string  `yaml:"model"` // built in, or a file
	Speed         float64 `yaml:"speed"` // factor on every step's time
	Slots         int     `yaml:"slots"`
	KVBlocks      int     `yaml:"kv_blocks"`
	BlockSize     int     `yaml:"block_size"`
	MaxModelLen   int     `yaml:"max_model_len"`
	BatchedTokens int     `yaml:"batched_tokens"`
	PrefixCaching bool    `yaml:"prefix_caching"`
}

// Served is an engine that something else serves. With Start it is a process
// per run; without, it is attached to and left as it is.
type Served struct {
	URL   string   `yaml:"url"`
	Kind  string   `yaml:"kind"`  // vllm, sglang, llamacpp or openai
	Model string   `yaml:"model"` // to ask for; "" asks the engine
	Start []string `yaml:"start"`
	Stop  []string `yaml:"stop"`  // "" ends the started process with SIGTERM
	Reset []string `yaml:"reset"` // run before each run
	Ready Duration `yaml:"ready"` // how long it may take to answer
	// What a gateway has to be told of it. KVTokens of 0 leaves that to the engine.
	Slots    int  `yaml:"slots"`
	KVTokens int  `yaml:"kv_tokens"`
	Priority bool `yaml:"priority"` // it orders by priority
}

// Arm is one way to serve the workload: exactly one of the four.
type Arm struct {
	Name      string  `yaml:"name"`
	Direct    *Direct `yaml:"direct"`
	Published string  `yaml:"published"` // static, static-queued, lending or lending-queued
	Policy    string  `yaml:"policy"`    // a file, or DefaultPolicy
	Proxy     *Proxy  `yaml:"proxy"`
	// Slots is what an arm with admission takes the engine to have, and so how many
	// requests it lets into it at once. 0 is what it has.
	Slots int `yaml:"slots"`
	// IdleAfter is in the place of a published arm's two seconds, where a plan's time
	// is not the published one's. 0 leaves them.
	IdleAfter Duration `yaml:"idle_after"`
	// MaxQueued is how many requests, running and waiting, the simulated engine takes;
	// further ones it refuses, as vLLM with --max-num-queued-reqs. 0 is no bound.
	MaxQueued int `yaml:"max_queued"`
	// Reopen is in the place of a published arm's rule of when to lend again: idle,
	// which it is if empty, or settled.
	Reopen string `yaml:"reopen"`
	// Speed is a further factor on the simulated engine's steps, by which an effect
	// of known size is planted. 0 is 1.
	Speed float64 `yaml:"speed"`
}

// DefaultPolicy names the default policy in the place of a file.
const DefaultPolicy = "default"

// Direct sends requests straight to the engine.
type Direct struct {
	// Priority of each class, lower first. None at all is first come first served.
	Priority map[string]int `yaml:"priority"`
	// Attempts is how often clients send a request that the engine refuses, at most.
	// They wait Backoff before the second, and each time twice as long, up to
	// sim.MaxBackoff, times the entry's jitter. 0 and 1 are once.
	Attempts int      `yaml:"attempts"`
	Backoff  Duration `yaml:"backoff"`
}

// EngineAddress stands for the engine's host:port in what starts a Proxy.
const EngineAddress = "{engine}"

// Proxy is the operator's own gateway, live only.
type Proxy struct {
	URL   string   `yaml:"url"`
	Start []string `yaml:"start"` // EngineAddress in it is replaced
	Stop  []string `yaml:"stop"`
	Ready Duration `yaml:"ready"`
	// Headers that tell the proxy a request's class, by class.
	Headers map[string]map[string]string `yaml:"headers"`
}

// Workload is where the traces come from, and how they are sent.
type Workload struct {
	Profile string `yaml:"profile"`
	Seeds   string `yaml:"seeds"` // such as 1-30 or 1,4,7-9

	Traces      string `yaml:"traces"`      // directory of files
	Interactive string `yaml:"interactive"` // recorded logs, together one trace
	Batch       string `yaml:"batch"`

	Limit    int      `yaml:"limit"`    // most requests of a recorded trace, 0 for all
	Duration Duration `yaml:"duration"` // of a recorded trace, 0 for all
	Speedup  float64  `yaml:"speedup"`  // requests arrive so many times sooner, 0 is 1

	// Patience of a class's clients: so long after its arrival a request whose answer
	// is not complete is given up. A class that is absent waits for ever.
	Patience map[string]Duration `yaml:"patience"`
	// Tenants that requests are dealt to, the first gets most; 0 is none.
	Tenants int `yaml:"tenants"`
	// ForcedOutput makes each answer as long as the trace says, where the engine can.
	ForcedOutput bool `yaml:"forced_output"`
	// TextPrompts sends prompts as text, about as long, in the place of token ids.
	TextPrompts bool `yaml:"text_prompts"`
	// Requests that arrive within Warmup are sent and recorded, and measure nothing.
	Warmup Duration `yaml:"warmup"`
	// Prime is how many requests of each class are sent, and forgotten, before a run.
	Prime int `yaml:"prime"`
	// Drain is how long after the last arrival answers are waited for.
	Drain Duration `yaml:"drain"`
}

// OnTime is what "on time" means, and whose requests it is asked of.
type OnTime struct {
	Class  string   `yaml:"class"`
	Window string   `yaml:"window"` // return, borrow or all
	TTFT   Duration `yaml:"ttft"`
	E2E    Duration `yaml:"e2e"`
}

// Windows of a trace.
const (
	ReturnWindow = "return"
	BorrowWindow = "borrow"
	AllWindow    = "all"
)

// Compare says what decides: first that the treatment does no harm, then that it
// gains something.
type Compare struct {
	Baseline  string      `yaml:"baseline"`
	Treatment string      `yaml:"treatment"`
	NoHarm    []Criterion `yaml:"no_harm"`
	Gain      Criterion   `yaml:"gain"`
}

// Criterion is a metric and by how much it may be worse (no harm), or has to be
// better (gain).
type Criterion struct {
	Metric string `yaml:"metric"`
	Margin Margin `yaml:"margin"`
}

// Margin is a share of the baseline (5%), or a difference in the metric's own
// unit (0.5pp of a share, or a plain number).
type Margin struct {
	Value    float64
	Relative bool
	Points   bool // it was written in percentage points, which only a share has
}

// Limits of the gates; 0 is the default, DefaultLimits.
type Limits struct {
	ScheduleDelay      Duration `yaml:"schedule_delay_p99"`   // between the intended send and the real one
	ScheduleDelayShare float64  `yaml:"schedule_delay_share"` // of on_time's ttft; the smaller of the two binds
	RateOff            float64  `yaml:"rate_off"`             // share by which the sent rate may miss the trace's
	GeneratorCPU       float64  `yaml:"generator_cpu"`        // share of one processor
	GCPause            Duration `yaml:"gc_pause"`             // the generator's longest
	ClockDrift         Duration `yaml:"clock_drift"`          // wall clock against the monotonic one, over a run
	StartKV            float64  `yaml:"start_kv"`             // share of the KV pool by which two arms' starts may differ
	MemoryPressure     Duration `yaml:"memory_pressure"`      // in which something waited for memory
	BatchDry           float64  `yaml:"batch_dry"`            // share of the time without a batch request to serve
}

// DefaultLimits are those of the gates where a plan has none.
func DefaultLimits() Limits {
	return Limits{
		ScheduleDelay: Duration(10 * time.Millisecond), ScheduleDelayShare: 0.02, RateOff: 0.01, GeneratorCPU: 0.7,
		GCPause: Duration(5 * time.Millisecond), ClockDrift: Duration(50 * time.Millisecond), StartKV: 0.01, BatchDry: 0.01,
	}
}

// Stop ends the comparison: after so many pairs, or, looked at after every pair,
// when so many of at most AtMost count, or when an e-process has reached a value.
// To wait for pairs that count biases nothing: what makes a pair invalid does not
// look at what its runs achieved.
type Stop struct {
	Pairs    int     `yaml:"pairs"` // 0 is one for each source
	EProcess float64 `yaml:"e_process"`
	AtMost   int     `yaml:"at_most"` // pairs that are run
}

// Duration is a time.Duration that is written like 5s in a plan.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

func (m Margin) String() string {
	if m.Relative {
		return strconv.FormatFloat(100*m.Value, 'g', 6, 64) + "%"
	}
	return strconv.FormatFloat(m.Value, 'g', 6, 64)
}

// PublishedArms are the arms of the published experiment that have admission.
func PublishedArms() []string {
	return []string{"static", "static-queued", "lending", "lending-queued"}
}

// Arm returns a named arm; nil where there is none.
func (p *Plan) Arm(name string) *Arm {
	if i := slices.IndexFunc(p.Arms, func(a Arm) bool { return a.Name == name }); i >= 0 {
		return &p.Arms[i]
	}
	return nil
}

// Clients are what the clients of an arm do.
func (p *Plan) Clients(a *Arm) sim.Clients {
	c := sim.Clients{Patience: map[string]time.Duration{}}
	for class, d := range p.Workload.Patience {
		c.Patience[class] = time.Duration(d)
	}
	if a.Direct != nil {
		c.Attempts, c.Backoff = a.Direct.Attempts, time.Duration(a.Direct.Backoff)
	}
	return c
}

// Of tells whether a request is of those that on_time is asked of.
func (o *OnTime) Of(l *sim.RequestLine) bool {
	return l.Class == o.Class && !l.Warmup && l.Outcome != sim.Skipped && (o.Window == AllWindow || l.Window == o.Window)
}

// Met tells whether a request was on time. What was refused, failed or left
// without an end was not.
func (o *OnTime) Met(l *sim.RequestLine) bool {
	return l.Outcome == sim.Completed && l.FirstTokenMS != nil && l.DoneMS != nil &&
		*l.FirstTokenMS-*l.ArrivalMS <= ms(o.TTFT) && *l.DoneMS-*l.ArrivalMS <= ms(o.E2E)
}

// ms is a duration in milliseconds.
func ms(d Duration) float64 { return float64(d) / float64(time.Millisecond) }
