package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"headgate/admission"
	"headgate/e2e/headgate"
	"headgate/journal"
)

// wholeAs makes a request with headers, and returns the answer's header when it is
// complete.
func wholeAs(ctx context.Context, url, key string, body object, headers ...string) (http.Header, error) {
	b, _ := json.Marshal(body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(b)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, text)
	}
	return res.Header, err
}

// TestGatewayOwnLimits: interactive can bear to wait a minute, so a loan that will
// end within seconds is left to; but a request that asks for its first token within
// 200 ms has it ended at once, if its key permits that.
func TestGatewayOwnLimits(t *testing.T) {
	app, appHash := headgate.NewKey(t)
	other, otherHash := headgate.NewKey(t)
	jobs, jobsHash := headgate.NewKey(t)
	e := headgate.StartEngine(t, "--speed", "0.2", "--num-gpu-blocks", "2048", "--max-num-seqs", "1", "--enable-prefix-caching=false")
	g := headgate.Start(t, fmt.Sprintf(`keys:
  - {name: app, tenant: product, hash: "%s", classes: [interactive], slo_headers: true, slo_min: {ttft: 100ms}}
  - {name: other, tenant: product, hash: "%s", classes: [interactive]}
  - {name: jobs, tenant: research, hash: "%s", classes: [batch]}
pools:
  - name: main
    engines: [{name: engine, kind: vllm, url: "%s", slots: 1, observe_every: 50ms}]
    classes:
      - {name: interactive, floor: {slots: 1}, idle_after: 50ms, objective: {ttft: 1m}}
      - {name: batch, reclaim: reclaim}
`, appHash, otherHash, jobsHash, e.URL)).AwaitReady()

	body := func(tokens int) object {
		return object{"model": e.Model, "messages": user("hello"), "max_tokens": tokens, "ignore_eos": true}
	}
	if _, err := wholeAs(t.Context(), g.URL+chatPath, app, body(8), "x-slo-ttft-ms", "50"); err == nil || !strings.Contains(err.Error(), "400 Bad Request") || !strings.Contains(err.Error(), "x-slo-ttft-ms is \\\"50\\\"; allowed: 100, the least for this key, to 3600000") {
		t.Errorf("50 ms, of which the least is 100: %v", err)
	}
	// From this the gateway learns how fast the engine is.
	if _, err := wholeAs(t.Context(), g.URL+chatPath, jobs, body(100)); err != nil {
		t.Fatal(err)
	}
	const long = 150
	for _, c := range []struct {
		name, key, header, value, objective string
		cut                                 bool
	}{
		{"no header", app, "", "", "", false},
		{"a header without permission", other, "x-slo-ttft-ms", "200", "class; ttft-ms=60000", false},
		{"a tighter limit", app, "x-slo-ttft-ms", "200", "request; ttft-ms=200", true},
	} {
		g.AwaitPool("interactive lends and nothing is held", func(s *admission.Snapshot) bool { return idle(s) && class(s, "interactive").Lending })
		batch := make(chan error, 1)
		go func() {
			_, err := wholeAs(t.Context(), g.URL+chatPath, jobs, body(long))
			batch <- err
		}()
		g.AwaitPool("batch has the slot on loan and has begun", func(s *admission.Snapshot) bool {
			return len(s.Holds) == 1 && s.Holds[0].Loan && s.Holds[0].Out > 0
		})
		var headers []string
		if c.header != "" {
			headers = []string{c.header, c.value}
		}
		h, err := wholeAs(t.Context(), g.URL+chatPath, c.key, body(8), headers...)
		if err != nil || h.Get("Headgate-Objective") != c.objective {
			t.Errorf("%s: %v, objective %q, want %q", c.name, err, h.Get("Headgate-Objective"), c.objective)
		}
		if err := <-batch; err != nil {
			t.Errorf("%s: batch: %v", c.name, err)
		}
		id := h.Get("Headgate-Request-Id")
		g.AwaitEvent("the request is over", func(e *journal.Event) bool { return e.Kind == journal.Finished && e.Request == id })
		cut := slices.ContainsFunc(g.Events(), func(e journal.Event) bool { return e.Kind == journal.Ended && e.Cause == "reclaimed" && e.For == id })
		if cut != c.cut {
			t.Errorf("%s: the loan was ended for it: %t, want %t", c.name, cut, c.cut)
		}
		for _, e := range g.Events() {
			if own := strings.HasPrefix(c.objective, "request"); e.Kind == journal.Arrived && e.Request == id && (e.OwnLimits != own || e.TTFTLimitNS == 0) {
				t.Errorf("%s: it arrived with %+v", c.name, e)
			}
		}
	}
}
