package occupancy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Input is one file of a log.
type Input struct {
	Name string
	Data io.Reader // also compressed with gzip
}

// headSize is how many bytes tell two logs apart, or all that there are. A copy beside its
// original, such as a compressed one, would double all that was in flight.
const headSize = 64 << 10

// Run reads a log of one or more files and reports. Files may follow each other, as
// rotated ones do, or lie beside each other, as those of replicas do: lines are
// taken by their time. A file that cannot be read to its end is an error; a line
// that cannot be read is counted.
func Run(inputs []Input, f *Format, o Options) (*Report, error) {
	c, err := f.compile()
	if err != nil {
		return nil, fmt.Errorf("format %s: %w", f.Name, err)
	}
	a, err := NewAnalysis(o, c.mayBeWhole())
	if err != nil {
		return nil, err
	}
	var files []*file
	var heads [][]byte
	for _, in := range inputs {
		p, err := newParser(c, &a.opts, in.Name)
		if err != nil {
			return nil, err
		}
		r, err := plain(in.Data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", in.Name, err)
		}
		if len(inputs) > 1 {
			b, _ := r.Peek(headSize) // what is wrong with it, reading it says
			if i := slices.IndexFunc(heads, func(o []byte) bool { return len(b) > 0 && bytes.Equal(o, b) }); i >= 0 {
				return nil, fmt.Errorf("%s and %s begin with the same %d bytes, and would be counted twice: allowed is each log once", inputs[i].Name, in.Name, len(b))
			}
			heads = append(heads, bytes.Clone(b))
		}
		files = append(files, &file{name: in.Name, in: r, parser: p})
	}
	if err := merge(files, a); err != nil {
		return nil, err
	}
	r := a.Report()
	if r.UsedLines == 0 {
		if r.BadLines > 0 {
			return nil, fmt.Errorf("no line of %d could be used as %s, the first that failed is %s", r.Lines, f.Name, r.FirstBad)
		}
		return nil, fmt.Errorf("no line of %d is one of %s", r.Lines, f.Name)
	}
	return r, nil
}

func (c *compiled) mayBeWhole() bool {
	return c.JSON && (c.End != "" || c.Duration != "") || slices.ContainsFunc(c.patterns, func(p pattern) bool { return p.whole })
}

func newParser(c *compiled, o *Options, name string) (*Parser, error) {
	format := c.TimeFormat
	if format == "" {
		format = Auto
	}
	clock, err := newClock(format, o.Zone, o.Year)
	if err != nil {
		return nil, err
	}
	p := &Parser{c: c, clock: clock, exclude: o.Exclude.Pattern, epoch: o.Epoch}
	if c.Wrapper != "" {
		p.wrapper = Wrappers[c.Wrapper](o.Zone, o.Year)
	}
	if c.Separate {
		p.file = []byte(name)
	}
	return p, nil
}

// NewParser reads single lines of a format; Run does it with one for each file.
func NewParser(f *Format, o Options, name string) (*Parser, error) {
	c, err := f.compile()
	if err == nil {
		err = o.complete()
	}
	if err != nil {
		return nil, err
	}
	return newParser(c, &o, name)
}

// plain takes the compression off, if there is one.
func plain(r io.Reader) (*bufio.Reader, error) {
	b := bufio.NewReaderSize(r, 128<<10)
	magic, err := b.Peek(2)
	if err != nil || magic[0] != 0x1f || magic[1] != 0x8b {
		return b, nil // what is wrong with it, reading it says
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, err
	}
	return bufio.NewReaderSize(z, 128<<10), nil
}

// file is one that is being read. Its next line is in line.
type file struct {
	name   string
	in     *bufio.Reader
	parser *Parser
	line   Line
	n      int
	long   []byte
}

var errLong = fmt.Errorf("longer than %d bytes", maxLine)

// next goes to the next line that says something; at the end it returns io.EOF.
func (f *file) next(r *Report) error {
	for {
		b, err := f.read()
		if err != nil && err != errLong {
			if err == io.EOF {
				return err
			}
			return fmt.Errorf("%s:%d: %w", f.name, f.n, err)
		}
		r.Lines++
		used := false
		if err == nil {
			used, err = f.parser.Parse(b, &f.line)
		}
		if err != nil {
			if r.BadLines++; r.FirstBad == "" {
				r.FirstBad = fmt.Sprintf("%s:%d: %v", f.name, f.n, err)
			}
			continue
		}
		if used {
			r.UsedLines++
			return nil
		}
	}
}

// read returns a line, which is valid until the next one is read.
func (f *file) read() ([]byte, error) {
	f.n++
	b, err := f.in.ReadSlice('\n')
	if err == nil || err == io.EOF && len(b) > 0 {
		return b, nil
	}
	if !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	f.long = append(f.long[:0], b...)
	for errors.Is(err, bufio.ErrBufferFull) {
		b, err = f.in.ReadSlice('\n')
		if len(f.long) <= maxLine {
			f.long = append(f.long, b...)
		}
	}
	if err != nil && err != io.EOF {
		return nil, err
	}
	if len(f.long) > maxLine {
		return nil, errLong
	}
	return bytes.TrimSuffix(f.long, []byte("\n")), nil
}

// merge gives the lines of all files to a, always the earliest of those that come
// next.
func merge(files []*file, a *Analysis) error {
	var heap []*file
	for _, f := range files {
		switch err := f.next(&a.rep); err {
		case nil:
			heap = append(heap, f)
		case io.EOF:
		default:
			return err
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		sift(heap, i)
	}
	for len(heap) > 0 {
		f := heap[0]
		a.Add(&f.line)
		if err := f.next(&a.rep); err == io.EOF {
			heap[0] = heap[len(heap)-1]
			heap = heap[:len(heap)-1]
		} else if err != nil {
			return err
		}
		sift(heap, 0)
	}
	return nil
}

// sift puts heap[i] where it belongs.
func sift(heap []*file, i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(heap); c++ {
			if heap[c].line.At < heap[least].line.At {
				least = c
			}
		}
		if least == i {
			return
		}
		heap[i], heap[least] = heap[least], heap[i]
		i = least
	}
}
