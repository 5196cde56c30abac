package replan

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is a day of an engine, its requests, and a driver that does what the planner
// wants done. It keeps books of its own on what was promised and what was switched.
type world struct {
	p    *Planner
	c    *Contract
	cfg  Config
	rng  *rand.Rand
	plan scheme
	now  Time
	end  Time // of the arrivals

	events  timeline
	seq     int
	inside  []*job // given to admission, in the order of arrival
	room    []*job // waiting for a profile that holds them
	busy    int
	present int
	hook    bool // a switch is under way: whatever runs is killed
	drains  bool // Drained was reported
	ticked  Time // the tick that is under way

	promised map[uint64]*pledge
	fx       []Effect

	arrived, done, reclaims int
	longest                 time.Duration // that one waited
	hooks                   []Time        // switches that were begun
	tries                   []Time        // drains that no operator asked for
	moves                   []Time        // switches that came about
	broken                  []string
}

type pledge struct {
	tokens int64
	open   int
	used   Time
}

// job is one request.
type job struct {
	prompt, limit int64 // tokens; limit is what it may come to
	rate          float64
	out           float64 // tokens it has produced
	session       uint64
	want          int64 // of a promise
	counted       bool  // a promise lives while it runs
	batch         bool  // its attempt can be ended, and goes on
	arrived       Time
	waits         Time
	started       Time
	running       bool
	attempt       int
}

// tokens are what a job has come to.
func (j *job) tokens(now Time) int64 {
	out := j.out
	if j.running {
		out += j.rate * time.Duration(now-j.started).Seconds()
	}
	return j.prompt + int64(out)
}

type happening struct {
	at  Time
	seq int
	do  func()
}

type timeline []happening

func (t timeline) Len() int { return len(t) }
func (t timeline) Less(i, k int) bool {
	return cmp.Or(cmp.Compare(t[i].at, t[k].at), cmp.Compare(t[i].seq, t[k].seq)) < 0
}
func (t timeline) Swap(i, k int) { t[i], t[k] = t[k], t[i] }
func (t *timeline) Push(x any)   { *t = append(*t, x.(happening)) }
func (t *timeline) Pop() any {
	last := len(*t) - 1
	x := (*t)[last]
	*t = (*t)[:last]
	return x
}

// scheme is who sends what in a day.
type scheme struct {
	name     string
	fails    float64 // share of switches that fail
	stuck    float64 // share of requests that outlast a drain
	ops      int     // how often an operator interferes
	arrivals func(w *world)
	on       func(w *world, e *Effect) // what an adversary does about an effect
}

const testTimeout = 20 * time.Minute // of a session

func newWorld(cfg Config, plan scheme, seed uint64, day time.Duration) *world {
	w := &world{
		cfg: cfg, plan: plan, rng: rand.New(rand.NewPCG(seed, 8)), end: Time(day), present: cfg.Home, ticked: Never,
		promised: map[uint64]*pledge{},
	}
	guarantee := int64(math.MaxInt64)
	for _, p := range cfg.Profiles {
		guarantee = min(guarantee, p.MaxContext)
	}
	w.p, w.c = New(cfg, cfg.Home, 0), NewContract(guarantee, 16, testTimeout)
	plan.arrivals(w)
	for range plan.ops {
		w.at(w.moment(), func() {
			q := w.rng.IntN(len(cfg.Profiles)+1) - 1
			w.step(&Event{Kind: Override, Profile: q, Until: w.now + Time(w.rng.Int64N(int64(2*time.Hour)))})
		})
	}
	return w
}

func (w *world) moment() Time { return Time(w.rng.Int64N(int64(w.end))) }

func (w *world) at(t Time, do func()) {
	w.seq++
	heap.Push(&w.events, happening{max(t, w.now), w.seq, do})
}

func (w *world) wrong(format string, args ...any) {
	if len(w.broken) < 5 {
		w.broken = append(w.broken, fmt.Sprintf("%s: ", time.Duration(w.now))+fmt.Sprintf(format, args...))
	}
}

// run lets the day pass, and then what is left of it.
func (w *world) run() {
	limit := w.end + Time(72*time.Hour)
	for len(w.events) > 0 {
		e := heap.Pop(&w.events).(happening)
		if w.now = e.at; w.now > limit {
			break
		}
		e.do()
	}
	if n := len(w.inside) + len(w.room); n > 0 || w.done != w.arrived {
		w.wrong("%d of %d requests had an answer, %d wait inside and %d for a profile", w.done, w.arrived, len(w.inside), len(w.room))
	}
	w.bounds()
}

