package certs

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"sync"
)

// Client is how a server is spoken to by https.
type Client struct {
	// CA is a file with the authorities that may have signed the server's certificate; absent: the system's.
	CA string `yaml:"ca,omitempty"`
	// Cert is a file with this process's certificate, where the server wants one. It is read again when a connection is made.
	Cert string `yaml:"cert,omitempty"`
	// Key is a file with the certificate's key.
	Key string `yaml:"key,omitempty"`
	// ServerName is the name that the server's certificate has to be for; absent: the URL's host.
	ServerName string `yaml:"server_name,omitempty"`
}

// Validate calls bad for every value that isn't allowed. It reads no file.
func (c *Client) Validate(bad func(path string, value any, allowed string)) {
	switch {
	case c.Cert != "" && c.Key == "":
		bad("cert", c.Cert, "a file with key beside it, its key's")
	case c.Cert == "" && c.Key != "":
		bad("key", c.Key, "a file with cert beside it, its certificate's")
	}
}

// sessions is how many servers' sessions are kept, so that a connection of its own for
// each request does not take a whole handshake each time.
const sessions = 16

// Config reads the files. Of no Client it is what the system trusts.
func (c *Client) Config() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(sessions)}
	if c == nil {
		return t, nil
	}
	t.ServerName = c.ServerName
	if c.CA != "" {
		pem, err := readFile("ca", c.CA)
		if err != nil {
			return nil, err
		}
		if t.RootCAs, err = pool("ca", c.CA, pem); err != nil {
			return nil, err
		}
	}
	if c.Cert == "" {
		return t, nil
	}
	k := &clientPair{cert: c.Cert, key: c.Key}
	if _, err := k.get(nil); err != nil {
		return nil, err
	}
	t.GetClientCertificate = k.get
	return t, nil
}

// clientPair is a certificate that is parsed when its files have changed.
type clientPair struct {
	cert, key string

	mu   sync.Mutex
	sum  [sha256.Size]byte
	pair *tls.Certificate
}

// get is a tls.Config's GetClientCertificate. Files that don't fit, which are being
// replaced, leave the pair that did.
func (k *clientPair) get(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	cert, err := readFile("cert", k.cert)
	var key []byte
	if err == nil {
		key, err = readFile("key", k.key)
	}
	if err == nil {
		h := sha256.New()
		fmt.Fprintf(h, "%d\n%s%s", len(cert), cert, key)
		sum := [sha256.Size]byte(h.Sum(nil))
		if k.pair != nil && sum == k.sum {
			return k.pair, nil
		}
		var p tls.Certificate
		if p, err = pair(k.cert, k.key, cert, key); err == nil {
			k.sum, k.pair = sum, &p
		}
	}
	if k.pair != nil {
		return k.pair, nil
	}
	return nil, err
}
