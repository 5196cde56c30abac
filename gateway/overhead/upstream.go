package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ask is what a request asks of the upstream. It is the prompt's beginning.
type ask struct {
	events int
	pace   time.Duration // between two events; 0: all at once
	wait   time.Duration // before the first
	id     string        // which the answer and the upstream's books have; "" is none
}

// queuedID is the id of requests of which the upstream notes how soon one follows another.
const queuedID = "queued"

// filler makes a prompt as long as a short chat's.
var filler = strings.Repeat("The water rises slowly behind the gate, and somebody waits. ", 32)

// body of a request.
func (a ask) body() string {
	id := a.id
	if id == "" {
		id = "-"
	}
	return fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":%d,"messages":[{"role":"system","content":"You answer briefly."},{"role":"user","content":"events %d pace %s wait %s id %s %s"}]}`,
		model, a.events, a.events, a.pace, a.wait, id, filler)
}

// asked reads what a body asks for.
func asked(body []byte) (a ask, err error) {
	_, text, ok := bytes.Cut(body, []byte("events "))
	if !ok {
		return a, fmt.Errorf("the prompt asks for no events")
	}
	var pace, wait string
	if _, err = fmt.Sscanf(string(text[:min(len(text), 128)]), "%d pace %s wait %s id %s", &a.events, &pace, &wait, &a.id); err != nil {
		return a, err
	}
	if a.pace, err = time.ParseDuration(pace); err == nil {
		a.wait, err = time.ParseDuration(wait)
	}
	if a.id == "-" {
		a.id = ""
	}
	return a, err
}

// upstream is an engine that answers as it is asked to, and tells how requests came
// and went. Its times are the machine's clock's, which the clients read too.
type upstream struct {
	mu      sync.Mutex
	running int
	seen    map[string]bool // ids
	tally   tally
	left    map[string]chan int64 // when the client of an id was gone, Unix ns
	free    []int64               // when a place of the queued became free that none has taken
	gaps    []float64             // ms from then to the next arrival
}

// tally is what the upstream has had.
type tally struct {
	Running int `json:"running"`
	Arrived int `json:"arrived"` // with an id
	Doubled int `json:"doubled"` // of them, with an id that had been there
}

func newUpstream() *upstream {
	return &upstream{seen: map[string]bool{}, left: map[string]chan int64{}}
}

// leaving is where the moment goes in which the client of an id was gone.
func (u *upstream) leaving(id string) chan int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := u.left[id]
	if c == nil {
		c = make(chan int64, 1)
		u.left[id] = c
	}
	return c
}

// mostPatient is how long the upstream is asked whether a client is gone.
const mostPatient = 2 * time.Second

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"`+model+`","object":"model"}]}`)
	case "/bench/tally":
		u.mu.Lock()
		t := u.tally
		t.Running = u.running
		u.mu.Unlock()
		_ = json.NewEncoder(w).Encode(t)
	case "/bench/gaps":
		u.mu.Lock()
		gaps := u.gaps
		u.gaps, u.free = nil, nil
		u.mu.Unlock()
		_ = json.NewEncoder(w).Encode(gaps)
	case "/bench/left":
		id := r.URL.Query().Get("id")
		late := time.NewTimer(mostPatient)
		defer late.Stop()
		select {
		case at := <-u.leaving(id):
			_, _ = io.WriteString(w, strconv.FormatInt(at, 10))
		case <-late.C:
			_, _ = io.WriteString(w, "0")
		}
		u.mu.Lock()
		delete(u.left, id)
		u.mu.Unlock()
	default:
		u.answer(w, r)
	}
}

// arrive enters a request into the books.
func (u *upstream) arrive(id string) {
	now := time.Now().UnixNano()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running++
	switch {
	case id == "":
	case id == queuedID:
		if len(u.free) > 0 {
			u.gaps = append(u.gaps, float64(now-u.free[0])/float64(time.Millisecond))
			u.free = u.free[1:]
		}
	default:
		u.tally.Arrived++
		if u.seen[id] {
			u.tally.Doubled++
		}
		u.seen[id] = true
	}
}

// answer sends the events, each when it is due.
func (u *upstream) answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a, err := asked(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	u.arrive(a.id)
	defer func() {
		u.mu.Lock()
		u.running--
		u.mu.Unlock()
	}()
	gone := func() {
		if a.id != "" && a.id != queuedID {
			at := time.Now().UnixNano()
			select {
			case u.leaving(a.id) <- at:
			default:
			}
		}
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	control := http.NewResponseController(w)
	var b []byte
	timer := time.NewTimer(0)
	defer timer.Stop()
	start := time.Now().Add(a.wait)
	for i := range a.events {
		if wait := time.Until(start.Add(time.Duration(i) * a.pace)); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-r.Context().Done():
				gone()
				return
			}
		}
		finish := "null"
		if i == a.events-1 {
			finish = `"stop"`
		}
		now := time.Now().UnixNano()
		b = append(b[:0], `data: {"id":"chatcmpl-9f2c41d07b3e4a58","object":"chat.completion.chunk","created":1760000000,"model":"`+model+
			`","choices":[{"index":0,"delta":{"content":"at `...)
		b = strconv.AppendInt(b, now, 10)
		b = append(b, " n "...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(append(append(b, " id "...), a.id...), ` "},"logprobs":null,"finish_reason":`...)
		b = append(append(b, finish...), "}]}\n\n"...)
		if i == a.events-1 {
			b = append(b, "data: [DONE]\n\n"...)
			if a.id == queuedID {
				u.mu.Lock()
				u.free = append(u.free, now)
				u.mu.Unlock()
			}
		}
		if _, err := w.Write(b); err != nil {
			gone()
			return
		}
		if control.Flush() != nil {
			gone()
			return
		}
	}
}
