package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The shape of a soak.
const (
	longest = 90               // events of an answer at most, one a second; a third of it at least
	patient = 10 * time.Second // for which nothing becomes less, so that it is not going to: idle connections last 4 s
	probing = 20               // clients that ask the upstream directly meanwhile
	windows = 30               // into which its time is divided, if each has a second
	settle  = 100
	// stable is by what factor the last third of the time may be worse than the first.
	stable = 1.5
	// slack is what a first byte may be later though, ms: less can't be told on a
	// machine that clients and upstream share.
	slack = 2.0
	// unended is how many goroutines may be more than at the start: those of
	// connections that the kernel has not told about yet, and of metrics.
	unended = 20
)

// soak is a run in progress.
type soak struct {
	o        *options
	up       *process
	gateways []*process
	end      time.Time

	mu     sync.Mutex
	window *window
	counts counts
	failed []string // the first of what is no answer
}

// counts are of the clients.
type counts struct {
	asked, answered, left int
	wrong                 int // refused, broken off, lost or doubled events, or another's
}

// window is what clients saw in a part of the time.
type window struct{ first, straight, delays []float64 }

// measureSoak has many clients each ask for one answer after another, of an event a
// second, and leave some of them in their middle. It is asked afterwards whether
// anything is left of it, and all the while whether it changes.
func measureSoak(o *options, out io.Writer) (*report, error) {
	if o.streams < 1 || o.duration < 3*time.Second || o.leave < 0 || o.leave > 1 {
		return nil, fmt.Errorf("streams %d, duration %v, leave %g: allowed are 1 stream or more, 3s or more, and a part from 0 to 1", o.streams, o.duration, o.leave)
	}
	r := &report{Machine: machine()}
	n, err := gatewaysFor(o.streams)
	if err != nil {
		return nil, err
	}
	if n > 1 {
		r.Notes = append(r.Notes, fmt.Sprintf("the limit of open files does not let one Headgate have %d streams, which take two files each: %d processes have %d each (ulimit -n of %d or more lets one have all)",
			o.streams, n, (o.streams+n-1)/n, 2*(o.streams+settle)+spareFiles))
	}
	dir, err := os.MkdirTemp("", "overhead")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := &soak{o: o, window: new(window)}
	if s.up, err = startRole(roleUpstream); err != nil {
		return nil, err
	}
	defer s.up.stop()
	collector, err := startRole(roleCollector)
	if err != nil {
		return nil, err
	}
	defer collector.stop()
	for i := range n {
		one := setting{Dir: filepath.Join(dir, strconv.Itoa(i)), Upstream: s.up.Listen, Collector: collector.Listen, Slots: o.streams/n + settle, Depth: o.streams}
		if err := os.Mkdir(one.Dir, 0o700); err != nil {
			return nil, err
		}
		p, err := startHeadgate(o.headgate, one)
		if err != nil {
			return nil, err
		}
		defer p.stop()
		s.gateways = append(s.gateways, p)
	}
	return r, s.run(r, out)
}

// gatewaysFor is how many processes it takes for so many streams.
func gatewaysFor(streams int) (int, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0, err
	}
	room := int(min(files.Max, 1<<20)) - spareFiles
	if need := streams + probing; room < need {
		return 0, fmt.Errorf("ulimit -n is %d: %d streams need %d for the clients alone; raise it, or have fewer streams", files.Max, streams, need+spareFiles)
	}
	return (2*(streams+settle) + room - 1) / room, nil
}

// state is what all gateways hold.
type state struct {
	usage
	goroutines, running float64
}

func (s *soak) state(settled bool) (all state, err error) {
	for _, p := range s.gateways {
		u, err := p.usage(settled)
		if err != nil {
			return all, err
		}
		g, err := p.series("go_goroutines", "")
		if err != nil {
			return all, err
		}
		held, err := p.series("headgate_class_used{", `resource="slots"`)
		if err != nil {
			return all, err
		}
		all.inUse, all.resident, all.cpu = all.inUse+u.inUse, all.resident+u.resident, all.cpu+u.cpu
		all.goroutines, all.running = all.goroutines+g, all.running+held
	}
	return all, nil
}

// series is the sum of a process's series whose names begin so and which have the label.
func (p *process) series(prefix, label string) (sum float64, err error) {
	body, err := fetch("http://" + p.Admin + "/metrics")
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, prefix) || !strings.Contains(line, label) {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		found = true
		sum += v
	}
	if !found {
		return 0, fmt.Errorf("metrics have no %s", prefix)
	}
	return sum, nil
}

