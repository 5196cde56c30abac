package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/replan"
	"headgate/simengine/vllmapi"
	"headgate/wire"
)

// profiled is a pool whose engine has two profiles, deep and broad, each a simulated
// engine of its own behind the one address. A switch ends the process that is there, with
// whatever runs on it, and half a second later another listens.
type profiled struct {
	*rig
	log          bytes.Buffer
	engineConfig engine.Config

	mu    sync.Mutex
	mem   *enginetest.Listener
	front *http.Server
	at    string
	wrong string         // the profile that the next hook takes the engine to instead
	fail  map[string]int // so many of the next switches to a profile fail
	hooks []string
	sims  map[string]http.Handler
	alive int // requests at the engine
	cut   int // of which a switch has cut off
}

const bootTime = 500 * time.Millisecond

func (s *profiled) listen(profile string) {
	mem := enginetest.NewListener()
	front := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/c") {
			s.sims[profile].ServeHTTP(w, r)
			return
		}
		s.mu.Lock()
		s.alive++
		s.mu.Unlock()
		defer func() { s.mu.Lock(); s.alive--; s.mu.Unlock() }()
		s.sims[profile].ServeHTTP(w, r)
	})}
	s.mu.Lock()
	s.mem, s.front, s.at = mem, front, profile
	s.mu.Unlock()
	go func() { _ = front.Serve(mem) }()
}

// hook is how the engine is taken to a profile.
func (s *profiled) hook(profile string) Hook {
	return func(ctx context.Context) error {
		// An engine that says it is idle has its last answer still on its way, in this very moment.
		time.Sleep(time.Millisecond)
		s.mu.Lock()
		s.hooks = append(s.hooks, profile)
		s.cut += s.alive
		front, to := s.front, profile
		if s.wrong != "" {
			to, s.wrong = s.wrong, ""
		}
		failed := s.fail[profile] > 0
		s.fail[profile]--
		s.mu.Unlock()
		_ = front.Close()
		select {
		case <-time.After(bootTime):
		case <-ctx.Done():
			return ctx.Err()
		}
		if failed {
			return errors.New("it does not start")
		}
		s.listen(to)
		return nil
	}
}

func newProfiled(t *testing.T, change func(*Replan)) *profiled {
	t.Helper()
	s := &profiled{sims: map[string]http.Handler{}, fail: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	c := &Replan{
		Config: replan.Config{
			Profiles: []replan.Profile{
				{Name: "deep", Slots: 1, KVTokens: 4096, MaxContext: 4096, Cost: time.Second},
				{Name: "broad", Slots: 4, KVTokens: 2048, MaxContext: 512, Cost: time.Second},
			},
			Home: 1, Dwell: 10 * time.Second, IdleAfter: time.Minute, ContentionAfter: 2 * time.Second, DrainTimeout: 5 * time.Second, PerHour: 100,
		},
		Sessions: 4, SessionTimeout: time.Minute, Timeouts: []time.Duration{10 * time.Second, 10 * time.Second},
	}
	for i := range c.Profiles {
		q := &c.Profiles[i]
		cfg := vllmapi.Many(q.Slots)
		cfg.ModelName = "test-model"
		cfg.Engine.Model.Step.Base = float64(simStep / time.Millisecond)
		cfg.Engine.MaxModelLen, cfg.Engine.NumBlocks = int(q.MaxContext), 1+int(q.KVTokens)/cfg.Engine.BlockSize
		server, err := vllmapi.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { server.Run(ctx) })
		s.sims[q.Name] = server.Handler()
		c.Hooks = append(c.Hooks, s.hook(q.Name))
	}
	if change != nil {
		change(c)
	}
	s.listen(c.Profiles[c.Home].Name)
	t.Cleanup(func() {
		_ = s.front.Close()
		cancel()
		running.Wait()
	})
	var ec engine.Config
	ec.SetDefaults()
	ec.Kind, ec.URL, ec.AbortGrace = engine.VLLM, "http://engine.test", 5*simStep
	ec.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.mu.Lock()
		mem := s.mem
		s.mu.Unlock()
		return mem.DialContext(ctx, network, addr)
	}
	s.engineConfig = ec
	adapter, err := adapters.New(ec.Kind, ec)
	if err != nil {
		t.Fatal(err)
	}
	classes := []admission.ClassSpec{loose("interactive"), loose("batch")}
	classes[0].Floor = admission.Of(1, 512)
	classes[0].IdleAfter = time.Second
	classes[1].Mode, classes[1].Grace = admission.ReclaimNow, time.Hour
	s.rig = newRig(t, options{
		classes: classes,
		pool: func(pc *Config) {
			pc.Engines = []Engine{{Name: "sim", Adapter: adapter, ObserveEvery: observeEvery, Priority: []int{0, 10}}}
			pc.Replan = c
			pc.Log = slog.New(slog.NewTextHandler(&s.log, nil))
		},
	})
	pass(2 * time.Second) // interactive lends
	return s
}

