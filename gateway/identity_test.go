package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/identity"
	"headgate/wire"
	"headgate/wire/responses"
)

// claimed verifies tokens that are the JSON of their claims.
type claimed struct{}

func (claimed) Problems() []string { return nil }

func (claimed) Verify(_ context.Context, token string) (*identity.Verified, *wire.Error) {
	all := map[string]any{}
	switch {
	case token == "away":
		return nil, wire.NewError(wire.CodeIdentityUnavailable, "away").WithRetry(1500 * time.Millisecond)
	case json.Unmarshal([]byte(token), &all) != nil:
		return nil, wire.NewError(wire.CodeUnauthorized, "malformed")
	}
	sub, _ := all["sub"].(string)
	return &identity.Verified{Claims: identity.Claims{From: "sso", Subjects: []string{sub}, All: all}, Until: time.Now().Add(time.Hour)}, nil
}

// withTokens has tokens of everybody's organization admitted.
func withTokens(c *identity.Config) {
	i := identity.Issuer{Name: "sso", Issuer: "https://sso", Audiences: []string{"headgate"}}
	i.SetDefaults()
	c.Issuers = []identity.Issuer{i}
	c.Rules = []identity.Rule{{Name: "staff", From: []string{"sso"}, Subjects: []string{"u*"}, Tenant: "{org}", Classes: []string{"interactive"}}}
}

// unread is a body that nobody may ask for.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Helper()
	u.t.Error("a body was read")
	return 0, errors.New("read")
}
func (unread) Close() error { return nil }

// Nobody's body is read before it is known who he is, whatever the route.
func TestAuthenticatedBeforeTheBodyIsRead(t *testing.T) {
	s, _ := withBatches(setup{callers: withTokens})
	bubble(t, s, func(t *testing.T, r *rig) {
		paths := slices.Collect(maps.Keys(routes))
		paths = append(paths, modelPrefix+"m", responses.Path+"/r", filesPath, filePrefix+"f", filePrefix+"f/content", batchesPath, batchPrefix+"b", batchPrefix+"b"+cancelEnd, batchPrefix+"b"+outputEnd, batchPrefix+"b"+errorsEnd)
		for _, path := range paths {
			rt, ok := r.gateway.find(httptest.NewRequest("GET", path, nil).URL)
			if !ok {
				t.Fatalf("%s is no route", path)
			}
			for method := range strings.SplitSeq(rt.allow, ", ") {
				for credential, want := range map[string]int{"": 401, "Bearer hg_zyxwvutsrqponmlkjihgfedcbaZ": 401, "Bearer x": 401, `Bearer {"sub":"eve","org":"o"}`: 403, "Bearer away": 503} {
					req := httptest.NewRequest(method, path, nil)
					req.Body, req.ContentLength = unread{t}, 1<<20
					req.Header.Set("Content-Type", "multipart/form-data; boundary=x")
					if credential != "" {
						req.Header.Set("Authorization", credential)
					}
					w := httptest.NewRecorder()
					r.gateway.ServeHTTP(w, req)
					if w.Code != want {
						t.Errorf("%s %s with %q: %d, want %d: %s", method, path, credential, w.Code, want, w.Body)
					}
					if secret := strings.TrimPrefix(credential, "Bearer "); len(secret) > 8 && strings.Contains(w.Body.String()+r.log.String(), secret) {
						t.Errorf("%s %s: the answer or the log has the credential", method, path)
					}
					if challenged := w.Header().Get("Www-Authenticate") != ""; challenged != (want == 401) {
						t.Errorf("%s %s: %d, and a challenge: %v", method, path, w.Code, challenged)
					}
					if hint := w.Header().Get("Retry-After"); (hint == "2") != (want == 503) {
						t.Errorf("%s %s: %d, Retry-After %q", method, path, w.Code, hint)
					}
				}
			}
		}
	})
}

