package admission

// Inside a class, tenants are served by virtual token counters (Sheng et al.,
// "Fairness in Serving Large Language Models", OSDI 2024): a tenant's counter is
// the work done for it, weighted tokens of input, charged when a request is
// admitted, and of output, charged as they come. Whoever waits with the least
// counter is served next, and within a tenant the request that arrived first.
//
// A counter only rises. A tenant that comes back when nothing of it waits is
// lifted to the least counter of those who wait, or, if nobody does, to that of
// the tenant whose request left the queue last: time in which it asked for
// nothing is no credit. What it does not use meanwhile, others do.
//
// So between two tenants who both wait for the whole of an interval, the work
// done for one differs from that for the other by at most
//
//	2 * U,  U = max(weightIn * longest input, weightOut * tokens in flight)
//
// whatever they ask for, since who is ahead of the least by what his running
// requests add is not served again before he is the least. While a head stays
// the head (see pass), an admission can be out of order by at most the head
// itself and what passed it, and U is larger by twice the head's own work.
//
// A request pays once for the same tokens: one that runs again, for whatever
// reason, pays from where its last attempt ended. What a reclaim makes an engine
// compute again is the recalling class's waste (Counts.WasteTokens), not the
// victim's work.
//
// Alternatives: deficit round robin needs the cost of a request before it is
// served, and output lengths are not known; DLPM adds a quantum within which a
// longer cached prefix goes first, which buys throughput where the router knows
// the engines' caches, and can be laid over these counters; counters with a
// weight for each tenant are the same with another divisor, and nobody has asked
// to pay more for a larger share, that is what classes are for.
const (
	weightIn  = 1
	weightOut = 2
	// maxWork bounds what one request is charged, so that nonsense from an engine
	// can't overflow a counter.
	maxWork = 1 << 40
)

// line is a tenant's part of one class's queue, with its counter. It is made
// when the tenant first asks for the class, and stays.
type line struct {
	class      Class
	tenant     Tenant
	counter    int64 // weighted tokens
	lifted     int64 // of the counter, what was no work, see lift
	head, tail int32 // its waiting requests: those in time by place, then those that are late
	late       int32 // the first that is late
	n          int
	turns      int   // starts since one that was late
	at         int32 // its index in the heap of lines; none while nothing waits
	sibling    int32 // the same tenant's line in another class
}

// line returns the index of a tenant's line in class k. Tenants use few classes,
// so a tenant's lines are a list; a table of all classes would cost a hundred
// thousand tenants a hundred times the memory.
func (c *Core) line(k Class, t Tenant) int32 {
	for int(t) >= len(c.tenants) {
		c.tenants = append(c.tenants, none)
	}
	for i := c.tenants[t]; i != none; i = c.lines[i].sibling {
		if c.lines[i].class == k {
			return i
		}
	}
	i := int32(len(c.lines))
	c.lines = append(c.lines, line{class: k, tenant: t, head: none, tail: none, late: none, at: none, sibling: c.tenants[t]})
	c.tenants[t] = i
	return i
}

// lift brings the counter of a tenant that comes back up to the others'.
func (c *Core) lift(cl *class, i int32) {
	l := &c.lines[i]
	if l.n > 0 {
		return
	}
	least := cl.queue.last
	if len(cl.queue.lines) > 0 {
		least = cl.queue.lines[0]
	}
	if least != none {
		lifted := max(0, c.lines[least].counter-l.counter)
		l.counter += lifted
		l.lifted += lifted
	}
}

// charge brings what a tenant was charged for a request up to what its present
// attempt has come to: the prompt of each sequence, which what was kept of earlier
// attempts is a part of, and the output of all. It reports whether that changes
// who is served next.
func (c *Core) charge(q *request, prompt, out int32) (changed bool) {
	n, kept := int64(q.n), int64(q.kept)
	work := min((int64(prompt)-kept)*n*weightIn+(kept*n+int64(out))*weightOut, maxWork)
	if work <= q.charged {
		return false
	}
	l := &c.lines[q.line]
	l.counter += work - q.charged
	q.charged = work
	if l.n == 0 {
		return false
	}
	cl := &c.classes[q.class]
	c.down(cl.queue.lines, int(l.at))
	return c.rehead(cl)
}

