package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"headgate/identity"
)

// Batch says where files and batches are kept and how batches are run.
type Batch struct {
	// Dir is the folder in which files are, and by default the database, made with mode 0700 where there is none. One process at a time may have it, unless there is postgres_env. Needed where bucket, and postgres_env or database, do not say where everything is.
	Dir string `yaml:"dir,omitempty"`
	// Bucket is object storage in which files are instead of dir: s3://NAME, with ?region=REGION, and for what speaks as S3 does &endpoint=URL and &use_path_style=true. &prefix=FOLDER/ is what names begin with. Credentials come from the environment, as the provider's own tools have them. The bucket has to be there, and should drop uploads in parts that were left unfinished after a day.
	Bucket string `yaml:"bucket,omitempty"`
	// Database is the SQLite database in which files, batches and their items are recorded; absent: batch.db in dir. Its folder has to be on a disk of this machine, not on a network. Not with postgres_env.
	Database string `yaml:"database,omitempty"`
	// PostgresEnv names the environment variable with the URL of a PostgreSQL database for that, such as postgres://user:password@host/database. Several replicas may then have the same batches: all with the same bucket, or the same dir, on a file system that they share.
	PostgresEnv string `yaml:"postgres_env,omitempty"`
	// Class of a batch that names none by Headgate-Class, where its key may use it; else it is the key's default. By default batch, if there is such a class.
	Class string `yaml:"class,omitempty"`
	// MaxFileBytes is the largest file, 1KiB to 1024GiB. A batch needs room for its input, for its output, and once more for the output while it runs.
	MaxFileBytes Bytes `yaml:"max_file_bytes"`
	// TenantMaxBytes is how much a tenant's files may have together before it can upload no more; 0 is no bound. Files that batches write count too, and are always written.
	TenantMaxBytes Bytes `yaml:"tenant_max_bytes"`
	// TenantMaxFiles is how many files a tenant may have before it can upload no more, of both kinds; 0 is no bound.
	TenantMaxFiles int64 `yaml:"tenant_max_files"`
	// TenantMaxBatches is how many batches a tenant may have that have not ended; 0 is no bound.
	TenantMaxBatches int64 `yaml:"tenant_max_batches"`
	// MaxLines is how many requests a batch may have, 1 to 10000000.
	MaxLines int64 `yaml:"max_lines"`
	// MaxLineBytes is the longest line of a batch's file, 1KiB to 256MiB. Each item that runs takes as much memory as its line and its answer.
	MaxLineBytes Bytes `yaml:"max_line_bytes"`
	// MinWindow is the shortest completion_window that a batch may ask for, from 1s on.
	MinWindow time.Duration `yaml:"min_window"`
	// MaxWindow is the longest, at most 2160h. 24h, which OpenAI's clients ask for, should be within both.
	MaxWindow time.Duration `yaml:"max_window"`
	// Keep is how long output files, ended batches, and files of purpose batch that do not say so themselves are kept, 1h to 87600h. 0 is for ever.
	Keep time.Duration `yaml:"keep"`
	// Concurrency is how many items this process has under way at once, 1 to 100000. Admission decides how many of them run; raise it where engines have more slots together.
	Concurrency int `yaml:"concurrency"`
	// Ahead is how many of them may wait for admission, 1 to 10000: enough that no slot waits for an item, few enough that lending which reopens is not flooded. Keep it below the class's queue.per_tenant.
	Ahead int `yaml:"ahead"`
	// Attempts is how often an item may fail in a way that may pass before it is given up, 1 to 100. What gave way to others, and what was refused for want of room, is no failure.
	Attempts int `yaml:"attempts"`
	// Backoff is the wait before the second attempt, doubled for each further one, 1ms to 1h.
	Backoff time.Duration `yaml:"backoff"`
	// MaxBackoff is the longest wait between two attempts, backoff to 24h.
	MaxBackoff time.Duration `yaml:"max_backoff"`
	// Lease is for how long the items of a process that died are left to it, 1s to 10m.
	Lease time.Duration `yaml:"lease"`
	// CheckpointTokens is after how many new tokens what an item has come to is written to the disk, 1 to 1000000, so that it goes on from there whatever happens.
	CheckpointTokens int64 `yaml:"checkpoint_tokens"`
	// CheckpointEvery is after what time that is done at the latest, 100ms to 1h.
	CheckpointEvery time.Duration `yaml:"checkpoint_every"`
}

