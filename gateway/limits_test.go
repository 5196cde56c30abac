package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/quota"
	"headgate/quota/keeper"
)

// limitedRig gives a rig's tenants limits: team-a so many requests and tokens in a minute, and
// a balance.
func limitedRig(t *testing.T, s *setup, rules quota.Rules) (k *keeper.Keeper, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "balances.json")
	k, err := keeper.New(keeper.Config{Table: quota.Table{Tenants: []quota.Named{{Tenant: "team-a", Rules: rules}}}, Most: 10, File: file})
	if err != nil {
		t.Fatal(err)
	}
	s.tenants = k
	return k, file
}

// TestLimitHeaders: a client is told its tenant's limits by the names of its API, with an
// answer and with a refusal, and those that only would have refused it.
func TestLimitHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s setup
		limitedRig(t, &s, quota.Rules{
			Requests: quota.Rate{N: 60, Burst: 2, Window: time.Minute}, Tokens: quota.Rate{N: 60_000, Burst: 60_000, Window: time.Minute, DryRun: true}, Input: 1, Output: 1,
		})
		r := newRig(t, s)
		ask := func(path, body string) answer {
			done := r.start("POST", path, body)
			call := r.engine.Accept(t)
			call.Headers()
			call.Emit(1)
			call.Finish("stop")
			return <-done
		}
		shown := func(a answer) (lines []string) {
			for name, values := range a.header {
				if strings.Contains(name, "Ratelimit") || strings.HasPrefix(name, "Retry-After") || strings.HasPrefix(name, "Headgate-Limit") {
					lines = append(lines, name+": "+values[0])
				}
			}
			return lines
		}
		want := func(a answer, status int, want ...string) {
			t.Helper()
			if d := cmp.Diff(want, shown(a), sorted); d != "" || a.status != status {
				t.Errorf("status %d, want %d; headers (-want +got)\n%s%s", a.status, status, d, a.body)
			}
		}
		now := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
		want(ask(chat, chatBody(`,"max_tokens":50`)), 200,
			"X-Ratelimit-Limit-Requests: 60", "X-Ratelimit-Remaining-Requests: 1", "X-Ratelimit-Reset-Requests: 0s",
			"X-Ratelimit-Limit-Tokens: 60000", "X-Ratelimit-Remaining-Tokens: 59940", "X-Ratelimit-Reset-Tokens: 0s")
		want(ask("/v1/messages", `{"model":"test-model","max_tokens":50,"messages":[{"role":"user","content":"hello"}]}`), 200,
			"Anthropic-Ratelimit-Requests-Limit: 60", "Anthropic-Ratelimit-Requests-Remaining: 0", "Anthropic-Ratelimit-Requests-Reset: "+now(time.Second),
			"Anthropic-Ratelimit-Tokens-Limit: 60000", "Anthropic-Ratelimit-Tokens-Remaining: 59922", "Anthropic-Ratelimit-Tokens-Reset: "+now(time.Second))
		refused := r.send("POST", chat, chatBody(""))
		want(refused, 429,
			"X-Ratelimit-Limit-Requests: 60", "X-Ratelimit-Remaining-Requests: 0", "X-Ratelimit-Reset-Requests: 2s", "Retry-After-Ms: 1000", "Retry-After: 1",
			"X-Ratelimit-Limit-Tokens: 60000", "X-Ratelimit-Remaining-Tokens: 59964", "X-Ratelimit-Reset-Tokens: 36ms")
		documented(t, refused.status, refused.body)
		time.Sleep(time.Minute)
		want(ask(chat, chatBody(`,"max_tokens":59990`)), 200,
			"X-Ratelimit-Limit-Requests: 60", "X-Ratelimit-Remaining-Requests: 1", "X-Ratelimit-Reset-Requests: 0s",
			"X-Ratelimit-Limit-Tokens: 60000", "X-Ratelimit-Remaining-Tokens: 0", "X-Ratelimit-Reset-Tokens: 0s")
	})
}

var sorted = cmp.Transformer("sorted", func(lines []string) map[string]bool {
	m := map[string]bool{}
	for _, l := range lines {
		m[l] = true
	}
	return m
})

// TestRefill: a prepaid tenant has what an operator has put in, to the last token that it
// was billed, also in the next life of the process.
func TestRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s setup
		rules := quota.Rules{Prepaid: true, Input: 1, Output: 1}
		k, file := limitedRig(t, &s, rules)
		r := newRig(t, s)
		refused := r.send("POST", chat, chatBody(`,"max_tokens":50`))
		if documented(t, refused.status, refused.body); refused.status != http.StatusPaymentRequired || refused.header.Get(headerBalance) != "0" {
			t.Errorf("status %d, balance %q: want 402 and 0", refused.status, refused.header.Get(headerBalance))
		}
		admin := r.gateway.Admin(r.metrics)
		post := func(body string) (int, string) {
			q := httptest.NewRequest("POST", "/api/limits/refill", strings.NewReader(body))
			q.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			admin.ServeHTTP(w, q)
			return w.Code, w.Body.String()
		}
		for _, c := range []struct {
			body, text string
			status     int
		}{
			{`{"tenant":"team-a","tokens":100,"reason":"paid"}`, `"left": 100`, 200},
			{`{"tenant":"team-b","tokens":100}`, "team-b has no balance", 404},
			{`{"tenant":"team-a","tokens":0}`, `"tokens" is 0`, 400},
			{`{"tenant":"no name","tokens":1}`, `"tenant" is`, 400},
		} {
			if status, text := post(c.body); status != c.status || !strings.Contains(text, c.text) {
				t.Errorf("%s: status %d: %s", c.body, status, text)
			}
		}
		done := r.start("POST", chat, chatBody(`,"max_tokens":50`))
		call := r.engine.Accept(t)
		call.Headers()
		call.Emit(2)
		call.Finish("stop")
		a := <-done
		synctest.Wait() // it is settled after its client has been answered
		var got struct{ Usage struct{ Total_tokens int64 } }
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || got.Usage.Total_tokens == 0 {
			t.Fatal(err, a.body)
		}
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, httptest.NewRequest("GET", "/api/limits", nil))
		var view LimitsView
		if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil {
			t.Fatal(err)
		}
		want := LimitsView{Tenants: []LimitView{{Tenant: "team-a", Own: true, Balance: &BalanceView{Left: 100 - got.Usage.Total_tokens}}}}
		if d := cmp.Diff(want, view); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		over, stop := context.WithCancel(t.Context())
		stop()
		k.Run(over)
		next, err := keeper.New(keeper.Config{Table: quota.Table{Tenants: []quota.Named{{Tenant: "team-a", Rules: rules}}}, Most: 10, File: file})
		if err != nil {
			t.Fatal(err)
		}
		if left := next.Account("team-a").Balance.Left; left != 100-got.Usage.Total_tokens {
			t.Errorf("in the next life the balance is %d, want %d", left, 100-got.Usage.Total_tokens)
		}
	})
}