func (s *soak) run(r *report, out io.Writer) error {
	// A small one before, so that pools and heaps have what they keep.
	var first sync.WaitGroup
	s.end = time.Now().Add(3 * time.Second)
	for i := range settle {
		first.Go(func() { s.client("settle", i, s.gateways[i%len(s.gateways)], 0) })
	}
	first.Wait()
	before, err := s.calmState(state{})
	if err != nil {
		return err
	}
	s.counts, s.window = counts{}, new(window)

	s.end = time.Now().Add(s.o.duration)
	ramp := min(30*time.Second, s.o.duration/10)
	start := time.Now()
	var clients, probes sync.WaitGroup
	for i := range s.o.streams {
		clients.Go(func() {
			time.Sleep(time.Until(start.Add(ramp * time.Duration(i) / time.Duration(s.o.streams))))
			s.client("soak", i, s.gateways[i%len(s.gateways)], s.o.leave)
		})
	}
	for i := range probing {
		probes.Go(func() {
			time.Sleep(time.Second * time.Duration(i) / probing)
			s.probe()
		})
	}
	var overs, uses []float64
	var peak state
	parts := min(windows, int(s.o.duration/time.Second))
	part := s.o.duration / time.Duration(parts)
	fmt.Fprintf(out, "%8s %10s %10s %10s %10s %10s %10s %8s\n", "minutes", "first p50", "p99, ms", "direct p99", "event p99", "in use MB", "goroutines", "running")
	for i := 1; i <= parts; i++ {
		time.Sleep(time.Until(start.Add(time.Duration(i) * part)))
		now, err := s.state(i == parts/2)
		if err != nil {
			return err
		}
		if i == parts/2 {
			peak = now // what is in use without garbage, as it is before and after
		}
		s.mu.Lock()
		w := s.window
		s.window = new(window)
		s.mu.Unlock()
		p50, p99, straight := quantile(w.first, 50), quantile(w.first, 99), quantile(w.straight, 99)
		fmt.Fprintf(out, "%8.1f %10.2f %10.2f %10.2f %10.2f %10.1f %10.0f %8.0f\n", time.Since(start).Minutes(), p50, p99, straight, quantile(w.delays, 99), now.inUse/(1<<20), now.goroutines, now.running)
		r.add("first byte p50", headgate, "ms", p50)
		r.add("first byte p99", headgate, "ms", p99)
		r.add("first byte p99", direct, "ms", straight)
		r.add("event delay p50", headgate, "ms", quantile(w.delays, 50))
		r.add("event delay p99", headgate, "ms", quantile(w.delays, 99))
		r.add("memory in use", headgate, "MB", now.inUse/(1<<20))
		r.add("memory resident", headgate, "MB", now.resident/(1<<20))
		r.add("goroutines", headgate, "", now.goroutines)
		r.add("answers under way", headgate, "", now.running)
		if len(w.first) > 0 && i > 1 { // in the first all come at once
			overs = append(overs, p99-straight)
			uses = append(uses, now.resident)
		}
	}
	clients.Wait()
	probes.Wait()
	after, err := s.calmState(before)
	if err != nil {
		return err
	}
	text, err := fetch("http://" + s.up.Listen + "/bench/tally")
	if err != nil {
		return err
	}
	var t tally
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	c := s.counts
	r.Notes = append(r.Notes, fmt.Sprintf("%d answers were asked for, %d came whole, %d were left by their clients", c.asked, c.answered, c.left))
	for _, f := range s.failed {
		r.Notes = append(r.Notes, "not as asked for: "+f)
	}
	r.soakBars(c, t, before, peak, after, overs, uses)
	return nil
}

// calmState is the state once nobody is there and it does not become less any more, or
// is no more than it was before.
func (s *soak) calmState(before state) (state, error) {
	var last state
	var since time.Time
	err := until("what clients have left is gone", func() (bool, error) {
		now, err := s.state(true)
		if err != nil {
			return false, err
		}
		if since.IsZero() || now.inUse < 0.99*last.inUse || now.goroutines < last.goroutines || now.running < last.running {
			since, last = time.Now(), now
		}
		return now.running == 0 && now.goroutines <= before.goroutines && now.inUse <= before.inUse || time.Since(since) > patient, nil
	})
	return last, err
}

