// Package replan decides in which of its serving profiles an engine should be. A
// profile is a way of running the engine: deep has few slots and a long context,
// broad has many slots and a short one. To go from one to another costs a drain and
// often a restart, so it is done only where it is worth that, and never against what
// a session was promised.
//
// # Goal
//
// Three promises, in this order. No request is dropped by a switch: what runs ends
// by itself or goes on afterwards, and what can't is a reason not to switch. No
// promise is broken: the engine is never taken to a profile that gives a live session
// less than it was granted. And switches are bounded: at most PerHour in any hour, and
// at least Dwell apart.
//
// # Words
//
// A profile holds a request if the request could run in it at all. Demand is what
// runs and what waits. What a profile could run of it is the slots that would be busy
// in it: min(slots, demand that it holds). Demand is stranded if it waits and the
// present profile does not hold it. A promise is a context that a session may come to;
// the guarantee is the context that every profile gives.
//
// # Decision
//
// The planner goes to another profile for one of three reasons. Demand is stranded
// for ContentionAfter. Demand waits for slots for ContentionAfter, of which another
// profile could run more. Or nothing has been there for IdleAfter, and the engine is
// not in its home profile. In the first two cases it has to pay, in slot-seconds:
//
//	(expected busy slots there - expected here + urgency) x Dwell > cost
//	cost = (how long drain and switch take) x the slots that would be busy meanwhile
//
// What is expected is the recent past: an average of what each profile could have run,
// weighted to halve in 0.7 x Dwell. Urgency grows by a slot with every ContentionAfter
// that demand has been stranded, so that a single long request gets its turn against
// any number of short ones.
//
// A switch that fails, a drain that is given up, and a switch whose gain was used for
// less time than it took double ContentionAfter, up to eightfold; one that was worth it,
// and a long quiet time, take a doubling back.
//
// # States
//
//	settled -> draining -> switching -> settled
//	              |            |
//	              v            v
//	           settled     returning -> settled
//
// The planner says what is to be done and is told what came of it. It reads no clock and
// does nothing itself: whoever drives it closes the engine, waits, and runs hooks.
//
// Alternatives: to divide the day into profiles by a timetable needs no measuring, and is
// wrong on the first holiday. A forecast with a daily rhythm would switch before the
// demand comes; it needs weeks of the same rhythm to be worth more than the recent past,
// and a wrong one costs a restart. Reinforcement learning has no bound to show to the
// person whose requests wait.
package replan