// SetDefaults suits files of OpenAI's size, and longer ones.
func (b *Batch) SetDefaults() {
	*b = Batch{
		Class: "batch", MaxFileBytes: gib, TenantMaxBytes: 100 * gib, TenantMaxFiles: 10_000, TenantMaxBatches: 1000, MaxLines: 1_000_000, MaxLineBytes: 16 * mib,
		MinWindow: time.Hour, MaxWindow: 7 * 24 * time.Hour, Keep: 30 * 24 * time.Hour,
		Concurrency: 256, Ahead: 16, Attempts: 5, Backoff: time.Second, MaxBackoff: 5 * time.Minute,
		Lease: 10 * time.Second, CheckpointTokens: 64, CheckpointEvery: 2 * time.Second,
	}
}

// Path is where the database is.
func (b *Batch) Path() string {
	if b.Database != "" {
		return b.Database
	}
	return filepath.Join(b.Dir, "batch.db")
}

const (
	mostWindow = 90 * 24 * time.Hour
	mostKeep   = 10 * 365 * 24 * time.Hour
)

func (b *Batch) validate(bad func(path string, value any, allowed string)) {
	if b.Dir == "" && (b.Bucket == "" || b.Database == "" && b.PostgresEnv == "") {
		bad("dir", "nothing", "the path of a folder, or nothing with bucket and one of postgres_env and database")
	}
	if b.Bucket != "" && !strings.HasPrefix(b.Bucket, "s3://") {
		// A folder is dir: what is written there is flushed.
		bad("bucket", b.Bucket, "s3://NAME")
	}
	switch {
	case b.PostgresEnv == "":
	case !envName(b.PostgresEnv):
		// What stands where a variable's name should may be the password itself.
		bad("postgres_env", identity.Redacted, allowedEnv)
	case b.Database != "":
		bad("database", b.Database, "nothing with postgres_env")
	}
	if b.Class != "" && !identity.ValidName(b.Class) {
		bad("class", b.Class, identity.NameRule)
	}
	for _, n := range []struct {
		path        string
		value       int64
		least, most int64
	}{
		{"max_lines", b.MaxLines, 1, 10_000_000}, {"concurrency", int64(b.Concurrency), 1, 100_000}, {"ahead", int64(b.Ahead), 1, 10_000},
		{"attempts", int64(b.Attempts), 1, 100}, {"tenant_max_files", b.TenantMaxFiles, 0, 1_000_000_000}, {"tenant_max_batches", b.TenantMaxBatches, 0, 1_000_000_000}, {"checkpoint_tokens", b.CheckpointTokens, 1, 1_000_000},
	} {
		if n.value < n.least || n.value > n.most {
			bad(n.path, n.value, fmt.Sprintf("%d to %d", n.least, n.most))
		}
	}
	if b.MaxFileBytes < kib || b.MaxFileBytes > 1024*gib {
		bad("max_file_bytes", b.MaxFileBytes, "1KiB to 1024GiB")
	}
	if b.TenantMaxBytes < 0 {
		bad("tenant_max_bytes", b.TenantMaxBytes, "0 or more")
	}
	if b.MaxLineBytes < kib || b.MaxLineBytes > 256*mib {
		bad("max_line_bytes", b.MaxLineBytes, "1KiB to 256MiB")
	}
	duration(bad, "min_window", b.MinWindow, time.Second, mostWindow, false)
	duration(bad, "max_window", b.MaxWindow, max(b.MinWindow, time.Second), mostWindow, false)
	duration(bad, "keep", b.Keep, time.Hour, mostKeep, true)
	duration(bad, "backoff", b.Backoff, time.Millisecond, time.Hour, false)
	duration(bad, "max_backoff", b.MaxBackoff, max(b.Backoff, time.Millisecond), maxDuration, false)
	duration(bad, "lease", b.Lease, time.Second, 10*time.Minute, false)
	duration(bad, "checkpoint_every", b.CheckpointEvery, 100*time.Millisecond, time.Hour, false)
}
