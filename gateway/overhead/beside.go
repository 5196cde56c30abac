package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The workloads of the comparison with peers. A long answer has half a second, so that
// a round of all arms is short.
var (
	short = workload{name: "4 events", clients: 16, events: 4, pace: pace}
	long  = workload{name: "100 events", clients: 50, events: 100, pace: pace}
	calm  = workload{name: "32 connections", clients: 32, events: 2, rest: 40 * time.Millisecond}
)

// A queue is contended while many more clients want an answer than the upstream has
// places.
const (
	places  = 4
	wanting = 64
)

// older is another Headgate, to tell what a change of it brings.
const older = "before"

// queue is the workload of a queue. direct has as many clients as there are places:
// what it takes a client to see the end and to ask again.
func queue(arm string) *workload {
	w := &workload{name: "queue", clients: wanting, events: 2, pace: 2 * pace, queued: true}
	if arm == direct {
		w.clients = places
	}
	return w
}

// beside is the arms of the comparison.
type beside struct {
	*bench
	queues map[string]*process // arms that queue, with few places
	names  []string            // of all arms, direct first
	parses []string            // peers that read bodies
	late   map[string]bool     // arms that did not end a request within mostPatient
	sink   *process            // takes what Headgate exports
}

func startBeside(o *options, r *report) (_ *beside, err error) {
	b := &beside{bench: &bench{arms: map[string]*process{}}, queues: map[string]*process{}, late: map[string]bool{}, names: []string{direct}}
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
	if b.sink, err = startRole(roleCollector); err != nil {
		return nil, err
	}
	sso, err := startIssuer()
	if err != nil {
		return nil, err
	}
	// Two of each arm that can queue: one with room for all, one with few places.
	both := func(name string, queues bool, start func(s setting) (*process, error)) error {
		for _, slots := range []int{2*o.streaming + long.clients, places} {
			if slots == places && !queues {
				continue
			}
			s := setting{Upstream: b.up.Listen, Collector: b.sink.Listen, Issuer: sso, Slots: slots, Depth: 2 * wanting}
			if s.Dir, err = os.MkdirTemp(b.dir, name); err != nil {
				return err
			}
			p, err := start(s)
			if err != nil {
				return err
			}
			if slots == places {
				b.queues[name] = p
			} else {
				b.arms[name] = p
			}
		}
		b.names = append(b.names, name)
		return nil
	}
	err = both(proxy, true, func(s setting) (*process, error) {
		most := "0"
		if s.Slots == places {
			most = fmt.Sprint(places)
		}
		return startRole(roleProxy, s.Upstream, most)
	})
	if err != nil {
		return nil, err
	}
	for i := range peers {
		p := &peers[i]
		if len(o.only) > 0 && !slices.Contains(o.only, p.name) {
			continue
		}
		err := both(p.name, p.queues, func(s setting) (*process, error) { return startPeer(p, o.peers, s) })
		if err != nil {
			// The others are compared all the same.
			if one := b.arms[p.name]; one != nil {
				one.stop()
				delete(b.arms, p.name)
			}
			r.Notes = append(r.Notes, fmt.Sprintf("%s is not measured: %v", p.name, err))
			continue
		}
		r.Notes = append(r.Notes, fmt.Sprintf("%s: %s", p.name, versionOf(p, o.peers)))
		if !p.queues {
			r.Notes = append(r.Notes, p.name+" has no queue for what is beyond the upstream's places, so there is nothing to measure of it")
		}
		if p.parses {
			b.parses = append(b.parses, p.name)
		}
	}
	if o.before != "" {
		if err := both(older, true, func(s setting) (*process, error) { return startHeadgate(o.before, s) }); err != nil {
			return nil, err
		}
	}
	return b, both(headgate, true, func(s setting) (*process, error) { return startHeadgate(o.headgate, s) })
}

func (b *beside) stop() {
	for _, p := range b.queues {
		p.stop()
	}
	b.bench.stop()
	if b.sink != nil {
		b.sink.stop()
	}
}

// turn is the arms in the order of a repetition: another one first each time.
func (b *beside) turn(n int) []string {
	n %= len(b.names)
	return append(slices.Clone(b.names[n:]), b.names[:n]...)
}

