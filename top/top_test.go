package top

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/google/go-cmp/cmp"

	"headgate/console/now"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

func ref[T any](v T) *T { return &v }

// busy is a gateway with all that there is to show.
func busy() *now.Now {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := func(slots, kv int64) now.Amount { return now.Amount{Slots: slots, KVTokens: kv} }
	return &now.Now{
		At: at, Problems: []string{"lending of pool main is paused by ann"},
		Pools: []now.Pool{
			{
				Name: "main", Envelope: a(8, 40960), Used: a(7, 30000), Foreign: a(1, 2048), Loans: 3, Waiting: 5, Ghosts: 1,
				Classes: []now.Class{
					{
						Name: "interactive", Used: a(2, 4096), Floor: a(5, 25600), Unlent: a(1, 5120), Ceiling: a(8, 40960), Lending: false, LendingWhy: "a recall is open",
						Queue: 2, Late: 1, Recall: &now.OpenRecall{Seq: 12, SinceS: 0.42, Loans: 2},
						Head: &now.Head{Request: "req_a", WaitedS: 0.42, WaitsFor: "1 slot that is lent to batch", Wants: a(1, 1024), Forecast: ref(0.08)},
					},
					{
						Name: "batch", Used: a(5, 25904), Floor: a(2, 10240), Borrowed: a(3, 15664), Loans: 3, Lending: true, Queue: 3,
						Head: &now.Head{Request: "req_b", WaitedS: 75, WaitsFor: "the barrier of interactive", Wants: a(1, 4096)},
					},
					{Name: "nightly-evaluation-runs", Floor: a(1, 5120), Unlent: a(1, 5120), Lending: true},
				},
				Engines: []now.Engine{
					{Name: "gpu0", State: "ready", Kind: "vllm", Version: "0.15.0", Total: a(4, 20480), Used: a(4, 18000), Foreign: a(1, 2048), Running: 5, AgeS: ref(0.12)},
					{Name: "gpu1", State: "down", Kind: "llamacpp", Total: a(4, 20480), Used: a(3, 12000), AgeS: ref(31.0), Error: "dial tcp 10.0.0.7:8000: connection refused\x1b[2J", Demoted: true, SetAsideS: 12},
				},
			},
			{Name: "small", NotReady: "no engine has answered yet", Engines: []now.Engine{{Name: "cpu0", State: "unknown"}}},
		},
		Recalls: []now.Recall{
			{Seq: 12, Pool: "main", Class: "interactive", Opened: at.Add(-420 * time.Millisecond), Granted: ref(0.0), Reclaims: make([]now.Reclaim, 2)},
			{Seq: 11, Pool: "main", Class: "interactive", Opened: at.Add(-time.Minute), Granted: ref(0.0), Settled: ref(0.067), Scheduled: ref(0.021), ScheduledUpper: ref(0.09), Reclaims: make([]now.Reclaim, 1), LeftOut: 2},
		},
	}
}

// TestText draws the same at several widths.
func TestText(t *testing.T) {
	for _, c := range []struct {
		name string
		n    *now.Now
		look Look
	}{
		{"40", busy(), Look{Width: 40}},
		{"80", busy(), Look{Width: 80, Keys: true}},
		{"120-color", busy(), Look{Width: 120, Color: true}},
		{"120-ascii-all", busy(), Look{Width: 120, ASCII: true, All: true}},
		{"300", busy(), Look{Width: 300}},
		{"second", busy(), Look{Width: 80, Pool: "small"}},
		{"lost", busy(), Look{Width: 80, Height: 12, Keys: true, Lost: "Get \"http://127.0.0.1:9090/api/now\": dial tcp 127.0.0.1:9090: connect: connection refused; nothing listens there: start headgate serve", Since: busy().At}},
		{"scrolled", busy(), Look{Width: 80, Height: 12, Keys: true, Scroll: 100}},
		{"never", nil, Look{Width: 80, Lost: "connection refused"}},
		{"help", busy(), Look{Width: 80, Help: true, Keys: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.look.URL = "http://127.0.0.1:9090"
			got := Text(c.n, c.look)
			for _, l := range strings.Split(got, "\n") {
				if n := utf8.RuneCountInString(l); n > c.look.Width && !c.look.Color || strings.ContainsAny(l, "\x1b") && !c.look.Color || strings.Contains(l, "[2J") && strings.Contains(l, "\x1b[2J") {
					t.Errorf("%d places, or a command of the terminal: %q", n, l)
				}
			}
			if n := lines(got); c.look.Height > 0 && n > c.look.Height {
				t.Errorf("%d lines", n)
			}
			file := filepath.Join("testdata", c.name+".txt")
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("-%s +drawn:\n%s", file, d)
			}
		})
	}
}

