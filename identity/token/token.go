// Package token verifies signed JSON web tokens (RFC 7519) of configured issuers.
//
// # What is believed
//
// Nothing of a token chooses how it is verified but two names that are looked up among
// what is configured or was fetched: its iss, to find the issuer, and its kid, to find
// the key among the issuer's. The algorithm has to be one of the issuer's, has a public
// key in any case (there is no none and no HS256, which would take a public key for a
// secret), and has to be the found key's. Keys, addresses and certificates in a token's
// header (jwk, jku, x5c, x5u) are never looked at, and a header with crit is refused.
//
// A token is read to the letter: three parts of base64url without a stray bit, objects
// in which no name is given twice, names in their own case. Two readers who disagree
// about a token would be a way past one of them.
//
// # Keys
//
// An issuer's keys are fetched when they are first needed, every now and then, and when
// a token names one that is not known, which is how issuers bring a new key into use.
// A stranger can make up such names at will, so that happens once in refetch at most,
// and everybody waits for the same fetch. Keys that were there stay while the issuer
// can't be reached. Without any, and where a new one could not be asked for, nobody
// knows whether the caller is right: that is a 503 with a hint, not a 401.
//
// What is read of an issuer is bounded in size and time, comes from the configured
// addresses only, and a redirect is not followed.
//
// # Alternatives
//
// go-oidc wraps the same library for relying parties. Its set of keys is fetched for
// each unknown kid, by whoever sends one, and read without a bound; its verifier has
// one audience, and its own idea of leeway. What it would save is the discovery, which
// is one GET here.
package token

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json" // names in their own case, and none twice
	"github.com/prometheus/client_golang/prometheus"

	"headgate/identity"
	"headgate/wire"
)

// Metrics of all Verifiers of a process.
type Metrics struct{ fetches *prometheus.CounterVec }

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_issuer_fetches_total", Help: "Fetches of an issuer's keys, by outcome: fetched or failed. While they fail the keys that are known stay in use.",
	}, []string{"issuer", "outcome"})}
	reg.MustRegister(m.fetches)
	return m
}

// Verifiers are the issuers of one configuration. It is an identity.Verifier.
type Verifiers struct {
	byText map[string]*issuer // by what iss is
	order  []*issuer
}

var _ identity.Verifier = (*Verifiers)(nil)

// New returns Verifiers and begins to fetch the keys of new issuers. Those that before
// has with the same configuration keep theirs; before may be nil. The error is a
// certificate authority that can't be read.
func New(all []identity.Issuer, before *Verifiers, m *Metrics, log *slog.Logger) (*Verifiers, error) {
	return build(all, before, m, log, nil)
}

// build is New, with another way to the issuers than the network; nil: there is none.
func build(all []identity.Issuer, before *Verifiers, m *Metrics, log *slog.Logger, way http.RoundTripper) (*Verifiers, error) {
	v := &Verifiers{byText: map[string]*issuer{}}
	for _, c := range all {
		var i *issuer
		if before != nil {
			if old := before.byText[c.Issuer]; old != nil && old.same(&c) {
				i = old
			}
		}
		if i == nil {
			var err error
			if i, err = newIssuer(c, m, log, way); err != nil {
				return nil, err
			}
		}
		v.byText[c.Issuer] = i
		v.order = append(v.order, i)
	}
	for _, i := range v.order {
		i.prepare()
	}
	return v, nil
}

// Problems implements identity.Verifier.
func (v *Verifiers) Problems() (all []string) {
	for _, i := range v.order {
		if text := i.problem(); text != "" {
			all = append(all, text)
		}
	}
	return all
}

// Try fetches each issuer's keys once, for nobody, and returns what went wrong, by the
// issuer's name. The error is a certificate authority that can't be read.
func Try(all []identity.Issuer) (map[string]error, error) {
	failed := map[string]error{}
	for _, c := range all {
		i, err := newIssuer(c, nil, nil, nil)
		if err != nil {
			return nil, err
		}
		if _, err := i.fetch(); err != nil {
			failed[c.Name] = err
		}
		i.client.CloseIdleConnections()
	}
	return failed, nil
}

// Verify implements identity.Verifier.
func (v *Verifiers) Verify(ctx context.Context, token string) (*identity.Verified, *wire.Error) {
	said, ok := payload(token)
	if !ok {
		return nil, refused("the credential is malformed: it is neither an api key, hg_ and 22 to 128 letters and digits, nor a signed token")
	}
	var of struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(said, &of) != nil {
		return nil, refused("the token's claims are malformed")
	}
	i := v.byText[of.Issuer]
	if i == nil {
		return nil, refused("the token's issuer is none of the gateway's")
	}
	return i.verify(ctx, token)
}

// payload returns the middle part of a token whose three parts are base64url to the
// last bit; decoders overlook bits and line breaks that encoders do not write.
func payload(token string) (said []byte, ok bool) {
	for n := 0; ; n++ {
		part, rest, more := strings.Cut(token, ".")
		b, err := strict.DecodeString(part)
		if err != nil || len(b) == 0 || strings.ContainsAny(part, "\r\n") || n > 2 || !more && n < 2 {
			return nil, false
		}
		if n == 1 {
			said = b
		}
		if !more {
			return said, true
		}
		token = rest
	}
}

var strict = base64.RawURLEncoding.Strict()

// refused is a token that is the caller's fault.
func refused(format string, args ...any) *wire.Error {
	return wire.NewError(wire.CodeUnauthorized, format, args...)
}

