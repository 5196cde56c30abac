package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"headgate/admission"
	"headgate/console/now"
	"headgate/e2e/headgate"
	"headgate/e2e/realengine"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/journal"
)

// TestGatewayRecalls takes one loan back again and again, on real engines: every
// interactive request finds the engine full and is served, and every batch request
// comes to its end however often it was interrupted. How soon is logged and not
// asserted.
func TestGatewayRecalls(t *testing.T) {
	t.Run("llama.cpp", func(t *testing.T) {
		o := four
		o.Priority = true
		e := realengine.Start(t, o)
		testRecalls(t, backend{kind: "vllm", url: e.URL, model: e.Model}, ", priority: true")
	})
	if os.Getenv(realengine.LlamaServerEnv) == "" {
		return
	}
	t.Run("llama-server", func(t *testing.T) {
		e := realengine.StartLlamaServer(t, four)
		testRecalls(t, backend{kind: "llamacpp", url: e.URL, model: e.Model}, "")
	})
	t.Run("llama-server by text", func(t *testing.T) {
		e := realengine.StartLlamaServer(t, four)
		testRecalls(t, backend{kind: "openai", url: e.URL, model: e.Model}, ", kv_tokens: 16384, max_context: 4096, continue_chats: trailing, continue_completions: true")
	})
}

func testRecalls(t *testing.T, b backend, engineSettings string) {
	const recalls, tokens, short = 32, 300, 8
	k := newKeys(t)
	// Batch has three slots of its own and borrows the fourth, so that a recall has
	// one loan to wait for, and lending opens again soon after. A request may be
	// interrupted without end.
	g := headgate.Start(t, fmt.Sprintf(`%spools:
  - name: main
    engines:
      - {name: engine, kind: %s, url: "%s", slots: 4, observe_every: 50ms%s}
    classes:
      - {name: interactive, floor: {slots: 1}, idle_after: 50ms, priority: 0}
      - {name: batch, floor: {slots: 3}, reclaim: reclaim, pin_after: 0, priority: 10}
`, k.yaml, b.kind, b.url, engineSettings)).AwaitReady()

	// Five clients, so that one always waits for the slot that is lent. One of them
	// reads streams.
	var batch sync.WaitGroup
	var over atomic.Bool
	var answers atomic.Int32
	for i := range 5 {
		batch.Go(func() {
			for n := 0; !over.Load(); n++ {
				body := object{"model": b.model, "messages": user([]string{"the river", "a mountain", "some words"}[(i+n)%3]), "max_tokens": tokens, "temperature": 0}
				if i == 0 {
					body["stream"], body["stream_options"] = true, object{"include_usage": true}
				}
				r, err := generateAs(t.Context(), g.URL+chatPath, k.jobs, body)
				answers.Add(1)
				switch {
				case err != nil:
					t.Errorf("batch client %d: %v", i, err)
					return
				case r.finish != "length" || r.usage == nil || r.usage.Completion != tokens:
					t.Errorf("batch client %d: finish reason %q, usage %+v, want %d tokens", i, r.finish, r.usage, tokens)
				}
			}
		})
	}
	defer batch.Wait()
	defer over.Store(true)
	for range recalls {
		g.AwaitPool("batch has all slots, one of them on loan, and no recall is open", func(s *admission.Snapshot) bool {
			i, b := class(s, "interactive"), class(s, "batch")
			return b.Used.Slots == 4 && b.Loans > 0 && i.Recall == nil && i.Lending && s.Ghosts == 0
		})
		untilLoad(t, b.url, 4, 0)
		if err := streamAs(t.Context(), g.URL+chatPath, k.app, object{"model": b.model, "messages": user("hello"), "max_tokens": short, "stream": true}); err != nil {
			t.Fatalf("interactive request: %v", err)
		}
	}
	over.Store(true)
	batch.Wait()
	g.AwaitPool("nothing is held", idle)
	views := recallViews(t, g)
	g.Terminate()
	g.Wait()

	logRecalls(t, views)
	if len(views) < recalls-2 {
		// A batch request that ends just then leaves its slot to the interactive one.
		t.Errorf("%d recalls for %d interactive requests", len(views), recalls)
	}
	for _, v := range views {
		if v.FirstToken == nil || v.Scheduled == nil || v.Settled == nil || len(v.Reclaims) > 1 || len(v.Reclaims) == 1 && v.Reclaims[0].Confirmed == nil {
			t.Errorf("recall %+v is not complete", v)
		}
	}
	checkBorrowers(t, g.Events(), int(answers.Load()), tokens, resumes(t, b))
}

