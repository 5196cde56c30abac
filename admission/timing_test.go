package admission

import "testing"

// What an answer that goes on takes to its next token tells nothing of a prefill where the
// engine keeps prefixes: the prompt is found there. A prompt that was begun by others is no
// better, once the engine says at the end how much it found.
func TestPrefillsThatWereCached(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 0, 4)}}
	tab.Engines[0].Caches = true
	b := newScripted(t, tab)
	learned := func(what string, want Time) {
		t.Helper()
		if got := b.c.engines[0].timing.prefillTime(1000); got != want {
			t.Fatalf("%s: a prefill of 1000 is taken to last %d ms, want %d", what, got/ms, want/ms)
		}
	}
	b.teach(1, 1, 1000, 3*sec, 10*ms)
	learned("a fresh prompt", 3*sec)

	// Reclaimed, it goes on after a tenth of a second.
	b.offer(1, 2, 1000, 64)
	b.to(b.now + 3*sec)
	b.prog(2, 8)
	b.end(2, CauseReclaimed, FlagReleased|FlagKept, 8)
	b.to(b.now + 100*ms)
	b.prog(2, 1)
	learned("one that goes on", 3*sec)
	b.end(2, CauseFinished, FlagReleased, 56)
	learned("its end, of which nothing is said", 3*sec)

	// The driver counts what was found: 200 of 1000 took half a second to compute.
	b.offer(1, 3, 1000, 64)
	b.step(&Event{Kind: Scheduled, Hold: b.hold[3], Cached: 800, Flags: FlagCounted})
	b.to(b.now + 500*ms)
	b.prog(3, 1)
	b.end(3, CauseFinished, FlagReleased, 64)
	if got := b.c.engines[0].timing.prefillTime(200); got != 500*ms {
		t.Fatalf("a prefill of 200 is taken to last %d ms", got/ms)
	}

	// The engine says in the end that it found nearly all: from then on the end is waited for.
	finds := func(slot uint32, cached int32, took Time) {
		b.offer(1, slot, 1000, 64)
		b.to(b.now + took)
		b.prog(slot, 1)
		b.step(&Event{Kind: Ended, Hold: b.hold[slot], Cause: CauseFinished, Flags: FlagReleased, Out: 64, Cached: cached})
	}
	finds(4, 990, 3*sec)
	learned("what was learned before it was known", 3*sec)
	finds(5, 990, 100*ms)
	learned("a prefix that somebody else had", 3*sec)
	finds(6, 0, 2*sec)
	learned("a prompt of which nothing was found", 2*sec)
}
