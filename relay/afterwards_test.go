package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// The tests of this file are about answers and waits that something happens to
// afterwards: the engine that they were begun on fails or goes, or the configuration
// changes under them.

// whichever accepts the request that one of the first n engines has.
func (g *rig) whichever(n int) (int, *enginetest.Call) {
	g.t.Helper()
	for i, e := range g.engines[:n] {
		if e.Waiting()+e.Running() > 0 {
			return i, e.Accept(g.t)
		}
	}
	g.t.Fatal("no engine has a request")
	return 0, nil
}

// interrupted is a batch answer of n kept tokens on one of two engines that has given
// way, and whose turn it is again.
func interrupted(g *rig, stream bool, n int) (batch *client, again *enginetest.Call) {
	g.t.Helper()
	batch = g.serve("batch", sent(stream, `,"max_tokens":50`))
	_, first := g.whichever(2)
	first.Start()
	first.Send(opened)
	for i := range n {
		first.Send(saidWith("a", fmt.Sprintf(`,"token_ids":[%d]`, i), ""))
	}
	settle()
	for range 2 {
		g.serve("interactive", sent(true, ""))
	}
	<-first.Gone()
	pass(time.Second)
	for i := range 2 {
		call := g.engines[i].Accept(g.t)
		call.Emit(1)
		call.Finish("stop")
	}
	pass(5 * time.Second)
	_, again = g.whichever(2)
	return batch, again
}

// TestRefusedContinuation: one of two engines has no room for what goes on, which
// then does so on the other, whole and within its limit.
func TestRefusedContinuation(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for _, status := range []int{429, 503} {
			t.Run(fmt.Sprintf("stream=%t/%d", stream, status), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					classes := reclaimer(2)
					classes[1].MaxOut = 20
					g := newRig(t, options{engines: two(1), classes: classes})
					batch, again := interrupted(g, stream, 10)
					again.Document(status, `{"error":{"message":"busy"}}`, "Retry-After", "1")
					pass(2 * time.Second)
					_, third := g.whichever(2)
					if ids, left := gjson.GetBytes(third.Body, "prompt.#").Int(), gjson.GetBytes(third.Body, "max_tokens").Int(); ids != 12 || left != 10 {
						t.Errorf("it goes on as %s", third.Body)
					}
					third.Start()
					third.Send(`data: {"choices":[{"index":0,"text":" b","finish_reason":"stop","token_ids":[2]}]}` + "\n\ndata: [DONE]\n\n")
					settle()
					g.wantCode(batch, "")
					pass(20 * time.Second)
					g.wantEmpty()
				})
			})
		}
	}
}

// TestTornBehindItsEnd: a collected answer whose continuation breaks between its last
// text and its end begins anew, with the whole of its limit.
func TestTornBehindItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		classes := reclaimer(2)
		classes[1].MaxOut = 20
		g := newRig(t, options{engines: two(1), classes: classes})
		batch, again := interrupted(g, false, 10)
		again.Start()
		again.Send(`data: {"id":"cmpl-2","object":"text_completion","created":9,"model":"test-model","choices":[{"index":0,"text":"x","finish_reason":"stop","token_ids":[40]}]}` + "\n\n")
		settle()
		again.Cut()
		pass(5 * time.Second)
		_, third := g.whichever(2)
		if n := gjson.GetBytes(third.Body, "max_tokens").Int(); n != 20 {
			t.Errorf("it begins anew as %s", third.Body)
		}
		third.Start()
		third.Finish("stop")
		settle()
		g.wantCode(batch, "")
	})
}

// TestKeptWaitsThroughAnything: an answer that was torn and is kept waits for its other
// engine, whatever becomes of its class, its wait or the process.
func TestKeptWaitsThroughAnything(t *testing.T) {
	for _, how := range []string{"class", "drain", "wait"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				classes := reclaimer(1)
				classes[1].MaxWait = 30 * time.Second
				g := newRig(t, options{engines: two(1), classes: classes})
				g.serve("interactive", sent(true, ""))
				at, call := g.whichever(2)
				call.Emit(1)
				batch := g.serve("batch", sent(true, `,"max_tokens":50`))
				first := g.engines[1-at].Accept(t)
				first.Start()
				first.Send(opened + saidWith("a", `,"token_ids":[1]`, ""))
				settle()
				first.Cut()
				settle()
				switch how {
				case "class":
					g.change(g.next(classes[:1], "e0", "e1"))
				case "wait":
					for range 12 {
						pass(5 * time.Second)
						call.Emit(1)
					}
				case "drain":
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					defer cancel()
					go g.pool.Drain(ctx)
					settle()
				}
				g.wantCode(batch, "running")
				call.Finish("stop")
				settle()
			})
		})
	}
}