// ask sends a request of so many tokens of output, which wants a context.
func (s *profiled) ask(class, session string, tokens int64, most int, stream bool) *client {
	s.t.Helper()
	body := ask(wire.Chat, stream, "tell me", most, "")
	c := s.start(class, body, func(ctx context.Context, call *Call, sink Sink) *wire.Error {
		call.Session, call.Context = session, tokens
		return s.pool.Serve(ctx, call, sink)
	})
	return c
}

func (s *profiled) plan() *PlanView {
	s.t.Helper()
	v := s.pool.Plan()
	if v == nil {
		s.t.Fatal("the pool has no plan")
	}
	return v
}

func (s *profiled) wantProfile(name string) {
	s.t.Helper()
	if v := s.plan(); v.Profile != name || v.State != "settled" {
		s.t.Errorf("the engine is %s", v)
	}
}

func (s *profiled) wantHooks(want ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.hooks, want) {
		s.t.Errorf("switches to %v, want %v", s.hooks, want)
	}
	if s.cut > 0 {
		s.t.Errorf("%d requests were cut off by a switch", s.cut)
	}
}

func (s *profiled) wish(profile string) {
	s.t.Helper()
	if _, err := s.pool.Wish(profile, 0, SwitchState{Actor: "ann"}); err != nil {
		s.t.Fatal(err)
	}
}

// stepsOf is the journal's steps of switches in short.
func stepsOf(events []journal.Event) (steps []string) {
	for _, e := range events {
		if e.Kind == journal.Planned {
			steps = append(steps, fmt.Sprintf("%s %s: %s", e.Plan.Does, e.Plan.To, e.Plan.Why))
		}
	}
	return steps
}

func wantTold(t *testing.T, events []journal.Event, want ...string) {
	t.Helper()
	if got := stepsOf(events); !slices.Equal(got, want) {
		t.Errorf("the journal has\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// TestSwitchForWhatIsStranded: a request that the present profile does not hold waits, and
// is answered by the one that does; what ran before is not touched.
func TestSwitchForWhatIsStranded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, nil)
		s.wantProfile("broad")
		short := s.ask("interactive", "", 0, 100, true)
		long := s.ask("interactive", "", 3000, 20, false)
		if v := s.plan(); v.Held != 1 {
			t.Errorf("%d wait for a profile, want 1", v.Held)
		}
		pass(1500 * time.Millisecond)
		s.wantCode(short, "")
		s.wantCode(long, "running")
		pass(5 * time.Second)
		s.wantCode(long, "")
		s.wantProfile("deep")
		s.wantHooks("deep")
		if d := long.decisions[0]; !d.Queued || d.Profile != "deep" || d.Context != 3000 {
			t.Errorf("it was told %+v", d)
		}
		if d := short.decisions[0]; d.Queued || d.Profile != "broad" || d.Context != 512 {
			t.Errorf("the short one was told %+v", d)
		}
		if m := s.pool.Models()[0]; m.MaxContext != 512 {
			t.Errorf("the model's context is %d, want what every profile gives, 512", m.MaxContext)
		}
		s.wantEmpty()
		events := s.events()
		wantTold(t, events, "drain deep: demand is stranded", "switch deep: demand is stranded", "reopen deep: it is done")
		if got, want := story(events, long.id), "arrived queued(profile) admitted dispatched first_token scheduled ended(finished) finished(finished)"; got != want {
			t.Errorf("story\n got %s\nwant %s", got, want)
		}
	})
}

