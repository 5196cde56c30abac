// Package headgate runs the headgate binary for end-to-end tests: the gateway
// that a configuration describes, and the simulated engine.
//
// What a test sees of it is what an operator sees: the listeners, the journal,
// the admin pages, the log and the exit status. A process is told to stop with
// SIGTERM when its test ends, and has to leave with status 0 and nothing ended by
// force; otherwise the test fails.
package headgate
