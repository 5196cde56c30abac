package relay

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/simengine/vllmapi"
	"headgate/wire"
)

const simStep = 10 * time.Millisecond

// simulated is a pool over a simulated engine whose slots belong to
// interactive. What batch gets of it is lent.
type simulated struct {
	*rig
	direct *http.Client // to the engine itself
	model  string

	handler http.Handler
	mem     atomic.Pointer[enginetest.Listener]
	front   *http.Server
	refused atomic.Value // a path that answers with an error
	full    atomic.Int32 // so many completions are refused for want of room
	wasted  int          // of the last call that was checkpointed
}

// listen lets the engine be reached, crash breaks every connection to it.
func (s *simulated) listen() {
	s.refused.Store("")
	s.mem.Store(enginetest.NewListener())
	front, mem := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == s.refused.Load() {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		if r.URL.Path == wire.Completions.Path() && s.full.Add(-1) >= 0 {
			w.Header().Set("Retry-After-Ms", "300")
			http.Error(w, "full", http.StatusTooManyRequests)
			return
		}
		s.handler.ServeHTTP(w, r)
	})}, s.mem.Load()
	s.front = front
	go func() { _ = front.Serve(mem) }()
}

func (s *simulated) crash() { _ = s.front.Close() }

func newSimulated(t testing.TB, slots int, change func(*vllmapi.Config)) *simulated {
	t.Helper()
	return newSimulatedOf(t, slots, reclaimer(int64(slots)), change)
}

func newSimulatedOf(t testing.TB, slots int, classes []admission.ClassSpec, change func(*vllmapi.Config), configure ...func(*engine.Config)) *simulated {
	t.Helper()
	var o options
	cfg := vllmapi.Many(slots)
	cfg.ModelName = "test-model"
	cfg.Engine.Model.Step.Base = float64(simStep / time.Millisecond)
	cfg.Engine.SplitCharacters, cfg.Engine.MeanOutput = 3, 60
	if change != nil {
		change(&cfg)
	}
	server, err := vllmapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); server.Run(ctx) }()
	s := &simulated{model: cfg.ModelName, handler: server.Handler()}
	s.listen()
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return s.mem.Load().DialContext(ctx, network, addr)
	}
	direct := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	s.direct = &http.Client{Transport: direct}
	t.Cleanup(func() { s.crash(); cancel(); <-ran })
	var ec engine.Config
	ec.SetDefaults()
	ec.Kind, ec.URL, ec.DialContext, ec.Capabilities.Slots = engine.VLLM, "http://engine.test", dial, slots
	ec.AbortGrace = 5 * simStep
	for _, f := range configure {
		f(&ec)
	}
	adapter, err := adapters.New(ec.Kind, ec)
	if err != nil {
		t.Fatal(err)
	}
	o.classes = classes
	o.pool = func(c *Config) {
		c.Engines = []Engine{{Name: "sim", Adapter: adapter, ObserveEvery: observeEvery, Priority: []int{0, 10}}}
		c.Keepalive = 100 * time.Millisecond
	}
	s.rig = newRig(t, o)
	pass(2 * time.Second) // interactive lends
	return s
}

// ask is the body of a request of either route.
func ask(api wire.API, stream bool, prompt string, most int, more string) string {
	text := fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, prompt)
	if api == wire.Completions {
		text = fmt.Sprintf(`"prompt":%q`, prompt)
	}
	if stream {
		more += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	return fmt.Sprintf(`{"model":"test-model",%s,"max_tokens":%d%s}`, text, most, more)
}

// interrupt ends whatever runs, as the core would, and tells whether anything did.
func (s *simulated) interrupt() (ended bool) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for _, r := range s.pool.records {
		if r != nil && r.cancel != nil {
			r.reclaimed = true
			r.cancel(errReclaimed)
			ended = true
		}
	}
	return ended
}

// dispatched tells whether a request is at the engine.
func (s *simulated) dispatched() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for _, r := range s.pool.records {
		if r != nil && r.cancel != nil {
			return true
		}
	}
	return false
}

