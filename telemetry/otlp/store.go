package otlp

import (
	"context"
	"log/slog"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
)

// Entry is a log record that somebody waits for.
type Entry struct {
	At         time.Time
	Body       string
	Attributes []slog.Attr // empty texts are left out
}

// Store sends entries once, beside all queues, and returns how many of an export that was
// taken the collector refused, or why it was not taken.
func (x *Exporter) Store(ctx context.Context, entries []Entry) (rejected int64, err error) {
	records := make([]*logspb.LogRecord, len(entries))
	for i, e := range entries {
		r := &logspb.LogRecord{
			TimeUnixNano: nanos(e.At), ObservedTimeUnixNano: nanos(e.At), SeverityNumber: severity(slog.LevelInfo), SeverityText: slog.LevelInfo.String(),
			Body: text("", e.Body).Value,
		}
		for _, a := range e.Attributes {
			if a.Value.Kind() != slog.KindString || a.Value.String() != "" {
				r.Attributes = appendAttr(r.Attributes, "", a)
			}
		}
		records[i] = r
	}
	body, err := pack(x.logData(records))
	if err != nil {
		return 0, err
	}
	rejected, _, err = x.post(ctx, &signal{path: "/v1/logs"}, body)
	return rejected, err
}
