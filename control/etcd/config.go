package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"headgate/identity"
)

// Config says where etcd is and how to speak to it. SetDefaults gives every field
// that may be left out its value; Validate checks the rest.
type Config struct {
	// Endpoints are the client URLs of the cluster's members, all https or all http: https://10.0.0.1:2379. Name all of them: a member that fails is replaced by another of these.
	Endpoints []string `yaml:"endpoints"`
	// Prefix of all keys.
	Prefix string `yaml:"prefix"`
	// Fleet is the name of those who share their engines. Two fleets in one cluster need two names.
	Fleet string `yaml:"fleet"`
	// Username to log in with; absent: no login. Each watch and lease is a login of its own, at a tenth of a second of one of etcd's cores: for a large fleet use a certificate whose common name is the user instead, which needs none.
	Username string `yaml:"username,omitempty"`
	// PasswordEnv names the environment variable that holds the user's password.
	PasswordEnv string `yaml:"password_env,omitempty"`
	// CAFile has the certificates that etcd's must be signed by, in PEM; absent: those of the system.
	CAFile string `yaml:"ca_file,omitempty"`
	// CertFile is the certificate shown to etcd, in PEM; it is read again for each connection.
	CertFile string `yaml:"cert_file,omitempty"`
	// KeyFile is the certificate's key.
	KeyFile string `yaml:"key_file,omitempty"`
	// ConnectTimeout bounds dialling and the login.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// RequestTimeout bounds a request, at up to three members, and twice that the silence of a watch before it is begun anew. Longer makes a member that is stopped felt for longer; shorter than three round trips with their writes to disk fails requests that would have succeeded.
	RequestTimeout time.Duration `yaml:"request_timeout"`

	// Password is the password itself, where a program has it; it goes before PasswordEnv.
	Password identity.Secret `yaml:"-"`
	// Log gets a line when a watch is lost and when it is back; nil for none.
	Log *slog.Logger `yaml:"-"`
}

// SetDefaults sets prefix, fleet and timeouts.
func (c *Config) SetDefaults() {
	c.Prefix, c.Fleet = "/headgate", "default"
	c.ConnectTimeout, c.RequestTimeout = 3*time.Second, 2*time.Second
}

// MinLease is the shortest lease: etcd counts whole seconds, and has none that is
// shorter than an election of its own may take, at its default settings.
const MinLease = 2 * time.Second

const (
	endpointRule = "http:// or https://, a host and a port, and nothing else"
	nameRule     = "1 to 63 of a-z, A-Z, 0-9, '-', '_' and '.'"
)

// Validate calls bad for every value that isn't allowed.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	if len(c.Endpoints) == 0 {
		bad("endpoints", c.Endpoints, "at least one, best all of the cluster's")
	}
	secure := c.secure()
	for i, e := range c.Endpoints {
		u, err := url.Parse(e)
		at := fmt.Sprintf("endpoints[%d]", i)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" ||
			u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || strings.Contains(e, "#"):
			if i := strings.LastIndex(e, "@"); i >= 0 {
				e = identity.Redacted + e[i:] // it may be a password
			}
			bad(at, e, endpointRule)
		case (u.Scheme == "https") != secure:
			bad(at, e, "the same scheme as the first endpoint's: one connection is made to all")
		case !secure && (c.Username != "" || c.CAFile != "" || c.CertFile != "") && !loopback(u.Hostname()):
			bad(at, e, "https:// with username, ca_file or cert_file: nobody else may read the password")
		}
	}
	if !strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") || strings.Contains(c.Prefix, "//") {
		bad("prefix", c.Prefix, "a path that begins with a slash and does not end with one")
	}
	if c.Fleet == "" || len(c.Fleet) > 63 || strings.ContainsFunc(c.Fleet, notInName) {
		bad("fleet", c.Fleet, nameRule)
	}
	if c.Username == "" && (c.PasswordEnv != "" || !c.Password.Empty()) {
		bad("username", c.Username, "set, with a password")
	}
	if c.Username != "" && c.PasswordEnv == "" && c.Password.Empty() {
		bad("password_env", c.PasswordEnv, "set, with username")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		bad("key_file", c.KeyFile, "set if cert_file is, and only then")
	}
	if c.ConnectTimeout <= 0 {
		bad("connect_timeout", c.ConnectTimeout, "a duration above 0")
	}
	if c.RequestTimeout < 100*time.Millisecond {
		bad("request_timeout", c.RequestTimeout, "100ms or more")
	}
}

func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// secure tells whether the connections use TLS: as the first endpoint says.
func (c *Config) secure() bool {
	return len(c.Endpoints) > 0 && strings.HasPrefix(c.Endpoints[0], "https://")
}

// password is Password, or what PasswordEnv names. Empty when there is no login.
func (c *Config) password() (identity.Secret, error) {
	if !c.Password.Empty() || c.PasswordEnv == "" {
		return c.Password, nil
	}
	p := os.Getenv(c.PasswordEnv)
	if p == "" {
		return identity.Secret{}, fmt.Errorf("password_env %q: the variable must be set, to a password", c.PasswordEnv)
	}
	return identity.NewSecret(p), nil
}

// tls returns how connections are made secure, nil if they aren't.
func (c *Config) tls() (*tls.Config, error) {
	if !c.secure() {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %q: there is no certificate in it", c.CAFile)
		}
	}
	if c.CertFile != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("cert_file and key_file: %w", err)
			}
			return &cert, nil
		}
		if _, err := load(nil); err != nil {
			return nil, err
		}
		t.GetClientCertificate = load
	}
	return t, nil
}

// check is Validate as an error.
func (c *Config) check() error {
	var all []error
	c.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("%s: %v is not allowed, but %s", path, value, allowed))
	})
	return errors.Join(all...)
}
