package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/config"
	"headgate/relay"
)

// hookOf is the hook of a pool whose profile has it.
func hookOf(t *testing.T, h config.Hook) func(context.Context) error {
	t.Helper()
	pool := &config.Pool{Name: "main", Engines: []config.Engine{{Name: "gpu0"}}}
	hook, err := newHook(pool, &config.Profile{Name: "deep", Switch: &h})
	if err != nil {
		t.Fatal(err)
	}
	return hook
}

// TestHookCommand: a command is run without a shell, knows what it is for, and may leave
// something running; what goes wrong is told with its own last words.
func TestHookCommand(t *testing.T) {
	dir := t.TempDir()
	run := func(ctx context.Context, script string) error {
		return hookOf(t, config.Hook{Command: []string{"sh", "-c", script, "sh", "$HOME"}})(ctx)
	}
	said := filepath.Join(dir, "said")
	if err := run(t.Context(), `echo "$HEADGATE_POOL $HEADGATE_ENGINE $HEADGATE_PROFILE $1" >`+said); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(said); string(b) != "main gpu0 deep $HOME\n" {
		t.Errorf("it saw %q", b)
	}
	pid := filepath.Join(dir, "pid")
	if err := run(t.Context(), `sleep 60 & echo $! >`+pid); err != nil {
		t.Errorf("a command that leaves something running: %v", err)
	}
	b, _ := os.ReadFile(pid)
	if err := exec.Command("kill", strings.TrimSpace(string(b))).Run(); err != nil {
		t.Errorf("what it left running is gone: %v", err)
	}
	err := run(t.Context(), `echo no such model >&2; exit 3`)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such model") {
		t.Errorf("a command that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, `sleep 60`); err == nil || !strings.Contains(err.Error(), "took too long") {
		t.Errorf("a command that is out of time: %v", err)
	}
}

// TestHookThatCannotBegin: what did nothing to the engine says so, and no URL, which may
// have a secret in it.
func TestHookThatCannotBegin(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for what, h := range map[string]config.Hook{
		"a command that is not there": {Command: []string{filepath.Join(t.TempDir(), "none")}},
		"a server that is not there":  {URL: gone.URL + "/?token=secret"},
	} {
		if err := hookOf(t, h)(t.Context()); !errors.Is(err, relay.ErrIntact) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := hookOf(t, config.Hook{Command: []string{"false"}})(t.Context()); err == nil || errors.Is(err, relay.ErrIntact) {
		t.Errorf("a command that ran: %v", err)
	}
}

// TestHookEndsItsGroup: what a command that took too long has started goes with it.
func TestHookEndsItsGroup(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- hookOf(t, config.Hook{Command: []string{"sh", "-c", `sleep 60 & echo $! >` + pid + `.new; mv ` + pid + `.new ` + pid + `; wait`}})(ctx)
	}()
	for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(pid); err == nil {
			break
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("it ended well")
	}
	b, _ := os.ReadFile(pid)
	for i := 0; ; i++ {
		state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(b)) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		if i > 5000 {
			t.Fatalf("it still runs: %s", state)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestHookURL(t *testing.T) {
	t.Setenv("HOOK_KEY", "secret")
	var got []string
	status := http.StatusNoContent
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, strings.Join([]string{r.Method, r.URL.String(), r.Header.Get("Authorization"), r.Header.Get("Content-Type"), string(body)}, " "))
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "not now")
	}))
	defer s.Close()
	if err := hookOf(t, config.Hook{URL: s.URL + "/set?p=deep", Method: "PUT", Body: `{"p":1}`, KeyEnv: "HOOK_KEY"})(t.Context()); err != nil {
		t.Error(err)
	}
	status = http.StatusConflict
	err := hookOf(t, config.Hook{URL: s.URL})(t.Context())
	if err == nil || !strings.Contains(err.Error(), "status 409: not now") {
		t.Errorf("a refusal: %v", err)
	}
	status = http.StatusTemporaryRedirect
	if err := hookOf(t, config.Hook{URL: s.URL})(t.Context()); err == nil {
		t.Error("it was sent elsewhere, and went")
	}
	want := []string{`PUT /set?p=deep Bearer secret application/json {"p":1}`, "POST /   ", "POST /   "}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("calls\n%q\nwant\n%q", got, want)
	}
	pool := &config.Pool{Name: "main", Engines: []config.Engine{{Name: "gpu0"}}}
	if _, err := newHook(pool, &config.Profile{Switch: &config.Hook{URL: s.URL, KeyEnv: "HOOK_NONE"}}); err == nil {
		t.Error("a key that is not there is no problem")
	}
}
