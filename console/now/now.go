// Package now defines what the admin listener says of pools at this moment: /api/session,
// /api/now, /api/live, /api/recalls and /api/traffic. The console shows it, and so does
// headgate top. Names ending in _s are seconds, in _tokens KV tokens or tokens; null is what
// is not known, which is never written as 0.
package now

import "time"

// Session is /api/session: who asks, and what this process has to show.
type Session struct {
	Version  string `json:"version"`
	Operator string `json:"operator"` // whose key was sent; "" where the listener asks for none
	Role     string `json:"role"`     // what it is for: admin or read; without keys admin
	Keys     bool   `json:"keys"`     // the listener asks for a key
	Replica  string `json:"replica"`  // in a fleet
	// Parts are what there is here: pools, batch, fleet, limits.
	Parts []string `json:"parts"`
}

// The parts that a process may have.
const (
	PartPools  = "pools"
	PartBatch  = "batch"
	PartFleet  = "fleet"
	PartLimits = "limits"
)

// Now is /api/now, and an event "now" of /api/live.
type Now struct {
	At       time.Time `json:"at"`
	NotReady string    `json:"not_ready,omitempty"` // why /readyz is 503
	Problems []string  `json:"problems,omitempty"`  // what is wrong while it is ready
	Pools    []Pool    `json:"pools"`
	// Recalls are the newest few of all pools, newest first; of /api/now only.
	Recalls []Recall `json:"recalls,omitempty"`
}

// Amount is so much of each resource.
type Amount struct {
	Slots    int64 `json:"slots"`
	KVTokens int64 `json:"kv_tokens"`
}

// Pool is one pool. Without an engine that has said what it is there are no classes.
type Pool struct {
	Name     string `json:"name"`
	NotReady string `json:"not_ready,omitempty"` // why it takes no requests
	Observes bool   `json:"observes,omitempty"`  // it admits all; the classes are what enforcing would do
	// What operators have switched on.
	Draining      bool `json:"draining,omitempty"`
	LendingPaused bool `json:"lending_paused,omitempty"`
	Bypassed      bool `json:"bypassed,omitempty"`
	// LeaseOver: in a fleet, it has its survival floor only.
	LeaseOver bool     `json:"lease_over,omitempty"`
	Envelope  Amount   `json:"envelope"`
	Used      Amount   `json:"used"`     // by all classes
	Foreign   Amount   `json:"foreign"`  // what engines run that was not sent from here
	Withheld  Amount   `json:"withheld"` // in a fleet, what other replicas may use
	Loans     int      `json:"loans"`    // holds that are loans
	Ghosts    int      `json:"ghosts"`   // holds whose release the engine has not confirmed
	Waiting   int      `json:"waiting"`  // requests in all queues
	Classes   []Class  `json:"classes"`  // by rank: the first is served first
	Engines   []Engine `json:"engines"`
}

// Class is one class of a pool.
type Class struct {
	Name    string `json:"name"`
	Used    Amount `json:"used"`
	Floor   Amount `json:"floor"`
	Unlent  Amount `json:"unlent"`
	Ceiling Amount `json:"ceiling"`
	Hold    Amount `json:"hold"` // what it keeps out of the others' reach at present
	// Borrowed is what it uses beyond its own floor.
	Borrowed Amount `json:"borrowed"`
	Loans    int    `json:"loans"`
	Lending  bool   `json:"lending"` // it lends what it does not keep
	// LendingWhy is why it does not.
	LendingWhy string      `json:"lending_why,omitempty"`
	Queue      int         `json:"queue"`
	Late       int         `json:"late,omitempty"` // of those that wait, who can't be on time any more
	Head       *Head       `json:"head,omitempty"` // who is served next
	Recall     *OpenRecall `json:"recall,omitempty"`
	// Counters since the process began.
	Offered  uint64 `json:"offered"`
	Admitted uint64 `json:"admitted"`
	Refused  uint64 `json:"refused"`
	Reclaims uint64 `json:"reclaims"` // loans of the class that were ended
	Recalls  uint64 `json:"recalls"`  // that the class has opened
}

// Head is the first request of a queue.
type Head struct {
	Request  string   `json:"request"`
	WaitedS  float64  `json:"waited_s"`
	WaitsFor string   `json:"waits_for"` // in words
	Wants    Amount   `json:"wants"`
	Forecast *float64 `json:"forecast_s"` // until it starts
}

// OpenRecall is a recall that is not closed.
type OpenRecall struct {
	Seq    uint64  `json:"seq"`
	SinceS float64 `json:"since_s"`
	Loans  int     `json:"loans"`  // that were lent when it opened and are not back
	Served bool    `json:"served"` // the request that it was opened for is admitted
}