// A caller sees and uses the models that are his, by every route, and is told of no
// others.
func TestModelsOfACaller(t *testing.T) {
	narrow := func(c *identity.Config) {
		c.Keys[0].Models = identity.Models{Allow: []string{"small-*", "big"}, Deny: []string{"small-secret"}}
	}
	bubble(t, setup{callers: narrow, models: []string{"small-a", "small-secret", "big", "other"}}, func(t *testing.T, r *rig) {
		list := r.send("GET", "/v1/models", "").body
		for name, want := range map[string]bool{"small-a": true, "big": true, "small-secret": false, "other": false} {
			if strings.Contains(list, `"`+name+`"`) != want {
				t.Errorf("%s is listed: %v\n%s", name, !want, list)
			}
			want := map[bool]int{true: 200, false: 404}[want]
			if a := r.send("GET", "/v1/models/"+name, ""); a.status != want {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
		for path, body := range map[string]string{
			chat: `{"model":%q,"messages":[{"role":"user","content":"x"}]}`, completions: `{"model":%q,"prompt":"x"}`, "/v1/embeddings": `{"model":%q,"input":"x"}`,
			"/v1/responses": `{"model":%q,"input":"x"}`, "/v1/messages": `{"model":%q,"max_tokens":5,"messages":[{"role":"user","content":"x"}]}`,
			"/v1/messages/count_tokens": `{"model":%q,"messages":[{"role":"user","content":"x"}]}`,
		} {
			for _, model := range []string{"other", "small-secret", "nowhere"} {
				a := r.send("POST", path, fmt.Sprintf(body, model))
				if a.status != 404 || !strings.Contains(a.body, "small-a, big") || strings.Contains(strings.ReplaceAll(a.body, `\"`+model, ""), "secret") {
					t.Errorf("%s %s: %d %s", path, model, a.status, a.body)
				}
			}
		}
		done := r.start("POST", chat, `{"model":"small-a","messages":[{"role":"user","content":"x"}]}`)
		call := r.engine.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		if a := <-done; a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// Case 34: tenants and subjects that tokens name are in no label.
func TestTenantsOfTokensAreNoLabels(t *testing.T) {
	bubble(t, setup{callers: withTokens}, func(t *testing.T, r *rig) {
		var before int
		for n := range 50 {
			done := r.start("POST", chat, chatBody(""), "Authorization", fmt.Sprintf(`Bearer {"sub":"u%d","org":"org-%d"}`, n, n))
			call := r.engine.Accept(t)
			call.Emit(1)
			call.Finish("stop")
			if a := <-done; a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			series := r.series()
			if n == 0 {
				before = len(series)
			}
			if strings.Contains(strings.Join(series, "\n"), "org-") {
				t.Fatal("a tenant of a token is a label")
			}
			if len(series) != before {
				t.Fatalf("%d series after %d tenants, %d before", len(series), n+1, before)
			}
		}
	})
}

// A certificate can't be sent on, so its request waits where it came to.
func TestCertificatesAreNotForwarded(t *testing.T) {
	callers := func(c *identity.Config) {
		c.Certificates = &identity.Certificates{Names: []string{identity.NameCN}}
		c.Rules = []identity.Rule{{Name: "svc", From: []string{identity.FromCertificate}, Tenant: "t", Classes: []string{"interactive"}}}
	}
	replicas(t, setup{callers: callers}, func(t *testing.T, p *pair) {
		req := httptest.NewRequest("POST", chat, strings.NewReader(chatBody("")))
		req.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Raw: []byte("x"), Subject: pkix.Name{CommonName: "svc"}, NotAfter: time.Now().Add(time.Hour)}}}}
		w := httptest.NewRecorder()
		p.a.gateway.ServeHTTP(w, req)
		if documented(t, w.Code, w.Body.String()); w.Code != 503 || p.asked != nil {
			t.Errorf("%d %s; ways were asked for: %q", w.Code, w.Body, p.asked)
		}
	})
}

// The admin listener asks for a key where there are any, for everything but health.
// TestRebound: without keys a listener on the loopback answers to addresses and to names
// that nobody can have registered, and not to a page whose name's address was changed.
func TestRebound(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		admin := r.gateway.Admin(r.metrics)
		ask := func(method, path, host, at string) int {
			addr := &net.TCPAddr{IP: net.ParseIP(at), Port: 9090}
			req := httptest.NewRequest(method, path, strings.NewReader(`{"on":true}`))
			req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, addr))
			req.Host = host
			req.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			admin.ServeHTTP(w, req)
			return w.Code
		}
		for _, c := range []struct {
			host, at string
			want     int
		}{
			{"evil.test:9090", "127.0.0.1", 421}, {"EVIL.test.", "::1", 421}, {"127.0.0.1.evil.test", "127.0.0.1", 421}, {"localhost.evil.test:1", "127.0.0.1", 421},
			{"127.0.0.1:9090", "127.0.0.1", 200}, {"[::1]:9090", "::1", 200}, {"localhost:9090", "127.0.0.1", 200}, {"a.localhost:9090", "127.0.0.1", 200}, {"gpu-box:9090", "127.0.0.1", 200},
			{"headgate.example.com", "10.0.0.9", 200}, // admin.open, in a network of its own
		} {
			if got := ask("GET", "/debug/admission", c.host, c.at); got != c.want {
				t.Errorf("%s at %s: %d, want %d", c.host, c.at, got, c.want)
			}
		}
		if got := ask("POST", "/api/pools/main/drain", "evil.test:9090", "127.0.0.1"); got != 421 {
			t.Errorf("a switch: %d", got)
		}
		if got := ask("GET", "/healthz", "evil.test:9090", "127.0.0.1"); got != 200 {
			t.Errorf("health: %d", got)
		}
	})
}

