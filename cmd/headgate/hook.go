package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"headgate/config"
	"headgate/egress"
	"headgate/relay"
	"headgate/replan"
)

const (
	// maxHookSays bounds what is kept of what a hook says, for its error, in bytes.
	maxHookSays = 2 << 10
	// hookPipes is how long after a command's end what it has started may still write to
	// where the command wrote.
	hookPipes = 500 * time.Millisecond
	hookDial  = 10 * time.Second
	// maxHookHeader bounds the header of its answer, in bytes.
	maxHookHeader = 64 << 10
)

// replanConfig is how a pool's engine is switched between profiles; nil: it is not.
func replanConfig(c *config.Pool) (*relay.Replan, error) {
	r := c.Replan
	if r == nil {
		return nil, nil
	}
	rc := &relay.Replan{
		Config: replan.Config{
			Home: r.HomeIndex(), Dwell: r.Dwell, IdleAfter: r.IdleAfter, ContentionAfter: r.ContentionAfter, DrainTimeout: r.DrainTimeout,
			PerHour: r.MaxPerHour, DryRun: r.DryRun, Limits: r.Profiles[0].Switch == nil,
		},
		Sessions: r.Sessions, SessionTimeout: r.SessionTimeout,
	}
	for i := range r.Profiles {
		q := &r.Profiles[i]
		rc.Profiles = append(rc.Profiles, replan.Profile{Name: q.Name, Slots: int(q.Slots), KVTokens: q.KVTokens, MaxContext: q.MaxContext, Cost: q.Cost})
		if q.Switch == nil {
			continue
		}
		hook, err := newHook(c, q)
		if err != nil {
			return nil, fmt.Errorf("pool %s: profile %s: %w", c.Name, q.Name, err)
		}
		rc.Hooks, rc.Timeouts = append(rc.Hooks, hook), append(rc.Timeouts, q.Switch.Timeout)
	}
	return rc, nil
}

func newHook(pool *config.Pool, q *config.Profile) (relay.Hook, error) {
	h := q.Switch
	if len(h.Command) > 0 {
		env := []string{"HEADGATE_POOL=" + pool.Name, "HEADGATE_ENGINE=" + pool.Engines[0].Name, "HEADGATE_PROFILE=" + q.Name}
		return func(ctx context.Context) error { return runCommand(ctx, h.Command, env) }, nil
	}
	key := ""
	if h.KeyEnv != "" {
		if key = os.Getenv(h.KeyEnv); key == "" {
			return nil, fmt.Errorf("switch.key_env %q: the variable must be set", h.KeyEnv)
		}
	}
	return func(ctx context.Context) error { return callHook(ctx, h, key) }, nil
}

// runCommand runs a command to its end. What it starts may go on: it is in a group of
// its own, which a signal to this process does not reach, and is ended only with a
// command that took too long.
func runCommand(ctx context.Context, command, env []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = hookPipes
	says := &tail{most: maxHookSays}
	cmd.Stdout, cmd.Stderr = says, says
	err := cmd.Start()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", relay.ErrIntact, err)
	}
	if err == nil {
		err = cmd.Wait()
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it has ended well, and what it has started lives
	}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("%s took too long", command[0])
	case err != nil:
		err = fmt.Errorf("%s: %w", command[0], err)
	default:
		return nil
	}
	if text := strings.TrimSpace(says.String()); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// tail keeps the end of what is written to it. A command's two outputs are one writer, so
// that they come one after the other.
type tail struct {
	bytes.Buffer
	most int
}

func (t *tail) Write(p []byte) (int, error) {
	n, _ := t.Buffer.Write(p) // never fails
	if over := t.Len() - t.most; over > 0 {
		t.Next(over)
	}
	return n, nil
}

func callHook(ctx context.Context, h *config.Hook, key string) error {
	method := h.Method
	if method == "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, h.URL, strings.NewReader(h.Body))
	if err != nil {
		return err
	}
	if h.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	// It may answer once the engine has restarted. Only what is configured is called.
	// No proxy of the environment's sees its key.
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: hookDial, Control: egress.Guard}).DialContext,
			TLSHandshakeTimeout: hookDial, MaxResponseHeaderBytes: maxHookHeader, DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
	if err != nil {
		var at *url.Error
		if errors.As(err, &at) {
			err = at.Err // its URL may have a secret in it
		}
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
			err = fmt.Errorf("%w: %w", relay.ErrIntact, err)
		}
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode/100 != 2 {
		said, _ := io.ReadAll(io.LimitReader(res.Body, maxHookSays))
		return fmt.Errorf("status %d: %s", res.StatusCode, strings.TrimSpace(string(said)))
	}
	return nil
}
