package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxPublished bounds a file in the published format, which is read whole: its
// hash is checked before any of it is believed.
const maxPublished = 256 << 20

// publishedBase is the profile that the two burst protocols vary.
const publishedBase = "metal-long-context-v1"

// publishedSource is written into a file, so that whoever finds it knows whose
// rules it follows.
const publishedSource = "headgate, by the rules of mofluxhq/moflux-bench (Apache-2.0)"

var (
	publishedFields = []string{"profile", "protocol", "seed", "workload", "planned", "computed_hash", "entries",
		"source", "variant", "published_hash", "hash_matched", "skipped"}
	publishedRequired = publishedFields[:7]
	entryFields       = []string{"id", "class", "arrival_ms", "input_chars", "max_tokens",
		"prompt_tokens", "output_tokens", "session", "prefix"}
	entryRequired  = entryFields[:5]
	plannedFields  = []string{"interactive", "batch", "total"}
	workloadFields = []string{"durationMs", "seed", "interactiveRps", "interactiveInputChars", "interactiveMaxTokens",
		"batchStartMs", "batchDurationMs", "batchRps", "batchInputChars", "batchMaxTokens", "maxAttempts", "backoffBaseMs",
		"interactiveStartMs", "interactiveDurationMs", "interactiveResumeStartMs", "interactiveResumeDurationMs", "interactiveResumeRps"}
)

// WriteTo writes the trace in the published format, an entry a line. What that
// format lacks is added to an entry as fields of its own, only where the entry
// has it: prompt_tokens where they do not follow from the characters,
// output_tokens where they are not what is declared, session and prefix.
func (t *Trace) WriteTo(w io.Writer) (int64, error) {
	counted := &counter{w: w}
	b := bufio.NewWriter(counted)
	profile, variant := t.published()
	head, err := json.Marshal(struct {
		Source   string   `json:"source"`
		Profile  string   `json:"profile"`
		Protocol Protocol `json:"protocol"`
		Variant  string   `json:"variant,omitempty"`
		Seed     uint32   `json:"seed"`
		Workload Workload `json:"workload"`
		Planned  Planned  `json:"planned"`
		Hash     string   `json:"computed_hash"`
		Skipped  int      `json:"skipped,omitempty"`
	}{publishedSource, profile, t.Protocol, variant, t.Seed, t.Workload, t.Planned(), t.Hash(), t.Skipped})
	if err != nil {
		return 0, fmt.Errorf("trace %s: write: %w", t.Profile, err)
	}
	line := append(head[:len(head)-1], `,"entries":[`...)
	for i := range t.Entries {
		if i > 0 {
			line = append(line, ',')
		}
		line = append(line, '\n')
		line = appendPublished(line, &t.Entries[i])
		_, _ = b.Write(line) // the error stays until Flush
		line = line[:0]
	}
	_, _ = b.Write(append(line, "\n]}\n"...))
	if err := b.Flush(); err != nil {
		return counted.n, fmt.Errorf("trace %s: write: %w", t.Profile, err)
	}
	return counted.n, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

func appendPublished(b []byte, e *Entry) []byte {
	b = append(append(b, `{"id":"`...), e.ID...)
	b = append(append(b, `","class":"`...), e.Class...)
	b = strconv.AppendFloat(append(b, `","arrival_ms":`...), toMs(e.Arrival), 'f', -1, 64)
	b = appendInt(b, `,"input_chars":`, e.InputChars)
	b = appendInt(b, `,"max_tokens":`, e.MaxTokens)
	if e.InputChars == 0 || e.PromptTokens != PromptTokens(e.InputChars) {
		b = appendInt(b, `,"prompt_tokens":`, e.PromptTokens)
	}
	if e.Output != e.MaxTokens {
		b = appendInt(b, `,"output_tokens":`, e.Output)
	}
	if e.Session != "" {
		b = append(append(append(b, `,"session":"`...), e.Session...), '"')
	}
	if e.Prefix != nil {
		b = appendPrefix(append(b, `,"prefix":`...), e.Prefix)
	}
	return append(b, '}')
}

// published is how the format names the trace: a burst protocol stands beside
// the profile that it varies, not in its place.
func (t *Trace) published() (profile, variant string) {
	switch t.Protocol {
	case FixedBurst:
		return publishedBase, ""
	case BurstRecovery:
		return publishedBase, strings.TrimPrefix(t.Profile, string(BurstRecovery)+"-")
	}
	return t.Profile, ""
}

// Published reads a trace in the published format. The file is refused unless
// its hashes and its counts are those of its entries. file is its name in
// errors, which are FieldErrors where the content is wrong.
func Published(r io.Reader, file string) (*Trace, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPublished+1))
	if err != nil {
		return nil, fmt.Errorf("%s: read: %w", file, err)
	}
	if len(data) > maxPublished {
		return nil, badLine("a larger file", fmt.Sprintf("at most %d bytes", maxPublished)).at(file, 0)
	}
	p := publishedReader{d: json.NewDecoder(bytes.NewReader(data)), data: data, t: &Trace{}}
	if wrong := p.read(); wrong != nil {
		if wrong.Line == 0 {
			wrong.Line = p.line()
		}
		return nil, wrong.at(file, wrong.Line)
	}
	return p.t, nil
}