// TestTooLongForEveryProfile: what none holds is refused at once, with what the longest
// gives.
func TestTooLongForEveryProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, nil)
		c := s.start("interactive", ask(wire.Chat, false, strings.Repeat("word ", 9000), 10, ""), s.pool.Serve)
		s.wantCode(c, wire.CodeContextLength)
		if c.err == nil || !strings.Contains(c.err.Message, "4096") {
			t.Errorf("it was told %v", c.err)
		}
	})
}

// TestSwitchReclaimsLoans: loans are ended for a switch and go on after it, so that
// their clients see one answer; what is no loan is let finish.
func TestSwitchReclaimsLoans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, nil)
		loans := []*client{s.ask("batch", "", 0, 300, true), s.ask("batch", "", 0, 301, true)}
		own := s.ask("interactive", "", 0, 200, true)
		pass(500 * time.Millisecond)
		s.wish("deep")
		pass(time.Second)
		s.wantHooks() // what is within a floor runs
		s.wantCode(own, "running")
		pass(2500 * time.Millisecond)
		s.wantCode(own, "")
		pass(10 * time.Second)
		s.wantHooks("deep")
		for i, c := range loans {
			s.wantCode(c, "")
			if n := strings.Count(c.text(), `"content":"`); n < 300+i {
				t.Errorf("the answer has %d tokens, want %d", n, 300+i)
			}
		}
		s.wantEmpty()
		events := s.events()
		if got := story(events, loans[0].id); !strings.Contains(got, "ended(reclaimed) queued") {
			t.Errorf("the loan's story is %s", got)
		}
	})
}

// TestDrainGivenUp: what does not end in time is a reason not to switch, and loses nothing.
func TestDrainGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, nil)
		own := s.ask("interactive", "", 0, 480, true) // 5 s of it are not enough
		loan := s.ask("batch", "", 0, 400, true)
		s.wish("deep")
		waits := s.ask("interactive", "", 0, 10, false)
		pass(3 * time.Second)
		s.wantCode(waits, "running")
		pass(4 * time.Second)
		s.wish("")
		for _, c := range []*client{own, loan, waits} {
			if c.code() != "" {
				pass(5 * time.Second)
			}
			s.wantCode(c, "")
		}
		s.wantHooks()
		s.wantProfile("broad")
		wantTold(t, s.events(), "drain deep: an operator wants it", "reopen broad: what runs did not end in time")
	})
}

// TestFailedSwitch: the engine goes back to where it was, and what waits is answered there.
func TestFailedSwitch(t *testing.T) {
	for _, tt := range []struct {
		name   string
		broken func(*profiled)
		hooks  []string
		told   []string
	}{
		{"the hook fails", func(s *profiled) { s.fail["deep"] = 1 }, []string{"deep", "broad"}, []string{
			"drain deep: an operator wants it", "switch deep: an operator wants it", "return broad: the switch failed", "reopen broad: it is back",
		}},
		{"so does the way back", func(s *profiled) { s.fail["deep"], s.fail["broad"] = 1, 2 }, []string{"deep", "broad", "broad", "broad"}, []string{
			"drain deep: an operator wants it", "switch deep: an operator wants it", "return broad: the switch failed",
			"return broad: the switch failed", "return broad: the switch failed", "reopen broad: it is back",
		}},
		{"the engine is another than it should be", func(s *profiled) { s.wrong = "broad" }, []string{"deep", "broad"}, []string{
			"drain deep: an operator wants it", "switch deep: an operator wants it", "return broad: the switch failed", "reopen broad: it is back",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newProfiled(t, nil)
				tt.broken(s)
				loan := s.ask("batch", "", 0, 100, true)
				s.wish("deep")
				pass(900 * time.Millisecond)
				waits := s.ask("interactive", "", 0, 10, false)
				s.wish("")
				pass(40 * time.Second)
				s.wantCode(loan, "")
				s.wantCode(waits, "")
				s.wantHooks(tt.hooks...)
				s.wantProfile("broad")
				s.wantEmpty()
				wantTold(t, s.events(), tt.told...)
			})
		})
	}
}

