package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// arms are the ways to the upstream.
const (
	direct   = "direct"
	proxy    = "proxy"
	headgate = "headgate"
)

// The limits of what Headgate may cost.
const (
	moreThanProxy = 1.3  // times the proxy's CPU, or
	perRequest    = 80.0 // us more a request
	perEvent      = 2.0  // and us more an event, whichever is larger
	firstByte     = 0.2  // ms more
	sameGap       = 0.05 // part of the pace by which gaps may differ and be called unchanged
	pace          = 5 * time.Millisecond
)

var (
	few  = workload{name: "few events", clients: 16, events: 4, pace: pace}
	many = workload{name: "many events", clients: 50, events: 200, pace: pace}
	// What the machine has: events lie ready, clients wait for nothing.
	burst = workload{name: "burst", clients: 16, events: 16}
)

// bench is the arms, running.
type bench struct {
	dir  string
	up   *process
	arms map[string]*process // not the direct one
}

func startBench(o *options, slots, depth int) (_ *bench, err error) {
	b := &bench{arms: map[string]*process{}}
	defer func() {
		if err != nil {
			b.stop()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "overhead"); err != nil {
		return nil, err
	}
	if b.up, err = startRole(roleUpstream); err != nil {
		return nil, err
	}
	p, err := startRole(roleProxy, b.up.Listen, "0")
	if err != nil {
		return nil, err
	}
	b.arms[proxy] = p
	if p, err = startHeadgate(o.headgate, setting{Dir: b.dir, Upstream: b.up.Listen, Slots: slots, Depth: depth}); err != nil {
		return nil, err
	}
	b.arms[headgate] = p
	return b, nil
}

func (b *bench) stop() {
	for _, p := range b.arms {
		p.stop()
	}
	if b.up != nil {
		b.up.stop()
	}
	_ = os.RemoveAll(b.dir)
}

func (b *bench) target(arm string) target {
	if p := b.arms[arm]; p != nil {
		return p.target()
	}
	return target{addr: b.up.Listen}
}

// machine tells where the figures come from.
func machine() string {
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%s %s/%s, %d processors, load before %.14s", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), load)
}

// rotated is the arms in the order of a repetition.
func rotated(rep int) []string {
	all := []string{direct, proxy, headgate}
	return append(all[rep%3:], all[:rep%3]...)
}

func measureCost(o *options, out io.Writer) (*report, error) {
	if o.reps < 1 || o.samples < 1 {
		return nil, errors.New("reps and samples must be at least 1")
	}
	r := &report{Machine: machine()}
	b, err := startBench(o, 4*many.clients, 256)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	// Connections, pools and heaps get the size that they keep.
	for _, arm := range rotated(0) {
		if _, err := many.run(b.target(arm), o.each/4); err != nil {
			return nil, err
		}
	}
	for rep := range o.reps {
		for _, w := range []*workload{&few, &many, &burst} {
			for _, arm := range rotated(rep) {
				if err := b.measure(r, w, arm, o.each); err != nil {
					return nil, err
				}
			}
		}
		r.fit()
		if err := b.firstBytes(r, o.samples/o.reps, rep); err != nil {
			return nil, err
		}
		fmt.Fprintf(out, "repetition %d of %d\n", rep+1, o.reps)
	}
	r.costBars()
	if o.profile != "" {
		err = b.profile(o, out)
	}
	return r, err
}

// measure runs one workload through one arm.
func (b *bench) measure(r *report, w *workload, arm string, each time.Duration) error {
	p := b.arms[arm]
	var before, after usage
	var err error
	if p != nil {
		if before, err = p.usage(false); err != nil {
			return err
		}
	}
	got, err := w.run(b.target(arm), each)
	if err != nil {
		return fmt.Errorf("%s: %w", arm, err)
	}
	n := float64(got.requests)
	if p != nil {
		if after, err = p.usage(false); err != nil {
			return err
		}
		r.add(w.cpu(), arm, "us", float64((after.cpu-before.cpu).Microseconds())/n)
		r.add(w.allocations(), arm, "", (after.allocations-before.allocations)/n)
	}
	r.add(w.name+": requests a second", arm, "1/s", n/got.wall.Seconds())
	if w.pace > 0 {
		r.add(w.gap(50), arm, "ms", quantile(got.gaps, 50))
		r.add(w.gap(99), arm, "ms", quantile(got.gaps, 99))
		r.add(w.name+": event delay p50", arm, "ms", quantile(got.delays, 50))
		r.add(w.name+": event delay p99", arm, "ms", quantile(got.delays, 99))
	}
	return nil
}

func (w *workload) cpu() string         { return w.name + ": CPU a request" }
func (w *workload) allocations() string { return w.name + ": allocations a request" }
func (w *workload) gap(percent int) string {
	return fmt.Sprintf("%s: gap p%d", w.name, percent)
}

const (
	cpuRequest  = "fit: CPU a request"
	cpuEvent    = "fit: CPU an event"
	madeRequest = "fit: allocations a request"
	madeEvent   = "fit: allocations an event"
)

// fit splits the last repetition's cost of a request into what it costs by
// itself and what each of its events does: a line through the two workloads.
func (r *report) fit() {
	for _, arm := range []string{proxy, headgate} {
		for _, s := range []struct {
			of             func(*workload) string
			request, event string
			unit           string
		}{{(*workload).cpu, cpuRequest, cpuEvent, "us"}, {(*workload).allocations, madeRequest, madeEvent, ""}} {
			a, b := r.last(s.of(&few), arm), r.last(s.of(&many), arm)
			event := (b - a) / float64(many.events-few.events)
			r.add(s.event, arm, s.unit, event)
			r.add(s.request, arm, s.unit, a-event*float64(few.events))
		}
	}
}

func (r *report) last(name, arm string) float64 {
	for _, f := range r.Figures {
		if f.Name == name && f.Arm == arm {
			return f.All[len(f.All)-1]
		}
	}
	return 0
}

// firstBytes sends one request at a time, each in all arms, so that what the
// machine does meanwhile meets all of them.
func (b *bench) firstBytes(r *report, samples, rep int) error {
	const events = 2
	a := ask{events: events}
	text := a.body()
	conns := map[string]*stream{}
	for _, arm := range rotated(0) {
		s, err := b.target(arm).dial()
		if err != nil {
			return err
		}
		defer s.close()
		conns[arm] = s
	}
	took := map[string][]float64{}
	var overDirect, overProxy []float64
	for i := range max(samples, 1) {
		now := map[string]float64{}
		for _, arm := range rotated(i + rep) {
			d, _, err := conns[arm].once(text, a)
			if err != nil {
				return fmt.Errorf("first byte, %s: %w", arm, err)
			}
			now[arm] = ms(d)
			took[arm] = append(took[arm], ms(d))
		}
		overDirect = append(overDirect, now[headgate]-now[direct])
		overProxy = append(overProxy, now[headgate]-now[proxy])
	}
	for _, arm := range rotated(0) {
		r.add("first byte p50", arm, "ms", quantile(took[arm], 50))
		r.add("first byte p99", arm, "ms", quantile(took[arm], 99))
	}
	r.add(firstOverDirect, headgate, "ms", quantile(overDirect, 50))
	r.add(firstOverProxy, headgate, "ms", quantile(overProxy, 50))
	return nil
}

const (
	firstOverDirect = "first byte, more than direct (paired)"
	firstOverProxy  = "first byte, more than the proxy (paired)"
)

func (r *report) costBars() {
	cpu := func(name string, events, requests float64) {
		theirs := r.median(name, proxy)
		r.hold(name, "us", max(moreThanProxy*theirs, theirs+perRequest*requests+perEvent*events), r.median(name, headgate))
	}
	cpu(few.cpu(), float64(few.events), 1)
	cpu(many.cpu(), float64(many.events), 1)
	cpu(cpuRequest, 0, 1)
	cpu(cpuEvent, 1, 0)
	r.hold(firstOverDirect, "ms", firstByte, r.median(firstOverDirect, headgate))
	r.hold(firstOverProxy, "ms", firstByte, r.median(firstOverProxy, headgate))
	for _, percent := range []int{50, 99} {
		name := many.gap(percent)
		r.hold(name, "ms", max(r.median(name, direct), r.median(name, proxy))+sameGap*ms(pace), r.median(name, headgate))
	}
}

// profile runs the workloads again and takes profiles of both processes: what
// Headgate does more shows beside what any proxy does.
func (b *bench) profile(o *options, out io.Writer) error {
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return err
	}
	for _, arm := range []string{proxy, headgate} {
		take := func(name, path string) error {
			doc, err := fetch("http://" + b.arms[arm].Admin + "/debug/pprof/" + path)
			if err == nil {
				err = os.WriteFile(filepath.Join(o.profile, arm+"-"+strings.ReplaceAll(name, " ", "-")+".pprof"), doc, 0o644)
			}
			return err
		}
		for _, w := range []*workload{&few, &many, &burst} {
			took := make(chan error, 1)
			seconds := max(int(o.each/time.Second), 1)
			go func() { took <- take(w.name, fmt.Sprintf("profile?seconds=%d", seconds)) }()
			got, err := w.run(b.target(arm), time.Duration(seconds)*time.Second)
			if err := errors.Join(err, <-took); err != nil {
				return fmt.Errorf("profile of %s, %s: %w", arm, w.name, err)
			}
			fmt.Fprintf(out, "profiled: %s, %s, %d requests\n", arm, w.name, got.requests)
		}
		if err := take("allocations", "allocs"); err != nil {
			return err
		}
	}
	return nil
}
