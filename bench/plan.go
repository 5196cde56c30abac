package bench

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"headgate/sim"
	"headgate/trace"
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

// Proxy is the operator's own gateway, live only.
type Proxy struct {
	URL   string   `yaml:"url"`
	Start []string `yaml:"start"`
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

// UnmarshalYAML reads a duration as Go writes them.
func (d *Duration) UnmarshalYAML(n ast.Node) error {
	v, err := time.ParseDuration(n.GetToken().Value)
	if err != nil {
		return misread(n, "allowed are durations such as 250ms, 5s and 10m")
	}
	*d = Duration(v)
	return nil
}

// misread is the error about a value of the wrong form, with its place.
func misread(n ast.Node, allowed string) error {
	t := n.GetToken()
	return fmt.Errorf("%d:%d: value %s: %s", t.Position.Line, t.Position.Column, t.Value, allowed)
}

func (d Duration) String() string { return time.Duration(d).String() }

// UnmarshalYAML reads 5%, 0.5pp or a number.
func (m *Margin) UnmarshalYAML(n ast.Node) error {
	number, scale := n.GetToken().Value, 1.0
	if s, ok := strings.CutSuffix(number, "%"); ok {
		number, scale, m.Relative = s, 0.01, true
	} else if s, ok := strings.CutSuffix(number, "pp"); ok {
		number, scale, m.Points = s, 0.01, true
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return misread(n, "allowed are 5% of the baseline, 0.5pp of a share, and a number in the metric's unit")
	}
	m.Value = v * scale
	return nil
}

func (m Margin) String() string {
	if m.Relative {
		return strconv.FormatFloat(100*m.Value, 'g', 6, 64) + "%"
	}
	return strconv.FormatFloat(m.Value, 'g', 6, 64)
}

// maxPlan bounds a plan's file, in bytes.
const maxPlan = 1 << 20

// Load reads a plan. Paths in it are relative to its own directory.
func Load(file string) (*Plan, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if info.Size() > maxPlan {
		return nil, fmt.Errorf("plan %s has %d bytes: allowed are %d", file, info.Size(), maxPlan)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return Parse(file, b)
}

// Parse reads a plan; file is its name in errors, and where its paths begin.
// Whatever is wrong with it is in the error, a line for each thing.
func Parse(file string, b []byte) (*Plan, error) {
	p := &Plan{raw: slices.Clone(b), file: file}
	if err := yaml.UnmarshalWithOptions(b, p, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("plan %s: %w", file, readable(err))
	}
	// The reader takes the first document, and would leave what another says unsaid.
	if doc, err := parser.ParseBytes(b, 0); err == nil && len(doc.Docs) > 1 {
		return nil, fmt.Errorf("plan %s: a second document: allowed is one in a file", file)
	}
	sum := sha256.Sum256(b)
	p.sha256 = hex.EncodeToString(sum[:])
	p.setDefaults()
	if err := p.err(); err != nil {
		return nil, err
	}
	return p, nil
}

// err is everything that Validate reports.
func (p *Plan) err() error {
	var all []error
	p.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("plan %s: %s is %v: allowed is %s", p.file, path, value, allowed))
	})
	return errors.Join(all...)
}

// SetRunner runs the plan by another runner than it says, if it can be.
func (p *Plan) SetRunner(runner string) error {
	p.Runner = runner
	return p.err()
}

// readable is a reader's error in one line: the place, and for a key that is
// none, the keys there are that look like it.
func readable(err error) error {
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		key, at := unknown.Token.Value, unknown.Token.Position
		text := fmt.Sprintf("%d:%d: %s is no key here", at.Line, at.Column, key)
		if like := nearest(key, planKeys()); like != "" {
			text += ": did you mean " + like + "?"
		}
		return errors.New(text)
	}
	return errors.New(strings.TrimSpace(yaml.FormatError(err, false, false)))
}

// SHA256 is the plan's hash, over its bytes, in hexadecimal.
func (p *Plan) SHA256() string { return p.sha256 }

// Bytes are the plan as it was read.
func (p *Plan) Bytes() []byte { return p.raw }

// Path is a path of the plan's, from where the program runs.
func (p *Plan) Path(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(p.file), path)
}

