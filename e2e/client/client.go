// Package client makes calls through the official SDKs, OpenAI's and Anthropic's, and
// through the AI SDK, in a node process of its own, and reports what their user
// would have seen.
package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"
	"time"

	"headgate/e2e/need"
)

// Route names one of the SDKs' methods.
type Route string

const (
	Chat        Route = "chat"             // client.chat.completions.create
	ChatHelper  Route = "chatHelper"       // client.chat.completions.stream, put together by the SDK
	Completions Route = "completions"      // client.completions.create
	Models      Route = "models"           // client.models.list
	Responses   Route = "responses"        // client.responses.create and .stream
	Retrieve    Route = "retrieveResponse" // client.responses.retrieve, of the body's id
	Embeddings  Route = "embeddings"       // client.embeddings.create
	Messages    Route = "messages"         // Anthropic's client.messages.create and .stream
	CountTokens Route = "countTokens"      // Anthropic's client.messages.countTokens

	GenerateText Route = "generateText" // the AI SDK's, by its provider of OpenAI's APIs; see ai.mjs for bodies
	StreamText   Route = "streamText"
	EmbedMany    Route = "embedMany"
)

// Call is one use of an SDK.
type Call struct {
	BaseURL    string            `json:"baseURL"` // with /v1
	APIKey     string            `json:"apiKey,omitempty"`
	Route      Route             `json:"route"`
	Body       map[string]any    `json:"body,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"`
	MaxRetries int               `json:"maxRetries"`          // the SDK's own default is 2
	TimeoutMS  int               `json:"timeoutMs,omitempty"` // 60,000 when zero
	// AbortAfter drops the stream after so many chunks that carry text, of a
	// message or response anything; 0: never.
	AbortAfter int `json:"abortAfter,omitempty"`
}

// Result is what came of a call. Times are milliseconds since the call was made.
type Result struct {
	ID           string            `json:"id"`
	Text         string            `json:"text"`
	Chunks       int               `json:"chunks"` // that carried text
	FinishReason string            `json:"finishReason"`
	Usage        *Usage            `json:"usage"`
	Message      json.RawMessage   `json:"message"` // as the SDK has it; of a chat the first choice's; not of streams of chat and completions
	Embeddings   [][]float64       `json:"embeddings"`
	Models       []string          `json:"models"`
	Headers      map[string]string `json:"headers"` // of the last response, names in lower case
	Attempts     []Attempt         `json:"attempts"`
	Aborted      bool              `json:"aborted"`
	Error        *Error            `json:"error"`
	FirstMS      float64           `json:"firstMs"` // the first chunk with text; 0 without one
	ElapsedMS    float64           `json:"elapsedMs"`
}

// Usage is the engine's account of a call, in tokens, whatever its API calls them.
type Usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// Attempt is one HTTP request of the SDK's.
type Attempt struct {
	AtMS   float64 `json:"atMs"`
	Status int     `json:"status"` // 0: no answer
}

// Error is what the SDK threw.
type Error struct {
	Class   string `json:"class"` // RateLimitError, AuthenticationError, ...
	Message string `json:"message"`
	Status  int    `json:"status"`
	Type    string `json:"type"`
	Code    string `json:"code"`
	Param   string `json:"param"`
	// RequestID is what Anthropic's SDK has of it.
	RequestID string `json:"requestID"`
}

// Session is a process in which some calls run at once.
type Session struct {
	t     testing.TB
	calls []pending
}

type pending struct {
	first chan struct{} // closed at the first chunk, or at the end
	done  chan struct{}
	res   Result
}

// limit bounds a whole session; a call's own timeout ends it long before.
const limit = 2 * time.Minute

// Start makes the calls, all at once. dir is this package's folder, where npm has
// installed the SDK; without node or the SDK the test is skipped (see package need).
// A session that is still running when the test ends is killed.
func Start(t testing.TB, dir string, calls ...Call) *Session {
	t.Helper()
	return start(t, dir, calls)
}

// InOrder makes the calls one after another and returns what came of each.
func InOrder(t testing.TB, dir string, calls ...Call) []Result {
	t.Helper()
	s := start(t, dir, calls, "in-order")
	all := make([]Result, len(calls))
	for i := range all {
		all[i] = s.Result(i)
	}
	return all
}

func start(t testing.TB, dir string, calls []Call, args ...string) *Session {
	t.Helper()
	node := need.Tool(t, "node")
	need.NodeModules(t, dir)
	input, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, append([]string{"run.mjs"}, args...)...)
	cmd.Dir = dir
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{t: t, calls: make([]pending, len(calls))}
	for i := range s.calls {
		s.calls[i].first, s.calls[i].done = make(chan struct{}), make(chan struct{})
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	t.Cleanup(func() { <-read })
	go func() {
		defer close(read)
		s.read(bufio.NewScanner(stdout))
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("the SDK's process: %v\n%s", err, &stderr)
		}
	}()
	return s
}

// read follows the process's events, and closes whatever it left open.
func (s *Session) read(lines *bufio.Scanner) {
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event struct {
			Index int
			Event string
			Result
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil || event.Index < 0 || event.Index >= len(s.calls) {
			s.t.Errorf("the SDK's process said %q: %v", lines.Bytes(), err)
			continue
		}
		c := &s.calls[event.Index]
		if event.Event == "first" {
			close(c.first)
			continue
		}
		c.res = event.Result
		shut(c.first)
		close(c.done)
	}
	for i := range s.calls {
		shut(s.calls[i].first)
		shut(s.calls[i].done)
	}
}

// shut closes c unless it is closed.
func shut(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// First returns a channel that is closed at call i's first chunk with text, or
// when it ends without one.
func (s *Session) First(i int) <-chan struct{} { return s.calls[i].first }

// Done returns a channel that is closed when call i has ended.
func (s *Session) Done(i int) <-chan struct{} { return s.calls[i].done }

// Result waits for call i and returns what came of it.
func (s *Session) Result(i int) Result {
	s.t.Helper()
	select {
	case <-s.calls[i].done:
	case <-time.After(limit):
		s.t.Fatalf("call %d of the SDK did not end within %v", i, limit)
	}
	return s.calls[i].res
}

// Run makes one call and waits for it.
func Run(t testing.TB, dir string, c Call) Result {
	t.Helper()
	return Start(t, dir, c).Result(0)
}
