package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/wire"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

// issued verifies tokens that are JSON: what they would say.
type issued struct {
	calls   int
	current bool
	until   time.Time
}

func (v *issued) Problems() []string { return []string{"issuer sso: away"} }

func (v *issued) Verify(_ context.Context, token string) (*Verified, *wire.Error) {
	v.calls++
	c := map[string]any{}
	if token == "away" {
		return nil, wire.NewError(wire.CodeIdentityUnavailable, "away").WithRetry(time.Second)
	}
	if json.Unmarshal([]byte(token), &c) != nil {
		return nil, unauthorized("malformed")
	}
	from, _ := c["from"].(string)
	sub, _ := c["sub"].(string)
	app, _ := c["azp"].(string)
	if n, ok := c["number"].(float64); ok {
		c["number"] = int64(n) // as the verifier has it
	}
	return &Verified{Claims: Claims{From: from, Subjects: []string{sub}, Application: app, All: c}, Until: v.until, Current: func(time.Time) bool { return v.current }}, nil
}

func ruled(t *testing.T) (Config, *issued) {
	c := testConfig(t)
	for _, name := range []string{"sso", "ci"} {
		i := Issuer{Name: name, Issuer: "https://" + name, Audiences: []string{"headgate"}}
		i.SetDefaults()
		c.Issuers = append(c.Issuers, i)
	}
	c.Certificates = &Certificates{Names: []string{NameURI, NameDNS}}
	c.Rules = []Rule{
		{Name: "staff", From: []string{"sso"}, Claims: []Claim{{Name: "groups", Any: []string{"eng-*", "ops"}}, {Name: "scope", Any: []string{"infer"}}}, Tenant: "staff", Classes: []string{"interactive", "batch"}, Header: true},
		{Name: "portal", From: []string{"sso"}, Applications: []string{"portal-*"}, Tenant: "org-{org.id}", Classes: []string{"interactive"}},
		{Name: "nested", From: []string{"sso"}, Claims: []Claim{{Name: "realm.roles", Any: []string{"r"}}, {Name: "https://x.test/flag", Any: []string{"true"}}}, Tenant: "{number}", Classes: []string{"batch"}},
		{Name: "ci", From: []string{"ci", FromCertificate}, Subjects: []string{"repo:acme/*", "spiffe://acme/ci/*"}, Tenant: "ci", Classes: []string{"batch"}, Models: Models{Allow: []string{"small-*"}}},
		{Name: "svc", From: []string{FromCertificate}, Subjects: []string{"*"}, Tenant: "{sub}", Classes: []string{"batch"}},
	}
	return c, &issued{current: true, until: time.Now().Add(time.Hour)}
}

func certificate(change func(*x509.Certificate)) *tls.ConnectionState {
	c := &x509.Certificate{Raw: []byte(fmt.Sprintf("%p", change)), NotAfter: time.Now().Add(time.Hour)}
	change(c)
	return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c}}, PeerCertificates: []*x509.Certificate{c}}
}

func named(names ...string) *tls.ConnectionState {
	return certificate(func(c *x509.Certificate) {
		c.Raw = []byte(strings.Join(names, " "))
		for _, n := range names {
			if u, err := url.Parse(n); err == nil && u.Scheme != "" {
				c.URIs = append(c.URIs, u)
			} else {
				c.DNSNames = append(c.DNSNames, n)
			}
		}
	})
}

