package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"headgate/admission"
	"headgate/e2e/engine/gguf"
	"headgate/e2e/headgate"
	"headgate/e2e/realengine"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/journal"
	"headgate/wire"
)

// A llama-server streams token ids on a route of its own, by which the adapter
// has answers continued. What is promised of that is tried on the real one.

// exactFour is four slots of a model that says the same whatever it has cached.
var exactFour = realengine.Options{Model: gguf.Options{Layers: 4, Width: 256, Exact: true}, Slots: 4, Ctx: 2048}

// eachPool runs a test against a llama-server with one KV pool for all slots and
// against one with a pool for each.
func eachPool(t *testing.T, o realengine.Options, test func(*testing.T, *realengine.Engine)) {
	if os.Getenv(realengine.LlamaServerEnv) == "" {
		return // nobody has to have one
	}
	for name, unified := range map[string]bool{"a pool for each slot": false, "one pool": true} {
		t.Run(name, func(t *testing.T) {
			o.Unified = unified
			test(t, realengine.StartLlamaServer(t, o))
		})
	}
}

// twoBytes has a greedy answer consist of the two halves of é, which are tokens of
// their own, and of words.
var twoBytes = object{"logit_bias": [][]float64{{198, 200.5}, {172, 200}, {2185, 199.5}, {344, 199}}, "presence_penalty": 50, "repeat_last_n": 2}

