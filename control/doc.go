// Package control shares one pool's envelope between the replicas of a fleet.
//
// # Idea
//
// Each gateway replica decides alone and at once what it admits, by its own
// admission core. What it may use of each engine is its grant: a statement with a
// revision and an epoch, valid for as long as the replica's lease. One Allocator,
// the leader's, hands the grants out by demand. It is a pure, clocked state
// machine like the core: joins, reports and timers go in, grants to be written
// come out. A Holder is the same for one replica: what it holds, and until when.
// The shells (control/agent, control/etcd) carry messages and hold no policy.
//
// # Safety
//
// For every engine, on every resource, at every moment
//
//	sum over replicas of bound + survival kept for the others + foreign <= envelope
//
// where the bound of a replica is the most that it can have on the engine: the
// largest of the grants that it may still be using (the last one it acknowledged
// and every later one) and of what it reported with that acknowledgement. So a
// raise is written only out of what nobody is bound by, and to shrink is to
// write a lower grant and wait: until the replica acknowledges it, the old one
// counts. An acknowledgement is a report that names the revision that was in force
// when its occupancy was taken; from then on what the replica has above the grant
// can only fall, and later reports lower the bound. A message that is lost delays
// this, one that comes late, twice or out of order names an old revision or
// sequence number and changes nothing.
//
// A class's ceiling, where it is below the envelope, is shared in the same way, by
// the same code: an account like an engine.
//
// A lease ends for its replica before it ends for the leader: the replica counts
// from before the renewal was sent, and takes its clock's drift off. What the
// replica may have left in the engines stays reserved as its residual: all that it
// was bound by, not only what it last reported, since it may have admitted until
// the end. The residual falls with what the engines' gauges can't show any more
// beside the live replicas' ledgers, and ends at the latest after a time that the grant has
// said. A replica asks for as much time as the longest that it has had is predicted to
// take; what a grant has not said yet does not count. A replica that has lost its lease
// gives up by then, less what that takes, what it has beyond what survives
// (Holder.Due), whatever it believes: only another grant puts that off, since a
// leader that writes one has counted what the replica has. A grant names the lease it
// was made under; a replica that comes back has a new one, and none of its old grants
// count.
//
// Everything a new leader has to know is in the store: each grant carries the
// bound that holds until it is acknowledged. Leaders are fenced by their epoch,
// by the store (a write is conditional on the election) and by every replica.
//
// # What is handed out
//
// Demand goes where it has room; who may borrow and when is each core's own
// judgement. For that a core has to know what it can't see: whether a class is active
// at other replicas, what is being prefilled for them, what is idle, how fast the
// engines work. The leader tells all of them (News, tell.go). News allow nothing, so
// that they may be late, or lost: safety does not depend on them, and a core that
// has none goes by its own part of each floor. With them a fleet does in
// the same traces what one replica does (docs/simulation.md).
//
// See target.go: protected demand first, then loans that are out, then what idle floors
// keep, then demand that has to borrow, and what nobody wants in equal shares.
package control
