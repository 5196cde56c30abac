package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"headgate/batch"
)

// Batches of all tenants, without a word of what these wrote: pages, those that have not
// ended, what is wrong with what is asked.
func TestJobs(t *testing.T) {
	s, k := withBatches(setup{})
	s.audit = &stored{}
	bubble(t, s, func(t *testing.T, r *rig) {
		now := time.Now()
		add := func(tenant, id string, metadata map[string]string) {
			t.Helper()
			f := &batch.File{ID: "file-" + id, Tenant: tenant, Purpose: "batch", Name: "secret name", Created: now}
			b := &batch.Batch{
				ID: id, Tenant: tenant, Key: tenant + "-key", Class: "batch", Endpoint: "/v1/completions", Window: time.Hour, Metadata: metadata,
				Input: f.ID, Status: batch.Validating, Created: now, Expires: now.Add(time.Hour),
			}
			if err := k.store.CreateFile(t.Context(), f, batch.Holdings{}); err != nil {
				t.Fatal(err)
			}
			if err := k.store.CreateBatch(t.Context(), b, batch.Holdings{}); err != nil {
				t.Fatal(err)
			}
			now = now.Add(time.Second)
		}
		add("team-a", "batch_1", map[string]string{"secret": "metadata"})
		var wrong []batch.LineError
		for i := range 12 {
			wrong = append(wrong, batch.LineError{Code: "invalid_field", Message: "model is \"secret text\"", Param: "model", Line: int64(i + 1)})
		}
		if err := k.store.Fail(t.Context(), "batch_1", wrong, now); err != nil {
			t.Fatal(err)
		}
		add("team-b", "batch_2", nil)
		add("team-a", "batch_3", nil)
		items := []batch.Item{{Batch: "batch_3", Line: 1, CustomID: "secret id"}, {Batch: "batch_3", Line: 2, CustomID: "x"}}
		if _, err := k.store.AddItems(t.Context(), "batch_3", items); err != nil {
			t.Fatal(err)
		}
		if err := k.store.Start(t.Context(), "batch_3", now); err != nil {
			t.Fatal(err)
		}

		all := r.admin("/api/batches/jobs")
		golden(t, "jobs.json", all.Body.String())
		if strings.Contains(all.Body.String(), "secret") {
			t.Error("what a tenant wrote shows")
		}
		ids := func(query string) string {
			w := r.admin("/api/batches/jobs?" + query)
			return fmt.Sprint(gjson.Get(w.Body.String(), "jobs.#.id"), gjson.Get(w.Body.String(), "more"))
		}
		for query, want := range map[string]string{
			"limit=2": `["batch_3","batch_2"] true`, "limit=2&after=batch_2": `["batch_1"] false`, "open=true": `["batch_3","batch_2"] false`, "order=asc&limit=1": `["batch_1"] true`,
		} {
			if got := ids(query); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		for query, want := range map[string]string{
			"limit=0": `limit is 0; allowed: 1 to 100`, "limit=101": "limit is 101", "order=up": "order is up; allowed: asc or desc", "open=1": `open is "1", must be true or false`,
		} {
			if w := r.admin("/api/batches/jobs?" + query); w.Code != 400 || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: %d %s", query, w.Code, w.Body)
			}
		}
		if w := r.admin("/api/batches/jobs?after=batch_9"); w.Code != 404 {
			t.Errorf("behind nothing: %d %s", w.Code, w.Body)
		}

		// An operator cancels one, of the tenant whose it is.
		s.audit.text(t)
		for _, c := range []struct {
			id, body string
			headers  []string
			status   int
			says     string
		}{
			{id: "batch_3", body: `{}`, status: 400, says: `must have "tenant"`},
			{id: "batch_3", body: `{"tenant":"team-a","all":true}`, status: 400, says: "unknown field"},
			{id: "batch_3", body: `{"tenant":"team-a","reason":"` + strings.Repeat("x", 501) + `"}`, status: 400, says: "at most 500"},
			{id: "batch_3", body: `{"tenant":"team-b"}`, status: 404, says: "batch_3"},
			{id: "batch_1", body: `{"tenant":"team-a"}`, status: 409, says: "'failed'"},
			{id: "batch_3", body: `{"tenant":"team-a"}`, headers: []string{"Origin", "https://evil.test"}, status: 403, says: "another origin"},
			{id: "batch_3", body: `{"tenant":"team-a"}`, headers: []string{"Content-Type", "text/plain"}, status: 415, says: "application/json"},
			{id: "batch_3", body: `{"tenant":"team-a","reason":"too\nlarge"}`, headers: []string{"Headgate-Actor", "ann"}, status: 200, says: `"status": "cancelling"`},
			{id: "batch_3", body: `{"tenant":"team-a"}`, status: 200, says: `"status": "cancelling"`},
		} {
			if w := r.turn("/api/batches/"+c.id+"/cancel", c.body, c.headers...); w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("%s %.50s: %d %s, want %d %s", c.id, c.body, w.Code, w.Body, c.status, c.says)
			}
		}
		if !strings.Contains(r.log.String(), `"an operator has a batch cancelled","batch":"batch_3","tenant":"team-a","from":"in_progress","to":"cancelling","actor":"ann"`) {
			t.Errorf("the log:\n%s", r.log)
		}
		// Refused or not, each use is written down.
		if got := s.audit.text(t); strings.Count(got, "path=/api/batches/batch_") != 9 || strings.Count(got, "status=200") != 2 || strings.Count(got, "status=403") != 1 {
			t.Errorf("%s", got)
		}
	})
}
