package top

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"headgate/console/now"
)

// Look is what a picture is made of beside what was told.
type Look struct {
	URL    string
	Pool   string // that is chosen; "" or one that is not there: the first
	All    bool   // all pools, one below the other
	Width  int    // places of a line
	Height int    // lines; 0: as many as it takes
	Scroll int    // lines that are above the screen
	Color  bool
	ASCII  bool // the terminal has no other signs
	Help   bool // the keys, instead of the picture
	// Lost is why nothing is told any more, and Since since when.
	Lost  string
	Since time.Time
	Zone  *time.Location // nil: UTC
	// Keys has a line about keys at the end.
	Keys bool
}

// The least width that is drawn for; a narrower terminal cuts lines off.
const leastWidth = 40

// glyphs are the signs of a bar.
type glyphs struct{ own, loan, foreign, unlent, floor, free string }

var (
	boxes = glyphs{"█", "▒", "▚", "═", "─", "·"}
	ascii = glyphs{"#", "%", "x", "=", "-", "."}
)

// ours are signs that take one place beside those of ASCII.
const ours = "█▒▚═─·"

// page is a picture that is being drawn.
type page struct {
	Look
	g     glyphs
	lines []string
}

// Text is the picture, of lines that end with a newline each. n is nil before anything was
// told.
func Text(n *now.Now, l Look) string {
	l.Width = max(l.Width, leastWidth)
	if l.Zone == nil {
		l.Zone = time.UTC
	}
	p := &page{Look: l, g: boxes}
	if l.ASCII {
		p.g = ascii
	}
	p.head(n)
	top := len(p.lines)
	switch {
	case l.Help:
		p.help()
	case n != nil:
		p.pools(n)
	}
	return p.fit(top)
}

// fit cuts to the height: the head and the line about keys stay, what is between scrolls.
func (p *page) fit(top int) string {
	var foot []string
	if p.Keys {
		p.text(faint, "q quit  tab, left, right pool  up, down scroll  ? help")
		foot = p.lines[len(p.lines)-1:]
		p.lines = p.lines[:len(p.lines)-1]
	}
	body := p.lines[top:]
	if p.Height > 0 {
		room := max(p.Height-top-len(foot), 0)
		from := min(p.Scroll, max(len(body)-room, 0))
		body = body[from:min(from+room, len(body))]
	}
	all := slices.Concat(p.lines[:top], body, foot)
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}

func (p *page) line(draw func(l *line)) {
	l := &line{most: p.Width, color: p.Color}
	draw(l)
	p.lines = append(p.lines, l.String())
}

func (p *page) text(s style, text string) { p.line(func(l *line) { l.put(s, text) }) }

// mostWrapped is how many lines a reason may take.
const mostWrapped = 3

// wrapped is text on as many lines as it takes, up to a few.
func (p *page) wrapped(s style, text string) {
	for n := 1; len(text) > p.Width && n < mostWrapped; n++ {
		at := strings.LastIndexByte(text[:p.Width+1], ' ')
		if at <= 0 {
			break
		}
		p.text(s, text[:at])
		text = text[at+1:]
	}
	p.text(s, text)
}

func (p *page) blank() { p.lines = append(p.lines, "") }

// chosen is the index of the pool that is shown.
func chosen(n *now.Now, name string) int {
	return max(slices.IndexFunc(n.Pools, func(p now.Pool) bool { return p.Name == name }), 0)
}

func (p *page) head(n *now.Now) {
	p.line(func(l *line) {
		l.put(strong, "headgate")
		l.put(plain, "  "+p.URL)
		if n != nil {
			l.put(faint, "  "+n.At.In(p.Zone).Format("15:04:05"))
		}
	})
	switch {
	case p.Lost != "" && p.Since.IsZero():
		p.wrapped(bad, "no answer: "+p.Lost)
		p.text(faint, "asking again")
	case p.Lost != "":
		p.wrapped(bad, "no answer since "+p.Since.In(p.Zone).Format("15:04:05")+": "+p.Lost)
		p.text(faint, "this is how it was then; asking again")
	case n == nil:
		p.text(faint, "asking")
	case n.NotReady != "":
		p.wrapped(bad, "not ready: "+n.NotReady)
	}
	if n == nil {
		return
	}
	for _, text := range n.Problems {
		p.text(lent, text)
	}
	if len(n.Pools) > 1 && !p.All {
		p.line(func(l *line) {
			for i, pool := range n.Pools {
				if i > 0 {
					l.put(plain, "  ")
				}
				if i == chosen(n, p.Pool) {
					l.put(strong, "["+pool.Name+"]")
				} else {
					l.put(faint, " "+pool.Name+" ")
				}
			}
		})
	}
}

