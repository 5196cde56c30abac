package admission

// sampleTime is how long a sample may be under way. The core remembers what it
// had on an engine for that long and a gauge's age, to compare a gauge with the
// ledger of the gauge's own time.
const sampleTime = Time(3e9)

// maxGauge bounds what a sample is believed to say, so that nonsense from an
// engine can't overflow a sum.
const maxGauge = 1 << 40

const (
	// slackStep is the part of an engine's KV by which each preemption raises
	// the slack, slackMax its bound, slackCalm the time without preemptions after
	// which it falls by a step.
	slackStep = 32
	slackMax  = 4
	slackCalm = Time(60e9)
)

// gauge is what the core keeps of an engine's samples.
type gauge struct {
	seen        bool
	extra       Amount // of the last sample: gauge - ledger, never below 0
	progress    int64
	moved       Time // when progress was last seen to move
	preemptions int64
}

// observe takes in a sample.
//
// Foreign load is what the engine runs that this core did not send. A single
// difference between gauge and ledger is not it: the sample may be older than
// an admission, or than the end of work that was just aborted. So the ledger
// counts at its highest since a gauge's age before the sample was asked for, and
// foreign load is the smaller of the last two differences. A busy gauge whose progress
// counter stands still for longer than its age shows an engine that has stopped
// reporting, not one that works.
//
// Alternatives: smoothing the difference would keep half of a mistake for long
// after it is known to be one; trusting the newest sample alone counts work
// that was just admitted or aborted twice.
func (c *Core) observe(e Engine, g *Gauge) {
	if int(e) >= len(c.engines) {
		panic("admission: sample of engine " + itoa(int64(e)) + " of " + itoa(int64(len(c.engines))))
	}
	en := &c.engines[e]
	c.setState(e, g.State)
	if g.State != Ready {
		// What a silent engine runs is unknown; when it answers again, the next
		// two samples tell.
		en.gauge.seen = false
		c.setForeign(en, Amount{})
	} else {
		c.sample(e, en, g)
	}
	if c.waiting != 0 {
		c.pump()
	}
}

func (c *Core) sample(e Engine, en *engine, g *Gauge) {
	age := Time(en.spec.GaugeAge)
	last := en.gauge
	if g.Progress >= 0 && g.Progress < last.progress {
		// The counters started over, perhaps while the engine was away: so did
		// it, and whatever was not confirmed is gone with it.
		for i := range c.holds {
			if h := &c.holds[i]; h.state == holdGhost && h.engine == e {
				c.exorcise(int32(i))
			}
		}
		last.preemptions = g.Preemptions
		en.untrue = 0
		c.emptied(e)
	}
	now := gauge{seen: true, progress: g.Progress, moved: last.moved, preemptions: g.Preemptions}
	if !last.seen || g.Progress != last.progress || g.Progress < 0 {
		now.moved = c.now
	}
	en.ledger.advance(c.now)
	ledger := en.ledger.since(g.Asked - age)
	seen := Of(int64(g.Running), g.KV)
	for r := range NumResources {
		if seen[r] >= 0 {
			now.extra[r] = max(0, min(seen[r], maxGauge)-ledger[r])
		}
	}
	en.gauge = now
	switch {
	case c.now >= en.stale():
		c.setForeign(en, Amount{})
	case last.seen:
		c.setForeign(en, now.extra.min(last.extra))
	}
	if last.seen && g.Preemptions > last.preemptions && last.preemptions >= 0 && !en.spec.Ordered && !en.spec.Fatal {
		en.slack = min(en.slack+max(en.spec.KV/slackStep, en.spec.Block), en.spec.KV/slackMax)
		en.calm = c.now
		c.wake(en.calm + slackCalm)
	}
}

// stale is when what the gauges of an engine said of foreign load is over: they
// are as old as they may be, or have shown no progress for that long.
func (en *engine) stale() Time { return en.gauge.moved.plus(en.spec.GaugeAge) }

// gauged tells that foreign load was seen on an engine, which gets stale.
func (en *engine) gauged() bool { return en.foreign != (Amount{}) && !en.spec.Shared }

// setForeign sets what an engine runs that this core did not send. On one that
// takes no work it is in nobody's way.
func (c *Core) setForeign(en *engine, v Amount) {
	if en.spec.Shared {
		return // the gauges show what other cores sent, too
	}
	if !en.counts {
		v = Amount{}
	}
	c.foreign = c.foreign.sub(en.foreign).add(v)
	en.foreign = v
	if v != (Amount{}) {
		c.wake(en.stale())
	}
}

// setState moves an engine in or out of the envelope.
func (c *Core) setState(e Engine, s State) {
	en := &c.engines[e]
	if en.state == s {
		return
	}
	en.state = s
	if s == Ready {
		en.aside = 0 // it has been away, and may be another
		c.emptied(e)
	}
	c.reckon()
	if s == Down {
		c.forgiven()
	}
}

// emptied notes that nothing is known to be in an engine's cache any more.
func (c *Core) emptied(e Engine) {
	for i := range c.requests {
		if q := &c.requests[i]; q.home == e {
			q.cached = 0
		}
	}
}

// allDown tells that no engine would take work now or soon: a request that
// comes now is refused rather than left to wait for nothing.
func (c *Core) allDown(barred uint64) bool {
	for e := range c.engines {
		if en := &c.engines[e]; !en.spec.Closed && en.state != Down && barred&(1<<e) == 0 {
			return false
		}
	}
	return true
}

// calmDown lowers the slack of an engine that has stopped preempting.
func (c *Core) calmDown(en *engine) {
	for en.slack > 0 && c.now >= en.calm+slackCalm {
		en.slack = max(0, en.slack-max(en.spec.KV/slackStep, en.spec.Block))
		en.calm += slackCalm
	}
}
