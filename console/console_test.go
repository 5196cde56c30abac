package console

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

func packed(t *testing.T, text string) *fstest.MapFile {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &fstest.MapFile{Data: b.Bytes()}
}

// What is embedded is sent as it is to who takes it so, and unpacked to who does not. Files
// whose names change with them are kept for ever, and the page is asked for again.
func TestHandler(t *testing.T) {
	// The sum was made by openssl dgst -sha256 -binary | base64.
	const page, allowed = "<!doctype html><style>p{color:red}</style><p>", "style-src 'sha256-p0bF+un5yUb9MBO6xRb8kPHlY2BdpHVtLiFkDrZPF64=';"
	h := handler(fstest.MapFS{
		"dist/.gitignore":              {Data: []byte("*")},
		"dist/app/index.html.gz":       packed(t, page),
		"dist/app/assets/main-1.js.gz": packed(t, "console.log(1)"),
		"dist/app/gate.svg.gz":         packed(t, "<svg/>"),
	})
	for _, c := range []struct {
		path, accept, kind, cache, body string
		status                          int
	}{
		{"/console/", "gzip, br", "text/html; charset=utf-8", "no-cache, no-transform", page, 200},
		{"/console/index.html", "", "text/html; charset=utf-8", "no-cache, no-transform", page, 200},
		{"/console/assets/main-1.js", "gzip", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", "console.log(1)", 200},
		{"/console/gate.svg", "identity", "image/svg+xml", "no-cache, no-transform", "<svg/>", 200},
		{"/console/assets/main-0.js", "gzip", "", "", "", 404},
		{"/console/.gitignore", "gzip", "", "", "", 404},
		{"/console/../console.go", "gzip", "", "", "", 404},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		r.Header.Set("Accept-Encoding", c.accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		said := w.Header()
		if p := said.Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'none'") || !strings.Contains(p, allowed) || strings.Contains(p, "unsafe") {
			t.Errorf("%s: policy %q", c.path, p)
		}
		if w.Code != c.status {
			t.Errorf("%s: %d, want %d", c.path, w.Code, c.status)
		}
		if c.status != 200 {
			continue
		}
		var body io.Reader = w.Body
		if packed := said.Get("Content-Encoding") == "gzip"; packed != strings.Contains(c.accept, "gzip") {
			t.Errorf("%s: packed %v for one who accepts %q", c.path, packed, c.accept)
		} else if packed {
			var err error
			if body, err = gzip.NewReader(w.Body); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(body)
		if err != nil || string(text) != c.body || said.Get("Content-Type") != c.kind || said.Get("Cache-Control") != c.cache {
			t.Errorf("%s: %q %v, %v", c.path, text, said, err)
		}
		r.Header.Set("If-None-Match", said.Get("Etag"))
		again := httptest.NewRecorder()
		if h.ServeHTTP(again, r); again.Code != 304 || again.Body.Len() != 0 {
			t.Errorf("%s again: %d, %d bytes", c.path, again.Code, again.Body.Len())
		}
	}
}

// A binary that was built without it says what is missing, and how to get it.
func TestPlaceholder(t *testing.T) {
	h := handler(fstest.MapFS{"dist/.gitignore": {Data: []byte("*")}})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/console/", nil))
	if w.Code != 200 || !strings.Contains(w.Body.String(), "make console build") || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}
