package vllmapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"headgate/simengine"
)

// serve runs a server on a real socket until the test ends.
func serve(t testing.TB, cfg Config) (*Server, *httptest.Server) {
	t.Helper()
	s := start(t, cfg)
	h := httptest.NewServer(s.Handler())
	t.Cleanup(h.Close)
	return s, h
}

// start runs a server's loop until the test ends.
func start(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

func post(t testing.TB, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, readAll(t, resp.Body)
}

func readAll(t testing.TB, r io.Reader) string {
	data, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

func get(t testing.TB, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return readAll(t, resp.Body)
}

// said is an answer, or an event of one, as a client reads it.
type said struct {
	ID       string            `json:"id"`
	Request  string            `json:"request_id"`
	Object   string            `json:"object"`
	Model    string            `json:"model"`
	PromptID []simengine.Token `json:"prompt_token_ids"`
	Choices  []struct {
		Index    int    `json:"index"`
		Text     string `json:"text"`
		Delta    struct{ Role, Content string }
		Message  struct{ Role, Content string }
		Finish   string            `json:"finish_reason"`
		Stop     string            `json:"stop_reason"`
		TokenIDs []simengine.Token `json:"token_ids"`
		PromptID []simengine.Token `json:"prompt_token_ids"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Metrics map[string]float64 `json:"metrics"`
	Error   *struct {
		Message, Type, Param string
		Code                 int
	} `json:"error"`
}

func parse(t testing.TB, data string) said {
	t.Helper()
	var a said
	if err := json.Unmarshal([]byte(data), &a); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return a
}

// events splits a stream and checks that it is terminated.
func events(t testing.TB, stream string) []said {
	t.Helper()
	parts := strings.Split(stream, "\n\n")
	if len(parts) < 2 || parts[len(parts)-1] != "" || parts[len(parts)-2] != "data: [DONE]" {
		t.Fatalf("stream does not end with [DONE]: %q", stream)
	}
	var all []said
	for _, p := range parts[:len(parts)-2] {
		data, ok := strings.CutPrefix(p, "data: ")
		if !ok {
			t.Fatalf("not an event: %q", p)
		}
		all = append(all, parse(t, data))
	}
	return all
}

// gathered is what a stream adds up to for its first choice.
type gathered struct {
	text   string
	ids    []simengine.Token
	finish string
	n      int // events with a token
}

func gather(all []said) (g gathered) {
	for _, a := range all {
		for _, c := range a.Choices {
			if c.Index != 0 {
				continue
			}
			g.text += c.Text + c.Delta.Content
			g.ids = append(g.ids, c.TokenIDs...)
			if len(c.TokenIDs) > 0 {
				g.n++
			}
			if c.Finish != "" {
				g.finish = c.Finish
			}
		}
	}
	return g
}

// call is a request that runs in the test's own process, so that synctest's
// clock is its clock.
type call struct {
	header http.Header
	status int
	body   bytes.Buffer
	began  time.Time
	first  time.Duration // to the first body byte
	took   time.Duration // to the end
	done   chan struct{}
}

func (c *call) Header() http.Header { return c.header }
func (c *call) WriteHeader(s int)   { c.status = s }
func (c *call) Flush()              {}
func (c *call) Write(p []byte) (int, error) {
	if c.body.Len() == 0 {
		c.first = time.Since(c.began)
	}
	return c.body.Write(p)
}

func (s *Server) call(ctx context.Context, path, body string, headers ...string) *call {
	c := &call{header: http.Header{}, status: 200, began: time.Now(), done: make(chan struct{})}
	r := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	go func() {
		defer close(c.done)
		s.Handler().ServeHTTP(c, r)
		c.took = time.Since(c.began)
	}()
	return c
}
