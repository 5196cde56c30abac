package fleetsim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"headgate/admission"
	"headgate/control"
)

// block is what KV tokens are rounded up to.
const block = 16

// account is one that the books check.
type account struct {
	engine, class string
	total         control.Amount
}

func (a *account) is(c *control.Account) bool { return c.Engine == a.engine && c.Class == a.class }

func (a *account) name() string {
	if a.engine != "" {
		return "engine " + a.engine
	}
	return "class " + a.class
}

// params are what a seed makes of a history before it begins.
type params struct {
	seed        uint64
	replicas    int
	controllers int
	ttl         Time
	drift       float64
	pool        *control.Pool
	judge       control.Config
	base        *admission.Table
	accounts    []account // engines first
	ceiling     []int     // by class, its account; -1
	foreign     bool
	heedful     bool // leaders stop by their own clock, and not only when they are fenced off
	partings    bool // a life's new lease is told as its going and coming

	// The networks, each a probability for a message.
	drop, dup, slow, breaks, coalesce, lag float64

	sample  Time          // between two samples of an engine, on average
	faulty  Time          // for how long there are faults
	every   Time          // one, on average
	longest time.Duration // residual time of a request
	long    float64       // probability of one that lasts so long
	wild    float64       // of one that lasts longer than anybody predicts
	arrive  Time          // between requests, on average, of the fleet
	out     int32         // the most a request asks for
	prompt  int32
}

// newParams draws a history's parameters.
func newParams(seed uint64, rng *rand.Rand) *params {
	pick := func(from ...int64) int64 { return from[rng.IntN(len(from))] }
	p := &params{
		seed: seed, replicas: int(pick(2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8, 12, 16)), controllers: int(pick(1, 2, 2, 3)),
		ttl: Time(pick(2000, 3000, 5000, 6000)) * ms, drift: []float64{0.01, 0.05, 0.1}[rng.IntN(3)],
		heedful: rng.IntN(2) == 0, partings: rng.IntN(2) == 0, foreign: rng.IntN(10) == 0,
		drop: []float64{0, 0.01, 0.05, 0.2}[rng.IntN(4)], dup: []float64{0.01, 0.05, 0.2}[rng.IntN(3)],
		slow: []float64{0.005, 0.02, 0.08}[rng.IntN(3)], breaks: []float64{0.001, 0.01, 0.03}[rng.IntN(3)], coalesce: []float64{0, 0.3, 0.8}[rng.IntN(3)],
		lag: []float64{0.02, 0.1, 0.5}[rng.IntN(3)], sample: Time(pick(600, 1200, 4000)) * ms, faulty: Time(pick(8, 12, 18)) * sec, every: Time(pick(700, 1500, 3000)) * ms,
		out: int32(pick(20, 20, 50, 50, 50, 50, 120, 120, 300)), prompt: int32(pick(32, 100, 200)), long: []float64{0, 0.02, 0.1}[rng.IntN(3)],
	}
	p.longest = max(time.Duration(p.out)*100*time.Millisecond, 5*time.Second)
	unit := control.Amount{1, (int64(p.prompt+p.out) + block - 1) / block * block}
	slots := max(pick(4, 6, 8, 12, 20), int64(p.replicas)*pick(1, 1, 2))
	engines := int(pick(1, 1, 1, 2))
	survival := control.Amount{}
	if rng.IntN(3) == 0 && slots >= 2*int64(p.replicas) {
		survival = unit
		slots += int64(p.replicas)
	}
	p.pool = &control.Pool{Name: "p", Survival: survival, Replicas: p.replicas, Unit: unit}
	p.base = &admission.Table{Rev: 1}
	unknown := rng.IntN(6) == 0 // only the engines know what they have
	wrong := rng.IntN(8) == 0   // leaders' files say more than replicas'
	for e := range engines {
		name := fmt.Sprintf("e%d", e)
		total := control.Amount{slots, slots * unit[1] * pick(4, 5, 6) / 5}
		total[1] = max(total[1], slots*unit[1])
		if rng.IntN(4) == 0 {
			total[1] += unit[1] / 2 // nothing comes out even
		}
		configured := total
		switch {
		case unknown:
			configured = control.Amount{}
		case wrong:
			configured = control.Amount{total[0] * 3 / 2, total[1] * 3 / 2}
		}
		p.pool.Engines = append(p.pool.Engines, control.Engine{Name: name, Total: configured})
		p.base.Engines = append(p.base.Engines, admission.EngineSpec{Name: name, Slots: total[0], KV: total[1], Block: block, Fatal: true})
		p.accounts = append(p.accounts, account{engine: name, total: total})
	}
	envelope := p.base.Envelope()
	free := envelope[0] - survival[0]*int64(p.replicas*engines)
	interactive := 1 + rng.Int64N(free)
	batch := int64(0)
	if rng.IntN(2) == 0 && interactive < free {
		batch = 1 + rng.Int64N(free-interactive)
	}
	p.addClass(rng, "interactive", interactive, unit, envelope, envelope, admission.Attrition, false)
	windowed := batch > 0 && rng.IntN(3) == 0
	p.addClass(rng, "batch", batch, unit, envelope, envelope, []admission.Mode{admission.ReclaimNow, admission.ReclaimNow, admission.Deadline, admission.Attrition}[rng.IntN(4)], windowed)
	if rng.IntN(2) == 0 {
		n := 1 + rng.Int64N(max(envelope[0]/2, 1))
		p.addClass(rng, "bulk", 0, unit, control.Amount{n, n * unit[1]}, envelope, admission.ReclaimNow, false)
	}
	p.arrive = Time(float64(1500*ms) / float64(envelope[0]) / []float64{0.4, 0.8, 1.5, 3}[rng.IntN(4)])
	p.arrive = max(p.arrive, 40*ms)
	switch rng.IntN(3) {
	case 0:
		p.judge.Residual = p.longest
	case 1:
		p.judge.Residual, p.long = 5*time.Second, 0.5
	default:
		p.judge.Residual = 3 * time.Second
	}
	p.wild = []float64{0, 0.05, 0.3}[rng.IntN(3)]
	if rng.IntN(2) == 0 {
		p.judge.Rebalance = 500 * time.Millisecond
	}
	return p
}

