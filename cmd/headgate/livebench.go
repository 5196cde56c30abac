package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"headgate/config"
	"headgate/console/now"
	"headgate/journal"
	"headgate/simengine/vllmapi"
)

// What the live benchmarks have in common: a simulated engine and a whole gateway
// in this process, over HTTP, and the record of what happened.

// startBenchEngine serves a simulated engine until its close is called. The engine
// outlives ctx: the gateway would else wait for it. around may change what it serves.
func startBenchEngine(ctx context.Context, cfg vllmapi.Config, around func(*vllmapi.Server, http.Handler) http.Handler) (server *vllmapi.Server, at net.Addr, closeEngine func(), err error) {
	if server, err = vllmapi.New(cfg); err != nil {
		return nil, nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, fmt.Errorf("engine: %w", err)
	}
	h := server.Handler()
	if around != nil {
		h = around(server, h)
	}
	web := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{}, 2)
	go func() { server.Run(ctx); stopped <- struct{}{} }()
	go func() { _ = web.Serve(l); stopped <- struct{}{} }()
	return server, l.Addr(), func() {
		cancel()
		_ = web.Close() // ends what is left of the streams
		<-stopped
		<-stopped
	}, nil
}

// benchGateway is a gateway that serves.
type benchGateway struct {
	clients, admin string // base URLs
	stop           func() error
}

// startBenchGateway serves by a built-in configuration and returns once the
// engine is known. It runs until its stop is called.
func startBenchGateway(ctx context.Context, name, yaml string) (*benchGateway, error) {
	cfg, problems := config.Parse(name+".yaml", []byte(yaml))
	if cfg == nil {
		return nil, fmt.Errorf("the built-in configuration is broken: %v", problems)
	}
	s, err := newServer(cfg, io.Discard)
	if err != nil {
		return nil, err
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- s.run(serving, func() {}) }()
	g := &benchGateway{
		clients: "http://" + s.clients.Addr().String(), admin: "http://" + s.admin.Addr().String(),
		stop: func() error { stopServing(); return <-served },
	}
	for s.gateway.Ready() != nil {
		if !pause(ctx, 10*time.Millisecond) {
			return nil, errors.Join(ctx.Err(), g.stop())
		}
	}
	return g, nil
}

// recalls returns the record of the gateway's recalls, newest first.
func (g *benchGateway) recalls(ctx context.Context) (all []now.Recall, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.admin+"/api/recalls", nil)
	if err != nil {
		return nil, err
	}
	body, err := fetch(req)
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(body, &all)
}

// completion is a request for a prompt of so many token ids and an answer of so
// many tokens. Ids are priced exactly: a gateway that has run for a while has
// learned what text comes to, a new one has not.
func completion(ctx context.Context, base, class string, prompt, output int, stream bool) (*http.Request, error) {
	return completionFrom(ctx, base, class, 0, prompt, output, stream)
}

// completionFrom is a completion whose prompt begins with two ids that stand for
// mark, so that different marks have no beginning in common.
func completionFrom(ctx context.Context, base, class string, mark, prompt, output int, stream bool) (*http.Request, error) {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":%t,"prompt":[%d,%d,%s7]}`, demoModel, output, stream, mark/100%100+1, mark%100+1, strings.Repeat("7,", prompt-3))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Headgate-Class", class)
	return req, nil
}

func fetch(req *http.Request) ([]byte, error) {
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered %s: %s", res.Status, answer)
	}
	return answer, err
}

func microseconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

// percentile is the smallest value that at least p of a hundred do not exceed,
// nil if there is none or it never came. It sorts what it is given.
func percentile(values []float64, p int) *float64 {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	v := values[(p*len(values)+99)/100-1]
	if math.IsInf(v, 1) {
		return nil
	}
	v = math.Round(v*1e6) / 1e6
	return &v
}

// shown is a figure in a table; what never came is a dash.
func shown(t *float64) string {
	if t == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *t)
}

// liveBar is a figure that is held against a limit.
type liveBar struct {
	Name     string   `json:"name"`
	Unit     string   `json:"unit"`
	Limit    float64  `json:"limit"`
	Measured *float64 `json:"measured"` // null if there is nothing to measure, or it never came
	Of       int      `json:"of"`       // values
	Met      bool     `json:"met"`
}

