// Package enginetest is an engine under a test's control. It speaks enough of
// vLLM, SGLang, llama-server or a bare OpenAI server to be dispatched to, observed and
// aborted, and does nothing by itself: the test accepts each request, decides
// when it starts, how many tokens come and how it ends.
//
//	e := enginetest.New(t, enginetest.Options{Kind: engine.VLLM})
//	adapter, _ := adapters.New(engine.VLLM, e.Config())
//	go adapter.Dispatch(ctx, attempt)
//	call := e.Accept(t)   // it waits in the engine now
//	call.Emit(3)          // runs; three events of one token
//	call.Finish("stop")   // finish reason, usage if asked for, [DONE]
//
// The network is in memory, so that tests may run under testing/synctest;
// Listen adds a socket. By default the engine is honest and quick: it notices a
// closed connection, and makes a step whenever its load is looked at. Options
// and Call have the ways in which real ones are not.
package enginetest

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/wire"
)

// Options is what the engine is.
type Options struct {
	Kind       engine.Kind
	Model      string // "test-model"
	Slots      int    // llama-server's slots; 4
	KVTokens   int    // the pool's size; 16384
	BlockSize  int    // 16
	MaxContext int    // 4096
	// Manual: gauges and counters change with Step only, as vLLM's do.
	Manual bool
	// Ghosts: a closed connection is not noticed, and its sequence stays until
	// Call.Free.
	Ghosts bool
	// Forgets: a closed connection makes SGLang forget the request's id and let it
	// run; an abort finds it only before.
	Forgets bool
}

// Engine is the fake.
type Engine struct {
	opts   Options
	mem    *Listener
	server *http.Server
	calls  chan *Call

	mu      sync.Mutex
	held    map[*Call]state
	now     gauges // as last written
	aborted int
	aborts  []string // ids of SGLang's aborts
	extra   map[string]override
	scrapes map[string]int
}

type state uint8

const (
	waiting state = 1 + iota
	running
)

type gauges struct{ running, waiting, generated int }

type override struct {
	status int
	body   string
}

// New starts an engine that stops with the test.
func New(tb testing.TB, opts Options) *Engine {
	tb.Helper()
	def := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&opts.Slots, 4)
	def(&opts.KVTokens, 16384)
	def(&opts.BlockSize, 16)
	def(&opts.MaxContext, 4096)
	if opts.Model == "" {
		opts.Model = "test-model"
	}
	if opts.Kind == "" {
		opts.Kind = engine.VLLM
	}
	e := &Engine{
		opts: opts, mem: NewListener(), calls: make(chan *Call, 1<<14),
		held: map[*Call]state{}, extra: map[string]override{}, scrapes: map[string]int{},
	}
	e.server = &http.Server{Handler: http.HandlerFunc(e.serve), ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = e.server.Serve(e.mem) }()
	tb.Cleanup(e.Close)
	return e
}

// Close stops the engine as a crash does: every connection breaks.
func (e *Engine) Close() {
	_ = e.mem.Close()
	_ = e.server.Close()
}

// Config reaches the engine through memory. It has the defaults.
func (e *Engine) Config() engine.Config {
	var c engine.Config
	c.SetDefaults()
	c.Kind = e.opts.Kind
	c.URL = "http://engine.test/v1"
	// A loaded machine that runs tests is not a slow engine.
	c.ScrapeTimeout = 10 * time.Second
	c.DialContext = e.mem.DialContext
	return c
}

// Listen serves on a loopback socket too, and returns its URL.
func (e *Engine) Listen(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	go func() { _ = e.server.Serve(l) }()
	return "http://" + l.Addr().String()
}

// Dialed is the number of connections made through memory.
func (e *Engine) Dialed() int { return e.mem.Dialed() }

// Accept returns the next request that arrived, in order of arrival.
func (e *Engine) Accept(tb testing.TB) *Call {
	tb.Helper()
	select {
	case c := <-e.calls:
		return c
	case <-time.After(30 * time.Second):
		tb.Fatal("no request reached the engine")
		return nil
	}
}

// Step ends a scheduler step: every running sequence gets a token and the
// gauges are written.
func (e *Engine) Step() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stepLocked()
}

func (e *Engine) stepLocked() {
	now := gauges{generated: e.now.generated}
	for _, s := range e.held {
		if s == running {
			now.running++
		} else {
			now.waiting++
		}
	}
	now.generated += now.running
	e.now = now
}

