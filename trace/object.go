package trace

import (
	"encoding/json"
	"math/bits"
	"slices"
	"strings"
)

// maxMs is the longest trace in milliseconds.
const maxMs = float64(MaxDuration / 1e6)

// eachField reads the object that the decoder stands before and calls set with
// the index of every field's name and its value. It is stricter than
// unmarshalling into a struct: names are compared exactly, an unknown or
// repeated one is an error. It returns which names were seen, a bit each.
func eachField(d *json.Decoder, names []string, set func(i int, raw json.RawMessage) *FieldError) (seen uint64, wrong *FieldError) {
	return eachName(d, names, func(i int) *FieldError {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return badJSON(err)
		}
		return set(i, raw)
	})
}

// eachName is eachField for a set that reads the value from the decoder itself.
func eachName(d *json.Decoder, names []string, set func(i int) *FieldError) (seen uint64, wrong *FieldError) {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0, badLine("what is no JSON object", "an object with "+strings.Join(names, ", "))
	}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return seen, badJSON(err)
		}
		i := slices.Index(names, name)
		if i < 0 {
			return seen, badLine("unknown field "+clip(name), "one of "+strings.Join(names, ", "))
		}
		if seen&(1<<i) != 0 {
			return seen, bad(name, "given twice", "once")
		}
		seen |= 1 << i
		if wrong := set(i); wrong != nil {
			return seen, wrong
		}
	}
	if _, err := d.Token(); err != nil {
		return seen, badJSON(err)
	}
	return seen, nil
}

func badJSON(err error) *FieldError {
	why := "broken JSON"
	if err != nil {
		why += ": " + err.Error()
	}
	return badLine(why, "JSON")
}

// required checks that all of names were seen.
func required(seen uint64, names []string) *FieldError {
	if missing := bits.TrailingZeros64(^seen); missing < len(names) {
		return bad(names[missing], "missing", "one")
	}
	return nil
}

// requiredOf is required for an object that is a field itself.
func requiredOf(parent string, seen uint64, names []string) *FieldError {
	wrong := required(seen, names)
	if wrong != nil {
		wrong.Field = parent + "." + wrong.Field
	}
	return wrong
}

// text parses a JSON string that is a name.
func text(field string, raw json.RawMessage) (string, *FieldError) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil || len(raw) == 0 || raw[0] != '"' || !validName(s) {
		return "", bad(field, string(raw), allowedName)
	}
	return s, nil
}
