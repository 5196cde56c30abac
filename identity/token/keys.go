package token

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"

	"headgate/identity"
	"headgate/wire"
)

// refetch is the least time between two fetches of an issuer's keys.
const refetch = 10 * time.Second

// leastRSA is the shortest RSA key, in bits (RFC 7518, 3.3).
const leastRSA = 2048

// mostKeys bounds an issuer's keys.
const mostKeys = 100

// issuer is one of the configuration, with what was fetched.
type issuer struct {
	cfg        identity.Issuer
	algorithms []jose.SignatureAlgorithm
	names      []string // the same
	client     *http.Client
	metrics    *Metrics
	log        *slog.Logger

	keys atomic.Pointer[keySet] // nil: there were never any
	due  atomic.Int64           // when they are to be fetched anew, in ns of Unix time

	mu      sync.Mutex
	tried   time.Time     // when the last fetch began
	fetched time.Time     // when the last good one did
	running chan struct{} // closed when the fetch is over; nil: there is none
	failure error         // of the last fetch
}

// keySet is an issuer's keys. Another set of them is another keySet, the same is the same.
type keySet struct {
	all  []jose.JSONWebKey
	mark string // what tells it from others
}

func newIssuer(c identity.Issuer, m *Metrics, log *slog.Logger, way http.RoundTripper) (*issuer, error) {
	i := &issuer{cfg: c, names: c.Algorithms, metrics: m, log: log}
	if len(i.names) == 0 {
		i.names = identity.Algorithms
	}
	for _, a := range i.names {
		i.algorithms = append(i.algorithms, jose.SignatureAlgorithm(a))
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("issuer %s: ca: %w", c.Name, err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("issuer %s: ca: %s has no certificate: allowed is PEM", c.Name, c.CA)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	if way == nil {
		way = transport
	}
	i.client = &http.Client{Transport: way, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return i, nil
}

func (i *issuer) same(c *identity.Issuer) bool { return reflect.DeepEqual(&i.cfg, c) }

// prepare begins to fetch keys where there are none.
func (i *issuer) prepare() {
	if i.keys.Load() == nil {
		i.begin(time.Now())
	}
}

// refresh begins to fetch keys that are due. It waits for nothing.
func (i *issuer) refresh(now time.Time) {
	if now.UnixNano() >= i.due.Load() {
		i.begin(now)
	}
}

// begin begins a fetch, if none runs and the last one is long enough ago. It returns
// what is closed when the fetch that runs is over; nil: none does.
func (i *issuer) begin(now time.Time) <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running != nil {
		return i.running
	}
	if !i.tried.IsZero() && now.Sub(i.tried) < refetch {
		return nil
	}
	over := make(chan struct{})
	i.tried, i.running = now, over
	go func() {
		set, err := i.fetch()
		i.mu.Lock()
		defer i.mu.Unlock()
		i.took(set, err, now)
		i.running = nil
		close(over)
	}()
	return over
}

// took takes over what was fetched. i.mu is held.
func (i *issuer) took(set *keySet, err error, began time.Time) {
	outcome, next := "fetched", i.cfg.Refresh
	was := i.failure
	if i.failure = err; err != nil {
		outcome, next = "failed", refetch
		if was == nil {
			i.log.Warn("an issuer's keys can't be fetched; those that are known stay in use", "issuer", i.cfg.Name, "err", err)
		}
	} else {
		i.fetched = began
		if old := i.keys.Load(); old == nil || old.mark != set.mark {
			i.keys.Store(set)
			i.log.Info("an issuer's keys", "issuer", i.cfg.Name, "keys", len(set.all))
		} else if was != nil {
			i.log.Info("an issuer's keys can be fetched again", "issuer", i.cfg.Name)
		}
	}
	i.due.Store(began.Add(next).UnixNano())
	i.metrics.fetches.WithLabelValues(i.cfg.Name, outcome).Inc()
}

// problem says in words why the issuer's tokens can't be checked, or not by its newest
// keys.
func (i *issuer) problem() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.failure != nil && i.keys.Load() == nil:
		return fmt.Sprintf("issuer %s: its tokens are refused: %v", i.cfg.Name, i.failure)
	case i.failure != nil:
		return fmt.Sprintf("issuer %s: its keys are %v old: %v", i.cfg.Name, time.Since(i.fetched).Round(time.Second), i.failure)
	}
	return ""
}

