package occupancy

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable writes the report for people. Names and ids come from the log, so
// they are quoted where they have anything but plain characters.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s to %s, %s: busy %s, utilisation %s, %.3g in flight on average\n\n",
		r.From, r.To, long(r.WindowS), long(r.BusyS), percent(r.Utilisation), r.InFlight)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "in flight\tof busy time\tor fewer\tseconds\t\n")
	for _, l := range r.Levels {
		fmt.Fprintf(t, "%d\t%s\t%s\t%.3f\t\n", l.InFlight, percent(l.BusyShare), percent(l.Cumulative), l.Seconds)
	}
	_ = t.Flush() // into memory
	if p := r.PeakCause; p != nil {
		fmt.Fprintf(&b, "\npeak: %d in flight at %s for %s\n", p.InFlight, p.At, long(p.Seconds))
		for _, of := range []struct {
			name   string
			shares []Share
		}{{"model", p.Models}, {"class", p.Classes}, {"principal", p.Principals}} {
			for _, s := range of.shares {
				fmt.Fprintf(&b, "  %d of %s %s\n", s.InFlight, of.name, plainText(s.Name))
			}
		}
		for _, q := range p.Requests {
			fmt.Fprintf(&b, "  %s since %s, %s", plainText(q.ID), q.Start, long(q.Seconds))
			for _, s := range []string{q.Model, q.Class, q.Principal} {
				if s != "" {
					b.WriteString(" " + plainText(s))
				}
			}
			b.WriteByte('\n')
		}
		if more := p.InFlight - len(p.Requests); more > 0 {
			fmt.Fprintf(&b, "  and %d more, begun later\n", more)
		}
	}
	b.WriteByte('\n')
	t = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, d := range []struct {
		name string
		d    *Durations
	}{{"in flight", r.Service}, {"queue", r.Queue}} {
		if d.d != nil {
			fmt.Fprintf(t, "%s\t%d\tmean %s\tmedian %s\t95%% %s\tlongest %s\n", d.name, d.d.Count, long(d.d.MeanS), long(d.d.P50S), long(d.d.P95S), long(d.d.MaxS))
		}
	}
	_ = t.Flush()
	for _, d := range []struct {
		name   string
		groups []Group
	}{{"model", r.Models}, {"class", r.Classes}, {"principal", r.Principals}} {
		if len(d.groups) == 0 {
			continue
		}
		t = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "\n%s\tspans\tof all in flight\tutilisation\tpeak\tmean\tqueue\n", d.name)
		for _, g := range d.groups {
			queue := "-"
			if g.Queue != nil {
				queue = long(g.Queue.MeanS)
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%s\t%s\n", plainText(g.Name), g.Spans, percent(g.Share), percent(g.Utilisation), g.Peak, long(g.Service.MeanS), queue)
		}
		_ = t.Flush()
	}
	r.hoursOfDay(&b)
	fmt.Fprintf(&b, "\n%d paired, %d capped at a restart, %d starts and %d dones without the other end\n", r.Paired, r.Capped, r.UnpairedStarts, r.UnpairedDones)
	fmt.Fprintf(&b, "%d excluded, %s of all time in flight; %d logged twice; %d never started; %d of %d lines used\n",
		r.Excluded, percent(r.ExcludedShare), r.Duplicates, r.NeverStarted, r.UsedLines, r.Lines)
	for _, n := range r.Notes {
		b.WriteString("note: " + n + "\n")
	}
	b.WriteString("A measurement is not a mechanism: this says how many were in flight, not what limited them.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// hoursOfDay sums the hours up by the hour of the day in the report's zone.
func (r *Report) hoursOfDay(b *strings.Builder) {
	if len(r.Hours) < 2 {
		return
	}
	var busy, flight [24]float64
	var peak [24]int
	most := 0.0
	for _, h := range r.Hours {
		i := h.at.In(r.zone).Hour()
		busy[i] += h.BusyS
		flight[i] += h.InFlight * 3600
		peak[i] = max(peak[i], h.Peak)
		most = max(most, busy[i])
	}
	fmt.Fprintf(b, "\nhour of the day, %s\n", r.zone)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "hour\tbusy s\tin flight while busy\tpeak\t\n")
	for i := range busy {
		if busy[i] > 0 {
			fmt.Fprintf(t, "%02d\t%.1f\t%.2f\t%d\t %s\n", i, busy[i], flight[i]/busy[i], peak[i], strings.Repeat("#", int(20*busy[i]/most+0.5)))
		}
	}
	_ = t.Flush()
}

// WriteCSV writes one row for every level, of all and of each group, and for
// every hour.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	row := func(s ...string) { _ = c.Write(s) } // Flush keeps the error
	row("of", "name", "in_flight", "seconds", "busy_share", "cumulative", "utilisation", "peak", "spans")
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	table := func(of, name string, levels []Level, utilisation float64, peak, spans int) {
		for _, l := range levels {
			row(of, name, strconv.Itoa(l.InFlight), number(l.Seconds), number(l.BusyShare), number(l.Cumulative), number(utilisation), strconv.Itoa(peak), strconv.Itoa(spans))
		}
	}
	table("all", "", r.Levels, r.Utilisation, r.Peak, r.Paired+r.Capped)
	for _, d := range []struct {
		name   string
		groups []Group
	}{{"model", r.Models}, {"class", r.Classes}, {"principal", r.Principals}} {
		for _, g := range d.groups {
			table(d.name, g.Name, g.Levels, g.Utilisation, g.Peak, g.Spans)
		}
	}
	for _, h := range r.Hours {
		row("hour", h.Start, number(h.InFlight), number(h.BusyS), "", "", number(h.Utilisation), strconv.Itoa(h.Peak), "")
	}
	c.Flush()
	return c.Error()
}

func percent(f float64) string { return strconv.FormatFloat(100*f, 'f', 1, 64) + " %" }

// long is a number of seconds as a duration, with as many digits as say something.
func long(s float64) string {
	d := time.Duration(s * 1e9)
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(10 * time.Microsecond)
	}
	return d.String()
}

// plainText is a name as it stands, or quoted.
func plainText(s string) string {
	if s == "" {
		return "-"
	}
	for _, c := range s {
		if c <= ' ' || c == 0x7f || c > 0x7f && !strconv.IsPrint(c) {
			return strconv.Quote(s)
		}
	}
	return s
}
