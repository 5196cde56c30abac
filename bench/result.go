package bench

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"headgate/sim"
)

// Outcomes that a run in real time has beside those of package sim.
const (
	Aborted  sim.Outcome = "aborted"   // the stream broke off
	TimedOut sim.Outcome = "timed_out" // there was no end when the drain's time was over
)

// Result is one run: what it was, what its gates say, and what was seen beside
// the requests, which are in a file of their own. Offsets in milliseconds are
// since the trace's start unless it is said otherwise.
type Result struct {
	Plan   string `json:"plan_sha256"`
	Run    int    `json:"run"`   // in the order of running, from 1
	Block  int    `json:"block"` // the source's index in the plan, from 0: runs of one block are a pair's
	Order  int    `json:"order"` // within the block, from 0
	Arm    string `json:"arm"`
	Source Source `json:"source"`
	Trace  string `json:"trace_sha256"` // canonical hash of what was sent
	Runner string `json:"runner"`

	Started time.Time `json:"started"`
	WallS   float64   `json:"wall_s"`
	Gates   []Gate    `json:"gates"`
	Engine  Facts     `json:"engine"`
	Recalls []Recall  `json:"recalls"`
	// Timeline has a point every TimelineEvery of the run's time.
	Timeline []Point `json:"timeline"`
	// Requests is the file of the lines, beside this one, and its hash.
	Requests       string `json:"requests"`
	RequestsSHA256 string `json:"requests_sha256"`
}

// TimelineEvery is how far apart the points of a timeline are.
const TimelineEvery = 250 * time.Millisecond

// Source names the trace of a run.
type Source struct {
	Name    string `json:"name"` // in file names; unique in the plan
	Profile string `json:"profile"`
	Seed    uint32 `json:"seed"`
	File    string `json:"file,omitempty"`
}

// Gate is one check of a run's validity.
type Gate struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Unknown is a gate whose evidence this machine or engine does not have. It is
	// not held against the run, and is said.
	Unknown bool     `json:"unknown,omitempty"`
	Value   *float64 `json:"value"` // null where unknown
	Limit   float64  `json:"limit"` // the most that is allowed
	Unit    string   `json:"unit"`
	Words   string   `json:"words"`
	Waived  bool     `json:"waived,omitempty"` // by the plan: reported, and not held against the run
	// Censors are the metrics that the gate, where it is not OK, leaves without a
	// value; the run stays valid for all others. Empty: the run is invalid.
	Censors []string `json:"censors,omitempty"`
}

// Facts are what is known of the engine that a run was on.
type Facts struct {
	Kind         string  `json:"kind"`
	Version      string  `json:"version,omitempty"`
	Model        string  `json:"model"`
	Speed        float64 `json:"speed,omitempty"` // of a simulated one, with the arm's factor
	Slots        int     `json:"slots"`
	KVTokens     int64   `json:"kv_tokens,omitempty"`
	ProcessStart float64 `json:"process_start_s,omitempty"` // Unix time, where the engine tells
	Preemptions  int64   `json:"preemptions"`               // over the run; -1 where the engine does not tell
	// StartKV is the share of its KV that was in use before the run; -1 where it is
	// not told.
	StartKV float64 `json:"start_kv"`
}

// Recall is one recall. Granted, Settled and Scheduled are milliseconds since
// Opened, null where they never came. Scheduled is the moment by which the
// engine surely ran the request, an upper bound where ScheduledFrom is less.
type Recall struct {
	Class         string   `json:"class"`
	OpenedMS      float64  `json:"opened_ms"`
	GrantedMS     *float64 `json:"granted_ms"`
	ScheduledMS   *float64 `json:"scheduled_ms"`
	ScheduledFrom *float64 `json:"scheduled_from_ms,omitempty"`
	SettledMS     *float64 `json:"settled_ms"`
	Reclaims      int      `json:"reclaims"`
}

