package batch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"headgate/batch"
	"headgate/batch/batchtest"
)

var background = context.Background()

func second(n float64) time.Time {
	return time.Unix(1_800_000_000, 0).UTC().Add(time.Duration(n * float64(time.Second)))
}

// text is a content in memory.
type text struct{ *strings.Reader }

func (text) Close() error { return nil }

// ingested is a store with one batch, whose input was read.
func ingested(t testing.TB, endpoint, input string, l batch.Limits) (*batchtest.Memory, *batch.Batch) {
	t.Helper()
	s := batchtest.NewMemory()
	if err := s.CreateFile(background, &batch.File{ID: "file-in", Tenant: "t", Purpose: "batch"}, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	b := &batch.Batch{ID: "batch_1", Tenant: "t", Endpoint: endpoint, Input: "file-in", Created: second(0), Expires: second(1e6)}
	if err := s.CreateBatch(background, b, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	if err := batch.Ingest(background, s, text{strings.NewReader(input)}, b, l, func() time.Time { return second(1) }); err != nil {
		t.Fatal(err)
	}
	b, err := s.Batch(background, "t", "batch_1")
	if err != nil {
		t.Fatal(err)
	}
	return s, b
}

func claimed(t testing.TB, s batch.Store) []batch.Claim {
	t.Helper()
	claims, err := s.Claim(background, "batch_1", "w", 1e9, 0, second(2), second(3))
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

// TestIngest reads files that are written in the stories with \r, \t, \ufeff and the like
// as Go has them, and no newline behind the last line.
func TestIngest(t *testing.T) {
	datadriven.Walk(t, "testdata/ingest", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			endpoint, limits := "/v1/chat/completions", batch.Limits{Line: 1000, Items: 1000}
			if d.HasArg("endpoint") {
				d.ScanArgs(t, "endpoint", &endpoint)
			}
			if d.HasArg("line") {
				d.ScanArgs(t, "line", &limits.Line)
			}
			if d.HasArg("items") {
				d.ScanArgs(t, "items", &limits.Items)
			}
			input, err := strconv.Unquote(`"` + strings.NewReplacer(`"`, `\"`, "\n", `\n`, `\u0`, `\\u0`).Replace(d.Input) + `"`)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			s, b := ingested(t, endpoint, input, limits)
			var out strings.Builder
			fmt.Fprintf(&out, "%s: %d\n", b.Status, b.Counts.Total)
			for _, e := range b.Errors {
				fmt.Fprintf(&out, "line %d: %s %s: %s\n", e.Line, e.Code, e.Param, e.Message)
			}
			claims := claimed(t, s)
			slices.SortFunc(claims, func(x, y batch.Claim) int { return int(x.Line - y.Line) })
			for _, c := range claims {
				fmt.Fprintf(&out, "line %d %q: %d tokens: %s\n", c.Line, c.CustomID, c.Tokens, input[c.Offset:c.Offset+c.Length])
			}
			return out.String()
		})
	})
}