func TestRules(t *testing.T) {
	cfg, v := ruled(t)
	a, err := New(cfg, v)
	if err != nil {
		t.Fatal(err)
	}
	cn := certificate(func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "repo:acme/x"} })
	unverified := named("spiffe://acme/ci/x")
	unverified.VerifiedChains = nil
	old := named("spiffe://acme/ci/x")
	old.VerifiedChains[0][0].NotAfter = time.Now().Add(-time.Second)
	for _, tt := range []struct {
		name  string
		token string // or a key
		tls   *tls.ConnectionState
		want  string // principal, tenant, or "status code: part of the message"
	}{
		{"groups and scope", `{"from":"sso","sub":"u1","groups":["x","eng-a"],"scope":"read infer"}`, nil, "staff/u1 staff"},
		{"one of them is not enough", `{"from":"sso","sub":"u1","groups":["eng-a"],"scope":"inference"}`, nil, "403 access_denied: none of the gateway's rules"},
		{"the first that fits", `{"from":"sso","sub":"u1","groups":"ops","scope":"infer","azp":"portal-1","org":{"id":"a"}}`, nil, "staff/u1 staff"},
		{"another issuer's groups", `{"from":"ci","sub":"u1","groups":["ops"],"scope":"infer"}`, nil, "403 access_denied: none"},
		{"application and tenant of a claim", `{"from":"sso","sub":"u 1","azp":"portal-7","org":{"id":"acme"}}`, nil, "portal/sha256:233b7445f19c4ccd76da63d6 org-acme"},
		{"a tenant that is no name", `{"from":"sso","sub":"u","azp":"portal-7","org":{"id":"a b"}}`, nil, "403 access_denied: names no tenant"},
		{"a tenant of a list", `{"from":"sso","sub":"u","azp":"portal-7","org":{"id":["a","b"]}}`, nil, "403 access_denied: names no tenant"},
		{"no such claim", `{"from":"sso","sub":"u","azp":"portal-7"}`, nil, "403 access_denied: names no tenant"},
		{"a way, a URL, a number", `{"from":"sso","sub":"u","realm":{"roles":["r"]},"https://x.test/flag":true,"number":7}`, nil, "nested/u 7"},
		{"a key beside rules", aliceKey, nil, "alice team-a"},
		{"the issuer is away", "away", nil, "503 identity_unavailable: away"},
		{"neither", "sk-x", nil, "401 unauthorized: malformed"},
		{"a SPIFFE id", "", named("spiffe://acme/ci/x"), "ci/spiffe://acme/ci/x ci"},
		{"another id", "", named("spiffe://evil/ci/x"), "403 access_denied: names no tenant"},
		{"a name as the tenant", "", named("svc.a"), "svc/svc.a svc.a"},
		{"cn does not count unless it is named", "", cn, "403 access_denied: none"},
		{"not verified", "", unverified, "401 unauthorized: no api key"},
		{"expired since", "", old, "401 unauthorized: expired"},
		{"a key and a certificate of somebody", aliceKey, named("svc.a"), "401 unauthorized: two credentials"},
		{"a token and a certificate of somebody", `{"from":"sso","sub":"u1","groups":"ops","scope":"infer"}`, named("svc.a"), "401 unauthorized: two credentials"},
		{"a key and a certificate of nobody", aliceKey, cn, "alice team-a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the second time by the cache
				r := asked(http.Header{})
				r.TLS = tt.tls
				if tt.token != "" {
					r.Header.Set("Authorization", "Bearer "+tt.token)
				}
				p, err := a.Authenticate(r)
				if err != nil {
					head, part, _ := strings.Cut(tt.want, ": ")
					if got := fmt.Sprint(err.Status, " ", err.Code); got != head || part == "" || !strings.Contains(err.Message, part) {
						t.Fatalf("want %s, got %s: %s", tt.want, got, err.Message)
					}
				} else if got := p.Name + " " + p.Tenant; got != tt.want || p.ByCertificate != (tt.token == "") {
					t.Fatalf("want %s, got %s, by certificate: %v", tt.want, got, p.ByCertificate)
				}
			}
		})
	}
	if may, known := a.MayUse("ci/repo:acme/x", "small-1"); !may || !known {
		t.Error("a rule's principal may not use its model later")
	}
	if may, known := a.MayUse("ci/repo:acme/x", "large"); may || !known {
		t.Error("a rule's principal may use another model later")
	}
	if _, known := a.MayUse("gone", "small-1"); known {
		t.Error("one that is not configured is known")
	}
	var names []string
	for _, p := range a.Principals() {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "alice bob ci nested portal staff svc" {
		t.Errorf("principals: %s", got)
	}
}

// What counts of a connection is what its listener has verified: where that takes any
// certificate, one that says the same is nobody's.
func TestCertificatesOfConnections(t *testing.T) {
	issue := func(name string, authority *tls.Certificate) tls.Certificate {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
			IsCA: authority == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		parent, signer := template, any(key)
		if authority != nil {
			parent, signer = authority.Leaf, authority.PrivateKey
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	}
	authority := issue("authority", nil)
	cfg, v := ruled(t)
	a, err := New(cfg, v)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, err := a.Authenticate(r); err != nil {
			fmt.Fprint(w, err.Status)
		} else {
			fmt.Fprint(w, p.Name)
		}
	}))
	roots := x509.NewCertPool()
	roots.AddCert(authority.Leaf)
	// By the name that it is called, the listener verifies certificates or takes any.
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	verify := &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots}
	s.TLS.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if h.ServerName != "verified.test" {
			return nil, nil
		}
		verify.Certificates = s.TLS.Certificates
		return verify, nil
	}
	s.StartTLS()
	defer s.Close()
	for _, tt := range []struct{ name, server, want string }{{"svc.a", "verified.test", "svc/svc.a"}, {"svc.a", "any.test", "401"}} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, ServerName: tt.server, Certificates: []tls.Certificate{issue(tt.name, &authority)},
		}}}
		res, err := client.Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		client.CloseIdleConnections()
		if string(body) != tt.want {
			t.Errorf("%s at %s: %s, want %s", tt.name, tt.server, body, tt.want)
		}
	}
}