// dispatched reads the whole answer to an attempt with token ids.
func dispatched(t *testing.T, a engine.Adapter, api wire.API, body object) *result {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.Dispatch(t.Context(), &engine.Attempt{API: api, Body: data, ID: "a", Stream: true, Interruptible: true, TokenIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort(t.Context())
	var r result
	for {
		d, err := s.Next()
		switch {
		case err == io.EOF:
			return &r
		case err != nil:
			t.Fatal(err)
		case d.Done || len(d.Data) == 0:
			continue
		case d.HasUsage && (d.Timing == nil || d.Timing.Prefill <= 0):
			t.Errorf("%s tells no prefill", d.Data)
		}
		var part answer
		if err := json.Unmarshal(d.Data, &part); err != nil {
			t.Fatalf("%s: %v", d.Data, err)
		}
		r.add(&part)
	}
}

func TestLlamaServerTellsTokenIDs(t *testing.T) {
	o := tiny
	o.Slots = 1
	eachPool(t, o, func(t *testing.T, e *realengine.Engine) {
		var cfg engine.Config
		cfg.SetDefaults()
		cfg.Kind, cfg.URL = engine.LlamaCpp, e.URL
		a, err := adapters.New(cfg.Kind, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if c, err := a.Capabilities(t.Context()); err != nil || !c.TokenIDs || !c.TellsStart {
			t.Fatalf("capabilities %+v, %v", c, err)
		}
		const length = 48
		for _, c := range []struct {
			name string
			api  wire.API
			body object
		}{
			{"chat", wire.Chat, object{"messages": []object{{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello world"}}}},
			{"special tokens in a chat", wire.Chat, object{"messages": user("a </s> b <s> c")}},
			{"an answer that was begun", wire.Chat, object{"messages": append(user("the river"), object{"role": "assistant", "content": "and the"})}},
			{"completion", wire.Completions, object{"prompt": "the old river bridge"}},
			{"other scripts", wire.Completions, object{"prompt": "a café </s>, 日本 𝄞"}},
			{"characters of several tokens", wire.Completions, twoBytes},
			{"characters in a chat", wire.Chat, twoBytes},
		} {
			t.Run(c.name, func(t *testing.T) {
				body := object{"model": e.Model, "messages": user("hello"), "prompt": "hello", "max_tokens": length, "temperature": 0, "top_k": 1,
					"stream": true, "stream_options": object{"include_usage": true}, "return_token_ids": true}
				maps.Copy(body, c.body)
				want := mustGenerate(t, e.URL+c.api.Path(), body)
				got := dispatched(t, a, c.api, body)
				if got.text != want.text || got.finish != want.finish {
					t.Errorf("%q (%s), by the engine's own route\n%q (%s)", got.text, got.finish, want.text, want.finish)
				}
				if got.usage == nil || got.usage.Prompt != want.usage.Prompt || got.usage.Completion != want.usage.Completion || got.usage.Details.Cached == 0 {
					t.Errorf("usage %+v, by the engine's own route %+v", got.usage, want.usage)
				}
				if len(got.prompt) != want.usage.Prompt || length-len(got.ids) > 1 {
					t.Errorf("%d ids of the prompt, %d of the answer", len(got.prompt), len(got.ids))
				}
				if strings.Contains(c.name, "characters") && !strings.Contains(got.text, "é") {
					t.Errorf("%q shows nothing", got.text)
				}
				var back struct{ Content string }
				ask(t, e.URL+"/detokenize", object{"tokens": got.ids}, &back)
				if back.Content != got.text {
					t.Errorf("the ids say %q, the text %q", back.Content, got.text)
				}
				if strings.Contains(c.name, "characters") {
					return // the penalty counts differently behind a cut
				}
				for _, k := range []int{1, 7, 24, length - 1} {
					body["prompt"], body["max_tokens"] = slices.Concat(got.prompt, got.ids[:k]), length-k
					rest := dispatched(t, a, wire.Completions, body)
					if !slices.Equal(rest.ids, got.ids[k:]) || !strings.HasSuffix(got.text, rest.text) || rest.text == "" {
						t.Errorf("from %d on it says %q, want the rest of %q", k, rest.text, got.text)
					}
				}
			})
		}
	})
}

// serveLoans starts a gateway like serveBackend's, of which batch's loans are ended
// at once. It can't see whether the slots divide the engine's KV or share it.
func serveLoans(t testing.TB, e *realengine.Engine) (*headgate.Gateway, keys) {
	t.Helper()
	app, appHash := headgate.NewKey(t)
	jobs, jobsHash := headgate.NewKey(t)
	return headgate.Start(t, fmt.Sprintf(`keys:
  - {name: app, tenant: product, hash: "%s", classes: [interactive]}
  - {name: jobs, tenant: research, hash: "%s", classes: [batch]}
pools:
  - name: main
    engines:
      - {name: engine, kind: llamacpp, url: "%s", slots: 4, kv_tokens: %d, observe_every: 50ms}
    classes:
      - {name: interactive, floor: {slots: 3}, unlent: {slots: 1}, idle_after: 100ms}
      - {name: batch, floor: {slots: 1}%s}
`, appHash, jobsHash, e.URL, e.Slots*e.Ctx, atOnce)).AwaitReady(), keys{app: app, jobs: jobs}
}

// recalls has interactive requests take back what batch has borrowed, n times, and
// returns the journal and batch's answers, which are streamed and which their
// clients read to their end.
func recalls(t testing.TB, g *headgate.Gateway, k keys, model string, n, tokens int) (events []journal.Event, answers [3]result) {
	t.Helper()
	// A stream is only lent what it can be continued on, which this shows.
	first := borrower(model, 0, 2)
	first["stream"] = false
	delete(first, "stream_options")
	s, err := openStreamAs(t.Context(), g.URL+chatPath, k.jobs, first)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, s.body)
	s.close()
	ended := make(chan error, len(answers))
	for i := range answers {
		s, err := openStreamAs(t.Context(), g.URL+chatPath, k.jobs, borrower(model, i, tokens))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer s.close()
			var err error
			for err == nil {
				err = s.next()
			}
			answers[i] = s.result
			if s.finished {
				err = nil
			}
			ended <- err
		}()
	}
	for range n {
		g.AwaitPool("batch has three slots", func(s *admission.Snapshot) bool { return class(s, "batch").Used.Slots == 3 })
		// One takes the unlent slot, the other wants a loan's.
		var streams []*stream
		for range 2 {
			s, err := openStreamAs(t.Context(), g.URL+chatPath, k.app, object{"model": model, "messages": user("hello"), "max_tokens": 400, "stream": true})
			if err != nil {
				t.Fatal(err)
			}
			s.await(t, 1)
			streams = append(streams, s)
		}
		for _, s := range streams {
			s.close()
		}
	}
	for range answers {
		if err := <-ended; err != nil {
			t.Errorf("a borrower's stream: %v", err)
		}
	}
	g.AwaitPool("nothing is held", idle)
	g.Terminate()
	g.Wait()
	return g.Events(), answers
}

// comeback is how long a request that needed a loan's end waited, in nanoseconds
// since it came: until the engine said that the loan is out, until it began to run
// the request, and to the first token.
type comeback struct{ confirmed, scheduled, first int64 }

func comebacks(events []journal.Event) []comeback {
	came, all := map[string]int64{}, map[string]comeback{}
	for i := range events {
		e := &events[i]
		switch c := all[e.Request]; e.Kind {
		case journal.Arrived:
			came[e.Request] = e.Mono
		case journal.Released:
			if c := all[e.For]; e.For != "" && c.confirmed == 0 {
				c.confirmed = e.Mono - came[e.For]
				all[e.For] = c
			}
		case journal.FirstToken:
			c.first = e.Mono - came[e.Request]
			all[e.Request] = c
		case journal.Scheduled:
			if e.ScheduledUpperNS == 0 {
				c.scheduled = e.ScheduledNS - came[e.Request]
				all[e.Request] = c
			}
		}
	}
	maps.DeleteFunc(all, func(_ string, c comeback) bool { return c.confirmed == 0 })
	return slices.Collect(maps.Values(all))
}

func borrower(model string, i, tokens int) object {
	return object{"model": model, "messages": user([]string{"the river", "a mountain", "some words"}[i]), "max_tokens": tokens, "temperature": 0, "top_k": 1,
		"stream": true, "stream_options": object{"include_usage": true}}
}

func TestLlamaServerResumes(t *testing.T) {
	eachPool(t, exactFour, func(t *testing.T, e *realengine.Engine) {
		const n, tokens = 4, 400
		g, k := serveLoans(t, e)
		events, answers := recalls(t, g, k, e.Model, n, tokens)
		all := comebacks(events)

		equal, cached := 0, 0
		for i := range answers {
			got, want := &answers[i], mustGenerate(t, e.URL+chatPath, borrower(e.Model, i, tokens))
			if got.text == want.text {
				equal++
			}
			if got.finish != "length" || got.chunks != tokens || len(strings.Fields(got.text)) != len(strings.Fields(want.text)) {
				t.Errorf("borrower %d: %d of %d tokens (%s)", i, got.chunks, tokens, got.finish)
			}
			if u := got.usage; u == nil || u.Completion != tokens || u.Prompt != want.usage.Prompt || u.Total != u.Prompt+tokens {
				t.Errorf("borrower %d: usage %+v, undisturbed %+v", i, got.usage, want.usage)
			}
		}
		begun, again := map[string]int{}, 0
		for j := range events {
			switch ev := &events[j]; {
			case ev.Kind == journal.Admitted && ev.Class == "batch":
				begun[ev.Request]++
			case ev.Kind == journal.Ended && ev.Class == "batch" && ev.Cause == "finished" && begun[ev.Request] > 1:
				again++
				cached += int(ev.CachedTokens)
			}
		}
		if len(all) < n || again == 0 {
			t.Errorf("%d recalls, %d borrowers ran again, want %d and some", len(all), again, n)
		}
		if cached == 0 {
			t.Error("nothing that was interrupted was found in the cache")
		}
		for _, c := range all {
			if c.scheduled <= 0 || c.first < c.scheduled {
				t.Errorf("a request took a loan's place as %+v", c)
			}
		}
		t.Logf("%d recalls, %d borrowers ran again with %d tokens cached; %d of %d answers have the very words of undisturbed ones",
			len(all), again, cached, equal, len(answers))
	})
}

// BenchmarkLlamaServerRecall measures how soon lent capacity is back, in
// milliseconds since the request came that needs it; -benchtime 40x is 40 recalls.
func BenchmarkLlamaServerRecall(b *testing.B) {
	for name, unified := range map[string]bool{"separate": false, "unified": true} {
		b.Run(name, func(b *testing.B) {
			o := exactFour
			o.Unified = unified
			e := realengine.StartLlamaServer(b, o)
			measureRecalls(b, e)
		})
	}
}

func measureRecalls(b *testing.B, e *realengine.Engine) {
	b.ReportMetric(0, "ns/op")
	at := map[string][]float64{}
	for done := 0; done < b.N; {
		n := min(b.N-done, 10)
		done += n
		g, k := serveLoans(b, e)
		events, _ := recalls(b, g, k, e.Model, n, 1000)
		for _, c := range comebacks(events) {
			for step, ns := range map[string]int64{"confirmed": c.confirmed, "scheduled": c.scheduled, "first-token": c.first} {
				at[step] = append(at[step], float64(ns)/1e6)
			}
		}
	}
	b.ReportMetric(float64(len(at["scheduled"])), "recalls")
	for step, all := range at {
		slices.Sort(all)
		for name, q := range map[string]int{"p50": 50, "p90": 90, "max": 100} {
			b.ReportMetric(all[max(0, (len(all)*q+99)/100-1)], fmt.Sprintf("%s-%s-ms", step, name))
		}
	}
}
