package audit

// FileConfig says how a File is kept.
type FileConfig struct {
	Path string
	// RotateBytes is the size from which it is put by and a new one begun; 0 is never.
	RotateBytes int64
	// KeepFiles is how many files that were put by are kept; 0 is all.
	KeepFiles int
	Sync      Sync
}

// Sync is when what was written is forced to the disk.
type Sync string

const (
	SyncAlways Sync = "always" // with each write
	SyncSecond Sync = "second" // within a second
	SyncNever  Sync = "never"  // by the system
)
