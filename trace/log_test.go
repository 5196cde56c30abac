package trace

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

const azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" +
	"2023-11-16 18:17:03.9799600,4808,10\r\n" +
	"2023-11-16 18:17:04.0319600,3180,8\r\n" +
	"2023-11-17 00:00:00.0000006,1,1" // seven digits, and no newline

const burstGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" +
	"5,ChatGPT,472,18,490,Conversation log\n" +
	"45,GPT-4,1087,0,1087,API log\n" +
	"118.5,GPT-4,417,276,693,Conversation log\n"

const burstGPTSessions = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n" +
	"5,s1,1.5,ChatGPT,472,18,490,Conversation log\n" +
	"7,,,ChatGPT,1,2,3,API log\n"

const mooncake = `{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 18446744073709551615]}
{"timestamp": 3000, "input_length": 12, "output_length": 3}
{"output_length": 5, "hash_ids": [], "input_length": 13, "timestamp": 3000.25}
`

var ignoreDraw = cmpopts.IgnoreFields(Entry{}, "Draw")

func entry(id string, at time.Duration, prompt, output int) Entry {
	return Entry{ID: id, Class: Batch, Arrival: at, PromptTokens: prompt, Output: output}
}

func TestReadLogs(t *testing.T) {
	session := entry("batch-1", 5*time.Second, 472, 18)
	session.Session = "s1"
	blocks := entry("batch-1", 27482*time.Millisecond, 6955, 52)
	blocks.Prefix = []uint64{46, 47, math.MaxUint64}
	none := entry("batch-3", 3000250*time.Microsecond, 13, 5)
	none.Prefix = []uint64{}
	for _, c := range []struct {
		file, text string
		skipped    int
		want       []Entry
	}{
		{"a.csv", azure, 0, []Entry{
			entry("batch-1", 0, 4808, 10), entry("batch-2", 52*time.Millisecond, 3180, 8),
			entry("batch-3", 5*time.Hour+42*time.Minute+56020041*time.Microsecond, 1, 1),
		}},
		{"dir/2024.csv", strings.NewReplacer("00,4808", "00+00:00,4808", "00,3180", "00+00:00,3180", "06,1,1", "06+01:00,1,1").Replace(azure), 0, []Entry{
			entry("batch-1", 0, 4808, 10), entry("batch-2", 52*time.Millisecond, 3180, 8),
			entry("batch-3", 4*time.Hour+42*time.Minute+56020041*time.Microsecond, 1, 1),
		}},
		{"b.csv", burstGPT, 1, []Entry{entry("batch-1", 5*time.Second, 472, 18), entry("batch-3", 118500*time.Millisecond, 417, 276)}},
		{"s.csv", burstGPTSessions, 0, []Entry{session, entry("batch-2", 7*time.Second, 1, 2)}},
		{"m.jsonl", mooncake, 0, []Entry{entry("batch-2", 3*time.Second, 12, 3), none, blocks}},
	} {
		tr, err := Read(strings.NewReader(c.text), c.file, Batch)
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		if d := cmp.Diff(c.want, tr.Entries, ignoreDraw); d != "" {
			t.Errorf("%s (-want +have):\n%s", c.file, d)
		}
		if want := strings.TrimSuffix(filepath.Base(c.file), filepath.Ext(c.file)); tr.Skipped != c.skipped || tr.Profile != want || tr.Protocol != Imported {
			t.Errorf("%s: %d skipped, profile %s, protocol %s", c.file, tr.Skipped, tr.Profile, tr.Protocol)
		}
		if last := tr.Entries[len(tr.Entries)-1]; !tr.Workload.Return().Contains(last.Arrival) || tr.Workload.Duration()-last.Arrival > time.Millisecond {
			t.Errorf("%s: lasts %v, the last arrival is %v", c.file, tr.Workload.Duration(), last.Arrival)
		}
	}
}

func TestReadPublished(t *testing.T) {
	tr, err := Read(strings.NewReader(written(t, generate(t, "fixed-burst-v3", 4))), "x.json", Batch)
	if err != nil || tr.Profile != "fixed-burst-v3" || tr.Seed != 4 {
		t.Errorf("%+v, %v", tr, err)
	}
}

