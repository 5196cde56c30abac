package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/audit"
	"headgate/identity"
)

// stored is an audit.Sink in memory.
type stored struct {
	mu    sync.Mutex
	lines []audit.Line
	fails error
}

func (k *stored) Open(context.Context) (audit.Head, error) { return audit.Head{}, nil }
func (k *stored) Close() error                             { return nil }
func (k *stored) Write(_ context.Context, lines []audit.Line) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails != nil {
		return 0, k.fails
	}
	k.lines = append(k.lines, lines...)
	return len(lines), nil
}

// writer writes there.
func (k *stored) writer(t testing.TB) *audit.Writer {
	if k == nil {
		return nil
	}
	w := audit.NewWriter(k, audit.Options{Buffer: 64, Source: "here", Required: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Metrics: prometheus.NewRegistry()})
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func (k *stored) is(fails error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails = fails
}

// text prints records since the last call, without times, numbers and hashes; an id is
// that there is one.
func (k *stored) text(t *testing.T) string {
	t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	var b strings.Builder
	for _, l := range k.lines {
		var r audit.Record
		if err := json.Unmarshal(l.JSON, &r); err != nil {
			t.Fatal(err)
		}
		if r.ID != "" {
			r.ID = "id"
		}
		v := reflect.ValueOf(r)
		for i := range v.NumField() {
			switch name := v.Type().Field(i).Name; {
			case v.Field(i).IsZero() || name == "Seq" || name == "TS" || name == "Prev" || name == "Version" || name == "Remote":
			case b.Len() > 0 && !strings.HasSuffix(b.String(), "\n"):
				fmt.Fprintf(&b, " %s=%v", strings.ToLower(name), v.Field(i))
			default:
				fmt.Fprint(&b, v.Field(i))
			}
		}
		if r.Kind == audit.Request && r.Remote == "" || len(r.TS.String()) < 10 {
			t.Errorf("%s", l.JSON)
		}
		b.WriteByte('\n')
	}
	k.lines = nil
	return b.String()
}

// withAudit runs a test with a gateway whose decisions are written down.
func withAudit(t *testing.T, s setup, test func(*testing.T, *rig, *stored)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &stored{}
		s.audit = k
		r := newRig(t, s)
		if got := k.text(t); got != "started source=here\n" {
			t.Errorf("%q", got)
		}
		test(t, r, k)
	})
}

