//go:build !race

package main

import "testing"

// TestVirtualScripts runs commands of which nothing is concurrent, so that the race
// detector would only make them slow.
func TestVirtualScripts(t *testing.T) { runScripts(t, "testdata/virtual") }