func newBar(name, unit string, limit float64, measured *float64, of int) liveBar {
	return liveBar{Name: name, Unit: unit, Limit: limit, Measured: measured, Of: of, Met: measured != nil && *measured <= limit}
}

func writeBars(w io.Writer, bars []liveBar) {
	for _, b := range bars {
		verdict := "not met"
		if b.Met {
			verdict = "met"
		}
		fmt.Fprintf(w, "%s: %s %s (of %d), at most %g %s: %s\n", b.Name, shown(b.Measured), b.Unit, b.Of, b.Limit, b.Unit, verdict)
	}
}

// readJournal returns what a gateway that has stopped wrote down.
func readJournal(file string) (all []journal.Event, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for r := journal.NewReader(f); ; {
		var e journal.Event
		switch err := r.Next(&e); {
		case err == nil:
			all = append(all, e)
		case errors.Is(err, io.EOF):
			return all, nil
		default:
			return nil, err
		}
	}
}

// inTemp calls do with a journal file in a folder that is removed afterwards.
func inTemp(do func(journal string) error) error {
	dir, err := os.MkdirTemp("", "headgate-bench-")
	if err != nil {
		return err
	}
	return errors.Join(do(filepath.Join(dir, "journal.jsonl")), os.RemoveAll(dir))
}

// streamed is when a stream was asked for, and when its first text and its end came.
type streamed struct {
	id                 string // the gateway's
	sent, first, ended time.Time
}

// stream sends a streaming request and reads it to its end.
func stream(req *http.Request) (s streamed, err error) {
	s.sent = time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer func() { _ = res.Body.Close() }()
	s.id = res.Header.Get("Headgate-Request-Id")
	if res.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(res.Body)
		return s, fmt.Errorf("answered %s: %s", res.Status, answer)
	}
	done := false
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case strings.Contains(data, `"error":`):
			return s, fmt.Errorf("answered %s", data)
		case data == "[DONE]":
			done = true
		case s.first.IsZero():
			s.first = time.Now()
		}
	}
	if s.ended = time.Now(); !done || s.first.IsZero() {
		return s, errors.New("the stream ended early")
	}
	return s, nil
}

// stepLog is what an engine's steps were, as seen by looking all the time.
type stepLog struct {
	mu    sync.Mutex
	steps []stepSeen
}

type stepSeen struct {
	begins, ends     time.Time
	prefill, decodes int
}

// watch looks until ctx ends. A step that is shorter than a few looks is missed.
func (l *stepLog) watch(ctx context.Context, engine *vllmapi.Server) {
	for pause(ctx, time.Millisecond) {
		asked := time.Now()
		step, left, ok := engine.Step()
		if !ok {
			continue
		}
		l.note(stepSeen{begins: asked, ends: asked.Add(left), prefill: step.Prefill, decodes: step.Decodes})
	}
}

// looksLate is what a busy machine delays a look by; a shorter pause between two
// steps is not seen as one.
const looksLate = 20 * time.Millisecond

// note adds a step unless it is the last one seen. Steps that follow each other
// begin where the last one ended.
func (l *stepLog) note(s stepSeen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.steps); n > 0 {
		last := l.steps[n-1]
		if s.ends.Sub(last.ends) < 2*time.Millisecond {
			return
		}
		if s.begins.Sub(last.ends) < looksLate {
			s.begins = last.ends
		}
	}
	l.steps = append(l.steps, s)
}

// after returns how long the step that ran at a moment went on, 0 if none did, and
// the steps that came then.
func (l *stepLog) after(at time.Time) (left time.Duration, then []stepSeen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.steps, at, func(s stepSeen, at time.Time) int { return s.ends.Compare(at) })
	if i < len(l.steps) && !l.steps[i].begins.After(at) {
		return l.steps[i].ends.Sub(at), slices.Clone(l.steps[i+1:])
	}
	return 0, slices.Clone(l.steps[i:])
}

// told is how long a step takes until its tokens are told: engines that schedule
// ahead tell them when the next step ends, if there is one.
func told(steps []stepSeen) time.Duration {
	if len(steps) == 0 {
		return 0
	}
	if len(steps) > 1 && steps[1].begins.Equal(steps[0].ends) {
		return steps[1].ends.Sub(steps[0].begins)
	}
	return steps[0].ends.Sub(steps[0].begins)
}