// answer is what a client gets of a batch request that is interrupted after each
// of the given times, and how often it was.
func (s *simulated) answer(api wire.API, body string, after ...time.Duration) (got *client, cuts int) {
	s.t.Helper()
	call := s.callOf(api, "batch", body)
	c := &client{id: call.ID, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(c.done)
		defer cancel()
		c.err = s.pool.Serve(ctx, call, c)
	}()
	for _, d := range after {
		pass(d)
		if s.interrupt() {
			cuts++
		}
		for c.code() == "running" && !s.dispatched() {
			pass(simStep)
		}
	}
	<-c.done
	pass(2 * observeEvery)
	s.wantCode(c, "")
	return c, cuts
}

func (g *rig) callOf(api wire.API, class, body string) *Call {
	g.t.Helper()
	req, err := wire.Parse(api, []byte(body))
	if err != nil {
		g.t.Fatal(err)
	}
	g.served++
	return &Call{ID: fmt.Sprintf("req_%d", g.served), Request: req, Class: class, Tenant: "acme", Principal: "ann", Arrived: time.Now()}
}

// engineSays is the engine's own answer.
func (s *simulated) engineSays(api wire.API, body string) string {
	s.t.Helper()
	res, err := s.direct.Post("http://engine.test"+api.Path(), "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%v, status %d: %s", err, res.StatusCode, got)
	}
	return string(got)
}

var naming = regexp.MustCompile(`"id":"[^"]*"|"created":[0-9]+`)

// nameless is an answer without what differs between any two, and how many
// different names there were in it.
func nameless(answer string) (text string, names int) {
	all := map[string]bool{}
	text = naming.ReplaceAllStringFunc(answer, func(m string) string { all[m] = true; return "" })
	return text, len(all)
}

// TestResumeIsExact: a request that is interrupted anywhere, in the middle of a
// character too, and any number of times, has the answer of one that was not: in a
// stream the very bytes that the engine sends to whom it serves undisturbed.
func TestResumeIsExact(t *testing.T) {
	total, inside := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		api := rapid.SampledFrom([]wire.API{wire.Chat, wire.Completions}).Draw(rt, "api")
		stream := rapid.Bool().Draw(rt, "stream")
		most := rapid.IntRange(1, 120).Draw(rt, "max_tokens")
		least := rapid.IntRange(0, most).Draw(rt, "min_tokens")
		prompt := rapid.StringOfN(rapid.RuneFrom([]rune("ab é水😀")), 1, 12, -1).Draw(rt, "prompt")
		var after []time.Duration
		for range rapid.IntRange(1, 5).Draw(rt, "cuts") {
			// The engine's steps and the relay's moments are not in line.
			after = append(after, time.Duration(rapid.IntRange(0, 400).Draw(rt, "after"))*simStep/10)
		}
		body := ask(api, stream, prompt, most, fmt.Sprintf(`,"min_tokens":%d,"temperature":0`, least))
		synctest.Test(t, func(t *testing.T) {
			s := newSimulated(t, 1, nil)
			s.answer(wire.Chat, ask(wire.Chat, false, "x", 1, "")) // the engine is seen to return ids
			want, _ := s.answer(api, body)
			got, cuts := s.answer(api, body, after...)
			a, _ := nameless(want.text())
			b, names := nameless(got.text())
			if a != b || names != 2 {
				rt.Errorf("after %d cuts, with %d names:\n%s\nwant\n%s", cuts, names, b, a)
			}
			if own, _ := nameless(s.engineSays(api, body)); stream && b != own {
				rt.Errorf("after %d cuts:\n%s\nthe engine says\n%s", cuts, b, own)
			}
			s.wantEmpty()
			total += cuts
			for _, e := range s.events() {
				if e.Cause == "reclaimed" && e.OutputTokens > 0 {
					inside++
				}
			}
		})
	})
	t.Logf("%d interruptions, %d of them with tokens to keep", total, inside)
	if inside == 0 {
		t.Error("nothing was ever kept")
	}
}

