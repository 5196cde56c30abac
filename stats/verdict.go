package stats

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Verdict is what a comparison came to.
type Verdict string

const (
	Pass         Verdict = "pass"         // what was claimed is shown
	Fail         Verdict = "fail"         // the contrary is shown
	Inconclusive Verdict = "inconclusive" // could not tell
)

// Better is the direction in which a metric is better.
type Better string

const (
	IsLower  Better = "lower"
	IsHigher Better = "higher"
)

const (
	// ClaimPairs is the number of pairs below which nothing is claimed: five are a
	// smoke test.
	ClaimPairs = 10
	// NoHarmPairs is the number of pairs below which "no harm" is not claimed.
	NoHarmPairs = 30
)

// Rule is what a comparison is judged by. It is fixed before anything runs.
type Rule struct {
	Name   string // of the metric, for the reasons
	Better Better
	// Margin, 0 or more, is how much worse is still no harm, or how much better is a
	// gain at least. For effects that are ratios it is a share, 0.05 for 5 %; else it is in
	// the metric's unit.
	Margin float64
	Level  float64 // of confidence, such as 0.95
}

func (r Rule) check(ratio bool) error {
	if r.Better != IsLower && r.Better != IsHigher {
		return fmt.Errorf("%s: better is %q, allowed is %q or %q", r.Name, r.Better, IsLower, IsHigher)
	}
	if !(r.Margin >= 0) || math.IsInf(r.Margin, 1) || ratio && r.Margin >= 1 {
		allowed := "0 or more"
		if ratio {
			allowed = "a share from 0 to below 1"
		}
		return fmt.Errorf("%s: margin is %v, allowed is %s", r.Name, r.Margin, allowed)
	}
	if err := checkLevel(r.Level); err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	return nil
}

// at returns a share or amount, more if positive, on the effects' scale.
func at(e *Effects, change float64) float64 {
	if e.ratio {
		return math.Log1p(change)
	}
	return change
}

// Decision is a verdict and what it was made of.
type Decision struct {
	Name     string
	Verdict  Verdict
	Reason   string // in words, with the numbers
	Pairs    int
	Estimate float64
	Interval Interval // two-sided
	Bound    Bound    // NoHarm: on the side of the harm
	Flip     Flip     // against the margin
	Margin   float64  // on the effects' scale
	// MDE is the effect that as many pairs would find with 80 % power, on the effects' scale,
	// at the sides of the test that was made.
	MDE float64
}

// NoHarm is the non-inferiority test: it passes if the treatment is shown to be worse by
// less than the margin, which is if the one-sided bound of the effect's centre is within
// it and the one-sided sign-flip test of the effects less the margin finds it too. The
// bound alone is of the middle: harm in three pairs of thirty, however great, leaves it
// where it is, and the mean does not. It fails if the bound from the other side, and the
// test, show the treatment worse by more. That a difference is not significant shows no
// such thing. It passes from [NoHarmPairs] pairs on and fails from [ClaimPairs] on.
func NoHarm(e *Effects, r Rule, seed uint64) (*Decision, error) {
	if err := r.check(e.ratio); err != nil {
		return nil, err
	}
	worse, side, other, change := 1.0, Upper, Lower, r.Margin // worse is the sign of an effect that is
	if r.Better == IsHigher {
		worse, side, other, change = -1, Lower, Upper, -r.Margin
	}
	d, err := decide(e, r, at(e, change), 1)
	if err != nil {
		return nil, err
	}
	if d.Bound, err = e.Bound(side, r.Level); err != nil {
		return nil, err
	}
	least, err := e.Bound(other, r.Level)
	if err != nil {
		return nil, err
	}
	d.Flip = e.minus(d.Margin).Flip(seed)
	better, harm := d.Flip.Less, d.Flip.Greater // p-values, one-sided
	if worse < 0 {
		better, harm = harm, better
	}
	found := 1 - r.Level
	within := d.Bound.Met() && worse*d.Bound.Value < worse*d.Margin
	beyond := least.Met() && worse*least.Value > worse*d.Margin && harm <= found
	words := fmt.Sprintf("%s with %.4g %% confidence at most as bad as %s, margin %s", e.Text(d.Estimate), 100*d.Bound.Level, e.Text(d.Bound.Value), e.Text(d.Margin))
	switch {
	case d.Pairs < ClaimPairs:
		d.Reason = smoke(d.Pairs, ClaimPairs, "a claim") + ": effects from " + e.Text(slices.Min(e.values)) + " to " + e.Text(slices.Max(e.values))
	case beyond:
		d.Verdict = Fail
		d.Reason = fmt.Sprintf("harm: %s, with %.4g %% confidence at least as bad as %s, margin %s", e.Text(d.Estimate), 100*least.Level, e.Text(least.Value), e.Text(d.Margin))
	case within && better > found:
		d.Reason = fmt.Sprintf("%s; but some pairs are so much worse that their mean is not shown to be within it, p %.2g: effects up to %s",
			words, better, e.Text(worst(e.values, worse)))
	case within && d.Pairs < NoHarmPairs:
		d.Reason = "within the margin so far (" + words + "), but " + smoke(d.Pairs, NoHarmPairs, "\"no harm\"")
	case within:
		d.Verdict = Pass
		d.Reason = "no harm: " + words
	default:
		d.Reason = words
	}
	d.finish(e)
	return d, nil
}

