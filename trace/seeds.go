package trace

import (
	"strconv"
	"strings"
)

// MaxSeeds bounds the seeds of one comparison.
const MaxSeeds = 100_000

// ParseSeeds reads numbers and ranges of seeds, such as 1-30 or 1,4,7-9. ok is false
// if it is no such list, or one of more than MaxSeeds.
func ParseSeeds(s string) (seeds []uint32, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(part, "-")
		a, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			return nil, false
		}
		b := a
		if ranged {
			if b, err = strconv.ParseUint(to, 10, 32); err != nil || b < a {
				return nil, false
			}
		}
		if uint64(len(seeds))+b-a >= MaxSeeds {
			return nil, false
		}
		for n := a; n <= b; n++ {
			seeds = append(seeds, uint32(n))
		}
	}
	return seeds, true
}