// TestResumeOfARecall: what a real recall interrupts goes on when there is room
// again, and its client is kept waiting with comments.
func TestResumeOfARecall(t *testing.T) {
	for _, api := range []wire.API{wire.Chat, wire.Completions} {
		t.Run(api.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulated(t, 1, func(c *vllmapi.Config) { c.Engine.MeanOutput = 0 })
				s.answer(wire.Chat, ask(wire.Chat, false, "x", 1, ""))
				body := ask(api, true, "the river", 100, "")
				call := s.callOf(api, "batch", body)
				c := &client{id: call.ID, done: make(chan struct{})}
				go func() {
					defer close(c.done)
					c.err = s.pool.Serve(t.Context(), call, c)
				}()
				for range 3 {
					pass(15 * simStep)
					wants := s.start("interactive", ask(wire.Chat, true, "hello", 200, ""), s.pool.Serve)
					pass(10 * simStep)
					if len(wants.decisions) != 1 {
						t.Error("interactive waits for a loan")
					}
					<-wants.done
					for !s.dispatched() {
						pass(100 * time.Millisecond)
					}
				}
				<-c.done
				got, _ := nameless(c.text())
				if want, _ := nameless(s.engineSays(api, body)); got != want {
					t.Errorf("the client got\n%s\nwant\n%s", got, want)
				}
				if c.alive < 10 || len(c.decisions) != 4 {
					t.Errorf("%d comments and %d admissions", c.alive, len(c.decisions))
				}
				if n := s.metric("headgate_time_to_first_token_seconds", "class", "batch"); n != 2 {
					t.Errorf("%v first tokens of 2 answers", n)
				}
				pass(time.Second)
				s.wantEmpty()
				events := s.events()
				kept := 0
				for _, e := range events {
					if e.Request == c.id && e.Cause == "reclaimed" {
						kept += int(e.OutputTokens)
					}
					if e.Request == c.id && string(e.Kind) == "finished" && (e.OutputTokens != 100 || e.PromptTokens > 40) {
						t.Errorf("finished with %d tokens after a prompt of %d", e.OutputTokens, e.PromptTokens)
					}
				}
				if kept == 0 || kept >= 100 {
					t.Errorf("%d tokens were kept", kept)
				}
			})
		})
	}
}

// said is a chat event of one choice with its ids; more goes into the delta.
func saidWith(text, ids, more string) string {
	return fmt.Sprintf(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"test-model","choices":[{"index":0,"delta":{"content":%q%s},"finish_reason":null%s}]}`+"\n\n", text, more, ids)
}

const opened = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"test-model","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[11,12]}` + "\n\n"

// newSeen is a pool over a scripted engine of one slot that has returned ids.
func newSeen(t *testing.T) *rig {
	g := newRig(t, options{classes: reclaimer(1)})
	paced(g)
	c := g.serve("batch", sent(false, `,"max_tokens":9`))
	call := g.engines[0].Accept(t)
	call.Send(opened + saidWith("x", `,"token_ids":[1]`, ""))
	call.Finish("stop")
	settle()
	g.wantCode(c, "")
	if strings.Contains(c.text(), "token_ids") {
		t.Errorf("a client that did not ask for ids got %s", c.text())
	}
	return g
}

// TestWhatIsSureIsContinued: a stream is cut behind an event of one token, never
// behind one of several, which may hide a part of a character, and goes on from
// the ids of what its client has.
func TestWhatIsSureIsContinued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSeen(t)
		e := g.engines[0]
		batch := g.serve("batch", sent(true, `,"max_tokens":50,"min_tokens":10,"temperature":0.5,"priority":3,"chat_template_kwargs":{"a":1}`))
		first := e.Accept(t)
		first.Start()
		first.Send(opened + saidWith("a", `,"token_ids":[1]`, "") + saidWith("bc", `,"token_ids":[2,3]`, ""))
		settle()
		wants := g.serve("interactive", sent(true, ""))
		pass(time.Second)
		select {
		case <-first.Gone():
			t.Fatal("cut behind an event of two tokens")
		default:
		}
		first.Send(saidWith("", `,"token_ids":[4]`, "") + saidWith("d", `,"token_ids":[5]`, "") + saidWith("", `,"token_ids":[6]`, ""))
		<-first.Gone()
		pass(time.Second)
		finish(g, wants)
		pass(2 * time.Second)
		again := e.Accept(t)
		if want := `{"model":"test-model","prompt":[11,12,1,2,3,4,5],"max_tokens":45,"min_tokens":5,"temperature":0.5,` +
			`"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true}`; again.API != wire.Completions || string(again.Body) != want {
			t.Errorf("%s %s\nwant %s", again.API, again.Body, want)
		}
		again.Start()
		again.Send(`data: {"id":"cmpl-2","object":"text_completion","created":9,"model":"test-model","choices":[{"index":0,"text":"e\u00e9","logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":[6],"prompt_token_ids":[11,12,1,2,3,4,5]}]}` + "\n\n" +
			`data: {"id":"cmpl-2","choices":[],"usage":{"prompt_tokens":7,"total_tokens":8,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":6}}}` + "\n\n")
		again.End()
		settle()
		g.wantCode(batch, "")
		head := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"test-model","choices":[{"index":0,"delta":{`
		want := head + `"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
		for _, text := range []string{"a", "bc", "", "d"} {
			want += head + fmt.Sprintf(`"content":%q},"finish_reason":null}]}`, text) + "\n\n"
		}
		want += head + `"content":"e\u00e9"},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}` + "\n\ndata: [DONE]\n\n"
		if batch.text() != want {
			t.Errorf("the client got\n%s\nwant\n%s", batch.text(), want)
		}
		pass(time.Second)
		g.wantEmpty()
	})
}

// TestDocumentWithIDs: an engine that answers the gateway's request for a stream with
// a document has put the ids there that the gateway asked for, and not its client.
func TestDocumentWithIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSeen(t)
		c := g.serve("batch", sent(false, `,"max_tokens":9`))
		call := g.engines[0].Accept(t)
		if !gjson.GetBytes(call.Body, "return_token_ids").Bool() {
			t.Fatalf("no ids are asked for: %s", call.Body)
		}
		call.Document(200, `{"id":"c","object":"chat.completion","prompt_token_ids":[11,12],"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop","token_ids":[1]}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`)
		settle()
		g.wantCode(c, "")
		const want = `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`
		if c.text() != want {
			t.Errorf("the client got %s", c.text())
		}
		pass(time.Second)
		g.wantEmpty()
	})
}

