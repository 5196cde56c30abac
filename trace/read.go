package trace

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"path"
	"strings"
)

// Read reads a trace of any known format, which it tells by the file's ending
// and, for CSV, its first line: .json is the published format, .jsonl
// Mooncake's, .csv Azure's or BurstGPT's. class is the one that a recorded
// log's requests are given; the published format has its own.
//
// A recorded log is named after its file, and drawn with seed 0.
func Read(r io.Reader, file, class string) (*Trace, error) {
	l := Log{File: file, Class: class}
	ending := path.Ext(file)
	var entries iter.Seq2[Entry, error]
	switch ending {
	case ".json":
		return Published(r, file)
	case ".jsonl":
		entries = Mooncake(r, l)
	case ".csv":
		b := bufio.NewReader(r)
		head, _ := b.Peek(len(azureHeader[0]) + 1) // an error comes back with the first line
		switch string(head) {
		case azureHeader[0] + ",":
			entries = Azure(b, l)
		case burstGPTHeader[0] + ",":
			entries = BurstGPT(b, l)
		default:
			return nil, bad("header", string(head), "that of an Azure trace, "+strings.Join(azureHeader, ",")+
				", or of a BurstGPT one, "+strings.Join(burstGPTHeader, ",")).at(file, 1)
		}
	default:
		return nil, fmt.Errorf("%s: ending %q: allowed are .json, .jsonl and .csv", file, ending)
	}
	return Collect(nameOf(file), 0, entries)
}

// nameOf makes a profile's name of a file's.
func nameOf(file string) string {
	name := strings.TrimSuffix(path.Base(file), path.Ext(file))
	return strings.Map(func(c rune) rune {
		if c < 0x80 && validName(string(c)) {
			return c
		}
		return '_'
	}, name[:min(len(name), 128)])
}