// A token is verified once while it is good, its key is its issuer's, and the cache has
// room.
func TestTokensAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, v := ruled(t)
		v.until = time.Now().Add(time.Hour)
		a, err := New(cfg, v)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(n int) {
			t.Helper()
			token := fmt.Sprintf(`{"from":"ci","sub":"repo:acme/%d"}`, n)
			if p, err := a.Authenticate(asked(header("Authorization", "Bearer "+token))); err != nil || p.Name != fmt.Sprintf("ci/repo:acme/%d", n) {
				t.Fatal(p, err)
			}
		}
		calls := func(what string, want int) {
			t.Helper()
			if v.calls != want {
				t.Fatalf("%s: verified %d times, want %d", what, v.calls, want)
			}
		}
		for range 10 {
			ask(0)
		}
		calls("the same token", 1)
		v.current = false
		ask(0)
		calls("its key was taken back", 2)
		v.current = true
		ask(0)
		calls("and is there again", 2)
		for n := 1; n < 3*halfCache; n++ {
			ask(n)
			ask(0) // is used, so it stays
		}
		calls("many others", 2+3*halfCache-1)
		if n := len(a.tokens.young) + len(a.tokens.old); n > 2*halfCache {
			t.Errorf("%d tokens are kept", n)
		}
		time.Sleep(time.Hour)
		v.until = time.Now().Add(time.Hour)
		ask(0)
		calls("it has expired", 2+3*halfCache)
	})
}

// Claims can't fill the memory with tenants.
func TestTenantsAreBounded(t *testing.T) {
	cfg, v := ruled(t)
	a, err := New(cfg, v)
	if err != nil {
		t.Fatal(err)
	}
	for n := range MaxTenants + 2 {
		_, err := a.Authenticate(asked(header("Authorization", fmt.Sprintf(`Bearer {"from":"sso","sub":"u","azp":"portal-","org":{"id":"%d"}}`, n))))
		if (err != nil) != (n >= MaxTenants) {
			t.Fatalf("tenant %d: %v", n, err)
		}
	}
}

func TestKeysEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testConfig(t)
		at := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
		c.Keys[0].Expires = at(3 * time.Hour)
		c.Keys[0].Old = &OldKey{Hash: mustHash(t, unknownKey), Until: at(time.Hour)}
		a := authenticator(t, c)
		for _, step := range []struct{ key, old string }{{"alice", "alice"}, {"alice", "401"}, {"alice", "401"}, {"401", "401"}} {
			for key, want := range map[string]string{aliceKey: step.key, unknownKey: step.old} {
				p, err := a.Authenticate(asked(header("x-api-key", key)))
				got := "401"
				if err == nil {
					got = p.Name
				} else if !strings.Contains(err.Message, "has expired") {
					t.Error(err)
				}
				if got != want {
					t.Errorf("want %s, got %s", want, got)
				}
			}
			// What the key began, a batch, goes on for as long as the key itself.
			if may, known := a.MayUse("alice", "any"); may != known || known != (step.key == "alice") {
				t.Errorf("later: may %v, known %v, and the key is %s", may, known, step.key)
			}
			time.Sleep(time.Hour)
		}
	})
}

func TestMayUse(t *testing.T) {
	for _, tt := range []struct {
		m       Models
		may, no string
	}{
		{Models{}, "a b", ""},
		{Models{Allow: []string{"llama-*", "qwen"}}, "llama-8b llama- qwen", "qwen2 Llama-8b llama"},
		{Models{Deny: []string{"*-70b", "x*"}}, "llama-70b", "x xy"}, // a * counts at the end only
		{Models{Allow: []string{"*"}, Deny: []string{"big"}}, "small big2", "big"},
	} {
		p := Principal{Models: tt.m}
		for _, name := range strings.Fields(tt.may) {
			if !p.MayUse(name) {
				t.Errorf("%v: %s may not be used", tt.m, name)
			}
		}
		for _, name := range strings.Fields(tt.no) {
			if p.MayUse(name) {
				t.Errorf("%v: %s may be used", tt.m, name)
			}
		}
	}
}