// TestIntactEngineServesOn: an engine that the hook could not even begin to switch is
// where it was, whatever the other hook is worth.
func TestIntactEngineServesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, func(c *Replan) {
			for i := range c.Hooks {
				c.Hooks[i] = func(context.Context) error { return fmt.Errorf("%w: no such file", ErrIntact) }
			}
		})
		s.wish("deep")
		pass(2 * time.Second)
		s.wish("")
		s.wantProfile("broad")
		c := s.ask("interactive", "", 0, 10, false)
		pass(time.Second)
		s.wantCode(c, "")
		wantTold(t, s.events(), "drain deep: an operator wants it", "switch deep: an operator wants it", "reopen broad: the switch failed")
	})
}

// TestEndingProcessSwitchesNothing: a switch that has not left is given up by a process
// that is told to stop, and what ran is answered.
func TestEndingProcessSwitchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, nil)
		own := s.ask("interactive", "", 0, 400, true)
		s.wish("deep")
		pass(time.Second)
		go s.pool.Drain(context.Background())
		pass(20 * time.Second)
		s.wantCode(own, "")
		s.wantHooks()
		wantTold(t, s.events(), "drain deep: an operator wants it", "reopen broad: an operator wants it")
	})
}

// TestPromiseKeepsTheProfile: what a session was promised, by its wish or by what it
// came to, no switch takes away, and its client ends it.
func TestPromiseKeepsTheProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, func(c *Replan) { c.Home = 0 })
		s.wantProfile("deep")
		first := s.ask("interactive", "chat", 2000, 10, false)
		pass(time.Second)
		s.wantCode(first, "")
		s.wish("broad")
		pass(30 * time.Second)
		s.wantProfile("deep")
		if v := s.plan(); v.Promised != 2000 || v.Sessions != 1 || !strings.Contains(v.Why, "promised") {
			t.Errorf("the plan is %+v", v)
		}
		// It lives on with every request, whatever that asks for.
		second := s.ask("interactive", "chat", 0, 10, false)
		if d := second.decisions[0]; d.Context != 2000 {
			t.Errorf("the session has %d tokens, want 2000", d.Context)
		}
		pass(50 * time.Second)
		s.wantProfile("deep")
		s.ask("interactive", "chat", -1, 10, false)
		pass(5 * time.Second)
		s.wantProfile("broad")
		s.wish("")
		s.wantHooks("broad")
	})
}

// TestHistoryIsAPromise: a session whose request came to more than every profile gives has
// that from then on, until it times out.
func TestHistoryIsAPromise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, func(c *Replan) { c.Home = 0 })
		c := s.ask("interactive", "chat", 0, 1000, false)
		s.wish("broad")
		pass(11 * time.Second)
		s.wantCode(c, "")
		if v := s.plan(); v.Promised < 1000 {
			t.Errorf("the session has %d tokens, want those that it came to", v.Promised)
		}
		pass(55 * time.Second)
		s.wantHooks()
		pass(10 * time.Second)
		s.wantHooks("broad")
		events := s.events()
		if !slices.ContainsFunc(events, func(e journal.Event) bool { return e.Kind == journal.Promised && e.ContextTokens >= 1000 }) {
			t.Error("the journal says nothing of the promise")
		}
	})
}