// Engine is one engine of a pool.
type Engine struct {
	Name    string `json:"name"`
	State   string `json:"state"` // ready, loading or down
	Kind    string `json:"kind"`
	Version string `json:"version"`
	Total   Amount `json:"total"`
	Used    Amount `json:"used"`    // by what was sent from here
	Foreign Amount `json:"foreign"` // what it runs beside that
	// What it said itself when it was last looked at.
	Running  int      `json:"running"`
	Waiting  int      `json:"waiting"`
	KVTokens int      `json:"kv_tokens"`
	AgeS     *float64 `json:"age_s"` // of that look; null: none has come yet
	Error    string   `json:"error,omitempty"`
	// Demoted: it did not end what it was asked to, and nothing is reclaimed from it.
	Demoted bool `json:"demoted,omitempty"`
	// SetAsideS is for how long others get its work, because it failed what it was given.
	SetAsideS float64 `json:"set_aside_s,omitempty"`
}

// Recall is one recall: an element of /api/recalls, and of an event "recalls" of /api/live,
// which has those that are new or have come a step further. Seconds count from its opening.
type Recall struct {
	Seq        uint64    `json:"seq"`
	Pool       string    `json:"pool"`
	Class      string    `json:"class"`
	Request    string    `json:"request"`
	Opened     time.Time `json:"opened"`
	Granted    *float64  `json:"granted_s"`
	Admitted   *float64  `json:"admitted_s"`
	Dispatched *float64  `json:"dispatched_s"`
	// The engine began to run the request at Scheduled, or where it does not tell
	// between Scheduled and ScheduledUpper.
	Scheduled      *float64  `json:"scheduled_s"`
	ScheduledUpper *float64  `json:"scheduled_upper_s"`
	FirstToken     *float64  `json:"first_token_s"`
	Settled        *float64  `json:"settled_s"`
	Closed         *float64  `json:"closed_s"`
	Reclaims       []Reclaim `json:"reclaims"`
	LeftOut        int       `json:"reclaims_left_out,omitempty"`
}

// Reclaim is one loan that was ended for a recall.
type Reclaim struct {
	Class     string   `json:"class"`
	Request   string   `json:"request"`
	Hold      uint64   `json:"hold"`
	Sent      *float64 `json:"sent_s"`
	Confirmed *float64 `json:"confirmed_s"`
}

// Traffic is /api/traffic: the last minutes, and what they come to. An event "traffic" of
// /api/live has the newest point alone, and the total with it.
type Traffic struct {
	EveryS  float64 `json:"every_s"`  // between two points
	WindowS float64 `json:"window_s"` // that each point looks back
	Points  []Point `json:"points"`   // oldest first
	// Total is one point over all the time that the points span, with what only it has.
	Total Point `json:"total"`
}

// Point is what requests met in some seconds.
type Point struct {
	At      time.Time      `json:"at"`
	SpanS   float64        `json:"span_s"` // that it looks back; less than a window in the beginning
	Classes []TrafficClass `json:"classes"`
}

// TrafficClass is what the requests of a class met. Quantiles are of a histogram, as exact as
// its buckets are narrow; null: nothing came.
type TrafficClass struct {
	Pool  string `json:"pool"`
	Class string `json:"class"`
	// Requests that ended, a second, by how.
	Finished float64 `json:"finished_per_s"`
	Failed   float64 `json:"failed_per_s"`
	Refused  float64 `json:"refused_per_s"`
	// OnTime is the share of answers that kept every limit of their objective; null: there
	// is no objective, or none ended.
	OnTime  *float64 `json:"on_time"`
	TTFTP50 *float64 `json:"ttft_p50_s"`
	TTFTP95 *float64 `json:"ttft_p95_s"`
	WaitP50 *float64 `json:"wait_p50_s"`
	WaitP95 *float64 `json:"wait_p95_s"`
	// Waste is what engines computed again because the class recalled what it had lent.
	Waste int64 `json:"waste_tokens"`
	// Of the total only: requests that ended otherwise than finished, by outcome, and the
	// work for each tenant.
	Outcomes map[string]uint64 `json:"outcomes,omitempty"`
	Tenants  []TrafficTenant   `json:"tenants,omitempty"`
}

// TrafficTenant is what one tenant had of a class: of those that the configuration names,
// the MostTenants with most work.
type TrafficTenant struct {
	Tenant  string `json:"tenant"`
	Work    int64  `json:"work_tokens"` // prompt tokens once and output tokens twice, as fairness counts
	Waiting int    `json:"waiting"`
	// Ahead is by how much more work than the least of those that wait it has been served;
	// the least is served next.
	Ahead int64 `json:"ahead_tokens"`
}

// MostTenants bounds the tenants of a class.
const MostTenants = 20
