package wire

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Estimator corrects Estimate by what engines report, model by model. It has no
// lock and reads no clock; its owner serialises.
//
// The correction of a model is the ratio of two decaying sums, of the tokens
// reported and of those estimated, over its requests. Summing before dividing
// weighs a request by its length: short prompts, where a template's few tokens
// are half of it, do not decide about long ones. No request counts for more than
// weightMost tokens, so that a single long one does not decide either.
//
// Alternatives: a mean of the requests' own ratios is ruled by the short
// prompts; least squares by kind of text has too many unknowns for prompts that
// are nine tenths prose.
type Estimator struct {
	models map[string]*learned
	most   int
}

type learned struct {
	samples             int
	reported, estimated float64
}

const (
	decay                     = 0.95 // of what was learned, at each request: about the last twenty count
	samplesLeast              = 5
	weightMost                = 4096
	factorLeast, factorMost   = 0.5, 2
	sampleLeast, sampleFactor = 16, 4 // shorter prompts and wilder ratios are not taken
)

// NewEstimator learns about at most that many models; further ones are
// estimated without correction.
func NewEstimator(models int) *Estimator {
	return &Estimator{models: make(map[string]*learned), most: models}
}

// Estimate is the corrected number of prompt tokens. Until five requests were
// observed it is the package's Estimate.
func (e *Estimator) Estimate(model string, c Content) int {
	return c.TokenIDs + int(math.Ceil(e.Factor(model)*estimateText(c)))
}

// Factor is what estimates for the model are multiplied by, from 0.5 to 2.
func (e *Estimator) Factor(model string) float64 {
	if l := e.models[model]; l != nil {
		return l.factor()
	}
	return 1
}

func (l *learned) factor() float64 {
	if l.samples < samplesLeast {
		return 1
	}
	return min(max(l.reported/l.estimated, factorLeast), factorMost)
}

// Observe learns from one request; reported is the number of prompt tokens that
// the engine counted. Requests with media teach nothing about text, nor do
// prompts of a few tokens or reports that are off by more than a factor of four,
// which mean that something else was counted.
func (e *Estimator) Observe(model string, c Content, reported int) {
	estimated, text := estimateText(c), float64(reported-c.TokenIDs)
	if c.Media > 0 || estimated < sampleLeast || text < estimated/sampleFactor || text > estimated*sampleFactor {
		return
	}
	l := e.models[model]
	if l == nil {
		if len(e.models) >= e.most {
			return
		}
		l = new(learned)
		e.models[model] = l
	}
	weight := min(1, weightMost/estimated)
	l.samples++
	l.reported = l.reported*decay + text*weight
	l.estimated = l.estimated*decay + estimated*weight
}

// Learned is what is known of one model, for keeping across restarts.
type Learned struct {
	Model     string  `json:"model"`
	Samples   int     `json:"samples"`
	Reported  float64 `json:"reported"`  // tokens, decayed
	Estimated float64 `json:"estimated"` // tokens, decayed
}

// Snapshot returns all that was learned, in the order of the models' names.
func (e *Estimator) Snapshot() []Learned {
	out := make([]Learned, 0, len(e.models))
	for model, l := range e.models {
		out = append(out, Learned{model, l.samples, l.reported, l.estimated})
	}
	slices.SortFunc(out, func(a, b Learned) int { return cmp.Compare(a.Model, b.Model) })
	return out
}

// Restore replaces what was learned by a snapshot, or changes nothing and
// returns an error that names the model that can't be right.
func (e *Estimator) Restore(snapshot []Learned) error {
	models := make(map[string]*learned, len(snapshot))
	for _, l := range snapshot {
		positive := func(f float64) bool { return f > 0 && !math.IsInf(f, 0) }
		if l.Samples < 1 || !positive(l.Reported) || !positive(l.Estimated) {
			return fmt.Errorf("what was learned of model %q is samples %d, reported %v, estimated %v; allowed: positive numbers", l.Model, l.Samples, l.Reported, l.Estimated)
		}
		if len(models) < e.most {
			models[l.Model] = &learned{l.Samples, l.Reported, l.Estimated}
		}
	}
	e.models = models
	return nil
}
