package probe

import (
	"fmt"
	"strings"
	"testing"
)

// TestCounts: a profile's tokens and sequences are whole numbers that an int holds, so
// that nothing rounds one slot out of 1.5.
func TestCounts(t *testing.T) {
	for value, want := range map[string]string{
		"8":    "",
		"1.5":  "findings[0].value: 1.5: allowed: a whole number of sequences up to 2147483647",
		"1e30": "findings[0].value: 1e+30: allowed: a whole number of sequences up to 2147483647",
		"-1":   "findings[0].value: -1: allowed: a number of sequences from 0 on",
	} {
		_, err := Parse(fmt.Appendf(nil, `{"format": 1, "kind": "vllm", "findings": [{"subject": "slots", "value": %s, "unit": "sequences", "confidence": "shown", "evidence": ["seen"]}]}`, value))
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v", value, err)
		}
	}
}
