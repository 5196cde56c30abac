package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certs are files: of an authority, and of a server and a client that it vouches for.
type Certs struct {
	CA, ServerCert, ServerKey, ClientCert, ClientKey string
}

func newCerts(t testing.TB, dir string) Certs {
	t.Helper()
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	serial := int64(0)
	// The zero parent is the certificate itself.
	issue := func(name string, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, string, string) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		serial++
		cert := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{Organization: []string{name}},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: parent == nil,
		}
		if parent == nil {
			parent, by = cert, key
		}
		der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key, file(name+".pem", "CERTIFICATE", der), file(name+".key", "PRIVATE KEY", secret)
	}
	var c Certs
	ca, caKey, caFile, _ := issue("ca", nil, nil)
	c.CA = caFile
	_, _, c.ServerCert, c.ServerKey = issue("server", ca, caKey)
	_, _, c.ClientCert, c.ClientKey = issue("client", ca, caKey)
	return c
}

// client is what a client needs to speak to the members.
func (c Certs) client(t testing.TB) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(c.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
}
