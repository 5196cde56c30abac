package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// Lab is what the admin listener has for trying things out: reports of past runs, and a
// simulation of a pool's traffic under another policy.
type Lab struct {
	// Reports is the folder of reports; "": there is none.
	Reports func() string
	// Present tells what there is to simulate with.
	Present func() *WhatIfOffer
	// Simulate runs a trace under a pool's present policy and under another. An error is told
	// to the operator; ErrWhatIf is of what he asked for.
	Simulate func(context.Context, *WhatIf) (*WhatIfView, error)

	running sync.Mutex

	listing sync.Mutex
	listed  map[string]ReportView // what was listed last: a report that is as it was is not read again
}

// ErrWhatIf is a simulation that can't be run as it was asked for.
var ErrWhatIf = errors.New("not simulated")

// ReportView is one file on /api/lab/reports.
type ReportView struct {
	File     string    `json:"file"` // below the folder, with slashes
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
	// Of a report of headgate bench or headgate sim: what it is of, and, where there is one,
	// its verdict.
	Kind    string `json:"kind,omitempty"` // bench or sim
	Title   string `json:"title,omitempty"`
	Verdict string `json:"verdict,omitempty"`
}

// ReportsView is /api/lab/reports, the newest first.
type ReportsView struct {
	Configured bool         `json:"configured"`
	Reports    []ReportView `json:"reports"`
	LeftOut    bool         `json:"left_out"` // there are more
}

// Bounds of what is shown of a folder.
const (
	maxReports     = 500     // files that are listed
	maxReportLook  = 20_000  // entries that are looked at
	maxReportDeep  = 4       // folders in folders
	maxReportBytes = 8 << 20 // of one that is shown
	maxReportPeek  = 2 << 20 // of one that is read for the list
)

// reportTypes are the files that are shown, by the ends of their names. A page has to run
// nothing and load nothing, whatever is in it; the browser is told so too.
var reportTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".json": "application/json", ".md": "text/plain; charset=utf-8", ".txt": "text/plain; charset=utf-8",
}

const sandbox = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"

func (l *Lab) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/lab/reports", l.reports)
	mux.HandleFunc("GET /api/lab/report", l.report)
	mux.HandleFunc("GET /api/lab/whatif", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, l.Present()) })
	mux.HandleFunc("POST /api/lab/whatif", l.whatIf)
}

// open opens the folder, out of which no name and no link leads.
func (l *Lab) open() (*os.Root, error) {
	dir := l.Reports()
	if dir == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("console.reports: %w", err)
	}
	return root, nil
}

func (l *Lab) reports(w http.ResponseWriter, r *http.Request) {
	v, err := l.list(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, v)
}

// list reads the folder, for one at a time.
func (l *Lab) list(ctx context.Context) (*ReportsView, error) {
	l.listing.Lock()
	defer l.listing.Unlock()
	v := ReportsView{Reports: []ReportView{}}
	root, err := l.open()
	if err != nil || root == nil {
		return &v, err
	}
	defer func() { _ = root.Close() }() // it was only read
	v.Configured = true
	looked := 0
	_ = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		looked++
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case looked > maxReportLook:
			v.LeftOut = true
			return fs.SkipAll
		case err != nil || name == ".": // what can't be read is not there
			return nil
		case d.IsDir():
			if strings.HasPrefix(d.Name(), ".") || strings.Count(name, "/") >= maxReportDeep {
				return fs.SkipDir
			}
			return nil
		case reportTypes[path.Ext(name)] == "" || !d.Type().IsRegular():
			return nil
		}
		if i, err := d.Info(); err == nil {
			v.Reports = append(v.Reports, ReportView{File: name, Bytes: i.Size(), Modified: i.ModTime().UTC()})
		}
		return nil
	})
	slices.SortFunc(v.Reports, func(a, b ReportView) int {
		return cmp.Or(b.Modified.Compare(a.Modified), cmp.Compare(a.File, b.File))
	})
	if len(v.Reports) > maxReports {
		v.Reports, v.LeftOut = v.Reports[:maxReports], true
	}
	known := make(map[string]ReportView, len(v.Reports))
	for i := range v.Reports {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r := &v.Reports[i]
		if was, ok := l.listed[r.File]; ok && was.Bytes == r.Bytes && was.Modified.Equal(r.Modified) {
			*r = was
		} else if !r.describe(root) {
			continue // it is tried again
		}
		known[r.File] = *r
	}
	l.listed = known
	return &v, nil
}

