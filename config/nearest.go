package config

import (
	"maps"
	"slices"
	"strings"
)

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// unknownKey returns what was probably meant, if anything, and says so, or what
// there is.
func unknownKey(name string, known []string) (meant, text string) {
	best, at := "", len(name)/2+1 // more changes than that are another word
	for _, k := range known {
		if d := distance(name, k); d < at {
			best, at = k, d
		}
	}
	if best != "" {
		return best, "unknown key: did you mean " + best + "?"
	}
	return "", "unknown key: allowed " + strings.Join(known, ", ")
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b (optimal string alignment).
func distance(a, b string) int {
	if len(a) > maxKey || len(b) > maxKey {
		return len(a) + len(b)
	}
	var before, prev, cur [maxKey + 1]int
	for j := range len(b) + 1 {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev = prev, cur
	}
	return prev[len(b)]
}

// maxKey bounds the keys that are compared, in bytes.
const maxKey = 64
