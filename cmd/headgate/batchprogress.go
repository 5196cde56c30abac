package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// batchRate is how fast a batch goes, by what was seen in the last rateWindow.
type batchRate struct{ seen []batchSeen }

type batchSeen struct {
	at   time.Time
	done int64
}

const rateWindow = 30 * time.Second

// add notes how many items were done at a moment and returns how many are in a second;
// 0 while that is not known.
func (r *batchRate) add(at time.Time, done int64) float64 {
	r.seen = append(r.seen, batchSeen{at, done})
	first := 0
	for first < len(r.seen)-2 && at.Sub(r.seen[first].at) > rateWindow {
		first++
	}
	r.seen = r.seen[first:]
	old := r.seen[0]
	if !at.After(old.at) || done <= old.done {
		return 0
	}
	return float64(done-old.done) / at.Sub(old.at).Seconds()
}

const barWidth = 30

// bar is a part of a whole as a picture.
func bar(part, whole int64) string {
	full := 0
	if whole > 0 {
		full = int(min(part, whole) * barWidth / whole)
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "]"
}

// line is where a batch is, in one line.
func (b *batchObject) line(rate float64) string {
	n := &b.Counts
	done := n.Completed + n.Failed
	text := b.Status
	if n.Total > 0 {
		text += fmt.Sprintf(" %s %d/%d %.1f%%", bar(done, n.Total), done, n.Total, 100*float64(done)/float64(n.Total))
	}
	if n.Failed > 0 {
		text += fmt.Sprintf(", %d failed", n.Failed)
	}
	if rate > 0 && !b.ended() {
		left := time.Duration(float64(n.Total-done) / rate * float64(time.Second))
		text += fmt.Sprintf(", %.1f/s, %v left", rate, left.Round(time.Second))
	}
	return text
}

// progress shows one line that changes on a terminal, and elsewhere lines when something
// has become different, and not too many of them.
type progress struct {
	to       io.Writer
	terminal bool
	every    time.Duration // between two lines that say the same with other numbers
	last     string        // what was shown, numbers aside
	at       time.Time
	width    int
}

func newProgress(to io.Writer) *progress {
	p := &progress{to: to, every: 10 * time.Second}
	if f, ok := to.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// show shows text. kind is what it is about: one that is new is always shown.
func (p *progress) show(now time.Time, kind, text string) {
	if p.terminal {
		pad := max(p.width-len(text), 0)
		p.width = len(text)
		fmt.Fprintf(p.to, "\r%s%s", text, strings.Repeat(" ", pad))
		return
	}
	if kind == p.last && now.Sub(p.at) < p.every {
		return
	}
	p.last, p.at = kind, now
	fmt.Fprintln(p.to, text)
}

// end leaves what is shown where it is.
func (p *progress) end() {
	if p.terminal && p.width > 0 {
		fmt.Fprintln(p.to)
		p.width = 0
	}
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 1e3:
		return fmt.Sprintf("%d B", n)
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

// bytes shows how far a transfer is.
func (p *progress) bytes(what string) func(n, all int64) {
	begun := time.Now()
	return func(n, all int64) {
		now := time.Now()
		if !p.terminal && n != all && now.Sub(begun) < p.every {
			return // it may be over before anybody has read so
		}
		text := fmt.Sprintf("%s %s", what, size(n))
		if all > n {
			text = fmt.Sprintf("%s %s %s of %s", what, bar(n, all), size(n), size(all))
		}
		kind := what
		if n == all {
			kind += " done"
		}
		p.show(now, kind, text)
	}
}