// bounds checks that switches are bounded.
func (w *world) bounds() {
	for i, t := range w.tries {
		if k := i - w.cfg.PerHour; k >= 0 && t-w.tries[k] < Time(time.Hour) {
			w.wrong("more than %d switches were begun in the hour before %s", w.cfg.PerHour, time.Duration(t))
		}
	}
	if most := (1+int(time.Duration(w.now).Hours()))*w.cfg.PerHour + w.plan.ops; len(w.hooks) > most {
		w.wrong("%d switches, of which %d are allowed", len(w.hooks), most)
	}
	if w.plan.ops > 0 {
		return // an operator need not dwell
	}
	for i := 1; i < len(w.moves); i++ {
		if d := w.moves[i] - w.moves[i-1]; d < Time(w.cfg.Dwell) {
			w.wrong("two switches within %s", time.Duration(d))
		}
	}
}

// fits are the profiles that hold a job as it is now.
func (w *world) fits(j *job) (s Set) {
	need := max(j.tokens(w.now)+1, j.want)
	switch {
	case j.running && w.cfg.Limits:
		need = max(need, j.limit) // it runs on meanwhile
	case j.out > 0 || j.running:
		need = j.tokens(w.now) + 1
	}
	for q := range w.cfg.Profiles {
		if need <= w.cfg.Profiles[q].MaxContext {
			s = s.With(q)
		}
	}
	return s
}

func (w *world) load() *Load {
	l := &Load{Inside: w.p.all()}
	sum := map[Set]*Demand{}
	var sets []Set
	for k, jobs := range [][]*job{w.inside, w.room} {
		for _, j := range jobs {
			f := w.fits(j)
			d := sum[f]
			if d == nil {
				d = &Demand{Fits: f, Since: Never}
				sum[f] = d
				sets = append(sets, f)
			}
			if k == 0 {
				l.Inside &= f
			}
			if j.running {
				d.Running++
			} else {
				d.Waiting++
				d.Since = min(d.Since, j.waits)
			}
		}
	}
	slices.Sort(sets)
	for _, f := range sets {
		l.Demands = append(l.Demands, *sum[f])
	}
	needs := w.c.Needs(w.now)
	for q := range w.cfg.Profiles {
		if needs <= w.cfg.Profiles[q].MaxContext {
			l.Promised = l.Promised.With(q)
		}
	}
	return l
}

// arrive is one request.
func (w *world) arrive(j *job) {
	w.arrived++
	j.arrived, j.waits = w.now, w.now
	w.room = append(w.room, j)
	w.stir()
}

// stir does what there is to do, and tells the planner of it.
func (w *world) stir() {
	for range 4 { // what the planner decides may let more of them in
		w.admit()
		w.step(&Event{Kind: Sample, Load: w.load()})
	}
	w.drained()
}

func (w *world) step(e *Event) {
	w.fx = w.p.Step(w.now, e, w.fx[:0])
	for _, f := range slices.Clone(w.fx) {
		w.effect(&f)
	}
	if at, ok := w.p.Next(); ok && (w.ticked == Never || at < w.ticked) {
		w.ticked = max(at, w.now)
		w.at(at, func() {
			if w.ticked == w.now {
				w.ticked = Never
			}
			w.stir()
		})
	}
}

func (w *world) admit() {
	kept := w.room[:0]
	for _, j := range w.room {
		if w.p.Holds(w.fits(j)) {
			w.inside = append(w.inside, j)
		} else {
			kept = append(kept, j)
		}
	}
	w.room = kept
	for _, j := range w.inside {
		if w.p.Closed() || w.hook || w.busy >= w.cfg.Profiles[w.present].Slots {
			return
		}
		if !j.running {
			w.start(j)
		}
	}
}

func (w *world) start(j *job) {
	profile := &w.cfg.Profiles[w.present]
	if j.tokens(w.now)+1 > profile.MaxContext {
		w.wrong("a request of %d tokens is refused in %s", j.tokens(w.now)+1, profile.Name)
	}
	w.longest = max(w.longest, time.Duration(w.now-j.arrived))
	j.running, j.started = true, w.now
	j.attempt++
	w.busy++
	if j.session != 0 && j.attempt == 1 {
		granted, counted := w.c.Begin(w.now, j.session, j.want, profile.MaxContext)
		j.counted = counted
		w.pledge(j.session, granted, 1)
	}
	attempt := j.attempt
	left := max(float64(min(j.limit, profile.MaxContext)-j.prompt)-j.out, 1)
	w.at(w.now+Time(left/j.rate*1e9), func() {
		if j.running && j.attempt == attempt {
			w.finish(j)
		}
	})
}

