package rows

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// Form is what a database is, looked at without a change.
type Form struct {
	// Have is the last migration that it has had, and Want this version's last; Have 0: its
	// tables are still to be made.
	Have, Want int64
	// ReadOnly tells that it takes no writes, and Why.
	ReadOnly bool
	Why      string
	// Now is its time of day, between Sent and Answered; zero: it is this machine's.
	Now, Sent, Answered time.Time
}

// Applied is the query for Form.Have, where the table of migrations is there.
const Applied = "SELECT COALESCE(MAX(version_id), 0) FROM goose_db_version"

// Latest is the last of the migrations of a folder, whose names begin with their numbers.
func Latest(migrations fs.FS) (last int64) {
	names, _ := fs.Glob(migrations, "migrations/*.sql") // the pattern is valid
	for _, name := range names {
		number, _, _ := strings.Cut(path.Base(name), "_")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			last = max(last, n)
		}
	}
	return last
}
