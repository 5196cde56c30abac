package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

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
}

// adminError is an answer that is none of what was asked for.
type adminError struct {
	status int
	text   string
}

func (e *adminError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

// ask asks once; a body is JSON.
func (a *adminClient) ask(method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, strings.TrimRight(a.url, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	key := a.key.Secret
	if key.Empty() {
		key = identity.NewSecret(os.Getenv(envAdminKey))
	}
	if !key.Empty() {
		req.Header.Set("Authorization", "Bearer "+key.Reveal())
	}
	// A redirect would be another address, and this one alone was named.
	client := &http.Client{Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerAdmin))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		e := &adminError{res.StatusCode, strings.TrimSpace(string(answer))}
		if e.status == http.StatusUnauthorized && key.Empty() {
			e.text += " (" + envAdminKey + " is not set)"
		}
		return nil, e
	}
	return answer, nil
}

// askFleet is ask for what only a process of a fleet answers.
func (a *adminClient) askFleet(method, path string, body []byte) ([]byte, error) {
	answer, err := a.ask(method, path, body)
	if e, ok := errors.AsType[*adminError](err); ok && e.status == http.StatusNotFound && strings.HasPrefix(e.text, "404 page not found") {
		return nil, errors.New("the process is of no fleet: its configuration has no control")
	}
	return answer, err
}
