package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"headgate/wire"
)

// Issuer is somebody whose tokens are believed.
type Issuer struct {
	// Name of the issuer, by which rules, logs and metrics call it; unique.
	Name string `yaml:"name"`
	// Issuer is what the iss of its tokens is, to the letter.
	Issuer string `yaml:"issuer"`
	// Audiences are the names of this gateway at the issuer: a token is taken if its aud has one of them.
	Audiences []string `yaml:"audiences"`
	// JWKSURL is where the issuer's public keys are, https, or http on this machine; absent: where its /.well-known/openid-configuration says.
	JWKSURL string `yaml:"jwks_url,omitempty"`
	// CA is a file with the PEM certificates of the authorities that the issuer's server is checked by; absent: the system's.
	CA string `yaml:"ca,omitempty"`
	// Algorithms that its tokens may be signed by, of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 and EdDSA; absent: any of these.
	Algorithms []string `yaml:"algorithms,omitempty"`
	// Leeway is by how much the issuer's clock may differ from this one, up to 5m.
	Leeway time.Duration `yaml:"leeway"`
	// Refresh is how often its keys are fetched anew. A token with a key that is not known has them fetched at once, at most every 10 seconds.
	Refresh time.Duration `yaml:"refresh"`
	// FetchTimeout is how long fetching them may take.
	FetchTimeout time.Duration `yaml:"fetch_timeout"`
	// MaxTokenBytes is the longest token.
	MaxTokenBytes int `yaml:"max_token_bytes"`
	// MaxKeysBytes is the most that is read of the issuer's server.
	MaxKeysBytes int `yaml:"max_keys_bytes"`
}

// SetDefaults suits issuers on the other side of the internet.
func (i *Issuer) SetDefaults() {
	i.Leeway, i.Refresh, i.FetchTimeout, i.MaxTokenBytes, i.MaxKeysBytes = 30*time.Second, 15*time.Minute, 5*time.Second, 8<<10, 256<<10
}

// Algorithms are all that tokens may be signed by: those with a public key.
var Algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// Certificates says which names of a client's certificate are its subjects.
type Certificates struct {
	// Names are the kinds of names that count: uri (a SPIFFE id is one), dns, and cn, the subject's common name, for authorities that vouch for it.
	Names []string `yaml:"names"`
}

// The kinds of Certificates.Names.
const (
	NameURI = "uri"
	NameDNS = "dns"
	NameCN  = "cn"
)

// FromCertificate is what rules call certificates in the place of an issuer.
const FromCertificate = "certificate"

// Rule says what callers may do whose token or certificate fits it. What it does not
// say fits everybody.
type Rule struct {
	// Name of the rule; unique, also among keys. With the subject behind it, it is the principal's.
	Name string `yaml:"name"`
	// From are the issuers whose tokens the rule is for, by name, or certificate.
	From []string `yaml:"from"`
	// Subjects are the sub of tokens, or names of certificates, and with a * at the end beginnings of them; absent: all.
	Subjects []string `yaml:"subjects,omitempty"`
	// Applications are the azp of tokens, or else client_id, cid or appid, in the same form; absent: all.
	Applications []string `yaml:"applications,omitempty"`
	// Claims that a token must have, all of them.
	Claims []Claim `yaml:"claims,omitempty"`
	// Tenant that is billed, and with which the principal shares fairly. One {name} in it stands for that claim's value, such as {org_id}: whoever writes the claim then says whose files and batches the caller sees.
	Tenant string `yaml:"tenant"`
	// Classes the callers may use.
	Classes []string `yaml:"classes"`
	// Default is the class of a request that does not choose; absent: the first of the rule's classes.
	Default string `yaml:"default,omitempty"`
	// Header lets requests choose a class by a Headgate-Class header.
	Header bool `yaml:"header"`
	// ServiceTier lets requests choose a class by OpenAI's service_tier.
	ServiceTier bool `yaml:"service_tier"`
	// SLOHeaders lets requests give limits of their own by x-slo-ttft-ms and x-slo-tpot-ms, in the place of their class's objective. Without it these headers are ignored, and the answer's Headgate-Objective says so.
	SLOHeaders bool `yaml:"slo_headers"`
	// SLOMin is how tight such limits may be; what asks for less time is refused.
	SLOMin SLOMin `yaml:"slo_min,omitempty"`
	// Models are those that the callers may use; absent: all.
	Models Models `yaml:"models,omitempty"`
}

