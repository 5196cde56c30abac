package identity

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config says who may call. With no keys, no rules and no anonymous principal, nobody.
type Config struct {
	// Keys are the callers' API keys.
	Keys []Key `yaml:"keys,omitempty"`
	// KeysFile is a file with further keys, as headgate key create writes it. It is read with the configuration and whenever it changes; one with a problem is refused whole. Absent: the keys are all here.
	KeysFile string `yaml:"keys_file,omitempty"`
	// Anonymous admits callers without a credential, all together as one principal that shares one queue bound; absent: they get 401. With no keys, issuers and certificates configured every credential is ignored, so that SDKs that insist on sending one work.
	Anonymous *Anonymous `yaml:"anonymous,omitempty"`
	// Issuers are whose tokens (JWT) are taken as credentials, where a rule admits their subject.
	Issuers []Issuer `yaml:"issuers,omitempty"`
	// Certificates has the names in clients' certificates taken as credentials, where a rule admits one. Absent: a certificate says who may connect and not who calls.
	Certificates *Certificates `yaml:"certificates,omitempty"`
	// Rules say what callers with a token or a certificate may do. The first that fits decides; a caller that none fits is refused with 403.
	Rules []Rule `yaml:"rules,omitempty"`
	// Tiers says which class an OpenAI service_tier stands for.
	Tiers Tiers `yaml:"service_tiers,omitempty"`
}

// Key is one API key.
type Key struct {
	// Name of the principal in logs, journal and metrics; unique.
	Name string `yaml:"name"`
	// Tenant that is billed, and with which the principal shares fairly.
	Tenant string `yaml:"tenant"`
	// Hash is the SHA-256 of a key, as printed when it was made. The key itself is nowhere stored.
	Hash string `yaml:"hash" show:"redacted"`
	// Classes the key may use.
	Classes []string `yaml:"classes"`
	// Default is the class of a request that does not choose; absent: the first of the key's classes.
	Default string `yaml:"default,omitempty"`
	// Header lets requests choose a class by a Headgate-Class header.
	Header bool `yaml:"header"`
	// ServiceTier lets requests choose a class by OpenAI's service_tier.
	ServiceTier bool `yaml:"service_tier"`
	// SLOHeaders lets requests give limits of their own by x-slo-ttft-ms and x-slo-tpot-ms, in the place of their class's objective. Without it these headers are ignored, and the answer's Headgate-Objective says so.
	SLOHeaders bool `yaml:"slo_headers"`
	// SLOMin is how tight such limits may be; what asks for less time is refused.
	SLOMin SLOMin `yaml:"slo_min,omitempty"`
	// Models are those that the key may use; absent: all.
	Models Models `yaml:"models,omitempty"`
	// Expires is when the key ends, such as 2027-01-31T00:00:00Z; absent: never.
	Expires string `yaml:"expires,omitempty"`
	// Old is the key that this one replaces, for as long as both are taken.
	Old *OldKey `yaml:"old,omitempty"`
}

// OldKey is a key that was replaced by another.
type OldKey struct {
	// Hash is the SHA-256 of the old key.
	Hash string `yaml:"hash" show:"redacted"`
	// Until is when the old key ends, such as 2027-01-31T00:00:00Z.
	Until string `yaml:"until"`
}

// Anonymous is the one principal of all callers without a credential.
type Anonymous struct {
	// Tenant that is billed, and with which the principal shares fairly.
	Tenant string `yaml:"tenant"`
	// Classes that callers without a key may use.
	Classes []string `yaml:"classes"`
	// Default is the class of a request that does not choose; absent: the first of the classes.
	Default string `yaml:"default,omitempty"`
	// Header lets requests choose a class by a Headgate-Class header.
	Header bool `yaml:"header"`
	// ServiceTier lets requests choose a class by OpenAI's service_tier.
	ServiceTier bool `yaml:"service_tier"`
	// SLOHeaders lets requests give limits of their own by x-slo-ttft-ms and x-slo-tpot-ms, in the place of their class's objective. Without it these headers are ignored, and the answer's Headgate-Objective says so.
	SLOHeaders bool `yaml:"slo_headers"`
	// SLOMin is how tight such limits may be; what asks for less time is refused.
	SLOMin SLOMin `yaml:"slo_min,omitempty"`
	// Models are those that callers without a key may use; absent: all.
	Models Models `yaml:"models,omitempty"`
}

// SetDefaults gives the tenant a name.
func (a *Anonymous) SetDefaults() { a.Tenant = "anonymous" }

// Tiers maps OpenAI's service tiers to class names; without one a tier is
// ignored.
type Tiers struct {
	// Flex is the class for service_tier flex; a key that may not use it gets its own default. By default batch, if there is such a class.
	Flex string `yaml:"flex,omitempty"`
	// Priority is the class for service_tier priority; a key that may not use it gets its own default. By default interactive, if there is such a class.
	Priority string `yaml:"priority,omitempty"`
}