func (p *page) pools(n *now.Now) {
	for i := range n.Pools {
		if p.All || i == chosen(n, p.Pool) {
			p.blank()
			p.pool(&n.Pools[i])
		}
	}
	if len(n.Pools) == 0 {
		p.text(faint, "there is no pool")
	}
	p.recalls(n.Recalls)
}

func (p *page) pool(v *now.Pool) {
	p.line(func(l *line) {
		l.put(strong, v.Name)
		l.putf(plain, "  %d of %d slots, %d of %d KV tokens", v.Used.Slots, v.Envelope.Slots, v.Used.KVTokens, v.Envelope.KVTokens)
		p.note(l, v.Loans > 0, lent, plural(v.Loans, "loan"))
		p.note(l, v.Waiting > 0, plain, fmt.Sprintf("%d waiting", v.Waiting))
		p.note(l, v.Ghosts > 0, bad, plural(v.Ghosts, "ghost"))
	})
	for _, s := range []struct {
		is    bool
		style style
		text  string
	}{
		{v.NotReady != "", bad, "not ready: " + v.NotReady}, {v.Draining, bad, "drained: it takes no requests"},
		{v.Bypassed, bad, "bypassed: admission decides nothing"}, {v.LendingPaused, lent, "lending is paused"},
		{v.Observes, lent, "it observes: all are let in, and classes are what enforcing would do"},
		{v.LeaseOver, bad, "its lease is over: it has what survives"},
	} {
		if s.is {
			p.text(s.style, "  "+s.text)
		}
	}
	if len(v.Classes) > 0 {
		p.together(v)
		p.classes(v)
	}
	p.engines(v)
}

func (p *page) note(l *line, is bool, s style, text string) {
	if is {
		l.put(plain, ", ")
		l.put(s, text)
	}
}

// together are the pool's two bars: what all classes use, one behind the other, and what
// others do.
func (p *page) together(v *now.Pool) {
	for _, r := range resources {
		p.line(func(l *line) {
			l.putf(faint, "  %-5s ", r.name)
			all := r.of(&v.Envelope)
			note := ""
			if n := r.of(&v.Foreign); n > 0 {
				note += fmt.Sprintf("  %d foreign", n)
			}
			if n := r.of(&v.Withheld); n > 0 {
				note += fmt.Sprintf("  %d others'", n)
			}
			width := max(p.Width-l.n-len(note), 8)
			at, sum := 0, int64(0)
			part := func(n int64, s style, sign string) {
				sum += n
				to := places(sum, all, width)
				if n > 0 && to == at && to < width {
					to++ // what is there is seen
				}
				l.put(s, strings.Repeat(sign, max(to-at, 0)))
				at = max(at, to)
			}
			for i := range v.Classes {
				c := &v.Classes[i]
				part(r.of(&c.Used)-r.of(&c.Borrowed), ofClass(i), p.g.own)
				part(r.of(&c.Borrowed), lent, p.g.loan)
			}
			part(r.of(&v.Foreign), bad, p.g.foreign)
			l.put(faint, strings.Repeat(p.g.free, max(width-at, 0)))
			l.put(faint, note)
		})
	}
}

// resource is slots or KV tokens.
type resource struct {
	name string
	of   func(*now.Amount) int64
}

var resources = []resource{
	{"slots", func(a *now.Amount) int64 { return a.Slots }},
	{"KV", func(a *now.Amount) int64 { return a.KVTokens }},
}

// places is how much of a bar an amount takes.
func places(n, all int64, width int) int {
	if all <= 0 || n <= 0 {
		return 0
	}
	return int(math.Round(float64(min(n, all)) / float64(all) * float64(width)))
}

