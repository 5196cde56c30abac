package identity

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/wire"
)

const (
	aliceKey   = "hg_ABCDEFGHIJKLMNOPQRSTUVWXYZa"
	bobKey     = "hg_0123456789abcdefghijklmnopq"
	unknownKey = "hg_zyxwvutsrqponmlkjihgfedcbaZ"
)

func mustHash(t testing.TB, key string) string {
	t.Helper()
	h, err := Hash(NewSecret(key))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func testConfig(t testing.TB) Config {
	var c Config
	c.Tiers.SetDefaults()
	c.Keys = []Key{
		{Name: "alice", Tenant: "team-a", Hash: mustHash(t, aliceKey), Classes: []string{"interactive", "batch"}, Default: "interactive", Header: true, ServiceTier: true},
		{Name: "bob", Tenant: "team-b", Hash: mustHash(t, bobKey), Classes: []string{"batch"}},
	}
	return c
}

func authenticator(t testing.TB, c Config) *Authenticator {
	t.Helper()
	a, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func header(kv ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		h.Add(kv[i], kv[i+1])
	}
	return h
}

// asked is a request with a header.
func asked(h http.Header) *http.Request { return &http.Request{Header: h} }

func TestAuthenticate(t *testing.T) {
	open := testConfig(t)
	open.Anonymous = &Anonymous{Tenant: "anonymous", Classes: []string{"batch"}}
	only := Config{Anonymous: open.Anonymous, Tiers: open.Tiers}

	for _, tt := range []struct {
		name string
		cfg  Config
		h    http.Header
		want string // the principal, or "status code: part of the message"
	}{
		{"bearer", testConfig(t), header("Authorization", "Bearer "+aliceKey), "alice"},
		{"scheme in any case, spaces", testConfig(t), header("Authorization", "  bEARER   "+bobKey+" "), "bob"},
		{"x-api-key", testConfig(t), header("x-api-key", aliceKey), "alice"},
		{"the same key in both", testConfig(t), header("Authorization", "Bearer "+aliceKey, "x-api-key", aliceKey), "alice"},
		{"two keys", testConfig(t), header("Authorization", "Bearer "+aliceKey, "x-api-key", bobKey), "401 unauthorized: two different"},
		{"two bearers", testConfig(t), header("Authorization", "Bearer "+aliceKey, "Authorization", "Bearer "+bobKey), "401 unauthorized: two different"},
		{"two x-api-keys", testConfig(t), header("x-api-key", aliceKey, "x-api-key", bobKey), "401 unauthorized: two different"},
		{"none", testConfig(t), header(), "401 unauthorized: no api key"},
		{"unknown", testConfig(t), header("Authorization", "Bearer "+unknownKey), "401 unauthorized: not known"},
		{"malformed", testConfig(t), header("Authorization", "Bearer sk-whatever"), "401 unauthorized: malformed"},
		{"huge", testConfig(t), header("Authorization", "Bearer hg_"+strings.Repeat("aB3", 1<<16)), "401 unauthorized: malformed"},
		{"prefix of a key", testConfig(t), header("x-api-key", aliceKey[:len(aliceKey)-1]), "401 unauthorized: not known"},
		{"the hash itself", testConfig(t), header("x-api-key", mustHash(t, aliceKey)), "401 unauthorized: malformed"},
		{"basic", testConfig(t), header("Authorization", "Basic YTpi"), "401 unauthorized: another scheme"},
		{"empty bearer", testConfig(t), header("Authorization", "Bearer "), "401 unauthorized: holds no key"},
		{"empty x-api-key", testConfig(t), header("x-api-key", ""), "401 unauthorized: holds no key"},

		{"anonymous", open, header(), "anonymous"},
		{"anonymous beside keys", open, header("Authorization", "Bearer "+bobKey), "bob"},
		{"a revoked key is not anonymous", open, header("Authorization", "Bearer "+unknownKey), "401 unauthorized: not known"},
		{"no keys at all: any credential", only, header("Authorization", "Bearer sk-EMPTY"), "anonymous"},
		{"no keys at all: none", only, header(), "anonymous"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := authenticator(t, tt.cfg).Authenticate(asked(tt.h))
			if err == nil {
				if p.Name != tt.want {
					t.Fatalf("want %s, got principal %s", tt.want, p.Name)
				}
				return
			}
			head, part, _ := strings.Cut(tt.want, ": ")
			if got := fmt.Sprint(err.Status, " ", err.Code); got != head || part == "" || !strings.Contains(err.Message, part) {
				t.Fatalf("want %s, got %s: %s", tt.want, got, err.Message)
			}
			if err.Type != "authentication_error" {
				t.Errorf("type: %s", err.Type)
			}
			for _, vs := range tt.h {
				for _, v := range vs {
					if f := strings.Fields(v); len(f) > 0 && strings.Contains(err.Message, f[len(f)-1]) && len(f[len(f)-1]) > 6 {
						t.Errorf("the message repeats the credential: %s", err.Message)
					}
				}
			}
		})
	}
}

