// Package postgres keeps audit records in a table of a PostgreSQL database, which several
// replicas share, each under its source's name.
//
// A row has the record's line as text, since its bytes are what the next one's hash is of,
// and beside it what is looked for. A line that was stored without that being heard of is
// given again and found to be there. Two processes under one name are refused: the second
// writes another line under a number that the first one has.
package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"headgate/audit"
)

const table = `CREATE TABLE IF NOT EXISTS headgate_audit (
	source text NOT NULL,
	seq bigint NOT NULL,
	ts timestamptz NOT NULL,
	kind text NOT NULL,
	principal text NOT NULL,
	tenant text NOT NULL,
	request text NOT NULL,
	outcome text NOT NULL,
	line text NOT NULL,
	PRIMARY KEY (source, seq)
)`

const insert = `INSERT INTO headgate_audit (source, seq, ts, kind, principal, tenant, request, outcome, line)
SELECT $1, * FROM unnest($2::bigint[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
ON CONFLICT (source, seq) DO UPDATE SET line = headgate_audit.line WHERE headgate_audit.line = EXCLUDED.line`

// Sink is an audit.Sink.
type Sink struct {
	cfg    *pgx.ConnConfig
	source string
	conn   *pgx.Conn // nil: there is none at the moment
}

var _ audit.Sink = (*Sink)(nil)

// connectTime bounds the making of a connection.
const connectTime = 5 * time.Second

// New is a Sink for the database that a URL or a list of keywords and values names. It
// connects when it is first used.
func New(dsn, source string) (*Sink, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the audit database's address: %w", err) // pgx leaves the password out
	}
	if cfg.ConnectTimeout == 0 || cfg.ConnectTimeout > connectTime {
		cfg.ConnectTimeout = connectTime
	}
	return &Sink{cfg: cfg, source: source}, nil
}

func (s *Sink) connect(ctx context.Context) (err error) {
	if s.conn == nil {
		s.conn, err = pgx.ConnectConfig(ctx, s.cfg)
	}
	return err
}

// failed lets go of a connection that may be no good any more.
func (s *Sink) failed(err error) error {
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.conn.Close(ctx)
		s.conn = nil
	}
	return fmt.Errorf("the audit database at %s, %s: %w", s.cfg.Host, s.cfg.Database, err)
}

// Open implements audit.Sink.
func (s *Sink) Open(ctx context.Context) (audit.Head, error) {
	var head audit.Head
	err := s.connect(ctx)
	if err == nil {
		_, err = s.conn.Exec(ctx, table)
	}
	var line string
	if err == nil {
		err = s.conn.QueryRow(ctx, "SELECT seq, line FROM headgate_audit WHERE source = $1 ORDER BY seq DESC LIMIT 1", s.source).Scan(&head.Seq, &line)
		if errors.Is(err, pgx.ErrNoRows) {
			return audit.Head{}, nil
		}
	}
	if err != nil {
		return audit.Head{}, s.failed(err)
	}
	head.Hash = audit.Line{JSON: []byte(line)}.Hash()
	return head, nil
}

// Write implements audit.Sink.
func (s *Sink) Write(ctx context.Context, lines []audit.Line) (int, error) {
	n := len(lines)
	seqs, times := make([]int64, n), make([]time.Time, n)
	var texts [6][]string // kind to line
	for i, l := range lines {
		var r audit.Record
		if err := json.Unmarshal(l.JSON, &r); err != nil {
			return 0, fmt.Errorf("audit record %d: %w", l.Seq, err)
		}
		seqs[i], times[i] = int64(l.Seq), r.TS
		for k, v := range []string{string(r.Kind), r.Principal, r.Tenant, r.ID, r.Outcome, string(l.JSON)} {
			texts[k] = append(texts[k], v)
		}
	}
	if err := s.connect(ctx); err != nil {
		return 0, s.failed(err)
	}
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return 0, s.failed(err)
	}
	done, err := tx.Exec(ctx, insert, s.source, seqs, times, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5])
	switch {
	case err != nil:
	case done.RowsAffected() != int64(n):
		_ = tx.Rollback(ctx)
		err = fmt.Errorf("another process writes as %s: give each a source of its own", s.source)
	default:
		err = tx.Commit(ctx)
	}
	if err != nil {
		return 0, s.failed(err)
	}
	return n, nil
}

// Close implements audit.Sink.
func (s *Sink) Close() error {
	if s.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return s.conn.Close(ctx)
}

// Look tells whether the database is there and takes records, and changes nothing.
func (s *Sink) Look(ctx context.Context) error {
	err := s.connect(ctx)
	var may bool
	if err == nil {
		err = s.conn.QueryRow(ctx, `SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AND COALESCE(
			has_table_privilege(to_regclass('headgate_audit'), 'INSERT'), has_schema_privilege(current_schema(), 'CREATE'), false)`).Scan(&may)
	}
	if err == nil && !may {
		err = errors.New("the user may write no records there: grant INSERT on headgate_audit, or CREATE on the schema where there is no such table yet")
	}
	if err != nil {
		return s.failed(err)
	}
	return nil
}
