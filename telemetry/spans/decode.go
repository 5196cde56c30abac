package spans

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Span is what one request's span tells.
type Span struct {
	Request string        // the engine's id of the request
	Queue   time.Duration // from its arrival in the engine's queue to its first step
	Prefill time.Duration // from there to its first token; negative if not told
}

// The attributes that are read. Names and units are vLLM's
// (vllm/tracing/utils.py; v1/engine/output_processor.py: do_tracing).
const (
	attrRequest = "gen_ai.request.id"
	attrQueue   = "gen_ai.latency.time_in_queue"
	attrPrefill = "gen_ai.latency.time_in_model_prefill"
)

// maxRequest bounds the id of a request, in bytes.
const maxRequest = 256

// batch is what an export holds.
type batch struct {
	spans   []Span
	foreign int // spans of something else than a request
	left    int // spans beyond the bound
	most    int
}

// add takes one span by what was found of it.
func (b *batch) add(s *found) {
	switch {
	case len(b.spans)+b.foreign >= b.most:
		b.left++
	case s.request == "" || len(s.request) > maxRequest || !s.queued:
		b.foreign++
	default:
		b.spans = append(b.spans, Span{Request: s.request, Queue: s.queue, Prefill: s.prefill})
	}
}

// found is a span as far as it has been read.
type found struct {
	request string
	queued  bool
	queue   time.Duration
	prefill time.Duration
}

func (s *found) seconds(key string, v float64) {
	// Of what is no time nothing is taken; a day is far beyond any request.
	if !(v >= 0 && v <= (24*time.Hour).Seconds()) {
		return
	}
	d := time.Duration(math.Round(v * float64(time.Second)))
	switch key {
	case attrQueue:
		s.queue, s.queued = d, true
	case attrPrefill:
		s.prefill = d
	}
}

// Numbers of the fields, from opentelemetry-proto 1.x: ExportTraceServiceRequest,
// ResourceSpans, ScopeSpans, Span, KeyValue and AnyValue.
const (
	fieldResourceSpans = 1
	fieldScopeSpans    = 2
	fieldSpans         = 2
	fieldAttributes    = 9
	fieldKey           = 1
	fieldValue         = 2
	fieldString        = 1
	fieldInt           = 3
	fieldDouble        = 4
)

// protobuf reads an ExportTraceServiceRequest.
func (b *batch) protobuf(body []byte) error {
	return messages(body, fieldResourceSpans, func(resource []byte) error {
		return messages(resource, fieldScopeSpans, func(scope []byte) error {
			return messages(scope, fieldSpans, func(span []byte) error {
				s := found{prefill: -1}
				if err := messages(span, fieldAttributes, s.attribute); err != nil {
					return err
				}
				b.add(&s)
				return nil
			})
		})
	})
}

// attribute reads a KeyValue. A message may have its fields in any order, and the
// last of several counts.
func (s *found) attribute(pair []byte) error {
	var key string
	var value []byte
	err := fields(pair, func(n protowire.Number, t protowire.Type, raw []byte) error {
		switch {
		case n == fieldKey && t == protowire.BytesType:
			key = string(raw)
		case n == fieldValue && t == protowire.BytesType:
			value = raw
		}
		return nil
	})
	if err != nil || key != attrRequest && key != attrQueue && key != attrPrefill {
		return err
	}
	return fields(value, func(n protowire.Number, t protowire.Type, raw []byte) error {
		switch {
		case n == fieldString && t == protowire.BytesType && key == attrRequest:
			s.request = string(raw)
		case n == fieldDouble && t == protowire.Fixed64Type:
			bits, _ := protowire.ConsumeFixed64(raw)
			s.seconds(key, math.Float64frombits(bits))
		case n == fieldInt && t == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(raw)
			s.seconds(key, float64(int64(v)))
		}
		return nil
	})
}

// messages calls each for every field of that number that is a message.
func messages(b []byte, number protowire.Number, each func([]byte) error) error {
	return fields(b, func(n protowire.Number, t protowire.Type, raw []byte) error {
		if n != number || t != protowire.BytesType {
			return nil
		}
		return each(raw)
	})
}

// fields calls each for every field of a message, with its value as it is on the
// wire; of bytes without their length.
func fields(b []byte, each func(protowire.Number, protowire.Type, []byte) error) error {
	for len(b) > 0 {
		n, t, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(n, t, b); size < 0 {
			return protowire.ParseError(size)
		}
		value := b[:size]
		if t == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if err := each(n, t, value); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// jsonAttribute is a KeyValue. In OTLP's JSON a 64-bit integer is a string, and
// some exporters write a number.
type jsonAttribute struct {
	Key   string `json:"key"`
	Value struct {
		String *string     `json:"stringValue"`
		Double json.Number `json:"doubleValue"`
		Int    json.Number `json:"intValue"`
	} `json:"value"`
}

// json reads an ExportTraceServiceRequest in JSON. Lists are walked for the same
// reason as protobuf is.
func (b *batch) json(body []byte) error {
	var export struct {
		ResourceSpans json.RawMessage `json:"resourceSpans"`
	}
	if err := json.Unmarshal(body, &export); err != nil {
		return plain(err)
	}
	type resource struct {
		ScopeSpans json.RawMessage `json:"scopeSpans"`
	}
	type scope struct {
		Spans json.RawMessage `json:"spans"`
	}
	type span struct {
		Attributes json.RawMessage `json:"attributes"`
	}
	return plain(elements(export.ResourceSpans, func(r *resource) error {
		return elements(r.ScopeSpans, func(sc *scope) error {
			return elements(sc.Spans, func(sp *span) error {
				s := found{prefill: -1}
				err := elements(sp.Attributes, func(a *jsonAttribute) error { s.json(a); return nil })
				b.add(&s)
				return err
			})
		})
	}))
}

// plain is an error of package json without what it quotes of the body, which may
// be of any length.
func plain(err error) error {
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return fmt.Errorf("no JSON from byte %d on", syntax.Offset)
	}
	return errors.New("JSON of other types than an export has")
}

// elements calls each for every element of a list; an absent one and null have
// none.
func elements[T any](list json.RawMessage, each func(*T) error) error {
	if len(list) == 0 || string(list) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(list))
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return errors.New("no list")
	}
	for d.More() {
		var v T
		if err := d.Decode(&v); err != nil {
			return err
		}
		if err := each(&v); err != nil {
			return err
		}
	}
	return nil
}

func (s *found) json(a *jsonAttribute) {
	switch a.Key {
	case attrRequest:
		if a.Value.String != nil {
			s.request = *a.Value.String
		}
	case attrQueue, attrPrefill:
		for _, n := range []json.Number{a.Value.Double, a.Value.Int} {
			if v, err := n.Float64(); err == nil {
				s.seconds(a.Key, v)
			}
		}
	}
}
