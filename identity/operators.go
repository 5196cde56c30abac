package identity

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"headgate/wire"
)

// AdminKey is a key for the admin listener. Clients' keys are none for it, and it is
// none for clients.
type AdminKey struct {
	// Name of who has the key, in logs and the journal; unique.
	Name string `yaml:"name"`
	// Hash is the SHA-256 of the key, as headgate key prints it.
	Hash string `yaml:"hash" show:"redacted"`
	// Role is what the key is for: admin for everything; operate for what read is for, and for pools' switches and profiles, to cancel batches, to check a configuration and to simulate; read for what GET shows, without the profiler; metrics for /metrics alone, which a scraper has; traces for engines, which only export spans to /v1/traces.
	Role string `yaml:"role"`
	// Expires is when the key ends, such as 2027-01-31T00:00:00Z; absent: never.
	Expires string `yaml:"expires,omitempty"`
}

// The roles of AdminKey.
const (
	RoleAdmin   = "admin"
	RoleOperate = "operate"
	RoleRead    = "read"
	RoleMetrics = "metrics"
	RoleTraces  = "traces"
)

// SetDefaults gives the least role that a person needs.
func (k *AdminKey) SetDefaults() { k.Role = RoleAdmin }

// ValidateAdminKeys checks keys of the admin listener, whose paths begin with keys.
func ValidateAdminKeys(keys []AdminKey, bad func(path string, value any, allowed string)) {
	if len(keys) > MaxKeys {
		bad("keys", len(keys), fmt.Sprintf("at most %d keys", MaxKeys))
	}
	names, hashes := map[string]bool{}, map[digest]bool{}
	for i, k := range keys {
		at := fmt.Sprintf("keys[%d]", i)
		switch {
		case !ValidName(k.Name):
			bad(at+".name", k.Name, NameRule)
		case names[k.Name]:
			bad(at+".name", k.Name, "a name of its own; another of the list has this one")
		}
		names[k.Name] = true
		if d, ok := parseHash(k.Hash); !ok {
			bad(at+".hash", Redacted, "sha256: and 64 hex digits")
		} else if hashes[d] {
			bad(at+".hash", Redacted, "a key of its own; another of the list has this one")
		} else {
			hashes[d] = true
		}
		if roles := []string{RoleAdmin, RoleOperate, RoleRead, RoleMetrics, RoleTraces}; !slices.Contains(roles, k.Role) {
			bad(at+".role", k.Role, strings.Join(roles, ", "))
		}
		moment(at+".expires", k.Expires, true, bad)
	}
}

// Operators finds who calls the admin listener. It never changes.
type Operators struct{ byDigest map[digest]operator }

type operator struct {
	name, role string
	until      time.Time // zero: for ever
}

// NewOperators builds Operators of valid keys; nil: there are none, and nobody is asked
// for one.
func NewOperators(keys []AdminKey) *Operators {
	if len(keys) == 0 {
		return nil
	}
	o := &Operators{byDigest: map[digest]operator{}}
	for _, k := range keys {
		d, _ := parseHash(k.Hash)
		o.byDigest[d] = operator{k.Name, k.Role, until(k.Expires)}
	}
	return o
}

// Authorize returns the name of the operator whose key r carries, "" if it is nobody's. The
// error is a 401, or a 403 if his role is not for the request, and never repeats what was sent.
func (o *Operators) Authorize(r *http.Request) (name string, err *wire.Error) {
	key, err := credential(r.Header)
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", unauthorized("the admin listener asks for a key of admin.keys: send it as Authorization: Bearer hg_...")
	case !wellFormed(key):
		return "", unauthorized("the admin key is malformed: a key is hg_ and 22 to 128 letters and digits")
	}
	who, ok := o.byDigest[sha256.Sum256([]byte(key))]
	switch {
	case !ok:
		return "", unauthorized("the admin key is not known here: clients' keys are none for the admin listener")
	case !who.until.IsZero() && !time.Now().Before(who.until):
		return "", unauthorized("the admin key has expired: ask for a new one")
	case !may(who.role, r):
		return who.name, wire.NewError(wire.CodeAccessDenied, "the key of %s has role %s, which is not for %s %.100q", who.name, who.role, r.Method, r.URL.Path)
	}
	return who.name, nil
}

// operated is where what RoleOperate may do begins. Balances and the fleet's replicas are
// not in it: what is done to those is not undone by a second use.
var operated = []string{"/api/pools/", "/api/plan", "/api/batches/", "/api/config/", "/api/lab/"}

// Role is what the key of an operator of that name is for; "" if there is none.
func (o *Operators) Role(name string) string {
	for _, who := range o.byDigest {
		if who.name == name {
			return who.role
		}
	}
	return ""
}

// may tells whether a role is for a request. The profiler shows memory, which has
// prompts in it, so it is not for readers.
func may(role string, r *http.Request) bool {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch role {
	case RoleAdmin:
		return true
	case RoleOperate:
		return may(RoleRead, r) || r.Method == http.MethodPost && slices.ContainsFunc(operated, func(at string) bool { return strings.HasPrefix(r.URL.Path, at) })
	case RoleRead:
		return reads && !strings.HasPrefix(r.URL.Path, "/debug/pprof")
	case RoleMetrics:
		return reads && r.URL.Path == "/metrics"
	}
	return role == RoleTraces && r.Method == http.MethodPost && r.URL.Path == "/v1/traces"
}