// Running and Waiting are what the engine holds, whatever its gauges say;
// Aborted counts the requests whose client left before their end.
func (e *Engine) Running() int { return e.count(running) }
func (e *Engine) Waiting() int { return e.count(waiting) }
func (e *Engine) Aborted() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.aborted
}

func (e *Engine) count(want state) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.held {
		if s == want {
			n++
		}
	}
	return n
}

// Scrapes is how often a document was asked for.
func (e *Engine) Scrapes(path string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.scrapes[path]
}

// Answer makes a document answer with a status and a body from now on; status 0
// restores it.
func (e *Engine) Answer(path string, status int, body string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if status == 0 {
		delete(e.extra, path)
		return
	}
	e.extra[path] = override{status, body}
}

func (e *Engine) serve(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.scrapes[r.URL.Path]++
	fixed, isFixed := e.extra[r.URL.Path]
	e.mu.Unlock()
	if isFixed {
		w.WriteHeader(fixed.status)
		_, _ = io.WriteString(w, fixed.body)
		return
	}
	switch r.URL.Path {
	case wire.Chat.Path():
		e.generate(w, r, wire.Chat)
		return
	case wire.Completions.Path():
		e.generate(w, r, wire.Completions)
		return
	case wire.Embeddings.Path():
		e.generate(w, r, wire.Embeddings)
		return
	}
	if e.opts.Kind == engine.LlamaCpp && e.llama(w, r) {
		return
	}
	if e.sglang(w, r) {
		return
	}
	body, ok := e.document(r.URL.Path)
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":{"message":"Not Found","type":"NotFoundError","code":404}}`)
		return
	}
	_, _ = io.WriteString(w, body)
}

func (e *Engine) generate(w http.ResponseWriter, r *http.Request, api wire.API) {
	// The server notices a closed connection only once the body has been read.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	c := &Call{
		API: api, ID: r.Header.Get("X-Request-Id"), Header: r.Header.Clone(), Body: body,
		engine: e, native: r.URL.Path == nativePath, stream: gjson.GetBytes(body, "stream").Bool(),
		ops: make(chan op), gone: make(chan struct{}), ended: make(chan struct{}),
	}
	e.mu.Lock()
	e.held[c] = waiting
	if !e.opts.Manual {
		e.stepLocked()
	}
	e.mu.Unlock()
	e.calls <- c
	defer close(c.ended)
	for {
		select {
		case o := <-c.ops:
			over := o.do(w)
			close(o.done)
			if over {
				c.Free()
			}
			switch {
			case o.cut:
				panic(http.ErrAbortHandler)
			case over:
				return
			}
		case <-r.Context().Done():
			e.mu.Lock()
			e.aborted++
			e.mu.Unlock()
			c.disconnected()
			close(c.gone)
			return
		}
	}
}

// Call is one request at the engine. Its methods return once the engine has
// written; after the client has gone they do nothing.
type Call struct {
	API    wire.API
	ID     string // X-Request-Id
	Header http.Header
	Body   []byte

	engine      *Engine
	native      bool // llama-server's own route
	stream      bool
	forgotten   bool // by an SGLang that forgets; under the engine's lock
	tokens      int
	ops         chan op
	gone, ended chan struct{}
}

type op struct {
	do   func(http.ResponseWriter) (over bool)
	cut  bool
	done chan struct{}
}

// Gone is closed when the engine has noticed that the client left.
func (c *Call) Gone() <-chan struct{} { return c.gone }

// Free takes the sequence out of the engine, which is left to a ghost's test.
func (c *Call) Free() {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	delete(c.engine.held, c)
}

func (c *Call) do(do func(http.ResponseWriter) bool) { c.run(op{do: do}) }

func (c *Call) run(o op) {
	o.done = make(chan struct{})
	select {
	case c.ops <- o:
		<-o.done
	case <-c.ended:
	}
}

// Start takes the request from the queue into the batch.
func (c *Call) Start() {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	if _, held := c.engine.held[c]; held {
		c.engine.held[c] = running
	}
	if !c.engine.opts.Manual {
		c.engine.stepLocked()
	}
}

// Headers answers with status 200 and no event yet: vLLM when it accepts,
// llama-server when it starts.
func (c *Call) Headers() {
	c.do(func(w http.ResponseWriter) bool {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.WriteHeader(http.StatusOK)
		flush(w)
		return false
	})
}

