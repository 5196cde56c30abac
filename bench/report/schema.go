package report

import (
	"time"

	"headgate/bench"
)

// Schema names the form of report.json. It changes when a field changes its meaning or goes.
const Schema = "headgate.bench.report/1"

const (
	level    = 0.95
	flipSeed = 1 // of what is drawn above 40 pairs
	// p99Requests are the requests below which a run's p99 is its luck, and is not shown.
	p99Requests = bench.P99Requests
)

// Scales of effects.
const (
	LogRatio   = "log_ratio"  // ln(treatment / baseline)
	Difference = "difference" // treatment - baseline, in the metric's unit
)

// Roles of effects.
const (
	RoleNoHarm    = "no_harm"   // decides, first
	RoleGain      = "gain"      // decides, after all no_harm
	RoleSecondary = "secondary" // tested, with Holm's adjustment; decides nothing
	RoleDescribed = "described" // not tested
)

// Report is everything that is said of a comparison. Times of requests are in the units
// that names and Unit fields say.
type Report struct {
	Schema string `json:"schema"`
	Plan   Plan   `json:"plan"`
	// Evidence is where the runs are from: one directory, or the baseline's and the treatment's.
	Evidence []Source `json:"evidence"`
	Analysis Settings `json:"analysis"`

	Verdict string   `json:"verdict"` // pass, fail or inconclusive
	Reasons []string `json:"reasons"` // of the verdict, in words
	Notes   []string `json:"notes"`   // what else a reader has to know: deviations, what was not measured

	// Decisions are the plan's criteria in the order in which they are tested.
	Decisions []Effect `json:"decisions"`
	Secondary []Effect `json:"secondary"`
	Described []Effect `json:"described"`
	Floor     *Floor   `json:"noise_floor"` // null where no A/A run is known

	Shift []Quantile `json:"shift"` // of TTFT, log ratios
	Arms  []Arm      `json:"arms"`  // the two compared first
	Pairs []Pair     `json:"pairs"` // in the plan's order
	Runs  []Run      `json:"runs"`  // in the order of running, the baseline's directory first
}

// Plan is what was registered.
type Plan struct {
	Name       string `json:"name"`
	Hypothesis string `json:"hypothesis"`
	SHA256     string `json:"sha256"`
	Runner     string `json:"runner"`
	Baseline   string `json:"baseline"`
	Treatment  string `json:"treatment"`
	// Registered tells whether the two arms are those that the plan compares.
	Registered bool   `json:"registered"`
	OnTime     OnTime `json:"on_time"`
	// PairsPlanned is the number of pairs after which the plan is judged, or the most where it
	// may stop early; 0 where the directory does not tell.
	PairsPlanned int `json:"pairs_planned"`
	// StopAt is the e-process' value at which the plan may stop; 0 for a fixed number of pairs.
	StopAt float64 `json:"stop_at,omitempty"`
}

// OnTime is the objective.
type OnTime struct {
	Class  string  `json:"class"`
	Window string  `json:"window"`
	TTFTMS float64 `json:"ttft_ms"`
	E2EMS  float64 `json:"e2e_ms"`
}

// Source is one directory of evidence.
type Source struct {
	PlanSHA256 string            `json:"plan_sha256"`
	Runner     string            `json:"runner"`
	Version    string            `json:"version"` // of headgate
	Created    time.Time         `json:"created"`
	Host       bench.Host        `json:"host"`
	Files      map[string]string `json:"files,omitempty"`
}

// Settings are what figures depend on beside the plan.
type Settings struct {
	Level       float64 `json:"level"`
	FlipSeed    int     `json:"flip_seed"`
	P99Requests int     `json:"p99_requests"`
}

