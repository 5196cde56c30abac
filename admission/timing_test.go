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

	// The engine says in the end that it found most of a prompt that was new: what was learned
	// of it is forgotten, and from then on the end is waited for.
	finds := func(slot uint32, prompt, cached int32, took Time, why Cause) {
		b.offer(1, slot, prompt, 64)
		b.to(b.now + took)
		b.prog(slot, 1)
		b.step(&Event{Kind: Ended, Hold: b.hold[slot], Cause: why, Flags: FlagReleased, Out: 64, Cached: cached})
	}
	finds(4, 1000, 700, sec, CauseFinished)
	learned("a prefix that somebody else had", 3*sec)
	finds(5, 1000, 990, 100*ms, CauseFinished)
	learned("of which nearly nothing was computed", 3*sec)
	finds(6, 1000, 0, 2*sec, CauseFinished)
	learned("a prompt of which nothing was found", 2*sec)
	finds(7, 1000, 0, sec, CauseClientGone)
	learned("one of which nobody says what was found", 2*sec)
	for i := range uint32(8) {
		finds(8+i, 1000, 0, 5*sec, CauseClientGone)
	}
	learned("eight that were slower, whatever was found", 5*sec)
}

// What the driver counted goes before what was expected to be cached, and an answer that was
// begun in an earlier call goes on.
func TestPrefillsThatWereExpected(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 0, 4)}}
	tab.Engines[0].Caches = true
	b := newScripted(t, tab)
	b.step(&Event{Kind: Offer, ID: MakeID(1, 1), Class: 1, Prompt: 1000, Cached: 960, Out: 64})
	b.step(&Event{Kind: Scheduled, Hold: b.hold[1], Flags: FlagCounted})
	b.to(b.now + 3*sec)
	b.prog(1, 1)
	b.end(1, CauseFinished, FlagReleased, 64)
	if got := b.c.engines[0].timing.prefillTime(1000); got/ms < 2990 || got/ms > 3010 {
		t.Errorf("a prefill of 1000 is taken to last %d ms", got/ms)
	}
	b.step(&Event{Kind: Offer, ID: MakeID(1, 2), Class: 1, Prompt: 1040, Out: 24, Flags: FlagBegun})
	b.to(b.now + 100*ms)
	b.prog(2, 1)
	b.end(2, CauseFinished, FlagReleased, 24)
	if got := b.c.engines[0].timing.prefillTime(1000); got/ms < 2990 || got/ms > 3010 {
		t.Errorf("after one that goes on from an earlier call: %d ms", got/ms)
	}
}

