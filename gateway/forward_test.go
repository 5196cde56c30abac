package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"headgate/admission"
	"headgate/control"
	"headgate/control/agent"
	"headgate/control/store"
	"headgate/engine/enginetest"
	"headgate/identity"
	"headgate/journal"
	"headgate/wire"
	"headgate/wire/anthropic"
	"headgate/wire/responses"
)

func replicaID(name string) control.ID { return control.ID{Replica: name, Boot: "1"} }

// pair is two replicas in front of one engine. What each has of it is what the test
// grants, and both say that the other has room.
type pair struct {
	a, b     *rig
	journals map[string]*bytes.Buffer
	writers  map[string]*journal.Writer
	dial     func(ctx context.Context, address string) (net.Conn, error) // instead of a replica's own
	rev      uint64

	mu        sync.Mutex
	asked     []string // where ways were asked for
	unreached []string
}

// always is a Router to one replica.
type always struct {
	pair *pair
	name string
	to   string
}

func (r *always) Route(_, _ string, need *control.Need) (control.Member, bool) {
	r.pair.mu.Lock()
	defer r.pair.mu.Unlock()
	r.pair.asked = append(r.pair.asked, fmt.Sprintf("%s: %s %v", r.name, need.Class, need.Engines))
	return control.Member{ID: replicaID(r.to), Lease: 1, Address: "http://" + r.to + ".test"}, true
}

func (r *always) Unreached(name string) {
	r.pair.mu.Lock()
	defer r.pair.mu.Unlock()
	r.pair.unreached = append(r.pair.unreached, name)
}

const fleetSecret = "0123456789abcdef0123456789abcdef"

// replicas runs a test with two of them, of which a has no slot and b has all.
func replicas(t *testing.T, s setup, test func(t *testing.T, p *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pair{journals: map[string]*bytes.Buffer{}, writers: map[string]*journal.Writer{}}
		make1 := func(name, other, secret string) *rig {
			s := s
			s.fleet, s.beside = &Fleet{Replica: name}, p.a
			s.forward = &Forwarding{
				Router: &always{p, name, other}, Secret: identity.NewSecret(secret), Connect: 250 * time.Millisecond,
				dial: func(ctx context.Context, _, address string) (net.Conn, error) {
					if p.dial != nil {
						return p.dial(ctx, address)
					}
					return p.of(address).dial(ctx, "", "")
				},
			}
			p.journals[name] = &bytes.Buffer{}
			p.writers[name] = journal.NewWriter(p.journals[name], journal.Options{Buffer: 1 << 10, Start: time.Now()})
			s.journal = p.writers[name]
			if s.depth == 0 {
				s.depth = 10
			}
			return newRig(t, s)
		}
		p.a = make1("a", "b", fleetSecret)
		p.b = make1("b", "a", fleetSecret)
		for name, w := range p.writers {
			t.Cleanup(func() {
				if err := w.Close(); err != nil {
					t.Errorf("journal of %s: %v", name, err)
				}
			})
		}
		p.grant(p.a, 0)
		p.grant(p.b, 4)
		test(t, p)
		p.a.drain(0)
		p.b.drain(0)
	})
}

// of is the replica at an address.
func (p *pair) of(address string) *rig {
	if strings.HasPrefix(address, "a.test") {
		return p.a
	}
	return p.b
}

// grant gives a replica slots, and KV tokens in proportion.
func (p *pair) grant(r *rig, slots int64) {
	id := replicaID("a")
	if r == p.b {
		id.Replica = "b"
	}
	p.rev++
	r.pool.Leased(1, time.Now(), time.Hour)
	if err := r.pool.Grant(&control.Grant{
		Pool: "main", ID: id, Lease: 1, Epoch: 1, Rev: p.rev,
		Accounts: []control.Account{{Engine: "gpu0", Amount: admission.Of(slots, slots*4096)}},
		Classes:  []control.ClassGrant{{Class: "interactive", Floor: admission.Of(slots*3/4, slots*3072)}},
	}); err != nil {
		r.t.Fatal(err)
	}
}

// lines are a journal's so far, of some kinds: kind, class, peer, status.
func (p *pair) lines(t testing.TB, name string, kinds ...journal.Kind) (all []string, ids []string) {
	t.Helper()
	if err := p.writers[name].Close(); err != nil {
		t.Fatal(err)
	}
	in := journal.NewReader(bytes.NewReader(p.journals[name].Bytes()))
	for {
		var e journal.Event
		err := in.Next(&e)
		if errors.Is(err, io.EOF) {
			return all, ids
		} else if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(kinds, e.Kind) {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Kind, e.Class, e.Peer)))
			ids = append(ids, e.Request)
		}
	}
}

