package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"slices"
	"strings"
)

// ErrFormat reports a file whose beginning is that of no known format.
var ErrFormat = errors.New("no known format: allowed are the published one, Mooncake JSONL, Azure CSV and BurstGPT CSV")

// maxHead is how much of a file's beginning tells its format, in bytes.
const maxHead = 4096

// Read reads a trace of any known format, which it tells by how the content
// begins: a CSV file by its header's first column, JSON by its first key. The
// name tells nothing, since logs are kept as .log, .txt and worse. A beginning
// of no known format is ErrFormat; from there on every format is strict.
//
// class is the one that a recorded log's requests are given; the published
// format has its own. A recorded log is named after its file, and drawn with
// seed 0.
func Read(r io.Reader, file, class string) (*Trace, error) {
	b := bufio.NewReaderSize(r, maxHead)
	head, err := b.Peek(maxHead)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: read: %w", file, err)
	}
	l := Log{File: file, Class: class}
	var entries iter.Seq2[Entry, error]
	switch first := firstName(head); {
	case slices.Contains(publishedFields, first):
		return Published(b, file)
	case slices.Contains(mooncakeFields, first):
		entries = Mooncake(b, l)
	case first == azureHeader[0]:
		entries = Azure(b, l)
	case first == burstGPTHeader[0]:
		entries = BurstGPT(b, l)
	default:
		return nil, fmt.Errorf("%s: %w", file, ErrFormat)
	}
	return Collect(nameOf(file), 0, entries)
}

// firstName is the first key of a JSON object, or the first column of a CSV
// header. No two formats share one.
func firstName(head []byte) string {
	if !bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("{")) {
		column, _, _ := bytes.Cut(head, []byte(","))
		return string(column)
	}
	d := json.NewDecoder(bytes.NewReader(head))
	_, _ = d.Token()    // the brace
	key, _ := d.Token() // nil where the head is no JSON
	name, _ := key.(string)
	return name
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
