package control

import (
	"cmp"
	"slices"
	"time"

	"headgate/admission"
)

const resources = int(admission.NumResources)

func resource(r int) string { return admission.Resource(r).String() }

func plus(a, b Amount) Amount  { return Amount{a[0] + b[0], a[1] + b[1]} }
func minus(a, b Amount) Amount { return Amount{a[0] - b[0], a[1] - b[1]} }
func most(a, b Amount) Amount  { return Amount{max(a[0], b[0]), max(a[1], b[1])} }
func least(a, b Amount) Amount { return Amount{min(a[0], b[0]), min(a[1], b[1])} }
func within(a, b Amount) bool  { return a[0] <= b[0] && a[1] <= b[1] }

// over is what a has beyond b, never below 0.
func over(a, b Amount) Amount { return most(minus(a, b), Amount{}) }

// fill shares total between claims so that nobody gets more than he claims and
// nobody less than another unless he claims less (max-min fairness). got is appended
// to dst. Of what can't be divided evenly the first in order get one more; a stable
// order keeps a small change small.
func fill(dst []int64, claims []int64, total int64) (got []int64) {
	sum := int64(0)
	for _, c := range claims {
		sum += c
	}
	if sum <= total {
		return append(dst, claims...)
	}
	total = max(total, 0)
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(claims[a], claims[b]) })
	got = append(dst, claims...)
	base := len(dst)
	for n, i := range order {
		left := int64(len(order) - n)
		each := total / left
		if claims[i] <= each {
			total -= claims[i]
			continue
		}
		// All that are left claim more than an even share.
		more := total % left
		rest := order[n:]
		slices.Sort(rest)
		for m, i := range rest {
			got[base+i] = each
			if int64(m) < more {
				got[base+i]++
			}
		}
		break
	}
	return got
}

func duration(t Time) time.Duration { return time.Duration(t) }