func TestOperators(t *testing.T) {
	const opsKey, scraperKey = "hg_operatorABCDEFGHIJ0123456", "hg_scraperABCDEFGHIJ01234567"
	hash := func(key string) string {
		h, err := identity.Hash(identity.NewSecret(key))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	operators := identity.NewOperators([]identity.AdminKey{
		{Name: "ops", Hash: hash(opsKey), Role: identity.RoleAdmin}, {Name: "prometheus", Hash: hash(scraperKey), Role: identity.RoleMetrics},
	})
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.gateway.cfg.Spans = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "taken") })
		admin := r.gateway.Admin(r.metrics)
		ask := func(method, path, key string) *httptest.ResponseRecorder {
			req := httptest.NewRequest(method, path, strings.NewReader(`{"on":true}`))
			req.Header.Set("Content-Type", "application/json")
			if key != "" {
				req.Header.Set("Authorization", "Bearer "+key)
			}
			w := httptest.NewRecorder()
			admin.ServeHTTP(w, req)
			return w
		}
		if w := ask("GET", "/metrics", ""); w.Code != 200 {
			t.Fatalf("without operators: %d", w.Code)
		}
		r.gateway.Reconfigure(func() Config { // as a reload does
			c := *r.gateway.live()
			c.Operators = operators
			return c
		})
		get := []string{"/metrics", "/api/session", "/api/now", "/api/traffic", "/api/recalls", "/api/switches", "/api/plan", "/api/observe", "/debug/admission", "/debug/engines", "/debug/pprof/", "/debug/pprof/heap", "/nothing"}
		for _, path := range get {
			for key, want := range map[string]int{"": 401, aliceKey: 401, "sk-x": 401, opsKey: 200, scraperKey: 403} {
				switch {
				case path == "/metrics" && key == scraperKey:
					want = 200
				case path == "/nothing" && key == opsKey:
					want = 404
				}
				if w := ask("GET", path, key); w.Code != want || (w.Header().Get("Www-Authenticate") != "") != (want == 401) {
					t.Errorf("GET %s: %d, want %d: %.100s", path, w.Code, want, w.Body)
				}
			}
		}
		for _, path := range []string{"/v1/traces", "/api/plan", "/api/pools/main/drain", "/api/pools/main/lending", "/api/pools/main/bypass"} {
			for key, want := range map[string]int{"": 401, scraperKey: 403} {
				if w := ask("POST", path, key); w.Code != want {
					t.Errorf("POST %s: %d, want %d", path, w.Code, want)
				}
			}
		}
		for _, path := range []string{"/healthz", "/readyz", "/console/"} {
			if w := ask("GET", path, ""); w.Code != 200 {
				t.Errorf("%s: %d", path, w.Code)
			}
		}
		// The console asks whose key it was given, and what for.
		if w := ask("GET", "/api/session", opsKey); !strings.Contains(w.Body.String(), `"operator": "ops"`) || !strings.Contains(w.Body.String(), `"role": "admin"`) {
			t.Errorf("session: %d %s", w.Code, w.Body)
		}
		// Who turns a switch is written down by the name of his key.
		w := httptest.NewRecorder()
		req := httptest.NewRequest("POST", "/api/pools/main/bypass", strings.NewReader(`{"on":true}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+opsKey)
		req.Header.Set("Headgate-Actor", "root")
		admin.ServeHTTP(w, req)
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"ops for root"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// A clients' listener is none for them.
		if a := r.send("GET", "/v1/models", "", "Authorization", "Bearer "+opsKey); a.status != 401 {
			t.Errorf("an operator's key at the clients' listener: %d", a.status)
		}
	})
}
