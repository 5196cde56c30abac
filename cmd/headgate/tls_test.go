package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/audit"
	"headgate/certs"
	"headgate/certs/certstest"
	"headgate/config"
)

// TestTLS: clients and operators speak https, operators with a certificate; a certificate
// that is replaced while a stream runs is used by who comes then, one that does not fit by
// nobody; and what was decided is in the audit file, the change of configuration too.
func TestTLS(t *testing.T) {
	t.Run("counts begin at 0", func(t *testing.T) {
		dir := t.TempDir()
		cert, key := certstest.New(t).Pair("first")
		for name, b := range map[string][]byte{"cert": cert, "key": key} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		reg := prometheus.NewRegistry()
		cfg := &config.Config{TLS: &certs.Config{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientAuth: certs.AuthNone}}
		if _, err := openCertificates(cfg, slog.New(slog.DiscardHandler), reg); err != nil {
			t.Fatal(err)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "headgate_tls_reloads_total" && len(f.GetMetric()) == 2 {
				return
			}
		}
		t.Errorf("what is refused first is no increase: %v", families)
	})

	a := certstest.New(t)
	dir := t.TempDir()
	write := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair := func(name string) {
		cert, key := a.Pair(name)
		write("cert", cert)
		write("key", key)
	}
	pair("first")
	write("ca", a.PEM)
	content := strings.ReplaceAll(two("one", 64)+`
tls: {cert: DIR/cert, key: DIR/key}
admin: {listen: "127.0.0.1:0", tls: {cert: DIR/cert, key: DIR/key, client_ca: DIR/ca, client_auth: require}}
audit: {file: DIR/audit, source: here, sync: never}
`, "DIR", dir)
	content = strings.Replace(content, "admin: {listen: 127.0.0.1:0}\n", "", 1)
	t.Run("serve", func(t *testing.T) {
		r := newReloadRig(t, content)
		client := func(certificates []tls.Certificate) *http.Client {
			return &http.Client{Transport: &http.Transport{
				DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: a.Roots(), Certificates: certificates},
			}}
		}
		post := func(tokens int) (*http.Response, *x509.Certificate) {
			t.Helper()
			res, err := client(nil).Post("https://"+r.s.clients.Addr().String()+"/v1/completions", "application/json",
				strings.NewReader(fmt.Sprintf(reloadBody, demoModel, tokens)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = res.Body.Close() })
			if res.StatusCode != 200 || res.ProtoMajor != 1 {
				t.Fatal(res.Status, res.Proto)
			}
			return res, res.TLS.PeerCertificates[0]
		}
		open, cert := post(200)
		first := bufio.NewReader(open.Body)
		if line, err := first.ReadString('\n'); err != nil || cert.Subject.CommonName != "first" {
			t.Errorf("%q, %v, %s", line, err, cert.Subject)
		}
		pair("second")
		r.s.reread() // as on SIGHUP
		if _, cert := post(2); cert.Subject.CommonName != "second" {
			t.Errorf("after a reload: %s", cert.Subject)
		}
		write("key", []byte("none"))
		r.s.reread()
		if _, cert := post(2); cert.Subject.CommonName != "second" {
			t.Errorf("after files that don't fit: %s", cert.Subject)
		}
		if all, err := io.ReadAll(first); err != nil || !strings.Contains(string(all), "[DONE]") {
			t.Errorf("the stream that ran through it: %v, %d bytes", err, len(all))
		}
		if s := r.wrote(); strings.Count(s, "a new certificate is in use") != 2 || strings.Count(s, "what was in use stays") != 2 {
			t.Error(s)
		}
		if res, err := http.Get("http://" + r.s.clients.Addr().String() + "/v1/models"); err == nil && res.StatusCode == 200 {
			t.Error("http is spoken beside https")
		}
		admin := "https://" + r.s.admin.Addr().String()
		if _, err := client(nil).Get(admin + "/metrics"); err == nil {
			t.Error("an operator without a certificate")
		}
		res, err := client(a.Certificate("ann")).Get(admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		for _, want := range []string{
			`headgate_tls_reloads_total{listener="clients",outcome="taken"} 1`, `headgate_tls_reloads_total{listener="admin",outcome="refused"} 1`,
			`headgate_tls_certificate_expiry_timestamp_seconds{listener="clients"}`, `headgate_tls_certificate_start_timestamp_seconds{listener="admin"}`, "headgate_audit_failing 0",
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("/metrics has no %s", want)
			}
		}
		r.reloaded(strings.Replace(content, "depth: 64", "depth: 63", 1))
	})
	report, err := audit.Verify([]string{filepath.Join(dir, "audit")})
	if err != nil || len(report.Faults) > 0 || report.Starts != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "audit"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"kind":"config"`, `"outcome":"taken"`, `"route":"completions"`, `"output_tokens":200`, `"kind":"stopped"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the audit file has no %s:\n%s", want, text)
		}
	}
}

// TestLibraryLog: what net/http says of an engine does not quote it.
func TestLibraryLog(t *testing.T) {
	var out bytes.Buffer
	l := log.New(libraryLog{slog.New(slog.NewTextHandler(&out, nil))}, "", 0)
	l.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "HTTP/1.1 200 OK\r\n\r\nan answer", nil)
	if s := out.String(); strings.Contains(s, "an answer") || !strings.Contains(s, "Unsolicited response") {
		t.Error(s)
	}
}
