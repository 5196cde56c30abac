package stats

import "math/bits"

// stream is a source of chance from a seed: splitmix64 (Steele, Lea and Flood
// 2014). It is written out here so that a published p-value can be computed again
// by anyone, whatever a standard library's generators become.
type stream uint64

func (s *stream) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number from 0 to below n. It favours some by less than n in 2^64.
func (s *stream) below(n int) int {
	hi, _ := bits.Mul64(s.next(), uint64(n))
	return int(hi)
}