func (p *Plan) setDefaults() {
	or(&p.Runner, Live)
	or(&p.OnTime.Class, trace.Interactive)
	or(&p.OnTime.Window, ReturnWindow)
	or(&p.Workload.Speedup, 1)
	or(&p.Workload.Drain, Duration(2*time.Minute))
	if p.Workload.Profile != "" {
		or(&p.Workload.Seeds, "1-30")
	}
	if s := p.Engine.Simulated; s != nil {
		or(&s.Speed, 1)
	}
	if s := p.Engine.Served; s != nil {
		or(&s.Ready, Duration(time.Minute))
	}
	for i := range p.Arms {
		a := &p.Arms[i]
		or(&a.Speed, 1)
		if a.Proxy != nil {
			or(&a.Proxy.Ready, Duration(time.Minute))
		}
	}
	d := DefaultLimits()
	g := &p.Gates
	or(&g.ScheduleDelay, d.ScheduleDelay)
	or(&g.ScheduleDelayShare, d.ScheduleDelayShare)
	or(&g.RateOff, d.RateOff)
	or(&g.GeneratorCPU, d.GeneratorCPU)
	or(&g.GCPause, d.GCPause)
	or(&g.ClockDrift, d.ClockDrift)
	or(&g.StartKV, d.StartKV)
	or(&g.BatchDry, d.BatchDry)
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Kinds of engine.
var kinds = []string{"vllm", "sglang", "llamacpp", "openai"}

// PublishedArms are the arms of the published experiment that have admission.
func PublishedArms() []string {
	return []string{"static", "static-queued", "lending", "lending-queued"}
}

// Validate reports every value that is impossible.
func (p *Plan) Validate(bad func(path string, value any, allowed string)) {
	if p.Name == "" || strings.ContainsAny(p.Name, "\n\r\t") {
		bad("name", strconv.Quote(p.Name), "a line of text")
	}
	if p.Hypothesis == "" {
		bad("hypothesis", `""`, "what the comparison is to show, in words")
	}
	if p.Runner != Live && p.Runner != Sim {
		bad("runner", p.Runner, Live+" or "+Sim)
	}
	p.Engine.validate(bad)
	p.validateArms(bad)
	p.Workload.validate(bad)
	if p.OnTime.Window != ReturnWindow && p.OnTime.Window != BorrowWindow && p.OnTime.Window != AllWindow {
		bad("on_time.window", p.OnTime.Window, "return, borrow or all")
	}
	if p.OnTime.TTFT <= 0 {
		bad("on_time.ttft", p.OnTime.TTFT, "a time above 0")
	}
	if p.OnTime.E2E < p.OnTime.TTFT {
		bad("on_time.e2e", p.OnTime.E2E, "a time from on_time.ttft on")
	}
	p.validateCompare(bad)
	p.Gates.validate(bad)
	for i, w := range p.Waive {
		if !slices.Contains(GateNames(), w) {
			bad(fmt.Sprintf("waive[%d]", i), w, strings.Join(GateNames(), ", "))
		}
	}
	s := &p.Stop
	switch {
	case s.Pairs < 0:
		bad("stop.pairs", s.Pairs, "pairs from 1, or 0 for one for each source")
	case s.EProcess != 0 && s.Pairs != 0:
		bad("stop.pairs", s.Pairs, "0 beside e_process: a comparison stops by one rule")
	case s.EProcess != 0 && s.EProcess <= 1:
		bad("stop.e_process", s.EProcess, "a value above 1, such as 20")
	case s.EProcess == 0 && s.Pairs == 0 && s.AtMost != 0, s.AtMost < 0:
		bad("stop.at_most", s.AtMost, "pairs from 1 on, beside e_process or pairs")
	case s.AtMost != 0 && s.AtMost < s.Pairs:
		bad("stop.at_most", s.AtMost, fmt.Sprintf("as many as stop.pairs, %d, or more", s.Pairs))
	}
}

func (e *Engine) validate(bad func(path string, value any, allowed string)) {
	if (e.Simulated == nil) == (e.Served == nil) {
		bad("engine", given(e.Simulated != nil, "simulated", e.Served != nil, "served"), "one of simulated and served")
	}
	if s := e.Simulated; s != nil {
		if !(s.Speed > 0 && s.Speed <= 1000) {
			bad("engine.simulated.speed", s.Speed, "a factor above 0 and up to 1000")
		}
		for _, n := range []struct {
			name string
			v    int
		}{{"slots", s.Slots}, {"kv_blocks", s.KVBlocks}, {"block_size", s.BlockSize}, {"max_model_len", s.MaxModelLen}, {"batched_tokens", s.BatchedTokens}} {
			if n.v < 0 {
				bad("engine.simulated."+n.name, n.v, "a number from 1, or 0 for the published experiment's")
			}
		}
	}
	if s := e.Served; s != nil {
		if !isURL(s.URL) {
			bad("engine.served.url", strconv.Quote(s.URL), "http://host:port, without a path")
		}
		if !slices.Contains(kinds, s.Kind) {
			bad("engine.served.kind", strconv.Quote(s.Kind), strings.Join(kinds, ", "))
		}
		if s.Slots < 1 {
			bad("engine.served.slots", s.Slots, "sequences that it runs at once, from 1")
		}
		if s.KVTokens < 0 {
			bad("engine.served.kv_tokens", s.KVTokens, "tokens from 1, or 0 where the engine tells")
		}
		if s.Ready <= 0 {
			bad("engine.served.ready", s.Ready, "a time above 0")
		}
		if len(s.Stop) > 0 && len(s.Start) == 0 {
			bad("engine.served.stop", s.Stop, "a command beside start: what was not started is not stopped")
		}
	}
}

func (p *Plan) validateArms(bad func(path string, value any, allowed string)) {
	if len(p.Arms) < 2 {
		bad("arms", len(p.Arms), "two arms or more")
	}
	seen := map[string]bool{}
	for i := range p.Arms {
		a := &p.Arms[i]
		at := fmt.Sprintf("arms[%d].", i)
		if !validArm(a.Name) || seen[a.Name] {
			bad(at+"name", strconv.Quote(a.Name), "a name of 1 to 40 letters, digits and any of -_. that no other arm has")
		}
		seen[a.Name] = true
		ways := given(a.Direct != nil, "direct", a.Published != "", "published", a.Policy != "", "policy", a.Proxy != nil, "proxy")
		if len(ways) != 1 {
			bad(at[:len(at)-1], ways, "one of direct, published, policy and proxy")
		}
		if s := p.Engine.Served; s != nil && !s.Priority && a.Direct != nil && len(a.Direct.Priority) > 0 {
			bad(at+"direct.priority", a.Direct.Priority, "none on an engine that does not order by it; engine.served.priority: true says that it does")
		}
		if a.Published != "" && !slices.Contains(PublishedArms(), a.Published) {
			bad(at+"published", a.Published, strings.Join(PublishedArms(), ", "))
		}
		if a.Slots < 0 || a.Slots > 0 && a.Policy == "" && a.Published == "" {
			bad(at+"slots", a.Slots, "0 for the engine's own, or requests from 1 on of an arm with a policy")
		}
		if a.IdleAfter < 0 || a.IdleAfter > 0 && a.Published == "" {
			bad(at+"idle_after", a.IdleAfter, "0, or a time of a published arm: a policy has its own")
		}
		if a.Reopen != "" && (a.Published == "" || a.Reopen != "idle" && a.Reopen != "settled") {
			bad(at+"reopen", a.Reopen, "idle or settled, of a published arm: a policy has its own")
		}
		if x := a.Proxy; x != nil {
			if !isURL(x.URL) {
				bad(at+"proxy.url", strconv.Quote(x.URL), "http://host:port, without a path")
			}
			if p.Runner == Sim {
				bad(at+"proxy", x.URL, "an arm of runner live")
			}
			if len(x.Stop) > 0 && len(x.Start) == 0 {
				bad(at+"proxy.stop", x.Stop, "a command beside start: what was not started is not stopped")
			}
		}
		if d := a.Direct; d != nil && (d.Attempts < 0 || d.Attempts > 100) {
			bad(at+"direct.attempts", d.Attempts, "0 to 100 times")
		}
		if d := a.Direct; d != nil && (d.Backoff < 0 || d.Attempts > 1 && d.Backoff == 0) {
			bad(at+"direct.backoff", d.Backoff, "a time above 0 beside attempts")
		}
		if a.MaxQueued < 0 || a.MaxQueued > 0 && p.Engine.Simulated == nil {
			bad(at+"max_queued", a.MaxQueued, "requests from 1 on of a simulated engine, or 0 for no bound")
		}
		if !(a.Speed > 0 && a.Speed <= 100) || a.Speed != 1 && p.Engine.Simulated == nil {
			bad(at+"speed", a.Speed, "a factor above 0 and up to 100, of a simulated engine")
		}
	}
	if p.Runner == Sim && p.Engine.Simulated == nil {
		bad("engine", "served", "simulated, with runner sim")
	}
}

func (w *Workload) validate(bad func(path string, value any, allowed string)) {
	origins := given(w.Profile != "", "profile", w.Traces != "", "traces", w.Interactive+w.Batch != "", "interactive and batch")
	if len(origins) != 1 {
		bad("workload", origins, "one origin of traces: profile with seeds, traces, or interactive with batch")
	}
	if w.Profile != "" && !slices.Contains(trace.Names(), w.Profile) {
		bad("workload.profile", w.Profile, strings.Join(trace.Names(), ", "))
	}
	if w.Profile != "" {
		if _, err := Seeds(w.Seeds); err != nil {
			bad("workload.seeds", w.Seeds, err.Error())
		}
	} else if w.Seeds != "" {
		bad("workload.seeds", w.Seeds, "seeds beside profile")
	}
	if w.Limit < 0 {
		bad("workload.limit", w.Limit, "requests from 1, or 0 for all")
	}
	for _, d := range []struct {
		name string
		v    Duration
	}{{"duration", w.Duration}, {"warmup", w.Warmup}, {"drain", w.Drain}} {
		if d.v < 0 {
			bad("workload."+d.name, d.v, "a time from 0 on")
		}
	}
	if w.Profile != "" && (w.Limit != 0 || w.Duration != 0) {
		bad("workload.limit", w.Limit, "0, and no duration, beside profile: a drawn trace is not cut")
	}
	if !(w.Speedup > 0 && w.Speedup <= 1000) {
		bad("workload.speedup", w.Speedup, "a factor above 0 and up to 1000")
	}
	for _, class := range slices.Sorted(maps.Keys(w.Patience)) {
		if v := w.Patience[class]; v <= 0 {
			bad("workload.patience."+class, v, "a time above 0; a class that is not named waits for ever")
		}
	}
	if w.Tenants < 0 || w.Tenants > 1000 {
		bad("workload.tenants", w.Tenants, "0 to 1000 tenants")
	}
	if w.Prime < 0 || w.Prime > 1000 {
		bad("workload.prime", w.Prime, "0 to 1000 requests")
	}
}

func (p *Plan) validateCompare(bad func(path string, value any, allowed string)) {
	c := &p.Compare
	var names []string
	for i := range p.Arms {
		names = append(names, p.Arms[i].Name)
	}
	for _, a := range []struct{ at, name string }{{"baseline", c.Baseline}, {"treatment", c.Treatment}} {
		if !slices.Contains(names, a.name) {
			bad("compare."+a.at, strconv.Quote(a.name), "the name of an arm: "+strings.Join(names, ", "))
		}
	}
	if c.Baseline == c.Treatment {
		bad("compare.treatment", strconv.Quote(c.Treatment), "another arm than the baseline")
	}
	criterion := func(at string, k *Criterion) {
		m, ok := MetricNamed(k.Metric)
		if !ok {
			bad(at+".metric", strconv.Quote(k.Metric), strings.Join(MetricNames(), ", "))
			return
		}
		if k.Margin.Value < 0 {
			bad(at+".margin", k.Margin, "a margin from 0 on")
		}
		if k.Margin.Relative && k.Margin.Value >= 1 {
			bad(at+".margin", k.Margin, "below 100% of the baseline")
		}
		if !k.Margin.Relative && k.Margin.Value > 1 && m.Unit == "share" {
			bad(at+".margin", k.Margin, "at most 1 for a share: 0.5pp is half a hundredth")
		}
		if k.Margin.Points && m.Unit != "share" {
			bad(at+".margin", fmt.Sprintf("%gpp", 100*k.Margin.Value), "a share of the baseline, as 5%, or a number of "+m.Unit+": only shares have percentage points")
		}
	}
	for i := range c.NoHarm {
		criterion(fmt.Sprintf("compare.no_harm[%d]", i), &c.NoHarm[i])
	}
	if len(c.NoHarm) == 0 {
		bad("compare.no_harm", "empty", "one criterion or more")
	}
	criterion("compare.gain", &c.Gain)
	for i, name := range p.Secondary {
		if _, ok := MetricNamed(name); !ok {
			bad(fmt.Sprintf("secondary[%d]", i), name, strings.Join(MetricNames(), ", "))
		}
	}
}

func (g *Limits) validate(bad func(path string, value any, allowed string)) {
	for _, v := range []struct {
		name string
		v    Duration
	}{{"schedule_delay_p99", g.ScheduleDelay}, {"gc_pause", g.GCPause}, {"clock_drift", g.ClockDrift}, {"memory_pressure", g.MemoryPressure}} {
		if v.v < 0 {
			bad("gates."+v.name, v.v, "a time from 0 on")
		}
	}
	for _, v := range []struct {
		name string
		v    float64
	}{{"schedule_delay_share", g.ScheduleDelayShare}, {"rate_off", g.RateOff}, {"start_kv", g.StartKV}, {"generator_cpu", g.GeneratorCPU}, {"batch_dry", g.BatchDry}} {
		if !(v.v > 0 && v.v <= 1) {
			bad("gates."+v.name, v.v, "a share above 0 and up to 1, such as 0.01")
		}
	}
}

// given lists the names whose conditions hold: condition, name, condition, name.
func given(pairs ...any) []string {
	names := []string{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i].(bool) {
			names = append(names, pairs[i+1].(string))
		}
	}
	return names
}

func validArm(s string) bool {
	return s != "" && len(s) <= 40 && !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
	})
}

// Seeds reads a list of numbers and ranges. The error says what is allowed.
func Seeds(s string) ([]uint32, error) {
	bad := fmt.Errorf("numbers and ranges from 0 to 4294967295, such as 1-30 or 1,4,7-9, no number twice, %d in all", trace.MaxSeeds)
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	seeds, ok := trace.ParseSeeds(strings.Join(parts, ","))
	if !ok {
		return nil, bad
	}
	sorted := slices.Clone(seeds)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(seeds) {
		return nil, bad
	}
	return seeds, nil
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
