package report

import (
	"fmt"
	"strings"
)

// style is the page's. Everything on the page is in the page: it is read offline, on a
// phone and in the dark.
const style = `
:root{color-scheme:light dark;--paper:#fff;--ink:#222;--faint:#777;--grid:#ddd;--orange:#d55e00;--blue:#0072b2;--green:#009e73;--pink:#cc79a7;--band:#ececec;--lent:#e8c8da;--pass:#00694c;--fail:#a33a00;--open:#555}
@media (prefers-color-scheme:dark){:root{--paper:#16181b;--ink:#e8e8e8;--faint:#9a9a9a;--grid:#3a3d42;--orange:#ff9d4d;--blue:#6bc0f0;--green:#38cfa3;--pink:#e6a3c8;--band:#303338;--lent:#5b3a4d;--pass:#38cfa3;--fail:#ff9d4d;--open:#b0b0b0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,Arial,"Liberation Sans",sans-serif;overflow-wrap:break-word}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.15rem;margin:2.2rem 0 .4rem}
p{margin:.5rem 0}
.verdict{font-size:1.15rem;font-weight:700;padding:.6rem .9rem;border:2px solid;border-left-width:.6rem;border-radius:.3rem;margin:1rem 0}
.pass{color:var(--pass)}.fail{color:var(--fail)}.inconclusive{color:var(--open)}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--grid);white-space:nowrap}
th{font-weight:600;color:var(--faint);white-space:normal;min-width:4.5rem}
td.long{white-space:normal;min-width:14rem}
figure{margin:1rem 0}
figure svg{display:block;width:100%;min-width:44rem;height:auto}
figure svg text{font-family:Arial,"Liberation Sans",Helvetica,sans-serif}
figcaption,.lead{color:var(--faint);font-size:.85rem}
ul{padding-left:1.2rem;margin:.5rem 0}
`

// HTML is the report as one page with its pictures, which needs nothing else.
func (a *Analysis) HTML() []byte {
	r := &a.Report
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n")
	if report, err := r.JSON(); err == nil {
		b.WriteString(ofReport(report) + "\n")
	}
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n</head>\n<body>\n", attribute(r.Plan.Name), style)
	fmt.Fprintf(&b, "<h1>%s</h1>\n<p class=\"verdict %s\">%s</p>\n", attribute(r.Plan.Name), r.Verdict, attribute(r.verdictWords()))
	fmt.Fprintf(&b, "<p>%s</p>\n", attribute(r.Plan.Hypothesis))
	fmt.Fprintf(&b, "<p>Treatment <b>%s</b> against baseline <b>%s</b>, %d pairs that count. On time: %s.</p>\n", attribute(r.Plan.Treatment), attribute(r.Plan.Baseline), r.counted(), attribute(r.onTimeWords()))
	items(&b, r.Notes)
	figures := a.figures()
	for _, s := range r.sections() {
		fmt.Fprintf(&b, "<section>\n<h2>%s</h2>\n", attribute(s.title))
		if s.lead != "" {
			fmt.Fprintf(&b, "<p class=\"lead\">%s</p>\n", attribute(s.lead))
		}
		if s.table != nil {
			s.table.html(&b)
		}
		items(&b, s.list)
		for i := range figures {
			if f := &figures[i]; s.figure != "" && f.name == s.figure {
				fmt.Fprintf(&b, "<figure>\n<div class=\"scroll\">%s</div>\n<figcaption>%s</figcaption>\n</figure>\n", f.svg(), attribute(f.caption))
			}
		}
		b.WriteString("</section>\n")
	}
	b.WriteString("</body>\n</html>\n")
	return []byte(b.String())
}

func items(b *strings.Builder, list []string) {
	if len(list) == 0 {
		return
	}
	b.WriteString("<ul>\n")
	for _, l := range list {
		fmt.Fprintf(b, "<li>%s</li>\n", attribute(l))
	}
	b.WriteString("</ul>\n")
}

// longCell is the length from which a cell's text is broken into lines.
const longCell = 48

func (t *table) html(b *strings.Builder) {
	b.WriteString("<div class=\"scroll\"><table>\n<thead><tr>")
	for _, h := range t.head {
		fmt.Fprintf(b, "<th>%s</th>", attribute(h))
	}
	b.WriteString("</tr></thead>\n<tbody>\n")
	for _, cells := range t.rows {
		b.WriteString("<tr>")
		for _, c := range cells {
			class := ""
			if len(c) >= longCell && strings.Contains(c, " ") {
				class = ` class="long"`
			}
			fmt.Fprintf(b, "<td%s>%s</td>", class, attribute(c))
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("</tbody>\n</table></div>\n")
}
