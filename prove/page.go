package prove

import (
	"fmt"
	"strings"
)

// Markdown is the page for a reader of text. It has no picture.
func (rep *Report) Markdown() []byte {
	return Markdown("What could be lent, and what it costs", rep.Answer, rep.sections())
}

// Markdown writes a page of sections; what is said first stands in bold under its title.
func Markdown(title string, first []string, sections []Section) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", escaped(title))
	for _, l := range first {
		fmt.Fprintf(&b, "\n**%s**\n", escaped(l))
	}
	for _, s := range sections {
		if s.figure != "" {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n", s.Title)
		if s.Lead != "" {
			fmt.Fprintf(&b, "\n%s\n", escaped(s.Lead))
		}
		if s.Rows != nil {
			b.WriteByte('\n')
			row(&b, s.Head)
			b.WriteString(strings.Repeat("|---", len(s.Head)) + "|\n")
			for _, r := range s.Rows {
				row(&b, r)
			}
		}
		for i, l := range s.List {
			if i == 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "- %s\n", escaped(l))
		}
	}
	return []byte(b.String())
}

func row(b *strings.Builder, cells []string) {
	for _, c := range cells {
		b.WriteString("| " + escaped(c) + " ")
	}
	b.WriteString("|\n")
}

// escaped keeps text from ending a cell or a line, or from being markup.
func escaped(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", "*", `\*`, "`", "'").Replace(s)
}

func entities(s string) string {
	return strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;").Replace(s)
}

// style is the page's, which is read offline, on a phone and in the dark.
const style = `
:root{color-scheme:light dark;--paper:#fff;--ink:#222;--faint:#777;--grid:#ddd;--used:#d55e00;--lent:#0072b2;--good:#00694c;--bad:#a33a00}
@media (prefers-color-scheme:dark){:root{--paper:#16181b;--ink:#e8e8e8;--faint:#9a9a9a;--grid:#3a3d42;--used:#ff9d4d;--lent:#6bc0f0;--good:#38cfa3;--bad:#ff9d4d}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,Arial,"Liberation Sans",sans-serif;overflow-wrap:break-word}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.15rem;margin:2.2rem 0 .4rem}
.answer{font-size:1.1rem;font-weight:700;padding:.4rem .9rem;border:2px solid;border-left-width:.6rem;border-radius:.3rem;margin:1rem 0}
.answer p{margin:.4rem 0}
.pass{color:var(--good)}.fail,.distrusted{color:var(--bad)}.inconclusive{color:var(--ink)}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--grid);white-space:nowrap}
th{font-weight:600;color:var(--faint);white-space:normal;min-width:4.5rem}
svg{display:block;width:100%;min-width:40rem;height:auto}
.lead{color:var(--faint)}
ul{padding-left:1.2rem;margin:.5rem 0}
`

// HTML is the page with its picture, which needs nothing else.
func (rep *Report) HTML() []byte {
	var b strings.Builder
	const title = "What could be lent, and what it costs"
	b.WriteString("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n")
	class := string(rep.Verdict)
	if len(rep.Distrust) > 0 {
		class = "distrusted"
	}
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n</head>\n<body>\n<h1>%s</h1>\n<div class=\"answer %s\">\n", title, style, title, class)
	for _, l := range rep.Answer {
		fmt.Fprintf(&b, "<p>%s</p>\n", entities(l))
	}
	b.WriteString("</div>\n")
	for _, s := range rep.sections() {
		fmt.Fprintf(&b, "<section>\n<h2>%s</h2>\n", entities(s.Title))
		if s.Lead != "" {
			fmt.Fprintf(&b, "<p class=\"lead\">%s</p>\n", entities(s.Lead))
		}
		if s.figure != "" {
			fmt.Fprintf(&b, "<div class=\"scroll\">%s</div>\n", s.figure)
		}
		if s.Rows != nil {
			b.WriteString("<div class=\"scroll\"><table>\n<thead><tr>")
			for _, h := range s.Head {
				fmt.Fprintf(&b, "<th>%s</th>", entities(h))
			}
			b.WriteString("</tr></thead>\n<tbody>\n")
			for _, r := range s.Rows {
				b.WriteString("<tr>")
				for _, c := range r {
					fmt.Fprintf(&b, "<td>%s</td>", entities(c))
				}
				b.WriteString("</tr>\n")
			}
			b.WriteString("</tbody>\n</table></div>\n")
		}
		if len(s.List) > 0 {
			b.WriteString("<ul>\n")
			for _, l := range s.List {
				fmt.Fprintf(&b, "<li>%s</li>\n", entities(l))
			}
			b.WriteString("</ul>\n")
		}
		b.WriteString("</section>\n")
	}
	b.WriteString("</body>\n</html>\n")
	return []byte(b.String())
}

// svg draws the day: bars of what is used and, on top, lent, as shares of the engine. It
// is written by hand: bars need no library.
func (rep *Report) svg() string {
	const left, top, width, height = 50.0, 24.0, 840.0, 200.0
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 900 270" role="img" aria-label="use of the engine by block" font-family="Arial, Liberation Sans, sans-serif" font-size="12">`)
	text := func(x, y float64, anchor, fill, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="var(--%s)">%s</text>`, x, y, anchor, fill, entities(s))
	}
	for i := range 5 {
		y := top + height*(1-float64(i)/4)
		fmt.Fprintf(&b, `<path d="M%g %.1fH%g" stroke="var(--grid)"/>`, left, y, left+width)
		text(left-6, y+4, "end", "faint", fmt.Sprintf("%d %%", 25*i))
	}
	text(left, 14, "start", "used", "used at present")
	text(left+120, 14, "start", "lent", "lent to batch")
	text(left+220, 14, "start", "bad", "× fewer on time")
	n := float64(len(rep.Blocks))
	each := rep.Capacity.Hours / n
	for i := range rep.Blocks {
		k := &rep.Blocks[i]
		x, w, y := left+width*float64(i)/n, width/n, top+height
		for _, part := range []struct {
			fill  string
			hours float64
		}{{"used", k.UsedHours}, {"lent", k.LentHours}} {
			h := min(height*part.hours/each, y-top)
			y -= h
			fmt.Fprintf(&b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="var(--%s)"/>`, x, y, w*0.92, h, part.fill)
		}
		if k.OnTimeProposed < k.OnTimePresent {
			text(x+w/2, y-2, "middle", "bad", "×")
		}
	}
	if len(rep.Blocks) > 0 {
		first := rep.Blocks[0].Start
		text(left, top+height+18, "start", "faint", ClockTime(first))
		last := &rep.Blocks[len(rep.Blocks)-1]
		text(left+width, top+height+18, "end", "faint", ClockTime(last.Start))
	}
	b.WriteString(`</svg>`)
	return b.String()
}
