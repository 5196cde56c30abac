package config

import (
	"fmt"

	"headgate/identity"
)

// Audit says where decisions are written down. One of file, otlp and postgres_env is
// given.
type Audit struct {
	// File to append to, JSON lines, made with mode 0600. One process at a time may have it.
	File string `yaml:"file,omitempty"`
	// RotateBytes is the size from which the file is put by, under its name and the number of its last record, and a new one begun; 64KiB to 1024GiB.
	RotateBytes Bytes `yaml:"rotate_bytes"`
	// KeepFiles is how many files that were put by are kept, the newest, up to 100000; 0 is all.
	KeepFiles int `yaml:"keep_files"`
	// Sync is when what was written is forced to the disk: always, with each write, which has the records of a tenth of a second; second, within a second; never, which leaves it to the system.
	Sync string `yaml:"sync"`
	// OTLP sends records as logs to the collector of otlp.endpoint, whatever otlp.logs says.
	OTLP bool `yaml:"otlp"`
	// PostgresEnv names the environment variable with the URL of a PostgreSQL database, such as postgres://user:password@host/database, whose table headgate_audit gets a row for each record.
	PostgresEnv string `yaml:"postgres_env,omitempty"`
	// Source is the name under which this process's records are counted, of its own where several have one collector or database; absent: the host's name.
	Source string `yaml:"source,omitempty"`
	// Buffer is how many records may wait for where they go, some hundred bytes of memory each, twice; what exceeds it is lost and counted. Raise it when headgate_audit_records_total counts lost ones.
	Buffer int `yaml:"buffer"`
	// Required makes /readyz 503 while records are being lost, so that requests go to a replica that writes them down.
	Required bool `yaml:"required"`
}

// SetDefaults keeps everything, in files that an editor still opens.
func (a *Audit) SetDefaults() {
	*a = Audit{RotateBytes: 256 * mib, Sync: "second", Buffer: 8192}
}

func (a *Audit) validate(l *list, collector bool) {
	bad := l.below("audit")
	sinks := 0
	for _, given := range []bool{a.File != "", a.OTLP, a.PostgresEnv != ""} {
		if given {
			sinks++
		}
	}
	if sinks != 1 {
		l.bad("audit", fmt.Sprintf("%d of file, otlp and postgres_env", sinks), "one of them")
	}
	if a.OTLP && !collector {
		bad("otlp", "true", "true with otlp.endpoint, the collector")
	}
	if a.RotateBytes < 64*kib || a.RotateBytes > 1024*gib {
		bad("rotate_bytes", a.RotateBytes, "64KiB to 1024GiB")
	}
	if a.KeepFiles < 0 || a.KeepFiles > 100_000 {
		bad("keep_files", a.KeepFiles, "0 to 100000")
	}
	if s := a.Sync; s != "always" && s != "second" && s != "never" {
		bad("sync", s, "always, second or never")
	}
	if s := a.PostgresEnv; s != "" && !envName(s) {
		// What stands where a variable's name should may be the password itself.
		bad("postgres_env", identity.Redacted, allowedEnv)
	}
	if a.Source != "" && !identity.ValidName(a.Source) {
		bad("source", a.Source, identity.NameRule)
	}
	if a.Buffer < 16 || a.Buffer > 1<<20 {
		bad("buffer", a.Buffer, "16 to 1048576 records")
	}
}