// TestIngestLines: whatever lines there are in whatever order, each good one is an item
// that lies where it says, or each bad one is told of by its number.
func TestIngestLines(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var input bytes.Buffer
		var good, bad []int64
		names := map[string]bool{}
		for line := int64(1); line <= int64(rapid.IntRange(1, 40).Draw(r, "lines")); line++ {
			id := fmt.Sprint("c", rapid.IntRange(0, 60).Draw(r, "custom_id"))
			pad := strings.Repeat(" ", rapid.IntRange(0, 3).Draw(r, "pad"))
			switch rapid.SampledFrom([]string{"good", "good", "good", "good", "blank", "torn", "long"}).Draw(r, "kind") {
			case "good":
				fmt.Fprintf(&input, `%s{"custom_id":%q,"method":"POST","url":"/v1/x","body":{"model":"m","n":%d}}%s`, pad, id, line, pad)
				if names[id] {
					bad = append(bad, line)
				} else {
					good = append(good, line)
				}
				names[id] = true
			case "blank":
				input.WriteString(pad)
			case "torn":
				fmt.Fprintf(&input, `%s{"custom_id":%q`, pad, id)
				bad = append(bad, line)
			case "long":
				input.WriteString(strings.Repeat("x", rapid.IntRange(301, 1<<19).Draw(r, "length")))
				bad = append(bad, line)
			}
			input.WriteString(rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(r, "end"))
		}
		if rapid.Bool().Draw(r, "torn end") {
			input.Truncate(len(bytes.TrimRight(input.Bytes(), "\r\n")))
		}
		s, b := ingested(t, "/v1/x", input.String(), batch.Limits{Line: 300, Items: 1000})
		if len(bad) > 0 || len(good) == 0 {
			var told []int64
			for _, e := range b.Errors {
				told = append(told, e.Line)
			}
			if len(bad) == 0 {
				bad = []int64{0}
			}
			if b.Status != batch.Failed || !slices.Equal(told, bad) {
				r.Fatalf("%s with errors in %v; want %v", b.Status, told, bad)
			}
			return
		}
		if b.Status != batch.InProgress || b.Counts.Total != int64(len(good)) {
			r.Fatalf("%s with %d items: %v", b.Status, b.Counts.Total, b.Errors)
		}
		for _, c := range claimed(t, s) {
			raw := input.Bytes()[c.Offset : c.Offset+c.Length]
			if !slices.Contains(good, c.Line) || gjson.GetBytes(raw, "custom_id").Str != c.CustomID || gjson.GetBytes(raw, "body.n").Int() != c.Line {
				r.Fatalf("line %d %s lies at %q", c.Line, c.CustomID, raw)
			}
		}
	})
}

// torn is a content whose disk fails behind some bytes.
type torn struct {
	text
	at int64
}

func (c torn) ReadAt(b []byte, off int64) (int, error) {
	n, err := c.text.ReadAt(b, off)
	if off+int64(n) > c.at {
		return int(max(0, c.at-off)), errors.New("the disk failed")
	}
	return n, err
}

// TestIngestAgain: an ingestion that failed in the middle leaves the batch as it was, and
// the next one comes to the same as if there had been none.
func TestIngestAgain(t *testing.T) {
	var input strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&input, `{"custom_id":"c%d","method":"POST","url":"/v1/x","body":{"model":"m"}}`+"\n", i)
	}
	limits := batch.Limits{Line: 1000, Items: 2000}
	once, _ := ingested(t, "/v1/x", input.String(), limits)
	s := batchtest.NewMemory()
	if err := s.CreateFile(background, &batch.File{ID: "file-in", Tenant: "t"}, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	b := &batch.Batch{ID: "batch_1", Tenant: "t", Endpoint: "/v1/x", Input: "file-in", Created: second(0), Expires: second(1e6)}
	if err := s.CreateBatch(background, b, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return second(1) }
	for _, at := range []int64{0, 50_000, 120_000} {
		err := batch.Ingest(background, s, torn{text{strings.NewReader(input.String())}, at}, b, limits, now)
		if err == nil || !strings.Contains(err.Error(), "the disk failed") {
			t.Fatalf("at %d: %v", at, err)
		}
		if b, err := s.Batch(background, "t", "batch_1"); err != nil || b.Status != batch.Validating {
			t.Fatalf("at %d: %v %v", at, b.Status, err)
		}
	}
	if err := batch.Ingest(background, s, text{strings.NewReader(input.String())}, b, limits, now); err != nil {
		t.Fatal(err)
	}
	have, want := claimed(t, s), claimed(t, once)
	if len(want) != 2000 || fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("%d items, %d the first time", len(have), len(want))
	}
}