// Case 19: a keyless caller escapes the per-principal limit.
func TestAnonymousIsOnePrincipal(t *testing.T) {
	c := testConfig(t)
	c.Anonymous = &Anonymous{Tenant: "anonymous", Classes: []string{"batch"}}
	a := authenticator(t, c)
	first, _ := a.Authenticate(asked(header()))
	for i := range 100 {
		p, err := a.Authenticate(asked(header("X-Forwarded-For", fmt.Sprint(i), "User-Agent", fmt.Sprint(i))))
		if err != nil || p != first || !p.Anonymous {
			t.Fatalf("want the one anonymous principal, got %v, %v", p, err)
		}
	}
	var names []string
	for _, p := range a.Principals() {
		names = append(names, p.Name)
	}
	if d := cmp.Diff([]string{"alice", "anonymous", "bob"}, names); d != "" {
		t.Errorf("principals (-want +got):\n%s", d)
	}
}

func TestClass(t *testing.T) {
	a := authenticator(t, testConfig(t))
	alice, _ := a.Authenticate(asked(header("x-api-key", aliceKey)))
	bob, _ := a.Authenticate(asked(header("x-api-key", bobKey)))
	tierOnly := *alice
	tierOnly.ByHeader = false
	narrow := *alice
	narrow.Classes = []string{"interactive"}

	for _, tt := range []struct {
		name         string
		p            *Principal
		header, tier string
		want         string // the class, or part of a 403's message
	}{
		{"default", alice, "", "", "interactive"},
		{"header", alice, "batch", "", "batch"},
		{"header before tier", alice, "interactive", "flex", "interactive"},
		{"flex", alice, "", "flex", "batch"},
		{"priority", alice, "", "priority", "interactive"},
		{"auto", alice, "", "auto", "interactive"},
		{"tier default", alice, "", "default", "interactive"},
		{"unknown tier", alice, "", "platinum", "interactive"},
		{"header names an unknown class", alice, "gold", "", "403 Headgate-Class: gold: this key may not use that class; allowed: interactive, batch"},
		{"header is no name", alice, "gold\x1b[31m", "", "403 Headgate-Class: (not a class name): this key may not use that class; allowed: interactive, batch"},
		{"header is huge", alice, strings.Repeat("g", 4096), "", "403 Headgate-Class: (not a class name): this key may not use that class; allowed: interactive, batch"},
		{"class names are exact", alice, "Batch", "", "403 Headgate-Class: Batch: this key may not use that class; allowed: interactive, batch"},
		{"no choice: header", bob, "interactive", "", "403 Headgate-Class: interactive: this key may not choose a class; leave the header out to get batch"},
		{"no choice: its own class", bob, "batch", "", "403 Headgate-Class: batch: this key may not choose a class; leave the header out to get batch"},
		{"no choice: tier is ignored", bob, "", "priority", "batch"},
		{"absent default is the first class", bob, "", "", "batch"},
		{"tier without header right", &tierOnly, "", "flex", "batch"},
		{"tier to a class the key may not use", &narrow, "", "flex", "interactive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.p.Class(tt.header, tt.tier)
			if err != nil {
				got = fmt.Sprint(err.Status, " ", err.Message)
				if err.Param != ClassHeader || err.Code != wire.CodeClassNotPermitted {
					t.Errorf("param %q, code %q", err.Param, err.Code)
				}
			}
			if got != tt.want {
				t.Errorf("\nwant %s\ngot  %s", tt.want, got)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	const raw = "hg_theKeyItselfPastedByMistake12"
	h := mustHash(t, aliceKey)
	c := Config{
		Keys: []Key{
			{Name: "alice", Tenant: "t", Hash: h, Classes: []string{"a", "b"}, Default: "c"},
			{Name: "alice", Tenant: "", Hash: h, Classes: nil},
			{Name: "", Tenant: "x y", Hash: raw, Classes: []string{"a", "a", "é"}},
			{Name: "anonymous", Tenant: "t", Hash: mustHash(t, bobKey), Classes: []string{"a"}},
		},
		Anonymous: &Anonymous{Tenant: "t", Classes: []string{"a"}, Default: "z"},
		Tiers:     Tiers{Flex: "no name"},
	}
	var got []string
	c.Validate(func(path string, value any, allowed string) {
		got = append(got, fmt.Sprintf("%s: %v: %s", path, value, allowed))
	})
	want := []string{
		"keys[0].default: c: one of the classes: a, b",
		"keys[1].name: alice: a name of its own; keys[0] has this one",
		"keys[1].hash: [redacted]: a key of its own; keys[0] has the same",
		"keys[1].tenant: : " + NameRule,
		"keys[1].classes: nothing: at least one class",
		"keys[2].name: : " + NameRule,
		"keys[2].hash: [redacted]: sha256: and 64 hex digits",
		"keys[2].tenant: x y: " + NameRule,
		"keys[2].classes[1]: a: each class once",
		"keys[2].classes[2]: é: " + NameRule,
		"keys[3].name: anonymous: another name: this one is the anonymous principal's",
		"anonymous.default: z: one of the classes: a",
		"service_tiers.flex: no name: " + NameRule,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if strings.Contains(fmt.Sprint(got), raw) {
		t.Error("a key pasted in place of its hash is repeated in the message")
	}
	if _, err := New(c, nil); err == nil {
		t.Error("New accepts what Validate refuses")
	}
	if _, err := New(Config{Tiers: Tiers{Flex: "a", Priority: "b"}}, nil); err == nil || !strings.Contains(err.Error(), "nobody may call") {
		t.Errorf("nobody may call: got %v", err)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	a := authenticator(b, testConfig(b))
	r := asked(header("Authorization", "Bearer "+aliceKey))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Authenticate(r); err != nil {
			b.Fatal(err)
		}
	}
}
