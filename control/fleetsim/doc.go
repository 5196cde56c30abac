// Package fleetsim runs whole fleets in virtual time and looks for a moment at which
// they are not safe.
//
// # Idea
//
// A history is one run of a fleet, made from a seed and nothing else: replicas
// with a real admission.Core and a real control.Holder, controllers with a real
// control.Allocator, a store that keeps what etcd keeps, engines that count. Between
// them a network that drops, delays, repeats and reorders; and around them somebody
// who stops, kills, cuts off and reconfigures whatever he likes. Everything runs in
// one goroutine on one heap of events, so that a seed gives the same history, byte for
// byte, and a violation is a seed.
//
// After each step the books (books.go) are looked at. They are kept from the outside:
// from what was admitted and what has ended, from what the store was asked to keep,
// never from what an allocator or a core believes.
//
// # What is checked
//
//  1. For every engine and every limited class, on every resource: what all lives
//     may have at this moment is within the total. A life that runs may have its
//     grant, while that is in force by its own holder, or what survives; or what it has,
//     if that is more. A life that is over has what of it is still in the engine. What
//     survives of a name that is down stays counted.
//  2. No engine ever holds more than it has.
//  3. Each admission has a grant that was in force, by the store's clock and not only by
//     the replica's, and that the store has really kept; or is within what survives.
//  4. No core has more after an admission than its grant, or what survives.
//  5. When the faults are over, what waits within its floor is admitted within a lease
//     and the longest residual time; nothing stays reserved for lives that are over, and
//     the grants together come to the envelope again.
//  6. Nobody waits for ever: once no more requests come, everything that waits is
//     served.
//
// # What is modelled, and how far
//
// The store is linearizable; what etcd adds of its own (members, elections, compaction)
// is seen from outside as requests that are lost, are late, or are done without an
// answer, watches that are late or break, and leases that last longer than they were
// asked to. A lease never ends before its time by the store's clock, which is the
// clock of the history. Replicas' and leaders' clocks go wrong by up to the drift that
// holders are told of, and replicas' jump forward. A clock that stands still while
// the machine sleeps is not modelled: no lease survives that.
//
// The check of a grant and the admission by it are one instant. What was admitted then
// takes up to 800 ms to reach the engine (control.Config.Settle is 1 s), and runs there for
// as long as it likes: some requests much longer than anybody predicts. What a replica
// gives up since its lease is over reaches the engine as soon. What nobody can give up is
// bounded by a belief in engines instead: what has lost its connection, what the engine
// does not heed the abort of, and what a replica has that is stopped, is over when the
// replica would have given it up at the latest. An engine is of the kind on which running
// out of KV is fatal, so that what is reserved is all that can be used; boundaries and
// Together, with which a core relies on the engine's order of work, are left out.
//
// Foreign load is in some histories, and known only by the gauges. There the engine's
// bound is checked for what the fleet sent.
package fleetsim
