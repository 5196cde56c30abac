package batch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// Limits of an input file.
type Limits struct {
	Line  int   // of one line, in bytes
	Items int64 // lines with a request
}

// Codes of what can be wrong with an input file, OpenAI's where it has one.
const (
	codeEmpty     = "empty_file"
	codeJSON      = "invalid_json_line"
	codeMissing   = "missing_required_parameter"
	codeInvalid   = "invalid_request"
	codeMethod    = "invalid_method"
	codeURL       = "invalid_url"
	codeDuplicate = "duplicate_custom_id"
	codeTooLong   = "line_too_long"
	codeTooMany   = "too_many_lines"
	codeGone      = "file_not_found"
)

const (
	// chunk is how many items are added at once.
	chunk = 500
	// maxCustomID is the longest custom_id, in bytes.
	maxCustomID = 512
	// maxN is the largest n that a live request may have.
	maxN = 128
)

// Ingest reads a batch's input file into items, a line at a time, and then starts the batch, or
// fails it with what is wrong, in the order of lines. The same items come of it when it is
// repeated after a crash. Its error is the storage's, or ErrState where the batch was cancelled
// meanwhile; the batch is then as it was.
//
// Blank lines are passed over, but count. A byte order mark is passed over at the
// beginning, a carriage return at the end of a line, and the last line needs no newline.
func Ingest(ctx context.Context, s Store, in Content, b *Batch, l Limits, now func() time.Time) error {
	r := &ingestion{store: s, batch: b, limits: l, lines: bufio.NewReaderSize(io.NewSectionReader(in, 0, in.Size()), 1<<18)}
	if err := r.read(ctx); err != nil {
		return err
	}
	if len(r.errors) > 0 {
		slices.SortStableFunc(r.errors, func(x, y LineError) int { return cmp.Compare(x.Line, y.Line) })
		return s.Fail(ctx, b.ID, r.errors[:min(len(r.errors), MaxErrors)], now())
	}
	return s.Start(ctx, b.ID, now())
}

// ingestion is one reading of a file.
type ingestion struct {
	store  Store
	batch  *Batch
	limits Limits
	lines  *bufio.Reader

	line, offset int64 // of what is read next
	long         []byte
	items        []Item
	found        int64
	errors       []LineError
}

func (r *ingestion) wrong(code, param, format string, args ...any) {
	r.errors = append(r.errors, LineError{Code: code, Param: param, Line: r.line, Message: fmt.Sprintf(format, args...)})
}

func (r *ingestion) read(ctx context.Context) error {
	if bom, _ := r.lines.Peek(3); string(bom) == "\uFEFF" {
		r.offset = 3
		if _, err := r.lines.Discard(3); err != nil {
			return err
		}
	}
	for more := true; more && len(r.errors) < MaxErrors; {
		raw, length, err := r.next()
		if more = err == nil; err != nil && err != io.EOF {
			return fmt.Errorf("file %s at byte %d: %w", r.batch.Input, r.offset, err)
		}
		at := r.offset
		r.offset += length
		r.line++
		trimmed := bytes.TrimLeft(raw, " \t\r\n")
		at += int64(len(raw) - len(trimmed))
		if trimmed = bytes.TrimRight(trimmed, " \t\r\n"); len(trimmed) == 0 && raw != nil {
			continue
		}
		if r.found++; r.found > r.limits.Items {
			r.wrong(codeTooMany, "", "The file has more than %d requests.", r.limits.Items)
			break
		}
		if raw == nil {
			r.wrong(codeTooLong, "", "This line is longer than %d bytes.", r.limits.Line)
			continue
		}
		it, ok := r.item(trimmed)
		if !ok {
			continue
		}
		it.Offset, it.Length = at, int64(len(trimmed))
		if r.items = append(r.items, it); len(r.items) == chunk {
			if err := r.add(ctx); err != nil {
				return err
			}
		}
	}
	if r.found == 0 {
		r.line = 0
		r.wrong(codeEmpty, "", "The file has no requests.")
	}
	return r.add(ctx)
}