// bar is a class's part of the pool: what it uses of its own, what it has borrowed, and of
// what is idle what is never lent, what is its floor, and what is others'.
func (p *page) bar(l *line, r resource, v *now.Pool, i, width int) {
	c, all := &v.Classes[i], r.of(&v.Envelope)
	used, borrowed := r.of(&c.Used), r.of(&c.Borrowed)
	own, end := places(used-borrowed, all, width), places(used, all, width)
	if used > 0 && end == 0 {
		end = 1
	}
	if used > borrowed && own == 0 {
		own = 1
	}
	end = max(end, own)
	unlent, floor := places(r.of(&c.Unlent), all, width), places(r.of(&c.Floor), all, width)
	at := 0
	for _, part := range []struct {
		to   int
		s    style
		sign string
	}{{own, ofClass(i), p.g.own}, {end, lent, p.g.loan}, {unlent, mark, p.g.unlent}, {floor, mark, p.g.floor}, {width, faint, p.g.free}} {
		if part.to > at {
			l.put(part.s, strings.Repeat(part.sign, part.to-at))
			at = part.to
		}
	}
}

// wide is the width from which a class's bars stand beside each other.
const wide = 96

func (p *page) classes(v *now.Pool) {
	p.blank()
	name := 5
	for i := range v.Classes {
		name = max(name, len(v.Classes[i].Name))
	}
	name = min(name, p.Width/4)
	slots, kv := len("slots"), len("KV tokens")
	for i := range v.Classes {
		slots, kv = max(slots, len(of(resources[0], &v.Classes[i]))), max(kv, len(of(resources[1], &v.Classes[i])))
	}
	if p.Width < wide {
		for i := range v.Classes {
			p.tall(v, i, max(slots, kv))
		}
		return
	}
	const waits, state = 5, 9
	bars := (p.Width - 2 - name - slots - kv - waits - state - 2*7) / 2
	p.line(func(l *line) {
		l.put(faint, "  class")
		l.to(2 + name + 2)
		l.put(faint, "slots: used/floor")
		l.to(2 + name + 2 + bars + 2 + slots + 2)
		l.put(faint, "KV tokens: used/floor")
		l.to(p.Width - waits - state - 2)
		l.put(faint, "wait   lending")
	})
	for i := range v.Classes {
		c := &v.Classes[i]
		p.line(func(l *line) {
			l.put(plain, "  ")
			l.put(ofClass(i), cut(c.Name, name))
			l.to(2 + name + 2)
			for k, r := range resources {
				p.bar(l, r, v, i, bars)
				l.put(plain, "  "+of(r, c))
				l.to(2 + name + 2 + bars + 2 + slots + 2 + k*(bars+2+kv+2))
			}
			l.to(p.Width - waits - state - 2)
			l.putf(plain, "%4d   ", c.Queue)
			l.put(lendStyle(c), lends(c))
		})
		p.more(c)
	}
}

// tall is a class on lines of its own, where there is no room beside each other. All bars are
// of one length, so that they can be compared: numbers is how long what stands behind is.
func (p *page) tall(v *now.Pool, i, numbers int) {
	c := &v.Classes[i]
	p.line(func(l *line) {
		l.put(plain, "  ")
		l.put(ofClass(i), c.Name)
		l.putf(plain, "  %d waiting  ", c.Queue)
		l.put(lendStyle(c), lends(c))
	})
	for _, r := range resources {
		p.line(func(l *line) {
			l.putf(faint, "    %-5s ", r.name)
			p.bar(l, r, v, i, max(p.Width-l.n-numbers-2, 8))
			l.put(plain, "  "+of(r, c))
		})
	}
	p.more(c)
}

// of is what a class uses and its floor.
func of(r resource, c *now.Class) string {
	text := fmt.Sprintf("%d/%d", r.of(&c.Used), r.of(&c.Floor))
	if n := r.of(&c.Borrowed); n > 0 {
		text += fmt.Sprintf(" +%d", n)
	}
	return text
}

func lends(c *now.Class) string {
	switch {
	case c.Recall != nil:
		return "recalls"
	case c.Lending:
		return "lends"
	}
	return "keeps"
}

func lendStyle(c *now.Class) style {
	switch {
	case c.Recall != nil:
		return bad
	case c.Lending:
		return good
	}
	return faint
}

// more are lines below a class: why it does not lend, its recall, and who is next.
func (p *page) more(c *now.Class) {
	if r := c.Recall; r != nil {
		text := fmt.Sprintf("recall %d for %s, %s not back", r.Seq, span(r.SinceS), plural(r.Loans, "loan"))
		if r.Served {
			text += ", its request is let in"
		}
		p.text(bad, "    "+text)
	} else if !c.Lending && c.LendingWhy != "" {
		p.text(faint, "    keeps its floor: "+c.LendingWhy)
	}
	if h := c.Head; h != nil {
		p.line(func(l *line) {
			l.putf(plain, "    next: waited %s", span(h.WaitedS))
			if h.Forecast != nil {
				l.putf(plain, ", starts in %s", span(*h.Forecast))
			}
			p.note(l, c.Late > 0, bad, fmt.Sprintf("%d late", c.Late))
			l.putf(faint, ", wants %s, %d KV tokens: ", plural(int(h.Wants.Slots), "slot"), h.Wants.KVTokens)
			l.put(plain, h.WaitsFor)
		})
	}
}

