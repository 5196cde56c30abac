// Package e2e holds the end-to-end tests: real programs, real sockets, the
// official SDKs, and an engine whose scheduler was not written for the test.
//
// What a test needs besides Go is asked for through package need; make setup
// installs it.
package e2e
