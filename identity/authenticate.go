package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"headgate/wire"
)

// ClassHeader is the request header by which a caller chooses a class.
const ClassHeader = "Headgate-Class"

const anonymousName = "anonymous"

// Principal is a verified caller. It is shared by all its requests and never
// changes.
type Principal struct {
	// Name of a key, or of the rule that admits it with its subject behind a slash: it is
	// for logs and the journal, and no label of a metric.
	Name    string
	Tenant  string
	Classes []string // allowed, by class name
	Default string   // one of Classes
	// ByHeader and ByTier: requests may choose by Headgate-Class, by
	// service_tier.
	ByHeader, ByTier bool
	// SLOHeaders: requests may have limits of their own, no tighter than SLOMin.
	SLOHeaders bool
	SLOMin     SLOMin
	// Models are those that it may use.
	Models Models
	// ByCertificate: the connection's certificate was the credential.
	ByCertificate bool
	// Anonymous is the one principal of all callers without a credential.
	Anonymous bool

	flex, priority string // the class each tier stands for
}

// Verified is what a token that is good says, and for how long that may be believed.
type Verified struct {
	Claims Claims
	Until  time.Time
	// Current tells whether the key that it was verified with is still its issuer's.
	Current func(now time.Time) bool
}

// Verifier verifies tokens; package token has the one that there is.
type Verifier interface {
	// Verify tells what a token says. The error is a 401 if that is the caller's fault,
	// a 503 if it could not be found out.
	Verify(ctx context.Context, token string) (*Verified, *wire.Error)
	// Problems says in words what keeps tokens from being verified.
	Problems() []string
}

// Authenticator finds the principal of a request. Its configuration never changes; a
// new one is a new Authenticator.
type Authenticator struct {
	byDigest  map[digest]entry
	byName    map[string]entry // of keys, rules and the anonymous one
	anonymous *Principal       // nil: a credential is required
	ignores   bool             // every credential: there is nothing that it could be

	verifier     Verifier // nil: no token is taken
	certificates *Certificates
	rules        []rule
	tenants      tenants
	// Tokens and certificates are not in one cache: a certificate is public, and who
	// sent its bytes as a token would be found in it.
	tokens, certs cache
}

// entry is a key.
type entry struct {
	principal *Principal
	until     time.Time // zero: for ever
}

func (e entry) over() bool { return !e.until.IsZero() && !time.Now().Before(e.until) }

// New builds an Authenticator from a valid configuration; an invalid one is
// an error that names its first fault. v verifies the tokens of the configuration's
// issuers; nil where there are none.
func New(c Config, v Verifier) (*Authenticator, error) {
	var first error
	c.Validate(func(path string, value any, allowed string) {
		if first == nil {
			first = fmt.Errorf("%s: value %v: allowed %s", path, value, allowed)
		}
	})
	if first != nil {
		return nil, first
	}
	a := &Authenticator{byDigest: make(map[digest]entry, len(c.Keys)), byName: map[string]entry{}, certificates: c.Certificates}
	if len(c.Issuers) > 0 {
		a.verifier = v
	}
	for i := range c.Keys {
		k := &c.Keys[i]
		p := principal(Principal{
			Name: k.Name, Tenant: k.Tenant, Classes: k.Classes, Default: k.Default,
			ByHeader: k.Header, ByTier: k.ServiceTier, SLOHeaders: k.SLOHeaders, SLOMin: k.SLOMin, Models: k.Models,
		}, c.Tiers)
		d, _ := parseHash(k.Hash)
		a.byDigest[d] = entry{p, until(k.Expires)}
		a.byName[p.Name] = a.byDigest[d]
		if k.Old != nil {
			// The old key ends with the new one, if that is sooner.
			d, _ := parseHash(k.Old.Hash)
			end := until(k.Old.Until)
			if e := until(k.Expires); !e.IsZero() && e.Before(end) {
				end = e
			}
			a.byDigest[d] = entry{p, end}
		}
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		p := principal(Principal{
			Name: r.Name, Tenant: r.Tenant, Classes: r.Classes, Default: r.Default,
			ByHeader: r.Header, ByTier: r.ServiceTier, SLOHeaders: r.SLOHeaders, SLOMin: r.SLOMin, Models: r.Models,
		}, c.Tiers)
		a.byName[p.Name] = entry{principal: p}
		a.rules = append(a.rules, rule{r, p})
	}
	if n := c.Anonymous; n != nil {
		a.anonymous = principal(Principal{
			Name: anonymousName, Tenant: n.Tenant, Classes: n.Classes, Default: n.Default,
			ByHeader: n.Header, ByTier: n.ServiceTier, SLOHeaders: n.SLOHeaders, SLOMin: n.SLOMin, Models: n.Models, Anonymous: true,
		}, c.Tiers)
		a.byName[anonymousName] = entry{principal: a.anonymous}
	}
	a.ignores = a.anonymous != nil && len(c.Keys) == 0 && c.KeysFile == "" && len(c.Issuers) == 0 && c.Certificates == nil
	return a, nil
}

