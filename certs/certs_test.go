package certs

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/certs/certstest"
)

// files is a folder.
type files struct {
	t   *testing.T
	dir string
}

func (f files) path(name string) string { return filepath.Join(f.dir, name) }

func (f files) write(name string, b []byte) {
	f.t.Helper()
	if err := os.WriteFile(f.path(name), b, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// echo answers what it is sent, by TLS.
func echo(t *testing.T, c *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	return l.Addr().String()
}

// says tells whether a connection passes a word there and back.
func says(c net.Conn) error {
	if _, err := io.WriteString(c, "word"); err != nil {
		return err
	}
	b := make([]byte, 4)
	_, err := io.ReadFull(c, b)
	return err
}

// A new pair is for the next handshake; a connection that is open keeps the old one, and a
// pair that does not fit changes nothing.
func TestReload(t *testing.T) {
	a := certstest.New(t)
	f := files{t, t.TempDir()}
	c := Config{Cert: f.path("cert"), Key: f.path("key"), ClientAuth: AuthNone}
	if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "cert") {
		t.Fatalf("no files: %v", err)
	}
	cert, key := a.Pair("first")
	f.write("cert", cert)
	f.write("key", key)
	served, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Until(served.Expires()); d < 59*time.Minute || d > time.Hour {
		t.Errorf("expires in %s", d)
	}
	address := echo(t, served.Server())
	dial := func() *tls.Conn {
		t.Helper()
		c, err := tls.Dial("tcp", address, &tls.Config{RootCAs: a.Roots(), NextProtos: []string{"h2", "http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	name := func(c *tls.Conn) string { return c.ConnectionState().PeerCertificates[0].Subject.CommonName }
	open := dial()
	if s := open.ConnectionState(); s.NegotiatedProtocol != "http/1.1" || s.Version != tls.VersionTLS13 {
		t.Errorf("%q, version %x", s.NegotiatedProtocol, s.Version)
	}
	reload := func(want bool, fails string) {
		t.Helper()
		changed, err := served.Reload()
		if changed != want || (err == nil) != (fails == "") || err != nil && !strings.Contains(err.Error(), fails) {
			t.Errorf("changed %t, %v", changed, err)
		}
		if err := says(open); err != nil {
			t.Errorf("a connection that was open: %v", err)
		}
	}
	reload(false, "")
	cert, other := a.Pair("second")
	f.write("cert", cert) // and the key is still the first one's
	reload(false, "does not match")
	reload(false, "") // told once
	if n := name(dial()); n != "first" {
		t.Errorf("beside a pair that does not fit: %s", n)
	}
	f.write("key", other)
	reload(true, "")
	if n := name(dial()); n != "second" || name(open) != "first" {
		t.Errorf("the new pair: %s, and %s on the open connection", n, name(open))
	}
	f.write("key", nil)
	reload(false, "key")
	if err := os.Remove(f.path("key")); err != nil {
		t.Fatal(err)
	}
	reload(false, "no such file")
	f.write("key", other)
	reload(false, "")
	if _, err := tls.Dial("tcp", address, &tls.Config{RootCAs: a.Roots(), MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was spoken")
	}
}

func TestClientAuth(t *testing.T) {
	a, stranger := certstest.New(t), certstest.New(t)
	f := files{t, t.TempDir()}
	cert, key := a.Pair("server")
	f.write("cert", cert)
	f.write("key", key)
	f.write("ca", a.PEM)
	for _, c := range []struct {
		auth   string
		client []tls.Certificate
		ok     bool
	}{
		{AuthNone, nil, true},
		{AuthRequest, nil, true}, {AuthRequest, a.Certificate("c"), true}, {AuthRequest, stranger.Certificate("c"), false},
		{AuthRequire, nil, false}, {AuthRequire, a.Certificate("c"), true}, {AuthRequire, stranger.Certificate("c"), false},
	} {
		cfg := Config{Cert: f.path("cert"), Key: f.path("key"), ClientAuth: c.auth}
		if c.auth != AuthNone {
			cfg.ClientCA = f.path("ca")
		}
		served, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		// A stranger's is sent though the server names other authorities.
		get := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
		if c.client != nil {
			get = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.client[0], nil }
		}
		conn, err := tls.Dial("tcp", echo(t, served.Server()), &tls.Config{RootCAs: a.Roots(), GetClientCertificate: get})
		if err == nil {
			err = says(conn) // of version 1.3 the client hears of a refusal only then
			_ = conn.Close()
		}
		if (err == nil) != c.ok {
			t.Errorf("%s, certificate %t: %v", c.auth, c.client != nil, err)
		}
	}
}

// A client has its own certificate and authorities, and a renewed certificate is used from
// the next connection on.
func TestClient(t *testing.T) {
	a := certstest.New(t)
	f := files{t, t.TempDir()}
	cert, key := a.Pair("engine")
	f.write("cert", cert)
	f.write("key", key)
	f.write("ca", a.PEM)
	served, err := Open(Config{Cert: f.path("cert"), Key: f.path("key"), ClientCA: f.path("ca"), ClientAuth: AuthRequire})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 4)
	server := served.Server().Clone()
	server.GetConfigForClient = nil
	server.VerifyConnection = func(s tls.ConnectionState) error {
		seen <- s.PeerCertificates[0].Subject.CommonName
		return nil
	}
	address := echo(t, server)
	mine, minekey := a.Pair("one")
	f.write("mine", mine)
	f.write("minekey", minekey)
	c := &Client{CA: f.path("ca"), Cert: f.path("mine"), Key: f.path("minekey"), ServerName: "engine"}
	out, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "two", "two"} {
		conn, err := tls.Dial("tcp", address, out)
		if err == nil {
			err = says(conn)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if got := <-seen; got != want {
			t.Errorf("the server saw %s, want %s", got, want)
		}
		if want == "one" {
			mine, minekey = a.Pair("two")
			f.write("mine", mine)
			f.write("minekey", minekey)
		} else {
			f.write("minekey", []byte("half a k")) // what is being written is not used
		}
	}
	for _, bad := range []Client{{CA: f.path("nothing")}, {CA: f.path("minekey")}, {Cert: f.path("mine"), Key: f.path("minekey")}} {
		if _, err := bad.Config(); err == nil || strings.Contains(err.Error(), "half") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if out, err := (*Client)(nil).Config(); err != nil || out.MinVersion != tls.VersionTLS12 || out.InsecureSkipVerify || out.RootCAs != nil {
		t.Errorf("without any: %+v, %v", out, err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		cfg interface {
			Validate(func(string, any, string))
		}
		want string
	}{
		{&Config{Cert: "c", Key: "k", ClientAuth: AuthNone}, ""},
		{&Config{ClientAuth: AuthNone}, "cert nothing; key nothing; "},
		{&Config{Cert: "c", Key: "k", ClientAuth: "always"}, "client_auth always; "},
		{&Config{Cert: "c", Key: "k", ClientAuth: AuthRequire}, "client_ca nothing; "},
		{&Config{Cert: "c", Key: "k", ClientCA: "ca", ClientAuth: AuthNone}, "client_ca ca; "},
		{&Client{}, ""}, {&Client{Cert: "c"}, "cert c; "}, {&Client{Key: "k"}, "key k; "},
	} {
		got := ""
		c.cfg.Validate(func(path string, value any, _ string) { got += fmt.Sprint(path, " ", value, "; ") })
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.cfg, got, c.want)
		}
	}
}
