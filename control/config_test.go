package control

import (
	"fmt"
	"testing"
)

// TestFloorsOfEnginesNotKnown: floors are compared with what all engines have, and not
// with what has been found of them so far.
func TestFloorsOfEnginesNotKnown(t *testing.T) {
	for _, v := range []struct {
		second Amount
		want   string
	}{
		{Amount{}, ""},
		{Amount{4, 0}, ""}, // its KV tokens are not known
		{Amount{4, 4000}, ""},
		{Amount{3, 4000}, "classes is 8, must be floors of slots that sum to at most 7: the envelope of 7 without the survival floors of 2 replicas\n"},
	} {
		p := &Pool{
			Name: "p", Replicas: 2, Engines: []Engine{{Name: "a", Total: Amount{4, 4000}}, {Name: "b", Total: v.second}},
			Classes: []Class{{Name: "c", Floor: Amount{8, 8000}}},
		}
		got := ""
		p.Validate(func(path string, value any, allowed string) {
			got += fmt.Sprintf("%s is %v, must be %s\n", path, value, allowed)
		})
		if got != v.want {
			t.Errorf("with %s of the second engine: %q, want %q", v.second, got, v.want)
		}
	}
}