// TestPrefixOrder: prompts that begin alike are beside each other, the longer the nearer.
func TestPrefixOrder(t *testing.T) {
	var input strings.Builder
	kinds := []string{"short", "long"}
	for i := range 60 {
		system := strings.Repeat(fmt.Sprint("instruction ", i%3, ". "), 60) // 900 bytes
		if kinds[i%2] == "long" {
			system += strings.Repeat(fmt.Sprint("example ", i%6, ". "), 200) // 2400 more
		}
		fmt.Fprintf(&input, `{"custom_id":"%d %d %d","method":"POST","url":"/v1/x","body":{"messages":[{"role":"system","content":%q},{"role":"user","content":"%d"}],"model":"m"}}`+"\n",
			i%3, i%6, i, system, i)
	}
	s, _ := ingested(t, "/v1/x", input.String(), batch.Limits{Line: 10_000, Items: 1000})
	// Each group is one run.
	var last string
	runs := map[string]int{}
	for _, c := range claimed(t, s) {
		group := c.CustomID[:3]
		for _, g := range []string{group, group[:1]} {
			if !strings.HasPrefix(last, g) || g == group && last != group {
				runs[g]++
			}
		}
		last = group
	}
	for _, g := range []string{"0", "1", "2"} {
		if runs[g] != 1 {
			t.Errorf("instruction %s is in %d runs", g, runs[g])
		}
	}
	for _, g := range []string{"0 3", "1 1", "2 5"} {
		if runs[g] != 1 {
			t.Errorf("examples of %s are in %d runs", g, runs[g])
		}
	}
}

func FuzzIngest(f *testing.F) {
	f.Add([]byte("{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/x\",\"body\":{\"model\":\"m\"}}\n"))
	f.Add([]byte("\xef\xbb\xbf\r\n{\"custom_id\":\"a\",\"custom_id\":\"b\"}"))
	f.Add([]byte("[[[[[\n\x00"))
	f.Fuzz(func(t *testing.T, input []byte) {
		s, b := ingested(t, "/v1/x", string(input), batch.Limits{Line: 200, Items: 10})
		if (b.Status == batch.Failed) != (len(b.Errors) > 0) {
			t.Fatalf("%s with %d errors", b.Status, len(b.Errors))
		}
		for _, c := range claimed(t, s) {
			if line := string(input[c.Offset : c.Offset+c.Length]); gjson.Get(line, "custom_id").String() != c.CustomID || !gjson.Get(line, "body").IsObject() {
				t.Fatalf("%q lies at %q", c.CustomID, line)
			}
		}
	})
}

// heap is a store that only looks at how much memory there is in use when items come.
type heap struct {
	*batchtest.Memory
	most uint64
}

func (h *heap) AddItems(context.Context, string, []batch.Item) ([]batch.Item, error) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	h.most = max(h.most, m.HeapAlloc)
	return nil, nil
}

// TestIngestMemory: items that wait to be added don't hold their lines.
func TestIngestMemory(t *testing.T) {
	var input strings.Builder
	pad := strings.Repeat("x", 1<<20)
	const lines = 32
	for i := range lines {
		fmt.Fprintf(&input, `{"custom_id":"c%d","method":"POST","url":"/v1/x","body":{"model":"m","prompt":%q}}`+"\n", i, pad)
	}
	h := &heap{Memory: batchtest.NewMemory()}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(h.CreateFile(background, &batch.File{ID: "file-in", Tenant: "t"}, batch.Holdings{}))
	b := &batch.Batch{ID: "batch_1", Tenant: "t", Endpoint: "/v1/x", Input: "file-in", Created: second(0), Expires: second(1e6)}
	must(h.CreateBatch(background, b, batch.Holdings{}))
	in := text{strings.NewReader(input.String())}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	must(batch.Ingest(background, h, in, b, batch.Limits{Line: 2 << 20, Items: lines}, func() time.Time { return second(1) }))
	if more := int64(h.most) - int64(before.HeapAlloc); more > 16<<20 {
		t.Errorf("%d MiB are held of %d lines of 1 MiB", more>>20, lines)
	}
}
