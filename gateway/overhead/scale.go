package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	spareFiles = 64              // descriptors beside those of clients and engine
	patience   = 2 * time.Minute // until what was opened is there, and what was closed is gone
	leftOver   = 0.1             // part of the memory that may be left and be called returned
)

// crowd is clients of one arm that stay.
type crowd struct {
	mu      sync.Mutex
	conns   []*stream
	delays  []float64 // ms, of the events since they were last taken
	failed  error
	leaving bool

	begun atomic.Int64 // have had an event
	all   sync.WaitGroup
}

// join opens n connections, spread over so long, and sends each the request.
func (c *crowd) join(to target, a ask, n int, spread time.Duration) error {
	start, text := time.Now(), a.body()
	for i := range n {
		time.Sleep(time.Until(start.Add(spread * time.Duration(i) / time.Duration(n))))
		s, err := to.dial()
		if err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
		c.mu.Lock()
		c.conns = append(c.conns, s)
		c.mu.Unlock()
		if err := s.send(text); err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
		c.all.Go(func() { c.listen(s, a) })
	}
	return nil
}

func (c *crowd) listen(s *stream, a ask) {
	first := true
	err := s.receive(a, func(e event) {
		if first {
			first = false
			c.begun.Add(1)
		}
		c.mu.Lock()
		c.delays = append(c.delays, ms(e.at.Sub(e.sent)))
		c.mu.Unlock()
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leaving && c.failed == nil {
		c.failed = fmt.Errorf("a stream ended: %w", err)
	}
}

// take returns the delays since the last call, or why a client has lost its
// stream.
func (c *crowd) take() ([]float64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.delays
	c.delays = nil
	return got, c.failed
}

// leave closes every connection.
func (c *crowd) leave() {
	c.mu.Lock()
	c.leaving = true
	for _, s := range c.conns {
		s.close()
	}
	c.mu.Unlock()
	c.all.Wait()
}

// until asks again and again, for as long as patience lasts.
func until(what string, done func() (bool, error)) error {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s", patience, what)
		}
	}
}

// waiting is how many requests are in Headgate's queues.
func (p *process) waiting() (n int, err error) {
	body, err := fetch("http://" + p.Admin + "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, "headgate_class_queue{") {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			n += int(v)
		}
	}
	return n, nil
}

// figures of scale.
const (
	streamInUse     = "a stream: memory in use after a collection"
	streamResident  = "a stream: resident memory under load"
	waiterInUse     = "a waiting request: memory in use"
	waiterResident  = "a waiting request: resident memory"
	left            = "left when all are gone, of its memory"
	delay50         = "event delay p50"
	delay99         = "event delay p99"
	delayWaiting50  = "event delay p50, others waiting"
	delayWaiting99  = "event delay p99, others waiting"
	eventsAndSecond = "events a second"
)

func measureScale(o *options, out io.Writer) (*report, error) {
	if o.streaming < 1 || o.waiting < 0 || o.rounds < 1 {
		return nil, errors.New("streaming and seconds must be at least 1, waiting at least 0")
	}
	r := &report{Machine: machine()}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	// Go raises the soft limit to the hard one by itself, here and in the others.
	if room := int(min(files.Max, 1<<20)) - 2*o.streaming - spareFiles; room < o.waiting {
		if room < 0 {
			return nil, fmt.Errorf("the limit of open files is %d, %d streams need %d", files.Max, o.streaming, 2*o.streaming+spareFiles)
		}
		r.Notes = append(r.Notes, fmt.Sprintf("%d requests wait instead of %d: a process may have %d files open here, and a stream takes two of Headgate", room, o.waiting, files.Max))
		o.waiting = room
	}
	b, err := startBench(o, o.streaming, o.waiting)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	for _, arm := range []string{proxy, headgate} {
		if err := b.crowded(o, r, arm); err != nil {
			return nil, fmt.Errorf("%s: %w", arm, err)
		}
		fmt.Fprintln(out, "measured:", arm)
	}
	if info, err := os.Stat(filepath.Join(b.dir, "journal.jsonl")); err == nil {
		r.Notes = append(r.Notes, fmt.Sprintf("the journal has %d KiB", info.Size()/1024))
	}
	for _, name := range []string{streamInUse, streamResident} {
		r.hold(name, "KiB", moreThanProxy*r.median(name, proxy), r.median(name, headgate))
	}
	if o.waiting > 0 {
		r.hold(waiterInUse+", beside the proxy's stream", "KiB", moreThanProxy*r.median(streamInUse, proxy), r.median(waiterInUse, headgate))
	}
	r.hold(left, "%", 100*leftOver, r.median(left, headgate))
	return r, nil
}

// crowded measures one arm.
func (b *bench) crowded(o *options, r *report, arm string) error {
	p := b.arms[arm]
	const hour = 3600
	a := ask{events: hour, pace: time.Second}
	before, err := p.usage(true)
	if err != nil {
		return err
	}
	c := new(crowd)
	defer c.leave()
	spread := time.Duration(o.streaming+o.waiting) * time.Millisecond
	if err := c.join(b.target(arm), a, o.streaming, spread); err != nil {
		return err
	}
	all := func() (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return int(c.begun.Load()) == o.streaming, c.failed
	}
	if err := until("every stream has an event", all); err != nil {
		return err
	}
	load := func(name50, name99 string) (usage, error) {
		if _, err := c.take(); err != nil {
			return usage{}, err
		}
		time.Sleep(time.Duration(o.rounds) * time.Second)
		delays, err := c.take()
		if err != nil {
			return usage{}, err
		}
		r.add(eventsAndSecond, arm, "1/s", float64(len(delays))/float64(o.rounds))
		r.add(name50, arm, "ms", quantile(delays, 50))
		r.add(name99, arm, "ms", quantile(delays, 99))
		busy, err := p.usage(false)
		if err != nil {
			return usage{}, err
		}
		settled, err := p.usage(true)
		settled.resident = busy.resident // as it is, not as it could be
		return settled, err
	}
	n := float64(o.streaming) * 1024
	streaming, err := load(delay50, delay99)
	if err != nil {
		return err
	}
	r.add(streamInUse, arm, "KiB", (streaming.inUse-before.inUse)/n)
	r.add(streamResident, arm, "KiB", (streaming.resident-before.resident)/n)
	peak := streaming
	if arm == headgate && o.waiting > 0 {
		if err := c.join(b.target(arm), a, o.waiting, spread); err != nil {
			return err
		}
		queued := 0
		err := until("every request waits", func() (ok bool, err error) {
			c.mu.Lock()
			err = c.failed
			c.mu.Unlock()
			if err == nil {
				queued, err = p.waiting()
			}
			return queued == o.waiting, err
		})
		if err != nil {
			return fmt.Errorf("%d of %d wait: %w", queued, o.waiting, err)
		}
		if peak, err = load(delayWaiting50, delayWaiting99); err != nil {
			return err
		}
		m := float64(o.waiting) * 1024
		r.add(waiterInUse, arm, "KiB", (peak.inUse-streaming.inUse)/m)
		r.add(waiterResident, arm, "KiB", (peak.resident-streaming.resident)/m)
	}
	c.leave()
	// Connections close one after another: what is left is known when it does
	// not shrink any more.
	share, last := 0.0, math.Inf(1)
	for {
		after, err := p.usage(true)
		if err != nil {
			return err
		}
		share = (after.inUse - before.inUse) / (peak.inUse - before.inUse)
		if share <= leftOver || share > last-0.01 {
			break
		}
		last = share
		time.Sleep(time.Second)
	}
	r.add(left, arm, "%", 100*share)
	return nil
}
