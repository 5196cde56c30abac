package kv

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// tokens are digits in groups of three.
func tokens(n int64) string {
	if n == maxTokens {
		return "any"
	}
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// limits say what sets a limit.
var limits = map[string]string{
	"kv": "the KV", "slot": "a slot's part of the KV", "slots": "the slots", "state": "the pool of states",
	"context": "the model's or the flags' context", "none": "nothing that was given",
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, c)
		}
		fmt.Fprintln(t)
	}
	line("model", fmt.Sprintf("%s, %d layers", r.Architecture, r.Layers))
	if r.Stage != "" {
		line("pipeline stage", r.Stage+": the one that fills first")
	}
	line("a token", FormatBytes(r.BytesPerToken)+" on each card")
	if r.SlidingPerToken > 0 {
		line("in a window", FormatBytes(r.SlidingPerToken)+" more for each token that is still inside")
	}
	if r.BytesPerSequence > 0 {
		line("a sequence", FormatBytes(r.BytesPerSequence)+" of state, whatever its length")
	}
	line("sharing", fmt.Sprintf("%s: %s", r.Sharing, r.Why))
	if r.Slots > 0 {
		line("at once", fmt.Sprintf("%d sequences, by the engine's flags", r.Slots))
	}
	if r.SlotTokens > 0 {
		line("a session", "at most "+tokens(r.SlotTokens)+" tokens")
	}
	if r.Budget > 0 {
		line("budget", fmt.Sprintf("%.2f GiB = %.2f GB = %s bytes a card", float64(r.Budget)/(1<<30), float64(r.Budget)/1e9, tokens(r.Budget)))
	}
	if r.Pool != nil {
		pool := tokens(r.Pool.Tokens) + " tokens"
		if r.Pool.Blocks > 0 && r.Block > 1 {
			pool += fmt.Sprintf(", %s blocks of %d", tokens(r.Pool.Blocks), r.Block)
		}
		line("pool", pool)
	}
	if r.Allocated > 0 {
		line("taken at start", FormatBytes(r.Allocated))
	}
	if a := r.Asked; a != nil {
		line("asked", fmt.Sprintf("%d x %s tokens: %s each alone, %s in all", a.Sessions, tokens(a.Context), FormatBytes(a.Each), FormatBytes(a.All)))
	}
	if r.Fits != nil {
		fits := "no"
		if *r.Fits {
			fits = "yes"
		}
		line("fits", fits)
	}
	limit := func(what string, l *Limit) {
		if l != nil {
			line(what, fmt.Sprintf("%s, set by %s", tokens(l.N), limits[l.By]))
		}
	}
	limit("most sessions", r.MaxSessions)
	limit("longest context", r.MaxLength)
	if p := r.Prefix; p != nil {
		line("shared prefix", fmt.Sprintf("%s of %s tokens: %s once, %.1f %% of the budget while nothing runs; it saves %s", tokens(p.Kept), tokens(p.Tokens), FormatBytes(p.Once), 100*p.PoolShare, FormatBytes(p.Saved)))
		limit("without sharing", p.WithoutCache)
		line("", p.Why)
	}
	line()
	line("layers", "kind", "window", "a token", "a sequence")
	for _, g := range r.Groups {
		cell := func(n int64, s string) string {
			if n == 0 {
				return "-"
			}
			return s
		}
		line(g.Layers, g.Kind, cell(g.Window, tokens(g.Window)), cell(g.PerToken, FormatBytes(g.PerToken)), cell(g.PerSequence, FormatBytes(g.PerSequence)))
	}
	if len(r.Share) > 0 {
		line()
		line("sessions", "longest context of each")
		for _, s := range r.Share {
			line(s.Sessions, tokens(s.Context))
		}
	}
	line()
	line("from", "value", "how")
	for _, f := range r.Findings {
		line(f.What, f.Value, f.How)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for l := range strings.Lines(b.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(l, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}
