package wire

import (
	"errors"
	"slices"
	"strconv"
	"unicode/utf8"
)

// edit replaces Body[from:to] by text.
type edit struct {
	from, to int
	text     string
}

// Project returns the body to send upstream: the client's bytes with single
// values replaced, added or taken out as p says, and everything else as it was
// and where it was. The result is appended to dst[:0], or is Body itself where
// nothing changes; it must not be written to.
//
//   - Model replaces the model's name.
//   - Stream sets stream and stream_options.include_usage to true and keeps the
//     client's other stream options.
//   - MaxTokens lowers every limit that the client gave (max_tokens,
//     max_completion_tokens, n_predict) to it. Without one of the first two, which
//     are the ones that every engine obeys, max_tokens is added.
//   - Neither of the two is done to a request without output.
//   - TokenIDs adds return_token_ids, which a resumable request does not have, and
//     makes null of its stop, which a Stitch sees to.
//   - Priority replaces or adds priority. Without HasPriority a client's own
//     is taken out: no client ranks itself.
//
// A service_tier stays: engines ignore it, and what answers OpenAI's own API
// needs it.
//
// Alternatives: setting paths with sjson searches the body once for each, and
// does not see escaped keys. Parse has met every owned field already, so here
// is only copying left to do.
func (r *Request) Project(dst []byte, p Projection) ([]byte, error) {
	if r.spans[fieldModel].key == 0 {
		return nil, errors.New("only a request that Parse returned can be projected")
	}
	var room [int(numFields) + 1]edit
	return r.project(dst, p, room[:0]), nil
}

// project makes more edits than those of p.
func (r *Request) project(dst []byte, p Projection, edits []edit) []byte {
	var added []byte
	add := func(name, value string) {
		added = append(added, `,"`...)
		added = append(added, name...)
		added = append(added, `":`...)
		added = append(added, value...)
	}
	set := func(f field, value string) {
		switch sp := r.spans[f]; {
		case sp.key == 0:
			add(fieldNames[f], value)
		case string(r.Body[sp.from:sp.to]) != value:
			edits = append(edits, edit{sp.from, sp.to, value})
		}
	}

	if p.Model != "" && p.Model != r.Model {
		set(fieldModel, string(appendString(nil, p.Model)))
	}
	generates := r.API.Generates()
	if p.Stream && generates {
		set(fieldStream, "true")
		if sp := r.spans[fieldStreamOptions]; sp.key == 0 || r.Body[sp.from] != '{' {
			set(fieldStreamOptions, `{"include_usage":true}`)
		} else if r.spans[fieldIncludeUsage].key != 0 {
			set(fieldIncludeUsage, "true")
		} else {
			text := `"include_usage":true`
			if !r.emptyObject(sp) {
				text += ","
			}
			edits = append(edits, edit{sp.from + 1, sp.from + 1, text})
		}
	}
	if p.MaxTokens > 0 && generates {
		limit := strconv.Itoa(p.MaxTokens)
		obeyed := false
		for _, f := range limits {
			sp := r.spans[f]
			n, ok := integer(r.Body[sp.from:sp.to])
			if ok && n > p.MaxTokens {
				set(f, limit)
			}
			obeyed = obeyed || ok && f != fieldNPredict
		}
		if !obeyed {
			value := limit
			if r.Declared {
				value = strconv.Itoa(min(r.MaxTokens, p.MaxTokens))
			}
			set(fieldMaxTokens, value)
		}
	}
	if p.HasPriority {
		set(fieldPriority, strconv.Itoa(p.Priority))
	} else if sp := r.spans[fieldPriority]; sp.key != 0 {
		edits = append(edits, r.removal(sp))
	}
	if p.TokenIDs {
		add("return_token_ids", "true")
		if len(r.stops) > 0 {
			set(fieldStop, "null")
		}
	}
	if len(added) > 0 {
		edits = append(edits, edit{r.close, r.close, string(added)})
	}
	if len(edits) == 0 {
		return r.Body
	}

	slices.SortStableFunc(edits, func(a, b edit) int { return a.from - b.from })
	size := len(r.Body)
	for _, e := range edits {
		size += len(e.text) - (e.to - e.from)
	}
	dst = slices.Grow(dst[:0], size)
	at := 0
	for _, e := range edits {
		dst = append(append(dst, r.Body[at:e.from]...), e.text...)
		at = e.to
	}
	return append(dst, r.Body[at:]...)
}

func (r *Request) emptyObject(sp span) bool {
	s := scanner{b: r.Body, i: sp.from + 1}
	return s.peek() == '}'
}

// removal takes a member out together with the comma before it, or after it if
// it is the first.
func (r *Request) removal(sp span) edit {
	i := sp.key - 1
	for r.Body[i] != ',' && r.Body[i] != '{' {
		i--
	}
	if r.Body[i] == ',' {
		return edit{i, sp.to, ""}
	}
	// A model is always there, so the first member is never the only one.
	s := scanner{b: r.Body, i: sp.to}
	s.peek()
	return edit{sp.key, s.i + 1, ""}
}

// appendString appends text as a JSON string.
func appendString(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for _, r := range text { // what is not UTF-8 comes as U+FFFD
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20:
			const hex = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
