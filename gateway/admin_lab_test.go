package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func labOf(dir string) (*Lab, *http.ServeMux) {
	l := &Lab{Reports: func() string { return dir }}
	mux := http.NewServeMux()
	l.routes(mux)
	return l, mux
}

func asked(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// What is in the folder of reports is listed and shown, and nothing that is outside of it.
func TestReports(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret.json")
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, 1, 1, 0, 0, len(name), 0, time.UTC)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write("a/report.json", `{"schema":"headgate.bench.report/1","verdict":"pass","plan":{"name":"lending"}}`)
	write("a/report.html", `<script>alert(1)</script>`)
	write("sim.json", `{"profile":"p","seeds":[1,2],"arms":[{"name":"x"}]}`)
	write("broken.json", `{`)
	write("notes.md", "# Notes")
	write("program.sh", "rm -rf /")
	write(".hidden/report.html", "no")
	write("1/2/3/4/deep.txt", "shown")
	write("1/2/3/4/5/deeper.txt", "not")
	if err := os.WriteFile(outside, []byte(`"secret"`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"link.json", "a/link.json"} {
		if err := os.Symlink(outside, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(filepath.Dir(outside), filepath.Join(dir, "out")), os.Mkdir(filepath.Join(dir, "folder.html"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "a/report.html"), maxReportBytes); err != nil {
		t.Fatal(err)
	}
	write("large.md", "")
	if err := os.Truncate(filepath.Join(dir, "large.md"), maxReportBytes+1); err != nil {
		t.Fatal(err)
	}
	_, lab := labOf(dir)

	var v ReportsView
	if w := asked(lab, "GET", "/api/lab/reports", ""); w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &v) != nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	listed := map[string]string{}
	for _, r := range v.Reports {
		listed[r.File] = fmt.Sprintf("%s %s %s", r.Kind, r.Title, r.Verdict)
	}
	want := map[string]string{"a/report.json": "bench lending pass", "a/report.html": "  ", "sim.json": "sim p, 2 seeds, 1 arms ", "broken.json": "  ", "notes.md": "  ", "1/2/3/4/deep.txt": "  ", "large.md": "  "}
	if fmt.Sprint(listed) != fmt.Sprint(want) || !v.Configured || v.LeftOut {
		t.Errorf("%+v\nwant %v", v, want)
	}
	for file, want := range map[string]struct {
		status int
		says   string
	}{
		"notes.md": {200, "# Notes"}, "a/report.json": {200, "lending"}, "a/report.html": {200, "alert"},
		"large.md":        {413, "at most 8388608 are shown"},
		"gone.html":       {404, "no report"},
		"folder.html":     {404, "no report"},
		"link.json":       {404, "no report"},
		"a/link.json":     {404, "no report"},
		"out/secret.json": {404, "no report"},
		"program.sh":      {400, "must be one of"},
		"":                {400, "must be one of"},
		"../" + filepath.Base(filepath.Dir(outside)) + "/secret.json": {400, "must be one of"},
		"a/../../x.json": {400, "must be one of"}, "/etc/passwd.json": {400, "must be one of"}, outside: {400, "must be one of"}, `..\x.json`: {404, "no report"}, "a//report.json": {400, "must be one of"},
	} {
		w := asked(lab, "GET", "/api/lab/report?file="+url.QueryEscape(file), "")
		if w.Code != want.status || !strings.Contains(w.Body.String(), want.says) || strings.Contains(w.Body.String(), `"secret"`) {
			t.Errorf("%s: %d %.100s, want %d %s", file, w.Code, w.Body, want.status, want.says)
		}
		if h := w.Header(); w.Code == 200 && (!strings.HasPrefix(h.Get("Content-Security-Policy"), "sandbox; default-src 'none';") || h.Get("X-Content-Type-Options") != "nosniff") {
			t.Errorf("%s: %v", file, h)
		}
	}

	_, none := labOf("")
	if w := asked(none, "GET", "/api/lab/reports", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"configured": false`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := asked(none, "GET", "/api/lab/report?file=notes.md", ""); w.Code != 404 || !strings.Contains(w.Body.String(), "set console.reports") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	_, gone := labOf(filepath.Join(dir, "nowhere"))
	if w := asked(gone, "GET", "/api/lab/reports", ""); w.Code != 500 || !strings.Contains(w.Body.String(), "console.reports") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// One simulation runs at a time, and ends when its operator leaves or its time is over.
func TestWhatIfIsBounded(t *testing.T) {
	l, lab := labOf("")
	for body, want := range map[string]string{
		`{`: "one JSON object", `{"fast":true}`: `unknown field "fast"`, `{"policy":"` + strings.Repeat("x", maxWhatIf) + `"}`: "too large",
	} {
		if w := asked(lab, "POST", "/api/lab/whatif", body); w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.40s: %d %s", body, w.Code, w.Body)
		}
	}
	if w := asked(lab, "POST", "/api/lab/whatif", `{}`, "Origin", "https://evil.test"); w.Code != 403 {
		t.Errorf("%d", w.Code)
	}
	for err, status := range map[error]int{
		fmt.Errorf("%w: seeds is 9", ErrWhatIf): 400, errors.New("broken"): 500, fmt.Errorf("stopped: %w", context.DeadlineExceeded): 503,
	} {
		l.Simulate = func(context.Context, *WhatIf) (*WhatIfView, error) { return nil, err }
		if w := asked(lab, "POST", "/api/lab/whatif", `{}`); w.Code != status {
			t.Errorf("%v: %d %s", err, w.Code, w.Body)
		}
	}
	began, end := make(chan context.Context, 1), make(chan struct{})
	l.Simulate = func(ctx context.Context, in *WhatIf) (*WhatIfView, error) {
		began <- ctx
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-end:
			return &WhatIfView{Pool: in.Pool}, nil
		}
	}
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- asked(lab, "POST", "/api/lab/whatif", `{"pool":"main"}`) }()
	ctx := <-began
	if at, ok := ctx.Deadline(); !ok || time.Until(at) > WhatIfTime {
		t.Errorf("its time ends at %v, %v", at, ok)
	}
	if w := asked(lab, "POST", "/api/lab/whatif", `{}`); w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("a second one: %d %s", w.Code, w.Body)
	}
	close(end)
	if w := <-first; w.Code != 200 || !strings.Contains(w.Body.String(), `"pool": "main"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}

	// Over a connection: who leaves ends it.
	end = make(chan struct{})
	s := httptest.NewServer(lab)
	defer s.Close()
	leave, left := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(leave, "POST", s.URL+"/api/lab/whatif", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	go func() {
		if res, err := s.Client().Do(r); err == nil {
			_ = res.Body.Close()
		}
	}()
	ctx = <-began
	left()
	<-ctx.Done()
}

// A configuration is asked for and checked one at a time, and what is pasted is in no record.
func TestSettings(t *testing.T) {
	k := &stored{}
	bubble(t, setup{audit: k}, func(t *testing.T, r *rig) {
		if w := r.admin("/api/config"); w.Code != 404 {
			t.Errorf("without any: %d", w.Code)
		}
		inside := make(chan func(), 1)
		r.gateway.cfg.Settings = &Settings{
			Show: func() (*SettingsView, error) { return &SettingsView{File: "hg.yaml"}, nil },
			Check: func(text []byte) (*CheckView, error) {
				select {
				case f := <-inside:
					f()
				default:
				}
				return &CheckView{Good: string(text) == "good"}, nil
			},
		}
		if w := r.admin("/api/config"); w.Code != 200 || !strings.Contains(w.Body.String(), `"file": "hg.yaml"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		k.text(t)
		for _, c := range []struct {
			body    string
			headers []string
			status  int
			says    string
		}{
			{body: `{"text":"good"}`, status: 200, says: `"good": true`},
			{body: `{"text":"key: hg_secret"}`, status: 200, says: `"good": false`},
			{body: `{}`, status: 400, says: `must have "text"`},
			{body: `good`, status: 400, says: "one JSON object"},
			{body: `{"text":"` + strings.Repeat("x", maxCheck) + `"}`, status: 400, says: "too large"},
			{body: `{"text":""}`, headers: []string{"Sec-Fetch-Site", "cross-site"}, status: 403, says: "another origin"},
			{body: `{"text":""}`, headers: []string{"Content-Type", "text/yaml"}, status: 415, says: "application/json"},
		} {
			if w := r.turn("/api/config/check", c.body, c.headers...); w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("%.40s: %d %s, want %d %s", c.body, w.Code, w.Body, c.status, c.says)
			}
		}
		if got := k.text(t); strings.Count(got, "path=/api/config/check") != 7 || strings.Contains(got, "secret") || strings.Contains(got, "detail") {
			t.Errorf("%s", got)
		}
		admin := r.gateway.Admin(r.metrics)
		inside <- func() {
			if w := asked(admin, "POST", "/api/config/check", `{"text":""}`); w.Code != 429 {
				t.Errorf("a second one: %d %s", w.Code, w.Body)
			}
		}
		if w := asked(admin, "POST", "/api/config/check", `{"text":"good"}`); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
