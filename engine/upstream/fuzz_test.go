package upstream

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"headgate/engine"
	"headgate/wire"
)

// FuzzStream reads whatever an engine may send. What is passed on is a prefix
// of what came, the ledger is left once, and the end is told from a cut.
func FuzzStream(f *testing.F) {
	const finish = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\n"
	f.Add([]byte(finish+"data: [DONE]\n\n"), "text/event-stream", true)
	f.Add([]byte(finish), "text/event-stream", false)
	f.Add([]byte("data: {\"error\":{\"message\":\"x\"}}\n\n"), "text/event-stream; charset=utf-8", true)
	f.Add([]byte("event: error\ndata: x\n\n: c\r\n\r\ndata:\n\n"), "", false)
	f.Add([]byte("{\"choices\":[]}"), "application/json", true)
	f.Fuzz(func(t *testing.T, body []byte, media string, bytewise bool) {
		c, err := New(engine.Config{URL: "http://engine.test", MaxEvent: 4096, MaxAnswer: 4096}, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		place := c.ledger.Enter(true)
		place.answered()
		var from io.Reader = bytes.NewReader(body)
		if bytewise {
			from = iotest.OneByteReader(from)
		}
		res := &http.Response{Header: http.Header{"Content-Type": {media}}, Body: io.NopCloser(from)}
		s := newStream(context.Background(), c, &engine.Attempt{API: wire.Chat, Stream: true, Interruptible: true}, res, place, func() {})
		sent := bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
		finished, over := 0, false
		for {
			d, err := s.Next()
			if err != nil {
				if err == io.EOF && !over && finished == 0 && s.events != nil {
					t.Errorf("a cut stream ended well")
				}
				break
			}
			// What is no event is left out; the rest is as it came, in its order.
			at := bytes.Index(sent, d.Raw)
			if at < 0 {
				t.Fatalf("%q is not what came: %q", d.Raw, sent)
			}
			if bytes.Contains(sent[:at], []byte("\"choices\"")) {
				t.Errorf("an event was left out: %q", sent[:at])
			}
			if len(d.Raw) > 0 {
				sent = sent[at+len(d.Raw):]
			}
			if over {
				t.Errorf("%q after the end", d.Raw)
			}
			finished += d.Finished
			over = d.Done || d.Err != nil
		}
		if got := c.ledger.Count(); got != (Count{}) {
			t.Errorf("ledger %+v", got)
		}
	})
}

func FuzzModels(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"a","max_model_len":5},{"id":"b","meta":{"n_ctx":7}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		models, err := parseModels(body)
		for _, m := range models {
			if err != nil || m.ID == "" || m.MaxContext < 0 {
				t.Errorf("%+v, %v", m, err)
			}
		}
	})
}

func TestOverReleaseIsLoud(t *testing.T) {
	var l Ledger
	e := l.Enter(false)
	e.Leave()
	e.Leave() // leaves nothing behind
	if l.Count() != (Count{}) {
		t.Errorf("%+v", l.Count())
	}
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(string), "twice") {
			t.Errorf("%v", r)
		}
	}()
	l.add(-1, 0)
}
