// Package certs is what the process proves itself with, and whom it believes: certificates
// of its listeners, authorities of its clients, and the same towards engines.
//
// A listener's files are read again when they change. What is read is checked whole before
// it is used, the key against the certificate too, and swapped in one step: connections
// that are open keep what they have begun with, the next handshake has the new. A pair that
// does not fit, which is what a look between the writing of two files finds, changes
// nothing.
//
// # HTTP/1.1 only
//
// A listener offers HTTP/1.1 and not h2. What bounds a client here is bounded by
// connection: limits.max_connections is how many requests can be under way, and a client
// that does not read is found by the deadline of a write to its connection, which frees
// what its request holds. Over h2 one connection carries as many streams as it likes, a
// stream that is not read shares its connection's window with others that are, and a write
// that the kernel does not take holds up all of them. A reset costs a client one small
// frame and an engine an admission, a prefill and an abort, which is rapid reset with a GPU
// behind it. SDKs keep connections open by themselves, so what h2 would save is little. A
// proxy in front may speak it to clients.
package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Config is what a listener speaks TLS with.
type Config struct {
	// Cert is a file with the certificate, and behind it those of the authorities between it and a known one, in PEM. The files are read again when they change and on SIGHUP; a pair that does not fit changes nothing, and is logged.
	Cert string `yaml:"cert"`
	// Key is a file with the certificate's key.
	Key string `yaml:"key"`
	// ClientCA is a file with the authorities that may have signed clients' certificates; required with client_auth request or require.
	ClientCA string `yaml:"client_ca,omitempty"`
	// ClientAuth is none, request, which takes clients without a certificate too, or require. One that is sent has to be signed by client_ca.
	ClientAuth string `yaml:"client_auth"`
}

// The values of Config.ClientAuth.
const (
	AuthNone    = "none"
	AuthRequest = "request"
	AuthRequire = "require"
)

// SetDefaults asks clients for no certificate.
func (c *Config) SetDefaults() { c.ClientAuth = AuthNone }

// Validate calls bad for every value that isn't allowed. It reads no file.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	for _, f := range []struct{ path, file string }{{"cert", c.Cert}, {"key", c.Key}} {
		if f.file == "" {
			bad(f.path, "nothing", "the path of a file in PEM")
		}
	}
	switch c.ClientAuth {
	case AuthNone:
		if c.ClientCA != "" {
			bad("client_ca", c.ClientCA, "nothing with client_auth: none")
		}
	case AuthRequest, AuthRequire:
		if c.ClientCA == "" {
			bad("client_ca", "nothing", "the path of a file, with client_auth: "+c.ClientAuth)
		}
	default:
		bad("client_auth", c.ClientAuth, "none, request or require")
	}
}

// mostFile bounds a file that is read, in bytes.
const mostFile = 1 << 20

// Files are a listener's, as they were when they last fitted.
type Files struct {
	cfg     Config
	server  *tls.Config
	current atomic.Pointer[loaded]

	mu      sync.Mutex
	refused [sha256.Size]byte // the files that were refused last
}

// loaded is what one look at the files gave.
type loaded struct {
	config  *tls.Config
	sum     [sha256.Size]byte
	expires time.Time
	chain   []*x509.Certificate
}

// Open reads the files of a valid configuration.
func Open(c Config) (*Files, error) {
	f := &Files{cfg: c}
	if _, err := f.Reload(); err != nil {
		return nil, err
	}
	f.server = f.current.Load().config.Clone()
	f.server.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.current.Load().config, nil }
	return f, nil
}

// Server is the configuration of a listener. Each handshake has the files as they are then.
func (f *Files) Server() *tls.Config { return f.server }

// Expires is when the certificate in use does.
func (f *Files) Expires() time.Time { return f.current.Load().expires }

// Chain is the certificate in use, and behind it those of its file that can be read.
func (f *Files) Chain() []*x509.Certificate { return f.current.Load().chain }

// Reload reads the files again. changed tells that they are others than before and in use
// now. With an error those from before stay in use; the same files are refused with one
// only once, until they change.
func (f *Files) Reload() (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cert, key, ca, err := f.read()
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(bytes.Join([][]byte{cert, key, ca}, []byte{0}))
	if now := f.current.Load(); now != nil && now.sum == sum || f.refused == sum {
		return false, nil
	}
	next, err := f.make(cert, key, ca)
	if err != nil {
		f.refused = sum
		return false, err
	}
	next.sum, f.refused = sum, [sha256.Size]byte{}
	f.current.Store(next)
	return true, nil
}

func (f *Files) read() (cert, key, ca []byte, err error) {
	if cert, err = readFile("cert", f.cfg.Cert); err == nil {
		key, err = readFile("key", f.cfg.Key)
	}
	if err == nil && f.cfg.ClientCA != "" {
		ca, err = readFile("client_ca", f.cfg.ClientCA)
	}
	return cert, key, ca, err
}

func readFile(what, path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if !info.Mode().IsRegular() || info.Size() > mostFile {
		return nil, fmt.Errorf("%s: %s: allowed is a file of at most %d bytes", what, path, mostFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return b, nil
}

func (f *Files) make(cert, key, ca []byte) (*loaded, error) {
	pair, err := pair(f.cfg.Cert, f.cfg.Key, cert, key)
	if err != nil {
		return nil, err
	}
	l := &loaded{expires: pair.Leaf.NotAfter, config: &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{pair},
	}}
	for _, der := range pair.Certificate {
		if c, err := x509.ParseCertificate(der); err == nil { // as far as anybody can use it
			l.chain = append(l.chain, c)
		}
	}
	if f.cfg.ClientAuth != AuthNone {
		if l.config.ClientCAs, err = pool("client_ca", f.cfg.ClientCA, ca); err != nil {
			return nil, err
		}
		// A ticket would let a client in whose authority is trusted no more.
		l.config.SessionTicketsDisabled = true
		l.config.ClientAuth = tls.VerifyClientCertIfGiven
		if f.cfg.ClientAuth == AuthRequire {
			l.config.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	return l, nil
}

// pair does not repeat what is in the files: one may be a key in the other's place.
func pair(certFile, keyFile string, cert, key []byte) (tls.Certificate, error) {
	p, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return p, fmt.Errorf("cert %s and key %s: %w", certFile, keyFile, err)
	}
	if p.Leaf == nil {
		p.Leaf, err = x509.ParseCertificate(p.Certificate[0])
	}
	return p, err
}

func pool(what, path string, pem []byte) (*x509.CertPool, error) {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %s holds no certificate in PEM", what, path)
	}
	return p, nil
}

// Authorities are the certificates of a file of them.
func Authorities(path string) (all []*x509.Certificate, err error) {
	rest, err := readFile("ca", path)
	for err == nil {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			return all, nil
		}
		if b.Type != "CERTIFICATE" {
			continue
		}
		var c *x509.Certificate
		if c, err = x509.ParseCertificate(b.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return nil, err
}