func (p *params) addClass(rng *rand.Rand, name string, floor int64, unit, ceiling, envelope control.Amount, mode admission.Mode, windowed bool) {
	c := control.Class{Name: name, Floor: control.Amount{floor, floor * unit[1]}, Windowed: windowed}
	if floor > 0 && !windowed && rng.IntN(2) == 0 {
		// Something of each engine is left for those of whom nothing is kept.
		var unlent int64
		for k := range p.pool.Classes {
			unlent += p.pool.Classes[k].Unlent[0]
		}
		left := envelope[0] - unlent - int64(len(p.pool.Engines))*(1+p.pool.Survival[0]*int64(p.replicas))
		n := rng.Int64N(max(min(floor, left), 0) + 1)
		c.Unlent = control.Amount{n, n * unit[1]}
	}
	s := admission.ClassSpec{
		Name: name, Floor: c.Floor, Unlent: c.Unlent, Ceiling: ceiling, Mode: mode, Depth: slotsOfCore, DefaultOut: 16, IdleAfter: 2 * time.Second,
	}
	if windowed {
		s.Window = 10 * time.Second
	}
	if mode == admission.Deadline {
		s.LoanLife = time.Second
	}
	at := -1
	if ceiling != envelope {
		at = len(p.accounts)
		c.Ceiling = ceiling
		p.accounts = append(p.accounts, account{class: name, total: ceiling})
	}
	p.ceiling = append(p.ceiling, at)
	p.pool.Classes, p.base.Classes = append(p.pool.Classes, c), append(p.base.Classes, s)
}

// Violation is what was found.
type Violation struct {
	Seed  uint64
	Step  int
	At    Time
	Check int // of the package comment
	What  string
}

func (v *Violation) String() string {
	return fmt.Sprintf("seed %d, step %d, at %.6f s, check %d: %s", v.Seed, v.Step, float64(v.At)/1e9, v.Check, v.What)
}

// Options of a history.
type Options struct {
	// Log, if it is not nil, is told everything that happens.
	Log func(format string, args ...any)
}

// Run is one history.
func Run(seed uint64, o Options) (Stats, *Violation) {
	w := start(seed, o)
	w.demand()
	w.fault()
	w.run(sec + w.p.faulty)
	w.recover()
	w.stats.Histories = 1
	w.stats.Seconds = float64(w.now-sec) / 1e9
	return w.stats, w.bad
}

// start makes a world in which everybody is about to start.
func start(seed uint64, o Options) *world {
	rng := rand.New(rand.NewPCG(seed, 0x9E3779B97F4A7C15))
	w := &world{rng: rng, now: sec, logf: o.Log, forgotten: map[control.ID]bool{}}
	w.stats = newStats()
	w.p = newParams(seed, rng)
	w.store = &store{}
	w.store.part = part{w: w, name: "etcd", up: true, rate: 1}
	for n := range w.p.base.Engines {
		w.engines = append(w.engines, &engine{w: w, n: n, total: w.p.accounts[n].total})
	}
	w.log(nil, "%s", w.p)
	for n := range w.p.controllers {
		c := &controller{part: w.newPart(fmt.Sprintf("c%d", n))}
		w.controllers = append(w.controllers, c)
		w.at(w.now+w.between(0, 2*sec), &c.part, c.start)
	}
	for n := range w.p.replicas {
		r := &replica{part: w.newPart(fmt.Sprintf("r%d", n))}
		w.replicas = append(w.replicas, r)
		late := w.between(0, 2*sec)
		if w.chance(0.2) {
			late = w.between(0, w.p.faulty)
		}
		w.at(w.now+late, &r.part, r.start)
	}
	return w
}

func (p *params) String() string {
	return fmt.Sprintf("%d replicas, %d controllers, leases of %.0f s, drift %g; pool %+v; residual %v; network: drop %g, twice %g, slow %g, watch lost %g",
		p.replicas, p.controllers, float64(p.ttl)/1e9, p.drift, *p.pool, p.judge.Residual, p.drop, p.dup, p.slow, p.breaks)
}