// TestWhatCantBeContinued: an engine that was believed to return all that a
// continuation takes does not. A stream is then not ended, however long the recall
// has to wait; what nobody has seen starts over; and it is not asked again.
func TestWhatCantBeContinued(t *testing.T) {
	for _, tt := range []struct{ name, event string }{
		{"no ids", saidWith("a", "", "")},
		{"reasoning", saidWith("a", `,"token_ids":[1]`, `,"reasoning_content":"hm"`)},
		{"a tool call", saidWith("", `,"token_ids":[1]`, `,"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]`)},
		{"ids that are none", saidWith("a", `,"token_ids":["1"]`, "")},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", tt.name, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newSeen(t)
					e := g.engines[0]
					batch := g.serve("batch", sent(stream, ""))
					first := e.Accept(t)
					first.Start()
					first.Send(opened + tt.event)
					settle()
					wants := g.serve("interactive", sent(true, ""))
					pass(time.Second)
					again := first
					if stream {
						select {
						case <-first.Gone():
							t.Fatal("a stream was ended that could not go on")
						default:
						}
						first.Finish("stop")
						settle()
						finish(g, wants)
					} else {
						<-first.Gone()
						finish(g, wants)
						pass(2 * time.Second)
						again = e.Accept(t)
						if again.API != wire.Chat || gjson.GetBytes(again.Body, "return_token_ids").Exists() {
							t.Errorf("it runs again as %s %s", again.API, again.Body)
						}
						again.Emit(2)
						again.Finish("stop")
						settle()
						if text := gjson.Get(batch.text(), "choices.0.message.content").String(); text != "w1 w2 " {
							t.Errorf("got %s", batch.text())
						}
					}
					g.wantCode(batch, "")
					pass(time.Second)
					g.wantEmpty()
				})
			})
		}
	}
}

// TestCollectedLacksWhatIsNotSure: of an answer that is collected, too, only what is
// surely whole is kept, and it need not wait for that.
func TestCollectedLacksWhatIsNotSure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSeen(t)
		e := g.engines[0]
		batch := g.serve("batch", sent(false, `,"max_tokens":50`))
		first := e.Accept(t)
		first.Start()
		first.Send(opened + saidWith("a", `,"token_ids":[1]`, "") + saidWith("bc", `,"token_ids":[2,3]`, ""))
		settle()
		wants := g.serve("interactive", sent(true, ""))
		<-first.Gone()
		finish(g, wants)
		pass(2 * time.Second)
		again := e.Accept(t)
		if ids := gjson.GetBytes(again.Body, "prompt").Raw; ids != "[11,12,1]" {
			t.Errorf("it goes on from %s", ids)
		}
		again.Start()
		again.Send(`data: {"id":"cmpl-2","choices":[{"index":0,"text":"bcd","finish_reason":"stop","token_ids":[2,3,4]}]}` + "\n\n")
		again.End()
		settle()
		g.wantCode(batch, "")
		want := `{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"test-model","choices":[{"index":0,"message":{"role":"assistant","content":"abcd"},"finish_reason":"stop"}]}`
		if batch.text() != want {
			t.Errorf("the client got %s\nwant %s", batch.text(), want)
		}
	})
}

