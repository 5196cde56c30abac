// Package console is the web console: the pages that a browser shows on the admin listener.
// They hold no data themselves. What they show they ask of the listener's API, with the key
// that its user has; so the pages are served to whoever asks.
//
// The pages are made by make console out of src, and embedded. What they say of pools is
// defined in package console/now, and gathered in console/live.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// The folder always has something to embed: the file that has git ignore the rest.
//
//go:embed all:dist
var dist embed.FS

//go:embed placeholder.html
var placeholder []byte

// Path is where the console is on the admin listener.
const Path = "/console/"

// policy lets a page have nothing but its style, files of its own and the listener's API: what
// somebody gets into it by a name or a message can't run, and can't send anything anywhere.
func policy(style string) string {
	return "default-src 'none'; script-src 'self'; style-src " + style + "; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// styleOf is what a policy has to allow for the style that a page brings with it, 'none'
// where it brings none.
func styleOf(page []byte) string {
	_, rest, ok := bytes.Cut(page, []byte("<style>"))
	style, _, closed := bytes.Cut(rest, []byte("</style>"))
	if !ok || !closed {
		return "'none'"
	}
	sum := sha256.Sum256(style)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Built tells whether the binary has the console in it.
func Built() bool { return built(dist) }

func built(files fs.FS) bool {
	_, err := fs.Stat(files, "dist/app/index.html.gz")
	return err == nil
}

// Handler serves the console below Path.
func Handler() http.Handler { return handler(dist) }

// file is a file of the console, compressed as it was built.
type file struct {
	gz      []byte
	kind    string
	tag     string
	forever bool // its name changes when it does
}

func handler(from fs.FS) http.Handler {
	files := map[string]file{}
	app, err := fs.Sub(from, "dist/app")
	if err == nil && built(from) {
		err = fs.WalkDir(app, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			gz, err := fs.ReadFile(app, name)
			name = strings.TrimSuffix(name, ".gz")
			sum := sha256.Sum256(gz)
			files[name] = file{gz: gz, kind: kind(name), tag: `"` + hex.EncodeToString(sum[:8]) + `"`, forever: strings.HasPrefix(name, "assets/")}
			return err
		})
	}
	page, unpacked := []byte(nil), error(nil)
	if f, ok := files["index.html"]; ok {
		page, unpacked = f.plain()
	}
	if err = errors.Join(err, unpacked); err != nil {
		panic("console: what was embedded can't be read: " + err.Error()) // it is in memory
	}
	allowed := policy(styleOf(page))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", allowed)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		name, ok := strings.CutPrefix(r.URL.Path, Path)
		switch {
		case !ok:
			http.NotFound(w, r)
			return
		case name == "":
			name = "index.html"
		}
		if len(files) == 0 && name == "index.html" {
			h.Set("Content-Type", "text/html; charset=utf-8")
			h.Set("Cache-Control", "no-store")
			_, _ = w.Write(placeholder) // a reader that has gone needs no answer
			return
		}
		f, ok := files[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		f.serve(w, r)
	})
}

// kind is a file's media type: not the system's, which differs from machine to machine.
func kind(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.TypeByExtension(path.Ext(name))
}

// plain is the file as it was before it was compressed.
func (f file) plain() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(f.gz))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Etag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if f.forever {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		// It is asked for again, and is mostly the same. A proxy that changes a byte of its
		// style takes it all away.
		h.Set("Cache-Control", "no-cache, no-transform")
	}
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.gz
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
	} else {
		var err error
		if body, err = f.plain(); err != nil {
			http.Error(w, "the file is broken", http.StatusInternalServerError)
			return
		}
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}