// TestFailedAndLeftAlone: a request waits for the one engine that has not failed it,
// and that goes away: it is given back to the other.
func TestFailedAndLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: two(1)})
		g.serve("interactive", sent(true, ""))
		at, hold := g.whichever(2)
		hold.Emit(1)
		c := g.serve("interactive", sent(true, ""))
		g.engines[1-at].Accept(t).Document(503, `{}`)
		settle()
		g.wantCode(c, "running")
		g.engines[at].Answer("/health", 503, "")
		g.engines[at].Answer("/metrics", 503, "")
		hold.Cut()
		g.engines[at].Close()
		pass(time.Minute)
		again := g.engines[1-at].Accept(t)
		again.Emit(1)
		again.Finish("stop")
		settle()
		g.wantCode(c, "")
	})
}

// TestAnswerOutlivesItsName: an answer that has given way goes on though its alias is
// gone, and though an engine has come that can't go on with it.
func TestAnswerOutlivesItsName(t *testing.T) {
	for _, how := range []string{"alias", "engine"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{engines: two(1)[:1], classes: reclaimer(1), pool: func(c *Config) { c.Aliases = []Alias{{Name: "gpt", Model: "test-model"}} }})
				batch := g.serve("batch", strings.Replace(sent(true, `,"max_tokens":50`), "test-model", "gpt", 1))
				first := g.engines[0].Accept(t)
				first.Start()
				first.Send(opened + saidWith("a", `,"token_ids":[1]`, ""))
				settle()
				wants := g.serve("interactive", sent(true, ""))
				<-first.Gone()
				pass(time.Second)
				call := g.engines[0].Accept(t)
				call.Emit(1)
				c := g.next(reclaimer(1), "e0")
				c.Engines[0].Priority = []int{0, 10}
				if how == "engine" {
					c.Aliases = []Alias{{Name: "gpt", Model: "test-model"}}
					e := enginetest.New(t, enginetest.Options{Kind: engine.OpenAI, Slots: 4})
					ec := e.Config()
					ec.Capabilities.Slots, ec.Capabilities.KVTokens, ec.Capabilities.MaxContext = 4, 16384, 4096
					c.Engines = append(c.Engines, Engine{
						Name: "new", Key: "new", ObserveEvery: observeEvery, Priority: []int{0, 0},
						Open: func() (engine.Adapter, error) { return adapters.New(ec.Kind, ec) },
					})
				}
				g.change(c)
				pass(5 * time.Second)
				call.Finish("stop")
				settle()
				g.wantCode(wants, "")
				pass(5 * time.Second)
				g.wantCode(batch, "running")
				again := g.engines[0].Accept(t)
				again.Start()
				again.Send(`data: {"choices":[{"index":0,"text":" b","finish_reason":"stop","token_ids":[2]}]}` + "\n\ndata: [DONE]\n\n")
				settle()
				g.wantCode(batch, "")
			})
		})
	}
}

// TestEngineIsReplaced: its metrics are told once, under the one name; how often it is
// read can be changed; and what it once had in its cache is not believed.
func TestEngineIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c := g.next([]admission.ClassSpec{loose("interactive")})
		g.another(&c, "e0", enginetest.Options{Kind: engine.VLLM, Slots: 2})
		g.change(c)
		pass(2 * observeEvery)
		if _, err := g.metrics.Gather(); err != nil {
			t.Error(err)
		}
		c.Engines[0].ObserveEvery = 5 * time.Second
		g.change(c)
		n := g.engines[1].Scrapes("/metrics")
		pass(20 * time.Second)
		if n = g.engines[1].Scrapes("/metrics") - n; n > 5 {
			t.Errorf("read %d times in 20 s, every 5 s", n)
		}
	})
}

// TestEmbeddingsEngineIsBack: an engine that failed embeddings, which have no first
// token, is one like the others again once it has made some.
func TestEmbeddingsEngineIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 4}, {Kind: engine.VLLM, Slots: 4}}})
		served := func() {
			c := embed(g, "interactive", `["a"]`)
			_, call := g.whichever(2)
			call.Document(200, vectors)
			settle()
			g.wantCode(c, "")
		}
		g.engines[0].Answer(wire.Embeddings.Path(), 500, `{}`)
		for range 6 {
			served()
		}
		g.engines[0].Answer(wire.Embeddings.Path(), 0, "")
		pass(time.Minute)
		for range 5 {
			served()
		}
		for range 8 {
			embed(g, "interactive", `["a"]`)
		}
		if a, b := g.engines[0].Waiting(), g.engines[1].Waiting(); a != 4 || b != 4 {
			t.Errorf("of eight at once one engine has %d and the other %d", a, b)
		}
	})
}
