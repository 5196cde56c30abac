package trace

import (
	"encoding/json"
	"io"
	"iter"
	"strconv"
	"strings"
)

var mooncakeFields = []string{"timestamp", "input_length", "output_length", "hash_ids"}

// Mooncake streams the entries of a trace in Mooncake's JSONL: an object a
// line with timestamp in milliseconds, input_length and output_length in
// tokens, and hash_ids, the content of the prompt's blocks of 512 tokens, which
// may be left out.
func Mooncake(r io.Reader, l Log) iter.Seq2[Entry, error] {
	return l.entries(r, func(_ int, line string, e *Entry) *FieldError {
		d := json.NewDecoder(strings.NewReader(line))
		var input, output json.RawMessage
		seen, bad := eachField(d, mooncakeFields, func(i int, raw json.RawMessage) *FieldError {
			switch i {
			case 0:
				at, bad := number(mooncakeFields[0], string(raw), 0, maxMs)
				e.Arrival = roundMs(at)
				return bad
			case 1:
				input = raw
			case 2:
				output = raw
			default:
				var bad *FieldError
				e.Prefix, bad = prefix(mooncakeFields[3], raw)
				return bad
			}
			return nil
		})
		if bad != nil {
			return bad
		}
		if bad := required(seen, mooncakeFields[:3]); bad != nil {
			return bad
		}
		if _, err := d.Token(); err != io.EOF {
			return badLine("more than one value", "one object a line")
		}
		return e.sizes(mooncakeFields[1], string(input), mooncakeFields[2], string(output))
	})
}

// prefix parses a list of block ids.
func prefix(field string, raw json.RawMessage) ([]uint64, *FieldError) {
	allowed := "a list of at most " + strconv.Itoa(maxPrefix) + " whole numbers from 0"
	var ids []*uint64 // a null is no id
	if err := json.Unmarshal(raw, &ids); err != nil || ids == nil || len(ids) > maxPrefix {
		return nil, bad(field, string(raw), allowed)
	}
	out := make([]uint64, len(ids))
	for i, id := range ids {
		if id == nil {
			return nil, bad(field, string(raw), allowed)
		}
		out[i] = *id
	}
	return out, nil
}