// key finds the key of a token, after a fetch where it is not known. It is nil if the
// issuer has none such. The error is that nobody can tell.
func (i *issuer) key(ctx context.Context, kid *string, algorithm string) (*keySet, *jose.JSONWebKey, *wire.Error) {
	now := time.Now()
	set := i.keys.Load()
	if set != nil {
		if k := set.find(kid, algorithm); k != nil {
			i.refresh(now)
			return set, k, nil
		}
	}
	if over := i.begin(now); over != nil {
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
	set = i.keys.Load()
	if set != nil {
		if k := set.find(kid, algorithm); k != nil {
			return set, k, nil
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if set == nil || i.failure != nil {
		return nil, nil, i.unavailable(time.Until(i.tried.Add(refetch)))
	}
	return set, nil, nil
}

// find returns the key that has the name and is for the algorithm. A token that names
// none is of the only key that is for it.
func (s *keySet) find(kid *string, algorithm string) (found *jose.JSONWebKey) {
	for k := range s.all {
		key := &s.all[k]
		if kid != nil && key.KeyID != *kid || !suits(key, algorithm) {
			continue
		}
		if found != nil {
			return nil // which one is not for a token to leave open
		}
		found = key
	}
	return found
}

// suits tells whether a key is for an algorithm.
func suits(key *jose.JSONWebKey, algorithm string) bool {
	if key.Algorithm != "" && key.Algorithm != algorithm {
		return false
	}
	switch k := key.Key.(type) {
	case *rsa.PublicKey:
		return algorithm[:2] == "RS" || algorithm[:2] == "PS"
	case *ecdsa.PublicKey:
		return algorithm == map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[k.Curve.Params().BitSize]
	case ed25519.PublicKey:
		return algorithm == string(jose.EdDSA)
	}
	return false
}

// fetch gets the issuer's keys, from where it says that they are if nobody else does.
func (i *issuer) fetch() (*keySet, error) {
	ctx, cancel := context.WithTimeout(context.Background(), i.cfg.FetchTimeout)
	defer cancel()
	from := i.cfg.JWKSURL
	if from == "" {
		at := strings.TrimSuffix(i.cfg.Issuer, "/") + "/.well-known/openid-configuration"
		body, err := i.get(ctx, at)
		if err != nil {
			return nil, err
		}
		var said struct {
			Issuer string `json:"issuer"`
			Keys   string `json:"jwks_uri"`
		}
		switch err := json.Unmarshal(body, &said); {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", at, err)
		case said.Issuer != i.cfg.Issuer:
			return nil, fmt.Errorf("%s: it is another issuer's: issuer is %.100q, want %s", at, said.Issuer, i.cfg.Issuer)
		case !identity.SafeURL(said.Keys):
			return nil, fmt.Errorf("%s: jwks_uri is %.100q: allowed is an https URL", at, said.Keys)
		}
		from = said.Keys
	}
	body, err := i.get(ctx, from)
	if err != nil {
		return nil, err
	}
	set, err := parseKeys(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return set, nil
}

func (i *issuer) get(ctx context.Context, from string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "headgate")
	res, err := i.client.Do(req)
	if err != nil {
		return nil, err // which names the URL
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d, want 200; redirects are not followed", from, res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(i.cfg.MaxKeysBytes)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", from, err)
	case len(body) > i.cfg.MaxKeysBytes:
		return nil, fmt.Errorf("%s: more than max_keys_bytes, %d bytes", from, i.cfg.MaxKeysBytes)
	}
	return body, nil
}

// parseKeys reads a JWK set (RFC 7517). Keys that can't be used here, of kinds that are
// to come or for encryption, are left out, as the RFC wants it.
func parseKeys(body []byte) (*keySet, error) {
	var said struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, fmt.Errorf("no set of keys: %w", err)
	}
	if len(said.Keys) > mostKeys {
		return nil, fmt.Errorf("%d keys: allowed are %d", len(said.Keys), mostKeys)
	}
	set := &keySet{}
	var marks []string
	for _, raw := range said.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) != nil || !usable(&k) {
			continue
		}
		print, err := k.Thumbprint(crypto.SHA256)
		if err != nil {
			continue
		}
		set.all = append(set.all, jose.JSONWebKey{Key: k.Key, KeyID: k.KeyID, Algorithm: k.Algorithm})
		marks = append(marks, k.KeyID+" "+k.Algorithm+" "+base64.RawURLEncoding.EncodeToString(print))
	}
	if len(set.all) == 0 {
		return nil, errors.New("no public key to verify signatures with")
	}
	slices.Sort(marks)
	set.mark = strings.Join(marks, "\n")
	return set, nil
}

func usable(k *jose.JSONWebKey) bool {
	if !k.IsPublic() || !k.Valid() || k.Use != "" && k.Use != "sig" || k.Algorithm != "" && !slices.Contains(identity.Algorithms, k.Algorithm) {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() >= leastRSA && key.E >= 3 && key.E%2 == 1
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}
