// Package bench runs a preregistered comparison and keeps its evidence.
//
// A Plan says everything before anything runs: the hypothesis, the arms, the
// engine, the workload, what "on time" means, which metric decides by which
// margin, when it stops. Its SHA-256 stands in every result. A plan's sources
// (one trace each) are run through all arms, a source's runs one after another
// in a rotated order, so that what changes slowly on a machine falls on every
// arm alike. One source is one pair of runs, and the pair is what statistics are
// made over: requests of one run depend on each other.
//
// Every run is checked by gates, which are pure functions over what was seen
// beside the requests: did the generator keep its schedule, was the engine the
// same one at the end. A run that fails one is invalid, is kept as it is, and
// takes its whole pair out, whatever the outcome was.
//
// Two runners give the same form of result: Virtual, over package sim, and the
// one of bench/live, which starts real processes. What they write is a
// directory whose files are written once (Dir).
package bench
