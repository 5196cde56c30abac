// Package provetest makes days of requests, and the journals that a gateway would have
// written of them.
package provetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"headgate/admission"
	"headgate/journal"
	"headgate/sim"
	"headgate/trace"
)

// Start is when every journal begins.
var Start = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// Noise is a small generator, so that the tests' days need no source of chance.
type Noise uint64

// NewNoise returns one that is far from those of other seeds.
func NewNoise(seed uint64) Noise { return Noise(seed*2654435761 + 88172645463325252) }

// Next is in [0, 1).
func (n *Noise) Next() float64 {
	*n ^= *n << 13
	*n ^= *n >> 7
	*n ^= *n << 17
	return float64(*n>>11) / (1 << 53)
}

// Day is chats that come in waves, so many a second in the middle, and some batch.
func Day(seed uint64, length time.Duration, perSecond float64, batch bool) []trace.Entry {
	n := NewNoise(seed)
	var all []trace.Entry
	at := 0.0
	for {
		wave := 1 + 0.9*math.Sin(2*math.Pi*at/length.Seconds()-math.Pi/2)
		at += -math.Log(1-n.Next()) / perSecond / max(wave, 0.05)
		arrival := time.Duration(at*1e6).Truncate(1) * time.Microsecond
		if arrival >= length {
			return all
		}
		e := trace.Entry{ID: fmt.Sprintf("r%d", len(all)), Class: trace.Interactive, Arrival: arrival, PromptTokens: 50 + int(900*n.Next()*n.Next()), Output: 10 + int(150*n.Next())}
		if batch && n.Next() < 0.1 {
			e.Class, e.PromptTokens, e.Output = trace.Batch, 1200+int(800*n.Next()), 100
		}
		all = append(all, e)
	}
}

// Journal is what a gateway would have written of requests that were served in virtual
// time, in a pool main with the engine gpu0.
func Journal(entries []trace.Entry, arm *sim.Arm, length time.Duration, limits admission.Objective) ([]journal.Event, error) {
	run, err := sim.Simulate(&trace.Trace{Entries: entries}, arm)
	if err != nil {
		return nil, err
	}
	var all []journal.Event
	add := func(at time.Duration, e journal.Event) {
		e.Mono, e.TS = int64(at), Start.Add(at)
		if e.Kind != journal.Started && e.Kind != journal.Stopped {
			e.Pool = "main"
		}
		all = append(all, e)
	}
	add(0, journal.Event{Kind: journal.Started})
	for i := range run.Records {
		r := &run.Records[i]
		e := journal.Event{Request: r.ID, Class: r.Class, Tenant: "t", API: "chat", PromptTokens: int64(r.PromptTokens)}
		is := func(kind journal.Kind) journal.Event { e.Kind = kind; return e }
		arrived := is(journal.Arrived)
		arrived.TTFTLimitNS, arrived.TPOTLimitNS, arrived.E2ELimitNS = int64(limits.First), int64(limits.Token), int64(limits.Whole)
		if r.MaxTokens > 0 {
			arrived.Declared, arrived.MaxTokens = true, int64(r.MaxTokens)
		}
		add(r.Arrival, arrived)
		if r.Outcome == sim.Rejected {
			rejected := is(journal.Rejected)
			rejected.Cause = r.Cause
			add(r.Arrival, rejected)
			continue
		}
		admitted, sent := is(journal.Admitted), is(journal.Dispatched)
		admitted.Shadow = arm.Table == nil
		sent.Engine = "gpu0"
		add(r.Admitted, admitted)
		add(r.Admitted, sent)
		if r.First >= 0 {
			add(r.First, is(journal.FirstToken))
		}
		finished := is(journal.Finished)
		finished.OutputTokens, finished.Cause = int64(r.Tokens), admission.CauseFinished.String()
		add(r.Done, finished)
	}
	slices.SortStableFunc(all, func(a, b journal.Event) int { return int(max(min(a.Mono-b.Mono, 1), -1)) })
	add(max(length, time.Duration(all[len(all)-1].Mono)), journal.Event{Kind: journal.Stopped})
	for i := range all {
		all[i].Seq = uint64(i + 1)
	}
	return all, nil
}

// Lines are events as a journal's file has them.
func Lines(events []journal.Event) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for i := range events {
		if err := enc.Encode(&events[i]); err != nil {
			panic(err) // a buffer takes everything
		}
	}
	return b.Bytes()
}