func measurePeers(o *options, out io.Writer) (*report, error) {
	if o.reps < 1 || o.samples < 1 {
		return nil, errors.New("reps and samples must be at least 1")
	}
	if o.streaming < 1 || uint64(o.streaming) > (setting{}).Connections() {
		return nil, fmt.Errorf("streaming %d: allowed are 1 to %d, by the limit of open files (ulimit -n)", o.streaming, (setting{}).Connections())
	}
	r := &report{Machine: machine()}
	var err error
	if o.peers, err = filepath.Abs(o.peers); err != nil { // they run in folders of their own
		return nil, err
	}
	b, err := startBeside(o, r)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	// First, while no heap has room from what was before.
	for _, arm := range b.names[1:] {
		if err := b.memory(r, arm, o.streaming); err != nil {
			return nil, fmt.Errorf("memory, %s: %w", arm, err)
		}
	}
	// Connections, pools, heaps and compiled code get the size that they keep.
	for _, w := range []*workload{&long, &calm} {
		for _, arm := range b.turn(0) {
			if _, err := w.run(b.target(arm), o.each/2); err != nil {
				return nil, err
			}
		}
	}
	for rep := range o.reps {
		for _, w := range []*workload{&short, &long, &calm} {
			for _, arm := range b.turn(rep) {
				if err := b.workload(r, w, arm, o.each); err != nil {
					return nil, err
				}
			}
		}
		r.split(&short, &long, b.names[1:])
		for _, name := range []string{calm50, calm99} {
			for _, arm := range b.names[1:] {
				r.add(name, arm, "ms", r.last(total(name), arm)-r.last(total(name), direct))
			}
		}
		if err := b.single(r, o.samples, rep); err != nil {
			return nil, err
		}
		if err := b.cancels(r, max(o.samples/20, 1), rep); err != nil {
			return nil, err
		}
		for _, arm := range b.turn(rep) {
			if err := b.contended(r, arm, o.each); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(out, "repetition %d of %d\n", rep+1, o.reps)
	}
	for _, arm := range b.names {
		if b.late[arm] {
			r.Notes = append(r.Notes, fmt.Sprintf("%s had not ended the upstream's request %v after its client was gone: such a time counts as %v", arm, mostPatient, mostPatient))
		}
	}
	r.peerBars(b.names, b.parses)
	if o.profile != "" {
		err = b.profile(o, out)
	}
	return r, err
}

// The figures of the comparison.
const (
	one50        = "1 connection: added latency p50"
	one99        = "1 connection: added latency p99"
	oneFirst     = "1 connection: added first byte p50"
	oneFirst99   = "1 connection: added first byte p99"
	calm50       = "32 connections: added latency p50"
	calm99       = "32 connections: added latency p99"
	jitter50     = "100 events: jitter p50"
	jitter99     = "100 events: jitter p99"
	cancelSilent = "cancel before the first byte p50"
	cancelAmid   = "cancel amid events p50"
	queue50      = "queue: release to next arrival p50"
	queue99      = "queue: release to next arrival p99"
	queueCPU     = "queue: CPU a request"
	memoryHeld   = "memory of a stream"
)

// workload runs one through an arm.
func (b *beside) workload(r *report, w *workload, arm string, each time.Duration) error {
	p := b.arms[arm]
	var before, after time.Duration
	var err error
	if p != nil {
		if before, err = p.spent(); err != nil {
			return err
		}
	}
	got, err := w.run(b.target(arm), each)
	if err != nil {
		return fmt.Errorf("%s: %w", arm, err)
	}
	if p != nil {
		if after, err = p.spent(); err != nil {
			return err
		}
		r.add(w.cpu(), arm, "us", float64((after-before).Nanoseconds())/1000/float64(got.requests))
	}
	if w.pace > 0 {
		if w.events > short.events {
			// The upstream is late itself at times: the direct arm shows by how much.
			for i, gap := range got.gaps {
				got.gaps[i] = max(gap-ms(w.pace), ms(w.pace)-gap)
			}
			r.add(jitter50, arm, "ms", quantile(got.gaps, 50))
			r.add(jitter99, arm, "ms", quantile(got.gaps, 99))
			r.add(w.name+": event delay p50", arm, "ms", quantile(got.delays, 50))
		}
		return nil
	}
	r.add(total(calm50), arm, "ms", quantile(got.whole, 50))
	r.add(total(calm99), arm, "ms", quantile(got.whole, 99))
	return nil
}

// total is the name of a latency as it was measured, of which the added one is what is
// more than the direct arm's.
func total(added string) string { return strings.Replace(added, "added ", "", 1) }

// split tells the last repetition's cost of a request and that of an event apart.
func (r *report) split(few, many *workload, arms []string) {
	for _, arm := range arms {
		a, b := r.last(few.cpu(), arm), r.last(many.cpu(), arm)
		event := (b - a) / float64(many.events-few.events)
		r.add(cpuEvent, arm, "us", event)
		r.add(cpuRequest, arm, "us", a-event*float64(few.events))
	}
}

// single sends one request at a time, each through all arms, and compares each with the
// direct one beside it.
func (b *beside) single(r *report, samples, rep int) error {
	a := ask{events: 2}
	text := a.body()
	conns := map[string]*stream{}
	for _, arm := range b.names {
		s, err := b.target(arm).dial()
		if err != nil {
			return err
		}
		defer s.close()
		conns[arm] = s
	}
	first, whole := map[string][]float64{}, map[string][]float64{}
	for i := range samples {
		for _, arm := range b.turn(i + rep) {
			_ = conns[arm].conn.SetDeadline(time.Now().Add(stuck))
			f, w, err := conns[arm].once(text, a)
			if err != nil {
				return fmt.Errorf("one connection, %s: %w", arm, err)
			}
			first[arm], whole[arm] = append(first[arm], ms(f)), append(whole[arm], ms(w))
		}
	}
	for _, arm := range b.names[1:] {
		for _, m := range []struct {
			p50, p99 string
			all      map[string][]float64
		}{{one50, one99, whole}, {oneFirst, oneFirst99, first}} {
			more := make([]float64, samples)
			for i, v := range m.all[arm] {
				more[i] = v - m.all[direct][i]
			}
			r.add(m.p50, arm, "ms", quantile(more, 50))
			r.add(m.p99, arm, "ms", quantile(slices.Clone(m.all[arm]), 99)-quantile(slices.Clone(m.all[direct]), 99))
		}
	}
	return nil
}

// cancels measures how soon the upstream's request ends when the client has gone.
func (b *beside) cancels(r *report, samples, rep int) error {
	for _, kind := range []struct {
		name   string
		silent bool
	}{{cancelSilent, true}, {cancelAmid, false}} {
		took := map[string][]float64{}
		missed := map[string]bool{}
		for i := range samples {
			for _, arm := range b.turn(i + rep) {
				d, late := mostPatient, true
				if !missed[arm] {
					var err error
					if d, late, err = b.cancelTime(arm, fmt.Sprintf("cancel-%s-%d-%d-%t", arm, rep, i, kind.silent), kind.silent); err != nil {
						return fmt.Errorf("%s, %s: %w", kind.name, arm, err)
					}
				}
				if late {
					missed[arm], b.late[arm] = true, true
				}
				took[arm] = append(took[arm], ms(d))
			}
		}
		for _, arm := range b.names {
			r.add(kind.name, arm, "ms", quantile(took[arm], 50))
		}
	}
	return nil
}

// contended measures an arm whose queue is never empty.
func (b *beside) contended(r *report, arm string, each time.Duration) error {
	p := b.queues[arm]
	to := target{addr: b.up.Listen}
	if p != nil {
		to = p.target()
	} else if arm != direct {
		return nil
	}
	if _, err := b.gaps(); err != nil {
		return err
	}
	var before, after time.Duration
	var err error
	if p != nil {
		if before, err = p.spent(); err != nil {
			return err
		}
	}
	got, err := queue(arm).run(to, each)
	if err != nil {
		return fmt.Errorf("queue, %s: %w", arm, err)
	}
	gaps, err := b.gaps()
	if err != nil {
		return err
	}
	if p != nil {
		if after, err = p.spent(); err != nil {
			return err
		}
		r.add(queueCPU, arm, "us", float64((after-before).Nanoseconds())/1000/float64(got.requests))
	}
	r.add(queue50, arm, "ms", quantile(gaps, 50))
	r.add(queue99, arm, "ms", quantile(gaps, 99))
	return nil
}

// gaps are the upstream's, from the release of a place to the next request's arrival, ms,
// since it was last asked.
func (b *beside) gaps() (all []float64, err error) {
	text, err := fetch("http://" + b.up.Listen + "/bench/gaps")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, err
}

// memory measures what many streams that get an event a second hold.
func (b *beside) memory(r *report, arm string, streaming int) error {
	p := b.arms[arm]
	before, err := p.held()
	if err != nil {
		return err
	}
	c := new(crowd)
	defer c.leave()
	if err := c.join(b.target(arm), ask{events: 600, pace: time.Second}, streaming, time.Second); err != nil {
		return err
	}
	all := func() (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return int(c.begun.Load()) == streaming, c.failed
	}
	if err := until("every stream has an event", all); err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	if _, err := c.take(); err != nil {
		return err
	}
	held, err := p.held()
	if err != nil {
		return err
	}
	r.add(memoryHeld, arm, "KiB", (held-before)/1024/float64(streaming))
	return nil
}

// peerBars judges what is promised.
func (r *report) peerBars(arms, parses []string) {
	r.hold("a request's CPU, beside the bare proxy's + 80 us", "us", r.median(cpuRequest, proxy)+perRequest, r.median(cpuRequest, headgate))
	r.hold("an event's CPU, beside the bare proxy's + 2 us", "us", r.median(cpuEvent, proxy)+perEvent, r.median(cpuEvent, headgate))
	r.hold("latency p50 at 1 connection, beside the bare proxy's + 80 us", "ms", r.median(one50, proxy)+perRequest/1000, r.median(one50, headgate))
	for _, peer := range parses {
		for _, f := range []struct{ name, unit string }{
			{cpuRequest, "us"}, {cpuEvent, "us"}, {one50, "ms"}, {one99, "ms"}, {calm50, "ms"}, {calm99, "ms"},
			{oneFirst, "ms"}, {jitter99, "ms"}, {memoryHeld, "KiB"},
		} {
			r.hold(f.name+", beside "+peer, f.unit, r.median(f.name, peer), r.median(f.name, headgate))
		}
	}
	for _, name := range []string{cancelSilent, cancelAmid} {
		best, of := 0.0, ""
		for _, arm := range arms {
			if v := r.median(name, arm); arm != direct && arm != headgate && arm != older && (of == "" || v < best) {
				best, of = v, arm
			}
		}
		r.hold(name+", beside the first of the others ("+of+")", "ms", best, r.median(name, headgate))
	}
}

// writeArms writes the figures as a table with a column an arm: the median, and the
// least and the largest below it.
func (r *report) writeArms(w io.Writer) {
	var names []string
	arms := []string{headgate, proxy, direct}
	for _, f := range r.Figures {
		if !slices.Contains(arms, f.Arm) {
			arms = append(arms, f.Arm)
		}
		if !slices.Contains(names, f.Name) {
			names = append(names, f.Name)
		}
	}
	fmt.Fprintln(w, r.Machine)
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	line := func(first string, cell func(arm string) string) {
		fmt.Fprintf(w, "%-40s", first)
		for _, arm := range arms {
			fmt.Fprintf(w, " %17s", cell(arm))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	line("medians, and the range below", func(arm string) string { return arm })
	for _, name := range names {
		find := func(arm string) *figure {
			at := slices.IndexFunc(r.Figures, func(f figure) bool { return f.Name == name && f.Arm == arm })
			if at < 0 {
				return &figure{}
			}
			return &r.Figures[at]
		}
		unit, ranges := "", false
		for _, arm := range arms {
			f := find(arm)
			unit, ranges = cmp.Or(unit, f.Unit), ranges || len(f.All) > 1
		}
		line(name+", "+unit, func(arm string) string {
			if f := find(arm); len(f.All) > 0 {
				return digits(f.Median)
			}
			return "-"
		})
		if ranges {
			line("", func(arm string) string {
				if f := find(arm); len(f.All) > 1 {
					return "(" + digits(f.Min) + " to " + digits(f.Max) + ")"
				}
				return ""
			})
		}
	}
}

// digits is a figure of a table.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// installed is where tools/peers.sh puts what is no Debian package.
var installed = filepath.Join(".cache", "peers")
