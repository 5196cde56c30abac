package admission

import (
	"math/bits"
	"slices"
)

// lengths learns how long a class's answers really are, as a histogram over
// buckets that grow by a quarter of a power of two, with the past halved as
// evidence accumulates.
//
// Alternatives: an average says nothing about the tail, and output lengths are
// heavy-tailed, so a pool priced by averages overruns; a P2 estimator keeps one
// quantile but can't answer for "given that it already has 300 tokens", which
// is what a running hold needs.
type lengths struct {
	counts [lengthBuckets]uint32
	total  uint32
	middle int32 // the median, as of the same answer, 0 while unknown
	usual  int32 // expect(0) as of the last multiple of lengthEvery, 0 while unknown
}

const (
	lengthBuckets = 4 * 24 // up to 2^24 tokens
	// minLengths is how many answers must have ended before they are believed.
	minLengths = 32
	maxLengths = 1024
	// quantile that a reservation covers, in percent: one answer in twenty
	// grows beyond what was reserved for it.
	lengthQuantile = 95
	// lengthEvery is how many answers pass before the usual length is learned
	// anew, so that pricing a request costs nothing.
	lengthEvery = 8
)

func lengthBucket(n int32) int {
	if n < 4 {
		return int(max(n, 0))
	}
	exp := bits.Len32(uint32(n)) - 1
	return min(4*(exp-1)+int(uint32(n)>>(exp-2)&3), lengthBuckets-1)
}

// lengthTop is the largest length in a bucket.
func lengthTop(b int) int32 {
	if b < 4 {
		return int32(b)
	}
	exp := b/4 + 1
	return int32(1)<<exp + int32(b%4+1)<<(exp-2) - 1
}

func (l *lengths) add(n int32) {
	l.counts[lengthBucket(n)]++
	l.total++
	if l.total >= maxLengths {
		l.total = 0
		for i := range l.counts {
			l.counts[i] /= 2
			l.total += l.counts[i]
		}
	}
	if l.total%lengthEvery == 0 {
		l.usual, _ = l.expect(0)
		l.middle, _ = l.quantile(0, 50)
	}
}

// expect returns the length that lengthQuantile percent of the answers stay
// within, of those that reach more than out tokens; ok is false while too few
// are known.
func (l *lengths) expect(out int32) (n int32, ok bool) { return l.quantile(out, lengthQuantile) }

// quantile returns the length that percent of those stay within.
func (l *lengths) quantile(out int32, percent uint32) (n int32, ok bool) {
	first := 0
	if out > 0 {
		first = lengthBucket(out)
	}
	var above uint32
	for _, v := range l.counts[first:] {
		above += v
	}
	if above < minLengths {
		return 0, false
	}
	want := (above*percent + 99) / 100
	for b := first; b < lengthBuckets; b++ {
		if want <= l.counts[b] {
			return max(lengthTop(b), out), true
		}
		want -= l.counts[b]
	}
	return max(lengthTop(lengthBuckets-1), out), true
}

// shares learns how much of what requests declare they really produce: a client
// library's default limit is far above any answer. The largest share of the last
// few counts, so one long answer is enough to be careful again.
//
// Alternatives: the lengths of the class say more, once enough of them are known;
// until then a pool that is priced by wishes stands idle.
type shares struct {
	ring [16]uint8 // percent, rounded up; 0 is none
	at   uint8
	n    uint8
	most uint8
}

// minShares is how many answers must have ended before they are believed.
const minShares = 4

func (s *shares) add(out, declared int32) {
	s.ring[s.at] = uint8(min(max((int64(out)*100+int64(declared)-1)/int64(max(declared, 1)), 1), 100))
	s.at = (s.at + 1) % uint8(len(s.ring))
	s.n = min(s.n+1, uint8(len(s.ring)))
	s.most = slices.Max(s.ring[:])
}

// of returns what a request that declares n tokens will probably stay within, and
// whether that is known.
func (s *shares) of(n int32) (int32, bool) {
	if s.n < minShares {
		return 0, false
	}
	return int32((int64(n)*int64(s.most) + 99) / 100), true
}

// learnLength learns from an answer that the engine has finished.
func (c *Core) learnLength(h *hold) {
	q := &c.requests[h.req.Slot()]
	cl := &c.classes[h.class]
	each := q.kept + h.out/h.n
	cl.lengths.add(each)
	if q.declared && q.out > 0 {
		cl.shares.add(each, q.out)
		c.shares.add(each, q.out)
	}
}
