package admission

// comesTrue checks what was foretold of an offer.
func (w *world) comesTrue(chance Chance, ev *Event, fx []Effect) {
	admitted, reclaimed, lent := false, false, false
	for i := range fx {
		e := &fx[i]
		admitted = admitted || e.Op == Admit && e.ID == ev.ID
		reclaimed = reclaimed || e.Op == Reclaim
		lent = lent || e.Op == Stage && e.Cause == CauseLendingOpened
	}
	switch {
	case chance == ChanceNow && (!admitted || reclaimed):
		w.t.Fatalf("a request that was to start at once did not: %v\n%v", fx, w.core.Snapshot())
	case chance == ChanceShort && admitted && !reclaimed && !lent:
		w.t.Fatalf("a request that was to find no room started at once: %v\n%v", fx, w.core.Snapshot())
	}
}
