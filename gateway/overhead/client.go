package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"headgate/wire/sse"
)

// target is where clients send to.
type target struct {
	addr   string
	header string // lines of the arm's own, each with its end
	token  string // in the place of the key, if there is one
}

// stream is one client's connection.
type stream struct {
	conn net.Conn
	in   *bufio.Reader
	target
}

func (t target) dial() (*stream, error) {
	conn, err := net.Dial("tcp", t.addr)
	if err != nil {
		return nil, err
	}
	return &stream{conn, bufio.NewReaderSize(conn, 2048), t}, nil
}

func (s *stream) close() { _ = s.conn.Close() }

func (s *stream) send(body string) error {
	_, err := fmt.Fprintf(s.conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		cmp.Or(s.token, key), s.header, len(body), body)
	return err
}

// refusal is an answer that is none.
type refusal struct {
	status string
	text   []byte
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %s", r.status, r.text) }

// event is one of an answer's, as it came.
type event struct {
	n        int
	at, sent time.Time // when it was read and when the upstream wrote it
}

// receive reads one whole answer and calls each for every event of it but the
// terminator. Anything but the events asked for, each once, in their order, in full
// and of this request, is an error.
func (s *stream) receive(a ask, each func(event)) error {
	res, err := http.ReadResponse(s.in, nil)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		return &refusal{res.Status, text}
	}
	got, done := 0, false
	for in := sse.NewReader(res.Body, 1<<20); ; {
		ev, err := in.Next()
		switch {
		case err == io.EOF && done && got == a.events:
			return nil
		case err != nil:
			return fmt.Errorf("after %d of %d events: %w", got, a.events, err)
		case string(ev.Data) == "[DONE]":
			done = true
		case !ev.Comment:
			e := event{at: time.Now()}
			var id string
			if e.sent, e.n, id, err = stamped(ev.Data); err != nil {
				return fmt.Errorf("event %d: %w", got, err)
			}
			if e.n != got || id != a.id || done {
				return fmt.Errorf("event %d of %q came where %d of %q was due, terminated %t", e.n, id, got, a.id, done)
			}
			got++
			each(e)
		}
	}
}

// stamped reads what the upstream writes into each event: "at TIME n NUMBER id ID ".
func stamped(data []byte) (sent time.Time, n int, id string, err error) {
	_, text, _ := bytes.Cut(data, []byte("at "))
	at, text, _ := bytes.Cut(text, []byte(" n "))
	number, text, _ := bytes.Cut(text, []byte(" id "))
	name, _, ok := bytes.Cut(text, []byte(` "`))
	if !ok {
		return sent, 0, "", fmt.Errorf("no time, number and id: %q", data)
	}
	ns, err := strconv.ParseInt(string(at), 10, 64)
	if err == nil {
		n, err = strconv.Atoi(string(number))
	}
	return time.Unix(0, ns), n, string(name), err
}

// workload is a number of clients that each send a request as soon as the last is
// answered.
type workload struct {
	name    string
	clients int
	events  int           // of each answer
	pace    time.Duration // between two events; 0: all at once
	rest    time.Duration // about so long a client pauses before its next request
	queued  bool          // the upstream notes how soon one follows another
}

// result is what the clients of a workload saw.
type result struct {
	requests int
	wall     time.Duration
	gaps     []float64 // ms between two events of an answer
	delays   []float64 // ms from the upstream's write to the client's read
	whole    []float64 // ms from sending a request to the end of its answer
}

// run sends requests until the time is over, and waits for the last answers.
func (w *workload) run(to target, each time.Duration) (*result, error) {
	var mu sync.Mutex
	all := new(result)
	var failed error
	var clients sync.WaitGroup
	start := time.Now()
	for c := range w.clients {
		clients.Go(func() {
			// Clients that began together would stay so, and events come in bursts.
			time.Sleep(max(w.pace, w.rest) * time.Duration(c) / time.Duration(w.clients))
			mine, err := w.client(to, start.Add(each))
			mu.Lock()
			defer mu.Unlock()
			all.requests += mine.requests
			all.gaps = append(all.gaps, mine.gaps...)
			all.delays = append(all.delays, mine.delays...)
			all.whole = append(all.whole, mine.whole...)
			if err != nil {
				failed = err
			}
		})
	}
	clients.Wait()
	all.wall = time.Since(start)
	if failed != nil {
		return nil, fmt.Errorf("%s at %s: %w", w.name, to.addr, failed)
	}
	return all, nil
}

// stuck is how long an answer of a workload may take.
const stuck = time.Minute

func (w *workload) client(to target, until time.Time) (r result, err error) {
	s, err := to.dial()
	if err != nil {
		return r, err
	}
	defer s.close()
	a := ask{events: w.events, pace: w.pace}
	if w.queued {
		a.id = queuedID
	}
	text := a.body()
	for time.Now().Before(until) {
		_ = s.conn.SetDeadline(time.Now().Add(stuck))
		start := time.Now()
		if err := s.send(text); err != nil {
			return r, err
		}
		var last time.Time
		err := s.receive(a, func(e event) {
			if !last.IsZero() {
				r.gaps = append(r.gaps, ms(e.at.Sub(last)))
			}
			last = e.at
			r.delays = append(r.delays, ms(e.at.Sub(e.sent)))
		})
		if err != nil {
			return r, err
		}
		r.requests++
		r.whole = append(r.whole, ms(time.Since(start)))
		if w.rest > 0 {
			time.Sleep(w.rest/2 + rand.N(w.rest))
		}
	}
	return r, nil
}

// once sends one request on a connection that is there already, and tells how long
// the first byte of its answer's body takes, and all of it.
func (s *stream) once(text string, a ask) (first, whole time.Duration, err error) {
	start := time.Now()
	if err := s.send(text); err != nil {
		return 0, 0, err
	}
	err = s.receive(a, func(e event) {
		if first == 0 {
			first = e.at.Sub(start)
		}
	})
	return first, time.Since(start), err
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
