//go:build live

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/simengine"
	"headgate/simengine/vllmapi"
	"headgate/trace"
)

const coexistYAML = `batch: {dir: "DIR"}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://ENGINE", slots: 4, priority: true, observe_every: 100ms}]
`

// coexisted is what became of one way to serve the traces.
type coexisted struct {
	onTime, of int           // interactive requests of the return windows
	late       int           // requests that were sent more than 50 ms late, which says that the machine was busy
	batch      int64         // tokens of batch that the engine generated until the last trace was over
	left       time.Duration // of that time, without an interactive request under way
}

const (
	coexistSeeds = 5
	// A trace ends when its last request has had time to be answered.
	coexistTrace = 95 * time.Second
	// The batch's requests are those of the long-context profile, and more of them than can be done.
	coexistItems, coexistPrompt, coexistOutput = 600, 1607, 64
)

// coexists serves the interactive requests of the return traces, one seed after the other,
// from base, with a batch beside them from the first on that does not end before they do.
// Without traces there is the batch alone. A gateway's pieces are no tokens of batch.
func coexists(t *testing.T, engine, base string, g *benchGateway, traces, batched bool) (got coexisted) {
	direct := g == nil
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var batch, all sync.WaitGroup
	var mu sync.Mutex
	begun := 0
	if batched && direct { // more wait in the engine than it runs
		for range 8 {
			batch.Go(func() {
				for ctx.Err() == nil {
					mu.Lock()
					begun++
					mark := begun
					mu.Unlock()
					if req, err := coexistRequest(ctx, base, 10, mark, coexistPrompt, coexistOutput); err != nil {
						t.Error(err)
					} else if _, err := stream(req); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
			})
		}
	}
	id := ""
	if batched && !direct {
		var file bytes.Buffer
		for i := range coexistItems {
			fmt.Fprintf(&file, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"model":%q,"max_tokens":%d,"prompt":[%d,%d,%s7]}}`+"\n",
				i, demoModel, coexistOutput, 1000+i/100, i%100+1, strings.Repeat("7,", coexistPrompt-3))
		}
		path := filepath.Join(t.TempDir(), "requests.jsonl")
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := commanded("batch", "submit", path, "--base-url", base+"/v1")
		if err != nil {
			t.Fatal(err)
		}
		id = strings.TrimSpace(out)
	}
	before := summed(t, engine, generatedTokens)
	interactive := int64(0)
	start := time.Now()
	got.left = coexistSeeds * coexistTrace
	underWay, since := 0, start
	for seed := range coexistSeeds {
		if !traces {
			break
		}
		tr, err := trace.Generate("metal-long-context-v1", uint32(seed+1))
		if err != nil {
			t.Fatal(err)
		}
		begin := start.Add(time.Duration(seed) * coexistTrace)
		for i := range tr.Entries {
			e := &tr.Entries[i]
			if e.Class != trace.Interactive {
				continue
			}
			at := begin.Add(e.Arrival)
			time.Sleep(time.Until(at))
			returning := strings.HasPrefix(e.ID, "interactive-resume")
			interactive += int64(e.Output)
			if time.Since(at) > 50*time.Millisecond {
				got.late++
			}
			all.Go(func() {
				var req *http.Request
				var err error
				mu.Lock()
				if underWay++; underWay == 1 {
					since = time.Now()
				}
				mu.Unlock()
				if mark := 10_000 + 100*seed + i; direct {
					req, err = coexistRequest(ctx, base, 0, mark, e.PromptTokens, e.Output)
				} else {
					req, err = completionFrom(ctx, base, trace.Interactive, mark, e.PromptTokens, e.Output, true)
				}
				if err != nil {
					t.Error(err)
					return
				}
				s, err := stream(req)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if underWay--; underWay == 0 {
					got.left -= time.Since(since)
				}
				if returning {
					got.of++
					if err == nil && s.first.Sub(at) <= 5*time.Second && s.ended.Sub(at) <= 30*time.Second {
						got.onTime++
					}
				}
			})
		}
	}
	time.Sleep(time.Until(start.Add(coexistSeeds * coexistTrace)))
	all.Wait() // in vain, but for an engine that is far behind
	got.batch = summed(t, engine, generatedTokens) - before - interactive
	if g != nil {
		got.batch -= summed(t, g.admin, finishedPieces)
	}
	if id != "" {
		out, err := commanded("batch", "status", id, "--base-url", base+"/v1")
		t.Logf("%s %v", out, err)
		if _, err := commanded("batch", "cancel", id, "--base-url", base+"/v1"); err != nil {
			t.Error(err)
		}
	}
	stop()
	batch.Wait()
	return got
}

// coexistRequest is a completion for the engine itself, which orders by priority.
func coexistRequest(ctx context.Context, base string, priority, mark, prompt, output int) (*http.Request, error) {
	req, err := completionFrom(ctx, base, trace.Batch, mark, prompt, output, true)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	body = bytes.Replace(body, []byte("{"), fmt.Appendf(nil, `{"priority":%d,`, priority), 1)
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return req, nil
}

// commanded runs headgate, and returns what it printed.
func commanded(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

var (
	generatedTokens = regexp.MustCompile(`(?m)^vllm:generation_tokens_total\{[^}]*\} ([0-9.e+]+)$`)
	finishedPieces  = regexp.MustCompile(`(?m)^headgate_pieces_total\{[^}]*outcome="finished"[^}]*\} ([0-9.e+]+)$`)
)

// summed is the sum of a counter of a listener's metrics.
func summed(t *testing.T, base string, counter *regexp.Regexp) (sum int64) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	all := counter.FindAllSubmatch(text, -1)
	if all == nil && counter == generatedTokens {
		t.Fatalf("%s has no %v", base, counter)
	}
	for _, m := range all {
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += int64(n)
	}
	return sum
}

// TestLiveBatchCoexists: with a batch that never lacks requests beside the published return
// traces, as many interactive requests are on time as without, to one in a hundred; and where
// the engine caches prefixes the batch has 93 of a hundred and more of what interactive leaves it: of
// what the engine alone makes of it in as much time as no interactive request is under way
// when those are alone. All ways are served at once, each by an engine of its own, in eight
// minutes: with -parallel 8.
func TestLiveBatchCoexists(t *testing.T) {
	for _, caching := range []bool{false, true} {
		results := map[string]coexisted{}
		var mu sync.Mutex
		t.Run(fmt.Sprintf("caching=%t", caching), func(t *testing.T) {
			t.Parallel()
			t.Run("ways", func(t *testing.T) {
				for _, way := range []struct {
					name                      string
					headgate, traces, batched bool
				}{{"alone", true, true, false}, {"batch alone", false, false, true}, {"batch", true, true, true}, {"engine", false, true, true}} {
					t.Run(way.name, func(t *testing.T) {
						t.Parallel()
						e := simengine.DefaultConfig()
						e.PrefixCaching = caching
						_, at, closeEngine, err := startBenchEngine(t.Context(), vllmapi.Config{Engine: e, ModelName: demoModel, Version: "test", PromptTokensDetails: true}, nil)
						if err != nil {
							t.Fatal(err)
						}
						defer closeEngine()
						engine := "http://" + at.String()
						base := engine
						var g *benchGateway
						if way.headgate {
							yaml := strings.NewReplacer("ENGINE", at.String(), "DIR", t.TempDir()).Replace(coexistYAML)
							for line := range strings.Lines(policyYAML) {
								yaml += "    " + line
							}
							if g, err = startBenchGateway(t.Context(), "coexist", yaml); err != nil {
								t.Fatal(err)
							}
							defer func() {
								if err := g.stop(); err != nil {
									t.Error(err)
								}
							}()
							base = g.clients
						}
						got := coexists(t, engine, base, g, way.traces, way.batched)
						mu.Lock()
						defer mu.Unlock()
						results[way.name] = got
					})
				}
			})
			late := 0
			for way, r := range results {
				t.Logf("%s: %d of %d on time, %d sent late, batch %d tokens, left %v", way, r.onTime, r.of, r.late, r.batch, r.left.Round(time.Second))
				late += r.late
			}
			alone, both := results["alone"], results["batch"]
			if late > 0 {
				t.Error("requests were sent late: this machine has something else to do")
			}
			if off := alone.onTime - both.onTime; 100*off > alone.of {
				t.Errorf("on time with a batch %d, without %d, of %d", both.onTime, alone.onTime, alone.of)
			}
			left := float64(results["batch alone"].batch) * alone.left.Seconds() / (coexistSeeds * coexistTrace).Seconds()
			least := 0.65
			if caching {
				least = 0.93
			}
			t.Logf("the batch has %d tokens, %.3f of the %.0f that interactive leaves it", both.batch, float64(both.batch)/left, left)
			if float64(both.batch) < least*left {
				t.Errorf("that is less than %g", least)
			}
		})
	}
}