type publishedReader struct {
	t    *Trace
	d    *json.Decoder
	data []byte
	// Newlines in data[:counted], so that asking for every entry's line stays
	// linear.
	newlines int
	counted  int64
	lines    []int // of the entries

	profile, variant string
	planned          Planned
	hashes           []hashField
}

type hashField struct {
	name, value string
	line        int
}

// line is where the decoder stands.
func (p *publishedReader) line() int {
	to := p.d.InputOffset()
	p.newlines += bytes.Count(p.data[p.counted:to], []byte("\n"))
	p.counted = to
	return p.newlines + 1
}

func (p *publishedReader) read() *FieldError {
	seen, wrong := eachName(p.d, publishedFields, func(i int) *FieldError {
		switch publishedFields[i] {
		case "workload":
			return p.workload()
		case "planned":
			return p.counts()
		case "entries":
			return p.entries()
		}
		var raw json.RawMessage
		if err := p.d.Decode(&raw); err != nil {
			return badJSON(err)
		}
		return p.field(publishedFields[i], raw)
	})
	if wrong != nil {
		return wrong
	}
	if wrong := required(seen, publishedRequired); wrong != nil {
		return wrong
	}
	if _, err := p.d.Token(); err != io.EOF {
		return badLine("more than one value", "one object")
	}
	if wrong := p.name(); wrong != nil {
		return wrong
	}
	return p.check()
}

func (p *publishedReader) field(name string, raw json.RawMessage) (wrong *FieldError) {
	switch name {
	case "profile":
		p.profile, wrong = text(name, raw)
	case "variant":
		p.variant, wrong = text(name, raw)
	case "protocol":
		var s string
		if s, wrong = text(name, raw); wrong == nil {
			p.t.Protocol, wrong = protocolOf(s)
		}
	case "seed":
		var n int
		n, wrong = whole(name, string(raw), 0, 1<<32-1)
		p.t.Seed = uint32(n)
	case "skipped":
		p.t.Skipped, wrong = whole(name, string(raw), 0, MaxEntries)
	case "computed_hash", "published_hash":
		if name == "published_hash" && string(raw) == "null" {
			return nil
		}
		h := hashField{name: name, line: p.line()}
		h.value, wrong = text(name, raw)
		p.hashes = append(p.hashes, h)
	case "source":
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return bad(name, string(raw), "a text")
		}
	case "hash_matched": // the hashes are compared here
		if s := string(raw); s != "null" && s != "true" && s != "false" {
			return bad(name, s, "true, false or null")
		}
	}
	return wrong
}

func protocolOf(s string) (Protocol, *FieldError) {
	for _, p := range protocols {
		if s == p {
			return Protocol(s), nil
		}
	}
	return "", bad("protocol", s, "one of "+strings.Join(protocols, ", "))
}