func TestOperators(t *testing.T) {
	keys := []AdminKey{
		{Name: "ops", Hash: mustHash(t, aliceKey), Role: RoleAdmin}, {Name: "prometheus", Hash: mustHash(t, bobKey), Role: RoleMetrics},
		{Name: "eyes", Hash: mustHash(t, "hg_readreadreadABCDEFGHIJ0123"), Role: RoleRead}, {Name: "engine", Hash: mustHash(t, "hg_engineABCDEFGHIJ0123456789"), Role: RoleTraces},
		{Name: "gone", Hash: mustHash(t, unknownKey), Role: RoleAdmin, Expires: "2020-01-01T00:00:00Z"}, {Name: "shift", Hash: mustHash(t, "hg_operatedABCDEFGHIJ01234567"), Role: RoleOperate},
	}
	ValidateAdminKeys(keys, func(path string, value any, allowed string) { t.Errorf("%s: %v: %s", path, value, allowed) })
	o := NewOperators(keys)
	paths := []string{"GET /metrics", "GET /api/grants", "GET /debug/admission", "GET /debug/pprof/heap", "POST /api/plan", "POST /v1/traces", "HEAD /metrics",
		"POST /api/pools/main/drain", "POST /api/batches/b/cancel", "POST /api/config/check", "POST /api/lab/whatif", "POST /api/limits/refill", "POST /api/fleet/forget"}
	var got []string
	for _, k := range []string{aliceKey, bobKey, "hg_readreadreadABCDEFGHIJ0123", "hg_engineABCDEFGHIJ0123456789", "hg_operatedABCDEFGHIJ01234567", unknownKey, "hg_strangerABCDEFGHIJ0123456", "nothing", ""} {
		line := ""
		for _, p := range paths {
			method, path, _ := strings.Cut(p, " ")
			r := &http.Request{Method: method, URL: &url.URL{Path: path}, Header: http.Header{}}
			if k != "" {
				r.Header.Set("Authorization", "Bearer "+k)
			}
			name, err := o.Authorize(r)
			if err != nil {
				name = fmt.Sprint(err.Status)
				if k != "" && strings.Contains(err.Message, k) {
					t.Errorf("the refusal repeats the key: %s", err.Message)
				}
			}
			line += " " + name
		}
		got = append(got, line[1:])
	}
	nobody := strings.TrimSpace(strings.Repeat("401 ", len(paths)))
	want := []string{
		"ops ops ops ops ops ops ops ops ops ops ops ops ops",
		"prometheus 403 403 403 403 403 prometheus 403 403 403 403 403 403",
		"eyes eyes eyes 403 403 403 eyes 403 403 403 403 403 403",
		"403 403 403 403 403 engine 403 403 403 403 403 403 403",
		"shift shift shift 403 shift 403 shift shift shift shift shift 403 403",
		nobody, nobody, nobody, nobody,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if NewOperators(nil) != nil {
		t.Error("nobody is somebody")
	}
}

// What is wrong with issuers, certificates, rules and admin keys is told by field.
func TestValidateRules(t *testing.T) {
	h := mustHash(t, aliceKey)
	c := Config{
		Keys: []Key{{Name: "k", Tenant: "t", Hash: h, Classes: []string{"a"}, Expires: "tomorrow", Old: &OldKey{Hash: h}, Models: Models{Allow: []string{"a*b"}}}},
		Issuers: []Issuer{
			{Name: "a b", Issuer: "http://elsewhere", Algorithms: []string{"HS256", "none"}, Leeway: time.Hour},
			{Name: "certificate", Issuer: "x", JWKSURL: "https://user:password@h", Audiences: []string{""}, Refresh: time.Minute, FetchTimeout: time.Second, MaxTokenBytes: 1024, MaxKeysBytes: 1024},
		},
		Certificates: &Certificates{Names: []string{"uri", "email", "uri"}},
		Rules: []Rule{
			{Name: "k", From: []string{"nobody"}, Subjects: []string{"a*b"}, Claims: []Claim{{}}, Tenant: "a b", Classes: []string{"a"}},
			{Name: "r", Tenant: "{a}{b}", Classes: nil},
		},
	}
	var got []string
	bad := func(path string, value any, allowed string) {
		got = append(got, fmt.Sprintf("%s: %v: %s", path, value, allowed))
	}
	c.Validate(bad)
	ValidateAdminKeys([]AdminKey{{Name: "a", Hash: "hg_theKeyItself", Role: "root"}, {Name: "a", Hash: h, Role: "read", Expires: "x"}}, bad)
	golden := filepath.Join("testdata", "validate.txt")
	text := strings.Join(got, "\n") + "\n"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, secret := range []string{"password", "theKeyItself"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is repeated", secret)
		}
	}
}
