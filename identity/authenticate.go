package identity

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"headgate/wire"
)

// ClassHeader is the request header by which a caller chooses a class.
const ClassHeader = "Headgate-Class"

const anonymousName = "anonymous"

// Principal is a verified caller. It is shared by all its requests and never
// changes.
type Principal struct {
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
	// Anonymous is the one principal of all callers without a credential.
	Anonymous bool

	flex, priority string // the class each tier stands for
}

// Authenticator finds the principal of a request. It never changes; a new
// configuration is a new Authenticator.
type Authenticator struct {
	byDigest  map[digest]*Principal
	anonymous *Principal // nil: a credential is required
}

// New builds an Authenticator from a valid configuration; an invalid one is
// an error that names its first fault.
func New(c Config) (*Authenticator, error) {
	var first error
	c.Validate(func(path string, value any, allowed string) {
		if first == nil {
			first = fmt.Errorf("%s: value %v: allowed %s", path, value, allowed)
		}
	})
	if first != nil {
		return nil, first
	}
	a := &Authenticator{byDigest: make(map[digest]*Principal, len(c.Keys))}
	for _, k := range c.Keys {
		d, _ := parseHash(k.Hash)
		a.byDigest[d] = principal(Principal{
			Name: k.Name, Tenant: k.Tenant, Classes: k.Classes, Default: k.Default,
			ByHeader: k.Header, ByTier: k.ServiceTier, SLOHeaders: k.SLOHeaders, SLOMin: k.SLOMin,
		}, c.Tiers)
	}
	if n := c.Anonymous; n != nil {
		a.anonymous = principal(Principal{
			Name: anonymousName, Tenant: n.Tenant, Classes: n.Classes, Default: n.Default,
			ByHeader: n.Header, ByTier: n.ServiceTier, SLOHeaders: n.SLOHeaders, SLOMin: n.SLOMin, Anonymous: true,
		}, c.Tiers)
	}
	return a, nil
}

func principal(p Principal, t Tiers) *Principal {
	p.Classes = slices.Clone(p.Classes)
	if p.Default == "" {
		p.Default = p.Classes[0]
	}
	p.flex, p.priority = t.Flex, t.Priority
	return &p
}

// Principals lists every principal there is, the anonymous one included, in
// the order of their names: the bounded set of metric label values.
func (a *Authenticator) Principals() []*Principal {
	all := make([]*Principal, 0, len(a.byDigest)+1)
	for _, p := range a.byDigest {
		all = append(all, p)
	}
	if a.anonymous != nil {
		all = append(all, a.anonymous)
	}
	slices.SortFunc(all, func(x, y *Principal) int { return strings.Compare(x.Name, y.Name) })
	return all
}

// Authenticate returns the principal whose key h carries, as a bearer token or
// as x-api-key. A request with none is the anonymous principal's where there
// is one. The error is a 401 and never repeats what was sent.
func (a *Authenticator) Authenticate(h http.Header) (*Principal, *wire.Error) {
	if a.anonymous != nil && len(a.byDigest) == 0 {
		return a.anonymous, nil
	}
	key, err := credential(h)
	if err != nil {
		return nil, err
	}
	if key == "" {
		if a.anonymous != nil {
			return a.anonymous, nil
		}
		return nil, unauthorized("no api key given: send it as Authorization: Bearer hg_..., or as x-api-key: hg_...")
	}
	// A key that is no key of ours is not looked up, so that what a stranger
	// sends is hashed only to a bounded length.
	if !wellFormed(key) {
		return nil, unauthorized("the api key is malformed: a key is hg_ and 22 to 128 letters and digits")
	}
	p := a.byDigest[sha256.Sum256([]byte(key))]
	if p == nil {
		return nil, unauthorized("the api key is not known here: it may have been mistyped or revoked")
	}
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
