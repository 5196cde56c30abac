package gateway

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"headgate/console/live"
	"headgate/console/now"
	"headgate/journal"
)

// Two recalls: of one the loan ended by itself while the request waited, the
// other is open.
func TestRecalls(t *testing.T) {
	bubble(t, setup{slots: 1, depth: 4, wait: time.Hour}, func(t *testing.T, r *rig) {
		if w := r.admin("/api/recalls"); w.Code != 200 || w.Body.String() != "[]\n" {
			t.Errorf("before any: %d %s", w.Code, w.Body)
		}
		for open := range 2 {
			time.Sleep(5 * time.Second)
			_, loan := r.stream("Headgate-Class", "batch")
			back := r.start("POST", chat, chatBody(`,"max_tokens":100`))
			synctest.Wait()
			if open == 1 {
				break
			}
			sleep(1500)
			loan.Finish("stop")
			call := r.engine.Accept(t)
			sleep(200)
			call.Emit(2)
			call.Finish("stop")
			if a := <-back; a.status != 200 {
				t.Fatalf("the returning request: %+v", a)
			}
		}
		w := r.admin("/api/recalls")
		if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		golden(t, "recalls.json", w.Body.String())
		var all, newest []json.RawMessage
		for limit, into := range map[string]*[]json.RawMessage{"1000": &all, "1": &newest} {
			if err := json.Unmarshal(r.admin("/api/recalls?limit="+limit).Body.Bytes(), into); err != nil {
				t.Fatal(err)
			}
		}
		if len(all) != 2 || len(newest) != 1 || !bytes.Equal(all[0], newest[0]) {
			t.Errorf("%d recalls, the newest: %s", len(all), newest)
		}
	})
}

// What is known of a recall is said to the microsecond, and what is not is null.
func TestRecallView(t *testing.T) {
	const s = int64(time.Second)
	b, err := json.MarshalIndent([]now.Recall{
		live.Recall(&journal.Recall{
			Seq: 12, Pool: "main", Class: "interactive", Request: "back", Opened: 60 * s, Granted: 60 * s, Served: 60 * s, Dispatched: 60*s + 1_234_567,
			Settled: 60*s + 67e6, FirstToken: 61*s + 110e6, Scheduled: 60*s + 67e6,
			Reclaims: []journal.Reclaim{{Class: "batch", Request: "b1", Hold: 3, Sent: 60*s + 1e6, Confirmed: 60*s + 67e6}, {Class: "batch", Request: "b2", Hold: 4, Sent: 60*s + 2e6}},
			LeftOut:  1,
		}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		live.Recall(&journal.Recall{Seq: 40, Pool: "main", Class: "interactive", Opened: 90 * s, Scheduled: 90*s + 1e6, ScheduledUpper: 91 * s}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "recall_views.json", string(b)+"\n")
}

func TestRecallsLimit(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		for _, limit := range []string{"", "0", "-1", "1001", "all", "1.5"} {
			want := `limit is "` + limit + `", must be a whole number from 1 to 1000` + "\n"
			if w := r.admin("/api/recalls?limit=" + limit); w.Code != 400 || w.Body.String() != want {
				t.Errorf("limit %q: %d %q, want 400 %q", limit, w.Code, w.Body, want)
			}
		}
	})
}
