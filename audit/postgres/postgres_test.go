package postgres

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"headgate/audit"
	"headgate/e2e/need"
)

func TestSink(t *testing.T) {
	dsn := need.Postgres(t)
	open := func(source string) (*Sink, audit.Head) {
		t.Helper()
		s, err := New(dsn, source)
		if err != nil {
			t.Fatal(err)
		}
		head, err := s.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s, head
	}
	line := func(seq uint64, prev, more string) audit.Line {
		text := `{"seq":` + string(rune('0'+seq)) + `,"ts":"2026-01-01T00:00:00Z","kind":"request","principal":"alice"` + more
		if prev != "" {
			text += `,"prev":"` + prev + `"`
		}
		return audit.Line{Seq: seq, JSON: []byte(text + "}")}
	}
	// Looked at before there is a table, nothing is made; a reader may not write.
	look := func(dsn, fails string) {
		t.Helper()
		s, err := New(dsn, "a")
		if err == nil {
			err = s.Look(t.Context())
			_ = s.Close()
		}
		if (err == nil) != (fails == "") || err != nil && !strings.Contains(err.Error(), fails) {
			t.Errorf("looked at: %v, want %q", err, fails)
		}
	}
	look(dsn, "")
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var made bool
	if err := conn.QueryRow(t.Context(), "SELECT to_regclass('headgate_audit') IS NOT NULL").Scan(&made); err != nil || made {
		t.Errorf("looking has made a table: %v, %v", made, err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE ROLE reader LOGIN"); err != nil {
		t.Fatal(err)
	}
	reader := strings.Replace(dsn, "user=headgate", "user=reader", 1)
	look(reader, "may write no records")
	a, head := open("a")
	look(dsn, "")
	look(reader, "may write no records")
	if head != (audit.Head{}) {
		t.Errorf("%+v", head)
	}
	first := line(1, "", "")
	second := line(2, first.Hash(), "")
	write := func(s *Sink, want int, fails string, lines ...audit.Line) {
		t.Helper()
		n, err := s.Write(t.Context(), lines)
		if n != want || (err == nil) != (fails == "") || err != nil && !strings.Contains(err.Error(), fails) {
			t.Errorf("%d, %v", n, err)
		}
	}
	write(a, 1, "", first)
	write(a, 2, "", first, second) // as after a commit of which nothing was heard
	// Its connection breaks, and it makes another.
	_ = a.conn.Close(t.Context())
	write(a, 0, "closed", second)
	write(a, 1, "", second)

	b, head := open("b") // a source of its own
	if head != (audit.Head{}) {
		t.Errorf("%+v", head)
	}
	write(b, 1, "", first)
	again, head := open("a") // the next process
	if head != (audit.Head{Seq: 2, Hash: second.Hash()}) {
		t.Errorf("%+v", head)
	}
	third := line(3, second.Hash(), "")
	write(again, 1, "", third)
	write(a, 0, "another process writes as a", line(3, second.Hash(), `,"tenant":"t"`))

	rows, err := again.conn.Query(t.Context(), "SELECT line FROM headgate_audit WHERE source = 'a' AND principal = 'alice' ORDER BY seq")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "exported")
	if err := os.WriteFile(name, []byte(strings.Join(all, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := audit.Verify([]string{name}); err != nil || len(r.Faults) > 0 || r.Records != 3 || r.Head.Hash != third.Hash() {
		t.Errorf("%+v, %v", r, err)
	}
}

// A database that is away is told by its address and without the password.
func TestAway(t *testing.T) {
	s, err := New("postgres://u:hunter2@127.0.0.1:1/d", "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "127.0.0.1, d") {
		t.Error(err)
	}
	if _, err := New("postgres://u:hunter2@127.0.0.1:port/d", "a"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}