// Every request has one record, however it ended and however far it came, and none of
// them has a key, a prompt or an answer.
func TestAudit(t *testing.T) {
	withAudit(t, setup{slots: 4, depth: 1, reclaim: true}, func(t *testing.T, r *rig, k *stored) {
		check := func(what string, want ...string) {
			t.Helper()
			got := k.text(t)
			if w := strings.Join(want, "\n") + "\n"; got != w {
				t.Errorf("%s:\ngot  %swant %s", what, got, w)
			}
		}
		const alice = "request principal=alice tenant=team-a credential=key id=id method=POST route=chat"
		r.send("POST", chat, chatBody(""), "Authorization", "Bearer hg_zyxwvutsrqponmlkjihgfedcbaZ")
		check("no key of ours", "request credential=none id=id method=POST route=chat decision=rejected outcome=refused status=401 code=unauthorized")
		r.send("GET", "/abort_requests?key="+aliceKey, "")
		check("no route", "request credential=none id=id method=GET route=none path=/abort_requests decision=rejected outcome=refused status=404 code=route_not_found")
		r.send("POST", chat, `{"secret prompt`)
		check("no JSON", alice+" decision=rejected outcome=refused status=400 code=invalid_json")
		r.send("POST", chat, `{"model":"gpt-9\n","messages":[{"role":"user","content":"secret prompt"}]}`)
		check("no such model", alice+" model=gpt-9? class=interactive decision=rejected outcome=refused status=404 code=model_not_found")
		r.send("POST", chat, chatBody(""), "Headgate-Class", "gold")
		check("no such class", alice+" model=test-model classasked=gold decision=rejected outcome=refused status=403 code=class_not_permitted")
		r.send("GET", "/v1/models", "")
		check("models", "request principal=alice tenant=team-a credential=key id=id method=GET route=models outcome=answered status=200")

		r.loanable()
		loan, call := r.stream("Headgate-Class", "batch")
		call.Emit(2)
		call.Finish("stop")
		r.whole(loan)
		check("a loan", alice+" model=test-model classasked=batch class=batch stream=true decision=admitted pool=main engine=gpu0 revision=1 loans=1 outcome=answered status=200 cause=finished prompttokens=18 outputtokens=3")

		var running []<-chan answer
		for range 4 {
			running = append(running, r.start("POST", chat, chatBody(`,"max_tokens":5`)))
			synctest.Wait()
		}
		waiting := r.start("POST", chat, chatBody(`,"max_tokens":5`))
		synctest.Wait()
		r.send("POST", chat, chatBody(`,"max_tokens":5,"service_tier":"priority"`))
		check("a full queue", alice+" model=test-model classasked=priority class=interactive decision=rejected pool=main revision=1 outcome=refused status=429 code=queue_full cause=queue_full prompttokens=10")
		ctx, leave := context.WithCancel(t.Context())
		for range running {
			c := r.engine.Accept(t)
			c.Emit(1)
			c.Finish("stop")
		}
		for _, a := range running {
			<-a
		}
		synctest.Wait() // a record is written after its client has been answered
		c := r.engine.Accept(t)
		c.Send("data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n")
		c.End()
		<-waiting
		all := strings.Split(strings.TrimSpace(k.text(t)), "\n")
		if len(all) != 5 {
			t.Errorf("%q", all)
		}
		if last := all[len(all)-1]; !strings.Contains(last, "decision=queued") || !strings.Contains(last, "outcome=failed") || !strings.Contains(last, "queuems=1000") || !strings.Contains(last, "cause=failed") {
			t.Error(last)
		}
		req := r.request("POST", chat, chatBody(`,"stream":true`)).WithContext(ctx)
		go func() { _, _ = r.client.Do(req) }()
		r.engine.Accept(t)
		leave()
		check("a client that left", alice+" model=test-model class=interactive stream=true decision=admitted pool=main engine=gpu0 revision=1 outcome=left status=499 code=client_closed cause=client_gone prompttokens=10")

		// Operators.
		admin := r.gateway.Admin(r.metrics)
		use := func(method, path, body string) {
			req := httptest.NewRequest(method, path, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Headgate-Actor", "ann")
			admin.ServeHTTP(httptest.NewRecorder(), req)
		}
		use("GET", "/debug/admission", "")
		use("POST", "/api/pools/main/drain", `{"on":true,"reason":"a test"}`)
		use("POST", "/api/pools/other/drain", `{"on":true}`)
		use("DELETE", "/metrics", "")
		check("operators",
			`admin actor=ann method=POST path=/api/pools/main/drain status=200 detail={"on":true,"reason":"a test"}`,
			`admin actor=ann method=POST path=/api/pools/other/drain status=404`,
			"admin actor=ann method=DELETE path=/metrics status=405")

		// Where they have keys a refused one is known by his, and nobody by what he says.
		key := "hg_readreadreadABCDEFGHIJ0123"
		hash, err := identity.Hash(identity.NewSecret(key))
		if err != nil {
			t.Fatal(err)
		}
		r.gateway.Reconfigure(func() Config {
			c := *r.gateway.live()
			c.Operators = identity.NewOperators([]identity.AdminKey{{Name: "eyes", Hash: hash, Role: identity.RoleRead}})
			return c
		})
		for _, k := range []string{key, "hg_strangerABCDEFGHIJ0123456"} {
			req := httptest.NewRequest("POST", "/api/plan", strings.NewReader(`{}`))
			req.Header.Set("Authorization", "Bearer "+k)
			req.Header.Set("Headgate-Actor", "ann")
			admin.ServeHTTP(httptest.NewRecorder(), req)
		}
		check("refused operators", "admin actor=eyes for ann method=POST path=/api/plan status=403", "admin actor=nobody known for ann method=POST path=/api/plan status=401")
	})
}

// What gave way says how often; nothing of it is written down twice.
func TestAuditOfAReclaim(t *testing.T) {
	withAudit(t, setup{slots: 1, depth: 4, reclaim: true}, func(t *testing.T, r *rig, k *stored) {
		r.loanable()
		loan := r.start("POST", chat, chatBody(""), "Headgate-Class", "batch")
		call := r.engine.Accept(t)
		call.Emit(1)
		own := r.start("POST", chat, chatBody(""))
		<-call.Gone()
		for range 2 {
			c := r.engine.Accept(t)
			c.Emit(1)
			c.Finish("stop")
		}
		<-own
		<-loan
		got := k.text(t)
		if lines := strings.Split(strings.TrimSpace(got), "\n"); len(lines) != 2 || !strings.Contains(got, "class=batch") || strings.Count(got, "reclaims=1") != 1 || strings.Count(got, "outcome=answered") != 2 {
			t.Errorf("%s", got)
		}
	})
}

// A sink that fails costs no answer; it shows, and where records have to be kept the
// gateway is not ready once some are lost.
func TestAuditFails(t *testing.T) {
	withAudit(t, setup{}, func(t *testing.T, r *rig, k *stored) {
		k.is(fmt.Errorf("disk full"))
		for range 10 {
			if a := r.send("GET", "/v1/models", ""); a.status != 200 {
				t.Fatal(a.status)
			}
		}
		time.Sleep(time.Second)
		if p := strings.Join(r.gateway.Problems(), "; "); r.gateway.Ready() != nil || !strings.Contains(p, "audit records wait") || !strings.Contains(p, "disk full") {
			t.Errorf("%v; %s", r.gateway.Ready(), p)
		}
		for range 200 {
			if a := r.send("GET", "/v1/models", ""); a.status != 200 {
				t.Fatal(a.status)
			}
		}
		if err := r.gateway.Ready(); err == nil || !strings.Contains(err.Error(), "audit records are lost") {
			t.Errorf("%v", err)
		}
		k.is(nil)
		time.Sleep(10 * time.Second)
		if got := k.text(t); r.gateway.Ready() != nil || len(r.gateway.Problems()) > 0 || !strings.Contains(got, "gap count=") {
			t.Errorf("%v, %v", r.gateway.Ready(), r.gateway.Problems())
		}
	})
}

// A request that another replica serves has a record at each, under one id: where it came,
// with who served it, and where it ran, with who sent it.
func TestAuditOfAHop(t *testing.T) {
	k := &stored{}
	replicas(t, setup{audit: k}, func(t *testing.T, p *pair) {
		k.text(t)
		got := p.a.start("POST", chat, chatBody(""))
		call := p.a.engine.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		<-got
		lines := strings.Split(strings.TrimSpace(k.text(t)), "\n")
		slices.Sort(lines)
		const head = "request principal=alice tenant=team-a credential=key id=id method=POST route=chat model=test-model class=interactive decision=admitted pool=main "
		want := []string{
			head + "engine=gpu0 grant=1.2 revision=2 from=a outcome=answered status=200 cause=finished prompttokens=15 outputtokens=1",
			head + "peer=b outcome=forwarded status=200",
		}
		if !slices.Equal(lines, want) {
			t.Errorf("got  %q\nwant %q", lines, want)
		}
	})
}
