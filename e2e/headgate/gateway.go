package headgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/admission"
	"headgate/gateway"
	"headgate/journal"
	"headgate/relay"
)

// Gateway is a running `headgate serve`.
type Gateway struct {
	*process
	URL   string // for clients, without a trailing slash
	Admin string // for operators, without a trailing slash

	journal string
}

// Start runs a gateway by a configuration file until the test ends, and returns
// once it listens. The test's file says nothing of listen, admin and journal:
// both listeners are at free ports.
func Start(t testing.TB, yaml string) *Gateway {
	t.Helper()
	return StartAt(t, "127.0.0.1:0", yaml)
}

// StartAt is Start with the clients' listener at an address, which others are told of
// before or which an earlier life had.
func StartAt(t testing.TB, listen, yaml string) *Gateway {
	t.Helper()
	dir := t.TempDir()
	file, events := filepath.Join(dir, "headgate.yaml"), filepath.Join(dir, "journal.jsonl")
	if err := os.WriteFile(file, []byte("journal: {file: "+events+"}\n"+yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	g := serve(t, listen, "-c", file)
	g.journal = events
	return g
}

// StartDemo runs `headgate serve --demo` with further flags until the test ends,
// and returns once it listens.
func StartDemo(t testing.TB, flags ...string) *Gateway {
	t.Helper()
	return serve(t, "127.0.0.1:0", append([]string{"--demo"}, flags...)...)
}

func serve(t testing.TB, listen string, args ...string) *Gateway {
	t.Helper()
	g := &Gateway{process: start(t, append([]string{"serve", "--listen", listen, "--admin-listen", "127.0.0.1:0"}, args...)...)}
	// Lines are JSON by default and logfmt in the demo.
	said := g.AwaitOutput(`msg"?[=:]"?serving"?.*listen"?[=:]"?([0-9.:]+)"?.*admin"?[=:]"?([0-9.:]+)`)
	g.URL, g.Admin = "http://"+said[1], "http://"+said[2]
	t.Cleanup(func() {
		g.Terminate()
		g.Wait()
	})
	return g
}

// Wait waits for the gateway's end and fails the test unless it drained: status
// 0, and no call ended by force.
func (g *Gateway) Wait() {
	g.t.Helper()
	g.process.Wait()
	if g.killed {
		return
	}
	g.AwaitOutput(`msg"?[=:]"?stopped"?.*calls_ended_by_force"?[=:]0\b`)
}

// Readyz returns the status and the text of /readyz.
func (g *Gateway) Readyz() (status int, text string) {
	g.t.Helper()
	res, err := http.Get(g.Admin + "/readyz")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(body))
}

// AwaitReady waits until /readyz says so, and returns the gateway.
func (g *Gateway) AwaitReady() *Gateway {
	g.t.Helper()
	var text string
	g.await(func() bool {
		status, said := g.Readyz()
		text = said
		return status == http.StatusOK
	}, func() string { return "the gateway is ready; " + text })
	return g
}

// AwaitNotReady waits until /readyz says that the gateway is not ready, and gives
// the reason.
func (g *Gateway) AwaitNotReady(reason string) {
	g.t.Helper()
	var text string
	g.await(func() bool {
		status, said := g.Readyz()
		text = said
		return status == http.StatusServiceUnavailable && strings.Contains(said, reason)
	}, func() string { return "/readyz says 503 and " + reason + "; it says " + text })
}

// Pool returns the state of the only pool, as /debug/admission shows it.
func (g *Gateway) Pool() *admission.Snapshot {
	g.t.Helper()
	res, err := http.Get(g.Admin + "/debug/admission?format=json")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var pools []gateway.PoolView
	if err := json.NewDecoder(res.Body).Decode(&pools); err != nil {
		g.t.Fatalf("/debug/admission: %v", err)
	}
	if len(pools) != 1 || pools[0].State == nil {
		g.t.Fatalf("/debug/admission shows %+v, want one pool with a state", pools)
	}
	return pools[0].State
}

// Shown is a page of the operator's listener, for the message of a test that fails.
func (g *Gateway) Shown(path string) string {
	res, err := http.Get(g.Admin + path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	page, _ := io.ReadAll(res.Body)
	return string(page)
}

// AwaitSamples waits until two looks at the only engine, one after the other, have
// shown that it runs so many requests, of whomever.
func (g *Gateway) AwaitSamples(running int) {
	g.t.Helper()
	var e relay.EngineView
	seen, age := 0, int64(-1)
	g.await(func() bool {
		res, err := http.Get(g.Admin + "/debug/engines")
		if err != nil {
			g.t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		var pools map[string][]relay.EngineView
		if err := json.NewDecoder(res.Body).Decode(&pools); err != nil || len(pools) != 1 {
			g.t.Fatalf("/debug/engines: %v, %+v", err, pools)
		}
		for _, engines := range pools {
			e = engines[0]
		}
		switch {
		case e.Running != running:
			seen, age = 0, -1
		case age < 0 || e.SampleAgeMS < age:
			seen++
		}
		if e.Running == running {
			age = e.SampleAgeMS
		}
		return seen >= 2
	}, func() string { return fmt.Sprintf("the engine runs %d; it is %+v", running, e) })
}

// AwaitPool waits until the pool's state is as wanted, and returns it.
func (g *Gateway) AwaitPool(want string, ok func(*admission.Snapshot) bool) *admission.Snapshot {
	g.t.Helper()
	var s *admission.Snapshot
	g.await(func() bool { s = g.Pool(); return ok(s) }, func() string { return want + "; it is\n" + s.String() })
	return s
}

// Events returns what the journal's file has so far.
func (g *Gateway) Events() []journal.Event {
	g.t.Helper()
	f, err := os.Open(g.journal)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var all []journal.Event
	for r := journal.NewReader(f); ; {
		var e journal.Event
		switch err := r.Next(&e); {
		case err == nil:
			all = append(all, e)
		case errors.Is(err, io.EOF):
			return all
		default:
			g.t.Fatalf("journal: %v", err)
		}
	}
}

// AwaitEvent waits until the journal has an event that is as wanted, and returns
// the first such.
func (g *Gateway) AwaitEvent(want string, ok func(*journal.Event) bool) journal.Event {
	g.t.Helper()
	var found journal.Event
	g.await(func() bool {
		for _, e := range g.Events() {
			if ok(&e) {
				found = e
				return true
			}
		}
		return false
	}, func() string { return "the journal has " + want })
	return found
}

// await polls until ok, within patience.
func (g *Gateway) await(ok func() bool, want func() string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			g.t.Fatalf("not within %v: %s", patience, want())
		}
	}
}
