package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"headgate/admission"
	"headgate/e2e/headgate"
)

// twoEngines is a gateway in front of two simulated engines of four slots each.
type twoEngines struct {
	t       *testing.T
	key     string
	gateway *headgate.Gateway
	engines [2]*headgate.Engine
}

var pairArgs = []string{"--speed", "0.05", "--num-gpu-blocks", "2048", "--max-num-seqs", "4", "--enable-prefix-caching=false"}

func startTwo(t *testing.T) *twoEngines {
	t.Helper()
	k := newKeys(t)
	two := &twoEngines{t: t, key: k.app}
	for i := range two.engines {
		two.engines[i] = headgate.StartEngine(t, pairArgs...)
	}
	two.gateway = headgate.Start(t, fmt.Sprintf(`%slimits: {idle_timeout: 3s}
pools:
  - name: main
    aliases: [{name: gpt-4o, model: %s}, {name: gone, model: absent}]
    engines:
      - {name: a, kind: vllm, url: "%s", slots: 4, observe_every: 50ms}
      - {name: b, kind: vllm, url: "%s", slots: 4, observe_every: 50ms}
    classes:
      - {name: interactive, floor: {slots: 6}, ceiling: {slots: 8}, queue: {wait: 1m}}
      - {name: batch, floor: {slots: 2}}
`, k.yaml, two.engines[0].Model, two.engines[0].URL, two.engines[1].URL)).AwaitReady()
	two.both()
	return two
}

// both waits until either engine is there.
func (two *twoEngines) both() {
	two.t.Helper()
	two.gateway.AwaitPool("both engines are ready", func(s *admission.Snapshot) bool {
		return s.Envelope.Slots == 8
	})
}

// ask sends n requests whose clients see nothing before the end, and returns where
// each will say what was wrong with its answer.
func (two *twoEngines) ask(n, tokens int) <-chan error {
	results := make(chan error, n)
	for i := range n {
		go func() {
			results <- func() error {
				res, err := postAs(two.t.Context(), two.gateway.URL+chatPath, two.key, object{
					"model": "gpt-4o", "messages": user(fmt.Sprintf("request %d", i)), "max_tokens": tokens, "ignore_eos": true,
				})
				if err != nil {
					return err
				}
				defer res.Body.Close()
				var answer struct {
					Choices []struct {
						Message struct{ Content string }
					}
					Usage struct {
						Completion int `json:"completion_tokens"`
					}
					Error json.RawMessage
				}
				if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
					return err
				}
				if res.StatusCode != http.StatusOK || answer.Usage.Completion != tokens || len(answer.Choices) != 1 {
					return fmt.Errorf("%s, %d tokens of %d: %s", res.Status, answer.Usage.Completion, tokens, answer.Error)
				}
				return nil
			}()
		}()
	}
	return results
}

// all waits for n answers.
func (two *twoEngines) all(n int, results <-chan error) {
	two.t.Helper()
	for range n {
		if err := <-results; err != nil {
			two.t.Error(err)
		}
	}
}

func (two *twoEngines) collect(n int, results <-chan error) {
	two.t.Helper()
	two.all(n, results)
	two.gateway.AwaitPool("nothing is held", idle)
}

func running(s *admission.Snapshot, engine string) (n int) {
	for _, h := range s.Holds {
		if h.Engine == engine && h.Out > 0 {
			n++
		}
	}
	return n
}

// TestEngineIsKilledUnderLoad: every request that has shown its client nothing is
// answered by the other engine, and the one that comes back is given work without
// anything being restarted.
func TestEngineIsKilledUnderLoad(t *testing.T) {
	two := startTwo(t)
	const n = 24
	results := two.ask(n, 600)
	two.gateway.AwaitPool("both engines are at work", func(s *admission.Snapshot) bool {
		return running(s, "a") > 1 && running(s, "b") > 1
	})
	at := strings.TrimPrefix(two.engines[0].URL, "http://")
	two.engines[0].Kill()
	// What the dead engine held is its own, and is given up when it comes back.
	two.all(n, results)
	two.engines[0] = headgate.StartEngine(t, append([]string{"--listen", at}, pairArgs...)...)
	two.both()
	two.gateway.AwaitPool("nothing is held", idle)
	results = two.ask(8, 300)
	two.gateway.AwaitPool("the new engine is at work", func(s *admission.Snapshot) bool { return running(s, "a") > 0 })
	two.collect(8, results)
}

// TestEngineHangs: one that stands still with its connections open is found out by its
// silence, its requests run elsewhere, and it gets work again once it goes on.
func TestEngineHangs(t *testing.T) {
	two := startTwo(t)
	results := two.ask(8, 600)
	two.gateway.AwaitPool("both engines are at work", func(s *admission.Snapshot) bool {
		return running(s, "a") > 1 && running(s, "b") > 1
	})
	two.engines[1].Suspend()
	defer two.engines[1].Resume()
	two.all(8, results)
	two.engines[1].Resume()
	two.both()
	two.gateway.AwaitPool("nothing is held", idle)
	results = two.ask(8, 300)
	two.gateway.AwaitPool("it is at work again", func(s *admission.Snapshot) bool { return running(s, "b") > 0 })
	two.collect(8, results)
}

// TestAliasLeadsNowhere: it is told by name where the gateway says that it is ready,
// and to who asks for it.
func TestAliasLeadsNowhere(t *testing.T) {
	two := startTwo(t)
	const want = "pool main: alias gone: no engine has model absent"
	if status, text := two.gateway.Readyz(); status != http.StatusOK || !strings.Contains(text, want) {
		t.Errorf("/readyz says %d %q, want %q", status, text, want)
	}
	res, err := postAs(t.Context(), two.gateway.URL+chatPath, two.key, object{"model": "gone", "messages": user("hello")})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%s, want 503", res.Status)
	}
}
