package doctor

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"headgate/certs"
	"headgate/identity"
)

// renew is for how long a certificate should still be good. Those that are renewed by
// programs are with a third of their time left, thirty days of ninety.
const renew = 14 * 24 * time.Hour

// Listener is a listener's certificate: its files, and the address it listens at.
type Listener struct {
	Key  string // of the configuration, such as admin.tls
	TLS  certs.Config
	At   string   // host:port
	Also []string // further names by which it is called
}

// Check looks at the certificate.
func (l Listener) Check() Check {
	return Check{Of: l.Key, Run: func(_ context.Context, r *Reporter) {
		files, err := certs.Open(l.TLS)
		if err != nil {
			r.Found(CertUnusable, err.Error(), fileDo(err, "name files in PEM that belong together"))
			return
		}
		chain := files.Chain()
		lives(r, l.Key+".cert", chain, time.Now())
		ordered(r, l.TLS.Cert, chain)
		for _, name := range l.names() {
			if err := chain[0].VerifyHostname(name); err != nil {
				r.Found(CertName, fmt.Sprintf("%s: %v", l.TLS.Cert, err), fmt.Sprintf("have a certificate made for %s, as a subject alternative name", name))
			}
		}
		if len(chain[0].DNSNames)+len(chain[0].IPAddresses)+len(chain[0].URIs) == 0 {
			r.Found(CertName, fmt.Sprintf("%s: it has no subject alternative name; its common name counts for nobody", l.TLS.Cert), "have it made with the names by which clients call it")
		}
	}}
}

// names are those that the certificate has to be for.
func (l *Listener) names() []string {
	names := slices.Clone(l.Also)
	// What listens at all addresses is called by names that nobody knows here, and so may be
	// what listens at the loopback, behind a proxy.
	if host, _, err := net.SplitHostPort(l.At); err == nil && host != "" && !identity.Loopback(host) {
		if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
			names = append(names, host)
		}
	}
	return names
}

// lives reports a certificate of a chain that is over, soon is, or has not begun.
func lives(r *Reporter, of string, chain []*x509.Certificate, now time.Time) {
	for i, c := range chain {
		which := c.Subject.String()
		if i > 0 {
			which += ", an authority in the same file"
		}
		switch left := c.NotAfter.Sub(now); {
		case left <= 0:
			r.FoundOf(of, CertExpired, fmt.Sprintf("%s: until %s", which, stamp(c.NotAfter)), "renew it; the files are read again while the gateway runs")
		case now.Before(c.NotBefore):
			r.FoundOf(of, CertFuture, fmt.Sprintf("%s: from %s on; it is %s here", which, stamp(c.NotBefore), stamp(now)), "see whether this machine's clock is right")
		case left < renew && left < c.NotAfter.Sub(c.NotBefore)/3:
			r.FoundOf(of, CertExpires, fmt.Sprintf("%s: until %s", which, stamp(c.NotAfter)), "renew it; the files are read again while the gateway runs")
		}
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// ordered reports a chain with a gap: clients are given it as it is.
func ordered(r *Reporter, file string, chain []*x509.Certificate) {
	for i := range len(chain) - 1 {
		if err := chain[i].CheckSignatureFrom(chain[i+1]); err != nil {
			r.Found(CertChain, fmt.Sprintf("%s: certificate %d, %s, is not signed by the next, %s", file, i+1, chain[i].Subject, chain[i+1].Subject),
				"put the certificate first, and behind each the one that has signed it")
			return
		}
	}
}

// fileDo is what to do about an error of a file.
func fileDo(err error, otherwise string) string {
	switch {
	case os.IsPermission(unwrapped(err)):
		return "let the user that runs the gateway read it"
	case os.IsNotExist(unwrapped(err)):
		return "name a file that is there"
	}
	return otherwise
}

// unwrapped is the error of the system in a chain.
func unwrapped(err error) error {
	for {
		w, ok := err.(interface{ Unwrap() error })
		if !ok || w.Unwrap() == nil {
			return err
		}
		err = w.Unwrap()
	}
}

// Client looks at how somebody else's https is spoken to: the certificate that is shown, and
// the authorities that are believed.
func Client(key string, c *certs.Client) Check {
	return Check{Of: key, Run: func(_ context.Context, r *Reporter) {
		cfg, err := c.Config()
		if err != nil {
			r.Found(CertUnusable, err.Error(), fileDo(err, "name files in PEM that belong together"))
			return
		}
		if cfg.GetClientCertificate != nil {
			pair, err := cfg.GetClientCertificate(nil)
			if err == nil && pair.Leaf != nil {
				lives(r, key+".cert", []*x509.Certificate{pair.Leaf}, time.Now())
			}
		}
		if c.CA != "" {
			all, err := certs.Authorities(c.CA)
			if err == nil && len(all) > 0 && !slices.ContainsFunc(all, func(a *x509.Certificate) bool { return time.Now().Before(a.NotAfter) }) {
				r.FoundOf(key+".ca", CertExpired, fmt.Sprintf("%s: all of it is over, the last since %s", c.CA, stamp(latest(all))), "name a file with the authority's present certificate")
			}
		}
	}}
}

func latest(all []*x509.Certificate) (t time.Time) {
	for _, c := range all {
		if c.NotAfter.After(t) {
			t = c.NotAfter
		}
	}
	return t
}

// KeyLife is a key with an end.
type KeyLife struct {
	Of      string // keys_file, admin.keys
	Name    string
	Expires string // as the configuration has it; "": never
}

// Keys looks at which keys are over. alone tells that nobody is let in but by one of them.
func Keys(of string, keys []KeyLife, alone bool) Check {
	return Check{Of: of, Run: func(_ context.Context, r *Reporter) {
		var over []string
		for _, k := range keys {
			if t, err := time.Parse(time.RFC3339, k.Expires); err == nil && !time.Now().Before(t) {
				over = append(over, k.Name+" since "+stamp(t))
			}
		}
		switch {
		case len(over) == 0:
		case len(over) == len(keys) && alone:
			r.Found(KeysNone, strings.Join(over, ", "), "make a key: headgate key create")
		default:
			r.Found(KeyExpired, strings.Join(over, ", "), "remove it, or make another: headgate key revoke, headgate key rotate --expires")
		}
	}}
}
