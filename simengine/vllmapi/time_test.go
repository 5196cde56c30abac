package vllmapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/simengine"
)

// These tests run on synctest's clock: the published host in no time.

func host() Config { return Config{Engine: simengine.DefaultConfig(), DevMode: true} }

// chars makes a chat request as the published workload's, with an output limit.
func request(words, output, priority int) string {
	return fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":%d,"priority":%d,"stream":true,"stream_options":{"include_usage":true}}`,
		strings.Repeat(" water", words), output, priority)
}

// TestRealTime: a lone request takes over HTTP what the model says, to the
// nanosecond.
func TestRealTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := host()
		cfg.PerRequestMetrics = true
		s := start(t, cfg)
		time.Sleep(10 * time.Second)
		c := s.call(t.Context(), "/v1/chat/completions", request(118-29, 16, 0))
		<-c.done
		// Prefill after idle, then 15 decode steps; the first token shows at the
		// end of the first of them.
		prefill := 54.7 + 1.752*118 + 124
		decode := func(i int) float64 { return 54.7 + 9.6 + 0.0045*float64(118+i) }
		first, all := prefill+decode(0), prefill
		for i := range 15 {
			all += decode(i)
		}
		near := func(name string, got time.Duration, want float64) {
			if diff := got - time.Duration(want*1e6); diff < -time.Microsecond || diff > time.Microsecond {
				t.Errorf("%s: %v: want %.3f ms", name, got, want)
			}
		}
		near("TTFT", c.first, first)
		near("latency", c.took, all)
		last := events(t, c.body.String())
		usage := last[len(last)-1]
		if usage.Usage.Prompt != 118 || usage.Usage.Completion != 16 {
			t.Errorf("usage %+v", usage.Usage)
		}
		near("time_to_first_token_ms", time.Duration(usage.Metrics["time_to_first_token_ms"]*1e6), first)
	})
}

// TestPriority: with one slot, what waits goes by priority; the header counts
// before the body.
func TestPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := host()
		cfg.Engine.MaxNumSeqs = 1
		s := start(t, cfg)
		var order []string
		done := make(chan string, 4)
		send := func(name string, priority int, headers ...string) {
			c := s.call(t.Context(), "/v1/chat/completions", request(5, 4, priority), headers...)
			go func() { <-c.done; done <- name }()
			synctest.Wait()
		}
		send("running", 0)
		send("batch", 10)
		send("interactive", 0)
		send("by header", 10, "X-Vllm-Priority", "-1")
		for range 4 {
			order = append(order, <-done)
		}
		if got := strings.Join(order, ", "); got != "running, by header, interactive, batch" {
			t.Errorf("order of completion: %s", got)
		}
	})
}

// TestDisconnect: a client that goes away frees its slot and blocks at the next
// boundary between steps, running or waiting.
func TestDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := host()
		cfg.Engine.MaxNumSeqs = 1
		s := start(t, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		running := s.call(ctx, "/v1/chat/completions", request(100, 1000, 0))
		waiting := s.call(ctx, "/v1/chat/completions", strings.Replace(request(100, 1000, 0), `"stream":true,"stream_options":{"include_usage":true}`, `"stream":false`, 1))
		time.Sleep(2 * time.Second)
		if st := s.snapshot(); st.Running != 1 || st.Waiting != 1 || st.UsedBlocks == 0 {
			t.Fatalf("before: %+v", st)
		}
		cancel()
		<-running.done
		<-waiting.done
		if st := s.snapshot(); st.Running != 1 {
			t.Errorf("right after: %+v: the step that runs is not over", st)
		}
		time.Sleep(100 * time.Millisecond) // one decode step takes 65 ms
		if st := s.snapshot(); st.Running != 0 || st.Waiting != 0 || st.UsedBlocks != 0 || st.Aborts != 2 {
			t.Errorf("one step later: %+v", st)
		}
		if waiting.body.Len() != 0 {
			t.Errorf("a client that is gone was answered: %s", waiting.body.String())
		}
	})
}