// Emit starts the request if it waits, and sends n events of one token each, in
// one write.
func (c *Call) Emit(n int) {
	var events strings.Builder
	for range n {
		c.tokens++
		events.WriteString(c.event(fmt.Sprintf("w%d ", c.tokens), "", ""))
	}
	c.Start()
	if c.stream {
		c.Send(events.String())
	}
}

// Send writes bytes as they are.
func (c *Call) Send(raw string) {
	c.do(func(w http.ResponseWriter) bool {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, raw)
		flush(w)
		return false
	})
}

// Finish ends the request: the finish reason, the usage chunk if the request
// asked for one, and the terminator; or the whole answer, if not streamed.
func (c *Call) Finish(reason string) {
	if !c.stream {
		var text strings.Builder
		for i := range c.tokens {
			fmt.Fprintf(&text, "w%d ", i+1)
		}
		c.Document(http.StatusOK, c.document(text.String(), reason))
		return
	}
	if c.native {
		c.end(c.nativeEnd(reason))
		return
	}
	end := c.event("", reason, "")
	if gjson.GetBytes(c.Body, "stream_options.include_usage").Bool() {
		end += c.event("", "", c.usage())
	}
	c.end(end + "data: [DONE]\n\n")
}

// Fail ends a stream with an error in it, in its engine's manner: llama-server
// sends no terminator after one.
func (c *Call) Fail(status int, message string) {
	end := fmt.Sprintf("data: {\"error\":{\"message\":%q,\"type\":\"server_error\",\"code\":%d}}\n\n", message, status)
	if c.engine.opts.Kind != engine.LlamaCpp {
		end += "data: [DONE]\n\n"
	}
	c.end(end)
}

// End ends the answer cleanly, with nothing more.
func (c *Call) End() { c.end("") }

func (c *Call) end(last string) {
	c.do(func(w http.ResponseWriter) bool {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, last)
		return true
	})
}

// Cut breaks the connection.
func (c *Call) Cut() {
	c.run(op{cut: true, do: func(w http.ResponseWriter) bool { flush(w); return true }})
}

// Document answers with a JSON document: a refusal, or an answer that is not
// streamed. Headers come in pairs.
func (c *Call) Document(status int, body string, headers ...string) {
	c.do(func(w http.ResponseWriter) bool {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return true
	})
}

func (c *Call) event(text, finish, usage string) string {
	if c.native {
		return c.nativeEvent(text, 1000+c.tokens)
	}
	object, prefix := "text_completion", "cmpl-"
	if c.API == wire.Chat {
		object, prefix = "chat.completion.chunk", "chatcmpl-"
	}
	choices := "[]"
	if usage == "" {
		reason := "null"
		if finish != "" {
			reason = fmt.Sprintf("%q", finish)
		}
		payload := fmt.Sprintf(`"text":%q`, text)
		if c.API == wire.Chat {
			payload = fmt.Sprintf(`"delta":{"content":%q}`, text)
		}
		choices = fmt.Sprintf(`[{"index":0,%s,"finish_reason":%s}]`, payload, reason)
	} else {
		usage = `,"usage":` + usage
	}
	return fmt.Sprintf("data: {\"id\":%q,\"object\":%q,\"model\":%q,\"choices\":%s%s}\n\n",
		prefix+c.ID, object, c.engine.opts.Model, choices, usage)
}

func (c *Call) document(text, finish string) string {
	payload := fmt.Sprintf(`"text":%q`, text)
	if c.API == wire.Chat {
		payload = fmt.Sprintf(`"message":{"role":"assistant","content":%q}`, text)
	}
	return fmt.Sprintf(`{"id":%q,"model":%q,"choices":[{"index":0,%s,"finish_reason":%q}],"usage":%s}`,
		c.ID, c.engine.opts.Model, payload, finish, c.usage())
}

// usage takes a prompt for one token per eight bytes of body.
func (c *Call) usage() string {
	prompt := len(c.Body) / 8
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, prompt, c.tokens, prompt+c.tokens)
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// Body is a request's body for tests that need any.
func Body(stream bool) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"model":"test-model","messages":[{"role":"user","content":"hello"}],"stream":%t`, stream)
	if stream {
		b.WriteString(`,"stream_options":{"include_usage":true}`)
	}
	b.WriteByte('}')
	return b.Bytes()
}