// next returns a line, with its newline if it has one, and how many bytes it took. The
// line is nil where it is too long; io.EOF comes with the last one.
func (r *ingestion) next() (raw []byte, length int64, err error) {
	r.long = r.long[:0]
	for {
		part, err := r.lines.ReadSlice('\n')
		length += int64(len(part))
		switch {
		case err == nil && length == int64(len(part)):
			raw = part
		case length <= int64(r.limits.Line)+2: // a line's end is none of it
			r.long = append(r.long, part...)
			raw = r.long
		default:
			raw = nil
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if len(bytes.TrimRight(raw, "\r\n")) > r.limits.Line {
			raw = nil
		} else if length == 0 {
			raw = []byte{}
		}
		return raw, length, err
	}
}

func (r *ingestion) add(ctx context.Context) error {
	if len(r.items) == 0 {
		return ctx.Err()
	}
	duplicate, err := r.store.AddItems(ctx, r.batch.ID, r.items)
	for _, it := range duplicate {
		r.errors = append(r.errors, LineError{Code: codeDuplicate, Param: "custom_id", Line: it.Line,
			Message: fmt.Sprintf("The custom_id %s of this line is another line's too. It must be unique within a batch.", shown(strconv.Quote(it.CustomID)))})
	}
	r.items = r.items[:0]
	return err
}

// shown is a value of a file, as it is written there, in a message: not all of it if it is
// long.
func shown(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// fields are the members of an object that are looked at. twice names one that is given
// twice, of which one reader takes the first and another the last.
func fields(object gjson.Result, names ...string) (values []gjson.Result, twice string) {
	values = make([]gjson.Result, len(names))
	object.ForEach(func(key, value gjson.Result) bool {
		if i := slices.Index(names, key.Str); i >= 0 {
			if values[i].Exists() {
				twice = names[i]
			}
			values[i] = value
		}
		return true
	})
	return values, twice
}

// item reads a line; what is wrong with it is noted, the first thing only.
func (r *ingestion) item(raw []byte) (it Item, ok bool) {
	// json.Valid bounds how deep values nest, which gjson does not.
	if !utf8.Valid(raw) {
		r.wrong(codeJSON, "", "This line is not parseable as valid JSON: it is not UTF-8.")
		return it, false
	}
	if !json.Valid(raw) {
		var any json.RawMessage
		r.wrong(codeJSON, "", "This line is not parseable as valid JSON: %v.", json.Unmarshal(raw, &any))
		return it, false
	}
	line := gjson.ParseBytes(raw)
	if !line.IsObject() {
		r.wrong(codeJSON, "", "This line is not a JSON object.")
		return it, false
	}
	names := []string{"custom_id", "method", "url", "body"}
	v, twice := fields(line, names...)
	if twice != "" {
		r.wrong(codeInvalid, twice, "%s is given twice.", twice)
		return it, false
	}
	for i, name := range names {
		if !v[i].Exists() || v[i].Type == gjson.Null {
			r.wrong(codeMissing, name, "%s is missing.", name)
			return it, false
		}
	}
	id, method, url, body := v[0], v[1], v[2], v[3]
	switch {
	case id.Type != gjson.String || id.Str == "" || len(id.Str) > maxCustomID || strings.ContainsRune(id.Str, 0):
		r.wrong(codeInvalid, "custom_id", "custom_id is %s; allowed: a string of 1 to %d bytes, none of them zero.", shown(id.Raw), maxCustomID)
	case method.Type != gjson.String || method.Str != "POST":
		r.wrong(codeMethod, "method", "method is %s; allowed: \"POST\".", shown(method.Raw))
	case url.Type != gjson.String || url.Str != r.batch.Endpoint:
		r.wrong(codeURL, "url", "url is %s; allowed: %q, the batch's endpoint.", shown(url.Raw), r.batch.Endpoint)
	case !body.IsObject():
		r.wrong(codeInvalid, "body", "body is %s; allowed: an object.", shown(body.Raw))
	default:
		// A copy: the text is a part of its line's, and of some hundred items that are held
		// each would hold all of its own.
		it.CustomID, it.Line = strings.Clone(id.Str), r.line
		return it, r.body(body, &it)
	}
	return it, false
}

// body looks at the request itself, as far as it matters to all of a batch. The rest is
// the engine's to refuse, and then this one line's failure.
func (r *ingestion) body(body gjson.Result, it *Item) bool {
	v, twice := fields(body, "model", "stream", "n", "tools", "instructions", "messages", "prompt", "input")
	model, stream, n := v[0], v[1], v[2]
	switch {
	case twice != "":
		r.wrong(codeInvalid, "body."+twice, "body.%s is given twice.", twice)
	case !model.Exists() || model.Type == gjson.Null:
		r.wrong(codeMissing, "body.model", "body.model is missing.")
	case model.Type != gjson.String || model.Str == "":
		r.wrong(codeInvalid, "body.model", "body.model is %s; allowed: a model's name.", shown(model.Raw))
	case stream.Exists() && stream.Type != gjson.False && stream.Type != gjson.Null:
		r.wrong(codeInvalid, "body.stream", "body.stream is %s; allowed: false, or left out: a batch is not streamed.", shown(stream.Raw))
	case n.Exists() && n.Type != gjson.Null && (n.Type != gjson.Number || n.Num != float64(int(n.Num)) || n.Num < 1 || n.Num > maxN):
		r.wrong(codeInvalid, "body.n", "body.n is %s; allowed: 1 to %d.", shown(n.Raw), maxN)
	default:
		var prompt []string // in the order in which engines put it together
		for _, part := range v[3:] {
			prompt = append(prompt, part.Raw)
		}
		it.Prefix, it.Tokens = measure(model.Str, prompt)
		return true
	}
	return false
}

// marks are where a prompt's beginning is taken, in bytes: a short instruction, a long one, and
// one with examples or a document.
var marks = [...]int{512, 2048, 8192}

// measure returns what a prompt is ordered by, and an estimate of its tokens: a quarter of its
// bytes.
//
// The order is by three hashes, of ever longer beginnings: prompts that share the shortest
// are near each other, and among them those that share a longer one. One hash would tell apart
// all prompts that don't begin alike for just as long.
func measure(model string, prompt []string) (prefix uint64, tokens int64) {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	h, n, mark := uint64(offset), 0, 0
	var at [len(marks)]uint64
	mix := func(c byte) { h = (h ^ uint64(c)) * prime }
	for i := range len(model) {
		mix(model[i])
	}
	mix(0)
	for _, part := range prompt {
		tokens += int64(len(part))
		for i := 0; i < len(part) && mark < len(marks); i++ {
			mix(part[i])
			if n++; n == marks[mark] {
				at[mark] = h
				mark++
			}
		}
	}
	for ; mark < len(marks); mark++ {
		at[mark] = h
	}
	// The high bits of a product are the well mixed ones.
	return at[0]>>40<<40 | at[1]>>44<<20 | at[2]>>44, (tokens + 3) / 4
}

// requestBody returns the body of a line that Ingest took.
func requestBody(raw []byte) ([]byte, error) {
	v, twice := fields(gjson.ParseBytes(raw), "body")
	if twice != "" || !v[0].IsObject() {
		return nil, errors.New("the line is not what it was when the batch began")
	}
	return []byte(v[0].Raw), nil
}
