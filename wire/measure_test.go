package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMeasureText(t *testing.T) {
	for _, c := range []struct {
		raw                string // as within a JSON string
		prose, dense, wide int
	}{
		{``, 0, 0, 0},
		{`Hello, world.`, 13, 0, 0},
		{`Grüße, Привет`, 21, 0, 0},
		{`in 1984 and 2001`, 8, 8, 0},
		{`3.14159`, 1, 6, 0},
		{`9f86d081884c7d65 x`, 2, 16, 0},
		{`utf8 is`, 3, 4, 0},
		{`8080port`, 0, 8, 0},
		{`漢字kana`, 4, 0, 6},
		{`😀`, 0, 0, 4},
		{`{"a":[{"b":`, 9, 2, 0}, // ":[ and then {"
		{`----------`, 10, 0, 0},
		{`$%^&*()#@!`, 3, 7, 0},
		{`a\nb\tc\"`, 6, 0, 0},
		{`\u0041\u00e9\u4e2d\ud83d\ude00\ud83d`, 3, 0, 10},
		{`\u0031\u0032`, 0, 2, 0},
		{`\\\\\\\\\\`, 5, 0, 0},
	} {
		var got Content
		measureText(&got, []byte(c.raw))
		if want := [NumKinds]int{c.prose, c.dense, c.wide}; got.Bytes != want {
			t.Errorf("%s: got %v, want %v", c.raw, got.Bytes, want)
		}
	}
}

// However text is escaped, it measures the same, and every byte is counted once.
func TestMeasureProperty(t *testing.T) {
	runes := rapid.SampledFrom([]rune("ab19 \n.,{}\"\\/+-é漢😀\u007f\u2028"))
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(runes).Draw(t, "text"))
		var plain, escaped Content
		quoted, _ := json.Marshal(text)
		measureText(&plain, quoted[1:len(quoted)-1])
		var b strings.Builder
		for _, r := range text {
			if r >= 0x10000 {
				r -= 0x10000
				fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		}
		measureText(&escaped, []byte(b.String()))
		if d := cmp.Diff(plain, escaped); d != "" {
			t.Errorf("%q (-plain +escaped)\n%s", text, d)
		}
		if n := plain.Bytes[Prose] + plain.Bytes[Dense] + plain.Bytes[Wide]; n != len(text) {
			t.Errorf("%q: %d of %d bytes counted", text, n, len(text))
		}
	})
}

// The ratios that the fact sheet gives, for texts of each kind: the estimate
// must lie near the models' middle, and the bound above the densest model.
func TestEstimateAgainstMeasuredRatios(t *testing.T) {
	code := "\tif err := json.Unmarshal(b, &want); err != nil {\n\t\tt.Fatal(err)\n\t}\n"
	for _, c := range []struct {
		name, sample string
		least, most  float64 // measured bytes per token over models
	}{
		{"English", "The gate opens when those with senior rights call on the water. ", 4.1, 4.2},
		{"Go", code, 3.7, 3.9},
		{"JSON", `{"name":"gate","open":true,"level":12,"rights":["senior","junior"]},`, 3.0, 3.2},
		{"numeric JSON", `[0.123,4.5678,-9.01,23.4],`, 1.4, 2.3},
		{"base64", "iVBORw0KGgoAAAANSUhEUgAAAB4CAYAAAA5ZDbS", 1.4, 1.5},
		{"hex", "9f86d081884c7d659a2feaa0c55ad015", 1.1, 1.8},
		{"digits", "31415926535897932384", 1.0, 3.0},
		{"Chinese", "閘門在優先權人要求時為其開啟", 3.6, 4.6},
		{"German", "Das Wehr gibt den Alteigentümern ihr Wasser zurück. ", 3.6, 4.5},
	} {
		quoted, _ := json.Marshal(strings.Repeat(c.sample, 100))
		var content Content
		measureText(&content, quoted[1:len(quoted)-1])
		bytes := float64(100 * len(c.sample))
		if got := bytes / float64(Estimate(content)); got < c.least*0.85 || got > c.most*1.15 {
			t.Errorf("%s: %.2f bytes a token, measured %.1f to %.1f", c.name, got, c.least, c.most)
		}
		if bound := float64(Bound(content)); bound < bytes/c.least {
			t.Errorf("%s: bound %v, a model takes %.0f", c.name, bound, bytes/c.least)
		}
	}
}

