package gateway

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

var requestID = regexp.MustCompile(`req_[a-z0-9]{24}`)

func golden(t *testing.T, name, got string) {
	t.Helper()
	got = requestID.ReplaceAllString(got, "req_random")
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func (r *rig) admin(path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.gateway.Admin(r.metrics).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

// Four slots, three of them interactive's: batch runs on its own slot and on
// loans, interactive is back and waits, and so does the next batch request.
func TestDebugAdmission(t *testing.T) {
	bubble(t, setup{slots: 4, depth: 4, wait: time.Hour}, func(t *testing.T, r *rig) {
		time.Sleep(5 * time.Second)
		for range 4 {
			r.stream("Headgate-Class", "batch")
		}
		r.start("POST", chat, chatBody(`,"max_tokens":100`))
		synctest.Wait()
		r.start("POST", chat, chatBody(`,"max_tokens":200`), "Headgate-Class", "batch")
		sleep(300) // past the engine's next sample
		synctest.Wait()
		for path, name := range map[string]string{
			"/debug/admission": "admission.txt", "/debug/admission?format=json": "admission.json", "/debug/engines": "engines.json",
		} {
			w := r.admin(path)
			kind := map[bool]string{true: "text/plain; charset=utf-8", false: "application/json"}[strings.HasSuffix(name, ".txt")]
			if w.Code != 200 || w.Header().Get("Content-Type") != kind {
				t.Errorf("%s: %d %v", path, w.Code, w.Header())
			}
			golden(t, name, w.Body.String())
		}
	})
}

// Not ready says why; alive is alive whatever the engines do.
func TestReady(t *testing.T) {
	check := func(t *testing.T, r *rig, status int, says string) {
		t.Helper()
		if w := r.admin("/readyz"); w.Code != status || w.Body.String() != says+"\n" {
			t.Errorf("/readyz: %d %q", w.Code, w.Body)
		}
		if w := r.admin("/healthz"); w.Code != 200 || w.Body.String() != "ok\n" {
			t.Errorf("/healthz: %d %q", w.Code, w.Body)
		}
	}
	bubble(t, setup{noEngine: true}, func(t *testing.T, r *rig) {
		check(t, r, 503, "not ready: pool main: no engine has answered yet; engine gpu0: get /health of engine.test: dial mem mem: connection refused")
		if w := r.admin("/debug/admission"); w.Body.String() != "pool main (not ready: pool main: no engine has answered yet; engine gpu0: get /health of engine.test: dial mem mem: connection refused)\n" {
			t.Errorf("%q", w.Body)
		}
	})
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		check(t, r, 200, "ready")
		r.engine.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		check(t, r, 503, "not ready: pool main: no engine is ready; engine gpu0: get /health of engine.test: dial mem mem: connection refused")
		r.drain(time.Second)
		check(t, r, 503, "not ready: draining")
	})
}

// Engines send spans to the admin listener, if there is a receiver for them;
// clients can't.
func TestSpansRoute(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		post := func(h http.Handler) (int, string) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/traces", nil))
			return w.Code, w.Body.String()
		}
		if status, _ := post(r.gateway.Admin(r.metrics)); status != http.StatusNotFound {
			t.Errorf("without a receiver: %d, want 404", status)
		}
		r.gateway.cfg.Spans = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "taken") })
		if status, body := post(r.gateway.Admin(r.metrics)); status != http.StatusOK || body != "taken" {
			t.Errorf("with one: %d %s", status, body)
		}
		if status, _ := post(r.gateway); status != http.StatusNotFound {
			t.Errorf("for clients: %d, want 404", status)
		}
		if w := r.admin("/v1/traces"); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("GET: %d, want 405", w.Code)
		}
	})
}
