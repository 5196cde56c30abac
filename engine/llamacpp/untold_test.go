package llamacpp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/engine/upstream"
	"headgate/wire"
)

// An engine that does not tell a prompt's ids is there all the same: the request
// goes its own way.
func TestPromptIsNotTold(t *testing.T) {
	for _, c := range []struct {
		path   string
		status int
		body   string
	}{
		{"/apply-template", 400, `{"error":{"code":400,"message":"no such role"}}`},
		{"/apply-template", 200, `{"error":5}`},
		{"/tokenize", 503, "busy"},
		{"/tokenize", 200, `{"tokens":[{"id":-1,"piece":"a"}]}`},
	} {
		t.Run(fmt.Sprint(c.path, c.status), func(t *testing.T) {
			e, a := start(t, enginetest.Options{})
			e.Answer(c.path, c.status, c.body)
			s, call := begin(t, e, a, withIDs(wire.Chat, chatBody))
			if call.API != wire.Chat || string(call.Body) != chatBody {
				t.Errorf("api %s, body %s", call.API, call.Body)
			}
			call.Emit(1)
			if d, err := s.Next(); err != nil || !d.Content || gjson.GetBytes(d.Data, "choices.0.token_ids").Exists() {
				t.Errorf("%s, %v", d.Data, err)
			}
		})
	}
}

// One that has gone is told from it.
func TestNobodyTellsThePrompt(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	e.Close()
	_, err := a.Dispatch(t.Context(), withIDs(wire.Chat, chatBody))
	if upstream.State(err) != engine.Down {
		t.Error(err)
	}
	if e.Scrapes(wire.Chat.Path()) != 0 {
		t.Error("it was asked for more")
	}
}

// slow serves a llama-server's routes of which /tokenize never answers.
func slow(t *testing.T) *Adapter {
	l := enginetest.NewListener()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a closed connection is noticed behind it
		switch r.URL.Path {
		case "/tokenize":
			<-r.Context().Done()
		case "/completion":
			_, _ = io.WriteString(w, "data: {\"content\":\"é\",\"tokens\":[172],\"tokens_predicted\":2}\n\n"+
				"data: {\"content\":\"日\",\"tokens\":[168],\"tokens_predicted\":5}\n\n"+
				"data: {\"content\":\"\",\"stop\":true,\"stop_type\":\"eos\",\"tokens_predicted\":5}\n\n")
		default:
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		}
	})}
	go func() { _ = server.Serve(l) }()
	var cfg engine.Config
	cfg.SetDefaults()
	cfg.Kind, cfg.URL, cfg.DialContext = engine.LlamaCpp, "http://engine.test/v1", l.DialContext
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); _ = server.Close(); _ = l.Close() })
	return a
}

// A tokenizer that hangs is waited for as long as for any small document, and once
// in an answer.
func TestTokenizerHangs(t *testing.T) {
	const wait = 2 * time.Second // the default scrape_timeout
	for _, c := range []struct{ name, prompt, want string }{
		{"before the answer", `"ab"`, "a"},
		{"in the answer", `[1,2]`, "é日"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, from := slow(t), time.Now()
				s, err := a.Dispatch(t.Context(), withIDs(wire.Completions, `{"model":"m","prompt":`+c.prompt+`,"stream":true}`))
				if err != nil {
					t.Fatal(err)
				}
				events, _, _ := told(t, s)
				text := ""
				for _, event := range events {
					text += gjson.Get(event, "choices.0.text").String()
				}
				if text != c.want || time.Since(from) != wait {
					t.Errorf("%q after %s", text, time.Since(from))
				}
			})
		})
	}
	t.Run("for a client that leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			gone := errors.New("gone")
			time.AfterFunc(wait/2, func() { cancel(gone) })
			_, err := slow(t).Dispatch(ctx, withIDs(wire.Completions, `{"model":"m","prompt":"ab","stream":true}`))
			if !errors.Is(err, gone) {
				t.Error(err)
			}
		})
	})
}

// Ids that are not known for certain are not told, and the text is.
func TestIDsAreNotGuessed(t *testing.T) {
	const certain, busy = 0, 503
	for _, c := range []struct {
		name, text string
		id         int // of the last token
		tokens     int
		tokenizer  int // status; 0: it works
		want       string
	}{
		{"known", "é", 172, 2, certain, "[198] [172]"},
		{"cut into fewer than there were", "é", 172, 3, certain, ""},
		{"cut into more than there were", "日", 168, 2, certain, ""},
		{"cut otherwise", "é", 999, 2, certain, ""},
		{"no character", "\uFFFD", 192, 3, certain, ""},
		{"a tokenizer that fails", "é", 172, 2, busy, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, a := start(t, enginetest.Options{})
			s, call := begin(t, e, a, withIDs(wire.Completions, continued))
			if c.tokenizer != 0 {
				e.Answer("/tokenize", c.tokenizer, "")
			}
			call.Send(fmt.Sprintf("data: {\"content\":%q,\"tokens\":[%d],\"stop\":false,\"tokens_predicted\":%d}\n\n", c.text, c.id, c.tokens))
			call.Finish("stop")
			events, _, _ := told(t, s)
			text, ids := "", []string{}
			for _, event := range events {
				text += gjson.Get(event, "choices.0.text").String()
				if v := gjson.Get(event, "choices.0.token_ids"); v.Exists() {
					ids = append(ids, v.Raw)
				}
			}
			if d := cmp.Diff(c.want, strings.Join(ids, " ")); d != "" || text != c.text {
				t.Errorf("%q\n%s", text, d)
			}
		})
	}
}
