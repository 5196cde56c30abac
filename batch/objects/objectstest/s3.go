// Package objectstest is an S3 that forgets everything: as much of it as contents of
// files ask for.
package objectstest

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// S3 is one bucket of that name, "bucket", in a storage of its own.
type S3 struct {
	server *httptest.Server

	mu      sync.Mutex
	objects map[string]object
	parts   map[string]map[int][]byte // of uploads that are not ended, by their names
	uploads int                       // that were begun in parts
	asked   []string                  // methods, keys and ranges, since Asked
	away    bool
}

type object struct {
	content []byte
	written time.Time
}

// Start runs a storage until the test ends, and sees to it that credentials for it are
// in the environment.
func Start(t testing.TB) *S3 {
	s := &S3{objects: map[string]object{}, parts: map[string]map[int][]byte{}}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	if t, ok := t.(*testing.T); ok {
		t.Setenv("AWS_ACCESS_KEY_ID", "id")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	}
	return s
}

// URL is the bucket's, with what else its query is to say.
func (s *S3) URL(more string) string {
	return "s3://bucket?region=us-east-1&use_path_style=true&endpoint=" + url.QueryEscape(s.server.URL) + more
}

// Names are the objects that there are.
func (s *S3) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.namesLocked("")
}

func (s *S3) namesLocked(prefix string) (all []string) {
	for name := range s.objects {
		if strings.HasPrefix(name, prefix) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// Parts tells how many uploads were begun in parts, and how many of them are not ended.
func (s *S3) Parts() (begun, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uploads, len(s.parts)
}

// Asked are the requests since the last call: method, name and range.
func (s *S3) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

// Away has every request fail, or none any more.
func (s *S3) Away(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *S3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil && strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		body, err = unchunk(body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/bucket")
	name = strings.TrimPrefix(name, "/")
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, strings.TrimSpace(fmt.Sprint(r.Method, " ", name, " ", r.Header.Get("Range"))))
	upload := q.Get("uploadId")
	switch {
	case s.away:
		fail(w, http.StatusForbidden, "AccessDenied")
	case !ok:
		fail(w, http.StatusNotFound, "NoSuchBucket")
	case name == "":
		s.listLocked(w, q)
	case upload != "" && s.parts[upload] == nil:
		fail(w, http.StatusNotFound, "NoSuchUpload")
	case r.Method == http.MethodPost && q.Has("uploads"):
		s.uploads++
		upload = strconv.Itoa(s.uploads)
		s.parts[upload] = map[int][]byte{}
		answer(w, struct {
			XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
			UploadID string   `xml:"UploadId"`
		}{UploadID: upload})
	case r.Method == http.MethodPost:
		var whole []byte
		for i := 1; i <= len(s.parts[upload]); i++ {
			whole = append(whole, s.parts[upload][i]...)
		}
		delete(s.parts, upload)
		s.objects[name] = object{whole, time.Now()}
		answer(w, struct {
			XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
			ETag    string
		}{ETag: `"e"`})
	case r.Method == http.MethodPut && upload != "":
		n, _ := strconv.Atoi(q.Get("partNumber"))
		s.parts[upload][n] = body
		w.Header().Set("ETag", `"e"`)
	case r.Method == http.MethodPut:
		s.objects[name] = object{body, time.Now()}
		w.Header().Set("ETag", `"e"`)
	case r.Method == http.MethodDelete && upload != "":
		delete(s.parts, upload)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		delete(s.objects, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		o, ok := s.objects[name]
		if !ok {
			fail(w, http.StatusNotFound, "NoSuchKey")
			return
		}
		w.Header().Set("ETag", `"e"`)
		http.ServeContent(w, r, "", o.written, bytes.NewReader(o.content))
	}
}

func (s *S3) listLocked(w http.ResponseWriter, q url.Values) {
	type entry struct {
		Key          string
		LastModified string
		ETag         string
		Size         int
	}
	list := struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []entry
	}{}
	for _, name := range s.namesLocked(q.Get("prefix")) {
		o := s.objects[name]
		list.Contents = append(list.Contents, entry{name, o.written.UTC().Format("2006-01-02T15:04:05.000Z"), `"e"`, len(o.content)})
	}
	answer(w, list)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(v) // who asked may be gone
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_ = xml.NewEncoder(w).Encode(struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}{Code: code, Message: code})
}

// unchunk takes the content out of the pieces that it was signed in: each has its length
// in hexadecimal in a line before it.
func unchunk(b []byte) (whole []byte, _ error) {
	for {
		line, rest, ok := bytes.Cut(b, []byte("\r\n"))
		length, _, _ := bytes.Cut(line, []byte(";"))
		n, err := strconv.ParseUint(string(length), 16, 31)
		if !ok || err != nil || int(n) > len(rest) {
			return nil, fmt.Errorf("a piece's length is %.40q", line)
		}
		if n == 0 {
			return whole, nil
		}
		whole = append(whole, rest[:n]...)
		b = bytes.TrimPrefix(rest[n:], []byte("\r\n"))
	}
}
