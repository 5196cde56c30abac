package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
)

// Batch runs on its own slot and on loans, interactive is back and has opened a recall, and
// a batch request waits.
func TestNow(t *testing.T) {
	bubble(t, setup{slots: 4, depth: 4, wait: time.Hour}, func(t *testing.T, r *rig) {
		time.Sleep(5 * time.Second)
		for range 4 {
			r.stream("Headgate-Class", "batch")
		}
		r.start("POST", chat, chatBody(`,"max_tokens":100`))
		synctest.Wait()
		r.start("POST", chat, chatBody(`,"max_tokens":200`), "Headgate-Class", "batch")
		sleep(300) // past the engine's next sample
		synctest.Wait()
		golden(t, "now.json", r.admin("/api/now").Body.String())
	})
}

func TestNowWithoutAnEngine(t *testing.T) {
	bubble(t, setup{noEngine: true}, func(t *testing.T, r *rig) {
		sleep(300)
		synctest.Wait()
		golden(t, "now_without_engine.json", r.admin("/api/now").Body.String())
	})
}

// One of alice's two answers is late, a batch request of hers runs, one of bob's waits, and
// one is refused.
func TestTraffic(t *testing.T) {
	s := setup{slots: 1, depth: 1, wait: time.Hour, objective: admission.Objective{First: 200 * time.Millisecond}}
	bubble(t, s, func(t *testing.T, r *rig) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go r.gateway.Watch(ctx)
		time.Sleep(6 * time.Second)
		for i := range 2 {
			done := r.start("POST", chat, chatBody(`,"max_tokens":3,"stream":true`))
			call := r.engine.Accept(t)
			time.Sleep(time.Duration(i) * 500 * time.Millisecond)
			call.Emit(3)
			call.Finish("stop")
			if a := <-done; a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
		r.stream("Headgate-Class", "batch")
		r.start("POST", chat, chatBody(``), "Authorization", "Bearer "+bobKey)
		synctest.Wait()
		if a := r.send("POST", chat, chatBody(``), "Authorization", "Bearer "+bobKey); a.status != 429 {
			t.Errorf("%d %s", a.status, a.body)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		golden(t, "traffic.json", r.admin("/api/traffic").Body.String())
	})
}

// A console is told four times a second, of a recall as it comes, and for as long as its key
// is one.
func TestLive(t *testing.T) {
	bubble(t, setup{slots: 1, depth: 4, wait: time.Hour}, func(t *testing.T, r *rig) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go r.gateway.Watch(ctx)
		time.Sleep(5100 * time.Millisecond)
		r.stream("Headgate-Class", "batch")
		look := func(for_ time.Duration, meanwhile func()) string {
			ctx, leave := context.WithCancel(t.Context())
			w, done := httptest.NewRecorder(), make(chan struct{})
			go func() {
				defer close(done)
				r.gateway.Admin(r.metrics).ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/api/live", nil))
			}()
			synctest.Wait()
			meanwhile()
			time.Sleep(for_)
			leave()
			<-done
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/event-stream" || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%d %v", w.Code, w.Header())
			}
			return w.Body.String()
		}
		said := look(1010*time.Millisecond, func() {})
		if n := strings.Count(said, "event: now\n"); n != 5 {
			t.Errorf("%d times in a second, want at once and four times:\n%s", n, said)
		}
		if strings.Contains(said, "event: recalls") {
			t.Errorf("of recalls that there are none of:\n%s", said)
		}
		said = look(300*time.Millisecond, func() { r.start("POST", chat, chatBody(`,"max_tokens":100`)) })
		if strings.Count(said, "event: recalls\n") != 1 || !strings.Contains(said, `"pool":"main","class":"interactive","request":"req_`) {
			t.Errorf("of a recall that has come:\n%s", said)
		}
		if said = look(5*time.Second, func() {}); strings.Contains(said, "event: recalls") || strings.Count(said, "event: traffic\n") != 1 {
			t.Errorf("of nothing new but the traffic, once:\n%s", said)
		}
	})
}