func (r *report) soakBars(c counts, t tally, before, peak, after state, overs, uses []float64) {
	third := max(len(overs)/3, 1)
	middle := func(all []float64) float64 { return median(slices.Sorted(slices.Values(all))) }
	r.hold("answers lost, doubled, refused or mixed up", "", 0, float64(c.wrong))
	r.hold("answers that are neither whole nor left", "", 0, float64(c.asked-c.answered-c.left-c.wrong))
	r.hold("requests that the upstream got twice", "", 0, float64(t.Doubled))
	r.hold("requests that the upstream still runs", "", 0, float64(t.Running))
	r.hold("slots held when all are gone", "", 0, after.running)
	r.hold("goroutines when all are gone", "", before.goroutines+unended, after.goroutines)
	r.hold("memory left of what was more under load", "%", 100*leftOver, 100*(after.inUse-before.inUse)/max(peak.inUse-before.inUse, 1))
	if len(overs) >= 3 {
		early, late := middle(overs[:third]), middle(overs[len(overs)-third:])
		r.hold("first byte p99 over direct, last third", "ms", max(stable*early, early+slack), late)
		early, late = middle(uses[:third]), middle(uses[len(uses)-third:])
		r.hold("resident memory, last third", "MB", (1+leftOver)*early/(1<<20), late/(1<<20))
	}
}

// client asks for one answer after another until the end, and leaves some. What it has
// asked for before the end it takes to its own.
func (s *soak) client(kind string, number int, p *process, leave float64) {
	most := min(longest, max(int(s.o.duration/(4*time.Second)), 3))
	var conn *stream
	defer func() {
		if conn != nil {
			conn.close()
		}
	}()
	for n := 0; time.Now().Before(s.end); n++ {
		least := most / 3
		if n == 0 {
			least = 1 // so that answers end at all times
		}
		events := least + rand.IntN(most-least+1)
		a := ask{events: events, pace: time.Second, id: fmt.Sprintf("%s-%d-%d", kind, number, n)}
		last := -1
		if rand.Float64() < leave {
			last = rand.IntN(events)
		}
		if conn == nil {
			var err error
			if conn, err = (target{addr: p.Listen}).dial(); err != nil {
				s.wrong(a, fmt.Errorf("dial: %w", err))
				time.Sleep(time.Second)
				continue
			}
		}
		s.mu.Lock()
		s.counts.asked++
		s.mu.Unlock()
		_ = conn.conn.SetDeadline(time.Now().Add(time.Duration(events)*time.Second + stuck))
		start := time.Now()
		err := conn.send(a.body())
		if err == nil {
			err = conn.receive(a, func(e event) {
				switch {
				case e.n == 0:
					s.saw(func(w *window) { w.first = append(w.first, ms(e.at.Sub(start))) })
				case (number+e.n)%100 == 0:
					s.saw(func(w *window) { w.delays = append(w.delays, ms(e.at.Sub(e.sent))) })
				}
				if e.n == last {
					conn.close()
				}
			})
		}
		gone := last >= 0 && errors.Is(err, net.ErrClosed)
		s.mu.Lock()
		if err == nil { // also of one whose end was there already when its client left
			s.counts.answered++
		} else if gone {
			s.counts.left++
		}
		s.mu.Unlock()
		if err != nil && !gone {
			s.wrong(a, err)
		}
		if err != nil || last >= 0 {
			conn.close()
			conn = nil
		}
	}
}

func (s *soak) saw(note func(*window)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note(s.window)
}

// wrong counts what is no answer, and keeps the first few.
func (s *soak) wrong(a ask, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.wrong++
	if len(s.failed) < 5 {
		s.failed = append(s.failed, fmt.Sprintf("%s, %d events: %v", a.id, a.events, err))
	}
}

// probe asks the upstream itself, again and again: what the machine does to a first byte
// without any gateway.
func (s *soak) probe() {
	conn, err := target{addr: s.up.Listen}.dial()
	if err != nil {
		return
	}
	defer conn.close()
	a := ask{events: 1}
	text := a.body()
	for time.Now().Before(s.end) {
		first, _, err := conn.once(text, a)
		if err != nil {
			return
		}
		s.saw(func(w *window) { w.straight = append(w.straight, ms(first)) })
		time.Sleep(time.Second)
	}
}