// Claim is what a token must say.
type Claim struct {
	// Name of the claim, such as groups or scope, or with dots the way to it, such as realm_access.roles.
	Name string `yaml:"name"`
	// Any are the values of which it must have one, and with a * at the end beginnings of them. The claim is a text, a number, true or false, or a list of those; the words of scope and scp are a list.
	Any []string `yaml:"any"`
}

// Bounds of what may be configured.
const (
	MaxIssuers = 32
	MaxRules   = 256
	mostList   = 256
)

// MaxTenants bounds the tenants that claims may name while one configuration is in
// force: each keeps some memory for as long as the process runs.
const MaxTenants = 10_000

func (c *Config) validateRules(bad func(path string, value any, allowed string)) {
	if len(c.Issuers) > MaxIssuers {
		bad("issuers", len(c.Issuers), fmt.Sprintf("at most %d issuers", MaxIssuers))
	}
	var from []string
	names, texts := map[string]bool{}, map[string]bool{}
	for i := range c.Issuers {
		s, at := &c.Issuers[i], fmt.Sprintf("issuers[%d]", i)
		switch {
		case !ValidName(s.Name):
			bad(at+".name", s.Name, NameRule)
		case names[s.Name] || s.Name == FromCertificate:
			bad(at+".name", s.Name, "a name of its own, and not certificate")
		}
		if names[s.Name] = true; texts[s.Issuer] {
			bad(at+".issuer", s.Issuer, "an issuer of its own; another of the list has this one")
		}
		texts[s.Issuer] = true
		s.validate(at, bad)
		from = append(from, s.Name)
	}
	if c.Certificates != nil {
		from = append(from, FromCertificate)
		kinds := c.Certificates.Names
		if len(kinds) == 0 {
			bad("certificates.names", "nothing", "uri, dns, cn: at least one of them")
		}
		for i, k := range kinds {
			if k != NameURI && k != NameDNS && k != NameCN || slices.Index(kinds, k) < i {
				bad(fmt.Sprintf("certificates.names[%d]", i), k, "uri, dns or cn, each once")
			}
		}
	}
	if len(from) > 0 && len(c.Rules) == 0 {
		path := "issuers"
		if len(c.Issuers) == 0 {
			path = "certificates"
		}
		bad(path, strings.Join(from, ", "), "nothing without rules: there is none that admits somebody")
	}
	if len(c.Rules) > MaxRules {
		bad("rules", len(c.Rules), fmt.Sprintf("at most %d rules", MaxRules))
	}
	taken := map[string]bool{anonymousName: true}
	for _, k := range c.Keys {
		taken[k.Name] = true
	}
	for i := range c.Rules {
		r, at := &c.Rules[i], fmt.Sprintf("rules[%d]", i)
		switch {
		case !ValidName(r.Name):
			bad(at+".name", r.Name, NameRule)
		case taken[r.Name]:
			bad(at+".name", r.Name, "a name of its own; a key or another rule has this one")
		}
		taken[r.Name] = true
		r.validate(at, from, bad)
	}
}