// Effect is one metric, treatment against baseline.
type Effect struct {
	Role   string `json:"role"`
	Metric string `json:"metric"`
	Unit   string `json:"unit"`
	Better string `json:"better"` // higher or lower
	// Scale of Values, Estimate, Interval, Bound, Margin, MDE and FloorMDE: LogRatio or
	// Difference.
	Scale  string      `json:"scale"`
	Values []PairValue `json:"values"`
	// LeftOut are pairs that count and have no value of this metric.
	LeftOut []LeftOut `json:"left_out,omitempty"`

	Estimate Number   `json:"estimate"` // Hodges-Lehmann; null where no pair's effect is known
	Interval Interval `json:"interval"` // two-sided, exact (Walsh)
	// MDE is the effect that as many pairs with the same spread find with 80 % power;
	// infinite where the spread is.
	MDE Number `json:"mde"`

	Margin *Number `json:"margin,omitempty"` // of a criterion
	// Bound is one-sided, on the side of the harm: of RoleNoHarm.
	Bound *Bound `json:"bound,omitempty"`
	// P is the two-sided sign-flip test's, against the margin for RoleGain, or, in a plan
	// that may stop early, the e-process'. Absent where nothing is tested.
	P     *Number `json:"p,omitempty"`
	PHolm *Number `json:"p_holm,omitempty"` // of RoleSecondary
	// EProcess is what decides in a plan that may stop early.
	EProcess *EProcess `json:"e_process,omitempty"`
	// FloorMDE is the MDE of as many pairs if their spread were the rig's own noise.
	FloorMDE *Number `json:"floor_mde,omitempty"`

	// Verdict is pass, fail or inconclusive for a criterion; better, worse or could not tell for
	// RoleSecondary.
	Verdict string `json:"verdict,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// PairValue is a metric in one pair. Effect is null where it is not known, as of two
// infinite values.
type PairValue struct {
	Source    string `json:"source"`
	Baseline  Number `json:"baseline"`
	Treatment Number `json:"treatment"`
	Effect    Number `json:"effect"`
}

// LeftOut is a pair that says nothing of a metric.
type LeftOut struct {
	Source string `json:"source"`
	Why    string `json:"why"`
}

// Interval is a range that holds the true value with the confidence Level, which is
// exact. It is below Asked where so few pairs have none of that level.
type Interval struct {
	Low   Number  `json:"low"`
	High  Number  `json:"high"`
	Level Number  `json:"level"`
	Asked float64 `json:"asked"`
}

// Bound is an interval that is open on one side.
type Bound struct {
	Value Number  `json:"value"`
	Level Number  `json:"level"`
	Asked float64 `json:"asked"`
}

// EProcess is evidence that may be looked at after every pair: of the signs of the
// effects less the margin.
type EProcess struct {
	E        Number `json:"e"`
	Greatest Number `json:"greatest"`
	Plus     int    `json:"plus"`
	Minus    int    `json:"minus"`
	Ties     int    `json:"ties"`
	// Reached is the number of pairs with which it was first at the plan's value, 0 where it never was.
	Reached int `json:"reached"`
	// Above tells whether most signs were positive then.
	Above bool `json:"above"`
}

// Floor is the rig's noise: one arm against itself.
type Floor struct {
	Of       string       `json:"of"` // in words
	Baseline string       `json:"baseline"`
	Other    string       `json:"other"`
	Runs     []Run        `json:"runs,omitempty"` // of another directory
	Pairs    []Pair       `json:"pairs"`
	Noise    []MetricBase `json:"noise"`
}

// MetricBase is the noise of one metric.
type MetricBase struct {
	Metric string      `json:"metric"`
	Unit   string      `json:"unit"`
	Scale  string      `json:"scale"`
	Values []PairValue `json:"values"`
	// SD and P95 (of the effects' size) are of the effects' scale. The others are p-values: of
	// a difference of the arm from itself, of second run against first, of a trend of the
	// metric and of a trend of the difference.
	SD       Number `json:"sd"`
	P95      Number `json:"p95"`
	Flip     Number `json:"p_flip"`
	Position Number `json:"p_position"`
	Trend    Number `json:"p_trend"`
	Drift    Number `json:"p_drift"`
	// Rejected says why no comparison of this metric on this rig is to be believed, and
	// Unknown why there is no noise floor of it.
	Rejected []string `json:"rejected,omitempty"`
	Unknown  string   `json:"unknown,omitempty"`
}

// Quantile is the effect on one quantile of TTFT.
type Quantile struct {
	Quantile float64  `json:"quantile"`
	Shown    bool     `json:"shown"` // false: some run has too few requests, and nothing else is set
	Estimate Number   `json:"estimate"`
	Interval Interval `json:"interval"`
}

// Arm is what an arm's runs say together: for the two compared the runs of pairs
// that count, for others those that are valid.
type Arm struct {
	Name    string      `json:"name"`
	Runs    int         `json:"runs"`
	Metrics []ArmMetric `json:"metrics"`
	Total   Counts      `json:"total"`
	OnTime  Tally       `json:"on_time"`
	// ViolationsPer10k are of 10,000 offered requests that on_time is asked of.
	ViolationsPer10k Number         `json:"violations_per_10k"`
	WorstMinute      *WorstMinute   `json:"worst_minute"` // of one run
	WorstTenant      *Tenant        `json:"worst_tenant"` // over all runs
	Beside           BesideRequests `json:"beside_requests"`
}

// ArmMetric is a metric over an arm's runs.
type ArmMetric struct {
	Metric string `json:"metric"`
	Unit   string `json:"unit"`
	Runs   int    `json:"runs"` // that have a value
	Median Number `json:"median"`
	Worst  Number `json:"worst"`
	// WorstSource names the trace, and so the seed, of the first run with that value.
	WorstSource string `json:"worst_source"`
}

// Counts are requests, by what came of them, and tokens. Requests of the warm-up and
// those that no arm was offered are in nothing but their own fields.
type Counts struct {
	Offered      int `json:"offered"`
	Completed    int `json:"completed"`
	Refused      int `json:"refused"`
	Failed       int `json:"failed"`
	Aborted      int `json:"aborted"`
	TimedOut     int `json:"timed_out"`
	Skipped      int `json:"skipped"`
	Warmup       int `json:"warmup"`
	BatchDone    int `json:"batch_completed"`
	BatchTokens  int `json:"batch_tokens_in_time"` // prompt and output, of answers complete at the trace's end
	PromptTokens int `json:"prompt_tokens"`        // of completed requests
	OutputTokens int `json:"output_tokens"`
	Reclaims     int `json:"reclaims"`
	Preemptions  int `json:"preemptions"`
	WastedTokens int `json:"wasted_tokens"`
}

// Tally counts requests, and those of them that were on time.
type Tally struct {
	Offered int `json:"offered"`
	Met     int `json:"met"`
}

// WorstMinute is the minute of arrival with the lowest on-time share, the earliest of
// those with the same.
type WorstMinute struct {
	Source string `json:"source"`
	Minute int    `json:"minute"` // since the trace's start, from 0
	Tally
}

// Tenant is a tenant's requests.
type Tenant struct {
	Tenant string `json:"tenant"`
	Tally
}

// BesideRequests are figures that are not in the requests' lines but in the runs'
// files: recalls, and what the timeline saw.
type BesideRequests struct {
	Recalls int `json:"recalls"`
	// Granted, Scheduled and Settled are of recalls, since they were opened.
	Granted   Waits `json:"granted"`
	Scheduled Waits `json:"scheduled"`
	Settled   Waits `json:"settled"`
	// LentSlotS are seconds times slots that were lent, from samples.
	LentSlotS Number `json:"lent_slot_s"`
	// EnginePreemptions are the engine's own count, null where one of them does not tell.
	EnginePreemptions *int64 `json:"engine_preemptions"`
}

// Waits are times of recalls in milliseconds. One that never came is infinite.
type Waits struct {
	MedianMS Number `json:"median_ms"`
	WorstMS  Number `json:"worst_ms"`
	Never    int    `json:"never"`
}

// Pair is one source's two runs, as indices of Runs.
type Pair struct {
	Source    string `json:"source"`
	Baseline  int    `json:"baseline"`
	Treatment int    `json:"treatment"`
	// TreatmentFirst tells which ran first.
	TreatmentFirst bool `json:"treatment_first"`
	// Excluded says why the pair is out of everything; "" for one that counts.
	Excluded string `json:"excluded,omitempty"`
}

// Run is one run.
type Run struct {
	Evidence int       `json:"evidence"` // index
	Run      int       `json:"run"`
	Arm      string    `json:"arm"`
	Source   string    `json:"source"`
	Seed     uint32    `json:"seed"`
	Trace    string    `json:"trace_sha256"`
	Started  time.Time `json:"started"`
	// Requests is the file of its requests, and its hash, by which it is found.
	Requests       string `json:"requests"`
	RequestsSHA256 string `json:"requests_sha256"`
	// Invalid and Unknown are gates: what they say against the run, and those whose
	// evidence nobody could see. Censored are metrics that a gate leaves without a value,
	// and Hidden those of which it has too few requests.
	Invalid  []string `json:"invalid"`
	Waived   []string `json:"waived,omitempty"`
	Unknown  []string `json:"unknown,omitempty"`
	Censored []string `json:"censored,omitempty"`
	Hidden   []string `json:"hidden,omitempty"`

	Counts           Counts            `json:"counts"`
	OnTime           Tally             `json:"on_time"`
	ViolationsPer10k Number            `json:"violations_per_10k"`
	Metrics          map[string]Number `json:"metrics"`
	WorstMinute      *WorstMinute      `json:"worst_minute"`
	WorstTenant      *Tenant           `json:"worst_tenant"`
}
