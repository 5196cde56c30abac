package admission

import (
	"testing"
	"time"
)

func benchTable() *Table {
	envelope := Of(64, 64*4096)
	return &Table{
		Engines: []EngineSpec{{Name: "e", Slots: envelope[Slots], KV: envelope[KV], Block: 16, MaxContext: 4096}},
		Classes: []ClassSpec{
			{Name: "interactive", Floor: Of(48, 48*4096), Unlent: Of(8, 8*4096), Ceiling: envelope, IdleAfter: 2 * time.Second, Depth: 4096, DefaultOut: 256},
			{Name: "batch", Floor: Of(16, 16*4096), Ceiling: envelope, IdleAfter: 2 * time.Second, Depth: 4096, DefaultOut: 256},
		},
	}
}

// One request admitted and released, with others running and nothing waiting:
// what every request pays when there is room.
func BenchmarkAdmitRelease(b *testing.B) {
	c := New(benchTable(), 128)
	var fx []Effect
	now := Time(0)
	for i := range uint32(16) {
		fx = c.Step(now, &Event{Kind: Offer, ID: MakeID(1, i+1), Class: Class(i % 2), Prompt: 500, Out: 100}, fx[:0])
	}
	offer := Event{Kind: Offer, Prompt: 500, Out: 100}
	end := Event{Kind: Ended, Flags: FlagReleased, Cause: CauseFinished, Out: 100}
	b.ReportAllocs()
	for i := range b.N {
		now += 1000
		offer.ID = MakeID(uint32(i), 0)
		fx = c.Step(now, &offer, fx[:0])
		end.Hold = fx[0].Hold
		fx = c.Step(now, &end, fx[:0])
	}
}

// The same in a table of the largest size.
func BenchmarkAdmitRelease64Classes(b *testing.B) {
	t := benchTable()
	for len(t.Classes) < MaxClasses {
		c := t.Classes[1]
		c.Floor = Amount{}
		t.Classes = append(t.Classes, c)
	}
	c := New(t, 128)
	var fx []Effect
	offer := Event{Kind: Offer, Prompt: 500, Out: 100, Class: 63}
	end := Event{Kind: Ended, Flags: FlagReleased, Cause: CauseFinished, Out: 100}
	b.ReportAllocs()
	for i := range b.N {
		offer.ID = MakeID(uint32(i), 0)
		fx = c.Step(Time(i)*1000, &offer, fx[:0])
		end.Hold = fx[0].Hold
		fx = c.Step(Time(i)*1000, &end, fx[:0])
	}
}

// A full engine and a long queue: each step ends one request, admits the head
// and takes in another.
func BenchmarkBacklog(b *testing.B) {
	c := New(benchTable(), 4096)
	var fx []Effect
	running := make([]Hold, 0, 64)
	for i := range uint32(4096) {
		fx = c.Step(0, &Event{Kind: Offer, ID: MakeID(1, i), Prompt: 500, Out: 100}, fx[:0])
		if fx[0].Op == Admit {
			running = append(running, fx[0].Hold)
		}
	}
	b.ReportAllocs()
	for i := range b.N {
		fx = c.Step(Time(i)*1000, &Event{Kind: Ended, Hold: running[i%64], Flags: FlagReleased, Cause: CauseFinished, Out: 100}, fx[:0])
		var done ID
		for _, e := range fx {
			switch e.Op {
			case Done:
				done = e.ID
			case Admit:
				running[i%64] = e.Hold
			}
		}
		fx = c.Step(Time(i)*1000, &Event{Kind: Offer, ID: MakeID(uint32(i+2), done.Slot()), Prompt: 500, Out: 100}, fx[:0])
	}
}

// The worst that a step has to do: 64 classes of which each has a head that waits
// within its floor for 2,000 loans whose life is not over, and one ends.
func BenchmarkRecall64Classes(b *testing.B) {
	const loans = 2000
	t := &Table{Engines: []EngineSpec{{Name: "e", Slots: loans, KV: loans * 128, Block: 16}}}
	for range MaxClasses - 1 {
		t.Classes = append(t.Classes, ClassSpec{Name: "owed", Floor: Of(30, 30*128), Ceiling: Of(loans, loans*128), Depth: 160, DefaultOut: 1, IdleAfter: time.Second})
	}
	t.Classes = append(t.Classes, ClassSpec{Name: "lent", Ceiling: Of(loans, loans*128), Depth: 1, DefaultOut: 1, Mode: Deadline, LoanLife: time.Hour})
	c := New(t, 3*10_000)
	var fx []Effect
	var holds []Hold
	slot := uint32(0)
	for range loans {
		fx = c.Step(0, &Event{Kind: Offer, ID: MakeID(1, slot), Class: MaxClasses - 1, Prompt: 100, Out: 28}, fx[:0])
		holds = append(holds, fx[0].Hold)
		slot++
	}
	for k := range Class(MaxClasses - 1) {
		for range 159 {
			fx = c.Step(0, &Event{Kind: Offer, ID: MakeID(1, slot), Class: k, Prompt: 100, Out: 28}, fx[:0])
			slot++
		}
	}
	b.ReportAllocs()
	for i := range b.N {
		// A block more and a block less: what one event of a stream costs.
		fx = c.Step(Time(i), &Event{Kind: Progress, Hold: holds[i%loans], Prompt: int32(100 - 16*(i/loans%2))}, fx[:0])
	}
}

// BenchmarkBrief is what a look costs with 1,000 requests running and 1,000 waiting.
func BenchmarkBrief(b *testing.B) {
	t := &Table{Engines: []EngineSpec{{Name: "e", Slots: 1000, KV: 1 << 24, Block: 16}}}
	for _, name := range []string{"interactive", "batch"} {
		t.Classes = append(t.Classes, ClassSpec{Name: name, Floor: Of(500, 1<<23), Ceiling: Of(1000, 1<<24), Depth: 1000, DefaultOut: 64})
	}
	c := New(t, 2000)
	c.Step(0, &Event{Kind: Observe, Gauge: Gauge{State: Ready, Running: -1, KV: -1, Progress: -1, Preemptions: -1}}, nil)
	for slot := range uint32(2000) {
		now := Time(slot) * Time(time.Millisecond)
		for _, e := range c.Step(now, &Event{Kind: Offer, ID: MakeID(1, slot), Class: Class(slot % 2), Prompt: 100, Out: Undeclared, N: 1}, nil) {
			if e.Op == Admit {
				c.Step(now, &Event{Kind: Progress, Hold: e.Hold, Out: 1}, nil)
				c.Step(now+Time(time.Second), &Event{Kind: Progress, Hold: e.Hold, Out: 11}, nil)
			}
		}
	}
	if s := c.Snapshot(); s.Used.Slots != 1000 || s.Classes[0].Queue+s.Classes[1].Queue != 1000 {
		b.Fatalf("not as full as it should be:\n%s", s)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Brief()
	}
}
