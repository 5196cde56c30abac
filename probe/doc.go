// Package probe asks a live engine for its mechanism.
//
// # The idea
//
// A measurement is not a mechanism. That an engine with eight slots served one request
// at a time says nothing of whether seven idle slots took KV from the one: that depends
// on whether its KV pool is shared or divided. What advice relies on is therefore asked
// of the engine itself, by requests whose outcome differs between the mechanisms. A
// [Finding] has its evidence, and where the outcome would have been the same under both
// it is unknown: a probe may fail to tell, and never guesses.
//
// What was found is a [Profile], a file that serve, sim and advise read.
//
// # How it is made
//
// A session (session.go) sends requests through the engine's adapter, keeps what was seen
// of each, and bounds them: by tokens, by time, and by others' requests, for which it
// ends. Each request has a context of its own, so that whatever ends the probe, each is
// aborted and its release confirmed.
//
// The experiments (stages.go) make something happen. What that shows is judged apart from
// it (judge.go, judgesteps.go), of records of what was seen, in functions that do nothing
// else: every outcome, and above all every ambiguous one, is a row of a test.
//
// # What makes an outcome ambiguous
//
// A client sees tokens when it reads them, which on a busy machine is late and in bunches.
// So streams run beside each other if they take turns, not if their tokens overlap; paces
// are means; of a prompt's times the shortest counts, and times that do not repeat are
// none. Who has no token must have had time for one. And a limit that is met tells nothing
// if something else might have set it: a sequence that ends at a slot's part of the pool
// says so only where the model itself takes more.
//
// Alternatives: to ask the engine for its flags would be simpler where it tells them, and
// is what it says, not what it does; gauges alone (requests running, share of KV in use)
// are written by steps, may stand still, and count what has been put into a batch, not what
// advances.
package probe
