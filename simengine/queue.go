package simengine

// queue is the waiting line: an indexed binary heap over (rank, order), so that
// head, push and removal from the middle stay cheap with any number waiting.
//
// One heap serves both policies. Under Priority the rank is the request's own
// priority and the order its arrival; under FCFS all ranks are 0, and a
// preempted request gets an order before everything that waits.
//
// Alternatives: a list for FCFS and a heap for Priority, as in vLLM, is two
// queues to keep right; a sorted slice moves half the queue per arrival.
type queue struct {
	items []item
	pos   []int32 // by slot: its place in items, -1 when it isn't waiting
}

type item struct {
	rank, order int64
	slot        int32
}

func (a item) before(b item) bool {
	return a.rank < b.rank || a.rank == b.rank && a.order < b.order
}

func (q *queue) len() int                 { return len(q.items) }
func (q *queue) head() int32              { return q.items[0].slot }
func (q *queue) contains(slot int32) bool { return q.pos[slot] >= 0 }

// grow makes room for one more slot number.
func (q *queue) grow() { q.pos = append(q.pos, -1) }

func (q *queue) push(it item) {
	q.items = append(q.items, it)
	q.up(len(q.items)-1, it)
}

func (q *queue) remove(slot int32) {
	at := int(q.pos[slot])
	q.pos[slot] = -1
	last := len(q.items) - 1
	moved := q.items[last]
	q.items = q.items[:last]
	if at == last {
		return
	}
	if at > 0 && moved.before(q.items[(at-1)/2]) {
		q.up(at, moved)
	} else {
		q.down(at, moved)
	}
}

func (q *queue) up(at int, it item) {
	for at > 0 {
		parent := (at - 1) / 2
		if !it.before(q.items[parent]) {
			break
		}
		q.set(at, q.items[parent])
		at = parent
	}
	q.set(at, it)
}

func (q *queue) down(at int, it item) {
	for {
		child := 2*at + 1
		if child >= len(q.items) {
			break
		}
		if child+1 < len(q.items) && q.items[child+1].before(q.items[child]) {
			child++
		}
		if !q.items[child].before(it) {
			break
		}
		q.set(at, q.items[child])
		at = child
	}
	q.set(at, it)
}

func (q *queue) set(at int, it item) {
	q.items[at] = it
	q.pos[it.slot] = int32(at)
}
