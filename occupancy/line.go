package occupancy

// Kind is what a line means for the request that it names.
type Kind uint8

const (
	Other   Kind = iota // nothing; its time still shows that the log goes on
	Wait                // the request arrived and waits
	Start               // it is in flight from here on
	Done                // it no longer is
	Whole               // the line has both ends
	Gone                // it is over; if it was never in flight, it never will be
	Restart             // the process began anew: what was open in it is over
)

// Line is what one line of a log says. Its byte slices are valid until the next
// line is read.
type Line struct {
	Kind  Kind
	At    int64 // nanoseconds since 1970 in UTC; of Whole, the end
	Start int64 // of Whole
	// Queue is how long, in nanoseconds from the span's start, the request only
	// waited. It is taken off the time in flight.
	Queue int64

	ID, Model, Class, Principal []byte
	// Tag is a string, or a JSON array of strings.
	Tag []byte
	// Source is the unit, host or file that wrote the line, Process which run of it.
	Source, Process []byte

	// Fresh: the log's clock began anew before this line, so its process did.
	Fresh bool

	Lost     int64 // lines that the log itself says are missing here
	Excluded bool  // the line matched Options.Exclude's pattern
}
