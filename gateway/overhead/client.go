package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"headgate/wire/sse"
)

// filler makes a prompt as long as a short chat's.
var filler = strings.Repeat("The water rises slowly behind the gate, and somebody waits. ", 32)

// body of a request for so many events.
func body(events int, pace time.Duration) string {
	return fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":%d,"messages":[{"role":"system","content":"You answer briefly."},{"role":"user","content":"events %d pace %s %s"}]}`,
		model, events, events, pace, filler)
}

// stream is one client's connection.
type stream struct {
	conn net.Conn
	in   *bufio.Reader
}

func dial(addr string) (*stream, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &stream{conn, bufio.NewReaderSize(conn, 2048)}, nil
}

func (s *stream) close() { _ = s.conn.Close() }

func (s *stream) send(body string) error {
	_, err := fmt.Fprintf(s.conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		key, len(body), body)
	return err
}

// receive reads one whole answer and calls each for every event of it but the
// terminator, with the moment when it came and when it was sent. Anything but
// the events asked for, in full, is an error.
func (s *stream) receive(events int, each func(at time.Time, sent time.Time)) error {
	res, err := http.ReadResponse(s.in, nil)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	got, done := 0, false
	for in := sse.NewReader(res.Body, 1<<20); ; {
		ev, err := in.Next()
		switch {
		case err == io.EOF && done && got == events:
			return nil
		case err != nil:
			return fmt.Errorf("after %d of %d events: %w", got, events, err)
		case string(ev.Data) == "[DONE]":
			done = true
		case !ev.Comment:
			at := time.Now()
			_, stamp, _ := bytes.Cut(ev.Data, []byte("at "))
			stamp, _, _ = bytes.Cut(stamp, []byte(" "))
			sent, err := strconv.ParseInt(string(stamp), 10, 64)
			if err != nil {
				return fmt.Errorf("event %d has no time: %q", got, ev.Data)
			}
			got++
			each(at, time.Unix(0, sent))
		}
	}
}

// workload is a number of clients that each send a request as soon as the last is
// answered.
type workload struct {
	name    string
	clients int
	events  int           // of each answer
	pace    time.Duration // between two events; 0: all at once
}

// result is what the clients of a workload saw.
type result struct {
	requests int
	wall     time.Duration
	gaps     []float64 // ms between two events of an answer
	delays   []float64 // ms from the upstream's write to the client's read
}

// run sends requests until the time is over, and waits for the last answers.
func (w *workload) run(addr string, each time.Duration) (*result, error) {
	var mu sync.Mutex
	all := new(result)
	var failed error
	var clients sync.WaitGroup
	start := time.Now()
	for c := range w.clients {
		clients.Go(func() {
			// Clients that began together would stay so, and events come in bursts.
			time.Sleep(w.pace * time.Duration(c) / time.Duration(w.clients))
			mine, err := w.client(addr, start.Add(each))
			mu.Lock()
			defer mu.Unlock()
			all.requests += mine.requests
			all.gaps = append(all.gaps, mine.gaps...)
			all.delays = append(all.delays, mine.delays...)
			if err != nil {
				failed = err
			}
		})
	}
	clients.Wait()
	all.wall = time.Since(start)
	if failed != nil {
		return nil, fmt.Errorf("%s at %s: %w", w.name, addr, failed)
	}
	return all, nil
}

func (w *workload) client(addr string, until time.Time) (r result, err error) {
	s, err := dial(addr)
	if err != nil {
		return r, err
	}
	defer s.close()
	text := body(w.events, w.pace)
	for time.Now().Before(until) {
		if err := s.send(text); err != nil {
			return r, err
		}
		var last time.Time
		err := s.receive(w.events, func(at, sent time.Time) {
			if !last.IsZero() {
				r.gaps = append(r.gaps, ms(at.Sub(last)))
			}
			last = at
			r.delays = append(r.delays, ms(at.Sub(sent)))
		})
		if err != nil {
			return r, err
		}
		r.requests++
	}
	return r, nil
}

// firstByte is how long the first byte of an answer's body takes on a connection
// that is there already.
func (s *stream) firstByte(text string, events int) (time.Duration, error) {
	var first time.Duration
	start := time.Now()
	if err := s.send(text); err != nil {
		return 0, err
	}
	err := s.receive(events, func(at, _ time.Time) {
		if first == 0 {
			first = at.Sub(start)
		}
	})
	return first, err
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