// SetDefaults maps to the classes of the examples.
func (t *Tiers) SetDefaults() { *t = Tiers{Flex: "batch", Priority: "interactive"} }

// MaxKeys bounds the table of keys. Callers by the thousand are not for a file.
const MaxKeys = 1000

// Validate calls bad for every value that isn't allowed, with its path below
// the configuration's root. The keys of a file are checked with it, by ValidateKeys.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	if len(c.Keys) == 0 && c.KeysFile == "" && len(c.Rules) == 0 && c.Anonymous == nil {
		bad("keys", "nothing", "at least one key, a keys_file, a rule, or anonymous: without any nobody may call")
	}
	ValidateKeys(c.Keys, bad)
	if a := c.Anonymous; a != nil {
		rights{a.Tenant, a.Classes, a.Default, a.Models}.validate("anonymous", bad)
		a.SLOMin.validate("anonymous", a.SLOHeaders, bad)
	}
	c.validateRules(bad)
	for _, t := range []struct{ path, class string }{
		{"service_tiers.flex", c.Tiers.Flex}, {"service_tiers.priority", c.Tiers.Priority},
	} {
		if t.class != "" && !ValidName(t.class) {
			bad(t.path, t.class, NameRule)
		}
	}
}

// ValidateKeys is Validate for keys alone, whose paths begin with keys.
func ValidateKeys(keys []Key, bad func(path string, value any, allowed string)) {
	if len(keys) > MaxKeys {
		bad("keys", len(keys), fmt.Sprintf("at most %d keys", MaxKeys))
	}
	names := map[string]int{}
	hashes := map[digest]int{}
	hash := func(i int, path, text string) {
		// What stands where a hash should may be the key itself.
		if d, ok := parseHash(text); !ok {
			bad(path, Redacted, "sha256: and 64 hex digits")
		} else if first, dup := hashes[d]; dup {
			bad(path, Redacted, fmt.Sprintf("a key of its own; keys[%d] has the same", first))
		} else {
			hashes[d] = i
		}
	}
	for i, k := range keys {
		at := fmt.Sprintf("keys[%d]", i)
		if !ValidName(k.Name) {
			bad(at+".name", k.Name, NameRule)
		} else if first, dup := names[k.Name]; dup {
			bad(at+".name", k.Name, fmt.Sprintf("a name of its own; keys[%d] has this one", first))
		} else if k.Name == anonymousName {
			bad(at+".name", k.Name, "another name: this one is the anonymous principal's")
		} else {
			names[k.Name] = i
		}
		hash(i, at+".hash", k.Hash)
		moment(at+".expires", k.Expires, true, bad)
		if k.Old != nil {
			hash(i, at+".old.hash", k.Old.Hash)
			moment(at+".old.until", k.Old.Until, false, bad)
		}
		rights{k.Tenant, k.Classes, k.Default, k.Models}.validate(at, bad)
		k.SLOMin.validate(at, k.SLOHeaders, bad)
	}
}

// moment checks a time.
func moment(path, text string, optional bool, bad func(path string, value any, allowed string)) {
	if _, err := time.Parse(time.RFC3339, text); err != nil && (text != "" || !optional) {
		bad(path, text, "a time such as 2027-01-31T00:00:00Z")
	}
}

// rights is what a key, a rule and the anonymous principal have in common.
type rights struct {
	tenant  string
	classes []string
	def     string
	models  Models
}

func (r rights) validate(at string, bad func(path string, value any, allowed string)) {
	if !ValidName(r.tenant) {
		bad(at+".tenant", r.tenant, NameRule)
	}
	if len(r.classes) == 0 {
		bad(at+".classes", "nothing", "at least one class")
	}
	for i, c := range r.classes {
		if !ValidName(c) {
			bad(fmt.Sprintf("%s.classes[%d]", at, i), c, NameRule)
		} else if slices.Index(r.classes, c) < i {
			bad(fmt.Sprintf("%s.classes[%d]", at, i), c, "each class once")
		}
	}
	r.models.validate(at, bad)
	if r.def != "" && !slices.Contains(r.classes, r.def) {
		bad(at+".default", r.def, "one of the classes: "+strings.Join(r.classes, ", "))
	}
}

// NameRule says what ValidName accepts.
const NameRule = "1 to 64 characters of a-z, A-Z, 0-9, '.', '_', '-', beginning with a letter or digit"

// ValidName tells whether s may name a class, tenant, principal, pool or
// engine. Names become metric labels and header values.
func ValidName(s string) bool {
	if len(s) < 1 || len(s) > 64 || !isAlnum(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
