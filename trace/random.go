package trace

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strconv"
	"time"
)

// stream is a source of chance of its own for one label, so that one more
// arrival in one place changes no draw in another. It is the generator that is
// known as mulberry32, seeded from the label's digest.
//
// Alternatives: math/rand/v2's generators are better and as fast, but the
// published traces were drawn by this one, and a trace that nobody else can
// redraw is no evidence.
type stream struct{ state uint32 }

func newStream(seed uint32, label string) *stream {
	text := append(strconv.AppendUint(nil, uint64(seed), 10), ':')
	sum := sha256.Sum256(append(text, label...))
	return &stream{binary.BigEndian.Uint32(sum[:4])}
}

func (s *stream) bits() uint32 {
	s.state += 0x6d2b79f5
	x := s.state
	x = (x ^ x>>15) * (x | 1)
	x ^= x + (x^x>>7)*(x|61)
	return x ^ x>>14
}

// unit returns a number from 0 to below 1.
func (s *stream) unit() float64 { return float64(s.bits()) / (1 << 32) }

// draw takes an entry's chance, in the published order.
func (s *stream) draw() Draw {
	return Draw{
		RetryJitter:  0.5 + s.unit(),
		TargetSlot:   s.bits(), // floor(u * 2^32) is the bits again
		ProviderSeed: uint64(s.unit() * 0x7fffffff),
	}
}

// arrivals returns the times of a Poisson process in a window.
func arrivals(seed uint32, label string, rps float64, startMs, durationMs int) []time.Duration {
	if rps <= 0 {
		return nil
	}
	s := newStream(seed, label+":arrivals")
	at, end := float64(startMs), float64(startMs+durationMs)
	var out []time.Duration
	for {
		// The conversion keeps the product from being fused into the sum, which
		// some processors do and which would change the last bit.
		at += float64(-math.Log(1-s.unit()) / rps * 1000)
		if at >= end {
			return out
		}
		out = append(out, roundMs(at))
	}
}

// roundMs rounds milliseconds to 0.001, half up.
func roundMs(ms float64) time.Duration {
	return time.Duration(math.Round(ms*1000)) * time.Microsecond
}

// toMs is the shortest decimal's double for an arrival, in milliseconds.
func toMs(d time.Duration) float64 { return float64(d/time.Microsecond) / 1000 }