// header is a token's, of which only what decides something is read.
type header struct {
	Algorithm string          `json:"alg"`
	Key       *string         `json:"kid"`
	Type      string          `json:"typ"`
	Critical  json.RawMessage `json:"crit"`
}

// verify checks a token of the issuer's: form, signature, then claims.
func (i *issuer) verify(ctx context.Context, token string) (*identity.Verified, *wire.Error) {
	if len(token) > i.cfg.MaxTokenBytes {
		return nil, refused("the token is longer than the allowed %d bytes", i.cfg.MaxTokenBytes)
	}
	first, _, _ := strings.Cut(token, ".")
	raw, _ := strict.DecodeString(first) // payload has decoded it
	var h header
	switch kind := ""; {
	case json.Unmarshal(raw, &h) != nil:
		return nil, refused("the token's header is malformed")
	case h.Critical != nil:
		return nil, refused("the token's header asks by crit for what is not understood here")
	case !slices.Contains(i.algorithms, jose.SignatureAlgorithm(h.Algorithm)):
		return nil, refused("the token's algorithm is not allowed: allowed is %s", strings.Join(i.names, ", "))
	default:
		// A token that was made for something else is none for a call (RFC 8725, 3.11).
		kind = strings.TrimPrefix(strings.ToLower(h.Type), "application/")
		if kind != "" && kind != "jwt" && kind != "at+jwt" {
			return nil, refused("the token's typ is not one of a token for access: allowed is JWT or at+jwt, or none")
		}
	}
	s, err := jose.ParseSignedCompact(token, i.algorithms)
	if err != nil {
		return nil, refused("the token is malformed")
	}
	set, key, failed := i.key(ctx, h.Key, h.Algorithm)
	if failed != nil {
		return nil, failed
	}
	if key == nil {
		return nil, refused("the token's key is none of its issuer's")
	}
	said, err := s.Verify(key.Key)
	if err != nil {
		return nil, refused("the token's signature is wrong")
	}
	return i.believe(said, set, time.Now())
}

// registered are the claims that are the same of every issuer (RFC 7519, 4.1), and where
// issuers say the application.
type registered struct {
	Issuer        string          `json:"iss"`
	Subject       string          `json:"sub"`
	Audience      json.RawMessage `json:"aud"`
	Expires       *float64        `json:"exp"`
	NotBefore     *float64        `json:"nbf"`
	Issued        *float64        `json:"iat"`
	Bound         json.RawMessage `json:"cnf"`
	Authorized    string          `json:"azp"`
	Client        string          `json:"client_id"`
	ClientOfOkta  string          `json:"cid"`
	ClientOfEntra string          `json:"appid"`
}

// believe checks the claims of a token whose signature is right.
func (i *issuer) believe(said []byte, set *keySet, now time.Time) (*identity.Verified, *wire.Error) {
	var c registered
	all := map[string]any{}
	d := json.NewDecoder(strings.NewReader(string(said)))
	d.SetNumberType(json.UnmarshalIntOrFloat)
	if json.Unmarshal(said, &c) != nil || d.Decode(&all) != nil {
		return nil, refused("the token's claims are malformed")
	}
	audiences, ok := list(c.Audience)
	late := float64(i.cfg.Leeway) / float64(time.Second)
	at := float64(now.UnixNano()) / float64(time.Second)
	switch {
	case c.Issuer != i.cfg.Issuer:
		return nil, refused("the token's issuer is none of the gateway's")
	case !ok || !slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(i.cfg.Audiences, a) }):
		return nil, refused("the token's aud is none of the gateway's names at the issuer")
	case c.Expires == nil || *c.Expires > mostTime:
		return nil, refused("the token has no exp: one that never ends is not taken")
	case at >= *c.Expires+late:
		return nil, refused("the token has expired")
	case c.NotBefore != nil && at < *c.NotBefore-late:
		return nil, refused("the token is not valid yet: its nbf is to come")
	case c.Issued != nil && at < *c.Issued-late:
		return nil, refused("the token is not valid yet: its iat is to come")
	case c.Subject == "":
		return nil, refused("the token has no sub")
	case c.Bound != nil:
		return nil, refused("the token is bound to a key of its holder's by cnf, which is not checked here")
	}
	v := &identity.Verified{
		Claims: identity.Claims{From: i.cfg.Name, Subjects: []string{c.Subject}, All: all},
		Until:  time.Unix(0, int64((*c.Expires+late)*float64(time.Second))),
		Current: func(now time.Time) bool {
			i.refresh(now)
			return i.keys.Load() == set
		},
	}
	for _, app := range []string{c.Authorized, c.Client, c.ClientOfOkta, c.ClientOfEntra} {
		if app != "" {
			v.Claims.Application = app
			break
		}
	}
	return v, nil
}

// mostTime is in the year 2191, in seconds: nanoseconds of later ones do not fit.
const mostTime = 7e9

// list reads a text or a list of texts.
func list(raw json.RawMessage) (all []string, ok bool) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, true
	}
	return all, json.Unmarshal(raw, &all) == nil
}

// unavailable is that nobody can tell now whether a token is good.
func (i *issuer) unavailable(retry time.Duration) *wire.Error {
	return wire.NewError(wire.CodeIdentityUnavailable, "the keys of issuer %s can't be fetched, so the token can't be checked", i.cfg.Name).WithRetry(max(retry, time.Second))
}