// TestNothingInsideIsRefused: what was given to the core, has not begun, and would not fit
// the profile to come waits outside meanwhile; and what has begun is served first.
func TestNothingInsideIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, func(c *Replan) { c.Home = 0 })
		runs := s.ask("interactive", "", 0, 250, false)
		long := s.ask("interactive", "", 3000, 10, false)
		short := s.ask("interactive", "", 0, 10, false)
		s.wish("broad")
		pass(time.Second)
		if v := s.plan(); v.Held != 1 {
			t.Errorf("%d wait for a profile, want 1", v.Held)
		}
		pass(6 * time.Second)
		s.wantCode(runs, "")
		s.wantCode(short, "")
		s.wantCode(long, "running")
		s.wantHooks("broad")
		s.wish("")
		pass(20 * time.Second)
		s.wantCode(long, "")
		s.wantHooks("broad", "deep")
		s.wantEmpty()
	})
}

// TestRoomIsBounded: waiting for a profile is waiting in the class's queue.
func TestRoomIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, func(c *Replan) { c.DryRun = true })
		s.pool.mu.Lock()
		s.pool.table.Classes[0].Depth, s.pool.table.Classes[0].MaxWait = 2, 3*time.Second
		s.pool.mu.Unlock()
		first, second := s.ask("interactive", "", 3000, 10, false), s.ask("interactive", "", 3000, 10, false)
		s.wantCode(s.ask("interactive", "", 3000, 10, false), wire.CodeQueueFull)
		second.cancel()
		settle()
		s.wantCode(second, wire.ClientClosed().Code)
		pass(4 * time.Second)
		s.wantCode(first, wire.CodeQueueTimeout)
		s.wantEmpty()
		last := s.ask("interactive", "", 3000, 10, false)
		events := s.events()
		settle() // who waited has been told
		s.wantCode(last, wire.CodeDraining)
		if steps := stepsOf(events); len(steps) != 1 || steps[0] != "would switch deep: demand is stranded" {
			t.Errorf("the dry run did %v", steps)
		}
		s.wantHooks()
	})
}

// TestLimitsOnly: where only admission's limits change nothing has to end for it.
func TestLimitsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, func(c *Replan) {
			// What listens is the engine of the first.
			c.Home, c.Limits, c.Hooks, c.Timeouts = 0, true, nil, nil
			c.Profiles[1] = replan.Profile{Name: "narrow", Slots: 1, KVTokens: 4096, MaxContext: 256}
		})
		runs := s.ask("interactive", "", 0, 900, true)
		s.wish("narrow")
		pass(time.Second)
		s.wantProfile("narrow")
		s.wantCode(runs, "running")
		held := s.ask("interactive", "", 1000, 10, false)
		pass(10 * time.Second)
		s.wantCode(runs, "")
		s.wantCode(held, "running")
		if n := strings.Count(runs.text(), `"content":"`); n < 900 {
			t.Errorf("the answer has %d tokens, want 900", n)
		}
		s.wish("")
		pass(20 * time.Second)
		s.wantCode(held, "")
		s.wantProfile("deep")
	})
}

// TestReloadOfAPlannedPool: the engine stays the one that is switched, and classes have to
// fit every profile.
func TestReloadOfAPlannedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, nil)
		next := s.pool.live().Config
		c, err := s.pool.Prepare(next)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Commit(); err != nil {
			t.Fatal(err)
		}
		long := s.ask("interactive", "", 3000, 10, false)
		pass(10 * time.Second)
		s.wantCode(long, "")

		other := next
		other.Engines = slices.Clone(next.Engines)
		other.Engines[0].Key = "another"
		other.Engines[0].Open = func() (engine.Adapter, error) { return adapters.New(engine.VLLM, s.engineConfig) }
		if _, err := s.pool.Prepare(other); err == nil || !strings.Contains(err.Error(), "replaced with a restart") {
			t.Errorf("another engine: %v", err)
		}
		narrow := next
		narrow.Resolve = func(specs []admission.EngineSpec) (*admission.Table, error) {
			if specs[0].Slots > 1 {
				return nil, errors.New("no such floor")
			}
			return next.Resolve(specs)
		}
		// The engine is deep now, which would fit.
		if _, err := s.pool.Prepare(narrow); err == nil || !strings.Contains(err.Error(), "profile broad: no such floor") {
			t.Errorf("classes that do not fit a profile: %v", err)
		}
	})
}

