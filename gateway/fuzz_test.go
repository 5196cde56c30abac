package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/engine"
	"headgate/identity"
	"headgate/relay"
	"headgate/wire"
	"headgate/wire/anthropic"
)

// instant is an engine that answers everything at once.
type instant struct{}

func (instant) Dispatch(_ context.Context, a *engine.Attempt) (engine.Stream, error) {
	data := `{"id":"x","object":"chat.completion.chunk","model":"test-model","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}`
	if a.API == wire.Completions {
		data = `{"id":"x","object":"text_completion","model":"test-model","choices":[{"index":0,"text":"x","finish_reason":"stop"}]}`
	}
	return &instantStream{events: []string{data, "[DONE]"}}, nil
}

func (instant) Observe(context.Context) engine.Observation {
	o := engine.Unreported(time.Now())
	o.State = engine.Ready
	return o
}

func (instant) Capabilities(context.Context) (engine.Capabilities, error) {
	return engine.Capabilities{Kind: engine.OpenAI, Models: []engine.Model{{ID: "test-model"}}, Slots: 4, KVTokens: 1 << 16, BlockSize: 16, MaxContext: 1 << 15}, nil
}

func (instant) Close() {}

type instantStream struct{ events []string }

func (s *instantStream) Header() http.Header { return nil }

func (s *instantStream) Next() (engine.Delta, error) {
	if len(s.events) == 0 {
		return engine.Delta{}, io.EOF
	}
	data := s.events[0]
	s.events = s.events[1:]
	d := engine.Delta{Raw: []byte("data: " + data + "\n\n"), Data: []byte(data)}
	if data == "[DONE]" {
		d.Done = true
	} else {
		d.Chunk = wire.Chunk{Tokens: 1, Content: true, Finish: "stop", Finished: 1}
	}
	return d, nil
}

func (s *instantStream) Abort(context.Context) engine.Confirmation {
	return engine.Confirmation{By: engine.ByCompletion, At: time.Now()}
}

// FuzzHandler: whatever a caller sends, the gateway answers from its table, and
// nothing of it is a fault of ours.
func FuzzHandler(f *testing.F) {
	good := "Authorization: Bearer " + aliceKey
	for _, s := range []struct {
		method, target, header, body string
		chunked                      bool
	}{
		{"POST", chat, good, chatBody(""), false},
		{"POST", chat, good, chatBody(`,"stream":true`), true},
		{"POST", completions, good + "\nHeadgate-Class: batch", `{"model":"test-model","prompt":["a","b"],"n":2,"max_tokens":5}`, false},
		{"POST", completions, good + "\nHeadgate-Class: gold", `{"model":"test-model","prompt":[1,2,3],"service_tier":"flex"}`, false},
		{"POST", chat, good, `{"model":"test-model","messages":[],"n":1e99,"stream":null}`, true},
		{"POST", anthropic.MessagesPath, good, messageBody(`,"stream":true`), false},
		{"POST", anthropic.MessagesPath, "x-api-key: " + aliceKey, messageBody(`,"tools":[{"name":"f","input_schema":{}}],"service_tier":"flex"`), true},
		{"POST", anthropic.CountTokensPath, good, messageBody(""), false},
		{"GET", "/v1/messages/x", good, "", false},
		{"POST", "/v1/responses", good, responseBody(`,"stream":true`), false},
		{"POST", "/v1/responses", good, responseBody(`,"tools":[{"type":"function","name":"f"}],"store":false`), true},
		{"GET", "/v1/responses/resp_1", good, "", false},
		{"POST", embeddings, good, `{"model":"test-model","input":["a",[1]]}`, false},
		{"GET", "/v1/models/a%2Fb", good, "", false},
		{"HEAD", "/v1/models", good, "", false},
		{"POST", "/v1/chat/completions/../../abort_requests?x=%zz", "x-api-key: hg_", "\x00", false},
	} {
		f.Add(s.method, s.target, s.header, []byte(s.body), s.chunked)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	metrics := prometheus.NewRegistry()
	pool := relay.New(relay.Config{
		Name: "main", Classes: []string{"interactive", "batch"}, Capacity: 16,
		Engines:     []relay.Engine{{Name: "gpu0", Adapter: instant{}, ObserveEvery: time.Hour, Priority: []int{0, 10}}},
		IdleTimeout: time.Minute, MaxAnswer: 1 << 20, Start: time.Now(), Log: log, Metrics: relay.NewMetrics(metrics),
		Resolve: func(engines []admission.EngineSpec) (*admission.Table, error) {
			t := &admission.Table{Engines: engines}
			for _, name := range []string{"interactive", "batch"} {
				t.Classes = append(t.Classes, admission.ClassSpec{Name: name, Ceiling: t.Envelope(), DefaultOut: 16})
			}
			return t, nil
		},
	})
	auth, err := identity.New(testIdentity(f, false), nil)
	if err != nil {
		f.Fatal(err)
	}
	g := New(Config{
		Limits: Limits{BodyBytes: 1 << 16, BodyTimeout: time.Minute, ClientStall: time.Minute}, Auth: auth, Pools: []*relay.Pool{pool}, Log: log, Metrics: metrics,
	})
	ctx, stop := context.WithCancel(context.Background())
	go pool.Run(ctx)
	f.Cleanup(func() { stop(); pool.Drain(context.Background()) })
	for pool.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	f.Fuzz(func(t *testing.T, method, target, header string, body []byte, chunked bool) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return // the server's own refusal
		}
		r := &http.Request{Method: method, URL: u, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
		if chunked {
			r.ContentLength = -1
		}
		for line := range strings.SplitSeq(header, "\n") {
			name, value, _ := strings.Cut(line, ":")
			r.Header.Add(textproto.CanonicalMIMEHeaderKey(name), textproto.TrimString(value))
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r.WithContext(t.Context()))
		if w.Code >= 500 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		switch path := u.EscapedPath(); {
		case w.Code < 400:
		case path == anthropic.MessagesPath || strings.HasPrefix(path, anthropic.MessagesPath+"/"):
			told(t, answer{w.Code, w.Header(), w.Body.String()}, w.Code, gjson.Get(w.Body.String(), "error.type").Str, gjson.Get(w.Body.String(), "error.code").Str)
		default:
			documented(t, w.Code, w.Body.String())
		}
		if s := pool.Snapshot(); s.Used.Slots != 0 {
			t.Fatalf("capacity is still held:\n%s", s)
		}
	})
}