// benchSchema is how report.json of headgate bench begins to call itself.
const benchSchema = "headgate.bench.report/"

// describe says what a report is of, as far as it is known. It returns false if it could not
// be read.
func (v *ReportView) describe(root *os.Root) bool {
	if path.Ext(v.File) != ".json" || v.Bytes > maxReportPeek {
		return true
	}
	b, err := root.ReadFile(v.File)
	if err != nil {
		return false
	}
	var r struct {
		Schema  string
		Verdict string
		Plan    struct{ Name string }
		Profile string
		Seeds   []uint32
		Arms    []struct{ Name string }
	}
	if json.Unmarshal(b, &r) != nil {
		return true
	}
	switch {
	case strings.HasPrefix(r.Schema, benchSchema):
		v.Kind, v.Title, v.Verdict = "bench", clean(r.Plan.Name, maxReason), clean(r.Verdict, maxActor)
	case r.Profile != "" && len(r.Arms) > 0:
		v.Kind, v.Title = "sim", clean(fmt.Sprintf("%s, %d seeds, %d arms", r.Profile, len(r.Seeds), len(r.Arms)), maxReason)
	}
	return true
}

// report sends one file.
func (l *Lab) report(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, format string, args ...any) { http.Error(w, fmt.Sprintf(format, args...), status) }
	name := r.URL.Query().Get("file")
	kind := reportTypes[path.Ext(name)]
	if !fs.ValidPath(name) || kind == "" {
		fail(http.StatusBadRequest, "file is %.100q, must be one of /api/lab/reports", name)
		return
	}
	root, err := l.open()
	if err != nil {
		fail(http.StatusInternalServerError, "%v", err)
		return
	}
	if root == nil {
		fail(http.StatusNotFound, "there is no folder of reports: set console.reports")
		return
	}
	defer func() { _ = root.Close() }() // it was only read
	// Before it is opened: what is no file may keep its reader waiting for ever.
	if i, err := root.Stat(name); err != nil || !i.Mode().IsRegular() {
		fail(http.StatusNotFound, "no report %.100q", name)
		return
	}
	f, err := root.Open(name)
	if err != nil {
		fail(http.StatusNotFound, "no report %.100q", name)
		return
	}
	defer func() { _ = f.Close() }()
	i, err := f.Stat()
	switch {
	case err != nil || !i.Mode().IsRegular():
		fail(http.StatusNotFound, "no report %.100q", name)
		return
	case i.Size() > maxReportBytes:
		fail(http.StatusRequestEntityTooLarge, "report %.100q has %d bytes, at most %d are shown: read it where it is", name, i.Size(), maxReportBytes)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", sandbox)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	_, _ = io.Copy(w, io.LimitReader(f, maxReportBytes)) // a reader that has gone needs no more
}

// WhatIfOffer is what there is to simulate with.
type WhatIfOffer struct {
	Pools    []WhatIfPool    `json:"pools"`
	Profiles []WhatIfProfile `json:"profiles"`
	MaxSeeds int             `json:"max_seeds"`
	LimitS   float64         `json:"limit_s"` // a simulation ends after so long
}

// WhatIfPool is a pool whose policy can be tried.
type WhatIfPool struct {
	Pool   string `json:"pool"`
	Policy string `json:"policy"` // in force, as a file of headgate sim --policy
	Engine string `json:"engine"` // whose slots and KV are simulated
	Slots  int64  `json:"slots"`
	KV     int64  `json:"kv_tokens"`
	// Not is why it can't be; "": it can.
	Not string `json:"not,omitempty"`
}

// WhatIfProfile is a workload that traces are drawn from.
type WhatIfProfile struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

// WhatIf is what is asked for.
type WhatIf struct {
	Pool    string  `json:"pool"`
	Profile string  `json:"profile"`
	Seeds   int     `json:"seeds"` // so many, from 1 on
	Speed   float64 `json:"speed"` // factor on every engine step's time
	Policy  string  `json:"policy"`
}

// WhatIfView is what came of it.
type WhatIfView struct {
	Pool    string       `json:"pool"`
	Profile string       `json:"profile"`
	Seeds   int          `json:"seeds"`
	Speed   float64      `json:"speed"`
	Skipped int          `json:"skipped"` // requests whose prompts the engine has no room for
	TookS   float64      `json:"took_s"`
	Present *WhatIfScore `json:"present"`
	Changed *WhatIfScore `json:"changed"`
}

// WhatIfScore is what a policy came to, all seeds together.
type WhatIfScore struct {
	Interactive  int            `json:"interactive"` // requests offered
	OnTime       int            `json:"on_time"`
	Return       int            `json:"return"` // of those, offered in the return
	ReturnOnTime int            `json:"return_on_time"`
	Batch        int            `json:"batch"`
	BatchDone    int            `json:"batch_done"`
	BatchTokens  int            `json:"batch_tokens"` // of those that were done before the trace's end
	MakespanS    float64        `json:"makespan_s"`
	Refused      map[string]int `json:"refused"` // by the cause
	Failed       int            `json:"failed"`
	Recalls      int            `json:"recalls"`
	Reclaims     int            `json:"reclaims"`
	Preemptions  int64          `json:"preemptions"`
	Recomputed   int64          `json:"recomputed_tokens"`
	PerSeed      []WhatIfSeed   `json:"per_seed"`
}

// WhatIfSeed is one trace.
type WhatIfSeed struct {
	Seed        uint32 `json:"seed"`
	Interactive int    `json:"interactive"`
	OnTime      int    `json:"on_time"`
	Batch       int    `json:"batch"`
	BatchDone   int    `json:"batch_done"`
}

const (
	maxWhatIf = 128 << 10 // of a request, in bytes
	// WhatIfTime is how long a simulation may take.
	WhatIfTime = 30 * time.Second
)

// whatIf simulates. It ends with the request: an operator who leaves needs no answer.
func (l *Lab) whatIf(w http.ResponseWriter, r *http.Request) {
	if !ownJSON(w, r) {
		return
	}
	fail := func(status int, format string, args ...any) { http.Error(w, fmt.Sprintf(format, args...), status) }
	var in WhatIf
	if err := object(http.MaxBytesReader(w, r.Body, maxWhatIf), &in); err != nil {
		fail(http.StatusBadRequest, "%v", err)
		return
	}
	// The body is here; what is read from now on is only whether the client leaves.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if !l.running.TryLock() {
		w.Header().Set("Retry-After", "5")
		fail(http.StatusTooManyRequests, "another simulation runs, and only one does at a time: try again")
		return
	}
	defer l.running.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), WhatIfTime)
	defer cancel()
	began := time.Now()
	v, err := l.Simulate(ctx, &in)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		fail(http.StatusServiceUnavailable, "the simulation did not end within %v: ask for fewer seeds or a shorter profile, or run headgate sim", WhatIfTime)
		return
	case errors.Is(err, ErrWhatIf):
		fail(http.StatusBadRequest, "%v", err)
		return
	case err != nil:
		fail(http.StatusInternalServerError, "%v", err)
		return
	}
	v.TookS = time.Since(began).Seconds()
	writeJSON(w, v)
}
