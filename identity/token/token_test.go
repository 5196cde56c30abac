package token

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"

	"headgate/identity"
)

const (
	iss = "https://issuer.test"
	aud = "headgate"
)

// keys are made once: RSA's take long.
var keys = sync.OnceValue(func() map[string]crypto.Signer {
	r, _ := rsa.GenerateKey(rand.Reader, 2048)
	other, _ := rsa.GenerateKey(rand.Reader, 2048)
	e, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	e3, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	e5, _ := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	return map[string]crypto.Signer{"rsa": r, "stranger": other, "p256": e, "p384": e3, "p521": e5, "ed": ed}
})

// source is an issuer's server, without a network.
type source struct {
	mu      sync.Mutex
	keys    []string // names of keys that it shows
	status  int      // 0: 200
	err     error
	raw     string // instead of the set
	fetches int
	hold    chan struct{} // answers wait for it; nil: they don't
}

func (s *source) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil {
		hold := s.hold
		s.mu.Unlock()
		select {
		case <-hold:
		case <-r.Context().Done():
			s.mu.Lock()
			return nil, r.Context().Err()
		}
		s.mu.Lock()
	}
	if s.err != nil {
		s.fetches++
		return nil, s.err
	}
	body := fmt.Sprintf(`{"issuer":%q,"jwks_uri":"%s/keys"}`, iss, iss)
	if r.URL.Path != "/.well-known/openid-configuration" {
		s.fetches++
		if body = s.raw; body == "" {
			var set jose.JSONWebKeySet
			for _, name := range s.keys {
				set.Keys = append(set.Keys, jose.JSONWebKey{Key: keys()[name].Public(), KeyID: name, Use: "sig"})
			}
			b, _ := json.Marshal(set)
			body = string(b)
		}
	}
	status := s.status
	if status == 0 {
		status = 200
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func (s *source) set(change func(*source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetches
}

func config(change func(*identity.Issuer)) identity.Issuer {
	c := identity.Issuer{Name: "test", Issuer: iss, Audiences: []string{aud}}
	c.SetDefaults()
	if change != nil {
		change(&c)
	}
	return c
}

func verifiers(t testing.TB, c identity.Issuer, s *source) *Verifiers {
	t.Helper()
	v, err := build([]identity.Issuer{c}, nil, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var b64 = base64.RawURLEncoding

// signed makes a token of raw parts, signed as the algorithm wants it.
func signed(t testing.TB, header, claims, alg, key string) string {
	t.Helper()
	text := b64.EncodeToString([]byte(header)) + "." + b64.EncodeToString([]byte(claims))
	return text + "." + b64.EncodeToString(signature(t, text, alg, keys()[key]))
}

func digestOf(alg string) (crypto.Hash, func() hash.Hash) {
	switch alg[2:] {
	case "256":
		return crypto.SHA256, sha256.New
	case "384":
		return crypto.SHA384, sha512.New384
	}
	return crypto.SHA512, sha512.New
}

// signature signs without the library that is under test.
func signature(t testing.TB, text, alg string, key crypto.Signer) []byte {
	t.Helper()
	var out []byte
	var err error
	if alg == "EdDSA" {
		out, err = key.Sign(rand.Reader, []byte(text), crypto.Hash(0))
	} else {
		id, sum := digestOf(alg)
		h := sum()
		h.Write([]byte(text))
		d := h.Sum(nil)
		switch k := key.(type) {
		case *rsa.PrivateKey:
			if alg[:2] == "PS" {
				out, err = rsa.SignPSS(rand.Reader, k, id, d, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
			} else {
				out, err = rsa.SignPKCS1v15(rand.Reader, k, id, d)
			}
		case *ecdsa.PrivateKey:
			r, s, e := ecdsa.Sign(rand.Reader, k, d)
			n := (k.Params().BitSize + 7) / 8
			out, err = append(r.FillBytes(make([]byte, n)), s.FillBytes(make([]byte, n))...), e
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// claims are good ones with changes; a nil removes one.
func claims(changes map[string]any) string {
	now := time.Now()
	c := map[string]any{
		"iss": iss, "aud": aud, "sub": "user-1", "azp": "app", "exp": now.Add(time.Hour).Unix(), "iat": now.Unix(), "nbf": now.Unix(),
		"groups": []string{"a", "b"}, "org": map[string]any{"id": 7},
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	b, _ := json.Marshal(c)
	return string(b)
}

func head(alg, kid string) string { return fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":"JWT"}`, alg, kid) }

var signers = map[string]string{
	"RS256": "rsa", "RS384": "rsa", "RS512": "rsa", "PS256": "rsa", "PS384": "rsa", "PS512": "rsa", "ES256": "p256", "ES384": "p384", "ES512": "p521", "EdDSA": "ed",
}

func TestVerify(t *testing.T) {
	s := &source{keys: []string{"rsa", "p256", "p384", "p521", "ed"}}
	v := verifiers(t, config(nil), s)
	for _, alg := range identity.Algorithms {
		got, err := v.Verify(t.Context(), signed(t, head(alg, signers[alg]), claims(nil), alg, signers[alg]))
		if err != nil {
			t.Fatalf("%s: %v", alg, err)
		}
		c := got.Claims
		if c.From != "test" || c.Subjects[0] != "user-1" || c.Application != "app" || got.Until.Before(time.Now().Add(time.Hour)) || !got.Current(time.Now()) {
			t.Errorf("%s: %+v", alg, got)
		}
	}
	good := func(header string, change map[string]any) string {
		return signed(t, header, claims(change), "ES256", "p256")
	}
	h := head("ES256", "p256")
	soon := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	for _, tt := range []struct {
		name, token, want string
	}{
		{"aud is a list", good(h, map[string]any{"aud": []string{"x", aud}}), ""},
		{"within the leeway", good(h, map[string]any{"exp": soon(-10 * time.Second), "nbf": soon(20 * time.Second), "iat": soon(20 * time.Second)}), ""},
		{"exp is no whole number", good(h, map[string]any{"exp": float64(soon(time.Minute)) + 0.5}), ""},
		{"no nbf, iat", good(h, map[string]any{"nbf": nil, "iat": nil}), ""},
		{"without kid, one key that suits", good(`{"alg":"ES256","typ":"at+jwt"}`, nil), ""},
		{"expired", good(h, map[string]any{"exp": soon(-31 * time.Second)}), "has expired"},
		{"no exp", good(h, map[string]any{"exp": nil}), "no exp"},
		{"not yet", good(h, map[string]any{"nbf": soon(time.Minute)}), "its nbf is to come"},
		{"of the future", good(h, map[string]any{"iat": soon(time.Minute)}), "its iat is to come"},
		{"another aud", good(h, map[string]any{"aud": "other"}), "its aud is"},
		{"no aud", good(h, map[string]any{"aud": nil}), "its aud is"},
		{"another iss", good(h, map[string]any{"iss": iss + "/"}), "none of the gateway's"},
		{"no sub", good(h, map[string]any{"sub": nil}), "no sub"},
		{"bound", good(h, map[string]any{"cnf": map[string]string{"jkt": "x"}}), "by cnf"},
		{"a logout token", good(`{"alg":"ES256","kid":"p256","typ":"logout+jwt"}`, nil), "its typ is"},
		{"crit", good(`{"alg":"ES256","kid":"p256","crit":["exp"]}`, nil), "by crit"},
		{"of another key", signed(t, h, claims(nil), "ES256", "p256") + "x", "malformed"},
		{"not a token", "sk-whatever", "neither an api key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := v.Verify(t.Context(), tt.token)
			tt.want = strings.Replace(tt.want, "its ", "", 1)
			if err == nil != (tt.want == "") || err != nil && (err.Status != 401 || !strings.Contains(err.Message, tt.want)) {
				t.Errorf("want %q, got %v", tt.want, err)
			}
		})
	}
	if n := s.count(); n != 1 {
		t.Errorf("keys were fetched %d times", n)
	}
}

// attack makes a token that must not be let in, of a kind that random chooses.
func attack(t testing.TB, random *mathrand.Rand) (kind, token string) {
	algs := []string{"RS256", "PS256", "ES256", "EdDSA"}
	alg := algs[random.IntN(len(algs))]
	key := signers[alg]
	valid := signed(t, head(alg, key), claims(nil), alg, key)
	part := strings.Split(valid, ".")
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	enc := func(text string) string { return b64.EncodeToString([]byte(text)) }
	public, _ := x509.MarshalPKIXPublicKey(keys()[key].Public())
	kinds := []struct {
		name string
		make func() string
	}{
		{"a bit", func() string {
			b := []byte(valid)
			b[random.IntN(len(b))] ^= 1 << random.IntN(8)
			return string(b)
		}},
		{"cut", func() string { return valid[:random.IntN(len(valid))] }},
		{"cut in front", func() string { return valid[1+random.IntN(len(valid)-1):] }},
		{"none", func() string {
			return enc(fmt.Sprintf(`{"alg":%q,"kid":%q}`, pick("none", "None", "NONE", "nOnE", "", "null"), key)) + "." + part[1] + "." + pick("", part[2], enc("x"))
		}},
		{"HS with the public key", func() string {
			name := pick("HS256", "HS384", "HS512")
			jwk, _ := jose.JSONWebKey{Key: keys()[key].Public(), KeyID: key}.MarshalJSON()
			secret := [][]byte{public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), jwk, {}}[random.IntN(4)]
			text := enc(head(name, key)) + "." + part[1]
			_, sum := digestOf(name)
			mac := hmac.New(sum, secret)
			mac.Write([]byte(text))
			return text + "." + b64.EncodeToString(mac.Sum(nil))
		}},
		{"another algorithm", func() string {
			return enc(head(pick("RS512", "PS384", "ES384", "ES512", "HS256", "A128KW", "dir", alg+" ", strings.ToLower(alg)), key)) + "." + part[1] + "." + part[2]
		}},
		{"kid", func() string {
			kid := pick(`"../../dev/null"`, `""`, `"' OR 1=1 --"`, `null`, `7`, `["rsa"]`, `{"a":1}`, `"stranger"`, `"`+strings.Repeat("k", 3000)+`"`, `"rsa\u0000"`, `"https://evil.test/keys"`)
			return signed(t, `{"alg":"RS256","kid":`+kid+`}`, claims(nil), "RS256", "stranger")
		}},
		{"a stranger's key under the kid", func() string { return signed(t, head("RS256", "rsa"), claims(nil), "RS256", "stranger") }},
		{"a key of its own", func() string {
			jwk, _ := jose.JSONWebKey{Key: keys()["stranger"].Public(), KeyID: pick("rsa", "mine")}.MarshalJSON()
			return signed(t, fmt.Sprintf(`{"alg":"RS256","kid":%q,"jwk":%s,"jku":"https://evil.test/keys","x5u":"https://evil.test/x"}`, pick("rsa", "mine"), jwk), claims(nil), "RS256", "stranger")
		}},
		{"times", func() string {
			at := time.Now()
			change := []map[string]any{
				{"exp": at.Add(-time.Duration(31+random.IntN(1e6)) * time.Second).Unix()}, {"nbf": at.Add(time.Hour).Unix()}, {"iat": at.Add(time.Hour).Unix()},
				{"exp": nil}, {"exp": fmt.Sprint(at.Add(time.Hour).Unix())}, {"exp": 1e300}, {"exp": -1}, {"exp": 0}, {"exp": []int{1}}, {"exp": true}, {"nbf": "soon"},
			}[random.IntN(11)]
			return signed(t, head(alg, key), claims(change), alg, key)
		}},
		{"audience and issuer", func() string {
			change := []map[string]any{
				{"aud": "other"}, {"aud": []string{}}, {"aud": map[string]string{"0": aud}}, {"aud": aud + " "}, {"aud": strings.ToUpper(aud)}, {"aud": nil}, {"aud": 7},
				{"iss": "https://evil.test"}, {"iss": iss + "/"}, {"iss": nil}, {"iss": []string{iss}}, {"sub": nil}, {"sub": 7}, {"sub": ""},
			}[random.IntN(14)]
			return signed(t, head(alg, key), claims(change), alg, key)
		}},
		{"names twice", func() string {
			c := claims(nil)
			twice := pick(`"sub":"root"`, `"exp":99999999999`, `"aud":"headgate"`, `"iss":"https://issuer.test"`, `"org":{"id":1,"id":2}`)
			if random.IntN(2) == 0 {
				return signed(t, head(alg, key), `{`+twice+`,`+strings.Replace(c, `"org":{"id":7}`, `"org":{"id":7,"id":8}`, 1)[1:], alg, key)
			}
			return signed(t, `{"alg":"none",`+head(alg, key)[1:], c, alg, key)
		}},
		{"names in another case", func() string {
			return signed(t, head(alg, key), strings.NewReplacer(`"exp"`, `"EXP"`, `"aud"`, pick(`"Aud"`, `"aud"`)).Replace(claims(nil)), alg, key)
		}},
		{"huge", func() string {
			return signed(t, head(alg, key), claims(map[string]any{"x": strings.Repeat("x", 8<<10+random.IntN(1<<17))}), alg, key)
		}},
		{"deep", func() string {
			n := random.IntN(2900)
			return signed(t, head(alg, key), `{"x":`+strings.Repeat("[", n)+strings.Repeat(pick("]", "}"), max(n-1, 0))+claims(nil), alg, key)
		}},
		{"parts of two", func() string {
			other := strings.Split(signed(t, head(alg, key), claims(map[string]any{"sub": "root"}), alg, key), ".")
			return []string{part[0] + "." + other[1] + "." + part[2], part[0] + "." + part[1] + "." + other[2][:len(other[2])-1] + "A." + other[2], part[1] + "." + part[0] + "." + part[2]}[random.IntN(3)]
		}},
		{"another form", func() string {
			return []string{
				valid + ".", "." + valid, valid + "." + part[2] + "." + part[2], valid + "=", part[0] + "=." + part[1] + "." + part[2], part[0] + ".." + part[2],
				part[0] + "." + part[1] + ".", valid + "\n", "Bearer " + valid, valid + " " + valid, `{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`,
			}[random.IntN(11)]
		}},
		{"crit and b64", func() string {
			return signed(t, fmt.Sprintf(`{"alg":%q,"kid":%q,"b64":false,"crit":["b64"]}`, alg, key), claims(nil), alg, key)
		}},
		{"an empty signature", func() string {
			sig := make([]byte, random.IntN(300))
			return part[0] + "." + part[1] + "." + b64.EncodeToString(sig)
		}},
		{"spare bits", func() string {
			for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
				other := valid[:len(valid)-1] + string(c)
				a, _ := b64.DecodeString(part[2])
				if b, err := b64.DecodeString(strings.Split(other, ".")[2]); err == nil && other != valid && bytes.Equal(a, b) {
					return other
				}
			}
			return "x." + valid // the length leaves no bits to spare
		}},
		{"noise", func() string {
			b := make([]byte, random.IntN(400))
			for i := range b {
				b[i] = byte(random.Uint32())
			}
			return string(b)
		}},
	}
	k := kinds[random.IntN(len(kinds))]
	return k.name, k.make()
}

// The bar of attacks: none of a thousand mutated tokens gets in, none crashes, none is
// repeated in its refusal, and they do not make the gateway ask the issuer.
func TestMutatedTokens(t *testing.T) {
	s := &source{keys: []string{"rsa", "p256", "ed"}}
	v := verifiers(t, config(nil), s)
	for seed := range uint64(1000) {
		kind, token := attack(t, mathrand.New(mathrand.NewPCG(seed, 10)))
		got, err := v.Verify(t.Context(), token)
		switch {
		case err == nil:
			t.Fatalf("seed %d, %s: %s is let in as %v", seed, kind, token, got.Claims.Subjects)
		case err.Status != 401:
			t.Errorf("seed %d, %s: status %d, %s", seed, kind, err.Status, err.Message)
		case len(token) > 12 && strings.Contains(err.Message, token[:12]):
			t.Errorf("seed %d, %s: the refusal repeats the token: %s", seed, kind, err.Message)
		}
	}
	if n := s.count(); n > 3 { // one, and one more every ten seconds that this takes
		t.Errorf("the issuer was asked %d times", n)
	}
}

// Keys come and go at the issuer while time is the test's.
func TestKeysRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{keys: []string{"p256"}}
		v := verifiers(t, config(nil), s)
		ask := func(key, alg string) (status int, retry time.Duration, current func(time.Time) bool) {
			got, err := v.Verify(context.Background(), signed(t, head(alg, key), claims(nil), alg, key))
			if err != nil {
				return err.Status, err.Retry, nil
			}
			return 200, 0, got.Current
		}
		expect := func(what string, key, alg string, want int) func(time.Time) bool {
			t.Helper()
			status, _, current := ask(key, alg)
			if status != want {
				t.Fatalf("%s: %d, want %d", what, status, want)
			}
			return current
		}
		first := expect("a known key", "p256", "ES256", 200)
		expect("a new one too soon after the last fetch", "ed", "EdDSA", 401)
		s.set(func(s *source) { s.keys = []string{"p256", "ed"} })
		expect("a new one still too soon", "ed", "EdDSA", 401)
		time.Sleep(refetch)
		expect("a new key", "ed", "EdDSA", 200)
		if s.count() != 2 {
			t.Fatalf("%d fetches, want 2", s.count())
		}
		if first(time.Now()) {
			t.Error("what was verified with another set of keys is not looked at again")
		}
		// Strangers can't have it ask at will.
		for range 500 {
			expect("a stranger", "stranger", "RS256", 401)
		}
		if s.count() != 2 {
			t.Fatalf("%d fetches, want 2", s.count())
		}
		// The issuer is away: what is known stays, what is not can't be judged.
		s.set(func(s *source) { s.err = errors.New("away") })
		time.Sleep(time.Hour)
		expect("a known key while the issuer is away", "ed", "EdDSA", 200)
		synctest.Wait()
		if status, retry, _ := ask("rsa", "RS256"); status != 503 || retry < time.Second || retry > refetch {
			t.Errorf("a new key while the issuer is away: %d, %v", status, retry)
		}
		if p := v.Problems(); len(p) != 1 || !strings.Contains(p[0], "1h0m0s old") || !strings.Contains(p[0], "away") {
			t.Errorf("problems: %q", p)
		}
		// It is back, without the first key.
		s.set(func(s *source) { s.err, s.keys = nil, []string{"ed"} })
		time.Sleep(refetch)
		current := expect("a known key, by which a fetch begins", "ed", "EdDSA", 200)
		synctest.Wait()
		if current(time.Now()) {
			t.Error("a key was taken back, and what it had verified stays")
		}
		expect("a key that was taken back", "p256", "ES256", 401)
		// The same keys again are the same set, so nothing is verified twice for it.
		current = expect("the rest", "ed", "EdDSA", 200)
		time.Sleep(16 * time.Minute)
		if !current(time.Now()) {
			t.Error("before the fetch: not current")
		}
		synctest.Wait()
		if !current(time.Now()) || len(v.Problems()) != 0 {
			t.Error("after the fetch of the same keys: not current")
		}
	})
}

// An issuer that was never there is nobody's fault who calls.
func TestNoKeysYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name string
			s    *source
			says string
		}{
			{"away", &source{err: errors.New("away")}, "away"},
			{"a page", &source{status: 404}, "status 404"},
			{"a redirect", &source{status: 302}, "redirects are not followed"},
			{"no JSON", &source{raw: "<html>"}, "no set of keys"},
			{"no key that can be used", &source{raw: `{"keys":[{"kty":"oct","k":"AAAA"},{"kty":"new"},7]}`}, "no public key"},
			{"too much", &source{raw: strings.Repeat(" ", 300<<10)}, "max_keys_bytes"},
			{"too many", &source{raw: `{"keys":[` + strings.Repeat(`{},`, 200) + `{}]}`}, "allowed are 100"},
			{"slow", &source{hold: make(chan struct{})}, "deadline exceeded"},
		} {
			v := verifiers(t, config(nil), c.s)
			_, err := v.Verify(context.Background(), signed(t, head("ES256", "p256"), claims(nil), "ES256", "p256"))
			if err == nil || err.Status != 503 || err.Retry < time.Second {
				t.Errorf("%s: %v", c.name, err)
			}
			if p := fmt.Sprint(v.Problems()); !strings.Contains(p, c.says) {
				t.Errorf("%s: problems: %s", c.name, p)
			}
			// A caller's own fault is told also then.
			if _, err := v.Verify(context.Background(), "a.b.c"); err == nil || err.Status != 401 {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	})
}

// A reload keeps the keys of issuers that are the same.
func TestReloadKeepsKeys(t *testing.T) {
	s := &source{keys: []string{"p256"}}
	a := verifiers(t, config(nil), s)
	token := signed(t, head("ES256", "p256"), claims(nil), "ES256", "p256")
	if _, err := a.Verify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	again, err := build([]identity.Issuer{config(nil)}, a, nil, nil, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Verify(t.Context(), token); err != nil || s.count() != 1 {
		t.Errorf("%v, %d fetches", err, s.count())
	}
	other, err := build([]identity.Issuer{config(func(c *identity.Issuer) { c.Audiences = []string{"other"} })}, a, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Verify(t.Context(), token); err == nil || s.count() != 2 {
		t.Errorf("%v, %d fetches", err, s.count())
	}
}

// FuzzVerify: whatever the token is, only those that were signed get in.
func FuzzVerify(f *testing.F) {
	s := &source{keys: []string{"p256", "ed"}}
	v := verifiers(f, config(nil), s)
	good := map[string]bool{}
	for _, alg := range []string{"ES256", "EdDSA"} {
		good[signed(f, head(alg, signers[alg]), claims(map[string]any{"exp": 4_000_000_000}), alg, signers[alg])] = true
	}
	for token := range good {
		f.Add(token)
	}
	for seed := range uint64(40) {
		_, token := attack(f, mathrand.New(mathrand.NewPCG(seed, 1)))
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		got, err := v.Verify(t.Context(), token)
		if good[token] != (err == nil) {
			t.Fatalf("%q: %v, %v", token, got, err)
		}
		if err != nil && err.Status != 401 {
			t.Fatalf("%q: %d %s", token, err.Status, err.Message)
		}
	})
}

// FuzzKeys: whatever an issuer's server sends, what is taken of it can verify.
func FuzzKeys(f *testing.F) {
	for _, key := range keys() {
		b, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
		f.Add(b)
	}
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},{"kty":"RSA","n":"AQ","e":"AQAB"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		set, err := parseKeys(body)
		if err != nil {
			return
		}
		for _, alg := range identity.Algorithms {
			if k := set.find(nil, alg); k != nil && !k.IsPublic() {
				t.Fatalf("%s: a key that is none for signatures: %v", alg, k)
			}
		}
	})
}

// What a call costs by its credential: a key, a token that was verified before, and one
// that is verified.
func BenchmarkCredential(b *testing.B) {
	key, hash, err := identity.NewKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	s := &source{keys: []string{"rsa", "p256", "ed"}}
	v := verifiers(b, config(nil), s)
	auth, err := identity.New(identity.Config{
		Keys:    []identity.Key{{Name: "k", Tenant: "t", Hash: hash, Classes: []string{"c"}}},
		Issuers: []identity.Issuer{config(nil)},
		Rules:   []identity.Rule{{Name: "r", From: []string{"test"}, Tenant: "t", Classes: []string{"c"}}},
	}, v)
	if err != nil {
		b.Fatal(err)
	}
	request := func(credential string) *http.Request {
		return &http.Request{Header: http.Header{"Authorization": {"Bearer " + credential}}}
	}
	for _, c := range []struct{ name, credential string }{{"key", key.Reveal()}, {"cached", signed(b, head("RS256", "rsa"), claims(nil), "RS256", "rsa")}} {
		b.Run(c.name, func(b *testing.B) {
			r := request(c.credential)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := auth.Authenticate(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, alg := range []string{"RS256", "ES256", "EdDSA"} {
		b.Run("verified "+alg, func(b *testing.B) {
			token := signed(b, head(alg, signers[alg]), claims(nil), alg, signers[alg])
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(b.Context(), token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
