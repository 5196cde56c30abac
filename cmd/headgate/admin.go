package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"headgate/certs"
	"headgate/identity"
)

// envAdminKey has the key for commands that ask an admin listener.
const envAdminKey = "HEADGATE_ADMIN_KEY"

// maxAnswerAdmin bounds what is read of an admin listener, in bytes.
const maxAnswerAdmin = 64 << 20

// adminClient asks the admin listener of a running process: the one way for all commands
// that do.
type adminClient struct {
	url string
	key secretFlag
	tls certs.Client
}

// secretFlag is a flag whose value is not printed.
type secretFlag struct{ identity.Secret }

func (f *secretFlag) Set(text string) error {
	f.Secret = identity.NewSecret(text)
	return nil
}

// String is what help prints as the default, and of a value that was given nothing does.
func (f *secretFlag) String() string { return "" }
func (f *secretFlag) Type() string   { return "key" }

// flags adds the flags by which it is found and let in.
func (a *adminClient) flags(f *pflag.FlagSet, help string) {
	f.StringVar(&a.url, "admin", "http://127.0.0.1:9090", help)
	f.Var(&a.key, "admin-key", "key of the admin listener, where it asks for one; better in "+envAdminKey+", since others on the machine see flags")
	f.StringVar(&a.tls.CA, "cacert", "", "file with the authorities that may have signed its certificate, where it speaks https (default: the system's)")
	f.StringVar(&a.tls.Cert, "cert", "", "file with a certificate to show it, where it asks for one")
	f.StringVar(&a.tls.Key, "key-file", "", "file with that certificate's key")
}

// client makes what asks. It takes no proxy from the environment: the address that was
// named is asked and no other.
func (a *adminClient) client() (*http.Client, error) {
	var wrong error
	a.tls.Validate(func(path string, value any, allowed string) {
		flag := map[string]string{"cert": "cert", "key": "key-file"}[path]
		wrong = fmt.Errorf("--%s is %v: give --cert and --key-file together", flag, value)
	})
	if wrong != nil {
		return nil, wrong
	}
	if u, err := url.Parse(a.url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--admin is %.200q, must be a URL such as http://127.0.0.1:9090", a.url)
	}
	secure, err := a.tls.Config()
	if err != nil {
		return nil, fmt.Errorf("https of the admin listener (--cacert, --cert, --key-file): %w", err)
	}
	return httpClient(&http.Transport{TLSClientConfig: secure, DialContext: (&net.Dialer{Timeout: adminTime}).DialContext, IdleConnTimeout: adminTime}), nil
}

// adminTime bounds one question.
const adminTime = 10 * time.Second

// httpClient is a client that follows no redirect: that would be another address, and one
// alone was named.
func httpClient(t *http.Transport) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// secret is the key; empty: there is none.
func (a *adminClient) secret() identity.Secret {
	if !a.key.Empty() {
		return a.key.Secret
	}
	return identity.NewSecret(os.Getenv(envAdminKey))
}

// header is what goes with each question.
func (a *adminClient) header() http.Header {
	h := http.Header{}
	if key := a.secret(); !key.Empty() {
		h.Set("Authorization", "Bearer "+key.Reveal())
	}
	return h
}

// adminError is an answer that is none of what was asked for.
type adminError struct {
	status int
	text   string
}

func (e *adminError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

// ask asks once; a body is JSON.
func (a *adminClient) ask(method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	return a.askWithin(ctx, method, path, body)
}

// askWithin is ask within a context.
func (a *adminClient) askWithin(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	return a.askBy(ctx, client, method, path, body)
}

// askBy is ask by a client that is kept.
func (a *adminClient) askBy(ctx context.Context, client *http.Client, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(a.url, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = a.header()
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, a.unreached(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerAdmin))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, a.refused(res.StatusCode, strings.TrimSpace(string(answer)))
	}
	return answer, nil
}

// unreached says what to do about a listener that was not reached.
func (a *adminClient) unreached(err error) error {
	do := "name the admin listener of a gateway that runs by --admin; serve prints it when it starts"
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)):
		do = "name the authority of its certificate by --cacert"
	case errors.As(err, new(tls.RecordHeaderError)), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		do = "it speaks http: write --admin http://..."
	case strings.Contains(err.Error(), "malformed HTTP response"):
		do = "it speaks https, or something else than http: write --admin https://..."
	case strings.Contains(err.Error(), "remote error: tls: "):
		do = "it asks for a certificate: give --cert and --key-file"
	case errors.Is(err, syscall.ECONNREFUSED):
		do = "nothing listens there: start headgate serve, or name the admin listener of a gateway that runs by --admin"
	case errors.As(err, new(*net.DNSError)):
		do = "write a host in --admin that this machine can resolve"
	case errors.Is(err, context.DeadlineExceeded):
		do = "it takes connections and does not answer: see the gateway's log, or name another by --admin"
	}
	return hint(err, do)
}

// refused says what to do about an answer.
func (a *adminClient) refused(status int, text string) error {
	do := ""
	switch {
	case status == http.StatusUnauthorized && a.secret().Empty():
		do = "set " + envAdminKey + " to a key of admin.keys (" + envAdminKey + " is not set)"
	case status == http.StatusUnauthorized:
		do = "give a key of admin.keys in " + envAdminKey + "; headgate key makes one, and its hash goes there"
	case status == http.StatusForbidden:
		do = "give a key with role admin"
	case status == http.StatusBadRequest && strings.Contains(text, "HTTP request to an HTTPS server"):
		do = "it speaks https: write --admin https://..."
	case status == http.StatusNotFound && (strings.HasPrefix(text, noPage) || strings.HasPrefix(text, "{")): // as clients are told
		do = "see that --admin is the admin listener, and not the one for clients, of a gateway of this version"
	case status == http.StatusServiceUnavailable:
		do = "try again, and see the gateway's log"
	}
	return hint(&adminError{status, text}, do)
}

// noPage begins the answer to a path that a listener does not have.
const noPage = "404 page not found"

// askFleet is ask for what only a process of a fleet answers.
func (a *adminClient) askFleet(method, path string, body []byte) ([]byte, error) {
	answer, err := a.ask(method, path, body)
	if e, ok := errors.AsType[*adminError](err); ok && e.status == http.StatusNotFound && strings.HasPrefix(e.text, noPage) {
		return nil, hint(errors.New("the process is of no fleet: its configuration has no control"), "name the admin listener of a replica or a controller by --admin")
	}
	return answer, err
}
