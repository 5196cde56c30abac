package stats

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestStory runs the worked examples of testdata: the values of both arms go in, and
// everything that is said of them comes out.
func TestStory(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := tell(d)
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			return out
		})
	})
}

func tell(d *datadriven.TestData) (string, error) {
	var pairs []Pair
	var rehearsals []Rehearsal
	for _, line := range strings.Split(d.Input, "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			return "", fmt.Errorf("a line is %q, allowed is: baseline treatment [order]", line)
		}
		b, errB := strconv.ParseFloat(f[0], 64)
		t, errT := strconv.ParseFloat(f[1], 64)
		if err := errors.Join(errB, errT); err != nil {
			return "", err
		}
		pairs = append(pairs, Pair{b, t})
		rehearsals = append(rehearsals, Rehearsal{Pair{b, t}, len(f) > 2 && f[2] == "BA"})
	}
	effects := Ratios
	if d.HasArg("differences") {
		effects = Differences
	}
	var b strings.Builder
	if d.Cmd == "floor" {
		f, err := NoiseFloor(rehearsals, effects, 1)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%d pairs, SD %.4f, 95 %% of |effect| within %.4f\n", f.Pairs, f.SD, f.P95)
		fmt.Fprintf(&b, "p: sign-flip %.3g, position %.3g, trend %.3g, drift %.3g\n", f.Flip, f.Position, f.Trend, f.Drift)
		for _, r := range f.Rejected {
			fmt.Fprintf(&b, "rejected: %s\n", r)
		}
		return b.String(), nil
	}
	e, err := effects(pairs)
	if err != nil {
		return "", err
	}
	r := Rule{Name: "metric", Better: IsLower, Level: 0.95}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "better":
			r.Better = Better(a.Vals[0])
		case "margin":
			if r.Margin, err = strconv.ParseFloat(a.Vals[0], 64); err != nil {
				return "", err
			}
		}
	}
	switch d.Cmd {
	case "effects":
		i, err := e.Interval(0.95)
		if err != nil {
			return "", err
		}
		f := e.Flip(1)
		for _, v := range e.Values() {
			fmt.Fprintf(&b, "%.4f ", v)
		}
		fmt.Fprintf(&b, "\nunknown %v, SD %.4f\n", e.Unknown(), e.SD())
		fmt.Fprintf(&b, "estimate %.4f (%s), %.4f to %.4f with %.2f %%, met: %v\n", e.Estimate(), e.Text(e.Estimate()), i.Low, i.High, 100*i.Level, i.Met())
		fmt.Fprintf(&b, "sign-flip: p %.6g, greater %.6g, less %.6g, %d drawn\n", f.P, f.Greater, f.Less, f.Drawn)
		for _, sides := range []int{1, 2} {
			fmt.Fprintf(&b, "minimum detectable effect, %d sides: %s\n", sides, e.Text(e.MDE(0.95, sides)))
		}
	case "no-harm", "gain":
		var one *Decision
		if d.Cmd == "gain" {
			one, err = Gain(e, r, 1)
		} else {
			one, err = NoHarm(e, r, 1)
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s\n%s\n", one.Verdict, one.Reason)
	case "bootstrap":
		s := Resampling{Level: 0.95, Samples: 2000, Seed: 1}
		p, err := Percentile(e, HodgesLehmann, s)
		if err != nil {
			return "", err
		}
		a, err := BCa(e, HodgesLehmann, s)
		if err != nil {
			return "", err
		}
		st, err := Studentised(e, s)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "percentile %.4f to %.4f\nBCa %.4f to %.4f\nstudentised %.4f to %.4f\n", p.Low, p.High, a.Low, a.High, st.Low, st.High)
	default:
		return "", fmt.Errorf("unknown command %s", d.Cmd)
	}
	return b.String(), nil
}
