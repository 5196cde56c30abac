package otlp

import (
	"slices"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"headgate/telemetry/tracing"
)

// Flags of a span beside the W3C ones: it is known whether the parent is another
// process's, and it is.
const (
	flagSampled  = uint32(0x1)
	flagKnown    = uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	flagIsRemote = uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
)

// traceData is the same message as an ExportTraceServiceRequest, whose package
// links gRPC. The spans are in it as they go over the wire, as fields that the message
// does not know: OTLP's own messages took four allocations an attribute, a fifth of all
// that a traced request took.
func (x *Exporter) traceData(batch []*tracing.Span) proto.Message {
	const spans protowire.Number = 2
	b := make([]byte, 0, len(batch)*spanRoom)
	for _, s := range batch {
		b = appendMessage(b, spans, func(b []byte) []byte { return appendSpan(b, s) })
	}
	in := &tracepb.ScopeSpans{Scope: x.scope()}
	in.ProtoReflect().SetUnknown(b)
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{Resource: x.resource, ScopeSpans: []*tracepb.ScopeSpans{in}}}}
}

// spanRoom is about what a span takes, in bytes.
const spanRoom = 512

// appendSpan appends a Span of opentelemetry/proto/trace/v1.
func appendSpan(b []byte, s *tracing.Span) []byte {
	b = appendBytes(b, 1, s.Trace[:])
	b = appendBytes(b, 2, s.ID[:])
	if s.Parent != (tracing.SpanID{}) {
		b = appendBytes(b, 4, s.Parent[:])
	}
	b = appendText(b, 5, s.Name)
	b = appendNumber(b, 6, uint64(s.Kind))
	b = appendTime(b, 7, s.Start)
	b = appendTime(b, 8, s.End)
	for i := range s.Attributes {
		b = appendMessage(b, 9, func(b []byte) []byte { return appendAttribute(b, &s.Attributes[i]) })
	}
	for i := range s.Events {
		b = appendMessage(b, 11, func(b []byte) []byte {
			return appendText(appendTime(b, 1, s.Events[i].At), 2, s.Events[i].Name)
		})
	}
	if s.Failed {
		b = appendMessage(b, 15, func(b []byte) []byte { return appendNumber(b, 3, uint64(tracepb.Status_STATUS_CODE_ERROR)) })
	}
	flags := flagSampled | flagKnown
	if s.Remote {
		flags |= flagIsRemote
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, 16, protowire.Fixed32Type), flags)
}

// appendAttribute appends a KeyValue of opentelemetry/proto/common/v1.
func appendAttribute(b []byte, a *tracing.Attribute) []byte {
	b = appendText(b, 1, a.Key)
	return appendMessage(b, 2, func(b []byte) []byte {
		switch a.Type {
		case tracing.Number:
			return appendNumber(b, 3, uint64(a.Number))
		case tracing.Truth:
			return appendNumber(b, 2, uint64(a.Number))
		}
		return appendText(b, 1, a.Text)
	})
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// appendText appends a text, which has to be UTF-8: a collector refuses all of an export
// for one that is not.
func appendText(b []byte, num protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), strings.ToValidUTF8(v, "\uFFFD"))
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendTime(b []byte, num protowire.Number, at time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), nanos(at))
}

// appendMessage appends what fill does, behind its length.
func appendMessage(b []byte, num protowire.Number, fill func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	at := len(b)
	b = fill(append(b, 0)) // room for a length below 128
	n := len(b) - at - 1
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		b = slices.Insert(b, at, make([]byte, more)...)
	}
	protowire.AppendVarint(b[:at], uint64(n))
	return b
}
