package trace

import (
	"fmt"
	"strconv"
	"strings"
)

// FieldError says what in a trace file cannot be used.
type FieldError struct {
	File    string
	Line    int    // from 1; 0 where the file as a whole is meant
	Field   string // empty where the line as a whole is meant
	Value   string // as it stands in the file, cut to a readable length
	Allowed string
}

func (e *FieldError) Error() string {
	where := e.File
	if e.Line > 0 {
		where += ":" + strconv.Itoa(e.Line)
	}
	if e.Field == "" {
		return fmt.Sprintf("%s: %s: allowed is %s", where, e.Value, e.Allowed)
	}
	return fmt.Sprintf("%s: field %s is %s: allowed is %s", where, e.Field, e.Value, e.Allowed)
}

// at puts a problem into its place.
func (e *FieldError) at(file string, line int) *FieldError {
	e.File, e.Line = file, line
	return e
}

// bad is a problem with a field whose place is not known yet.
func bad(field, value, allowed string) *FieldError {
	return &FieldError{Field: field, Value: clip(value), Allowed: allowed}
}

// badLine is a problem with a line as a whole.
func badLine(value, allowed string) *FieldError { return bad("", value, allowed) }

// clip shortens what came from outside to what a message can show.
func clip(s string) string {
	const most = 80
	if s == "" {
		return "empty"
	}
	if len(s) > most {
		s = s[:most] + "..."
	}
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return strconv.QuoteToASCII(s)
		}
	}
	return s
}

// whole parses a whole number within bounds.
func whole(field, text string, low, high int) (int, *FieldError) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < int64(low) || n > int64(high) {
		return 0, bad(field, text, fmt.Sprintf("a whole number from %d to %d", low, high))
	}
	return int(n), nil
}

// number parses a decimal number within bounds.
func number(field, text string, low, high float64) (float64, *FieldError) {
	f, err := strconv.ParseFloat(text, 64)
	// ParseFloat knows more notations than the formats do: 0x1p4, inf.
	if err != nil || strings.Trim(text, "0123456789.eE+-") != "" || !(low <= f && f <= high) {
		return 0, bad(field, text, fmt.Sprintf("a number from %.15g to %.15g", low, high))
	}
	return f, nil
}
