package simengine

import (
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// splitwiseEnv names the whole splitwise_perf_model.csv, to which TestRefit fits
// the models again. Nobody has to have it, so that is no test that is skipped
// elsewhere; testdata has a few of its rows.
const splitwiseEnv = "SPLITWISE_CSV"

// fitted is the largest prefill step, in tokens, to which models are fitted:
// vLLM's usual budget of a step. Larger ones cost more per token on these
// GPUs, and a straight line through both would be wrong for each.
const fitted = 2048

// measured is one run: a batch of equal prompts, prefilled together and then
// decoded together.
type measured struct {
	engine                string // model, hardware and tensor parallelism, as the model files are named
	prompt, batch, tokens int    // tokens is how many each sequence was to generate
	promptTime, tokenTime float64
	whole                 float64 // time of the run; all in ms
}

// steps is how many decode steps the run had: many ended before all their tokens.
func (r *measured) steps() float64 { return (r.whole - r.promptTime) / r.tokenTime }

// usable leaves out what was not measured as one prefill and then only decodes:
// hardware that was derived from other hardware's figures, and batches that did
// not fit at once, so that the run has more steps than tokens.
func (r *measured) usable() bool {
	return !strings.Contains(r.engine, "-pcap") && r.steps() <= 1.05*float64(r.tokens)
}

func readMeasured(t *testing.T, path string) map[string][]measured {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	in := csv.NewReader(file)
	in.Comment = '#'
	rows, err := in.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	engines := map[string][]measured{}
	for _, row := range rows[1:] {
		field := func(name string) string {
			at := slices.Index(rows[0], name)
			if at < 0 {
				t.Fatalf("%s has no column %s", path, name)
			}
			return row[at]
		}
		number := func(name string) float64 {
			v, err := strconv.ParseFloat(field(name), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		r := measured{
			engine: field("model") + "-" + field("hardware") + "-tp" + field("tensor_parallel"),
			prompt: int(number("prompt_size")), batch: int(number("batch_size")), tokens: int(number("token_size")),
			promptTime: number("prompt_time"), tokenTime: number("token_time"), whole: number("e2e_time"),
		}
		if r.usable() {
			engines[r.engine] = append(engines[r.engine], r)
		}
	}
	return engines
}

// sample is what a step had to do and how long it took.
type sample struct {
	work
	ms float64
}

// samples takes the steps from the runs, repeated ones as their median, so that
// what was measured most often does not decide alone.
func samples(runs []measured) []sample {
	type shape struct{ prompt, batch, tokens int }
	prompts, decodes := map[shape][]float64{}, map[shape][]float64{}
	steps := map[shape][]float64{}
	for _, r := range runs {
		p, d := shape{r.prompt, r.batch, 0}, shape{r.prompt, r.batch, r.tokens}
		prompts[p] = append(prompts[p], r.promptTime)
		decodes[d] = append(decodes[d], r.tokenTime)
		steps[d] = append(steps[d], r.steps())
	}
	order := func(a, b shape) int {
		return slices.Compare([]int{a.prompt, a.batch, a.tokens}, []int{b.prompt, b.batch, b.tokens})
	}
	var all []sample
	for _, s := range slices.SortedFunc(maps.Keys(prompts), order) {
		all = append(all, sample{work{prefill: s.prompt * s.batch}, median(prompts[s])})
	}
	for _, s := range slices.SortedFunc(maps.Keys(decodes), order) {
		// The time is a mean over the run, so the context is that of its middle.
		context := float64(s.batch) * (float64(s.prompt) + median(steps[s])/2)
		all = append(all, sample{work{decodes: s.batch, context: int(context)}, median(decodes[s])})
	}
	return all
}

// fit finds the five figures, none of them negative, with the least sum of
// squared relative errors: an error of a tenth counts the same in a step of 30 ms
// and in one of 300 ms.
func fit(name string, all []sample) Model {
	var rows [][5]float64 // of which the figures should make 1
	for _, s := range all {
		if s.prefill > fitted {
			continue
		}
		row := [5]float64{1, float64(s.prefill), 0, 0, float64(s.context)}
		if s.decodes > 0 {
			row[2], row[3] = 1, float64(s.decodes-1)
		}
		for i := range row {
			row[i] /= s.ms
		}
		rows = append(rows, row)
	}
	// The best non-negative solution is the free one over the figures that it
	// does not set to 0. With five figures, all sets of them can be tried.
	best, least := [5]float64{}, math.Inf(1)
	for set := 1; set < 1<<5; set++ {
		x, ok := solve(rows, set)
		if !ok || slices.Min(x[:]) < 0 {
			continue
		}
		sum := 0.0
		for _, row := range rows {
			off := -1.0
			for i := range row {
				off += row[i] * x[i]
			}
			sum += off * off
		}
		if sum < least {
			best, least = x, sum
		}
	}
	for i := range best {
		best[i], _ = strconv.ParseFloat(strconv.FormatFloat(best[i], 'g', 4, 64), 64)
	}
	m := Model{Name: name}
	s := &m.Step
	s.Base, s.PrefillToken, s.FirstDecode, s.MoreDecode, s.ContextToken = best[0], best[1], best[2], best[3], best[4]
	prompt, decode, _ := judge(&m, all)
	m.Source = fmt.Sprintf("fit to splitwise_perf_model.csv of Mutinifni/splitwise-sim (MIT; Patel et al., Splitwise, ISCA 2024): "+
		"error of prompt times, of steps up to %d tokens: median %.1f %%, worst %.1f %%; of token times: median %.1f %%, worst %.1f %%",
		fitted, 100*median(prompt), 100*slices.Max(prompt), 100*median(decode), 100*slices.Max(decode))
	return m
}

// solve finds the least squares over the figures of a set, the others being 0,
// from the normal equations.
func solve(rows [][5]float64, set int) (x [5]float64, ok bool) {
	var a [5][6]float64
	for i := range a {
		if set>>i&1 == 0 {
			a[i][i] = 1
			continue
		}
		for _, row := range rows {
			for j := range row {
				if set>>j&1 == 1 {
					a[i][j] += row[i] * row[j]
				}
			}
			a[i][5] += row[i]
		}
	}
	for i := range a {
		if math.Abs(a[i][i]) < 1e-12 {
			return x, false
		}
		for j := range a {
			if j == i {
				continue
			}
			factor := a[j][i] / a[i][i]
			for k := range a[j] {
				a[j][k] -= factor * a[i][k]
			}
		}
	}
	for i := range x {
		x[i] = a[i][5] / a[i][i]
	}
	return x, true
}

// judge returns a model's relative errors: of the prefill steps that it is
// fitted to, of decode steps, and of larger prefill steps, these with their sign.
func judge(m *Model, all []sample) (prompt, decode, larger []float64) {
	for _, s := range all {
		off := float64(m.stepTime(s.work, 0, 1))/1e6/s.ms - 1
		switch {
		case s.decodes > 0:
			decode = append(decode, math.Abs(off))
		case s.prefill <= fitted:
			prompt = append(prompt, math.Abs(off))
		default:
			larger = append(larger, off)
		}
	}
	return prompt, decode, larger
}

// TestRefit fits the models again to the whole data set, and compares them with
// the files and with the table in models/README.md. With -rewrite it writes the
// files, and logs the table's rows.
func TestRefit(t *testing.T) {
	path := os.Getenv(splitwiseEnv)
	if path == "" {
		t.Logf("%s names no splitwise_perf_model.csv: the models are not fitted again", splitwiseEnv)
		return
	}
	readme, err := os.ReadFile("models/README.md")
	if err != nil {
		t.Fatal(err)
	}
	engines := readMeasured(t, path)
	for _, name := range slices.Sorted(maps.Keys(engines)) {
		all := samples(engines[name])
		m := fit(name, all)
		prompt, decode, larger := judge(&m, all)
		row := fmt.Sprintf("| `%s` | %g | %g | %g | %g | %g | %.1f %% / %.1f %% | %.1f %% / %.1f %% | %+.0f %% to %+.0f %% |", name,
			m.Step.Base, m.Step.PrefillToken, m.Step.FirstDecode, m.Step.MoreDecode, m.Step.ContextToken,
			100*median(prompt), 100*slices.Max(prompt), 100*median(decode), 100*slices.Max(decode), 100*slices.Min(larger), 100*slices.Max(larger))
		if flag.Lookup("rewrite").Value.String() == "true" {
			t.Log(row)
			data, err := json.MarshalIndent(&m, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join("models", name+".json"), append(data, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if have, err := LoadModel(name); err != nil || have != m {
			t.Errorf("%s: %+v, %v: fitted again %+v", name, have, err, m)
		}
		if !strings.Contains(string(readme), row+"\n") {
			t.Errorf("models/README.md does not have %s", row)
		}
	}
	for _, name := range Models() {
		if _, ok := engines[name]; !ok && name != "m1" {
			t.Errorf("%s is fitted to nothing in %s", name, path)
		}
	}
}

// TestFit: the fit finds the figures that made its samples, 0 for those that
// would be negative.
func TestFit(t *testing.T) {
	want := DefaultModel()
	for _, base := range []float64{54.7, 10} {
		want.Step.Base, want.Step.FirstDecode = base, 0
		var all []sample
		for _, w := range []work{
			{prefill: 100}, {prefill: 700}, {prefill: 2000}, {decodes: 1, context: 500}, {decodes: 1, context: 9000}, {decodes: 8, context: 4000}, {decodes: 64, context: 70_000},
		} {
			all = append(all, sample{w, float64(want.stepTime(w, 0, 1)) / 1e6})
		}
		if got := fit("", all); got.Step != want.Step {
			t.Errorf("fitted %+v: want %+v", got.Step, want.Step)
		}
		for i := range all {
			if all[i].decodes > 0 {
				all[i].ms -= 0.2 // the first decode now costs less than nothing
			}
		}
		got := fit("", all)
		if got.Step.FirstDecode != 0 || got.Step.Base >= base || got.Step.Base < base-0.2 {
			t.Errorf("fitted %+v", got.Step)
		}
	}
}

// TestFittedModels holds the built-in models against a few rows of their data.
// None may be off by more than its model says of its worst.
func TestFittedModels(t *testing.T) {
	engines := readMeasured(t, "testdata/splitwise_excerpt.csv")
	says := regexp.MustCompile(`median [0-9.]+ %, worst ([0-9.]+) %; of token times: median [0-9.]+ %, worst ([0-9.]+) %$`)
	for _, name := range Models() {
		if name == "m1" {
			continue // StepChecks and PublishedRuns
		}
		m, err := LoadModel(name)
		if err != nil {
			t.Fatal(err)
		}
		stated := says.FindStringSubmatch(m.Source)
		if stated == nil || len(engines[name]) == 0 {
			t.Errorf("%s: %d rows to hold it against, and its source states no errors: %q", name, len(engines[name]), m.Source)
			continue
		}
		prompt, decode, _ := judge(&m, samples(engines[name]))
		for i, errors := range [][]float64{prompt, decode} {
			if worst, err := strconv.ParseFloat(stated[1+i], 64); err != nil || len(errors) < 2 || 100*slices.Max(errors) > worst {
				t.Errorf("%s: relative errors %.3f: allowed %s %%", name, errors, stated[1+i])
			}
		}
	}
}
