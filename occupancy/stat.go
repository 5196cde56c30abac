package occupancy

import "math/bits"

// stat is the distribution of a duration, in buckets that are at most 1/32 of
// their value wide.
type stat struct {
	n       int
	sum     float64 // seconds
	max     int64
	buckets []uint32
}

const subBuckets = 5 // bits

func bucketOf(ns int64) int {
	n := bits.Len64(uint64(ns))
	if n <= subBuckets {
		return int(ns)
	}
	shift := n - subBuckets - 1
	return shift<<subBuckets + int(ns>>shift)
}

// upper is the largest duration in a bucket.
func upper(b int) int64 {
	if b < 2<<subBuckets {
		return int64(b)
	}
	shift := b>>subBuckets - 1
	return (int64(b-shift<<subBuckets)+1)<<shift - 1
}

func (s *stat) add(ns int64) {
	s.n++
	s.sum += seconds(ns)
	s.max = max(s.max, ns)
	b := bucketOf(ns)
	if b >= len(s.buckets) {
		s.buckets = append(s.buckets, make([]uint32, b+1-len(s.buckets))...)
	}
	s.buckets[b]++
}

// quantile returns a duration that the share q of them does not exceed, in
// nanoseconds.
func (s *stat) quantile(q float64) int64 {
	rest := int(q * float64(s.n))
	for b, n := range s.buckets {
		if rest -= int(n); rest < 0 {
			return min(upper(b), s.max)
		}
	}
	return s.max
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }
