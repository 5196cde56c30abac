package gateway

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"headgate/journal"
)

// RecallView is one recall on /api/recalls. Fields with _s are seconds since it
// was opened, null for what has not come.
type RecallView struct {
	Seq        uint64    `json:"seq"`
	Pool       string    `json:"pool"`
	Class      string    `json:"class"`
	Request    string    `json:"request"`
	Opened     time.Time `json:"opened"`
	Granted    *float64  `json:"granted_s"`
	Admitted   *float64  `json:"admitted_s"`
	Dispatched *float64  `json:"dispatched_s"`
	// The engine began to run the request at Scheduled, or where it does not tell
	// between Scheduled and ScheduledUpper.
	Scheduled      *float64      `json:"scheduled_s"`
	ScheduledUpper *float64      `json:"scheduled_upper_s"`
	FirstToken     *float64      `json:"first_token_s"`
	Settled        *float64      `json:"settled_s"`
	Closed         *float64      `json:"closed_s"`
	Reclaims       []ReclaimView `json:"reclaims"`
	LeftOut        int           `json:"reclaims_left_out,omitempty"`
}

// ReclaimView is one loan that was ended for a recall.
type ReclaimView struct {
	Class     string   `json:"class"`
	Request   string   `json:"request"`
	Hold      uint64   `json:"hold"`
	Sent      *float64 `json:"sent_s"`
	Confirmed *float64 `json:"confirmed_s"`
}

func viewRecall(r *journal.Recall, start time.Time) RecallView {
	after := func(at int64) *float64 {
		if at == 0 {
			return nil
		}
		s := math.Round(float64(at-r.Opened)/1e3) / 1e6 // microseconds are what can be believed
		return &s
	}
	v := RecallView{
		Seq: r.Seq, Pool: r.Pool, Class: r.Class, Request: r.Request, Opened: start.Add(time.Duration(r.Opened)).UTC(),
		Granted: after(r.Granted), Admitted: after(r.Served), Dispatched: after(r.Dispatched),
		Scheduled: after(r.Scheduled), ScheduledUpper: after(r.ScheduledUpper), FirstToken: after(r.FirstToken), Settled: after(r.Settled), Closed: after(r.Closed),
		Reclaims: make([]ReclaimView, len(r.Reclaims)), LeftOut: r.LeftOut,
	}
	for i, c := range r.Reclaims {
		v.Reclaims[i] = ReclaimView{Class: c.Class, Request: c.Request, Hold: c.Hold, Sent: after(c.Sent), Confirmed: after(c.Confirmed)}
	}
	return v
}

// recalls answers with the newest recalls of all pools, newest first.
func (g *Gateway) recalls(w http.ResponseWriter, r *http.Request) {
	limit := journal.MaxRecalls
	if q := r.URL.Query(); q.Has("limit") {
		n, err := strconv.Atoi(q.Get("limit"))
		if err != nil || n < 1 || n > journal.MaxRecalls {
			http.Error(w, fmt.Sprintf("limit is %.40q, must be a whole number from 1 to %d", q.Get("limit"), journal.MaxRecalls), http.StatusBadRequest)
			return
		}
		limit = n
	}
	views := []RecallView{}
	for _, p := range g.live().Pools {
		for _, rc := range p.Recalls(limit) {
			views = append(views, viewRecall(&rc, p.Start()))
		}
	}
	slices.SortStableFunc(views, func(a, b RecallView) int { return b.Opened.Compare(a.Opened) })
	writeJSON(w, views[:min(limit, len(views))])
}