// TestBars: at each width a bar is as long as it should be, and what is used is seen however
// little it is.
func TestBars(t *testing.T) {
	for width := leastWidth; width <= 300; width++ {
		n := busy()
		n.Pools[0].Classes[0].Used = now.Amount{Slots: 1, KVTokens: 1}
		for _, l := range strings.Split(Text(n, Look{Width: width}), "\n") {
			if c := utf8.RuneCountInString(l); c > width {
				t.Fatalf("width %d: %d places: %s", width, c, l)
			}
			if strings.Contains(l, "1/25600") && !strings.Contains(l, boxes.own) {
				t.Fatalf("width %d: a token in use is not seen: %s", width, l)
			}
		}
	}
}

// TestModel is a story of somebody who looks.
func TestModel(t *testing.T) {
	var m tea.Model = New(Config{
		Reason: func(err error) string { return err.Error() }, Every: time.Millisecond, Look: Look{URL: "http://gate:9090"},
	})
	press := func(text string) tea.KeyPressMsg {
		switch text {
		case "tab":
			return tea.KeyPressMsg{Code: tea.KeyTab}
		case "shift+tab":
			return tea.KeyPressMsg{Code: tea.KeyTab, Mod: tea.ModShift}
		case "down":
			return tea.KeyPressMsg{Code: tea.KeyDown}
		}
		return tea.KeyPressMsg{Code: []rune(text)[0], Text: text}
	}
	at := busy().At
	for i, step := range []struct {
		msg  tea.Msg
		want string // in the picture
		not  string // not in it
		cmd  bool   // something follows
	}{
		{tea.WindowSizeMsg{Width: 80, Height: 30}, "asking", "[main]", false},
		{told{err: errors.New("connection refused"), at: at}, "no answer: connection refused", "since", true},
		{told{now: busy(), at: at}, "[main]", "no answer", true},
		{press("tab"), "[small]", "[main]", false},
		{press("tab"), "[main]", "[small]", false},
		{press("shift+tab"), "[small]", "[main]", false},
		{press("?"), "borrowed: beyond its floor", "no engine has answered", false},
		{press("?"), "no engine has answered", "borrowed: beyond", false},
		{told{err: errors.New("broken pipe"), at: at.Add(time.Minute)}, "no answer since 03:04:05: broken pipe", "", true},
		{due{}, "[small]", "", true},
		{told{now: busy(), at: at.Add(time.Hour)}, "[small]", "no answer", true},
		{tea.WindowSizeMsg{Width: 80, Height: 9}, "q quit", "", false},
		{press("tab"), "q quit", "recalls, newest", false},
		{press("down"), "q quit", "", false},
		{press("q"), "q quit", "", true},
	} {
		var cmd tea.Cmd
		m, cmd = m.Update(step.msg)
		text := fmt.Sprint(m.View().Content)
		if !strings.Contains(text, step.want) || step.not != "" && strings.Contains(text, step.not) || (cmd != nil) != step.cmd {
			t.Errorf("step %d, %#v: follows %t; want %q and not %q:\n%s", i, step.msg, cmd != nil, step.want, step.not, text)
		}
		if i == 14 {
			if _, ok := cmd().(tea.QuitMsg); !ok {
				t.Error("q does not end it")
			}
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("gpu0", "ready", int64(3), int64(4), 80)
	f.Fuzz(func(t *testing.T, name, state string, used, all int64, width int) {
		n := busy()
		c, e := &n.Pools[0].Classes[0], &n.Pools[0].Engines[0]
		n.Pools[0].Name, c.Name, e.Name, e.State, e.Error = name, name, name, state, state
		n.Pools[0].Envelope.Slots, c.Used.Slots, c.Borrowed.Slots = all, used, used/2
		width = leastWidth + max(width, -width, 0)%300
		for _, l := range strings.Split(Text(n, Look{Width: width, All: true}), "\n") {
			if c := utf8.RuneCountInString(l); c > width || strings.ContainsRune(l, '\x1b') {
				t.Fatalf("%d places of %d: %q", c, width, l)
			}
		}
	})
}
