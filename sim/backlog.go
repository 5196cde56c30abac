package sim

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"headgate/admission"
	"headgate/trace"
)

// Backlog is work that never runs out, of one client with so many requests under
// way at any moment: when one has ended the next one comes. What such a client gets
// done is what capacity there is for it, which no trace of fixed arrivals can tell: with
// too few it idles, and with too many its queue is all that is measured.
//
// Its requests are of a tenant of their own, so that they share a class with the
// trace's by the rules for tenants.
type Backlog struct {
	// Shapes are what its requests are like, in turn, over and over. Arrivals are not
	// looked at, and ids get a number.
	Shapes []trace.Entry
	// Depth is how many are under way at once.
	Depth int
	// Until is when the last one may come.
	Until time.Duration
}

// refusedPause is after what time a client comes again that was refused. With none it
// would be refused without end at one moment.
const refusedPause = time.Second

// backlogTenant is who the backlog's requests are of; all others are 0's.
const backlogTenant = 1

// refill is a request of the backlog that comes at a time, in a slot of the core's.
type refill struct {
	at   time.Duration
	slot int32
}

// stock takes a backlog in; its first requests come at the start.
func (r *runner) stock(b *Backlog) error {
	if b == nil {
		return nil
	}
	switch {
	case b.Depth < 1:
		return fmt.Errorf("backlog of %d requests at once: allowed are 1 or more", b.Depth)
	case len(b.Shapes) == 0:
		return fmt.Errorf("backlog without shapes: allowed is one or more")
	case r.arm.Fleet != nil:
		return fmt.Errorf("backlog in front of %d gateways: allowed is one", r.arm.Fleet.Replicas)
	}
	for i := range b.Shapes {
		if _, known := r.classes[b.Shapes[i].Class]; r.arm.Table != nil && !known {
			return r.arm.lacks(&b.Shapes[i])
		}
	}
	r.backlog, r.occupants, r.turns = b, make([]int32, b.Depth), make([]uint32, b.Depth)
	for slot := range b.Depth {
		r.due = append(r.due, refill{0, int32(slot)})
	}
	return nil
}

// refill brings in the requests of the backlog whose time has come.
func (r *runner) refill() error {
	for len(r.due) > 0 && r.due[0].at <= r.now {
		slot := r.due[0].slot
		if r.due = slices.Delete(r.due, 0, 1); r.now >= r.backlog.Until {
			continue
		}
		e := r.backlog.Shapes[r.offered%len(r.backlog.Shapes)]
		r.offered++
		e.ID, e.Arrival = e.ID+"."+strconv.Itoa(r.offered), r.now
		r.turns[slot]++
		i := len(r.run.Records)
		r.occupants[slot] = int32(i)
		r.run.Records = append(r.run.Records, Record{Entry: e, Admitted: -1, Scheduled: -1, First: -1, Done: -1})
		r.flights = append(r.flights, flight{id: admission.MakeID(r.turns[slot], uint32(r.recorded)+uint32(slot))})
		if err := r.arrive(i); err != nil {
			return err
		}
	}
	return nil
}

// gone notes that a request is over, and if it was the backlog's when the next one
// comes.
func (r *runner) gone(i int, pause time.Duration) {
	if i < r.recorded {
		return
	}
	slot := int32(slices.Index(r.occupants, int32(i)))
	d := refill{r.now + pause, slot}
	at, _ := slices.BinarySearchFunc(r.due, d, func(have, want refill) int {
		if have.at <= want.at {
			return -1 // behind those of the same time
		}
		return 1
	})
	r.due = slices.Insert(r.due, at, d)
}

// index is the record of an id that a core has, -1 of one that is gone.
func (r *runner) index(id admission.ID) int {
	slot := int(id.Slot())
	if slot < r.recorded || r.backlog == nil {
		return slot
	}
	i := r.occupants[slot-r.recorded]
	if r.flights[i].id != id {
		return -1
	}
	return int(i)
}

func (r *runner) tenant(i int) admission.Tenant {
	if r.arm.Tenants != nil {
		return r.arm.of(i)
	}
	if i < r.recorded {
		return 0
	}
	return backlogTenant
}
