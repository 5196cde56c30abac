package engine

import "time"

// Shared is an Adapter of an engine that others send to as well. Its load shows
// theirs too, so that a release is told from what it has begun for them by what they
// say.
type Shared interface {
	Adapter
	// Share is called once, before the first Dispatch. The adapter calls wanted, from any
	// goroutine, whenever a confirmation waits for what the others have there.
	Share(wanted func())
	// Attending is what this adapter has there now.
	Attending() Attendance
	// Others says what each of the others has last said, all of them each time.
	Others([]Presence)
}

// Attendance is what an adapter says of its attempts at an engine, for others.
type Attendance struct {
	// Begun is how many attempts have had a token, since it was made.
	Begun uint64
	// Ended is how many of those are not known to be held at As: they have ended, their
	// end is asked for, or nothing has been heard of them lately. It may fall.
	Ended uint64
	As    time.Time
	// Idle: it has nothing there, begun or not.
	Idle bool
	// Doubts: a confirmation waits for what the others have there.
	Doubts bool
	// Since is when it was made, and Place a digest of where it finds the engine: counts
	// of other ones are not to be compared with these.
	Since time.Time
	Place uint32
}

// Presence is an Attendance that another has said.
type Presence struct {
	Who          string // one adapter of one process
	Place        uint32 // where that finds the engine
	Begun, Ended uint64
	// Before it was said, and After it is what Ended says: bounds by this process's clock.
	Before, After time.Time
}