// outcomes are a replica's counters of forwarding.
func (r *rig) outcomes() string {
	r.t.Helper()
	var all []string
	for _, f := range r.gather() {
		if f.GetName() != "headgate_forwards_total" && f.GetName() != "headgate_forwarded_received_total" {
			continue
		}
		for _, m := range f.Metric {
			l := m.Label[0]
			all = append(all, fmt.Sprintf("%s %g", l.GetValue(), m.Counter.GetValue()))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

var life = []journal.Kind{journal.Arrived, journal.Forwarded, journal.Admitted, journal.Finished, journal.Rejected}

// TestForwarded: on every API the other replica answers as if the client had called it,
// under the id that the client's replica has given.
func TestForwarded(t *testing.T) {
	for path, body := range apis {
		t.Run(path, func(t *testing.T) {
			replicas(t, setup{}, func(t *testing.T, p *pair) {
				got := p.a.start("POST", path, body, "Headgate-Class", "batch")
				call := p.a.engine.Accept(t)
				if path == wire.Embeddings.Path() {
					call.Document(200, `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1]}],"model":"test-model","usage":{"prompt_tokens":2,"total_tokens":2}}`)
				} else {
					call.Emit(1)
					call.Finish("stop")
				}
				r := <-got
				if r.status != 200 || r.header.Get("Content-Length") == "" || r.header.Get("Content-Type") != "application/json" {
					t.Errorf("%d %v %s", r.status, r.header, r.body)
				}
				for k, want := range map[string]string{"Headgate-Replica": "b", "Headgate-Class": "batch", "Headgate-Decision": "admitted", "Headgate-Grant": "1.2", "Headgate-Forwarded": ""} {
					if v := r.header.Get(k); v != want {
						t.Errorf("%s is %q, want %q", k, v, want)
					}
				}
				p.b.quiet()
				here, ids := p.lines(t, "a", life...)
				there, same := p.lines(t, "b", life...)
				if want := []string{"forwarded batch b"}; !slices.Equal(here, want) {
					t.Errorf("a's journal: %q, want %q", here, want)
				}
				if want := []string{"arrived batch a", "admitted batch", "finished batch"}; !slices.Equal(there, want) {
					t.Errorf("b's journal: %q, want %q", there, want)
				}
				id := r.header.Get("Headgate-Request-Id")
				for _, v := range append(ids, same...) {
					if v != id || id == "" {
						t.Errorf("ids %v and %v, of %s", ids, same, id)
					}
				}
				if a, b := p.a.outcomes(), p.b.outcomes(); a != "answered 1" || b != "valid 1" {
					t.Errorf("counted %q and %q", a, b)
				}
				if n := testutil.ToFloat64(p.a.gateway.requests.WithLabelValues(routes[path].name, "200")); n != 1 {
					t.Errorf("a counts %g answers", n)
				}
			})
		})
	}
}

// TestForwardNot: what would start here, or would wait for anything but capacity, or has
// been sent on before, stays.
func TestForwardNot(t *testing.T) {
	replicas(t, setup{}, func(t *testing.T, p *pair) {
		p.grant(p.a, 4)
		got := p.a.start("POST", chat, chatBody(""))
		p.a.engine.Accept(t).Finish("stop")
		if r := <-got; r.status != 200 || r.header.Get("Headgate-Replica") != "a" {
			t.Errorf("there is room here: %d, by %s", r.status, r.header.Get("Headgate-Replica"))
		}
		p.grant(p.a, 0)
		for name, c := range map[string]struct {
			path, body string
			code       string
		}{
			"too long":     {chat, chatBody(`,"max_tokens":1,"n":99`), wire.CodeExceedsCapacity},
			"unknown":      {chat, `{"model":"other","messages":[{"role":"user","content":"hello"}]}`, wire.CodeModelNotFound},
			"count_tokens": {anthropic.CountTokensPath, messageBody(""), ""},
		} {
			if r := p.a.send("POST", c.path, c.body); r.header.Get("Headgate-Replica") != "a" || c.code != "" && !strings.Contains(r.body, c.code) {
				t.Errorf("%s: %d %s, by %s", name, r.status, r.body, r.header.Get("Headgate-Replica"))
			}
		}
		if p.asked != nil {
			t.Errorf("ways were asked for: %q", p.asked)
		}
	})
}

// TestForwardOnce: a request that comes from another replica waits where it is, and so
// does one that only says so: no disagreement sends it in circles.
func TestForwardOnce(t *testing.T) {
	for name, secret := range map[string]string{"secrets agree": fleetSecret, "secrets differ": "another secret, and as long as it"} {
		t.Run(name, func(t *testing.T) {
			replicas(t, setup{wait: 3 * time.Second}, func(t *testing.T, p *pair) {
				p.b.gateway.forwarder.Secret = identity.NewSecret(secret)
				p.grant(p.b, 0)
				r := p.a.send("POST", chat, chatBody(""))
				if e := documented(t, 503, r.body); *e.Error.Code != wire.CodeQueueTimeout || r.header.Get("Headgate-Replica") != "b" {
					t.Errorf("%s, by %s", r.body, r.header.Get("Headgate-Replica"))
				}
				if len(p.asked) != 1 || !strings.HasPrefix(p.asked[0], "a: interactive [{gpu0 ") {
					t.Errorf("ways were asked for: %q", p.asked)
				}
				there, ids := p.lines(t, "b", life...)
				proven := secret == fleetSecret
				if want := map[bool]string{true: "arrived interactive a", false: "arrived interactive"}[proven]; there[0] != want || proven != (ids[0] == r.header.Get("Headgate-Request-Id")) && proven {
					t.Errorf("b's journal: %q of %q", there, ids)
				}
				if b := p.b.outcomes(); b != map[bool]string{true: "valid 1", false: "invalid 1"}[proven] {
					t.Errorf("b counted %q", b)
				}
			})
		})
	}
}

// TestForgedHop: what only a replica may say is not believed of anybody else, and goes
// no further.
func TestForgedHop(t *testing.T) {
	replicas(t, setup{}, func(t *testing.T, p *pair) {
		f := p.a.gateway.forwarder
		at := func(d time.Duration) time.Time { return time.Now().Add(d) }
		line := func(to, path string, now time.Time) string {
			return f.line("req_forged", to, now, httptest.NewRequest("POST", path, nil))
		}
		valid := line("b", chat, time.Now())
		for name, c := range map[string]struct {
			header []string
			ok     bool
		}{
			"valid":            {[]string{valid}, true},
			"a clock behind":   {[]string{line("b", chat, at(-29*time.Second))}, true},
			"a clock before":   {[]string{line("b", chat, at(29*time.Second))}, true},
			"old":              {[]string{line("b", chat, at(-31*time.Second))}, false},
			"of the future":    {[]string{line("b", chat, at(31*time.Second))}, false},
			"to another":       {[]string{line("c", chat, time.Now())}, false},
			"for another path": {[]string{line("b", completions, time.Now())}, false},
			"another name":     {[]string{strings.Replace(valid, "a;", "c;", 1)}, false},
			"another id":       {[]string{strings.Replace(valid, "forged", "forger", 1)}, false},
			"cut":              {[]string{valid[:len(valid)-1]}, false},
			"no proof":         {[]string{valid[:strings.LastIndexByte(valid, ';')]}, false},
			"empty proof":      {[]string{valid[:strings.LastIndexByte(valid, ';')+1]}, false},
			"twice":            {[]string{valid, valid}, false},
			"empty":            {[]string{""}, false},
			"nonsense":         {[]string{";;;"}, false},
		} {
			req := p.b.request("POST", chat, chatBody(""))
			req.Header["Headgate-Forwarded"] = c.header
			done := make(chan answer, 1)
			go func() { done <- p.b.whole(p.b.do(req)) }()
			call := p.b.engine.Accept(t)
			for k := range call.Header {
				if strings.HasPrefix(k, "Headgate-") {
					t.Errorf("%s: the engine is sent %s", name, k)
				}
			}
			call.Finish("stop")
			r := <-done
			if got := r.header.Get("Headgate-Request-Id") == "req_forged"; r.status != 200 || got != c.ok {
				t.Errorf("%s: %d, id %s", name, r.status, r.header.Get("Headgate-Request-Id"))
			}
		}
	})
}

// TestForwardedStream: each event is passed on when it comes, and nothing before.
func TestForwardedStream(t *testing.T) {
	replicas(t, setup{}, func(t *testing.T, p *pair) {
		res, call := p.a.stream()
		for i := 2; i < 5; i++ {
			call.Emit(1)
			if e := readEvent(t, res.Body); !strings.Contains(e, "w"+strconv.Itoa(i)+" ") {
				t.Errorf("event %d is %q", i, e)
			}
		}
		call.Finish("stop")
		if rest := p.a.whole(res).body; !strings.HasSuffix(rest, "data: [DONE]\n\n") || res.Header.Get("Headgate-Replica") != "b" {
			t.Errorf("the rest is %q, by %s", rest, res.Header.Get("Headgate-Replica"))
		}
	})
}

// TestForwardedCancel: a client that leaves is gone for the engine too.
func TestForwardedCancel(t *testing.T) {
	replicas(t, setup{}, func(t *testing.T, p *pair) {
		res, call := p.a.stream()
		_ = res.Body.Close()
		<-call.Gone()
		p.b.quiet()
		if a := p.a.outcomes(); a != "left 1" {
			t.Errorf("a counted %q", a)
		}
		ctx, cancel := context.WithCancel(t.Context())
		whole := make(chan error)
		go func() {
			_, err := p.a.client.Do(p.a.request("POST", chat, chatBody("")).WithContext(ctx))
			whole <- err
		}()
		call = p.a.engine.Accept(t)
		cancel()
		<-call.Gone()
		<-whole
		p.b.quiet()
		if a := p.a.outcomes(); a != "left 2" {
			t.Errorf("a counted %q", a)
		}
	})
}

// TestUnreached: what a replica does not take, for whatever reason, is served here. It
// has not got the body.
func TestUnreached(t *testing.T) {
	// met answers what a replica is sent, up to the body, with some bytes, and goes on to
	// read.
	met := func(answer string) func(context.Context, string) (net.Conn, error) {
		return func(context.Context, string) (net.Conn, error) {
			us, them := net.Pipe()
			go func() {
				var got []byte
				b := make([]byte, 64<<10)
				for {
					n, err := them.Read(b)
					if got = append(got, b[:n]...); err != nil {
						if strings.Contains(string(got), "messages") {
							t.Errorf("the replica has got the body: %q", got)
						}
						return
					}
					_, _ = io.WriteString(them, answer) // to one that may be gone
				}
			}()
			return us, nil
		}
	}
	for name, dial := range map[string]func(context.Context, string) (net.Conn, error){
		"refuses connections": func(context.Context, string) (net.Conn, error) { return nil, errors.New("refused") },
		"stopped":             met(""),
		"breaks off": func(context.Context, string) (net.Conn, error) {
			us, them := net.Pipe()
			go func() {
				_, _ = them.Read(make([]byte, 64<<10))
				_ = them.Close()
			}()
			return us, nil
		},
		"refuses the caller": met("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}"),
		"drains":             nil,
	} {
		t.Run(name, func(t *testing.T) {
			replicas(t, setup{wait: time.Minute}, func(t *testing.T, p *pair) {
				p.dial = dial
				p.b.gateway.draining.Store(name == "drains")
				got := p.a.start("POST", chat, chatBody(""))
				time.Sleep(time.Second) // the timeout, in the test's own time
				p.grant(p.a, 4)
				p.a.engine.Accept(t).Finish("stop")
				if r := <-got; r.status != 200 || r.header.Get("Headgate-Replica") != "a" || r.header.Get("Headgate-Decision") != "queued" {
					t.Errorf("%d %s by %s", r.status, r.header.Get("Headgate-Decision"), r.header.Get("Headgate-Replica"))
				}
				p.a.quiet()
				here, _ := p.lines(t, "a", life...)
				if want := []string{"arrived interactive", "admitted interactive", "finished interactive"}; !slices.Equal(here, want) {
					t.Errorf("a's journal: %q, want %q", here, want)
				}
				if a := p.a.outcomes(); a != "unreachable 1" || !slices.Equal(p.unreached, []string{"b"}) {
					t.Errorf("a counted %q, unreached %v", a, p.unreached)
				}
			})
		})
	}
}

// dead is a replica that asks for a request and reads it, answers with some bytes and
// is gone.
func dead(answer string) func(context.Context, string) (net.Conn, error) {
	return func(context.Context, string) (net.Conn, error) {
		us, them := net.Pipe()
		go func() {
			defer func() { _ = them.Close() }()
			b := make([]byte, 64<<10)
			_, _ = them.Read(b)
			_, _ = io.WriteString(them, "HTTP/1.1 100 Continue\r\n\r\n")
			_, _ = them.Read(b)
			_, _ = io.WriteString(them, answer)
		}()
		return us, nil
	}
}

// TestReplicaDies: what has been sent is sent to nobody else; its client is told in its
// API's shape, at the place where the answer was.
func TestReplicaDies(t *testing.T) {
	shapes := map[string]string{
		chat:                   `{"error":{"message":"replica b, to which the request was sent, broke off before it answered: it may have run","type":"server_error","param":null,"code":"upstream_error"}}`,
		anthropic.MessagesPath: `"type":"error"`,
		responses.Path:         `"code":"upstream_error"`,
	}
	for path, shape := range shapes {
		replicas(t, setup{}, func(t *testing.T, p *pair) {
			p.dial = dead("")
			r := p.a.send("POST", path, apis[path], "Idempotency-Key", "1")
			if r.status != 502 || !strings.Contains(r.body, shape) || r.header.Get("Headgate-Replica") != "b" || r.header.Get("Headgate-Decision") != "forwarded" {
				t.Errorf("%s: %d %v %s", path, r.status, r.header, r.body)
			}
			here, _ := p.lines(t, "a", life...)
			if want := []string{"forwarded interactive b"}; !slices.Equal(here, want) {
				t.Errorf("a's journal: %q, want %q", here, want)
			}
			if a := p.a.outcomes(); a != "failed 1" || len(p.asked) != 1 {
				t.Errorf("a counted %q, and asked %q", a, p.asked)
			}
		})
	}
	const begun = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	replicas(t, setup{}, func(t *testing.T, p *pair) {
		p.dial = dead(begun + "f\r\ndata: 1\n\ndata: \r\n")
		r := p.a.send("POST", chat, chatBody(`,"stream":true`))
		rest, ok := strings.CutPrefix(r.body, "data: 1\n\ndata: ")
		if !ok || r.status != 200 || !strings.HasSuffix(rest, "}\n\n") {
			t.Fatalf("%d %q", r.status, r.body)
		}
		if e := documented(t, 502, strings.TrimSuffix(rest, "\n\n")); *e.Error.Code != wire.CodeUpstreamTorn {
			t.Errorf("%q", rest)
		}
	})
	replicas(t, setup{}, func(t *testing.T, p *pair) {
		p.dial = dead("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		res := p.a.do(p.a.request("POST", chat, chatBody("")))
		if b, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(b) != "{" {
			t.Errorf("a whole answer that was cut is %q, %v", b, err)
		}
	})
	// A refusal there is the client's.
	replicas(t, setup{}, func(t *testing.T, p *pair) {
		p.dial = dead("HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After-Ms: 12\r\nContent-Length: 2\r\n\r\n{}")
		if r := p.a.send("POST", chat, chatBody("")); r.status != 429 || r.body != "{}" || r.header.Get("Retry-After-Ms") != "12" {
			t.Errorf("%d %v %s", r.status, r.header, r.body)
		}
	})
}

// TestForwardDrain: what was sent on finishes before the gateway stops, or is ended.
func TestForwardDrain(t *testing.T) {
	for _, finishes := range []bool{true, false} {
		replicas(t, setup{}, func(t *testing.T, p *pair) {
			res, call := p.a.stream()
			drained := make(chan int)
			go func() { drained <- p.a.drain(20 * time.Second) }()
			time.Sleep(15 * time.Second)
			if finishes {
				call.Finish("stop")
			}
			n, body := <-drained, p.a.whole(res).body
			if finishes && (n != 0 || !strings.HasSuffix(body, "[DONE]\n\n")) || !finishes && (n != 1 || !strings.Contains(body, wire.CodeDraining)) {
				t.Errorf("finishes %v: %d ended by force, the client has %q", finishes, n, body)
			}
		})
	}
}

// TestFleet: replicas over a store find each other's room, and a client notices nothing
// of where its request runs.
func TestFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := store.NewMemory()
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		ctx, stop := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		rigs := map[string]*rig{}
		var first *rig
		names := []string{"a", "b", "c"}
		for _, name := range names {
			link := mem.Dial()
			routes := agent.NewRoutes(link, replicaID(name), log)
			r := newRig(t, setup{
				fleet: &Fleet{Replica: name}, beside: first, slots: 9, wait: time.Minute, depth: 20, engine: enginetest.Options{KVTokens: 90000, Slots: 9},
				forward: &Forwarding{
					Router: routes, Secret: identity.NewSecret(fleetSecret), Connect: time.Second,
					dial: func(ctx context.Context, _, address string) (net.Conn, error) {
						return rigs[strings.TrimSuffix(address, ".test:80")].dial(ctx, "", "")
					},
				},
			})
			if first == nil {
				first = r
			}
			rigs[name] = r
			a := agent.New(agent.Config{
				Store: link, Member: control.Member{ID: replicaID(name), Address: "http://" + name + ".test"}, Pools: []agent.Pool{r.pool},
				TTL: 5 * time.Second, Every: 5 * time.Second, Settle: 50 * time.Millisecond, Timeout: time.Second, Log: log,
			})
			tasks.Go(func() { a.Run(ctx) })
			tasks.Go(func() { routes.Run(ctx) })
		}
		whole := admission.Of(9, 90000)
		leader := agent.NewLeader(agent.LeaderConfig{
			Store: mem.Dial(), Who: "leader", TTL: 5 * time.Second, Timeout: time.Second, Repeat: control.RepeatStatus, Log: log,
			Pools: []control.Pool{{
				Name: "main", Replicas: 3, Engines: []control.Engine{{Name: "gpu0", Total: whole}},
				Classes: []control.Class{{Name: "interactive"}, {Name: "batch"}},
			}},
		})
		tasks.Go(func() { leader.Run(ctx) })
		defer tasks.Wait()
		defer stop()
		time.Sleep(15 * time.Second)
		// All at once at one replica, before its grant can move: what it has no slot for
		// goes to those who have.
		by := map[string]int{}
		var answers []<-chan answer
		for range 6 {
			answers = append(answers, first.start("POST", chat, chatBody(`,"max_tokens":100`), "Headgate-Class", "batch"))
		}
		var calls []*enginetest.Call
		for range answers {
			calls = append(calls, first.engine.Accept(t))
		}
		for _, c := range calls {
			c.Emit(1)
			c.Finish("stop")
		}
		for _, a := range answers {
			r := <-a
			if r.status != 200 {
				t.Errorf("%d %s", r.status, r.body)
			}
			by[r.header.Get("Headgate-Replica")]++
		}
		if by["a"] < 3 || by["b"]+by["c"] == 0 {
			t.Errorf("served by %v", by)
		}
	})
}

// BenchmarkForward compares a request to the replica that serves it with one that is
// sent on to it by another, over TCP: the difference is the hop.
func BenchmarkForward(b *testing.B) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		return l
	}
	p := &pair{}
	make1 := func(name, other string) *rig {
		l := listen()
		return newRig(b, setup{
			fleet: &Fleet{Replica: name}, beside: p.a, depth: 10, listener: l,
			dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) },
			forward: &Forwarding{
				Router: &always{p, name, other}, Secret: identity.NewSecret(fleetSecret), Connect: 250 * time.Millisecond,
				dial: func(ctx context.Context, _, address string) (net.Conn, error) { return p.of(address).dial(ctx, "", "") },
			},
		})
	}
	p.a = make1("a", "b")
	p.b = make1("b", "a")
	p.grant(p.a, 0)
	p.grant(p.b, 4)
	for _, name := range []string{"direct", "forwarded"} {
		r, by := p.a, "b"
		if name == "direct" {
			r = p.b
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				sent := r.start("POST", chat, chatBody(""))
				call := p.a.engine.Accept(b)
				call.Emit(1)
				call.Finish("stop")
				if got := <-sent; got.status != 200 || got.header.Get("Headgate-Replica") != by {
					b.Fatalf("%d %s, by %s", got.status, got.body, got.header.Get("Headgate-Replica"))
				}
			}
		})
	}
}

// TestHandover: a body that is served here is sent to nobody, though the replica has asked
// for it and the transport comes for it late; and one that is on its way is not served
// here.
func TestHandover(t *testing.T) {
	var taken int
	body := func() *handover {
		return &handover{body: bytes.NewReader([]byte("body")), taken: func() { taken++ }}
	}
	b := body()
	if n, err := b.Read(make([]byte, 8)); n != 0 || err == nil {
		t.Errorf("nobody has asked, and %d bytes go out: %v", n, err)
	}
	b.asked.Store(true)
	if !b.withdraw() {
		t.Error("nothing has gone out, and it can't be served here")
	}
	if n, err := b.Read(make([]byte, 8)); n != 0 || err == nil || taken != 0 {
		t.Errorf("it is served here, and %d bytes go out: %v", n, err)
	}
	b = body()
	b.asked.Store(true)
	if n, err := b.Read(make([]byte, 8)); n != 4 || err != nil || taken != 1 {
		t.Errorf("asked for, %d bytes go out: %v", n, err)
	}
	if b.withdraw() {
		t.Error("it has gone out, and is served here too")
	}
}