// Point is how things stood at one moment.
type Point struct {
	AtMS    float64        `json:"at_ms"`
	Running map[string]int `json:"running"` // requests by class: sent on to the engine, or, straight to it, with a first token
	Waiting map[string]int `json:"waiting"` // requests by class: arrived, and not that
	Lent    int            `json:"lent"`    // loans that ran
	// Reclaimed counts the loans that were ended by force up to here.
	Reclaimed int `json:"reclaimed"`
	// The engine's own words; null where it has none.
	EngineRunning *float64 `json:"engine_running,omitempty"`
	EngineWaiting *float64 `json:"engine_waiting,omitempty"`
	KVUse         *float64 `json:"kv_use,omitempty"` // share
}

// Invalid returns the gates that make the run invalid.
func (r *Result) Invalid() []Gate {
	var bad []Gate
	for _, g := range r.Gates {
		if !g.OK && !g.Unknown && !g.Waived && len(g.Censors) == 0 {
			bad = append(bad, g)
		}
	}
	return bad
}

// Censored tells whether a gate leaves a metric of this run without a value.
func (r *Result) Censored(metric string) bool {
	return slices.ContainsFunc(r.Gates, func(g Gate) bool { return !g.OK && !g.Unknown && !g.Waived && slices.Contains(g.Censors, metric) })
}

// Pair is one source's runs of the baseline and the treatment.
type Pair struct {
	Block     int
	Source    Source
	Baseline  *Result
	Treatment *Result
}

// Excluded says why a pair does not count, which does not depend on what its
// runs achieved: it is out if either is invalid. Empty: it counts.
func (p *Pair) Excluded() string {
	var why []string
	for _, r := range []*Result{p.Baseline, p.Treatment} {
		for _, g := range r.Invalid() {
			why = append(why, fmt.Sprintf("%s: %s: %s", r.Arm, g.Name, g.Words))
		}
	}
	return strings.Join(why, "; ")
}

// Censored tells whether a metric has no value in one of the two runs, and so in
// the pair.
func (p *Pair) Censored(metric string) bool {
	return p.Baseline.Censored(metric) || p.Treatment.Censored(metric)
}

// Pairs are the sources of which both runs are there, in the plan's order.
func Pairs(results []Result, baseline, treatment string) []Pair {
	by := map[int]*Pair{}
	for i := range results {
		r := &results[i]
		if r.Arm != baseline && r.Arm != treatment {
			continue
		}
		p := by[r.Block]
		if p == nil {
			p = &Pair{Block: r.Block, Source: r.Source}
			by[r.Block] = p
		}
		if r.Arm == baseline {
			p.Baseline = r
		} else {
			p.Treatment = r
		}
	}
	var pairs []Pair
	for _, p := range by {
		if p.Baseline != nil && p.Treatment != nil {
			pairs = append(pairs, *p)
		}
	}
	slices.SortFunc(pairs, func(a, b Pair) int { return a.Block - b.Block })
	return pairs
}

// Manifest says where and by what a directory's runs were made.
type Manifest struct {
	PlanSHA256 string `json:"plan_sha256"`
	Name       string `json:"name"`
	Runner     string `json:"runner"`
	Version    string `json:"version"` // of headgate
	// Program is the hash of headgate's own file: two that were built from different
	// work may have the same version.
	Program string    `json:"program_sha256,omitempty"`
	Created time.Time `json:"created"`
	Host    Host      `json:"host"`
	// Files are the SHA-256 of the files that the plan names, by their paths in it.
	Files   map[string]string `json:"files,omitempty"`
	Sources int               `json:"sources,omitempty"` // traces that the plan's workload had
	// Deviations are what was done otherwise than the plan says.
	Deviations []string `json:"deviations"`
}

// Host is the machine.
type Host struct {
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	Processors int    `json:"processors"`
	Processor  string `json:"processor,omitempty"`
	MemoryMiB  int    `json:"memory_mib,omitempty"`
	Go         string `json:"go"`
}

// same tells whether a machine's runs can be paired with another's. How much memory
// the kernel leaves differs by a little from one start to the next.
func (h Host) same(o Host) bool {
	h.MemoryMiB, o.MemoryMiB = 0, 0
	return h == o
}

// ThisHost describes the machine that the program runs on.
func ThisHost() Host {
	return Host{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Processors: runtime.GOMAXPROCS(0), Go: runtime.Version(),
		Processor: procField("/proc/cpuinfo", "model name"), MemoryMiB: procKB("/proc/meminfo", "MemTotal") / 1024,
	}
}
