// Package admission decides who may use an engine now, who waits, and who
// gives way. It is the one implementation of every policy: the gateway drives
// it with the real clock, the simulator with a virtual one, tests with a
// script.
//
// # Idea
//
// A pool holds an envelope of two resources, slots (sequences run at once) and
// KV tokens. Each class of requests has a floor of both: capacity that is kept
// for it. What a class does not use of its floor is lent to the others, except
// for its unlent part. An admission by which a class uses more than its own
// floor is a loan. When demand within a floor returns and does not fit, a
// recall starts: lending of that class closes at once, nobody borrows any more,
// and loans end as the borrowing class's reclaim mode says: by themselves, when
// their time is over, or at once. Once the class has been idle for a while, lending
// reopens.
//
// Around that stands what looks ahead, each in a file of its own with what was
// considered instead: whether a start would hold up a protected class (guard.go),
// how a long prefill is split (split.go), how a floor is owed over a window
// (guarantee.go), when idle capacity is worth lending (reopen.go), which loans end
// (reclaim.go), who is served next (fair.go, late.go), how long a wait will be
// (forecast.go), and what all of it goes by: times (timing.go) and lengths
// (lengths.go) that are learned from what passes through. shadow.go observes
// without enforcing. Where several cores use the same engines, each has a share
// (share.go).
//
// # Shape
//
// Core is a deterministic state machine. Step takes the time and one event and
// returns effects; there is no goroutine, lock, clock, I/O or randomness in
// here, so the same events give the same effects, byte for byte. The caller
// serialises the calls of Step, carries out the effects and reports back.
//
// Holds own capacity, requests never do. A hold is one dispatch of one request:
// it begins with the Admit effect and ends with the Released event, and in
// between nothing that happens to the request (its client leaves, its attempt
// fails, it is requeued) changes what the hold occupies. A request can thus
// leave a ghost behind, a hold whose end the engine has not confirmed, and run
// again beside it.
//
// # The two conditions
//
// With the envelope E, a class's floor F as it is owed now (see guarantee.go),
// unlent part U <= F and ceiling C, and used = the sum of a class's holds, what class k keeps out of the others'
// reach is
//
//	hold_k = F_k                                                while its lending is closed
//	       = min(F_k, max(U_k, peak used_k over idle_after + headroom_k + warm_k))   while it is open
//
// where warm is the KV of sessions that are kept warm (session.go),
//
// a request of class c that needs r is admitted iff on every resource
//
//  1. used_c + r <= C_c, and on the one engine that will run it the sum of
//     used + r + foreign <= E (+ the engine's boundary, for slots), and
//  2. over the pool, used_c + r <= hold_c, or the sum over k of
//     max(used_k, hold_k) after the admission + foreign <= E.
//
// What of a shared engine is for other cores counts as foreign there, and as if the
// ceiling of a class were lower where that is shared.
//
// The first branch of condition 2 is narrowed by one term: what is never lent of
// the other classes, and idle, must stay free (the sum over k of max(used_k, U_k)
// after the admission + foreign <= E). Without it a class returning to its own
// floor while a borrower is out would be let into the part that a third class was
// promised would never be lent. A class that stays within its own unlent part
// takes nobody's, and where the others use all of theirs there is none to spare:
// there the boundary may be used, and an engine that is smaller than what runs on
// it is in nobody's way. On an engine that takes a request together with the abort
// that makes room for it, what is on its way out counts as gone for a request within
// its class's floor, and for nobody else.
//
// What a class could never get under these conditions is its ceiling, and no more
// than the envelope without what the others keep even when they are idle. A
// request that needs more is refused at once, and none is priced at more, since a
// head that waits for what can't come would wait for ever.
//
// # What an operator sees
//
// Snapshot prints everything: what each class holds and has lent, every open
// recall with the loans it waits for, and for every queue head which condition
// refuses it on which resource, with the numbers.
package admission
