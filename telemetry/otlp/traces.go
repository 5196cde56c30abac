package otlp

import (
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"headgate/telemetry/tracing"
)

// Flags of a span beside the W3C ones: it is known whether the parent is another
// process's, and it is.
const (
	flagSampled  = 0x1
	flagKnown    = uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	flagIsRemote = uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
)

// traceData is the same message as an ExportTraceServiceRequest, whose package
// links gRPC.
func (x *Exporter) traceData(batch []*tracing.Span) proto.Message {
	spans := make([]*tracepb.Span, len(batch))
	for i, s := range batch {
		spans[i] = span(s)
	}
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource: x.resource, ScopeSpans: []*tracepb.ScopeSpans{{Scope: x.scope(), Spans: spans}},
	}}}
}

func span(s *tracing.Span) *tracepb.Span {
	out := &tracepb.Span{
		TraceId: s.Trace[:], SpanId: s.ID[:], Name: s.Name, Kind: tracepb.Span_SpanKind(s.Kind),
		StartTimeUnixNano: nanos(s.Start), EndTimeUnixNano: nanos(s.End), Flags: flagSampled | flagKnown,
		Attributes: make([]*commonpb.KeyValue, len(s.Attributes)),
	}
	if s.Parent != (tracing.SpanID{}) {
		out.ParentSpanId = s.Parent[:]
	}
	if s.Remote {
		out.Flags |= flagIsRemote
	}
	for i, a := range s.Attributes {
		switch a.Type {
		case tracing.Text:
			out.Attributes[i] = text(a.Key, a.Text)
		case tracing.Number:
			out.Attributes[i] = number(a.Key, a.Number)
		case tracing.Truth:
			out.Attributes[i] = truth(a.Key, a.Number != 0)
		}
	}
	for _, e := range s.Events {
		out.Events = append(out.Events, &tracepb.Span_Event{Name: e.Name, TimeUnixNano: nanos(e.At)})
	}
	if s.Failed {
		out.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR}
	}
	return out
}
