package sse

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// got is an event that outlives the call that gave it.
type got struct {
	Raw, Name, Data string
	Comment         bool
}

func keep(e Event) got { return got{string(e.Raw), e.Name, string(e.Data), e.Comment} }

// readAll returns the events up to the error, and the unfinished block beside it.
func readAll(r io.Reader, max int) (events []got, tail got, err error) {
	rd := NewReader(r, max)
	for {
		e, err := rd.Next()
		if err != nil {
			again, err2 := rd.Next()
			if err2 != err || again.Raw != nil {
				panic("an error is not final")
			}
			return events, keep(e), err
		}
		events = append(events, keep(e))
	}
}

func TestNext(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []got
		tail     got
		err      error
	}{
		{name: "empty", err: io.EOF},
		{name: "two events", in: "data: a\n\ndata: b\n\n",
			want: []got{{"data: a\n\n", "", "a", false}, {"data: b\n\n", "", "b", false}}, err: io.EOF},
		{name: "one space is cut, no more", in: "data:a\n\ndata:  a\n\n",
			want: []got{{"data:a\n\n", "", "a", false}, {"data:  a\n\n", "", " a", false}}, err: io.EOF},
		{name: "data lines are joined", in: "data: a\ndata:\ndata\ndata: b\n\n",
			want: []got{{"data: a\ndata:\ndata\ndata: b\n\n", "", "a\n\n\nb", false}}, err: io.EOF},
		{name: "empty data is dispatched", in: "data\n\n",
			want: []got{{"data\n\n", "", "", false}}, err: io.EOF},
		{name: "names do not carry over", in: "event: x\nevent: ping\ndata: {}\n\ndata: 1\n\n",
			want: []got{{"event: x\nevent: ping\ndata: {}\n\n", "ping", "{}", false}, {"data: 1\n\n", "", "1", false}}, err: io.EOF},
		{name: "comments, ids and blank lines", in: ": hi\n\n:\n\n\nid: 1\nretry: 5\n\n: x\ndata: a\n\n",
			want: []got{{": hi\n\n", "", "", true}, {":\n\n", "", "", true}, {"\n", "", "", true},
				{"id: 1\nretry: 5\n\n", "", "", true}, {": x\ndata: a\n\n", "", "a", false}}, err: io.EOF},
		{name: "fields only at the line's start", in: " data: a\nDATA: b\ndatum: c\n\n",
			want: []got{{" data: a\nDATA: b\ndatum: c\n\n", "", "", true}}, err: io.EOF},
		{name: "CRLF", in: "event: e\r\ndata: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n",
			want: []got{{"event: e\r\ndata: a\r\ndata: b\r\n\r\n", "e", "a\nb", false}, {"data: c\r\n\r\n", "", "c", false}}, err: io.EOF},
		{name: "CR", in: "data: a\rdata: b\r\rdata: c\r\r",
			want: []got{{"data: a\rdata: b\r\r", "", "a\nb", false}, {"data: c\r\r", "", "c", false}}, err: io.EOF},
		{name: "mixed", in: "data: a\r\n\ndata: b\n\rdata: c\r\r\n",
			want: []got{{"data: a\r\n\n", "", "a", false}, {"data: b\n\r", "", "b", false}, {"data: c\r\r\n", "", "c", false}}, err: io.EOF},
		{name: "byte order mark at the start only", in: "\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n",
			want: []got{{"data: a\n\n", "", "a", false}, {"\xef\xbb\xbfdata: b\n\n", "", "", true}}, err: io.EOF},
		{name: "half a byte order mark", in: "\xef\xbb", tail: got{"\xef\xbb", "", "", true}, err: io.ErrUnexpectedEOF},
		{name: "cut in a line", in: "data: a\n\nda", want: []got{{"data: a\n\n", "", "a", false}},
			tail: got{"da", "", "", true}, err: io.ErrUnexpectedEOF},
		{name: "cut before the blank line", in: "data: [DONE]\n",
			tail: got{"data: [DONE]\n", "", "[DONE]", false}, err: io.ErrUnexpectedEOF},
		{name: "cut before any line end", in: "event: e\r\ndata: [DONE]",
			tail: got{"event: e\r\ndata: [DONE]", "e", "[DONE]", false}, err: io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			events, tail, err := readAll(strings.NewReader(c.in), 1000)
			if err != c.err {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if d := cmp.Diff(c.want, events); d != "" {
				t.Errorf("events (-want +got)\n%s", d)
			}
			if d := cmp.Diff(c.tail, tail); d != "" {
				t.Errorf("tail (-want +got)\n%s", d)
			}
		})
	}
}