// until is a moment of a valid configuration; zero: none is given.
func until(text string) time.Time {
	t, _ := time.Parse(time.RFC3339, text)
	return t
}

func principal(p Principal, t Tiers) *Principal {
	p.Classes = slices.Clone(p.Classes)
	if p.Default == "" {
		p.Default = p.Classes[0]
	}
	p.flex, p.priority = t.Flex, t.Priority
	return &p
}

// Principals lists every principal that the configuration names, the anonymous one
// included, in the order of their names: the bounded set of metric label values. Those
// that a rule admits are all one.
func (a *Authenticator) Principals() []*Principal {
	all := make([]*Principal, 0, len(a.byName))
	for _, name := range slices.Sorted(maps.Keys(a.byName)) {
		all = append(all, a.byName[name].principal)
	}
	return all
}

// MayUse tells whether a principal may still use a model, by its name: what it began
// may outlive its request. known is false for one that is configured no more, or not
// yet, and for one whose key has expired.
func (a *Authenticator) MayUse(name, model string) (may, known bool) {
	configured, _, _ := strings.Cut(name, "/") // a rule's stands before a subject
	e, known := a.byName[configured]
	if !known || e.over() {
		return false, false
	}
	return e.principal.MayUse(model), true
}

// Problems says in words what keeps callers from being known.
func (a *Authenticator) Problems() []string {
	if a.verifier == nil {
		return nil
	}
	return a.verifier.Problems()
}

// Authenticate returns the principal whose key or token r carries, as a bearer token or
// as x-api-key, or whose certificate it came with. A request with none is the anonymous
// principal's where there is one. The error is a 401, a 403 if no rule admits the
// caller, or a 503 if it could not be found out who calls, and never repeats what was
// sent.
func (a *Authenticator) Authenticate(r *http.Request) (*Principal, *wire.Error) {
	if a.ignores {
		return a.anonymous, nil
	}
	text, err := credential(r.Header)
	if err != nil {
		return nil, err
	}
	var p *Principal
	if text != "" {
		if p, err = a.find(r.Context(), text); err != nil {
			return nil, err
		}
	}
	c, err := a.certified(r.TLS)
	switch {
	case err != nil && p == nil:
		return nil, err
	case p == nil:
		p = c
	case c != nil:
		// Which of the two it is to be is not ours to guess: a proxy that has a
		// certificate of its own would lend it to everybody behind it.
		return nil, unauthorized("two credentials in one request: the connection's certificate is one principal's, and the api key or token another's; send one")
	}
	switch {
	case p != nil:
		return p, nil
	case a.anonymous != nil:
		return a.anonymous, nil
	}
	return nil, unauthorized("no api key given: send it as Authorization: Bearer hg_..., or as x-api-key: hg_...")
}

// find returns the principal of a key or a token.
func (a *Authenticator) find(ctx context.Context, text string) (*Principal, *wire.Error) {
	if a.verifier != nil && !strings.HasPrefix(text, keyPrefix) {
		return a.verify(ctx, text)
	}
	// A key that is no key of ours is not looked up, so that what a stranger
	// sends is hashed only to a bounded length.
	if !wellFormed(text) {
		return nil, unauthorized("the api key is malformed: a key is hg_ and 22 to 128 letters and digits")
	}
	e, ok := a.byDigest[sha256.Sum256([]byte(text))]
	switch {
	case !ok:
		return nil, unauthorized("the api key is not known here: it may have been mistyped or revoked")
	case e.over():
		return nil, unauthorized("the api key has expired: ask for a new one")
	}
	return e.principal, nil
}