// TestEndMeetsRecall: a finish reason that comes when the attempt's end has been
// asked for is not passed on: the connection is closed already, and no usage will
// follow it.
func TestEndMeetsRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSeen(t)
		e := g.engines[0]
		batch := g.serve("batch", sent(true, `,"max_tokens":50`), func(c *client) {
			c.onEvent = func(n int) error {
				if n == 2 {
					(&simulated{rig: g}).interrupt()
				}
				return nil
			}
		})
		last := strings.Replace(saidWith("b", `,"token_ids":[2]`, ""), `"finish_reason":null`, `"finish_reason":"stop"`, 1)
		first := e.Accept(t)
		first.Start()
		first.Send(opened + saidWith("a", `,"token_ids":[1]`, "") + last)
		<-first.Gone()
		pass(5 * time.Second)
		again := e.Accept(t)
		if ids := gjson.GetBytes(again.Body, "prompt").Raw; ids != "[11,12,1]" {
			t.Errorf("it goes on from %s", ids)
		}
		again.Start()
		again.Send(`data: {"id":"cmpl-2","choices":[{"index":0,"text":"b","finish_reason":"stop","token_ids":[2]}]}` + "\n\n")
		again.End()
		settle()
		g.wantCode(batch, "")
		if text := spoken(batch.text()); text != "ab" || strings.Count(batch.text(), `"stop"`) != 1 {
			t.Errorf("the client got %s", batch.text())
		}
	})
}

// TestResumesUnderLoad is for the race detector too: streams and collected answers
// of both routes are interrupted by real recalls at every moment of theirs, and each
// is what the engine says to whom it serves undisturbed.
func TestResumesUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, callers = 4, 40
		s := newSimulated(t, slots, nil)
		s.answer(wire.Chat, ask(wire.Chat, false, "x", 1, ""))
		var clients []*client
		var bodies []string
		var apis []wire.API
		for i := range callers {
			api := []wire.API{wire.Chat, wire.Completions}[i%2]
			body := ask(api, i%4 < 2, fmt.Sprint("number ", i), 40+5*i%60, `,"min_tokens":30`)
			call := s.callOf(api, "batch", body)
			c := &client{id: call.ID, done: make(chan struct{})}
			go func() {
				defer close(c.done)
				c.err = s.pool.Serve(t.Context(), call, c)
			}()
			clients, bodies, apis = append(clients, c), append(bodies, body), append(apis, api)
			if i%4 == 3 {
				pass(time.Duration(i) * 7 * time.Millisecond)
				s.begin("interactive", ask(wire.Chat, true, "hello", 3+i%5, ""), s.pool.Serve)
				s.begin("interactive", ask(wire.Chat, true, "hello", 1+i%9, ""), s.pool.Serve)
				pass(2 * time.Second)
			}
		}
		for i, c := range clients {
			<-c.done
			s.wantCode(c, "")
			got, want := c.text(), s.engineSays(apis[i], bodies[i])
			for _, part := range []string{"choices.0.message.content", "choices.0.text", "choices.0.finish_reason", "usage"} {
				if a, b := gjson.Get(got, part).String(), gjson.Get(want, part).String(); a != b {
					t.Errorf("%s: %s is %q, want %q", c.id, part, a, b)
				}
			}
			if a, _ := nameless(got); strings.HasPrefix(got, "data:") {
				if b, _ := nameless(want); a != b {
					t.Errorf("%s: got\n%s\nwant\n%s", c.id, a, b)
				}
			}
		}
		pass(5 * time.Second)
		s.wantEmpty()
		kept := map[bool]int{}
		for _, e := range s.events() {
			if e.Cause == "reclaimed" && string(e.Kind) == "ended" && e.OutputTokens > 0 {
				kept[e.Stream]++
			}
		}
		if kept[true] == 0 || kept[false] == 0 {
			t.Errorf("interrupted with something to keep, by whether it was a stream: %v", kept)
		}
		t.Logf("interrupted with something to keep, by whether it was a stream: %v", kept)
	})
}
