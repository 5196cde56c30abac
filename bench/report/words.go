package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// show writes a value in a metric's unit.
func show(v Number, unit string) string {
	x := float64(v)
	switch {
	case math.IsNaN(x):
		return "-"
	case math.IsInf(x, 1):
		return "never"
	case unit == "share":
		return plain(100*x, 4) + " %"
	case unit == "requests" || unit == "tokens":
		return plain(x, 6)
	}
	return plain(x, 4) + " " + unit
}

// plain writes a number with so many digits that count, and no exponent where one can
// do without.
func plain(x float64, digits int) string {
	if a := math.Abs(x); a != 0 && (a < 1e-4 || a >= 1e9) {
		return strconv.FormatFloat(x, 'g', digits, 64)
	}
	decimals := 0
	if x != 0 {
		decimals = min(max(digits-1-int(math.Floor(math.Log10(math.Abs(x)))), 0), 6)
	}
	s := strconv.FormatFloat(x, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if s == "-0" {
		s = "0"
	}
	return s
}

// change writes an effect: a ratio in percent, a difference in its unit, a share's in
// percentage points.
func (e *Effect) change(v Number) string {
	x := float64(v)
	switch {
	case math.IsNaN(x):
		return "-"
	case math.IsInf(x, 1):
		return "+∞"
	case math.IsInf(x, -1):
		return "-∞"
	case e.Scale == LogRatio:
		return signed(100*math.Expm1(x)) + " %"
	case e.Unit == "share":
		return signed(100*x) + " pp"
	}
	return signed(x) + " " + e.Unit
}

func signed(x float64) string {
	s := plain(x, 3)
	if x > 0 && s != "0" {
		s = "+" + s
	}
	return s
}

// distance writes an effect's size.
func (e *Effect) distance(v *Number) string {
	if v == nil {
		return "-"
	}
	if math.IsInf(float64(*v), 1) {
		return "not known"
	}
	return strings.TrimPrefix(e.change(*v), "+")
}

func (e *Effect) span() string {
	if !e.Interval.Low.known() {
		return "-"
	}
	s := e.change(e.Interval.Low) + " to " + e.change(e.Interval.High)
	if float64(e.Interval.Level) < e.Interval.Asked {
		s += fmt.Sprintf(" (%.4g %% confidence only)", 100*float64(e.Interval.Level))
	}
	return s
}

func pValue(p *Number) string {
	if p == nil || !p.known() {
		return "-"
	}
	return strconv.FormatFloat(float64(*p), 'g', 2, 64)
}

// roleWords say what an effect is for.
var roleWords = map[string]string{RoleNoHarm: "no harm", RoleGain: "gain", RoleSecondary: "secondary", RoleDescribed: "described"}

// verdictWords are the verdict in a sentence.
func (r *Report) verdictWords() string {
	switch r.Verdict {
	case "pass":
		return "pass: what was claimed is shown"
	case "fail":
		return "fail: the contrary of what was claimed is shown"
	}
	return "inconclusive: could not tell"
}

// onTimeWords say what on time means.
func (r *Report) onTimeWords() string {
	o := &r.Plan.OnTime
	window := " that arrive in the " + o.Window + " window"
	if o.Window == "all" {
		window = ""
	}
	return fmt.Sprintf("%s requests%s: first token within %s s, whole answer within %s s of arrival", o.Class, window, plain(o.TTFTMS/1000, 4), plain(o.E2EMS/1000, 4))
}

func (r *Report) counted() int {
	n := 0
	for i := range r.Pairs {
		if r.Pairs[i].Excluded == "" {
			n++
		}
	}
	return n
}

// invalid are the runs that a gate speaks against.
func (r *Report) invalid() []*Run {
	var all []*Run
	for i := range r.Runs {
		if len(r.Runs[i].Invalid) > 0 {
			all = append(all, &r.Runs[i])
		}
	}
	return all
}

func (e *Effect) marginWords() string {
	if e.Margin == nil {
		return "-"
	}
	return e.change(*e.Margin)
}

// boundWords are the end of the range that a criterion is judged by.
func (e *Effect) boundWords() string {
	if e.Bound == nil {
		return e.span()
	}
	side := "at most "
	if e.Better == "higher" {
		side = "at least "
	}
	s := side + e.change(e.Bound.Value)
	if float64(e.Bound.Level) < e.Bound.Asked {
		s += fmt.Sprintf(" (%.4g %% confidence only)", 100*float64(e.Bound.Level))
	}
	return s
}

// table is a table of a page: its head, and rows of cells.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// section is a part of a page. Both pages are made of the same ones.
type section struct {
	title  string
	lead   string
	table  *table
	list   []string
	figure string // name of the picture that belongs here
}

// sections are all that pages say, in order.
func (r *Report) sections() []section {
	all := []section{r.decisionSection()}
	if s := r.effectSection("Secondary metrics", "Tested together (Holm), after the criteria. They decide nothing.", r.Secondary); s != nil {
		all = append(all, *s)
	}
	if s := r.effectSection("All other metrics", "Described and not tested: of so many, some differ by chance.", r.Described); s != nil {
		all = append(all, *s)
	}
	all = append(all, r.armSection(), r.totalSection(), r.worstSection())
	if s := r.shiftSection(); s != nil {
		all = append(all, *s)
	}
	if s := r.besideSection(); s != nil {
		all = append(all, *s)
	}
	if s := r.floorSection(); s != nil {
		all = append(all, *s)
	}
	return append(all, r.pairSection(), r.invalidSection(), r.provenanceSection())
}

func (r *Report) decisionSection() section {
	t := &table{head: []string{"criterion", "metric", "verdict", "effect", "95 % bound or interval", "margin", "p", "pairs", "could have found", "rig's noise"}}
	for i := range r.Decisions {
		e := &r.Decisions[i]
		t.add(roleWords[e.Role], e.Metric, e.Verdict, e.change(e.Estimate), e.boundWords(), e.marginWords(), pValue(e.P), strconv.Itoa(len(e.Values)), e.distance(&e.MDE), e.distance(e.FloorMDE))
	}
	lead := "In this order: each is tested only if all before it passed. “Could have found” is the effect that as many pairs with this spread find in four of five comparisons; " +
		"“rig's noise” is the same if the spread were that of an A/A run."
	if r.Plan.StopAt > 0 {
		lead += fmt.Sprintf(" This plan may stop early, so an e-process decides, at %g; bounds and intervals only describe.", r.Plan.StopAt)
	}
	return section{title: "Criteria", lead: lead, table: t, list: r.Reasons, figure: "criteria"}
}

func (r *Report) effectSection(title, lead string, effects []Effect) *section {
	if len(effects) == 0 {
		return nil
	}
	tested := effects[0].Role == RoleSecondary
	t := &table{head: []string{"metric", "effect", "95 % interval", "pairs", "could have found"}}
	if tested {
		t.head = []string{"metric", "verdict", "effect", "95 % interval", "p", "adjusted", "pairs", "could have found"}
	}
	for i := range effects {
		e := &effects[i]
		cells := []string{e.Metric, e.change(e.Estimate), e.span(), strconv.Itoa(len(e.Values)), e.distance(&e.MDE)}
		if tested {
			cells = []string{e.Metric, e.Verdict, e.change(e.Estimate), e.span(), pValue(e.P), pValue(e.PHolm), strconv.Itoa(len(e.Values)), e.distance(&e.MDE)}
		}
		t.add(cells...)
	}
	return &section{title: title, lead: lead, table: t}
}

func (r *Report) armSection() section {
	t := &table{head: []string{"metric"}}
	for i := range r.Arms {
		t.head = append(t.head, r.Arms[i].Name+": median", "worst", "of seed or trace")
	}
	for i := range r.Arms[0].Metrics {
		row := []string{r.Arms[0].Metrics[i].Metric}
		for k := range r.Arms {
			m := &r.Arms[k].Metrics[i]
			row = append(row, show(m.Median, m.Unit), show(m.Worst, m.Unit), orDash(m.WorstSource))
		}
		t.add(row...)
	}
	return section{
		title: "Arms", lead: "Over the runs that count: the middle run, and the worst with its seed. “never”: so many requests had no answer that the figure has no end. “-”: not shown, as p99 of fewer than " +
			strconv.Itoa(p99Requests) + " requests, or not measured.", table: t, figure: "seeds",
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (r *Report) totalSection() section {
	t := &table{head: []string{"in all runs that count"}}
	for i := range r.Arms {
		t.head = append(t.head, r.Arms[i].Name)
	}
	row := func(name string, of func(*Arm) string) {
		cells := []string{name}
		for i := range r.Arms {
			cells = append(cells, of(&r.Arms[i]))
		}
		t.add(cells...)
	}
	count := func(name string, of func(*Counts) int) {
		row(name, func(a *Arm) string { return strconv.Itoa(of(&a.Total)) })
	}
	row("runs", func(a *Arm) string { return strconv.Itoa(a.Runs) })
	row("on time", func(a *Arm) string { return fmt.Sprintf("%d of %d", a.OnTime.Met, a.OnTime.Offered) })
	row("violations per 10,000 offered", func(a *Arm) string { return show(a.ViolationsPer10k, "requests") })
	count("requests offered", func(c *Counts) int { return c.Offered })
	count("completed", func(c *Counts) int { return c.Completed })
	count("refused", func(c *Counts) int { return c.Refused })
	row("failed, aborted, timed out", func(a *Arm) string {
		return fmt.Sprintf("%d, %d, %d", a.Total.Failed, a.Total.Aborted, a.Total.TimedOut)
	})
	count("batch requests completed", func(c *Counts) int { return c.BatchDone })
	count("batch tokens complete at the trace's end", func(c *Counts) int { return c.BatchTokens })
	count("reclaims", func(c *Counts) int { return c.Reclaims })
	count("preemptions seen", func(c *Counts) int { return c.Preemptions })
	count("tokens wasted", func(c *Counts) int { return c.WastedTokens })
	return section{title: "Totals", table: t}
}

func (r *Report) worstSection() section {
	t := &table{head: []string{"arm", "worst minute", "on time in it", "worst tenant", "on time of its requests"}}
	for i := range r.Arms {
		a := &r.Arms[i]
		row := []string{a.Name, "-", "-", "-", "-"}
		if w := a.WorstMinute; w != nil {
			row[1], row[2] = fmt.Sprintf("minute %d of %s", w.Minute, w.Source), fmt.Sprintf("%d of %d", w.Met, w.Offered)
		}
		if w := a.WorstTenant; w != nil {
			row[3], row[4] = orDash(w.Tenant), fmt.Sprintf("%d of %d", w.Met, w.Offered)
		}
		t.add(row...)
	}
	return section{title: "Worst minute and worst tenant", lead: "A minute is one run's, counted by arrival from the trace's start. A tenant's requests are those of all runs together.", table: t}
}

func (r *Report) shiftSection() *section {
	if len(r.Shift) == 0 {
		return nil
	}
	t := &table{head: []string{"quantile of TTFT", "effect", "95 % interval"}}
	for i := range r.Shift {
		q := &r.Shift[i]
		e := Effect{Scale: LogRatio, Interval: q.Interval}
		name := "p" + plain(100*q.Quantile, 4)
		if !q.Shown {
			t.add(name, "too few requests", "-")
			continue
		}
		t.add(name, e.change(q.Estimate), e.span())
	}
	return &section{title: "First tokens", lead: "By how much each quantile of a run's times to first token moves, treatment against baseline. What never came is infinite, and in it.", table: t, figure: "ttft"}
}

func (r *Report) besideSection() *section {
	t := &table{head: []string{"arm", "recalls", "granted: median, worst", "scheduled: median, worst", "settled: median, worst", "lent (slot seconds)", "engine's preemptions"}}
	any := false
	wait := func(w *Waits) string {
		if !w.MedianMS.known() {
			return "-"
		}
		s := show(w.MedianMS, "ms") + ", " + show(w.WorstMS, "ms")
		if w.Never > 0 {
			s += fmt.Sprintf(" (%d never)", w.Never)
		}
		return s
	}
	for i := range r.Arms {
		b := &r.Arms[i].Beside
		any = any || b.Recalls > 0 || b.LentSlotS > 0
		preemptions := "-"
		if b.EnginePreemptions != nil {
			preemptions = strconv.FormatInt(*b.EnginePreemptions, 10)
		}
		t.add(r.Arms[i].Name, strconv.Itoa(b.Recalls), wait(&b.Granted), wait(&b.Scheduled), wait(&b.Settled), plain(float64(b.LentSlotS), 5), preemptions)
	}
	if !any {
		return nil
	}
	return &section{title: "Lending and recalls", lead: "Not from the requests' lines but from the runs' files. Times are since a recall was opened.", table: t, figure: "timeline"}
}

func (r *Report) floorSection() *section {
	f := r.Floor
	if f == nil {
		return nil
	}
	t := &table{head: []string{"metric", "SD", "95 % of differences within", "arm against itself: p", "order: p", "trend: p", "drift: p", "pairs", "said of the rig"}}
	for i := range f.Noise {
		n := &f.Noise[i]
		e := Effect{Scale: n.Scale, Unit: n.Unit}
		said := "sound"
		switch {
		case n.Unknown != "":
			said = "not known: " + n.Unknown
		case len(n.Rejected) > 0:
			said = "rejected: " + strings.Join(n.Rejected, "; ")
		}
		t.add(n.Metric, e.distance(&n.SD), e.distance(&n.P95), pValue(&n.Flip), pValue(&n.Position), pValue(&n.Trend), pValue(&n.Drift), strconv.Itoa(len(n.Values)), said)
	}
	return &section{
		title: "The rig's own noise", lead: fmt.Sprintf("One arm against itself (%s against %s): %s. No effect is claimed that this noise could have made.", f.Other, f.Baseline, f.Of), table: t, figure: "floor",
	}
}

func (r *Report) pairSection() section {
	t := &table{head: []string{"seed or trace", "runs", "on time: " + r.Plan.Baseline, r.Plan.Treatment, "counts"}}
	for i := range r.Pairs {
		p := &r.Pairs[i]
		b, x := &r.Runs[p.Baseline], &r.Runs[p.Treatment]
		counts := "yes"
		if p.Excluded != "" {
			counts = "no: " + p.Excluded
		}
		t.add(p.Source, fmt.Sprintf("%d and %d", b.Run, x.Run), fmt.Sprintf("%d of %d", b.OnTime.Met, b.OnTime.Offered), fmt.Sprintf("%d of %d", x.OnTime.Met, x.OnTime.Offered), counts)
	}
	return section{title: "Every pair", table: t}
}

func (r *Report) invalidSection() section {
	bad := r.invalid()
	if len(bad) == 0 {
		return section{title: "Invalid runs", lead: "None."}
	}
	t := &table{head: []string{"run", "arm", "seed or trace", "why"}}
	for _, run := range bad {
		t.add(strconv.Itoa(run.Run), run.Arm, run.Source, strings.Join(run.Invalid, "; "))
	}
	return section{title: "Invalid runs", lead: "They are kept, and are in no figure above; neither are the runs that they were paired with.", table: t}
}

func (r *Report) provenanceSection() section {
	t := &table{head: []string{"what", "is"}}
	t.add("plan", r.Plan.SHA256)
	t.add("runner", r.Plan.Runner)
	for i := range r.Evidence {
		e := &r.Evidence[i]
		t.add("headgate", e.Version)
		t.add("begun", e.Created.UTC().Format("2006-01-02 15:04:05 UTC"))
		h := &e.Host
		words := fmt.Sprintf("%s/%s, %d processors", h.OS, h.Arch, h.Processors)
		if h.Processor != "" {
			words += ", " + h.Processor
		}
		if h.MemoryMiB > 0 {
			words += fmt.Sprintf(", %d MiB", h.MemoryMiB)
		}
		t.add("host", words)
	}
	return section{title: "Where this is from", table: t}
}
