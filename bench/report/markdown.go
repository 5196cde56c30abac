package report

import (
	"fmt"
	"strings"
)

// Markdown is the report for a reader of text. It has no pictures.
func (r *Report) Markdown() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n**%s**\n\n", escaped(r.Plan.Name), r.verdictWords())
	fmt.Fprintf(&b, "Hypothesis: %s\n\n", escaped(r.Plan.Hypothesis))
	fmt.Fprintf(&b, "Treatment `%s` against baseline `%s`, %d pairs that count. On time: %s.\n", r.Plan.Treatment, r.Plan.Baseline, r.counted(), r.onTimeWords())
	for i, n := range r.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "- %s\n", escaped(n))
	}
	for _, s := range r.sections() {
		s.markdown(&b)
	}
	return []byte(b.String())
}

// FloorMarkdown is the part about the rig's noise; empty where there is none.
func (r *Report) FloorMarkdown() []byte {
	var b strings.Builder
	if s := r.floorSection(); s != nil {
		s.markdown(&b)
	}
	return []byte(strings.TrimPrefix(b.String(), "\n"))
}

func (s *section) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n", s.title)
	if s.lead != "" {
		fmt.Fprintf(b, "\n%s\n", escaped(s.lead))
	}
	if t := s.table; t != nil {
		b.WriteByte('\n')
		row(b, t.head)
		b.WriteString(strings.Repeat("|---", len(t.head)) + "|\n")
		for _, cells := range t.rows {
			row(b, cells)
		}
	}
	for i, l := range s.list {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "- %s\n", escaped(l))
	}
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