func TestReadRefuses(t *testing.T) {
	const a, b = "TIMESTAMP,ContextTokens,GeneratedTokens\n", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
	for _, c := range []struct{ file, text, want string }{
		{"f.csv", "", `f.csv: no known format: allowed are the published one, Mooncake JSONL, Azure CSV and BurstGPT CSV`},
		{"f.csv", "time,in,out\n", `f.csv: no known format`},
		{"f.jsonl", "[]", `f.jsonl: no known format`},
		{"f.jsonl", `{"chat_id":1,"timestamp":0}`, `f.jsonl: no known format`},
		{"f.json", `{"`, `f.json: no known format`},
		{"f.csv", a, `trace f: no request with an output: allowed is one or more`},
		{"f.csv", "TIMESTAMP,ContextTokens,Generated\n", `f.csv:1: field header is Generated: allowed is GeneratedTokens`},
		{"f.csv", a + "2023-11-16 18:17:03,1\n", `f.csv:2: 2 columns: allowed is TIMESTAMP,ContextTokens,GeneratedTokens`},
		{"f.csv", a + "16.11.2023,1,1\n", `f.csv:2: field TIMESTAMP is 16.11.2023: allowed is a time such as 2023-11-16 18:15:46.6805900, with or without a zone`},
		{"f.csv", a + "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1", `f.csv:3: field TIMESTAMP is 2023-11-16 18:17:02: allowed is a time in the ten years from the first line's, 2023-11-16T18:17:03`},
		{"f.csv", a + "2023-11-16 18:17:03,0,1\n", `f.csv:2: field ContextTokens is 0: allowed is a whole number from 1 to 16777216`},
		{"f.csv", a + "2023-11-16 18:17:03,1,x\n", `f.csv:2: field GeneratedTokens is x: allowed is a whole number from 0 to 16777216`},
		{"f.csv", a + "\n", `f.csv:2: 1 columns: allowed is TIMESTAMP`},
		{"f.csv", b + "1,m,2,3,6,API log\n", `f.csv:2: field Total tokens is 6: allowed is the sum of the two before, 5`},
		{"f.csv", b + "-1,m,2,3,5,API log\n", `f.csv:2: field Timestamp is -1: allowed is a number from 0 to 315360000`},
		{"f.csv", b + "0x1p4,m,2,3,5,API log\n", `f.csv:2: field Timestamp is 0x1p4: allowed is a number from 0`},
		{"f.csv", b + "1,m,2,,2,API log\n", `f.csv:2: field Response tokens is empty: allowed is a whole number from 0`},
		{"f.csv", strings.Replace(burstGPTSessions, "s1", "s 1", 1), `f.csv:2: field Session ID is s 1: allowed is a name of 1 to 128`},
		{"f.jsonl", mooncake + "[]", `f.jsonl:4: what is no JSON object: allowed is an object with timestamp, input_length, output_length, hash_ids`},
		{"f.jsonl", mooncake + "\n", `f.jsonl:4: what is no JSON object`},
		{"f.jsonl", `{"timestamp":0,"input_length":1}`, `f.jsonl:1: field output_length is missing: allowed is one`},
		{"f.jsonl", `{"timestamp":"0","input_length":1,"output_length":1}`, `f.jsonl:1: field timestamp is "0": allowed is a number from 0 to 315360000000`},
		{"f.jsonl", `{"timestamp":0,"input_length":1.5,"output_length":1}`, `f.jsonl:1: field input_length is 1.5: allowed is a whole number from 1`},
		{"f.jsonl", `{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1,-2]}`, `f.jsonl:1: field hash_ids is [1,-2]: allowed is a list of at most 65536 whole numbers from 0`},
		{"f.jsonl", `{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[null]}`, `f.jsonl:1: field hash_ids is [null]: allowed`},
		{"f.jsonl", `{"timestamp":0,"input_length":1,"output_length":1} {}`, `f.jsonl:1: more than one value: allowed is one object a line`},
		{"f.jsonl", `{"timestamp":0,"input_length":1,"output_length":1`, `f.jsonl:1: broken JSON`},
		{"f.jsonl", `{"timestamp":0,"chat_id":1}`, `f.jsonl:1: unknown field chat_id: allowed is one of timestamp, input_length, output_length, hash_ids`},
		{"f.jsonl", `{"timestamp":` + strings.Repeat(" ", maxLine), `f.jsonl:1: a longer line: allowed is at most 1048576 bytes`},
	} {
		_, err := Read(strings.NewReader(c.text), c.file, Batch)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %.60q: error %v\nwant %s", c.file, c.text, err, c.want)
		}
	}
	if _, err := Read(strings.NewReader(azure), "f.csv", "a class"); err == nil || !strings.Contains(err.Error(), `class "a class": allowed is a name`) {
		t.Errorf("class with a space: %v", err)
	}
	if _, err := Read(strings.NewReader("# Traces\n"), "README.md", Batch); !errors.Is(err, ErrFormat) {
		t.Errorf("a page: %v", err)
	}
	for _, err := range Mooncake(strings.NewReader(""), Log{File: "f", Class: Batch}) {
		if err == nil || err.Error() != "f: an empty file: allowed is one request a line" {
			t.Errorf("an empty file: %v", err)
		}
	}
	broken := errors.New("broken")
	for _, head := range []string{"", `{"profile":`, `{"timestamp":` + strings.Repeat(" ", maxHead)} {
		_, err := Read(io.MultiReader(strings.NewReader(head), iotest.ErrReader(broken)), "f", Batch)
		if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("after %.20q a reader's error came back as %v", head, err)
		}
	}
}