// step gives one piece a read and fails the test when asked for one more than
// the reader needs.
type step struct {
	t      *testing.T
	pieces []string
}

func (s *step) Read(p []byte) (int, error) {
	if len(s.pieces) == 0 {
		s.t.Fatal("a read was made although an event was complete")
	}
	n := copy(p, s.pieces[0])
	s.pieces = s.pieces[1:]
	return n, nil
}

func TestAnEventIsNotHeldBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		pieces []string
		want   []string
	}{
		{"LF", []string{"data: a\n", "\n"}, []string{"data: a\n\n"}},
		{"several in one read", []string{"data: a\n\ndata: b\n\n"}, []string{"data: a\n\n", "data: b\n\n"}},
		{"CR", []string{"data: a\r\r"}, []string{"data: a\r\r"}},
		{"CRLF cut in its last line end", []string{"data: a\r\n\r", "\ndata: b\r\n\r\n"},
			[]string{"data: a\r\n\r", "\ndata: b\r\n\r\n"}},
		{"CRLF cut in an inner line end", []string{"data: a\r", "\n\r\n"}, []string{"data: a\r\n\r\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := NewReader(&step{t, c.pieces}, 100)
			for _, want := range c.want {
				e, err := r.Next()
				if err != nil || string(e.Raw) != want {
					t.Fatalf("got %q, %v; want %q", e.Raw, err, want)
				}
			}
		})
	}
}

func TestLimit(t *testing.T) {
	fits := "data: " + strings.Repeat("x", 92) + "\n\n" // 100 bytes
	for _, c := range []struct {
		in   string
		fits bool
	}{
		{fits, true},
		{"x" + fits, false},
		{strings.Repeat("x", 101), false},
		{strings.Repeat(":\n", 51) + "\n", false},
		{fits[:98] + "\r\r\n", true}, // the LF after a final CR is not counted
	} {
		for _, one := range []bool{false, true} {
			in := io.Reader(strings.NewReader(c.in))
			if one {
				in = iotest.OneByteReader(in)
			}
			_, _, err := readAll(in, 100)
			if c.fits && err != io.EOF {
				t.Errorf("%q: %v, want it to fit", c.in, err)
			}
			if !c.fits && (!errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "100 bytes")) {
				t.Errorf("%q: %v, want an error that names the limit", c.in, err)
			}
		}
	}
}

func TestSourceErrorIsPassedOn(t *testing.T) {
	broken := errors.New("connection reset")
	events, tail, err := readAll(io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), iotest.ErrReader(broken)), 100)
	if len(events) != 1 || tail.Raw != "" || err != broken {
		t.Errorf("got %v, %v, %v", events, tail, err)
	}
	if _, _, err := readAll(still{}, 100); err != io.ErrNoProgress {
		t.Errorf("a source that gives nothing: %v", err)
	}
}

type still struct{}

func (still) Read([]byte) (int, error) { return 0, nil }

func TestLargeBufferIsGivenBack(t *testing.T) {
	in := "data: " + strings.Repeat("x", 200<<10) + "\n\n"
	r := NewReader(io.MultiReader(strings.NewReader(in), strings.NewReader("data: a\n\n")), 1<<20)
	for range 2 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(r.buf) != firstBuffer {
		t.Errorf("buffer of %d bytes kept, want %d", cap(r.buf), firstBuffer)
	}
}

