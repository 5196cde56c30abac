package stats

import "fmt"

// TooFewError says that a method was asked of fewer pairs than it is sound for.
type TooFewError struct {
	What       string // the method
	Have, Need int    // pairs
}

func (e *TooFewError) Error() string {
	return fmt.Sprintf("%s: %d pairs, needed are at least %d", e.What, e.Have, e.Need)
}

// NotFiniteError says that a method needs a mean and some effect has none, since a
// value of its pair was zero or never came.
type NotFiniteError struct {
	What  string
	Pairs []int // positions of these effects, from 0
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("%s: the effects of pairs %v are not finite; estimate, interval and sign-flip test take them", e.What, e.Pairs)
}

// checkLevel reports a confidence level that is none.
func checkLevel(level float64) error {
	if !(level >= 0.5 && level < 1) {
		return fmt.Errorf("level is %v, allowed is 0.5 to below 1", level)
	}
	return nil
}
