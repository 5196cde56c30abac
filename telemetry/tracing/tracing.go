// Package tracing makes the spans of a request: what a gateway notes while the
// request runs, to be exported once each is over.
//
// A nil *Tracer starts nothing, and everything can be asked of a nil *Span: the
// code that is traced has no branches for it, and a request that is not sampled
// costs it nothing. A Span belongs to the goroutine that carries its request, and
// is given to the tracer's Export by End; nobody writes to it after that.
//
// Names and keys are from the code. Values are configured names, models that a
// pool serves, numbers and causes; nothing of a prompt or an answer is one.
//
// Alternatives: OpenTelemetry's own SDK has the same shape. With its exporters it
// links gRPC for one POST, its sampler of a share decides by the trace's id, which
// a client chooses, and it does not tell what it drops.
package tracing

import (
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// TraceID and SpanID are those of W3C Trace Context; zero is none.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// Kind of a span, as OTLP numbers them.
type Kind uint8

const (
	Internal Kind = 1
	Server   Kind = 2
	Client   Kind = 3
)

// Span is one part of a request's life.
type Span struct {
	Trace      TraceID
	ID         SpanID
	Parent     SpanID // zero: the trace begins here
	Remote     bool   // the parent is the client's
	Kind       Kind
	Name       string
	Start, End time.Time
	Attributes []Attribute
	Events     []Event
	// Failed tells that what the span is of has gone wrong on this side.
	Failed bool

	tracer *Tracer
	room   [16]Attribute
}

// Attribute is a text, a number or a truth about a span.
type Attribute struct {
	Key    string
	Type   Type
	Text   string
	Number int64 // of Truth: 1 or 0
}

// Type of an attribute's value.
type Type uint8

const (
	Text Type = iota
	Number
	Truth
)

// Event is a moment within a span.
type Event struct {
	Name string
	At   time.Time
}

// Tracer starts the spans of requests.
type Tracer struct {
	// Share of the requests that are sampled, from 0 to 1. It is drawn and not worked
	// out from the trace's id, which a client may choose.
	Share float64
	// Follow lets the sampled flag of a client's parent decide instead, where there
	// is one.
	Follow bool
	// Export takes a span that is over. It must not wait.
	Export func(*Span)
}

// Start begins the span of a request that has arrived, below the parent that its
// traceparent headers name. It is nil if the request is not sampled.
func (t *Tracer) Start(traceparent []string, name string, at time.Time) *Span {
	if t == nil {
		return nil
	}
	p, ok := parse(traceparent)
	switch {
	case ok && t.Follow && !p.sampled, (!ok || !t.Follow) && rand.Float64() >= t.Share:
		return nil
	}
	s := &Span{Trace: p.trace, ID: newSpanID(), Parent: p.span, Remote: ok, Kind: Server, Name: name, Start: at, tracer: t}
	for s.Trace == (TraceID{}) {
		put(s.Trace[:8], rand.Uint64())
		put(s.Trace[8:], rand.Uint64())
	}
	s.Attributes = s.room[:0]
	return s
}

// Child begins a span below this one.
func (s *Span) Child(kind Kind, name string, at time.Time) *Span {
	if s == nil {
		return nil
	}
	c := &Span{Trace: s.Trace, ID: newSpanID(), Parent: s.ID, Kind: kind, Name: name, Start: at, tracer: s.tracer}
	c.Attributes = c.room[:0]
	return c
}

// Text adds a text; an empty one says nothing.
func (s *Span) Text(key, value string) {
	if s != nil && value != "" {
		s.Attributes = append(s.Attributes, Attribute{Key: key, Type: Text, Text: value})
	}
}

// Number adds a number.
func (s *Span) Number(key string, value int64) {
	if s != nil {
		s.Attributes = append(s.Attributes, Attribute{Key: key, Type: Number, Number: value})
	}
}

// Truth adds whether something is so.
func (s *Span) Truth(key string, value bool) {
	if s == nil {
		return
	}
	a := Attribute{Key: key, Type: Truth}
	if value {
		a.Number = 1
	}
	s.Attributes = append(s.Attributes, a)
}

// Event adds a moment.
func (s *Span) Event(name string, at time.Time) {
	if s != nil {
		s.Events = append(s.Events, Event{name, at})
	}
}

// Fail notes that it went wrong here.
func (s *Span) Fail() {
	if s != nil {
		s.Failed = true
	}
}

// Over ends the span and hands it to be exported.
func (s *Span) Over(at time.Time) {
	if s != nil {
		s.End = at
		s.tracer.Export(s)
	}
}

// Traceparent is what a server that is called within the span is sent; "" of nil.
func (s *Span) Traceparent() string {
	if s == nil {
		return ""
	}
	b := make([]byte, 0, parentLength)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, s.Trace[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, s.ID[:])
	return string(append(b, "-01"...))
}

func newSpanID() (id SpanID) {
	for id == (SpanID{}) {
		put(id[:], rand.Uint64())
	}
	return id
}

func put(b []byte, n uint64) {
	for i := range 8 {
		b[i] = byte(n >> (8 * i))
	}
}

// parent is what a traceparent says.
type parent struct {
	trace   TraceID
	span    SpanID
	sampled bool
}

// parentLength is that of a traceparent of version 00, in bytes.
const parentLength = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")

// parse reads a traceparent as W3C Trace Context says: one that is not valid is
// as if there were none, and of a later version what is known is read. Two headers
// are not one.
func parse(values []string) (p parent, ok bool) {
	if len(values) != 1 {
		return parent{}, false
	}
	v := values[0]
	if len(v) < parentLength || v[2] != '-' || v[35] != '-' || v[52] != '-' {
		return parent{}, false
	}
	var version, flags [1]byte
	if !lowerHex(version[:], v[:2]) || version[0] == 0xff || version[0] == 0 && len(v) != parentLength ||
		len(v) > parentLength && v[parentLength] != '-' ||
		!lowerHex(p.trace[:], v[3:35]) || !lowerHex(p.span[:], v[36:52]) || !lowerHex(flags[:], v[53:55]) ||
		p.trace == (TraceID{}) || p.span == (SpanID{}) {
		return parent{}, false
	}
	p.sampled = flags[0]&1 != 0
	return p, true
}

// lowerHex is stricter than hex.Decode: capitals are not valid here.
func lowerHex(dst []byte, s string) bool {
	for i := range dst {
		hi, lo := nibble(s[2*i]), nibble(s[2*i+1])
		if hi > 15 || lo > 15 {
			return false
		}
		dst[i] = hi<<4 | lo
	}
	return true
}

func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}
