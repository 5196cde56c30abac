package report

import (
	"encoding/json"
	"fmt"
	"math"
)

// Number is a figure of report.json. JSON has no infinity, and a figure that never
// came is one: it is written as the text "inf" or "-inf". One that is not there,
// because nothing was measured or too little to show it, is null, and NaN here.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	switch v := float64(n); {
	case math.IsNaN(v):
		return []byte("null"), nil
	case math.IsInf(v, 1):
		return []byte(`"inf"`), nil
	case math.IsInf(v, -1):
		return []byte(`"-inf"`), nil
	default:
		return json.Marshal(v)
	}
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "null":
		*n = missing
		return nil
	case `"inf"`:
		*n = Number(math.Inf(1))
		return nil
	case `"-inf"`:
		*n = Number(math.Inf(-1))
		return nil
	}
	var v float64
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("%s is no figure: allowed are a number, \"inf\", \"-inf\" and null", b)
	}
	*n = Number(v)
	return nil
}

var missing = Number(math.NaN())

func (n Number) known() bool { return !math.IsNaN(float64(n)) }
