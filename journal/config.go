package journal

// Config says where the journal goes.
type Config struct {
	// File to append to, made with mode 0600; absent: no journal. It is not rotated.
	File string `yaml:"file,omitempty"`
	// Buffer is how many events may wait for the disk, a few hundred bytes of memory each, twice; what exceeds it is dropped and counted. Raise it when headgate_journal_dropped_total moves.
	Buffer int `yaml:"buffer"`
}

// SetDefaults sets the buffer: at 8 events a request, a second of 1000
// requests.
func (c *Config) SetDefaults() { c.Buffer = 8192 }

// Bounds of Config.Buffer, in events.
const (
	MinBuffer = 16
	MaxBuffer = 1 << 20
)

// Validate calls bad for every value that isn't allowed.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	if c.Buffer < MinBuffer || c.Buffer > MaxBuffer {
		bad("buffer", c.Buffer, "16 to 1048576 events")
	}
}
