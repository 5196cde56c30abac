package relayed_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/batch"
	"headgate/batch/batchtest"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
)

// The figures of docs/batch.md:
//
//	go test ./batch/relayed -run TestPrefixesTogether -prefix.items 1000 -v
var prefixItems = flag.Int("prefix.items", 100, "requests of TestPrefixesTogether's file")

// shuffled keeps items in the order of their file.
type shuffled struct{ *batchtest.Memory }

func (s shuffled) AddItems(ctx context.Context, id string, items []batch.Item) ([]batch.Item, error) {
	for i := range items {
		items[i].Prefix = 0
	}
	return s.Memory.AddItems(ctx, id, items)
}

// counted is a counter of the simulated engine.
func (r *rig) counted(name string) int {
	r.t.Helper()
	out := httptest.NewRecorder()
	r.engine.ServeHTTP(out, httptest.NewRequest("GET", "/metrics", nil))
	m := regexp.MustCompile(`(?m)^vllm:` + name + `\{.*\} (\S+)$`).FindStringSubmatch(out.Body.String())
	if m == nil {
		r.t.Fatalf("no %s in\n%s", name, out.Body)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return int(n)
}

// TestPrefixesTogether: of a file whose prompts share some long beginnings, in any order, the
// engine finds more in its cache, and is done sooner, because equal beginnings run together.
func TestPrefixesTogether(t *testing.T) {
	n := *prefixItems
	beginnings := max(n/25, 20)
	random := rand.New(rand.NewPCG(1, 2))
	words := func(n int) string {
		var b strings.Builder
		for range n {
			fmt.Fprintf(&b, "%05d ", random.IntN(100_000))
		}
		return b.String()
	}
	shared := make([]string, beginnings)
	for i := range shared {
		shared[i] = words(250)
	}
	var file strings.Builder
	for i, at := range random.Perm(n) {
		body, err := json.Marshal(map[string]any{"model": "test-model", "max_tokens": 32, "min_tokens": 32, "messages": []map[string]string{
			{"role": "system", "content": shared[at%beginnings]}, {"role": "user", "content": words(30)}}})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&file, `{"custom_id":"c%d","method":"POST","url":"/v1/chat/completions","body":%s}`+"\n", i, body)
	}
	// run returns how many tokens of prompts the engine found in its cache, of how many, and
	// how long the batch took.
	run := func(store batch.Store) (cached, of int, took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			e := simengine.DefaultConfig()
			e.MaxNumSeqs, e.NumBlocks, e.PrefixCaching = 8, 1+8*2048/16, true
			r := newRigOf(t, 64, vllmapi.Config{Engine: e})
			contents, now := batchtest.NewContents(), time.Now()
			up, err := contents.Create(t.Context(), "in")
			if err == nil {
				_, err = io.WriteString(up, file.String())
			}
			if err == nil {
				err = up.Commit()
			}
			if err == nil {
				err = store.CreateFile(t.Context(), &batch.File{ID: "in", Tenant: "t"}, batch.Holdings{})
			}
			if err == nil {
				err = store.CreateBatch(t.Context(), &batch.Batch{ID: "b", Tenant: "t", Class: "batch", Endpoint: chat, Input: "in", Created: now, Expires: now.Add(24 * time.Hour)}, batch.Holdings{})
			}
			if err != nil {
				t.Fatal(err)
			}
			cfg := batch.Default()
			cfg.Store, cfg.Files, cfg.Runner, cfg.Name = store, contents, r, "w"
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				batch.NewWorker(cfg).Run(ctx)
			}()
			for {
				time.Sleep(100 * time.Millisecond)
				b, err := store.Batch(t.Context(), "t", "b")
				if err != nil {
					t.Fatal(err)
				}
				if b.Status.Ended() {
					if took = b.CompletedAt.Sub(b.Started); b.Counts.Completed != int64(n) {
						t.Errorf("%s: %+v, %v", b.Status, b.Counts, b.Errors)
					}
					break
				}
			}
			cached, of = r.counted("prefix_cache_hits_total"), r.counted("prefix_cache_queries_total")
			stop()
			<-ended
		})
		return cached, of, took
	}
	together, of, soon := run(batchtest.NewMemory())
	apart, _, late := run(shuffled{batchtest.NewMemory()})
	t.Logf("%d requests of %d prompt tokens, %d beginnings: together %.1f %% cached, %.0f s; in the file's order %.1f %% cached, %.0f s",
		n, of/n, beginnings, 100*float64(together)/float64(of), soon.Seconds(), 100*float64(apart)/float64(of), late.Seconds())
	if together < apart*3/2 || soon >= late {
		t.Errorf("it gains nothing")
	}
}