// join puts a request into its tenant's line.
func (c *Core) join(cl *class, slot int32) {
	q := &c.requests[slot]
	l := &c.lines[q.line]
	// New requests belong at the end, of those that are in time. One that runs
	// again is older than most of what waits, and is walked in from the front.
	after, front := l.tail, l.head
	switch {
	case l.late != none && q.late:
		front = l.late
	case l.late != none:
		after = c.requests[l.late].prev
	}
	if after != none && c.requests[after].late == q.late && c.requests[after].place > q.place {
		after = c.requests[front].prev
		for i := front; c.requests[i].place < q.place; i = c.requests[i].next {
			after = i
		}
	}
	if q.late && (l.late == none || after == none || !c.requests[after].late) {
		l.late = slot
	}
	q.prev, q.next = after, l.head
	if after != none {
		q.next = c.requests[after].next
		c.requests[after].next = slot
	} else {
		l.head = slot
	}
	if q.next != none {
		c.requests[q.next].prev = slot
	} else {
		l.tail = slot
	}
	if l.n++; l.n == 1 {
		l.at = int32(len(cl.queue.lines))
		cl.queue.lines = append(cl.queue.lines, q.line)
	}
	c.up(cl.queue.lines, int(l.at))
	c.rehead(cl)
}

// part takes a request out of its tenant's line.
func (c *Core) part(cl *class, slot int32) {
	q := &c.requests[slot]
	l := &c.lines[q.line]
	if slot == l.late {
		l.late = q.next
	}
	if q.prev != none {
		c.requests[q.prev].next = q.next
	} else {
		l.head = q.next
	}
	if q.next != none {
		c.requests[q.next].prev = q.prev
	} else {
		l.tail = q.prev
	}
	q.prev, q.next = none, none
	cl.queue.last = q.line
	lines := cl.queue.lines
	at := int(l.at)
	if l.n--; l.n > 0 {
		c.down(lines, at) // its first is a later one, or the same
	} else {
		end := len(lines) - 1
		lines[at] = lines[end]
		c.lines[lines[at]].at = int32(at)
		l.at = none
		cl.queue.lines = lines[:end]
		if at < end {
			c.down(lines[:end], at)
			c.up(lines[:end], at)
		}
	}
	if slot == cl.queue.head {
		cl.queue.pass = pass{}
		cl.queue.head = none
	}
	c.rehead(cl)
}

// rehead finds who is served next, unless the head is to stay. It reports
// whether that is another one than before.
func (c *Core) rehead(cl *class) (changed bool) {
	qu := &cl.queue
	if qu.pass.stays {
		return false
	}
	head := none
	if len(qu.lines) > 0 {
		l := &c.lines[qu.lines[0]]
		if head = l.head; l.late != none && c.late(cl, l.late) {
			head = l.late
		}
	}
	if head == qu.head {
		return false
	}
	qu.head, qu.pass = head, pass{}
	return true
}

// before tells whether line a is served before line b: the lesser counter, and
// of equals the one whose first request arrived first.
func (c *Core) before(a, b int32) bool {
	l, m := &c.lines[a], &c.lines[b]
	if l.counter != m.counter {
		return l.counter < m.counter
	}
	return c.requests[l.head].place < c.requests[m.head].place
}

