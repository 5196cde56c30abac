package admission

import (
	"testing"

	"pgregory.net/rapid"
)

// TestPlacement: whatever was sent, ended and shown by samples before, a request goes
// to an engine that is no busier than the least busy one that takes it, by more than
// affinity is worth; and never to one that can't run it.
func TestPlacement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := &Table{Classes: []ClassSpec{cls("only", 0, 1<<10)}}
		for _, name := range []string{"a", "b", "c"}[:rapid.IntRange(2, 3).Draw(t, "engines")] {
			tab.Engines = append(tab.Engines, eng(name, int64(rapid.IntRange(1, 12).Draw(t, "slots"))))
		}
		tab.Classes[0].Ceiling = tab.Envelope()
		c := New(tab, 64)
		var now Time
		var holds []Hold
		gen := uint32(0)
		free := func(e Engine, more Amount) float64 {
			en := &c.engines[e]
			least := 1.0
			for r := range NumResources {
				total := Of(en.spec.Slots, en.spec.KV)[r]
				least = min(least, float64(total-en.used[r]-more[r]-en.foreign[r])/float64(total))
			}
			return least
		}
		t.Repeat(map[string]func(*rapid.T){
			"offer": func(t *rapid.T) {
				gen++
				ev := &Event{Kind: Offer, ID: MakeID(gen, gen%64), Prompt: int32(rapid.IntRange(1, 200).Draw(t, "prompt")), Out: 50, N: 1}
				ev.Cached = int32(rapid.IntRange(0, int(ev.Prompt)).Draw(t, "cached"))
				ev.Engine = Engine(rapid.IntRange(0, len(tab.Engines)-1).Draw(t, "home"))
				ev.Barred = uint64(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "barred"))
				for _, e := range c.Step(now, ev, nil) {
					switch e.Op {
					case Admit:
						holds = append(holds, e.Hold)
						if ev.Barred&(1<<e.Engine) != 0 {
							t.Fatalf("engine %d can't run it", e.Engine)
						}
						took := Of(1, e.Tokens)
						for o := range tab.Engines {
							other := Engine(o)
							worth := free(e.Engine, Amount{})
							if e.Engine == ev.Engine {
								worth += affinity * float64(ev.Cached) / float64(ev.Prompt)
							}
							if other != e.Engine && ev.Barred&(1<<o) == 0 && free(other, took) > worth+1e-9 && other != ev.Engine {
								t.Fatalf("admitted to %d, worth %.3f, while %d would have %.3f free", e.Engine, worth, o, free(other, took))
							}
						}
					case Queued:
						c.Step(now, &Event{Kind: Cancel, ID: ev.ID}, nil)
					}
				}
			},
			"end": func(t *rapid.T) {
				if len(holds) > 0 {
					i := rapid.IntRange(0, len(holds)-1).Draw(t, "which")
					c.Step(now, &Event{Kind: Ended, Hold: holds[i], Out: 1, Flags: FlagReleased, Cause: CauseFinished}, nil)
					holds = append(holds[:i], holds[i+1:]...)
				}
			},
			"observe": func(t *rapid.T) {
				now += Time(250e6)
				c.Step(now, &Event{Kind: Observe, Engine: Engine(rapid.IntRange(0, len(tab.Engines)-1).Draw(t, "engine")), Gauge: Gauge{
					Asked: now, Running: int32(rapid.IntRange(0, 12).Draw(t, "running")), KV: -1, Progress: int64(now), Preemptions: -1,
				}}, nil)
			},
		})
	})
}
