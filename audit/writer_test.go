package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// memory is a Sink of which a test says how it is.
type memory struct {
	mu     sync.Mutex
	lines  []Line
	fails  error
	most   int           // lines it takes before it fails; 0: none
	hangs  chan struct{} // nil: it does not
	opened int
}

func (m *memory) Open(context.Context) (Head, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.opened++; m.fails != nil {
		return Head{}, m.fails
	}
	if n := len(m.lines); n > 0 {
		return Head{m.lines[n-1].Seq, m.lines[n-1].Hash()}, nil
	}
	return Head{}, nil
}

func (m *memory) Write(ctx context.Context, lines []Line) (int, error) {
	m.mu.Lock()
	hangs := m.hangs
	m.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		n := min(m.most, len(lines))
		m.lines = append(m.lines, lines[:n]...)
		m.most = 0
		return n, m.fails
	}
	m.lines = append(m.lines, lines...)
	return len(lines), nil
}

func (m *memory) Close() error { return nil }

func (m *memory) is(fails error, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails, m.most = fails, most
}

// verified checks the lines as a file.
func (m *memory) verified(t *testing.T) *Report {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	return verified(t, lines(m.lines))
}

func lines(all []Line) []byte {
	var b bytes.Buffer
	for _, l := range all {
		b.Write(l.JSON)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func verified(t *testing.T, b []byte) *Report {
	t.Helper()
	name := filepath.Join(t.TempDir(), "records")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Verify([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func options(buffer int) (Options, *bytes.Buffer, *prometheus.Registry) {
	log, reg := &bytes.Buffer{}, prometheus.NewRegistry()
	return Options{Buffer: buffer, Source: "here", Version: "v", Required: true, Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: reg}, log, reg
}

func appendTo(w *Writer, n int) {
	for i := range n {
		w.Append(&Record{Kind: Request, ID: fmt.Sprint("req_", i), Outcome: OutcomeAnswered})
	}
}

// A sink that fails keeps what there is room for waiting, loses the rest with a gap in its
// place, and all of it shows: in the metrics, in what is ready, in the log, in the records.
func TestSinkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, log, reg := options(16)
		m := &memory{fails: errors.New("no such host")}
		w := NewWriter(m, o)
		appendTo(w, 3)
		time.Sleep(time.Minute)
		m.mu.Lock()
		opened := m.opened
		m.mu.Unlock()
		if opened < 10 || w.Ready() != nil || !strings.Contains(w.Problem(), "no such host") {
			t.Errorf("opened %d times; ready: %v; %q", opened, w.Ready(), w.Problem())
		}
		m.is(nil, 0)
		time.Sleep(10 * time.Second)
		if r := m.verified(t); r.Records != 4 || w.Problem() != "" {
			t.Errorf("%+v; %q", r, w.Problem())
		}
		// Half of a write, and then nothing.
		m.is(errors.New("disk full"), 2)
		appendTo(w, 5)
		time.Sleep(time.Second)
		appendTo(w, 40) // 16 wait behind the 5
		if err := w.Ready(); err == nil || !strings.Contains(err.Error(), "24") {
			t.Errorf("ready: %v", err)
		}
		m.is(nil, 0)
		time.Sleep(10 * time.Second)
		appendTo(w, 2)
		if err := w.Close(); err != nil || w.Ready() != nil {
			t.Errorf("%v, %v", err, w.Ready())
		}
		r := m.verified(t)
		if len(r.Faults) > 0 || r.Records != 1+3+5+16+1+2+1 || r.Lost != 24 || r.Gaps != 1 || r.Head.Seq != 1+3+5+40+2+1 || !r.Begins || r.Starts != 1 || r.Killed != 0 {
			t.Errorf("%+v", r)
		}
		want := "headgate_audit_records_total{outcome=\"lost\"} 24\nheadgate_audit_records_total{outcome=\"written\"} 29\n"
		if err := testutil.GatherAndCompare(reg, strings.NewReader("# HELP headgate_audit_records_total Audit records: written, which the sink has stored, and lost, for which there was no room while it failed or was slow. Each loss is a gap record when the sink is back.\n# TYPE headgate_audit_records_total counter\n"+want), "headgate_audit_records_total"); err != nil {
			t.Error(err)
		}
		if s := log.String(); strings.Count(s, "the audit sink fails") != 2 || strings.Count(s, "takes records again") != 2 || !strings.Contains(s, "records=24") {
			t.Error(s)
		}
	})
}

// Nobody waits for a sink that hangs, not even at the end for long, and what it never took
// is told.
func TestSinkHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _, _ := options(16)
		m := &memory{hangs: make(chan struct{})}
		w := NewWriter(m, o)
		start := time.Now()
		time.Sleep(time.Second) // the first record is on its way
		appendTo(w, 1000)
		if d := time.Since(start); d != time.Second {
			t.Errorf("appending took %s", d-time.Second)
		}
		start = time.Now()
		err := w.Close()
		if err == nil || !strings.Contains(err.Error(), "last 1001 records are lost") || time.Since(start) > closeTime {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// A sink that was left goes on where it was.
func TestGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		for range 3 {
			o, _, _ := options(64)
			w := NewWriter(m, o)
			appendTo(w, 2)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			w.Append(&Record{Kind: Request}) // too late, and no harm
		}
		if r := m.verified(t); len(r.Faults) > 0 || r.Records != 12 || r.Head.Seq != 12 || r.Starts != 3 || r.Killed != 0 {
			t.Errorf("%+v", r)
		}
	})
	var none *Writer
	none.Append(&Record{})
	if none.Ready() != nil || none.Problem() != "" || none.Close() != nil {
		t.Error("no writer is no trouble")
	}
}