// up and down restore a heap of lines in which the one at i may be before its
// parent, or after a child.
func (c *Core) up(lines []int32, i int) {
	for i > 0 && c.before(lines[i], lines[(i-1)/2]) {
		c.swap(lines, i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (c *Core) down(lines []int32, i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(lines); child++ {
			if c.before(lines[child], lines[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		c.swap(lines, i, least)
		i = least
	}
}

func (c *Core) swap(lines []int32, i, j int) {
	lines[i], lines[j] = lines[j], lines[i]
	c.lines[lines[i]].at, c.lines[lines[j]].at = int32(i), int32(j)
}

// foremost is how many of those who wait first are looked at where not all can
// be: tenants, and requests of the head's tenant.
const foremost = 8

// front returns the lines that are served first, in their order, without taking
// the heap apart: the next is always the least of those whose parents are out.
func (c *Core) front(cl *class) (first [foremost]int32, n int) {
	lines := cl.queue.lines
	var open [foremost + 1]int // each one taken adds two and removes one
	ends := min(len(lines), 1)
	for ; n < foremost && ends > 0; n++ {
		least := 0
		for i := 1; i < ends; i++ {
			if c.before(lines[open[i]], lines[open[least]]) {
				least = i
			}
		}
		at := open[least]
		first[n] = lines[at]
		ends--
		open[least] = open[ends]
		for child := 2*at + 1; child <= 2*at+2 && child < len(lines); child++ {
			open[ends] = child
			ends++
		}
	}
	return first, n
}

// pass is what has passed a queue's head.
//
// A head that waits for KV, and for that alone, or that the stall guard refuses, or
// that could not be reclaimed, or needs more than this core has, may be passed by smaller requests that fit, until together they have reserved as much KV as it needs; then nobody
// passes until it is admitted or gone. Its place in the batch is left free, and
// a head within its floor stays within it, so that what it waits for besides is
// the end of those who passed and nothing else.
//
// Who may pass is looked for among the tenants that come next, foremost of them:
// the first request of each, and of the head's own tenant as many. A tenant whose
// counter is ahead of the head's by more than the head's own work does not pass:
// by reservations that end early it would get ahead without bound. (A head that waits
// for an engine, and not for room, would get nothing by that.) No loan passes
// a head that waits within its floor, of any class.
//
// A head that was passed stays the head until it is admitted or gone, or each
// change of heads would open another pass. So does one that waits within its
// floor for loans that are recalled, or what is freed for one would be given to
// another. Otherwise the head is whoever has the least counter.
//
// Alternatives: plain FIFO leaves KV idle for as long as a large request waits;
// best fit without a limit starves it for as long as small ones come; backfilling
// up to the moment at which it will fit needs lengths that nobody knows.
type pass struct {
	open   bool  // the head waits for KV
	stays  bool  // the head
	tokens int64 // KV reserved by those who have passed
	reach  int64 // the counter up to which a tenant may pass, once the head stays
}

// stay keeps the present head, which is refused as f.
func (c *Core) stay(cl *class, f *fitting) {
	if p := &cl.queue.pass; !p.stays {
		p.stays, p.reach = true, c.reach(cl, f)
	}
}

// reach is how far the counter of one who passes the head may be.
func (c *Core) reach(cl *class, head *fitting) int64 {
	if p := &cl.queue.pass; p.stays {
		return p.reach
	}
	q := &c.requests[cl.queue.head]
	return c.lines[q.line].counter + int64(q.n)*(int64(q.prompt)*weightIn+int64(head.expect)*weightOut)
}

// passer returns a request that may pass the head of class k, which is refused
// as head, and how it would be admitted; none if there is none.
func (c *Core) passer(k Class, head *fitting, borrow bool) (int32, fitting) {
	cl := &c.classes[k]
	p := &cl.queue.pass
	left := head.amount[KV] - p.tokens
	switch head.refusal {
	case refusedEngine:
		// Whoever waits for an engine that takes no work is in nobody's way on the
		// others.
		p.open, left = true, 1<<40
	case refusedWhole, refusedStall, refusedShare:
		p.open = true
	default:
		p.open = !head.ok && (head.resource == KV || c.requests[cl.queue.head].keptFrom() != 0)
	}
	if !p.open || left <= 0 && c.requests[cl.queue.head].keptFrom() == 0 {
		return none, fitting{}
	}
	reach := c.reach(cl, head)
	lines, n := c.front(cl)
	for _, i := range lines[:n] {
		if c.lines[i].counter > reach && head.refusal != refusedEngine {
			break
		}
		slot := c.lines[i].head
		for range foremost {
			q := &c.requests[slot]
			if slot != cl.queue.head && (int64(q.prompt) < left || c.requests[cl.queue.head].keptFrom() != 0) {
				f := c.fit(cl, q)
				if f.ok && (c.apartFrom(cl, &f) || f.amount[KV] <= left && head.blocks()) && c.leaves(k, head, &f, borrow) {
					return slot, f
				}
			}
			if slot = q.next; slot == none || i != c.requests[cl.queue.head].line {
				break
			}
		}
	}
	return none, fitting{}
}

// blocks tells that a head that is refused as f waits for what those behind it need
// less of.
func (f *fitting) blocks() bool {
	switch f.refusal {
	case refusedEngine, refusedShare, refusedWhole, refusedStall:
		return true
	}
	return f.resource == KV
}

// apartFrom tells that one who is admitted as f takes nothing from the head, which
// that engine can't run.
func (c *Core) apartFrom(cl *class, f *fitting) bool {
	return c.requests[cl.queue.head].keptFrom()&(1<<f.engine) != 0
}

// leaves tells whether one who is admitted as f before the head leaves it all but
// the KV. (A loan is not within the floor, and so passes nobody who is.)
func (c *Core) leaves(k Class, head, f *fitting, borrow bool) bool {
	cl := &c.classes[k]
	both := head.amount.add(f.amount)
	switch {
	case f.loan && !(borrow && c.mayBorrow(k)):
		return false
	case head.refusal == refusedShare:
		return true // what it waits for is not here
	case head.within && !cl.used.add(both).within(cl.floor):
		return false
	}
	return c.apartFrom(cl, f) || c.slotsFit(cl, f, both)
}

// slotsFit tells whether amount would fit on the engine of f if KV did not matter.
func (c *Core) slotsFit(cl *class, f *fitting, amount Amount) bool {
	en := &c.engines[f.engine]
	if en.used[Slots]+amount[Slots]+en.foreign[Slots] > en.limit(cl, cl.used.add(amount), en.used)[Slots] {
		return false
	}
	why, _ := c.check(cl, en, Of(amount[Slots], 0))
	return why == refusedNone
}
