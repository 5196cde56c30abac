package trace

import (
	"io"
	"iter"
	"strings"
	"time"
)

var azureHeader = []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// Azure streams the entries of a trace of the Azure Public Dataset: a date and
// time, prompt tokens and output tokens a line. Arrivals are counted from the
// first line. Dates without a zone (2023) are taken as UTC, those with one
// (2024) as they say.
func Azure(r io.Reader, l Log) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		var start time.Time
		for e, err := range l.entries(r, func(n int, line string, e *Entry) *FieldError {
			c, bad := columns(line, azureHeader)
			switch {
			case bad != nil:
				return bad
			case n == 1:
				return header(c, azureHeader)
			}
			at, bad := azureTime(c[0])
			if bad != nil {
				return bad
			}
			if n == 2 {
				start = at
			}
			if e.Arrival, bad = since(start, at, c[0]); bad != nil {
				return bad
			}
			return e.sizes(azureHeader[1], c[1], azureHeader[2], c[2])
		}) {
			if !yield(e, err) {
				return
			}
		}
	}
}

// header checks a CSV file's first line.
func header(have, want []string) *FieldError {
	for i := range want {
		if have[i] != want[i] {
			return bad("header", have[i], want[i])
		}
	}
	return nil
}

func azureTime(text string) (time.Time, *FieldError) {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05-07:00"} { // fractions parse with either
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, bad(azureHeader[0], text, "a time such as 2023-11-16 18:15:46.6805900, with or without a zone")
}

func since(start, at time.Time, text string) (time.Duration, *FieldError) {
	d := at.Sub(start).Round(time.Microsecond)
	if d < 0 || d > MaxDuration {
		return 0, bad(azureHeader[0], text, "a time in the ten years from the first line's, "+strings.TrimSuffix(start.Format(time.RFC3339Nano), "Z"))
	}
	return d, nil
}