// Where nobody has a prefill to himself, the time in which several were computed tells, as long
// as nothing better is known.
func TestPrefillsThatAreNeverAlone(t *testing.T) {
	two := func(b *scripted) {
		b.offer(0, 1, 1000, 64)
		b.offer(0, 2, 1000, 64)
	}
	begin := func(b *scripted, after Time) {
		b.to(b.now + after)
		b.prog(1, 1)
		b.prog(2, 1)
	}
	tells := func(b *scripted, slot uint32, cached int32, cause Cause) {
		b.step(&Event{Kind: Ended, Hold: b.hold[slot], Cause: cause, Flags: FlagReleased, Out: 1, Cached: cached})
	}
	for _, c := range []struct {
		name    string
		caching bool
		do      func(*scripted)
		want    Time // of 1000 tokens
	}{
		{"two in three seconds", false, func(b *scripted) {
			b.offer(0, 1, 1000, 64)
			b.offer(0, 2, 500, 64)
			b.to(b.now + 2*sec)
			b.prog(1, 1)
			b.to(b.now + sec)
			b.prog(2, 1)
		}, 2 * sec},
		{"the second comes while the first is computed", false, func(b *scripted) {
			b.offer(0, 1, 1000, 64)
			b.to(b.now + sec)
			b.offer(0, 2, 1000, 64)
			b.to(b.now + 2*sec)
			b.prog(1, 1)
			b.to(b.now + sec)
			b.prog(2, 1)
		}, 2 * sec},
		{"they count from when the engine says that it began", false, func(b *scripted) {
			two(b)
			b.to(b.now + sec)
			for slot := range uint32(2) {
				b.step(&Event{Kind: Scheduled, Hold: b.hold[1+slot]})
			}
			begin(b, 2*sec)
		}, sec},
		{"one of them ends without a token", false, func(b *scripted) {
			two(b)
			b.to(b.now + sec)
			b.end(1, CauseClientGone, FlagReleased, 0)
			b.prog(2, 1)
		}, 0},
		{"another core has something computed there meanwhile", false, func(b *scripted) {
			two(b)
			b.step(&Event{Kind: Told, Elsewhere: &Elsewhere{Classes: []ClassElsewhere{{Starts: []Starts{{N: 1, Tokens: 100}}}}}})
			b.step(&Event{Kind: Told, Elsewhere: &Elsewhere{Classes: []ClassElsewhere{{}}}})
			begin(b, sec)
		}, 0},
		{"most of one was cached, and the driver counts it", true, func(b *scripted) {
			two(b)
			b.step(&Event{Kind: Scheduled, Hold: b.hold[1], Cached: 900, Flags: FlagCounted})
			b.step(&Event{Kind: Scheduled, Hold: b.hold[2], Flags: FlagCounted})
			begin(b, 1100*ms)
		}, sec},
		{"one of them goes on", true, func(b *scripted) {
			b.step(&Event{Kind: Offer, ID: MakeID(1, 1), Prompt: 1000, Out: 64, Flags: FlagBegun})
			b.offer(0, 2, 1000, 64)
			begin(b, sec)
		}, 0},
		{"the engine tells in the end what it found", true, func(b *scripted) {
			b.c.engines[0].says = true
			two(b)
			begin(b, sec)
		}, 0},
		{"and has told it, of one before the last is computed", true, func(b *scripted) {
			b.c.engines[0].says = true
			two(b)
			b.to(b.now + sec)
			b.prog(1, 1)
			tells(b, 1, 500, CauseFinished)
			b.to(b.now + sec)
			b.prog(2, 1)
			b.offer(0, 3, 1000, 64) // another spell
			tells(b, 2, 500, CauseFinished)
		}, 2 * sec},
		{"and does not tell it of one", true, func(b *scripted) {
			b.c.engines[0].says = true
			two(b)
			begin(b, sec)
			tells(b, 1, 500, CauseFinished)
			tells(b, 2, 0, CauseClientGone)
		}, 0},
		{"it begins to tell what it found", true, func(b *scripted) {
			two(b)
			begin(b, sec/20)
			tells(b, 1, 950, CauseFinished)
		}, 0},
		{"next to nothing was computed of one that is alone", true, func(b *scripted) {
			b.step(&Event{Kind: Offer, ID: MakeID(1, 1), Prompt: 2000, Cached: 1984, Out: 64})
			b.to(b.now + 50*ms)
			b.prog(1, 1)
		}, 0},
		{"nor of two", true, func(b *scripted) {
			for slot := uint32(1); slot < 3; slot++ {
				b.step(&Event{Kind: Offer, ID: MakeID(1, slot), Prompt: 2000, Cached: 1984, Out: 64})
			}
			begin(b, 50*ms)
		}, 0},
		{"little ones say nothing of large ones", false, func(b *scripted) {
			b.offer(0, 1, 60, 64)
			b.offer(0, 2, 60, 64)
			begin(b, 60*ms)
		}, 0},
		{"the engine had nothing to do in between", false, func(b *scripted) {
			b.offer(0, 1, 1000, 64)
			b.step(&Event{Kind: Scheduled, Hold: b.hold[1]})
			b.to(b.now + sec/2)
			b.offer(0, 2, 1000, 64)
			b.to(b.now + sec/2)
			b.prog(1, 1)
			b.to(b.now + 20*sec)
			b.step(&Event{Kind: Scheduled, Hold: b.hold[2]})
			b.to(b.now + sec)
			b.prog(2, 1)
		}, 0},
		{"they overlap without an end", false, func(b *scripted) {
			b.offer(0, 1, 1000, 64)
			for slot := uint32(1); slot < 5; slot++ {
				b.to(b.now + sec/2)
				b.offer(0, slot+1, 1000, 64)
				b.to(b.now + sec/2)
				b.prog(slot, 1)
			}
		}, sec},
		{"one that is alone tells better", false, func(b *scripted) {
			b.teach(0, 1, 1000, 3*sec, 10*ms)
			b.offer(0, 2, 1000, 64)
			b.offer(0, 3, 1000, 64)
			b.to(b.now + sec)
			b.prog(2, 1)
			b.prog(3, 1)
		}, 3 * sec},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := &Table{Engines: []EngineSpec{eng("e", 8)}, Classes: []ClassSpec{cls("i", 8, 8)}}
			tab.Engines[0].Caches = c.caching
			b := newScripted(t, tab)
			c.do(b)
			if got := b.c.engines[0].timing.prefillTime(1000); max(got-c.want, c.want-got) > c.want/100 {
				t.Errorf("a prefill of 1000 is taken to last %d ms, want %d", got/ms, c.want/ms)
			}
		})
	}
}