func (p *publishedReader) workload() *FieldError {
	w := &p.t.Workload
	const most = int(MaxDuration / 1e6)
	var seed int
	seen, wrong := eachField(p.d, workloadFields, func(i int, raw json.RawMessage) (wrong *FieldError) {
		name := workloadFields[i]
		integer := func(to *int, low, high int) { *to, wrong = whole("workload."+name, string(raw), low, high) }
		rate := func(to *float64) { *to, wrong = number("workload."+name, string(raw), 0, 1e6) }
		switch name {
		case "seed":
			integer(&seed, 0, 1<<32-1)
			w.Seed = uint32(seed)
		case "durationMs":
			integer(&w.DurationMs, 1, most)
		case "interactiveRps":
			rate(&w.InteractiveRps)
		case "interactiveInputChars":
			integer(&w.InteractiveInputChars, 0, MaxTokens)
		case "interactiveMaxTokens":
			integer(&w.InteractiveMaxTokens, 0, MaxTokens)
		case "interactiveStartMs":
			integer(&w.InteractiveStartMs, 0, most)
		case "interactiveDurationMs":
			integer(&w.InteractiveDurationMs, 0, most)
		case "interactiveResumeStartMs":
			integer(&w.ResumeStartMs, 0, most)
		case "interactiveResumeDurationMs":
			integer(&w.ResumeDurationMs, 0, most)
		case "interactiveResumeRps":
			rate(&w.ResumeRps)
		case "batchStartMs":
			integer(&w.BatchStartMs, 0, most)
		case "batchDurationMs":
			integer(&w.BatchDurationMs, 0, most)
		case "batchRps":
			rate(&w.BatchRps)
		case "batchInputChars":
			integer(&w.BatchInputChars, 0, MaxTokens)
		case "batchMaxTokens":
			integer(&w.BatchMaxTokens, 0, MaxTokens)
		case "maxAttempts": // an entry has the chance of one attempt
			integer(&w.MaxAttempts, 1, 1)
		case "backoffBaseMs":
			integer(&w.BackoffBaseMs, 0, most)
		}
		return wrong
	})
	if wrong != nil {
		return wrong
	}
	return requiredOf("workload", seen, workloadFields)
}

func (p *publishedReader) counts() *FieldError {
	into := []*int{&p.planned.Interactive, &p.planned.Batch, &p.planned.Total}
	seen, wrong := eachField(p.d, plannedFields, func(i int, raw json.RawMessage) (wrong *FieldError) {
		*into[i], wrong = whole("planned."+plannedFields[i], string(raw), 0, MaxEntries)
		return wrong
	})
	if wrong != nil {
		return wrong
	}
	return requiredOf("planned", seen, plannedFields)
}

func (p *publishedReader) entries() *FieldError {
	if t, err := p.d.Token(); err != nil || t != json.Delim('[') {
		return bad("entries", "no list", "a list of objects")
	}
	for p.d.More() {
		if len(p.t.Entries) == MaxEntries {
			return badLine("another entry", fmt.Sprintf("at most %d", MaxEntries))
		}
		var e Entry
		if wrong := p.entry(&e); wrong != nil {
			return wrong
		}
		p.t.Entries = append(p.t.Entries, e)
		p.lines = append(p.lines, p.line())
	}
	if _, err := p.d.Token(); err != nil {
		return badJSON(err)
	}
	return nil
}

func (p *publishedReader) entry(e *Entry) *FieldError {
	seen, wrong := eachField(p.d, entryFields, func(i int, raw json.RawMessage) (wrong *FieldError) {
		name := entryFields[i]
		switch name {
		case "id":
			e.ID, wrong = text(name, raw)
		case "class":
			e.Class, wrong = text(name, raw)
		case "arrival_ms":
			var at float64
			if at, wrong = number(name, string(raw), 0, maxMs); wrong == nil {
				if e.Arrival = roundMs(at); toMs(e.Arrival) != at {
					wrong = bad(name, string(raw), "milliseconds in steps of 0.001")
				}
			}
		case "input_chars":
			e.InputChars, wrong = whole(name, string(raw), 0, MaxTokens)
		case "max_tokens":
			e.MaxTokens, wrong = whole(name, string(raw), 0, MaxTokens)
		case "prompt_tokens":
			e.PromptTokens, wrong = whole(name, string(raw), 1, MaxTokens)
		case "output_tokens":
			e.Output, wrong = whole(name, string(raw), 1, MaxTokens)
		case "session":
			e.Session, wrong = text(name, raw)
		case "prefix":
			e.Prefix, wrong = prefix(name, raw)
		}
		return wrong
	})
	if wrong != nil {
		return wrong
	}
	if wrong := required(seen, entryRequired); wrong != nil {
		return wrong
	}
	return e.complete()
}

