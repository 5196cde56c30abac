package probe

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable writes what was found for people: the findings, and below them what each
// is from.
func (p *Profile) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, model %s: %d requests, %d tokens, %s\n\n", p.Kind, p.Version, p.Model, p.Requests, p.Tokens,
		time.Duration(p.Took*float64(time.Second)).Round(100*time.Millisecond))
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "subject\tfound\tconfidence")
	for _, f := range p.Findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Subject, f.value(), f.Confidence)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	b.WriteString("\nEvidence\n")
	for _, f := range p.Findings {
		fmt.Fprintf(&b, "\n%s\n", f.Subject)
		for _, e := range f.Evidence {
			fmt.Fprintf(&b, "  %s\n", e)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// value is what was found, in words.
func (f *Finding) value() string {
	switch v := f.Value.(type) {
	case string:
		return v
	case float64:
		if f.Unit == "s" {
			return ms(time.Duration(v * float64(time.Second)))
		}
		return strconv.FormatFloat(v, 'f', -1, 64) + " " + f.Unit
	}
	return "-"
}

// WritePlan writes what probing an engine would send to it.
func WritePlan(w io.Writer, o *Options, r *Reading, plan []Stage) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, model %s\n", r.Kind, r.Version, r.Model)
	said := func(what string, n int) {
		if n > 0 {
			fmt.Fprintf(&b, "  it says %s: %d\n", what, n)
		}
	}
	said("its longest sequence, in tokens", r.Context)
	said("its KV, in tokens", r.KVTokens)
	said("its slots", r.Slots)
	b.WriteString("\nTo find out what it does this would be sent, and what is disturbed once or twice again:\n\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "requests\ttokens\t")
	requests, tokens := 0, int64(0)
	for _, s := range plan {
		names := make([]string, len(s.Subjects))
		for i := range names {
			names[i] = string(s.Subjects[i])
		}
		fmt.Fprintf(t, "%d\t%d\t  %s\n", s.Requests, s.Tokens, strings.Join(names, ", "))
		requests, tokens = requests+s.Requests, tokens+s.Tokens
	}
	fmt.Fprintf(t, "%d\t%d\t  all, of which no more than %d tokens (--max-tokens) and %s (--timeout) are spent\n", requests, tokens, o.MaxTokens, o.Timeout)
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
