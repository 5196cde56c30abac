package gateway

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/relay"
	"headgate/replan"
)

// twoProfiles differ in admission's limits: deep has one slot, broad a short context.
func twoProfiles() *relay.Replan {
	return &relay.Replan{
		Config: replan.Config{
			Profiles: []replan.Profile{
				{Name: "deep", Slots: 1, KVTokens: 16384, MaxContext: 4096},
				{Name: "broad", Slots: 4, KVTokens: 16384, MaxContext: 1024},
			},
			Limits: true, Home: 1, Dwell: time.Minute, IdleAfter: time.Hour, ContentionAfter: time.Hour, DrainTimeout: time.Minute, PerHour: 10,
		},
		Sessions: 4, SessionTimeout: time.Minute,
	}
}

func (r *rig) plan(t *testing.T) relay.PlanView {
	t.Helper()
	var views []relay.PlanView
	if w := r.admin("/api/plan"); json.Unmarshal(w.Body.Bytes(), &views) != nil || len(views) != 1 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return views[0]
}

// A pool that re-plans tells its models' contexts as they hold in every profile, and what
// each gives; its answers tell the profile and what the session has.
func TestContextContract(t *testing.T) {
	bubble(t, setup{replan: twoProfiles(), depth: 8, wait: time.Hour}, func(t *testing.T, r *rig) {
		var list struct{ Data []map[string]any }
		if a := r.send("GET", "/v1/models", ""); json.Unmarshal([]byte(a.body), &list) != nil || len(list.Data) != 1 {
			t.Fatalf("%+v", a)
		}
		got, _ := json.Marshal(list.Data[0])
		if want := `{"created":0,"headgate":{"max_model_len_now":1024,"profile":"broad","profiles":[{"max_model_len":4096,"name":"deep","slots":1},` +
			`{"max_model_len":1024,"name":"broad","slots":4}]},"id":"test-model","max_model_len":1024,"object":"model","owned_by":"headgate"}`; string(got) != want {
			t.Errorf("the model is\n%s, want\n%s", got, want)
		}
		short := r.start("POST", chat, chatBody(""))
		call := r.engine.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		if a := <-short; a.status != 200 || a.header.Get(headerProfile) != "broad" || a.header.Get(headerContext) != "1024" {
			t.Errorf("a short request: %+v", a)
		}
		long := r.start("POST", chat, chatBody(""), headerContext, "3000", headerSession, "s")
		synctest.Wait()
		if r.engine.Waiting()+r.engine.Running() > 0 {
			t.Error("a request that wants 3000 tokens was sent in a profile that gives 1024")
		}
		if v := r.plan(t); v.Held != 1 || v.Profile != "broad" || v.Guarantee != 1024 {
			t.Errorf("the plan is %+v", v)
		}
		w := r.turn("/api/plan", `{"profile":"deep","for":"1h","reason":"test"}`, "Headgate-Actor", "ann")
		var views []relay.PlanView
		if json.Unmarshal(w.Body.Bytes(), &views) != nil || w.Code != 200 || len(views) != 1 || views[0].Override != "deep" {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		time.Sleep(time.Second)
		call = r.engine.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		if a := <-long; a.status != 200 || a.header.Get(headerProfile) != "deep" || a.header.Get(headerContext) != "3000" {
			t.Errorf("the long request: %+v", a)
		}
		if v := r.plan(t); v.Profile != "deep" || v.Promised != 3000 || v.Sessions != 1 || v.Held != 0 {
			t.Errorf("the plan is %+v", v)
		}
		metrics := r.admin("/metrics").Body.String()
		for _, line := range []string{
			`headgate_replan_profile{pool="main",profile="deep"} 1`, `headgate_replan_profile{pool="main",profile="broad"} 0`,
			`headgate_replan_promises{pool="main"} 1`, `headgate_replan_held{pool="main"} 0`,
			`headgate_replan_switches_total{outcome="done",pool="main",profile="deep"} 1`,
			`headgate_replan_switches_total{outcome="failed",pool="main",profile="deep"} 0`,
		} {
			if !strings.Contains(metrics, line+"\n") {
				t.Errorf("/metrics has no %s", line)
			}
		}
	})
}

func TestContextHeader(t *testing.T) {
	bubble(t, setup{replan: twoProfiles()}, func(t *testing.T, r *rig) {
		for _, text := range []string{"-1", "x", "1.5", "99999999999", "", "1, 2"} {
			a := r.send("POST", chat, chatBody(""), headerContext, text)
			if text == "" {
				continue // is left out
			}
			if e := documented(t, a.status, a.body).Error; a.status != 400 || *e.Param != headerContext {
				t.Errorf("%q: %+v", text, a)
			}
		}
	})
}

func TestSetPlan(t *testing.T) {
	bubble(t, setup{replan: twoProfiles()}, func(t *testing.T, r *rig) {
		for _, tt := range []struct {
			body   string
			status int
			says   string
		}{
			{`{"profile":"wide"}`, 400, `profile "wide": allowed are auto, deep, broad`},
			{`{"profile":"deep","for":"x"}`, 400, `"for" is "x"`},
			{`{"profile":"deep","for":"-1s"}`, 400, `"for" is "-1s"`},
			{`{"profile":"deep","pool":"other"}`, 404, `pool "other" does not re-plan`},
			{`{}`, 400, `must have "profile"`},
			{`{"profil":"deep"}`, 400, "must be one JSON object"},
			{`{"profile":"deep","reason":"` + strings.Repeat("x", 501) + `"}`, 400, "reason has 501 bytes"},
			{`{"profile":"auto"}`, 200, `"profile": "broad"`},
		} {
			if w := r.turn("/api/plan", tt.body); w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
				t.Errorf("%s: %d %s", tt.body, w.Code, w.Body)
			}
		}
		if w := r.turn("/api/plan", `{"profile":"deep"}`, "Content-Type", "text/plain"); w.Code != 415 {
			t.Errorf("another type: %d %s", w.Code, w.Body)
		}
		if w := r.turn("/api/plan", `{"profile":"deep"}`, "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
			t.Errorf("another origin: %d %s", w.Code, w.Body)
		}
	})
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		if w := r.admin("/api/plan"); w.Body.String() != "[]\n" {
			t.Errorf("without a plan: %s", w.Body)
		}
		if w := r.turn("/api/plan", `{"profile":"deep"}`); w.Code != 409 {
			t.Errorf("without a plan: %d %s", w.Code, w.Body)
		}
	})
}