// complete fills in what follows from the rest.
func (e *Entry) complete() *FieldError {
	switch {
	case e.InputChars == 0 && e.PromptTokens == 0:
		return bad("input_chars", "0", "a whole number from 1, or prompt_tokens beside it")
	case e.MaxTokens == 0 && e.Output == 0:
		return bad("max_tokens", "0", "a whole number from 1, or output_tokens beside it")
	case e.MaxTokens > 0 && e.Output > e.MaxTokens:
		return bad("output_tokens", strconv.Itoa(e.Output), fmt.Sprintf("at most max_tokens, %d", e.MaxTokens))
	}
	if e.PromptTokens == 0 {
		e.PromptTokens = PromptTokens(e.InputChars)
	}
	if e.Output == 0 {
		e.Output = e.MaxTokens
	}
	return nil
}

// name gives the trace the name under which it is drawn.
func (p *publishedReader) name() *FieldError {
	t := p.t
	t.Profile = p.profile
	variants := "none"
	switch t.Protocol {
	case FixedBurst:
		t.Profile = string(FixedBurst)
	case BurstRecovery:
		if p.variant != "short" && p.variant != "long" {
			return bad("variant", p.variant, "short or long")
		}
		t.Profile = string(BurstRecovery) + "-" + p.variant
		variants = p.variant
	}
	if p.variant != "" && p.variant != variants {
		return bad("variant", p.variant, "none for protocol "+string(t.Protocol))
	}
	if base, _ := t.published(); base != p.profile {
		return bad("profile", p.profile, base+" for protocol "+string(t.Protocol))
	}
	return nil
}

// check compares what the file says in two places.
func (p *publishedReader) check() *FieldError {
	t := p.t
	if t.Workload.Seed != t.Seed {
		return bad("workload.seed", strconv.FormatUint(uint64(t.Workload.Seed), 10), fmt.Sprintf("seed, %d", t.Seed))
	}
	ids := make(map[string]bool, len(t.Entries))
	for i := range t.Entries {
		e := &t.Entries[i]
		var wrong *FieldError
		switch {
		case ids[e.ID]:
			wrong = bad("id", e.ID, "an id that no other entry has")
		case i > 0 && e.Arrival < t.Entries[i-1].Arrival:
			wrong = bad("arrival_ms", fmt.Sprint(toMs(e.Arrival)), fmt.Sprintf("at least the entry's before, %v", toMs(t.Entries[i-1].Arrival)))
		case e.Arrival >= t.Workload.Duration():
			wrong = bad("arrival_ms", fmt.Sprint(toMs(e.Arrival)), fmt.Sprintf("below workload.durationMs, %d", t.Workload.DurationMs))
		case t.Protocol != Imported && e.Class != Interactive && e.Class != Batch:
			wrong = bad("class", e.Class, "interactive or batch")
		}
		if wrong != nil {
			wrong.Line = p.lines[i]
			return wrong
		}
		ids[e.ID] = true
		e.Draw = t.Protocol.draw(t.Seed, e.ID)
	}
	if have := t.Planned(); p.planned != have {
		return bad("planned", fmt.Sprintf("%+v", p.planned), fmt.Sprintf("what entries hold, %+v", have))
	}
	hash := t.Hash()
	for _, h := range p.hashes {
		if h.value != hash {
			wrong := bad(h.name, h.value, "the hash of what the file holds, "+hash)
			wrong.Line = h.line
			return wrong
		}
	}
	return nil
}
