package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"headgate/batch/rows"
)

// Look tells what the database is that Open would use, and changes nothing.
func Look(ctx context.Context, dsn string) (_ rows.Form, err error) {
	f := rows.Form{Want: rows.Latest(migrations)}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return f, fmt.Errorf("the batch store's address: %w", err) // pgx leaves the password out
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("the batch store at %s, database %s: %w", cfg.Host, cfg.Database, explain(err))
		}
	}()
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	var recovery, readOnly, table, may bool
	f.Sent = time.Now()
	err = c.QueryRow(ctx, `SELECT clock_timestamp(), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
		to_regclass('goose_db_version') IS NOT NULL, COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false)`).
		Scan(&f.Now, &recovery, &readOnly, &table, &may)
	f.Answered = time.Now()
	switch {
	case err != nil:
		return f, err
	case recovery:
		f.ReadOnly, f.Why = true, "it is a standby, in recovery"
	case readOnly:
		f.ReadOnly, f.Why = true, "its transactions are read-only (default_transaction_read_only)"
	case !table && !may:
		f.ReadOnly, f.Why = true, "the tables are still to be made, and the user may make none in the schema"
	}
	if table {
		err = c.QueryRow(ctx, rows.Applied).Scan(&f.Have)
	}
	return f, err
}
