package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait for a condition. It is no measure of speed: only a
// broken engine needs as long.
const patience = 30 * time.Second

// object is a JSON body.
type object = map[string]any

// answer is a chat or text completion as an OpenAI-compatible server sends it,
// whole or in chunks.
type answer struct {
	Choices []struct {
		Text    string
		Message struct{ Content string }
		Delta   struct {
			Role    string
			Content string
		}
		FinishReason   string `json:"finish_reason"`
		TokenIDs       []int  `json:"token_ids"`
		PromptTokenIDs []int  `json:"prompt_token_ids"` // completions
	}
	PromptTokenIDs []int `json:"prompt_token_ids"` // chat
	Usage          *usage
	Metrics        *timing
	Error          *apiError
}

// timing is vLLM's per-request metrics, as far as they are looked at.
type timing struct {
	QueueMS float64 `json:"queue_time_ms"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type apiError struct {
	Message string
	Type    string
	Param   string
	Code    int
}

// text returns what the first choice says, wherever it stands.
func (a *answer) text() string {
	if len(a.Choices) == 0 {
		return ""
	}
	c := &a.Choices[0]
	return c.Text + c.Message.Content + c.Delta.Content
}

// result is a generation put together from all that was sent.
type result struct {
	text     string
	ids      []int
	prompt   []int // the prompt's ids
	finish   string
	usage    *usage
	metrics  *timing
	chunks   int // events with text
	events   int
	finished bool // the terminator came
}

func (r *result) add(a *answer) {
	r.events++
	if a.Usage != nil {
		r.usage = a.Usage
	}
	if a.Metrics != nil {
		r.metrics = a.Metrics
	}
	r.prompt = append(r.prompt, a.PromptTokenIDs...)
	if len(a.Choices) == 0 {
		return
	}
	c := &a.Choices[0]
	r.prompt = append(r.prompt, c.PromptTokenIDs...)
	r.ids = append(r.ids, c.TokenIDs...)
	if t := a.text(); t != "" {
		r.text += t
		r.chunks++
	}
	if c.FinishReason != "" {
		r.finish = c.FinishReason
	}
}

// post sends body and returns the response. Cancelling ctx drops the connection.
func post(ctx context.Context, url string, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// ask makes a request that is not streamed and decodes its answer into v.
func ask(t testing.TB, url string, body, v any) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := post(ctx, url, body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(v); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return res.StatusCode
}

// generate makes one request, streamed where body says so, and returns what came.
func generate(ctx context.Context, url string, body object) (*result, error) {
	s, err := openStream(ctx, url, body)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if body["stream"] != true {
		var a answer
		if err := json.NewDecoder(s.body).Decode(&a); err != nil {
			return nil, err
		}
		s.add(&a)
		return &s.result, nil
	}
	for {
		switch err := s.next(); err {
		case nil:
		case io.EOF:
			return &s.result, nil
		default:
			return &s.result, err
		}
	}
}

// mustGenerate is generate for requests that have to succeed.
func mustGenerate(t testing.TB, url string, body object) *result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := generate(ctx, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// stream is a running answer.
type stream struct {
	result
	body  io.ReadCloser
	lines *bufio.Scanner
}

// openStream sends body and returns once the server has sent its headers. An
// answer other than 200 is an error with the body's text.
func openStream(ctx context.Context, url string, body object) (*stream, error) {
	res, err := post(ctx, url, body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return nil, fmt.Errorf("%s: %s", res.Status, text)
	}
	return newStream(res.Body), nil
}

func newStream(body io.ReadCloser) *stream {
	return &stream{body: body, lines: bufio.NewScanner(body)}
}

func (s *stream) close() { s.body.Close() }

// next reads one event into the result; io.EOF is the terminator.
func (s *stream) next() error {
	for s.lines.Scan() {
		data, ok := strings.CutPrefix(s.lines.Text(), "data: ")
		if !ok {
			continue // blank lines and comments
		}
		if data == "[DONE]" {
			s.finished = true
			return io.EOF
		}
		var a answer
		if err := json.Unmarshal([]byte(data), &a); err != nil {
			return fmt.Errorf("event %q: %w", data, err)
		}
		if a.Error != nil {
			return fmt.Errorf("error in the stream: %s", a.Error.Message)
		}
		s.add(&a)
		return nil
	}
	if err := s.lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// await reads until n events with text have come.
func (s *stream) await(t testing.TB, n int) {
	t.Helper()
	for s.chunks < n {
		if err := s.next(); err != nil {
			t.Fatalf("after %d of %d chunks: %v", s.chunks, n, err)
		}
	}
}

// metrics is one scrape: each sample's value by its name, summed over labels.
type metrics map[string]float64

func scrape(ctx context.Context, url string) (metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	m := make(metrics)
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		series, value, ok := strings.Cut(line, "} ")
		if !ok {
			series, value, ok = strings.Cut(line, " ")
		}
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("metrics line %q is not a sample", line)
		}
		name, _, _ := strings.Cut(series, "{")
		m[name] += v
	}
	return m, nil
}

// running and waiting read an engine's load, whichever engine it is.
func (m metrics) running() float64 {
	return m["vllm:num_requests_running"] + m["llamacpp:requests_processing"]
}

func (m metrics) waiting() float64 {
	return m["vllm:num_requests_waiting"] + m["llamacpp:requests_deferred"]
}

// scrapeUntil scrapes until a sample satisfies ok, and returns that one.
func scrapeUntil(t testing.TB, url, want string, ok func(metrics) bool) metrics {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := scrape(ctx, url)
		if err != nil {
			t.Fatalf("waiting until %s: %v", want, err)
		}
		if ok(m) {
			return m
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s; running %v, waiting %v", patience, want, m.running(), m.waiting())
		}
	}
}

func untilLoad(t testing.TB, url string, running, waiting float64) metrics {
	t.Helper()
	return scrapeUntil(t, url, fmt.Sprintf("%v run and %v wait", running, waiting), func(m metrics) bool {
		return m.running() == running && m.waiting() == waiting
	})
}
