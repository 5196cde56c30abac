package relay

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// embed starts a request for embeddings.
func embed(g *rig, class, input string) *client {
	g.t.Helper()
	req, err := wire.Parse(wire.Embeddings, []byte(`{"model":"test-model","input":`+input+`}`))
	if err != nil {
		g.t.Fatal(err)
	}
	return g.start(class, sent(false, ""), func(ctx context.Context, c *Call, sink Sink) *wire.Error {
		c.Request = req
		return g.pool.Serve(ctx, c, sink)
	})
}

const vectors = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1]}],"usage":{"prompt_tokens":9,"total_tokens":9}}`

// TestEmbeddingsGiveWay: embeddings on loan are ended for others, and made again,
// since nothing of them has been seen. The engine is asked for what the client
// asked for, and for neither a stream nor a length.
func TestEmbeddingsGiveWay(t *testing.T) {
	for _, kind := range engine.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{engines: []enginetest.Options{{Kind: kind, Slots: 1}}, classes: reclaimer(1)})
				e := g.engines[0]
				batch := embed(g, "batch", `["a","b"]`)
				first := e.Accept(t)
				if first.API != wire.Embeddings || gjson.GetBytes(first.Body, "input").Raw != `["a","b"]` || gjson.GetBytes(first.Body, "stream").Exists() || gjson.GetBytes(first.Body, "max_tokens").Exists() || gjson.GetBytes(first.Body, "rid").Exists() {
					t.Errorf("the engine got %d %s", first.API, first.Body)
				}
				wants := g.serve("interactive", sent(true, ""))
				<-first.Gone()
				first.Free()
				settle()
				g.wantCode(batch, "running")
				finish(g, wants)
				pass(2 * time.Second)
				again := e.Accept(t)
				again.Document(200, vectors)
				settle()
				g.wantCode(batch, "")
				if batch.answers != 1 || batch.text() != vectors {
					t.Errorf("%d answers: %s", batch.answers, batch.text())
				}
				g.wantEmpty()
				if got := story(g.events(), batch.id); strings.Count(got, "dispatched") != 2 || !strings.Contains(got, "ended(reclaimed)") || !strings.HasSuffix(got, "finished(finished)") {
					t.Errorf("story %s", got)
				}
			})
		})
	}
}

// TestEmbeddingsHoldTheirPrompt: what is held is a slot and the inputs, of many no
// more than one sequence can have.
func TestEmbeddingsHoldTheirPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 4, MaxContext: 1024}}})
		held := func(input string) (slots, kv int64) {
			c := embed(g, "interactive", input)
			call := g.engines[0].Accept(t)
			s := g.pool.Snapshot()
			call.Document(200, vectors)
			settle()
			g.wantCode(c, "")
			return s.Used.Slots, s.Used.KV
		}
		ids := "[" + strings.Repeat("1,", 499) + "1]"
		for _, c := range []struct {
			name, input string
			slots, kv   int64
		}{
			{"ids", ids, 1, 512}, // 500 and one for the engine to have room, in blocks of 16
			{"two", "[" + ids + "," + ids + "]", 1, 1008},
			{"many", "[" + strings.Repeat(ids+",", 9) + ids + "]", 1, 1024},
		} {
			if slots, kv := held(c.input); slots != c.slots || kv != c.kv {
				t.Errorf("%s: %d slots and %d tokens, want %d and %d", c.name, slots, kv, c.slots, c.kv)
			}
		}
		g.wantEmpty()
	})
}