func (s *Server) snapshot() simengine.Stats {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// TestAbortRequests ends requests by their external id; their clients see
// finish_reason abort.
func TestAbortRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, host())
		a := s.call(t.Context(), "/v1/chat/completions", request(5, 1000, 0), "X-Request-Id", "a")
		b := s.call(t.Context(), "/v1/chat/completions", request(5, 1000, 0), "X-Request-Id", "b")
		time.Sleep(time.Second)
		<-s.call(t.Context(), "/abort_requests", `{"request_ids":["chatcmpl-a","chatcmpl-unknown"]}`).done
		<-a.done
		if g := gather(events(t, a.body.String())); g.finish != "abort" {
			t.Errorf("aborted: %+v", g)
		}
		if st := s.snapshot(); st.Running != 1 || st.Aborts != 1 {
			t.Errorf("the other one: %+v", st)
		}
		<-s.call(t.Context(), "/abort_requests", `{}`).done
		<-b.done
		if st := s.snapshot(); st.Running != 0 || st.Aborts != 2 {
			t.Errorf("all: %+v", st)
		}
	})
}

// TestQueueBound: with a bound, what is over it is refused at once and the
// bound counts choices.
func TestQueueBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := host()
		cfg.MaxQueuedRequests = 2
		s := start(t, cfg)
		first := s.call(t.Context(), "/v1/completions", `{"prompt":"a","n":2}`)
		synctest.Wait()
		over := s.call(t.Context(), "/v1/completions", `{"prompt":"a"}`)
		<-over.done
		if a := parse(t, over.body.String()); over.status != 503 || a.Error.Type != "Service Unavailable" || over.took != 0 {
			t.Errorf("over the bound: %d %s after %v", over.status, over.body.String(), over.took)
		}
		<-first.done
		again := s.call(t.Context(), "/v1/completions", `{"prompt":"a"}`)
		<-again.done
		if again.status != 200 {
			t.Errorf("after the first was answered: %d %s", again.status, again.body.String())
		}
	})
}

// TestShutdown: streams end with an error and a terminator, whole answers and
// later requests with 503.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(host())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go s.Run(ctx)
		stream := s.call(t.Context(), "/v1/chat/completions", request(5, 1000, 0))
		whole := s.call(t.Context(), "/v1/completions", `{"prompt":"a","max_tokens":1000}`)
		time.Sleep(time.Second)
		cancel()
		<-stream.done
		<-whole.done
		all := events(t, stream.body.String())
		if e := all[len(all)-1].Error; e == nil || e.Code != 503 {
			t.Errorf("stream: %+v", all[len(all)-1])
		}
		if whole.status != 503 {
			t.Errorf("whole: %d", whole.status)
		}
		late := s.call(t.Context(), "/v1/completions", `{"prompt":"a"}`)
		<-late.done
		if late.status != 503 {
			t.Errorf("late: %d", late.status)
		}
	})
}

// TestEndsByItself: with a mean output length answers end with reason stop, of
// lengths that vary around it, unless the request says otherwise.
func TestEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Many(64)
		cfg.Engine.MeanOutput = 50
		s := start(t, cfg)
		total := 0
		for i := range 100 {
			c := s.call(t.Context(), "/v1/completions", fmt.Sprintf(`{"prompt":"%d","max_tokens":1000,"min_tokens":3}`, i))
			<-c.done
			a := parse(t, c.body.String())
			if a.Choices[0].Finish != "stop" || a.Usage.Completion <= 3 {
				t.Errorf("prompt %d: %s", i, c.body.String())
			}
			total += a.Usage.Completion
		}
		if mean := total / 100; mean < 35 || mean > 70 {
			t.Errorf("mean output %d: want about 50", mean)
		}
		c := s.call(t.Context(), "/v1/completions", `{"prompt":"1","max_tokens":1000,"ignore_eos":true}`)
		<-c.done
		if a := parse(t, c.body.String()); a.Choices[0].Finish != "length" || a.Usage.Completion != 1000 {
			t.Errorf("ignore_eos: %s", c.body.String())
		}
	})
}
