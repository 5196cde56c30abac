package report

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/bench"
	"headgate/stats"
)

const experiments = "../../docs/experiments"

// tableBlock is a part of a page that is made from evidence: what it shows, and of which
// plans.
var tableBlock = regexp.MustCompile(`(?s)<!-- (arms|verdicts|secondary|against|first-five|lent|ends) ([^>]*[^> ]) -->\n.*?<!-- end -->`)

// TestExperimentPages: the tables of docs/experiments are what the kept reports say,
// and those reports are of the plans that are beside them.
func TestExperimentPages(t *testing.T) {
	pages, err := filepath.Glob(experiments + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		want := tableBlock.ReplaceAllStringFunc(string(b), func(block string) string {
			tables++
			m := tableBlock.FindStringSubmatch(block)
			return fmt.Sprintf("<!-- %s %s -->\n%s<!-- end -->", m[1], m[2], tableOf(t, m[1], strings.Fields(m[2])))
		})
		if n := strings.Count(want, "<!-- end -->"); n != len(tableBlock.FindAllString(want, -1)) {
			t.Errorf("%s: a table's first line is not understood: allowed are <!-- arms|verdicts|secondary|against ARM|first-five|lent|ends PLAN... -->", page)
		}
		if *rewrite && want != string(b) {
			if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if d := cmp.Diff(want, string(b)); d != "" {
			t.Errorf("%s is not what the evidence says (-evidence +page); go test ./bench/report -run Experiment -rewrite:\n%s", page, d)
		}
	}
	if tables == 0 {
		t.Error("no page has a table")
	}
}

// TestExperimentEvidence: every kept report is of a plan as it is now.
func TestExperimentEvidence(t *testing.T) {
	kept, err := filepath.Glob(experiments + "/evidence/*.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) == 0 {
		t.Error("no evidence is kept")
	}
	plans := plansByName(t)
	for _, path := range kept {
		name := strings.TrimSuffix(filepath.Base(path), ".json.gz")
		plan := plans[name]
		if plan == nil {
			t.Errorf("%s is of no plan", path)
		} else if r := keptReport(t, name); r.Plan.SHA256 != plan.SHA256() {
			t.Errorf("%s is of another plan than %s is now: a plan is not changed after its result, a changed one is another plan", path, name)
		}
	}
}

// plansByName reads the plans: 1-published/1.5.yaml is 1-published-1.5.
func plansByName(t *testing.T) map[string]*bench.Plan {
	t.Helper()
	all := map[string]*bench.Plan{}
	for _, pattern := range []string{"/*.yaml", "/[0-9]*/*.yaml"} {
		files, err := filepath.Glob(experiments + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			p, err := bench.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel(experiments, strings.TrimSuffix(file, ".yaml"))
			all[strings.ReplaceAll(filepath.ToSlash(rel), "/", "-")] = p
		}
	}
	return all
}

func keptReport(t *testing.T, plan string) *Report {
	t.Helper()
	f, err := os.Open(filepath.Join(experiments, "evidence", plan+".json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(f)
	r := &Report{}
	if err == nil {
		err = json.NewDecoder(z).Decode(r)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatalf("%s: %v", plan, err)
	}
	return r
}

// tableOf makes one table.
func tableOf(t *testing.T, kind string, of []string) string {
	t.Helper()
	arm := ""
	if kind == "against" {
		arm, of = of[0], of[1:]
	}
	var all []*Report
	for _, plan := range of {
		all = append(all, keptReport(t, plan))
	}
	tab := &table{}
	switch kind {
	case "arms":
		tab.head = []string{"plan", "arm", "runs", "on time", "worst run", "first token p50, p95", "batch done", "all done after: middle, longest", "recalls, loans ended", "tokens computed again"}
	case "verdicts":
		tab.head = []string{"plan", "criterion", "effect", "95 % bound or interval", "margin", "p", "pairs", "could have found", "verdict"}
	case "secondary":
		tab.head = []string{"plan", "metric", "effect", "95 % interval", "p, adjusted", "pairs", "told"}
	case "against":
		tab.head = []string{"plan", "less", "on time", "95 % interval", "seeds better, same, worse"}
	case "lent":
		tab.head = []string{"plan", "arm", "on time", "worst run", "first token p50, p95", "batch tokens/s: middle, worst", "recalls, loans ended", "tokens computed again"}
	case "ends":
		tab.head = []string{"plan", "arm", "on time", "offered", "answered", "refused", "given up", "batch answered", "tokens computed again"}
	case "first-five":
		tab.head = []string{"plan", "arm", "on time, seeds 1 to 5", "batch done"}
	}
	for _, r := range all {
		for i := range r.Arms {
			a := &r.Arms[i]
			switch kind {
			case "arms":
				share, p50, p95, makespan := a.metric("on_time_share"), a.metric("ttft_p50"), a.metric("ttft_p95"), a.metric("makespan")
				tab.add(r.Plan.Name, a.Name, strconv.Itoa(a.Runs), fmt.Sprintf("%d of %d", a.OnTime.Met, a.OnTime.Offered),
					show(share.Worst, share.Unit)+", "+orDash(share.WorstSource), show(p50.Median, p50.Unit)+", "+show(p95.Median, p95.Unit), strconv.Itoa(a.Total.BatchDone),
					show(makespan.Median, makespan.Unit)+", "+show(makespan.Worst, makespan.Unit), fmt.Sprintf("%d, %d", a.Beside.Recalls, a.Total.Reclaims), strconv.Itoa(a.Total.WastedTokens))
			case "lent":
				share, p50, p95, batch := a.metric("on_time_share"), a.metric("ttft_p50"), a.metric("ttft_p95"), a.metric("batch_tokens_per_s")
				tab.add(r.Plan.Name, a.Name, fmt.Sprintf("%d of %d", a.OnTime.Met, a.OnTime.Offered), show(share.Worst, share.Unit)+", "+orDash(share.WorstSource),
					show(p50.Median, p50.Unit)+", "+show(p95.Median, p95.Unit), strings.TrimSpace(show(batch.Median, ""))+", "+strings.TrimSpace(show(batch.Worst, "")), fmt.Sprintf("%d, %d", a.Beside.Recalls, a.Total.Reclaims), strconv.Itoa(a.Total.WastedTokens))
			case "ends":
				tab.add(r.Plan.Name, a.Name, fmt.Sprintf("%d of %d", a.OnTime.Met, a.OnTime.Offered), strconv.Itoa(a.Total.Offered), strconv.Itoa(a.Total.Completed),
					strconv.Itoa(a.Total.Refused), strconv.Itoa(a.Total.Failed), strconv.Itoa(a.Total.BatchDone), strconv.Itoa(a.Total.WastedTokens))
			case "against":
				if a.Name != arm {
					r.less(t, tab, arm, a.Name)
				}
			case "first-five":
				met, of, batch := 0, 0, 0
				for k := range r.Runs {
					if run := &r.Runs[k]; run.Arm == a.Name && run.Seed <= 5 {
						met, of, batch = met+run.OnTime.Met, of+run.OnTime.Offered, batch+run.Counts.BatchDone
					}
				}
				tab.add(r.Plan.Name, a.Name, fmt.Sprintf("%d of %d", met, of), strconv.Itoa(batch))
			}
		}
		switch kind {
		case "verdicts":
			for i := range r.Decisions {
				e := &r.Decisions[i]
				tab.add(r.Plan.Name, roleWords[e.Role]+", "+e.Metric, e.change(e.Estimate), e.boundWords(), e.marginWords(), pValue(e.P), strconv.Itoa(len(e.Values)), e.distance(&e.MDE), e.Verdict)
			}
		case "secondary":
			for i := range r.Secondary {
				e := &r.Secondary[i]
				tab.add(r.Plan.Name, e.Metric, e.change(e.Estimate), e.span(), pValue(e.PHolm), strconv.Itoa(len(e.Values)), e.Verdict)
			}
		}
	}
	return tab.page()
}

func (a *Arm) metric(name string) *ArmMetric {
	return &a.Metrics[slices.IndexFunc(a.Metrics, func(m ArmMetric) bool { return m.Metric == name })]
}

// less adds an arm's on-time share less another's, by seed.
func (r *Report) less(t *testing.T, tab *table, arm, other string) {
	t.Helper()
	share := func(source, arm string) (float64, bool) {
		i := slices.IndexFunc(r.Runs, func(u Run) bool { return u.Source == source && u.Arm == arm && len(u.Invalid) == 0 })
		if i < 0 {
			return 0, false
		}
		return float64(r.Runs[i].Metrics["on_time_share"]), true
	}
	var pairs []stats.Pair
	better, worse := 0, 0
	for i := range r.Pairs {
		a, okA := share(r.Pairs[i].Source, arm)
		b, okB := share(r.Pairs[i].Source, other)
		if !okA || !okB {
			continue
		}
		pairs = append(pairs, stats.Pair{Baseline: b, Treatment: a})
		switch {
		case a > b:
			better++
		case a < b:
			worse++
		}
	}
	if len(pairs) == 0 {
		tab.add(r.Plan.Name, other, "-", "-", "no pair is valid")
		return
	}
	d, err := stats.Differences(pairs)
	if err != nil {
		t.Fatal(err)
	}
	e := &Effect{Scale: Difference, Unit: "share", Estimate: Number(d.Estimate())}
	in, err := d.Interval(level)
	if err != nil {
		t.Fatal(err)
	}
	e.Interval = Interval{Number(in.Low), Number(in.High), Number(in.Level), in.Asked}
	tab.add(r.Plan.Name, other, e.change(e.Estimate), e.span(), fmt.Sprintf("%d, %d, %d", better, len(pairs)-better-worse, worse))
}

// page is a table in Markdown, without a column of plans where there is one plan.
func (t *table) page() string {
	one := !slices.ContainsFunc(t.rows, func(row []string) bool { return row[0] != t.rows[0][0] })
	var b strings.Builder
	line := func(cells []string) {
		if one {
			cells = cells[1:]
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	line(t.head)
	line(slices.Repeat([]string{"---"}, len(t.head)))
	for _, row := range t.rows {
		line(row)
	}
	return b.String()
}