// pledge is the test's own ledger.
func (w *world) pledge(session uint64, tokens int64, open int) {
	p := w.promised[session]
	if p == nil || p.open == 0 && w.now-p.used >= Time(testTimeout) {
		p = &pledge{}
		w.promised[session] = p
	}
	p.tokens, p.used, p.open = max(p.tokens, tokens), w.now, p.open+open
}

func (w *world) finish(j *job) {
	w.stop(j)
	w.done++
	w.inside = slices.DeleteFunc(w.inside, func(o *job) bool { return o == j })
	if j.session != 0 {
		w.c.End(w.now, j.session, j.counted, j.tokens(w.now), w.cfg.Profiles[w.present].MaxContext)
		w.pledge(j.session, w.c.Of(w.now, j.session), -1)
	}
	w.stir()
}

func (w *world) stop(j *job) {
	j.out = float64(j.tokens(w.now) - j.prompt)
	j.running, j.waits = false, w.now
	w.busy--
}

// drained ends loans while the engine takes nothing new, and reports when nothing runs.
func (w *world) drained() {
	if w.p.State() != Draining || w.drains {
		return
	}
	// What has not begun and would not fit waits outside again.
	w.inside = slices.DeleteFunc(w.inside, func(j *job) bool {
		out := j.attempt == 0 && !w.fits(j).Has(w.p.Target())
		if out {
			w.room = append(w.room, j)
		}
		return out
	})
	slices.SortFunc(w.room, func(a, b *job) int { return cmp.Compare(a.arrived, b.arrived) })
	w.step(&Event{Kind: Sample, Load: w.load()})
	if w.p.State() == Draining && w.p.Closed() {
		for _, j := range w.inside {
			if j.running && j.batch {
				w.stop(j)
				w.reclaims++
			}
		}
	}
	if w.p.State() != Draining {
		return
	}
	if l := w.load(); w.p.Closed() && w.busy == 0 || w.cfg.Limits && l.Inside.Has(w.p.Target()) {
		w.drains = true
		w.at(w.now+Time(w.rng.Int64N(2e9)), func() {
			w.drains = false
			if w.busy == 0 || w.cfg.Limits {
				w.step(&Event{Kind: Drained, Load: w.load()})
				w.stir()
			}
		})
	}
}

func (w *world) effect(e *Effect) {
	switch e.Op {
	case Drain:
		if e.Why != WhyOperator {
			w.tries = append(w.tries, w.now)
		}
	case Switch, Return:
		if e.Op == Switch {
			w.hooks = append(w.hooks, w.now)
		}
		if !w.cfg.Limits {
			if w.busy > 0 {
				w.wrong("%s to %s kills %d requests", e.Op, w.cfg.Profiles[e.To].Name, w.busy)
			}
			w.hook = true
		}
		took, ok := Time(w.rng.Int64N(int64(time.Minute))), w.cfg.Limits || w.rng.Float64() >= w.plan.fails
		w.at(w.now+took, func() {
			w.hook = false
			if ok {
				w.present = e.To
				w.kept()
			}
			w.step(&Event{Kind: Switched, OK: ok})
			if ok && e.Op == Switch {
				w.moves = append(w.moves, w.now)
			}
			w.stir()
		})
	}
	if w.plan.on != nil {
		w.plan.on(w, e)
	}
}

// kept checks that nobody is in a profile that gives him less than he was promised, and
// that nothing would be refused.
func (w *world) kept() {
	profile := &w.cfg.Profiles[w.present]
	for _, s := range slices.Sorted(keys(w.promised)) {
		if p := w.promised[s]; p.tokens > profile.MaxContext && (p.open > 0 || w.now-p.used < Time(testTimeout)) {
			w.wrong("session %d was promised %d tokens, and %s gives %d", s, p.tokens, profile.Name, profile.MaxContext)
		}
	}
	for _, j := range w.inside {
		if j.tokens(w.now)+1 > profile.MaxContext {
			w.wrong("a request of %d tokens waits in %s", j.tokens(w.now)+1, profile.Name)
		}
	}
}