func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		content         Content
		estimate, bound int
	}{
		{Content{}, 0, 0},
		{Content{TokenIDs: 1000}, 1000, 1000},
		{Content{Bytes: [3]int{400, 15, 37}, Messages: 2}, 100 + 10 + 10 + 3 + 8, 308 + 15 + 37 + 3 + 24},
		{Content{Media: 2, Messages: 1}, 2807, 32783},
	} {
		if e, b := Estimate(c.content), Bound(c.content); e != c.estimate || b != c.bound {
			t.Errorf("%+v: estimate %d, bound %d; want %d, %d", c.content, e, b, c.estimate, c.bound)
		}
	}
}

func TestEstimator(t *testing.T) {
	text := Content{Bytes: [3]int{4000, 0, 0}} // estimated at 1,000
	observe := func(e *Estimator, model string, c Content, reported, times int) {
		for range times {
			e.Observe(model, c, reported)
		}
	}
	t.Run("learns after five", func(t *testing.T) {
		e := NewEstimator(2)
		observe(e, "m", text, 1200, 4)
		if got := e.Estimate("m", text); got != 1000 {
			t.Errorf("after four: %d", got)
		}
		observe(e, "m", text, 1200, 1)
		if got := e.Estimate("m", text); got < 1199 || got > 1201 {
			t.Errorf("after five: %d", got)
		}
		if got := e.Estimate("other", text); got != 1000 {
			t.Errorf("another model: %d", got)
		}
		if got := e.Estimate("m", Content{TokenIDs: 77}); got != 77 {
			t.Errorf("token ids are exact: %d", got)
		}
	})
	t.Run("clamped", func(t *testing.T) {
		e := NewEstimator(2)
		observe(e, "high", text, 3900, 10)
		observe(e, "low", text, 260, 10)
		if h, l := e.Factor("high"), e.Factor("low"); h != 2 || l != 0.5 {
			t.Errorf("factors %v, %v", h, l)
		}
	})
	t.Run("follows", func(t *testing.T) {
		e := NewEstimator(1)
		observe(e, "m", text, 1500, 50)
		observe(e, "m", text, 800, 100)
		if f := e.Factor("m"); math.Abs(f-0.8) > 0.01 {
			t.Errorf("factor %v", f)
		}
	})
	t.Run("one long prompt does not decide", func(t *testing.T) {
		e := NewEstimator(1)
		observe(e, "m", text, 1000, 50)
		observe(e, "m", Content{Bytes: [3]int{4_000_000, 0, 0}}, 2_000_000, 1)
		if f := e.Factor("m"); f > 1.25 {
			t.Errorf("factor %v", f)
		}
	})
	t.Run("what teaches nothing", func(t *testing.T) {
		e := NewEstimator(1)
		observe(e, "m", Content{Bytes: [3]int{40, 0, 0}}, 30, 9)
		observe(e, "m", Content{Bytes: text.Bytes, Media: 1}, 3000, 9)
		observe(e, "m", Content{TokenIDs: 500}, 600, 9)
		observe(e, "m", text, 0, 9)
		observe(e, "m", text, 9000, 9)
		if got := e.Snapshot(); len(got) != 0 {
			t.Errorf("learned %v", got)
		}
	})
	t.Run("bounded, kept and restored", func(t *testing.T) {
		e := NewEstimator(2)
		observe(e, "b", text, 1100, 6)
		observe(e, "a", text, 900, 6)
		observe(e, "c", text, 900, 6)
		kept := e.Snapshot()
		if len(kept) != 2 || kept[0].Model != "a" || kept[1].Model != "b" || e.Factor("c") != 1 {
			t.Fatalf("kept %v", kept)
		}
		again := NewEstimator(2)
		if err := again.Restore(kept); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(kept, again.Snapshot()); d != "" {
			t.Errorf("(-kept +restored)\n%s", d)
		}
		for _, bad := range []Learned{{"x", 0, 1, 1}, {"x", 1, 0, 1}, {"x", 1, 1, math.NaN()}, {"x", 1, math.Inf(1), 1}} {
			if err := again.Restore([]Learned{bad}); err == nil || !strings.Contains(err.Error(), `"x"`) {
				t.Errorf("%v: %v", bad, err)
			}
		}
		if len(again.Snapshot()) != 2 {
			t.Error("a snapshot that was refused changed something")
		}
	})
}

func BenchmarkMeasureText(b *testing.B) {
	for _, c := range []struct{ name, sample string }{
		{"prose", "The gate opens when those with senior rights call on the water. "},
		{"code", `\tif err := json.Unmarshal(b, &want); err != nil {\n\t\tt.Fatal(err)\n\t}\n`},
		{"base64", "iVBORw0KGgoAAAANSUhEUgAAAB4CAYAAAA5ZDbS"},
	} {
		b.Run(c.name, func(b *testing.B) {
			text := []byte(strings.Repeat(c.sample, 200))
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				var content Content
				measureText(&content, text)
			}
		})
	}
}
