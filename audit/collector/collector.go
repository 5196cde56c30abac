// Package collector has audit records kept by whoever takes OTLP logs.
//
// A record is one log record: its line is the body, so that the chain of hashes can be
// checked of what was kept, and what is looked for is in attributes. It counts as stored
// when the collector has taken its export whole. A collector keeps no place that could be
// asked for, so each process begins a chain of its own, which its started record names.
package collector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"headgate/audit"
	"headgate/telemetry/otlp"
)

// Sink is an audit.Sink.
type Sink struct{ to *otlp.Exporter }

var _ audit.Sink = (*Sink)(nil)

// New sends to an exporter's collector.
func New(to *otlp.Exporter) *Sink { return &Sink{to} }

// Open implements audit.Sink.
func (*Sink) Open(context.Context) (audit.Head, error) { return audit.Head{}, nil }

// Write implements audit.Sink.
func (s *Sink) Write(ctx context.Context, lines []audit.Line) (int, error) {
	entries := make([]otlp.Entry, len(lines))
	for i, l := range lines {
		var r audit.Record
		if err := json.Unmarshal(l.JSON, &r); err != nil {
			return 0, fmt.Errorf("audit record %d: %w", l.Seq, err)
		}
		entries[i] = otlp.Entry{At: r.TS, Body: string(l.JSON), Attributes: []slog.Attr{
			slog.String("event.name", "headgate.audit"), slog.Int64("headgate.audit.seq", int64(l.Seq)), slog.String("headgate.audit.kind", string(r.Kind)),
			slog.String("headgate.principal", r.Principal), slog.String("headgate.tenant", r.Tenant),
			slog.String("headgate.request", r.ID), slog.String("headgate.outcome", r.Outcome), slog.Int("http.response.status_code", r.Status),
		}}
	}
	rejected, err := s.to.Store(ctx, entries)
	if err == nil && rejected > 0 {
		err = errors.New("the collector rejects audit records")
	}
	if err != nil {
		return 0, err
	}
	return len(lines), nil
}

// Close implements audit.Sink.
func (*Sink) Close() error { return nil }