func (i *Issuer) validate(at string, bad func(path string, value any, allowed string)) {
	switch {
	case i.Issuer == "":
		bad(at+".issuer", "nothing", "what iss is in its tokens")
	case i.JWKSURL == "" && !SafeURL(i.Issuer):
		bad(at+".issuer", i.Issuer, safeURL+", or anything with jwks_url")
	}
	if i.JWKSURL != "" && !SafeURL(i.JWKSURL) {
		bad(at+".jwks_url", Redacted, safeURL)
	}
	texts(at+".audiences", i.Audiences, false, bad)
	if len(i.Audiences) == 0 {
		bad(at+".audiences", "nothing", "at least one: a token for somebody else is none for this gateway")
	}
	for k, a := range i.Algorithms {
		if !slices.Contains(Algorithms, a) {
			bad(fmt.Sprintf("%s.algorithms[%d]", at, k), a, strings.Join(Algorithms, ", "))
		}
	}
	for _, d := range []struct {
		path           string
		d, least, most time.Duration
	}{
		{"leeway", i.Leeway, 0, 5 * time.Minute}, {"refresh", i.Refresh, time.Minute, 24 * time.Hour}, {"fetch_timeout", i.FetchTimeout, 100 * time.Millisecond, time.Minute},
	} {
		if d.d < d.least || d.d > d.most {
			bad(at+"."+d.path, d.d, fmt.Sprintf("%v to %v", d.least, d.most))
		}
	}
	for _, n := range []struct {
		path        string
		n           int
		least, most int
	}{{"max_token_bytes", i.MaxTokenBytes, 512, 64 << 10}, {"max_keys_bytes", i.MaxKeysBytes, 1 << 10, 4 << 20}} {
		if n.n < n.least || n.n > n.most {
			bad(at+"."+n.path, n.n, fmt.Sprintf("%d to %d", n.least, n.most))
		}
	}
}

const safeURL = "an https URL without user, query and fragment, or an http one of this machine"

// SafeURL tells whether keys may be fetched from an address: what is read there decides
// who is let in, so nobody on the way may change it.
func SafeURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && Loopback(u.Hostname())
}

// Loopback tells whether a host is this machine, as nobody else reaches it.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// texts checks a list of texts, which may be patterns.
func texts(path string, list []string, patterns bool, bad func(path string, value any, allowed string)) {
	if len(list) > mostList {
		bad(path, len(list), fmt.Sprintf("at most %d", mostList))
	}
	for i, text := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case text == "" || len(text) > mostName:
			bad(at, text, fmt.Sprintf("a text of 1 to %d bytes", mostName))
		case patterns && !pattern(text):
			bad(at, text, "a text without *, or with one at its end")
		}
	}
}

func (r *Rule) validate(at string, from []string, bad func(path string, value any, allowed string)) {
	if len(r.From) == 0 {
		bad(at+".from", "nothing", "at least one issuer, or certificate")
	}
	for i, f := range r.From {
		if !slices.Contains(from, f) {
			bad(fmt.Sprintf("%s.from[%d]", at, i), f, "an issuer's name, or certificate where certificates is given")
		}
	}
	texts(at+".subjects", r.Subjects, true, bad)
	texts(at+".applications", r.Applications, true, bad)
	for i, c := range r.Claims {
		path := fmt.Sprintf("%s.claims[%d]", at, i)
		if c.Name == "" || len(c.Name) > mostName {
			bad(path+".name", c.Name, fmt.Sprintf("a text of 1 to %d bytes", mostName))
		}
		texts(path+".any", c.Any, true, bad)
		if len(c.Any) == 0 {
			bad(path+".any", "nothing", "at least one value")
		}
	}
	tenant := r.Tenant
	if before, _, after, ok := placeholder(tenant); ok {
		tenant = before + "x" + after // what it may become is checked then
	}
	rights{tenant, r.Classes, r.Default, r.Models}.validate(at, func(path string, value any, allowed string) {
		if path == at+".tenant" {
			value, allowed = r.Tenant, allowed+", and one {claim} in it"
		}
		bad(path, value, allowed)
	})
	r.SLOMin.validate(at, r.SLOHeaders, bad)
}

