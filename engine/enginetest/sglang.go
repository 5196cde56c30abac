package enginetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"headgate/engine"
)

// sglangDelay is how long after a closed connection SGLang ends its request.
const sglangDelay = 2 * time.Second

// sglang answers what only SGLang has.
func (e *Engine) sglang(w http.ResponseWriter, r *http.Request) bool {
	if e.opts.Kind != engine.SGLang {
		return false
	}
	if r.URL.Path == "/abort_request" {
		e.abortRequest(w, r)
		return true
	}
	return false
}

// abortRequest ends the requests whose id begins with the one given. The answer
// is the same if there is none.
func (e *Engine) abortRequest(w http.ResponseWriter, r *http.Request) {
	var req struct{ Rid string }
	body, _ := io.ReadAll(r.Body)
	if r.Method != http.MethodPost || json.Unmarshal(body, &req) != nil || req.Rid == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	e.aborts = append(e.aborts, req.Rid)
	var found []*Call
	for c := range e.held {
		if strings.HasPrefix(c.rid(), req.Rid) && !c.forgotten && !e.opts.Ghosts {
			found = append(found, c)
		}
	}
	e.mu.Unlock()
	for _, c := range found {
		c.Free()
	}
}

// Aborts are the ids that POST /abort_request was called with.
func (e *Engine) Aborts() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.aborts...)
}

// rid is the request's id; the last member counts, as in Python.
func (c *Call) rid() string {
	var body struct{ Rid string }
	_ = json.Unmarshal(c.Body, &body)
	return body.Rid
}

// Held tells whether the engine has the sequence still.
func (c *Call) Held() bool {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	_, held := c.engine.held[c]
	return held
}

// disconnected is what becomes of a request whose client has left.
func (c *Call) disconnected() {
	e := c.engine
	switch {
	case e.opts.Ghosts:
	case e.opts.Kind != engine.SGLang:
		c.Free()
	case e.opts.Forgets:
		e.mu.Lock()
		defer e.mu.Unlock()
		c.forgotten = true
	default:
		time.AfterFunc(sglangDelay, c.Free)
	}
}

func (e *Engine) sglangDocument(path string) (string, bool) {
	o := e.opts
	switch path {
	case "/server_info":
		return fmt.Sprintf(`{"version":"0.5.18","dp_size":1,"page_size":%d,"context_length":null,"max_total_num_tokens":%d,`+
			`"max_running_requests":null,"schedule_policy":"fcfs","enable_priority_scheduling":false,`+
			`"schedule_low_priority_values_first":false,"disable_radix_cache":false,`+
			`"internal_states":[{"effective_max_running_requests_per_dp":%d}]}`, o.BlockSize, o.KVTokens, o.Slots), true
	case "/v1/loads":
		return fmt.Sprintf(`{"timestamp":"%s","version":"0.5.18","loads":[{"dp_rank":0,"num_running_reqs":%d,"num_waiting_reqs":%d,`+
			`"num_waiting_uncached_tokens":%d,"num_used_tokens":%d,"num_total_tokens":%d,"max_total_num_tokens":%d,"max_running_requests":%d}]}`,
			time.Now().UTC().Format(time.RFC3339Nano), e.now.running, e.now.waiting, 10*e.now.waiting, e.sglangUsed(),
			e.sglangUsed()+10*e.now.waiting, o.KVTokens, o.Slots), true
	}
	return "", false
}

// sglangUsed is what the running sequences hold; it grows with every step.
func (e *Engine) sglangUsed() int {
	if e.now.running == 0 {
		return 0
	}
	return e.now.running + e.now.generated%(e.opts.KVTokens/2)
}