// mostToken bounds what is hashed of a token, in bytes: no issuer's limit is above it.
const mostToken = 64 << 10

// verify returns the principal of a token.
func (a *Authenticator) verify(ctx context.Context, token string) (*Principal, *wire.Error) {
	if len(token) > mostToken {
		return nil, unauthorized(fmt.Sprintf("the token is longer than the allowed %d bytes", mostToken))
	}
	// The usual ones are hashed without a copy on the heap.
	var short [2048]byte
	d := digest(sha256.Sum256(append(short[:0], token...)))
	if p := a.tokens.get(d, time.Now()); p != nil {
		return p, nil
	}
	v, err := a.verifier.Verify(ctx, token)
	if err != nil {
		return nil, err
	}
	p, err := a.admit(&v.Claims)
	if err != nil {
		return nil, err
	}
	a.tokens.put(d, verified{p, v.Until, v.Current})
	return p, nil
}

// certified returns the principal of a connection's certificate; nil: it has none that
// counts. Only what the listener has verified is looked at.
func (a *Authenticator) certified(s *tls.ConnectionState) (*Principal, *wire.Error) {
	if a.certificates == nil || s == nil || len(s.VerifiedChains) == 0 || len(s.VerifiedChains[0]) == 0 {
		return nil, nil
	}
	leaf := s.VerifiedChains[0][0]
	now := time.Now()
	if now.After(leaf.NotAfter) {
		return nil, unauthorized("the connection's certificate has expired since it was opened: open another one")
	}
	d := digest(sha256.Sum256(leaf.Raw))
	if p := a.certs.get(d, now); p != nil {
		return p, nil
	}
	c := Claims{From: FromCertificate}
	for _, kind := range a.certificates.Names {
		switch kind {
		case NameURI:
			for _, u := range leaf.URIs {
				c.Subjects = append(c.Subjects, u.String())
			}
		case NameDNS:
			c.Subjects = append(c.Subjects, leaf.DNSNames...)
		case NameCN:
			if cn := leaf.Subject.CommonName; cn != "" {
				c.Subjects = append(c.Subjects, cn)
			}
		}
	}
	p, err := a.admit(&c)
	if err != nil {
		return nil, err
	}
	p.ByCertificate = true
	a.certs.put(d, verified{principal: p, until: leaf.NotAfter})
	return p, nil
}

// credential returns the one credential in h, "" if there is none.
//
// The same key in both headers is fine, some SDKs send it so. Two different
// ones are refused: a proxy in front may have checked the other.
func credential(h http.Header) (string, *wire.Error) {
	key := ""
	for _, v := range h.Values("Authorization") {
		scheme, token, _ := strings.Cut(strings.TrimSpace(v), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", unauthorized("the Authorization header has another scheme: allowed is Authorization: Bearer hg_...")
		}
		token = strings.TrimSpace(token)
		if token == "" {
			return "", unauthorized("the Authorization header holds no key: allowed is Authorization: Bearer hg_...")
		}
		if key != "" && token != key {
			return "", ambiguous()
		}
		key = token
	}
	for _, v := range h.Values("X-Api-Key") {
		token := strings.TrimSpace(v)
		if token == "" {
			return "", unauthorized("the x-api-key header holds no key: allowed is x-api-key: hg_...")
		}
		if key != "" && token != key {
			return "", ambiguous()
		}
		key = token
	}
	return key, nil
}

func ambiguous() *wire.Error {
	return unauthorized("two different api keys in one request: send one, as Authorization: Bearer or as x-api-key")
}

// unauthorized says what is wrong with a credential; there is one code for all,
// so that programs need not tell a mistyped key from a revoked one.
func unauthorized(message string) *wire.Error {
	return wire.NewError(wire.CodeUnauthorized, "%s", message)
}