// generateAs is generate by a caller with a key.
func generateAs(ctx context.Context, url, key string, body object) (*result, error) {
	s, err := openStreamAs(ctx, url, key, body)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if body["stream"] != true {
		var a answer
		if err := json.NewDecoder(s.body).Decode(&a); err != nil {
			return nil, err
		}
		s.add(&a)
		return &s.result, nil
	}
	for {
		switch err := s.next(); err {
		case nil:
		case io.EOF:
			return &s.result, nil
		default:
			return &s.result, err
		}
	}
}

// resumes tells whether the engine says that it can go on from token ids.
func resumes(t *testing.T, b backend) bool {
	var cfg engine.Config
	cfg.SetDefaults()
	cfg.Kind, cfg.URL = engine.Kind(b.kind), b.url
	a, err := adapters.New(cfg.Kind, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c, err := a.Capabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c.TokenIDs
}

func recallViews(t *testing.T, g *headgate.Gateway) (views []now.Recall) {
	t.Helper()
	res, err := http.Get(g.Admin + "/api/recalls")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&views); err != nil {
		t.Fatal(err)
	}
	return views
}

// logRecalls tells how soon lent capacity was back, in seconds after the recall.
func logRecalls(t *testing.T, views []now.Recall) {
	var scheduled, confirmed, first []float64
	for _, v := range views {
		at := v.Scheduled
		if v.ScheduledUpper != nil {
			at = v.ScheduledUpper
		}
		if at != nil {
			scheduled = append(scheduled, *at)
		}
		if v.FirstToken != nil {
			first = append(first, *v.FirstToken)
		}
		for _, c := range v.Reclaims {
			if c.Confirmed != nil {
				confirmed = append(confirmed, *c.Confirmed)
			}
		}
	}
	for _, d := range []struct {
		name   string
		values []float64
	}{{"scheduled", scheduled}, {"confirmed", confirmed}, {"first token", first}} {
		if n := len(d.values); n > 0 {
			slices.Sort(d.values)
			t.Logf("%-11s of %d recalls: p50 %.3f s, p90 %.3f s, max %.3f s", d.name, n, d.values[(n-1)/2], d.values[(9*n+9)/10-1], d.values[n-1])
		}
	}
}

// checkBorrowers holds the journal against what was promised to the borrowers: each
// finished with its whole answer; where the engine can go on from ids, one that was
// interrupted after a token did not begin anew.
func checkBorrowers(t *testing.T, events []journal.Event, answers int, tokens int64, resumes bool) {
	t.Helper()
	var finished, cuts, cutsInAnswer, cutInAnswer, continued int
	cut := map[string]int64{} // of requests that were interrupted: tokens by then
	for _, e := range events {
		switch {
		case e.Class != "batch":
		case e.Kind == journal.Ended && e.Cause == "reclaimed":
			cuts++
			if cut[e.Request] += e.OutputTokens; e.OutputTokens > 0 {
				cutsInAnswer++
			}
		case e.Kind == journal.Ended && e.Cause == "finished" && cut[e.Request] > 0:
			cutInAnswer++
			if e.OutputTokens < tokens {
				continued++
			}
		case e.Kind == journal.Finished:
			finished++
			if e.Cause != "finished" || e.Status != 200 || e.OutputTokens != tokens {
				t.Errorf("a batch request ended so: %+v", e)
			}
		}
	}
	t.Logf("%d batch answers, interrupted %d times, %d times after a token; of the %d answers that had been begun %d went on", finished, cuts, cutsInAnswer, cutInAnswer, continued)
	if finished != answers {
		t.Errorf("%d batch requests finished of %d", finished, answers)
	}
	if cuts < 30 {
		t.Errorf("%d loans were taken back, want 30 and more", cuts)
	}
	if resumes && continued != cutInAnswer {
		t.Errorf("%d answers went on, want all %d that were interrupted", continued, cutInAnswer)
	}
	if cutInAnswer == 0 {
		t.Error("no answer was interrupted after its first token: the test shows nothing")
	}
}