// worst is the effect that is farthest on the side of a sign.
func worst(effects []float64, sign float64) float64 {
	if sign > 0 {
		return slices.Max(effects)
	}
	return slices.Min(effects)
}

// Gain is the superiority test: it passes if the treatment is shown to be better by more
// than the margin, which is if the two-sided sign-flip test of the effects less the margin
// finds them and the whole interval is beyond it: neither may contradict what is
// printed. It fails if both show the gain to be less than the margin. It does either from
// [ClaimPairs] pairs on.
func Gain(e *Effects, r Rule, seed uint64) (*Decision, error) {
	if err := r.check(e.ratio); err != nil {
		return nil, err
	}
	better, change := 1.0, r.Margin
	if r.Better == IsLower {
		better, change = -1, -r.Margin
	}
	d, err := decide(e, r, at(e, change), 2)
	if err != nil {
		return nil, err
	}
	d.Flip = e.minus(d.Margin).Flip(seed)
	near, far := d.Interval.Low, d.Interval.High
	if r.Better == IsLower {
		near, far = far, near
	}
	found := d.Interval.Met() && d.Flip.P <= 1-r.Level
	words := fmt.Sprintf("%s, with %.4g %% confidence %s to %s", e.Text(d.Estimate), 100*d.Interval.Level, e.Text(d.Interval.Low), e.Text(d.Interval.High))
	if d.Margin != 0 {
		words += ", margin " + e.Text(d.Margin)
	}
	words += fmt.Sprintf(", p %.2g", d.Flip.P)
	switch {
	case d.Pairs < ClaimPairs:
		d.Reason = smoke(d.Pairs, ClaimPairs, "a claim") + ": effects from " + e.Text(slices.Min(e.values)) + " to " + e.Text(slices.Max(e.values))
	case found && better*near > better*d.Margin:
		d.Verdict = Pass
		d.Reason = "gain: " + words
	case found && better*far < better*d.Margin:
		d.Verdict = Fail
		d.Reason = "no such gain: " + words
	default:
		d.Reason = words
	}
	d.finish(e)
	return d, nil
}

// decide fills in what both tests have.
func decide(e *Effects, r Rule, margin float64, sides int) (*Decision, error) {
	i, err := e.Interval(r.Level)
	if err != nil {
		return nil, err
	}
	return &Decision{
		Name: r.Name, Verdict: Inconclusive, Pairs: e.Len(), Estimate: e.Estimate(), Interval: i,
		Margin: margin, MDE: e.MDE(r.Level, sides),
	}, nil
}

func smoke(have, need int, what string) string {
	return fmt.Sprintf("%d pairs, %s needs %d", have, what, need)
}

// finish puts the rest of the words in place: who it is about, what would have been
// found, and which pairs say nothing.
func (d *Decision) finish(e *Effects) {
	var b strings.Builder
	if d.Name != "" {
		b.WriteString(d.Name + ": ")
	}
	if d.Verdict == Inconclusive {
		b.WriteString("could not tell: ")
	}
	b.WriteString(d.Reason)
	if d.Verdict == Inconclusive {
		if math.IsInf(d.MDE, 1) {
			b.WriteString("; the minimum detectable effect is not known, since the effects' spread is not")
		} else {
			fmt.Fprintf(&b, "; the minimum detectable effect of %d pairs is %s (80 %% power)", d.Pairs, strings.TrimPrefix(e.Text(d.MDE), "+"))
		}
	}
	if at := e.Unknown(); len(at) > 0 {
		fmt.Fprintf(&b, "; in pairs %v neither value came", at)
	}
	d.Reason = b.String()
}

// Outcome is the verdict of a whole plan.
type Outcome struct {
	Verdict   Verdict
	Reason    string
	Decisions []*Decision // in their order; those behind one that did not pass are not tested
}

// Gatekeep takes the decisions of a plan in their fixed order: no harm first, gains
// after it. Each is tested only if all before it passed, which is why none of them
// needs an adjustment for the others. One that is not tested is returned without a
// verdict of its own: inconclusive, and why. The outcome passes if all do, and otherwise is
// that of the first that did not.
func Gatekeep(ordered ...*Decision) (*Outcome, error) {
	if len(ordered) == 0 {
		return nil, errors.New("no decisions, needed is at least 1")
	}
	o := &Outcome{Verdict: Pass}
	stopped := ""
	var reasons []string
	for _, d := range ordered {
		kept := *d
		switch {
		case stopped != "":
			kept.Verdict = Inconclusive
			kept.Reason = fmt.Sprintf("%s: not tested, since %s came first and did not pass", d.Name, stopped)
		case d.Verdict != Pass:
			o.Verdict, stopped = d.Verdict, d.Name
			reasons = []string{d.Reason}
		default:
			reasons = append(reasons, d.Reason)
		}
		o.Decisions = append(o.Decisions, &kept)
	}
	o.Reason = strings.Join(reasons, "; ")
	return o, nil
}
