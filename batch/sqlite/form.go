package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"

	"headgate/batch/rows"
)

// Look tells what the database at a path is, and makes no file. One that is not there is
// fs.ErrNotExist.
func Look(ctx context.Context, path string) (_ rows.Form, err error) {
	f := rows.Form{Want: rows.Latest(migrations)}
	if info, err := os.Stat(path); err != nil {
		return f, err
	} else if info.Size() == 0 {
		return f, nil
	}
	q := url.Values{"mode": {"ro"}, "_pragma": {fmt.Sprintf("busy_timeout(%d)", standard.busy.Milliseconds())}}
	// Whoever reads beside a log that is written ahead keeps a file for that, and makes it
	// where there is none: then nobody writes, and all of it is in the one file.
	if _, err := os.Stat(path + "-wal"); errors.Is(err, fs.ErrNotExist) {
		q.Set("immutable", "1")
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var tables int
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM sqlite_master WHERE name = 'goose_db_version'").Scan(&tables)
	if err == nil && tables > 0 {
		err = db.QueryRowContext(ctx, rows.Applied).Scan(&f.Have)
	}
	if err != nil {
		return f, fmt.Errorf("the batch store %s: %w", path, explain(err))
	}
	return f, nil
}