// TestSwitchesUnderLoad: whatever is asked, and wherever the engine is taken meanwhile,
// every request has its whole answer, no switch cuts one off, and sessions have what they
// were promised.
func TestSwitchesUnderLoad(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newProfiled(t, func(c *Replan) {
				c.Dwell, c.ContentionAfter, c.DrainTimeout = 2*time.Second, 500*time.Millisecond, 3*time.Second
				c.Home = rapid.IntRange(0, 1).Draw(rt, "home")
				c.SessionTimeout = 10 * time.Second
			})
			var all []*client
			var tokens []int
			for range rapid.IntRange(5, 15).Draw(rt, "steps") {
				switch rapid.IntRange(0, 6).Draw(rt, "what") {
				case 0:
					s.wish(rapid.SampledFrom([]string{"deep", "broad", ""}).Draw(rt, "wish"))
				case 1:
					s.mu.Lock()
					s.fail[rapid.SampledFrom([]string{"deep", "broad"}).Draw(rt, "fails")] = 1
					s.mu.Unlock()
				default:
					class := rapid.SampledFrom([]string{"interactive", "batch"}).Draw(rt, "class")
					session := rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "session")
					want := rapid.SampledFrom([]int64{0, 0, 0, 300, 1000, 4000, -1}).Draw(rt, "context")
					most := rapid.IntRange(1, 400).Draw(rt, "tokens")
					all = append(all, s.ask(class, session, want, most, rapid.Bool().Draw(rt, "stream")))
					tokens = append(tokens, most)
				}
				pass(time.Duration(rapid.IntRange(0, 3000).Draw(rt, "then")) * time.Millisecond)
			}
			s.wish("")
			for range 60 {
				if !slices.ContainsFunc(all, func(c *client) bool { return c.code() == "running" }) {
					break
				}
				pass(10 * time.Second)
			}
			for i, c := range all {
				s.wantCode(c, "")
				if n := s.tokens(c); n != tokens[i] {
					t.Errorf("%s: the answer has %d tokens, want %d", c.id, n, tokens[i])
				}
			}
			s.mu.Lock()
			if s.cut > 0 {
				t.Errorf("%d requests were cut off by a switch", s.cut)
			}
			s.mu.Unlock()
			s.wantEmpty()
			if t.Failed() {
				rt.Logf("%s", s.log.String())
				rt.Fatalf("it failed")
			}
		})
	})
}

// tokens counts the words of an answer, which the engine makes of each token.
func (s *profiled) tokens(c *client) int {
	text := c.text()
	if strings.HasPrefix(text, "data:") {
		return strings.Count(text, `"content":"`) - strings.Count(text, `"content":""`)
	}
	return int(gjson.Get(text, "usage.completion_tokens").Int())
}

// TestOthersWork: what others run on the engine is not cut off either.
func TestOthersWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, nil)
		tr := &http.Transport{DialContext: s.engineConfig.DialContext, DisableKeepAlives: true}
		ended := make(chan error, 1)
		go func() {
			res, err := (&http.Client{Transport: tr}).Post("http://engine.test/v1/completions", "application/json", strings.NewReader(`{"model":"test-model","prompt":"x","max_tokens":300}`))
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			ended <- err
		}()
		pass(500 * time.Millisecond)
		s.wish("deep")
		pass(2 * time.Second)
		s.wantHooks()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		pass(2 * time.Second)
		s.wantHooks("deep")
	})
}

// TestDeclaredLimitIsKept: an answer whose client has declared more than the profile to
// come gives is let finish, whether or not it is a loan.
func TestDeclaredLimitIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newProfiled(t, func(c *Replan) { c.Home, c.DrainTimeout = 0, 20*time.Second })
		loan := s.ask("batch", "", 0, 1000, false)
		pass(time.Second)
		s.wish("broad")
		pass(30 * time.Second)
		s.wantCode(loan, "")
		s.wantHooks("broad")
		if n := s.tokens(loan); n != 1000 {
			t.Errorf("the answer has %d tokens, want 1000", n)
		}
	})
}