func (p *page) engines(v *now.Pool) {
	if len(v.Engines) == 0 {
		return
	}
	p.blank()
	name, state := 0, 0
	for i := range v.Engines {
		name, state = max(name, len(v.Engines[i].Name)), max(state, len(v.Engines[i].State))
	}
	name = min(name, p.Width/4)
	for i := range v.Engines {
		e := &v.Engines[i]
		p.line(func(l *line) {
			l.put(plain, "  "+cut(e.Name, name))
			l.to(2 + name + 2)
			s := good
			if e.State != "ready" {
				s = bad
			}
			l.put(s, e.State)
			l.to(2 + name + 2 + state + 2)
			l.putf(plain, "%d/%d slots  %d/%d KV", e.Used.Slots, e.Total.Slots, e.Used.KVTokens, e.Total.KVTokens)
			if e.Foreign != (now.Amount{}) {
				l.putf(bad, "  foreign %d, %d KV", e.Foreign.Slots, e.Foreign.KVTokens)
			}
			if e.AgeS == nil {
				l.put(faint, "  never heard of")
			} else {
				l.putf(faint, "  %d running, %d waiting, %s ago", e.Running, e.Waiting, span(*e.AgeS))
			}
			if e.Demoted {
				l.put(bad, "  demoted")
			}
			if e.SetAsideS > 0 {
				l.putf(bad, "  set aside for %s", span(e.SetAsideS))
			}
			l.put(faint, strings.TrimRight("  "+e.Kind+" "+e.Version, " "))
		})
		if e.Error != "" {
			p.text(bad, "    "+e.Error)
		}
	}
}

// mostRecalls is how many are shown.
const mostRecalls = 8

// recalls are the last ones, with the three events of each.
func (p *page) recalls(all []now.Recall) {
	if len(all) == 0 {
		return
	}
	p.blank()
	p.text(faint, "  recalls, newest first: granted, settled, scheduled")
	for i := range all[:min(len(all), mostRecalls)] {
		r := &all[i]
		p.line(func(l *line) {
			l.putf(plain, "  %s  ", r.Opened.In(p.Zone).Format("15:04:05"))
			l.putf(plain, "%s %s  ", r.Pool, r.Class)
			scheduled := after(r.Scheduled)
			if r.ScheduledUpper != nil {
				scheduled += " to " + after(r.ScheduledUpper)
			}
			l.putf(strong, "%s, %s, %s", after(r.Granted), after(r.Settled), scheduled)
			l.putf(faint, "  %s ended", plural(len(r.Reclaims)+r.LeftOut, "loan"))
		})
	}
}

func (p *page) help() {
	p.blank()
	for _, text := range []string{
		"q, ctrl+c          end", "tab, right, l      the next pool", "shift+tab, left, h the pool before",
		"up, down, k, j     scroll", "?                  this, and back", "",
		"A class's bars are the pool's whole envelope wide:",
		"  " + p.g.own + " used, of its own floor", "  " + p.g.loan + " borrowed: beyond its floor, on what others hold idle",
		"  " + p.g.unlent + " idle and never lent", "  " + p.g.floor + " idle, of its floor, and lent when the class lends", "  " + p.g.free + " not its own",
		"  " + p.g.foreign + " in the pool's bars: what the engines run for others than this gateway", "",
		"used/floor +borrowed stand beside them. Of a recall the times count from its",
		"opening; - is what has not come.",
	} {
		p.text(plain, "  "+text)
	}
}

// after is an event's time after the opening.
func after(s *float64) string {
	if s == nil {
		return "-"
	}
	return span(*s)
}

// span is a time as somebody reads it at a glance.
func span(s float64) string {
	switch {
	case s < 1:
		return fmt.Sprintf("%.0f ms", s*1e3)
	case s < 10:
		return fmt.Sprintf("%.1f s", s)
	case s < 120:
		return fmt.Sprintf("%.0f s", s)
	case s < 7200:
		return fmt.Sprintf("%.0f min", s/60)
	}
	return fmt.Sprintf("%.0f h", s/3600)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
