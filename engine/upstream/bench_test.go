package upstream

import (
	"context"
	"io"
	"net/http"
	"testing"

	"headgate/engine"
	"headgate/wire"
)

// endless repeats an event.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	return n, nil
}

// BenchmarkNext is what a streamed token costs up to the relay.
func BenchmarkNext(b *testing.B) {
	c, err := New(engine.Config{URL: "http://engine.test", MaxEvent: 1 << 20}, Hooks{})
	if err != nil {
		b.Fatal(err)
	}
	place := c.ledger.Enter(true)
	place.answered()
	const event = `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	res := &http.Response{Header: http.Header{}, Body: io.NopCloser(&endless{text: event})}
	s := newStream(context.Background(), c, &engine.Attempt{API: wire.Chat, Stream: true, Interruptible: true}, res, place, func() {})
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		if d, err := s.Next(); err != nil || d.Tokens != 1 {
			b.Fatal(d, err)
		}
	}
}
