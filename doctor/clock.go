package doctor

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// skew tells how far a clock that was read once is off, if that is more than it may be. An
// HTTP date is cut to the second, and it was read at some moment between the question and
// its answer: as NTP does it takes the middle, and believes no more than that leaves open.
// A date that is absent tells nothing.
func skew(date, sent, answered time.Time, most time.Duration) (text string, is bool) {
	if date.IsZero() {
		return "", false
	}
	return skewOf(date.Add(cut/2), sent, answered, cut/2, most)
}

// cut is what an HTTP date leaves out.
const cut = time.Second

// skewOf is skew for a clock that is read to within some time.
func skewOf(read, sent, answered time.Time, within, most time.Duration) (text string, is bool) {
	around := answered.Sub(sent) / 2
	// The wall clock: readings of the monotonic one can't be laid beside another machine's.
	off := read.Sub(sent.Round(0).Add(around))
	unsure := around + within
	if off.Abs() <= most+unsure {
		return "", false
	}
	way := "ahead"
	if off < 0 {
		way = "behind"
	}
	return fmt.Sprintf("it is %v %s, give or take %v", off.Abs().Round(100*time.Millisecond), way, unsure.Round(time.Millisecond)), true
}

// Date is the time of day that a server's answer carries; zero: it carries none.
func Date(h http.Header) time.Time {
	t, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Time{}
	}
	return t
}

// fetch gets one document and tells when.
func fetch(ctx context.Context, client *http.Client, url string, header http.Header) (res *http.Response, sent, answered time.Time, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, sent, answered, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	sent = time.Now()
	res, err = client.Do(req)
	return res, sent, time.Now(), err
}
