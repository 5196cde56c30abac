package wire

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzScan: the scanner takes what encoding/json takes, but for its bound on
// nesting and UTF-8, which encoding/json repairs and Parse checks by itself.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,-0.5e+3,0,true,false,null,"\u00e9\n\"\\\/"],"b":{}}`, ` [ ] `, `01`, `-`, `1.`, `1e`, `"\ud800"`, `"\u00g0"`,
		`{"a" 1}`, `[1 2]`, `{,}`, `[,]`, `tru`, "\"\x1f\"", "\"12345678\x00\"", `"12345678\`, `"`, strings.Repeat("[", 200), strings.Repeat("[", 120) + strings.Repeat("]", 120),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := check(b)
		if err != nil && strings.Contains(err.Error(), "nesting") {
			return
		}
		if valid := json.Valid(b); valid != (err == nil) {
			t.Fatalf("%q: %v, valid %v", b, err, valid)
		}
		if err != nil || !utf8.Valid(b) || b[0] != '"' || b[len(b)-1] != '"' {
			return
		}
		var want string
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		if got := text(b); got != want {
			t.Fatalf("%s means %q, not %q", b, want, got)
		}
	})
}