func keys[V any](m map[uint64]V) func(func(uint64) bool) {
	return func(yield func(uint64) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// request makes one, long or short.
func (w *world) request(long, batch bool) *job {
	narrow, wide := w.c.Guarantee(), int64(0)
	for _, p := range w.cfg.Profiles {
		wide = max(wide, p.MaxContext)
	}
	j := &job{batch: batch, rate: 20 + 80*w.rng.Float64()}
	if batch {
		j.rate /= 10 // others are served beside it
	}
	j.prompt = 1 + w.rng.Int64N(narrow/2)
	j.limit = min(j.prompt+1+w.rng.Int64N(600), narrow)
	if long {
		j.prompt = narrow + w.rng.Int64N(wide-narrow-1)
		j.limit = min(j.prompt+1+w.rng.Int64N(3000), wide)
	}
	if w.rng.Float64() < 0.05 {
		// It begins short and comes to more than the narrowest profile gives.
		j.limit = min(narrow+w.rng.Int64N(wide-narrow+1), wide)
		j.rate *= 8
	}
	if w.rng.Float64() < w.plan.stuck {
		j.batch, j.rate = false, 1
		j.limit = min(j.prompt+100+w.rng.Int64N(500), wide)
	}
	if w.rng.Float64() < 0.3 {
		j.session = 1 + w.rng.Uint64N(40)
		if w.rng.Float64() < 0.2 {
			j.want = 1 + w.rng.Int64N(wide)
		}
	}
	return j
}

// contrary sends what another profile than the present one would be the right one for.
func (w *world) contrary() {
	if len(w.inside)+len(w.room) > 10 {
		return // it would be overloaded in any profile
	}
	long := w.cfg.Profiles[w.p.Profile()].MaxContext == w.c.Guarantee()
	n := 20
	if long {
		n = 4
	}
	for range n {
		j := w.request(long, false)
		j.session = 0 // or promises would keep it in one
		w.arrive(j)
	}
}

// poisson has requests come at a rate that follows the hour, so many in all.
func poisson(w *world, n int, long, batch bool, shape func(hour float64) float64) {
	for range n {
		t := w.moment()
		if w.rng.Float64() < shape(time.Duration(t).Hours()) {
			w.at(t, func() { w.arrive(w.request(long, batch)) })
		}
	}
}

func daytime(h float64) float64   { return max(0, math.Sin((h-6)/12*math.Pi)) }
func nighttime(h float64) float64 { return 1 - daytime(h) }
func always(float64) float64      { return 1 }

// schemes are the days there are.
var schemes = []scheme{
	{name: "diurnal", fails: 0.02, stuck: 0.01, arrivals: func(w *world) {
		poisson(w, 1500, false, false, daytime)
		poisson(w, 60, true, false, nighttime)
		poisson(w, 200, false, true, nighttime)
		poisson(w, 10, true, true, always)
	}},
	{name: "weekend", arrivals: func(w *world) {
		poisson(w, 60, false, false, daytime)
		poisson(w, 5, true, false, always)
	}},
	{name: "bursts of long ones", fails: 0.1, stuck: 0.02, arrivals: func(w *world) {
		poisson(w, 600, false, false, always)
		for range 12 {
			t := w.moment()
			for range 1 + w.rng.IntN(8) {
				w.at(t+Time(w.rng.Int64N(60e9)), func() { w.arrive(w.request(true, w.rng.IntN(2) == 0)) })
			}
		}
	}},
	{name: "always what the present profile is not for", arrivals: func(w *world) {
		for t := Time(0); t < w.end; t += Time(max(w.cfg.Dwell, 5*time.Minute)) {
			w.at(t, w.contrary)
		}
	}, on: func(w *world, e *Effect) {
		// As soon as the engine is there, and just before and after it may go again.
		if e.Op == Reopen && e.From != e.To && w.now < w.end {
			for _, after := range []time.Duration{0, w.cfg.Dwell - time.Second, w.cfg.Dwell + time.Second} {
				w.at(w.now+Time(after), w.contrary)
			}
		}
	}},
	{name: "promises at the worst moment", fails: 0.2, arrivals: func(w *world) {
		poisson(w, 300, false, true, always)
		poisson(w, 20, true, false, always)
	}, on: func(w *world, e *Effect) {
		if w.now >= w.end {
			return
		}
		// A session turns up when a drain begins, when the engine is on its way, and just
		// when it is there; and it uses its promise just before that would end.
		wide := int64(0)
		for _, p := range w.cfg.Profiles {
			wide = max(wide, p.MaxContext)
		}
		session := 1000 + w.rng.Uint64N(30)
		for _, after := range []time.Duration{0, time.Millisecond, testTimeout - time.Second, testTimeout} {
			w.at(w.now+Time(after), func() {
				j := w.request(false, false)
				j.session, j.want = session, wide
				w.arrive(j)
			})
		}
	}},
	{name: "every switch may fail", fails: 0.6, stuck: 0.05, arrivals: func(w *world) {
		poisson(w, 500, false, false, always)
		poisson(w, 40, true, true, always)
	}},
	{name: "an operator in a hurry", fails: 0.2, stuck: 0.02, ops: 60, arrivals: func(w *world) {
		poisson(w, 250, false, true, always)
		poisson(w, 40, true, false, always)
	}},
}

var fleets = []Config{
	{
		Profiles: []Profile{
			{Name: "deep", Slots: 1, KVTokens: 32768, MaxContext: 32768, Cost: 30 * time.Second},
			{Name: "broad", Slots: 4, KVTokens: 8192, MaxContext: 2048, Cost: 30 * time.Second},
		},
		Home: 1, Dwell: 10 * time.Minute, IdleAfter: 5 * time.Minute, ContentionAfter: 30 * time.Second, DrainTimeout: time.Minute, PerHour: 4,
	},
	{
		Profiles: []Profile{
			{Name: "deep", Slots: 2, KVTokens: 65536, MaxContext: 65536},
			{Name: "middle", Slots: 4, KVTokens: 32768, MaxContext: 16384},
			{Name: "broad", Slots: 16, KVTokens: 32768, MaxContext: 4096},
		},
		Home: 0, Dwell: time.Minute, IdleAfter: 2 * time.Minute, ContentionAfter: 5 * time.Second, DrainTimeout: 20 * time.Second, PerHour: 20,
	},
	{
		Profiles: []Profile{
			{Name: "narrow", Slots: 2, KVTokens: 16384, MaxContext: 16384},
			{Name: "wide", Slots: 6, KVTokens: 16384, MaxContext: 2048},
		},
		Limits: true, Home: 1, Dwell: 30 * time.Second, IdleAfter: time.Minute, ContentionAfter: 2 * time.Second, DrainTimeout: 30 * time.Second, PerHour: 30,
	},
}

// TestThousandDays: whatever the traffic, no request is dropped, no promise is broken, and
// switches are bounded.
func TestThousandDays(t *testing.T) {
	days := 1000
	if testing.Short() {
		days = 100
	}
	requests, switches, longest, reclaims := map[string]int{}, map[string]int{}, map[string]time.Duration{}, 0
	for day := range days {
		plan := schemes[day%len(schemes)]
		w := newWorld(fleets[day/len(schemes)%len(fleets)], plan, uint64(day), 24*time.Hour)
		w.run()
		if len(w.broken) > 0 {
			t.Fatalf("day %d, %s:\n%s", day, plan.name, strings.Join(w.broken, "\n"))
		}
		requests[plan.name] += w.done
		switches[plan.name] += len(w.hooks)
		reclaims += w.reclaims
		longest[plan.name] = max(longest[plan.name], w.longest)
	}
	for _, s := range schemes {
		t.Logf("%-36s %7d requests, %6d switches, longest wait %s", s.name, requests[s.name], switches[s.name], longest[s.name].Round(time.Second))
		if switches[s.name] == 0 {
			t.Errorf("%s: nothing was ever switched, so nothing was tested", s.name)
		}
	}
	t.Logf("%d loans were ended", reclaims)
	if reclaims == 0 {
		t.Error("no loan was ever ended")
	}
}

// TestAnyDay is the same with any configuration and any mixture.
func TestAnyDay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := func(name string, least, most time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(int64(least), int64(most)).Draw(t, name))
		}
		cfg := Config{
			Dwell: d("dwell", time.Second, time.Hour), IdleAfter: d("idle", time.Second, time.Hour),
			ContentionAfter: d("contention", time.Millisecond, 10*time.Minute), DrainTimeout: d("drain", time.Second, 10*time.Minute),
			PerHour: rapid.IntRange(1, 40).Draw(t, "hour"), Limits: rapid.Bool().Draw(t, "limits"),
		}
		for i := range rapid.IntRange(2, 5).Draw(t, "profiles") {
			cfg.Profiles = append(cfg.Profiles, Profile{
				Name: fmt.Sprint(i), Slots: rapid.IntRange(1, 16).Draw(t, "slots"), KVTokens: 1 << 16,
				MaxContext: rapid.Int64Range(1024, 1<<16).Draw(t, "context"), Cost: d("cost", 0, time.Minute),
			})
		}
		cfg.Profiles[0].MaxContext = 512 // or there may be nothing but one context
		cfg.Home = rapid.IntRange(0, len(cfg.Profiles)-1).Draw(t, "home")
		plan := schemes[rapid.IntRange(0, len(schemes)-1).Draw(t, "scheme")]
		plan.fails = rapid.Float64Range(0, 0.7).Draw(t, "fails")
		w := newWorld(cfg, plan, rapid.Uint64().Draw(t, "seed"), 3*time.Hour)
		w.run()
		if len(w.broken) > 0 {
			t.Fatalf("%s", strings.Join(w.broken, "\n"))
		}
	})
}