// TestReadTellsByContent gives every format a name that says another.
func TestReadTellsByContent(t *testing.T) {
	for _, c := range []struct {
		file, text, profile string
		entries             int
	}{
		{"a.json", azure, "a", 3},
		{"b.log", burstGPT, "b", 2},
		{"s", burstGPTSessions, "s", 2},
		{"m.csv", " " + mooncake, "m", 3},
		{"last key first.jsonl", mooncake[strings.Index(mooncake, `{"output`):], "last_key_first", 1},
		{"p.csv", "\n" + written(t, generate(t, "metal-balanced-v1", 3)), "metal-balanced-v1", 64},
	} {
		tr, err := Read(strings.NewReader(c.text), c.file, Batch)
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		if tr.Profile != c.profile || len(tr.Entries) != c.entries {
			t.Errorf("%s: profile %s with %d entries, want %s with %d", c.file, tr.Profile, len(tr.Entries), c.profile, c.entries)
		}
	}
}

// TestLogsStream checks that an entry comes before the line after it is read,
// and that a reader may stop.
func TestLogsStream(t *testing.T) {
	for name, read := range logReaders() {
		text := map[string]string{"azure": azure, "burstgpt": burstGPT, "mooncake": mooncake}[name]
		lines := strings.SplitAfter(text, "\n")
		first := 1
		if name == "mooncake" {
			first = 0
		}
		r := iotest.OneByteReader(strings.NewReader(strings.Join(lines[:first+1], "") + "not a line of any format\n"))
		var have []string
		for e, err := range read(r) {
			if err != nil {
				break
			}
			have = append(have, e.ID)
		}
		if !slices.Equal(have, []string{"batch-1"}) {
			t.Errorf("%s: before the broken line came %v", name, have)
		}
		for range read(strings.NewReader(text)) {
			break // must not panic
		}
	}
}

func logReaders() map[string]func(io.Reader) iter.Seq2[Entry, error] {
	l := Log{File: "f", Class: Batch}
	return map[string]func(io.Reader) iter.Seq2[Entry, error]{
		"azure":    func(r io.Reader) iter.Seq2[Entry, error] { return Azure(r, l) },
		"burstgpt": func(r io.Reader) iter.Seq2[Entry, error] { return BurstGPT(r, l) },
		"mooncake": func(r io.Reader) iter.Seq2[Entry, error] { return Mooncake(r, l) },
	}
}

// drawLog draws a recorded log's trace.
func drawLog(t *rapid.T) *Trace {
	var entries []Entry
	for i := range rapid.IntRange(1, 20).Draw(t, "entries") {
		e := Entry{
			ID: fmt.Sprintf("%s-%d", Batch, i+1), Class: rapid.SampledFrom([]string{Batch, Interactive, "other"}).Draw(t, "class"),
			Arrival:      time.Duration(rapid.IntRange(0, int(MaxDuration/time.Microsecond)-1000).Draw(t, "us")) * time.Microsecond,
			PromptTokens: rapid.IntRange(1, MaxTokens).Draw(t, "prompt"),
			Output:       rapid.IntRange(0, MaxTokens).Draw(t, "output"),
			Session:      rapid.StringMatching(`[a-z0-9/]{0,8}`).Draw(t, "session"),
		}
		if rapid.Bool().Draw(t, "blocks") {
			e.Prefix = rapid.SliceOf(rapid.Uint64()).Draw(t, "prefix")
		}
		entries = append(entries, e)
	}
	entries[0].Output = 1 // one is left to replay
	tr, err := Collect("log", rapid.Uint32().Draw(t, "seed"), func(yield func(Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestCollectKeepsFileOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := drawLog(t)
		for i := 1; i < len(tr.Entries); i++ {
			a, b := &tr.Entries[i-1], &tr.Entries[i]
			_, na := splitID(a.ID)
			_, nb := splitID(b.ID)
			if b.Arrival < a.Arrival || b.Arrival == a.Arrival && nb < na {
				t.Fatalf("%s at %v before %s at %v", a.ID, a.Arrival, b.ID, b.Arrival)
			}
		}
	})
}

func fuzzLog(f *testing.F, ending string, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := Read(strings.NewReader(text), "f"+ending, Batch)
		if err != nil {
			return
		}
		again, err := Published(strings.NewReader(written(t, tr)), "f.json")
		if err != nil {
			t.Fatalf("what was read cannot be written and read again: %v", err)
		}
		if d := cmp.Diff(tr, again); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzAzure(f *testing.F)    { fuzzLog(f, ".csv", azure) }
func FuzzBurstGPT(f *testing.F) { fuzzLog(f, ".csv", burstGPT, burstGPTSessions) }
func FuzzMooncake(f *testing.F) { fuzzLog(f, ".jsonl", mooncake) }

func BenchmarkBurstGPT(b *testing.B) {
	const lines = 10_000
	head, rest, _ := strings.Cut(burstGPT, "\n")
	row, _, _ := strings.Cut(rest, "\n")
	file := head + "\n" + strings.Repeat(row+"\n", lines)
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		if _, err := Read(strings.NewReader(file), "f.csv", Batch); err != nil {
			b.Fatal(err)
		}
	}
}
