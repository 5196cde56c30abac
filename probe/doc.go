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
package probe
