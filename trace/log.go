package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxLine bounds a line of a recorded log, in bytes.
const maxLine = 1 << 20

// Log is how a recorded log is read.
type Log struct {
	File string // its name in errors
	// Class of every entry; logs know none.
	Class string
}

// entries yields what parse makes of every line, in the file's order, and ends
// with the first error. Ids are the class with the entry's number.
//
// A line is valid during its parse only. One that is empty is an error: these
// formats have none, and a file cut and joined again should not pass.
func (l Log) entries(r io.Reader, parse func(n int, line string, e *Entry) *FieldError) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := checkName("class", l.Class); err != nil {
			yield(Entry{}, err)
			return
		}
		b := bufio.NewReaderSize(r, maxLine)
		count := 0
		for n := 1; ; n++ {
			line, err := b.ReadSlice('\n')
			switch {
			case errors.Is(err, bufio.ErrBufferFull):
				yield(Entry{}, badLine("a longer line", fmt.Sprintf("at most %d bytes", maxLine)).at(l.File, n))
				return
			case err != nil && err != io.EOF:
				yield(Entry{}, fmt.Errorf("%s:%d: read: %w", l.File, n, err))
				return
			case len(line) == 0: // the end
				if n == 1 {
					yield(Entry{}, badLine("an empty file", "one request a line").at(l.File, 0))
				}
				return
			}
			line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
			e := Entry{Class: l.Class}
			if bad := parse(n, string(line), &e); bad != nil {
				yield(Entry{}, bad.at(l.File, n))
				return
			}
			if e.PromptTokens == 0 { // a header
				continue
			}
			if count++; count > MaxEntries {
				yield(Entry{}, badLine("another request", fmt.Sprintf("at most %d requests", MaxEntries)).at(l.File, n))
				return
			}
			e.ID = l.Class + "-" + strconv.Itoa(count)
			if !yield(e, nil) {
				return
			}
		}
	}
}

// columns splits a line of a CSV file. None of the formats quotes.
func columns(line string, header []string) ([]string, *FieldError) {
	c := strings.Split(line, ",")
	if len(c) != len(header) {
		return nil, badLine(fmt.Sprintf("%d columns", len(c)), strings.Join(header, ","))
	}
	return c, nil
}

// sizes parses a recorded request's lengths. An output of 0 is a request that
// the service failed.
func (e *Entry) sizes(promptField, prompt, outputField, output string) *FieldError {
	var bad *FieldError
	if e.PromptTokens, bad = whole(promptField, prompt, 1, MaxTokens); bad != nil {
		return bad
	}
	e.Output, bad = whole(outputField, output, 0, MaxTokens)
	return bad
}

// Collect makes a trace of a recorded log's entries, ordered by arrival and
// then as they were recorded. The seed draws what the log does not know. It
// returns the sequence's error, if any.
func Collect(profile string, seed uint32, entries iter.Seq2[Entry, error]) (*Trace, error) {
	if err := checkName("profile", profile); err != nil {
		return nil, err
	}
	t := &Trace{Profile: profile, Protocol: Imported, Seed: seed, Workload: Workload{Seed: seed, MaxAttempts: 1}}
	for e, err := range entries {
		if err != nil {
			return nil, err
		}
		if e.Output == 0 {
			t.Skipped++
			continue
		}
		e.Draw = Imported.draw(seed, e.ID)
		t.Entries = append(t.Entries, e)
	}
	if len(t.Entries) == 0 {
		return nil, fmt.Errorf("trace %s: no request with an output: allowed is one or more", profile)
	}
	slices.SortStableFunc(t.Entries, byArrival)
	t.Workload.DurationMs = endOf(t.Entries)
	return t, nil
}

func byArrival(a, b Entry) int { return cmp.Compare(a.Arrival, b.Arrival) }

// endOf is when a recorded log ends, in milliseconds: nothing arrives at a
// trace's end, and no trace is empty.
func endOf(entries []Entry) int {
	if len(entries) == 0 {
		return 1
	}
	return int(entries[len(entries)-1].Arrival/time.Millisecond) + 1
}
