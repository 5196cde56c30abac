package advise

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"headgate/prove"
)

// Regime is a part of the recording in which the mix of the traffic did not change.
type Regime struct {
	From, To time.Duration // since the recording's start
	// Changed says what its beginning changed, empty of the first.
	Changed string
}

// The detector's figures.
const (
	leastUnit = 20   // requests of a unit
	mostUnits = 80   // of a recording
	leastSide = 8    // units on each side of a change
	farApart  = 0.2  // distance of two mixes, from which on a change matters
	alarm     = 0.01 // of a recording without a change, in all features together
	shuffles  = 1999
	mostKinds = 16 // of a feature's values that are told apart; the rest is one
)

// feature is what of a request makes the mix.
type feature struct {
	name string
	of   func(q *prove.Request) string
}

var features = []feature{
	{"models", func(q *prove.Request) string { return q.Model }},
	{"classes", func(q *prove.Request) string { return q.Class }},
	{"principals", func(q *prove.Request) string { return cmp.Or(q.Principal, q.Tenant) }},
	// Sizes by factors of four: where a prompt is in its class is no regime.
	{"sizes", func(q *prove.Request) string {
		return fmt.Sprint(bits.Len(uint(q.PromptTokens))/2, "/", bits.Len(uint(q.Output))/2)
	}},
}

// Regimes cuts a recording where the mix of models, classes, principals or sizes changes.
//
// Requests are cut into units of equal number, so that each unit's mix is as uncertain as
// the next one's. For each feature the cut is looked for whose sides differ most, by
// Pearson's chi-squared of the two mixes; what is larger than in all but a share alarm
// (divided among the features) of the units' shufflings is no chance. It counts if the
// mixes are farApart too, by half the sum of the differences of shares (total variation):
// units that are alike are no chance either where traffic comes in sessions or by the
// hour, and then only a large change is one. Both sides are then looked at in the same way.
//
// Alternatives: CUSUM on rates finds that there is more traffic at noon, which is no
// change of the mix; a test of each block against the next misses slow changes.
func Regimes(requests []prove.Request, length time.Duration) []Regime {
	size := max(leastUnit, (len(requests)+mostUnits-1)/mostUnits)
	units := len(requests) / size
	all := []Regime{{To: length}}
	if units < 2*leastSide {
		return all
	}
	tables := make([][][]float64, len(features))
	for i, f := range features {
		tables[i] = mixes(requests[:units*size], size, f)
	}
	var cuts []cut
	find(tables, 0, units, &cuts)
	slices.SortFunc(cuts, func(a, b cut) int { return cmp.Compare(a.at, b.at) })
	for _, c := range cuts {
		before, after := &requests[c.at*size-1], &requests[c.at*size]
		at := (before.Arrival + after.Arrival) / 2
		all[len(all)-1].To = at
		all = append(all, Regime{From: at, To: length, Changed: c.what})
	}
	return all
}

// cut is a change, before a unit.
type cut struct {
	at   int
	what string
}

// mixes counts a feature's values by unit.
func mixes(requests []prove.Request, size int, f feature) [][]float64 {
	seen := map[string]int{}
	for i := range requests {
		seen[f.of(&requests[i])]++
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(seen[b], seen[a]), cmp.Compare(a, b)) })
	place := map[string]int{}
	for i, name := range names {
		place[name] = min(i, mostKinds-1)
	}
	rows := make([][]float64, len(requests)/size)
	for u := range rows {
		rows[u] = make([]float64, min(len(names), mostKinds))
		for i := u * size; i < (u+1)*size; i++ {
			rows[u][place[f.of(&requests[i])]]++
		}
	}
	return rows
}

// find cuts the units from first to last, and what is left on both sides of a cut.
func find(tables [][][]float64, first, last int, cuts *[]cut) {
	if last-first < 2*leastSide {
		return
	}
	best, what, far := -1, "", 0.0
	for i, table := range tables {
		rows := table[first:last]
		if len(rows[0]) < 2 {
			continue
		}
		at, most := split(rows)
		d := distance(rows[:at], rows[at:])
		if d < farApart || d <= far {
			continue
		}
		// The same shuffles each time: what is told of a journal is always the same.
		chance := rand.New(rand.NewPCG(uint64(i), uint64(first)<<32|uint64(last)))
		shuffled := slices.Clone(rows)
		larger := 1
		for range shuffles {
			chance.Shuffle(len(shuffled), func(a, b int) { shuffled[a], shuffled[b] = shuffled[b], shuffled[a] })
			if _, m := split(shuffled); m >= most {
				larger++
			}
		}
		if float64(larger)/float64(shuffles+1) <= alarm/float64(len(features)) {
			best, far, what = at, d, fmt.Sprintf("%s (the mixes are %.0f %% apart)", features[i].name, 100*d)
		}
	}
	if best < 0 {
		return
	}
	*cuts = append(*cuts, cut{first + best, what})
	find(tables, first, first+best, cuts)
	find(tables, first+best, last, cuts)
}

// split is the cut whose sides differ most, and by how much.
func split(rows [][]float64) (at int, most float64) {
	kinds := len(rows[0])
	total, left := make([]float64, kinds), make([]float64, kinds)
	for _, r := range rows {
		for k, n := range r {
			total[k] += n
		}
	}
	n := float64(len(rows))
	for u := range len(rows) - leastSide {
		for k, x := range rows[u] {
			left[k] += x
		}
		if u+1 < leastSide {
			continue
		}
		share, chi := float64(u+1)/n, 0.0
		for k := range kinds {
			if d := left[k] - share*total[k]; total[k] > 0 {
				chi += d * d / total[k]
			}
		}
		if chi /= share * (1 - share); chi > most {
			at, most = u+1, chi
		}
	}
	return max(at, leastSide), most
}

// distance of two mixes: half the sum of the differences of the shares, from 0 to 1.
func distance(a, b [][]float64) float64 {
	shares := func(rows [][]float64) []float64 {
		sum, all := make([]float64, len(rows[0])), 0.0
		for _, r := range rows {
			for k, n := range r {
				sum[k] += n
				all += n
			}
		}
		for k := range sum {
			sum[k] /= all
		}
		return sum
	}
	x, y := shares(a), shares(b)
	d := 0.0
	for k := range x {
		d += math.Abs(x[k] - y[k])
	}
	return d / 2
}
