package trace

import (
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
)

var (
	burstGPTHeader         = []string{"Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"}
	burstGPTSessionsHeader = []string{"Timestamp", "Session ID", "Elapsed time", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"}
)

// BurstGPT streams the entries of a BurstGPT trace, with or without the columns
// of sessions. Arrivals are the file's own seconds, which count from the start
// of the collection. Requests that failed have no response tokens.
func BurstGPT(r io.Reader, l Log) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		names := burstGPTHeader
		sessions := false
		for e, err := range l.entries(r, func(n int, line string, e *Entry) *FieldError {
			if n == 1 && strings.Contains(line, burstGPTSessionsHeader[1]) {
				names, sessions = burstGPTSessionsHeader, true
			}
			c, bad := columns(line, names)
			switch {
			case bad != nil:
				return bad
			case n == 1:
				return header(c, names)
			case sessions:
				if bad := e.burstGPTSession(c[1]); bad != nil {
					return bad
				}
				c = slices.Delete(c, 1, 3)
			}
			return e.burstGPT(c)
		}) {
			if !yield(e, err) {
				return
			}
		}
	}
}

func (e *Entry) burstGPT(c []string) *FieldError {
	s, wrong := number(burstGPTHeader[0], c[0], 0, MaxDuration.Seconds())
	if wrong != nil {
		return wrong
	}
	e.Arrival = roundMs(s * 1000)
	if wrong := e.sizes(burstGPTHeader[2], c[2], burstGPTHeader[3], c[3]); wrong != nil {
		return wrong
	}
	if total := strconv.Itoa(e.PromptTokens + e.Output); c[4] != total {
		return bad(burstGPTHeader[4], c[4], "the sum of the two before, "+total)
	}
	return nil
}

func (e *Entry) burstGPTSession(id string) *FieldError {
	if id != "" && !validName(id) {
		return bad(burstGPTSessionsHeader[1], id, allowedName+", or nothing")
	}
	e.Session = id
	return nil
}