func TestAppend(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{string(AppendEvent(nil, "", []byte(`{"a":1}`))), "data: {\"a\":1}\n\n"},
		{string(AppendEvent([]byte("x"), "ping", nil)), "xevent: ping\ndata: \n\n"},
		{string(AppendEvent(nil, "a\nb", []byte("1\r\n2\r3\n"))), "event: a\ndata: 1\ndata: 2\ndata: 3\ndata: \n\n"},
		{string(AppendComment(nil, "keep-alive")), ": keep-alive\n\n"},
		{string(AppendComment(nil, "a\n\ndata: b")), ": a\n: \n: data: b\n\n"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// pieces cuts a stream into reads whose lengths are the bytes of cuts.
type pieces struct {
	in, cuts []byte
	i        int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.in) == 0 {
		return 0, io.EOF
	}
	n := len(p.in)
	if len(p.cuts) > 0 {
		n = min(n, int(p.cuts[p.i%len(p.cuts)]))
		p.i++
	}
	n = copy(b, p.in[:n])
	p.in = p.in[n:]
	return n, nil
}

// FuzzReader: cutting the same bytes elsewhere changes no event, and no byte of
// the input is lost or made up.
func FuzzReader(f *testing.F) {
	f.Add([]byte("data: a\n\nevent: x\r\ndata: b\r\n\r\n: c\n\n"), []byte{1})
	f.Add([]byte("\xef\xbb\xbfdata: a\r\rdata: b\ndata: c\r\n\r\n\r\n"), []byte{2, 3})
	f.Add([]byte("data: [DONE]\n"), []byte{5})
	f.Add([]byte("data: "+strings.Repeat("x", 70)+"\r\n\r\n"), []byte{64, 1})
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		cuts = bytes.ReplaceAll(cuts, []byte{0}, nil)
		const max = 64
		whole, wholeTail, wholeErr := readAll(bytes.NewReader(in), max)
		cut, cutTail, cutErr := readAll(&pieces{in: in, cuts: cuts}, max)
		if (wholeErr == nil) != (cutErr == nil) || wholeErr.Error() != cutErr.Error() {
			t.Fatalf("error %v, cut %v", wholeErr, cutErr)
		}
		if d := cmp.Diff(bare(append(whole, wholeTail)), bare(append(cut, cutTail))); d != "" {
			t.Fatalf("events (-whole +cut)\n%s", d)
		}
		for _, events := range [][]got{append(whole, wholeTail), append(cut, cutTail)} {
			var all strings.Builder
			for _, e := range events {
				all.WriteString(e.Raw)
			}
			text := strings.TrimPrefix(string(in), "\xef\xbb\xbf")
			if !strings.HasPrefix(text, all.String()) {
				t.Fatalf("%q is not how %q begins", all.String(), text)
			}
			if rest := text[all.Len():]; !errors.Is(wholeErr, ErrTooLarge) && rest != "" && rest != "\n" {
				t.Fatalf("%q was lost", rest)
			}
		}
		for _, e := range whole {
			again, _, err := readAll(bytes.NewReader(AppendEvent(nil, e.Name, []byte(e.Data))), 4*max)
			if err != io.EOF || len(again) != 1 || again[0].Data != e.Data || again[0].Name != e.Name {
				t.Fatalf("%q written and read again: %v, %v", e.Data, again, err)
			}
		}
	})
}

// bare is what of the events doesn't depend on where the reads fell.
func bare(events []got) []got {
	out := make([]got, len(events))
	for i, e := range events {
		e.Raw = strings.TrimPrefix(e.Raw, "\n")
		out[i] = e
		out[i].Raw = strings.TrimSuffix(e.Raw, "\n")
	}
	return out
}

func BenchmarkNext(b *testing.B) {
	event := `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"qwen3-8b","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	for _, c := range []struct{ name, in string }{
		{"one line", event},
		{"named, CRLF", "event: content_block_delta\r\n" + strings.ReplaceAll(event, "\n", "\r\n")},
		{"three data lines", "data: a\ndata: b\ndata: c\n\n"},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := NewReader(&loop{text: []byte(strings.Repeat(c.in, 16))}, 1<<20)
			b.SetBytes(int64(len(c.in)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// loop is a stream that never ends.
type loop struct {
	text []byte
	i    int
}

func (l *loop) Read(p []byte) (int, error) {
	n := copy(p, l.text[l.i:])
	l.i = (l.i + n) % len(l.text)
	return n, nil
}
