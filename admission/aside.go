package admission

// An engine that answers its health checks and fails what it is given is worse than
// one that is down: being the emptiest, it gets everything. So one that has failed
// several attempts in a row before a token, or has asked to be left alone, is set
// aside, and others get its work. After a time that doubles it is tried again with
// one request at a time, until one of these has a token. Nobody waits for it while
// there are others, and while there are none it is given what there is: a failing
// engine is better than no engine, and an error of its own better than a guess.
//
// An answer of which a part is kept is not ended by an engine that is busy or can't be
// reached: where no other can go on with it, it leaves the one alone for as long as that
// asks for, or for a time that doubles, and is tried there again, maxAvoids times. So is
// a piece of a prompt that an engine had no room for. Meanwhile it is in nobody's way. An
// engine that has failed it is another matter, and where there is no other the end.
//
// What a request does to an engine must not take the engine from others. Whoever
// sends what no engine can bear fails once on each of a few engines, and a token for
// anybody between two failures starts the count again.
//
// Alternatives: a share of failures in a window needs much traffic to be told from
// bad luck, and forgets a dead engine as slowly; probes of the gateway's own cost an
// engine work and do not fail as real requests do.

const (
	// maxFaults in a row set an engine aside.
	maxFaults = 3
	// firstAside is for how long, maxAside the longest, however long an engine asks
	// for.
	firstAside = Time(1e9)
	maxAside   = Time(30e9)
)

// ready tells that the engine could work, as far as it says itself.
func (en *engine) ready() bool { return !en.spec.Closed && en.state == Ready }

// apart tells whether engines that are set aside are left alone: there is another.
func (c *Core) apart() bool {
	for e := range c.engines {
		if en := &c.engines[e]; en.ready() && en.aside == 0 {
			return true
		}
	}
	return false
}

// unfit are the engines that are not given a request.
func (q *request) unfit() uint64 { return q.barred | q.failed }

// keptFrom are those that are not given it now.
func (q *request) keptFrom() uint64 { return q.unfit() | q.avoids }

// probing tells that an engine is being tried with one request, and gets no other
// until that has a token.
func (c *Core) probing(en *engine) bool {
	return en.faults >= maxFaults && c.working > 1 && len(en.starting) > 0
}

// fault notes that an engine failed an attempt before a token. retry is for how long
// it wants to be left alone.
func (c *Core) fault(en *engine, retry Time) {
	en.faults++
	wait := min(retry, maxAside)
	if over := en.faults - maxFaults; over >= 0 {
		wait = max(wait, min(firstAside<<min(over, 5), maxAside))
	}
	if wait <= 0 || len(c.engines) == 1 {
		return
	}
	if en.aside == 0 {
		c.emit(Effect{Op: Stage, Cause: CauseAside, Engine: en.id, Retry: wait})
	}
	en.aside = max(en.aside, c.now+wait)
	c.wake(en.aside)
	c.reckon()
}

// retake lets an engine have work again when its time is over.
func (c *Core) retake(en *engine) {
	if en.aside == 0 || c.now < en.aside {
		return
	}
	en.aside = 0
	c.emit(Effect{Op: Stage, Cause: CauseBack, Engine: en.id})
	c.reckon()
}

// avoid has a request leave the engine that failed it alone, and all that have failed
// it before.
func (c *Core) avoid(q *request, failed *engine, retry Time) {
	wait := retry
	if wait <= 0 || q.avoided > 0 {
		wait = max(wait, firstAside<<min(q.avoided, 5))
	}
	q.avoids, q.failed = q.failed|1<<failed.id, 0
	q.avoidsUntil = c.now + min(wait, maxAside)
	q.avoided++
	c.avoiding++
	c.wake(q.avoidsUntil)
}

// avoidNoMore ends that for those whose time has come, and asks for the others' ticks.
func (c *Core) avoidNoMore() {
	if c.avoiding == 0 {
		return
	}
	c.avoiding = 0
	for k := range c.classes {
		for i := c.classes[k].queue.longest; i != none; i = c.requests[i].later {
			q := &c.requests[i]
			switch {
			case q.avoids == 0:
			case q.avoidsUntil <= c.now:
				q.avoids = 0
			default:
				c.avoiding++
				c.wake(q.avoidsUntil)
			}
		}
	}
}

// elsewhere tells whether a request that an engine has failed may run on another now
// or soon, and keeps it from the one.
func (c *Core) elsewhere(cl *class, failed *engine, q *request) bool {
	q.failed |= 1 << failed.id
	for e := range c.engines {
		en := &c.engines[e]
		if why, _, _ := en.misfit(cl, q); why == CauseNone && en.ready() {
			return true
		}
	}
	return false
}

// forgiven lets requests that wait back to the engines that have failed them, where
// every other has gone away since.
func (c *Core) forgiven() {
	for k := range c.classes {
		for i := c.classes[k].queue.longest; i != none; i = c.requests[i].later {
			q := &c.requests[i]
			if q.failed != 0 && c.allDown(q.unfit()) {
				q.failed = 0
			}
		}
	}
}
