package gateway

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/relay"
)

// turn uses a switch. Headers come in pairs.
func (r *rig) turn(path, body string, headers ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest("POST", path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.gateway.Admin(r.metrics).ServeHTTP(w, req)
	return w
}

func (r *rig) switchStates(t *testing.T) map[relay.Switch]relay.SwitchState {
	t.Helper()
	var views []SwitchView
	if w := r.admin("/api/switches"); json.Unmarshal(w.Body.Bytes(), &views) != nil || len(views) != 1 || views[0].Pool != "main" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return views[0].Switches
}

// A switch is turned and shown, and with the last pool drained the gateway is not
// ready.
func TestSwitches(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		w := r.turn("/api/pools/main/drain", `{"on":true,"reason":"new\nhost"}`, "X-Forwarded-User", "ann\x07")
		var view SwitchView
		if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil || w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		s := r.switchStates(t)[relay.SwitchDrain]
		if s != view.Switches[relay.SwitchDrain] || !s.On || s.Actor != "ann?" || s.Reason != "new?host" || s.Remote != "192.0.2.1:1234" || s.Since.IsZero() {
			t.Errorf("%+v, and then %+v", view, s)
		}
		if a := r.send("POST", chat, chatBody("")); a.status != 503 || *documented(t, a.status, a.body).Error.Code != "draining" {
			t.Errorf("a request: %+v", a)
		}
		if w := r.admin("/readyz"); w.Code != 503 || w.Body.String() != "not ready: every pool is drained by an operator's switch\n" {
			t.Errorf("/readyz: %d %s", w.Code, w.Body)
		}
		r.turn("/api/pools/main/drain", `{"on":false}`)
		r.turn("/api/pools/main/bypass", `{"on":true}`)
		r.turn("/api/pools/main/lending", `{"paused":true,"recall":true}`, "Headgate-Actor", strings.Repeat("é", 80))
		all := r.switchStates(t)
		if lending := all[relay.SwitchLending]; all[relay.SwitchDrain].On || !all[relay.SwitchBypass].On || !lending.On || !lending.Recall || lending.Actor != strings.Repeat("é", 50) {
			t.Errorf("%+v", all)
		}
		if w := r.admin("/readyz"); w.Code != 200 || !strings.Contains(w.Body.String(), "but pool main: switch bypass is on") {
			t.Errorf("/readyz: %d %s", w.Code, w.Body)
		}
		if !strings.Contains(r.log.String(), `"switch":"lending_paused","from":"off","to":"on, recall"`) {
			t.Errorf("the log:\n%s", r.log)
		}
		r.turn("/api/pools/main/bypass", `{"on":false}`)
		r.turn("/api/pools/main/lending", `{"paused":false}`)
		req := r.start("POST", chat, chatBody(`,"max_tokens":10`))
		r.engine.Accept(t).Finish("stop")
		synctest.Wait()
		if a := <-req; a.status != 200 {
			t.Errorf("off again: %+v", a)
		}
	})
}

// What is not said clearly, or by a page of another origin, turns nothing.
func TestSwitchRefused(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		for _, c := range []struct {
			path, body string
			headers    []string
			status     int
			says       string
		}{
			{path: "main/drain", body: `{}`, status: 400, says: `the body must have "on", true or false`},
			{path: "main/drain", body: `{"paused":true}`, status: 400, says: `must have "on"`},
			{path: "main/lending", body: `{"on":true}`, status: 400, says: `must have "paused"`},
			{path: "main/lending", body: `{"paused":true,"on":false}`, status: 400, says: `must have "paused"`},
			{path: "main/lending", body: `{"paused":false,"recall":true}`, status: 400, says: `"recall" goes with`},
			{path: "main/bypass", body: `{"on":true,"recall":true}`, status: 400, says: `"recall" goes with`},
			{path: "main/bypass", body: `{"on":"yes"}`, status: 400, says: "one JSON object"},
			{path: "main/bypass", body: `{"on":true}{}`, status: 400, says: "there is more"},
			{path: "main/bypass", body: `{"on":true,"now":true}`, status: 400, says: `unknown field "now"`},
			{path: "main/bypass", body: `{"on":true,"reason":"` + strings.Repeat("x", 501) + `"}`, status: 400, says: "at most 500"},
			{path: "main/bypass", body: `{"on":true,"reason":"` + strings.Repeat("x", 5000) + `"}`, status: 400, says: "too large"},
			{path: "other/bypass", body: `{"on":true}`, status: 404, says: `no pool "other"`},
			{path: "main/halt", body: `{"on":true}`, status: 404},
			{path: "main/bypass", body: `{"on":true}`, headers: []string{"Content-Type", "text/plain"}, status: 415, says: "application/json"},
			{path: "main/bypass", body: `{"on":true}`, headers: []string{"Content-Type", ""}, status: 415},
			{path: "main/bypass", body: `{"on":true}`, headers: []string{"Origin", "https://evil.test"}, status: 403, says: "another origin"},
			{path: "main/bypass", body: `{"on":true}`, headers: []string{"Sec-Fetch-Site", "cross-site"}, status: 403},
		} {
			w := r.turn("/api/pools/"+c.path, c.body, c.headers...)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) || w.Header().Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %.40s %v: %d %s, want %d %s", c.path, c.body, c.headers, w.Code, w.Body, c.status, c.says)
			}
		}
		if w := r.admin("/api/pools/main/bypass"); w.Code != 405 {
			t.Errorf("GET: %d", w.Code)
		}
		for which, s := range r.switchStates(t) {
			if s != (relay.SwitchState{}) {
				t.Errorf("%s is %+v", which, s)
			}
		}
	})
}

// The report of a pool that observes, for a person and for a program, and none of one
// that enforces. What comes is passed on beyond slots and queue, and its answer says so.
func TestObserved(t *testing.T) {
	bubble(t, setup{slots: 1, depth: 1, wait: time.Hour, observe: true}, func(t *testing.T, r *rig) {
		for range 3 {
			res, call := r.stream()
			if h := res.Header; h.Get(headerDecision) != "observed" || h.Get(headerQueue) != "0" || h.Get(headerLoan) != "false" {
				t.Errorf("headers %v", h)
			}
			sleep(1000)
			defer call.Finish("stop")
		}
		text := r.admin("/api/pools/main/observe?format=text")
		golden(t, "observed.txt", text.Body.String())
		w := r.admin("/api/pools/main/observe")
		var report admission.Report
		if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil || w.Code != 200 || report.String() != text.Body.String() {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// Of all pools, beside one of which there is none.
		c := *r.gateway.live()
		c.Pools = append(slices.Clone(c.Pools), relay.New(relay.Config{Name: "new"}))
		r.gateway.current.Store(&c)
		if all := r.admin("/api/observe?format=text").Body.String(); all != "pool main\n"+text.Body.String()+"\npool new\n"+noReport+"\n" {
			t.Errorf("all pools: %s", all)
		}
		var views []ObserveView
		if err := json.Unmarshal(r.admin("/api/observe").Body.Bytes(), &views); err != nil || len(views) != 2 || views[0].Pool != "main" || views[0].Report.String() != report.String() ||
			views[0].None != "" || views[1] != (ObserveView{Pool: "new", None: noReport}) {
			t.Errorf("all pools: %v %+v", err, views)
		}
		if w := r.admin("/api/pools/other/observe"); w.Code != 404 {
			t.Errorf("another pool: %d %s", w.Code, w.Body)
		}
	})
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		if w := r.admin("/api/pools/main/observe"); w.Code != 409 {
			t.Errorf("a pool that enforces: %d %s", w.Code, w.Body)
		}
	})
}
