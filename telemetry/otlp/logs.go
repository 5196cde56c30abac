package otlp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"
)

func (x *Exporter) logData(batch []*logspb.LogRecord) proto.Message {
	return &logspb.LogsData{ResourceLogs: []*logspb.ResourceLogs{{
		Resource: x.resource, ScopeLogs: []*logspb.ScopeLogs{{Scope: x.scope(), LogRecords: slices.Clone(batch)}},
	}}}
}

// Handler returns a log handler that passes what next takes on to it, and exports
// it.
func (x *Exporter) Handler(next slog.Handler) slog.Handler { return &handler{next: next, to: x} }

type handler struct {
	next  slog.Handler
	to    *Exporter
	attrs []*commonpb.KeyValue
	group string // with a dot behind it, unless there is none
}

func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := handler{next: h.next.WithAttrs(attrs), to: h.to, attrs: slices.Clone(h.attrs), group: h.group}
	for _, a := range attrs {
		with.attrs = appendAttr(with.attrs, h.group, a)
	}
	return &with
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &handler{next: h.next.WithGroup(name), to: h.to, attrs: h.attrs, group: h.group + name + "."}
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	// A record's attributes may be used again by its maker, so it is made here and not
	// where it is sent.
	out := &logspb.LogRecord{
		TimeUnixNano: nanos(r.Time), ObservedTimeUnixNano: nanos(r.Time), SeverityNumber: severity(r.Level), SeverityText: r.Level.String(),
		Body: text("", r.Message).Value, Attributes: slices.Clone(h.attrs),
	}
	r.Attrs(func(a slog.Attr) bool {
		out.Attributes = appendAttr(out.Attributes, h.group, a)
		return true
	})
	offer(h.to.records, out, &h.to.logs)
	return h.next.Handle(ctx, r)
}

// severity is OTLP's number of a level: slog's are four apart and so are they.
func severity(l slog.Level) logspb.SeverityNumber {
	return logspb.SeverityNumber(min(max(int(l)+int(logspb.SeverityNumber_SEVERITY_NUMBER_INFO), 1), 24))
}

func appendAttr(to []*commonpb.KeyValue, group string, a slog.Attr) []*commonpb.KeyValue {
	v, key := a.Value.Resolve(), group+a.Key
	switch v.Kind() {
	case slog.KindGroup:
		if a.Key != "" {
			group = key + "."
		}
		for _, inner := range v.Group() {
			to = appendAttr(to, group, inner)
		}
		return to
	case slog.KindBool:
		return append(to, truth(key, v.Bool()))
	case slog.KindInt64:
		return append(to, number(key, v.Int64()))
	case slog.KindFloat64:
		return append(to, float(key, v.Float64()))
	case slog.KindAny:
		if a.Equal(slog.Attr{}) {
			return to // an empty one is left out, as slog's own handlers do
		}
		return append(to, text(key, printed(v.Any())))
	}
	return append(to, text(key, v.String()))
}

// printed writes a value as slog's JSON handler does, which is how a secret within
// it stays one.
func printed(v any) string {
	if err, ok := v.(error); ok {
		return err.Error()
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("!ERROR:%v", err)
	}
	var s string
	if json.Unmarshal(b, &s) == nil {
		return s
	}
	return string(b)
}
