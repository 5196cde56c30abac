package stats

import "math"

// StopAt is the evidence at which a nightly comparison may stop: if the arms are the
// same, it is ever reached with a probability of at most 1 / StopAt.
const StopAt = 20

// EProcess is evidence that may be looked at after every pair. It bets on the sign of
// each effect: a stake of 1 grows if signs lean to one side, whichever, and is a fair
// game if they do not. How much is staked follows the signs so far, (k + 1/2) / (t + 1)
// on a sign that k of t had (Krichevsky and Trofimov), which is the mixture over all
// shares of one sign by Jeffreys' prior. The zero value is ready.
//
// It needs more pairs than a fixed number would: on average 17 for effects of 1
// standard deviation, 25 for 0.8, 62 for 0.5, if normal. A median that is not 0 is what
// it finds.
type EProcess struct {
	plus, minus, ties int
	log, top          float64
}

// Add takes the next pair's effect. One that is 0 or not known (NaN) says nothing of
// the sign, so nothing is staked on it, but it is counted. It returns [EProcess.Stopped].
func (p *EProcess) Add(effect float64) bool {
	var same *int
	switch {
	case effect > 0:
		same = &p.plus
	case effect < 0:
		same = &p.minus
	default:
		p.ties++
		return p.Stopped()
	}
	p.log += math.Log(2 * (float64(*same) + 0.5) / float64(p.plus+p.minus+1))
	*same++
	p.top = max(p.top, p.log)
	return p.Stopped()
}

// E returns the evidence so far: what a stake of 1 has become.
func (p *EProcess) E() float64 { return math.Exp(p.log) }

// P returns the p-value that holds at any time: 1 / the greatest evidence so far.
func (p *EProcess) P() float64 { return math.Exp(-p.top) }

// Stopped tells whether the evidence has ever reached [StopAt].
func (p *EProcess) Stopped() bool { return p.top >= math.Log(StopAt) }

// Counts returns how many effects were positive, negative, and neither.
func (p *EProcess) Counts() (plus, minus, ties int) { return p.plus, p.minus, p.ties }
