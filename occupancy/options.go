package occupancy

import (
	"cmp"
	"fmt"
	"regexp"
	"time"
)

// Options of a run. The zero value has the defaults.
type Options struct {
	// From and To cut what is counted, in nanoseconds since 1970; 0 is the log's first
	// and last line.
	From, To int64
	// Slack is how far a line may stand behind one of a later time. What is further
	// behind is counted and left out.
	Slack time.Duration
	// MaxSpan is the longest span. A start that is older is given up.
	MaxSpan time.Duration
	// Dedupe is how long after a done another one of the same id is the same one,
	// logged twice.
	Dedupe  time.Duration
	Exclude Exclude
	// Zone is of times without one, and of the hours of the day.
	Zone *time.Location
	// Year is that of the first line, where times have none.
	Year int
	// Epoch is when the process began, where times are since then.
	Epoch int64
}

// Exclude says what is not the traffic that is measured, such as a benchmark: any
// of these is enough, in the start's line or in the done's.
type Exclude struct {
	Tags, Principals []string
	Pattern          *regexp.Regexp // of the line
}

// Defaults of Options.
const (
	DefaultSlack   = 10 * time.Second
	DefaultMaxSpan = 6 * time.Hour
	DefaultDedupe  = time.Minute
)

// Hard limits, so that no log takes more memory than some 300 MB.
const (
	maxBuffered = 1 << 19 // lines that wait to be put in order
	maxOpen     = 1 << 19 // spans whose done has not come
	maxSame     = 256     // of these with one id
	maxEdges    = 1 << 20 // ends of spans that the sweep has not come to
	maxNames    = 200     // of a model, class or principal; the rest is "other"
	maxHours    = 1 << 16
	maxLine     = 1 << 20 // bytes
)

func (o *Options) complete() error {
	o.Slack = cmp.Or(o.Slack, DefaultSlack)
	o.MaxSpan = cmp.Or(o.MaxSpan, DefaultMaxSpan)
	o.Dedupe = cmp.Or(o.Dedupe, DefaultDedupe)
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	if o.Year == 0 {
		o.Year = 1970
	}
	for _, d := range []struct {
		name string
		v    time.Duration
		most time.Duration
	}{{"slack", o.Slack, time.Hour}, {"longest span", o.MaxSpan, 366 * 24 * time.Hour}, {"dedupe", o.Dedupe, time.Hour}} {
		if d.v < 0 || d.v > d.most {
			return fmt.Errorf("%s is %v: allowed is up to %v", d.name, d.v, d.most)
		}
	}
	if o.From != 0 && o.To != 0 && o.To <= o.From {
		return fmt.Errorf("the end of the window is not after its start")
	}
	return nil
}
