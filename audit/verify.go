package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// mostFaults is how many faults a report lists.
const mostFaults = 20

// Report is what the records of some files come to.
type Report struct {
	Files, Records int
	First          uint64 // the number of the first record
	Head           Head   // of the last line
	From, To       time.Time
	Begins         bool   // with the chain's first record: nothing is missing before
	Gaps           int    // records that say that others are lost
	Lost           uint64 // how many
	Starts         int
	Killed         int // starts without a stop before: what the process then had in memory is lost
	Torn           int // lines that a crash has cut
	Faults         []string
	More           int // faults that are not listed
}

func (r *Report) fault(file string, line int, format string, args ...any) {
	if len(r.Faults) == mostFaults {
		r.More++
		return
	}
	r.Faults = append(r.Faults, fmt.Sprintf("%s:%d: %s", file, line, fmt.Sprintf(format, args...)))
}

// Files are a file and those that were put by before it, the oldest first.
func Files(file string) ([]string, error) {
	all, err := putBy(file)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(file); err != nil {
		return nil, err
	}
	return append(all, file), nil
}

// Verify reads files in their order and says whether they are one chain: nothing changed,
// moved or removed within it. The error is that a file can't be read.
func Verify(files []string) (*Report, error) {
	v := verifier{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		err = v.read(name, f)
		_ = f.Close() // it was only read
		if err != nil {
			return nil, err
		}
		v.Files++
	}
	if v.torn != 0 {
		v.Torn++ // the last line is one of a process that was killed, or still writes
	}
	return &v.Report, nil
}

type verifier struct {
	Report
	stopped bool
	torn    int // the number of a line that is no record, which only a start may follow; 0: none
}

func (v *verifier) read(name string, in io.Reader) error {
	b := bufio.NewReaderSize(in, maxLine)
	for n := 1; ; n++ {
		line, err := b.ReadSlice('\n')
		switch {
		case err == io.EOF && len(line) == 0:
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("%s:%d: longer than the allowed %d bytes", name, n, maxLine)
		case err != nil && err != io.EOF:
			return fmt.Errorf("%s: %w", name, err)
		}
		v.line(name, n, bytes.TrimSuffix(line, []byte{'\n'}))
	}
}

func (v *verifier) line(name string, n int, line []byte) {
	hash := Line{JSON: line}.Hash()
	defer func() { v.Head.Hash = hash }()
	var r Record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || r.Seq == 0 || r.Kind == "" {
		if v.torn != 0 {
			v.fault(name, v.torn, "is no record, and no start follows it")
		}
		v.torn = n
		return
	}
	first := v.Records == 0
	v.Records++
	if v.torn != 0 {
		if v.Torn++; r.Kind != Started {
			v.fault(name, v.torn, "is no record, and no start follows it")
		}
		v.torn = 0
	}
	switch {
	case first && v.Head.Hash == "":
		v.First, v.From, v.Begins = r.Seq, r.TS, r.Prev == ""
	case r.Prev != v.Head.Hash:
		v.fault(name, n, "record %d does not follow the line before it: one was changed, moved or removed", r.Seq)
	}
	if first {
		v.First, v.From = r.Seq, r.TS
	}
	missing := uint64(0)
	switch r.Kind {
	case Gap:
		v.Gaps++
		v.Lost += r.Count
		missing = max(r.Count, 1) - 1
	case Started:
		if v.Starts++; !first && !v.stopped {
			v.Killed++
		}
	}
	if want := v.Head.Seq + 1 + missing; !first && r.Seq != want {
		v.fault(name, n, "record %d follows %d", r.Seq, v.Head.Seq)
	}
	v.stopped = r.Kind == Stopped
	v.Head.Seq, v.To = r.Seq, r.TS
}
