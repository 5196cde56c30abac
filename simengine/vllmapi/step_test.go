package vllmapi

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"headgate/simengine"
)

// TestStep: who asks in the middle of a step is told what it does and how much of
// it is left.
func TestStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(host())
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() { s.Run(ctx); close(stopped) }()
		idle := func(when string) {
			t.Helper()
			if step, left, ok := s.Step(); ok || left != 0 || step != (simengine.Step{}) {
				t.Errorf("%s: %+v, %v left, %t: want none", when, step, left, ok)
			}
		}
		idle("before any request")
		time.Sleep(10 * time.Second)
		c := s.call(t.Context(), "/v1/chat/completions", request(118-29, 4, 0))
		synctest.Wait()
		// A prefill after idle, and a step of one sequence.
		prefill := 54.7 + 1.752*118 + 124
		decode := 54.7 + 9.6 + 0.0045*118
		for _, at := range []struct {
			ms, left         float64
			prefill, decodes int
		}{{0, prefill, 118, 0}, {100, prefill - 100, 118, 0}, {prefill + 1, decode - 1, 0, 1}} {
			time.Sleep(time.Until(c.began.Add(time.Duration(at.ms * 1e6))))
			step, left, ok := s.Step()
			if d := left - time.Duration(at.left*1e6); !ok || step.Prefill != at.prefill || step.Decodes != at.decodes || d < -time.Microsecond || d > time.Microsecond {
				t.Errorf("after %.3f ms: %+v, %v left, %t: want %+v", at.ms, step, left, ok, at)
			}
		}
		<-c.done
		time.Sleep(time.Second)
		idle("after the last")
		stop()
		<-stopped
		idle("after its end")
	})
}