// placeholder finds the one {claim} of a tenant.
func placeholder(tenant string) (before, claim, after string, ok bool) {
	before, rest, open := strings.Cut(tenant, "{")
	claim, after, closed := strings.Cut(rest, "}")
	return before, claim, after, open && closed && claim != ""
}

// Claims are what a verified token or certificate says of its caller.
type Claims struct {
	From        string // an issuer's name, or FromCertificate
	Subjects    []string
	Application string
	All         map[string]any // a token's claims as JSON has them, with whole numbers as int64
}

// values returns the values of a claim as texts. A name with dots is looked for as it
// stands first, since some issuers' names are URLs.
func (c *Claims) values(name string) []string {
	v, whole := c.All[name]
	for at, rest, more := c.All, name, !whole; more; {
		var key string
		key, rest, more = strings.Cut(rest, ".")
		v = at[key]
		if at, _ = v.(map[string]any); at == nil && more {
			return nil
		}
	}
	if list, isList := v.([]any); isList {
		var all []string
		for _, e := range list {
			if text, ok := scalar(e); ok {
				all = append(all, text)
			}
		}
		return all
	}
	text, ok := scalar(v)
	switch {
	case !ok:
		return nil
	case name == "scope" || name == "scp":
		return strings.Fields(text)
	}
	return []string{text}
}

func scalar(v any) (string, bool) {
	switch x := v.(type) {
	case string:
		return x, true
	case int64:
		return strconv.FormatInt(x, 10), true
	case bool:
		return strconv.FormatBool(x), true
	}
	return "", false
}

// fits tells whether the rule is for a caller, and by which of its subjects.
func (r *Rule) fits(c *Claims) (subject string, ok bool) {
	if !slices.Contains(r.From, c.From) || len(r.Applications) > 0 && !Fits(r.Applications, c.Application) {
		return "", false
	}
	for i := range r.Claims {
		if !slices.ContainsFunc(c.values(r.Claims[i].Name), func(v string) bool { return Fits(r.Claims[i].Any, v) }) {
			return "", false
		}
	}
	for _, s := range c.Subjects {
		if len(r.Subjects) == 0 || Fits(r.Subjects, s) {
			return s, true
		}
	}
	return "", false
}

// rule is a Rule with what is made of it once.
type rule struct {
	*Rule
	principal *Principal // of all that it admits, but for name and tenant
}

// admit returns the principal of a verified caller.
func (a *Authenticator) admit(c *Claims) (*Principal, *wire.Error) {
	for i := range a.rules {
		r := &a.rules[i]
		subject, ok := r.fits(c)
		if !ok {
			continue
		}
		p := *r.principal
		p.Name = r.Name + "/" + plain(subject)
		before, claim, after, open := placeholder(r.Tenant)
		if !open {
			return &p, nil
		}
		values := c.values(claim)
		if c.From == FromCertificate && claim == "sub" {
			values = []string{subject}
		}
		if len(values) != 1 || !ValidName(before+values[0]+after) {
			return nil, wire.NewError(wire.CodeAccessDenied, "claim %s names no tenant for rule %s: allowed is one value that makes %s a name of %s", claim, r.Name, r.Tenant, NameRule)
		}
		p.Tenant = before + values[0] + after
		if !a.tenants.take(p.Tenant) {
			return nil, wire.NewError(wire.CodeAccessDenied, "tenant %s is new, and claims have named the most tenants that there may be, %d", p.Tenant, MaxTenants)
		}
		return &p, nil
	}
	return nil, wire.NewError(wire.CodeAccessDenied, "the credential is good, and none of the gateway's rules admits its subject: an operator adds one under rules")
}

// plain is a subject that can stand in a log and a header: one that could not, or is
// long, is told by its hash.
func plain(subject string) string {
	ok := len(subject) <= 128
	for i := range len(subject) {
		ok = ok && subject[i] > ' ' && subject[i] < 0x7f
	}
	if ok {
		return subject
	}
	d := sha256.Sum256([]byte(subject))
	return hashPrefix + hex.EncodeToString(d[:12])
}
