package relay

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
)

// TestOwnFloorBecomesALoan: a stream that began on its class's own floor is made a loan
// when that has been paid, and goes on after it was ended like any other.
func TestOwnFloorBecomesALoan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		classes := reclaimer(2)
		classes[1].Floor, classes[1].Window = admission.Of(1, 8192), 10*time.Second
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2}}, classes: classes})
		e := g.engines[0]
		batch := g.serve("batch", sent(true, `,"max_tokens":50`))
		first := e.Accept(t)
		if !gjson.GetBytes(first.Body, "return_token_ids").Bool() {
			t.Errorf("no ids are asked for: %s", first.Body)
		}
		first.Start()
		first.Send(opened + saidWith("a", `,"token_ids":[1]`, ""))
		pass(8 * time.Second)
		one, two := g.serve("interactive", sent(true, "")), g.serve("interactive", sent(true, ""))
		<-first.Gone()
		finish(g, one)
		finish(g, two)
		pass(4 * time.Second)
		g.wantCode(batch, "running")
		again := e.Accept(t)
		again.Start()
		again.Send(`data: {"choices":[{"index":0,"text":" b","finish_reason":"stop","token_ids":[2]}]}` + "\n\ndata: [DONE]\n\n")
		settle()
		g.wantCode(batch, "")
		if got := spoken(batch.text()); got != "a b" {
			t.Errorf("the client got %q", got)
		}
		pass(5 * time.Second)
		g.wantEmpty()
	})
}

// TestBelievedTooEarly: a stream that was offered when its engine was believed to
// return ids, and sent when it was not any more, is not ended once its client has seen
// some of it.
func TestBelievedTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}, classes: reclaimer(1),
			configure: func(c *engine.Config) { // nor from text
				neverContinued(c)
				c.Capabilities.TokenIDs = nil
			},
		})
		paced(g)
		e := g.engines[0]
		var clients []*client
		for range mostMissed + 1 {
			clients = append(clients, g.serve("batch", sent(true, `,"max_tokens":50`)))
		}
		for range mostMissed {
			call := e.Accept(t)
			call.Start()
			call.Send(opened + saidWith("a", "", ""))
			call.Finish("stop")
			settle()
		}
		last := e.Accept(t)
		if gjson.GetBytes(last.Body, "return_token_ids").Exists() {
			t.Fatalf("an engine that never returned ids is asked for them: %s", last.Body)
		}
		last.Start()
		last.Send(opened + saidWith("a", "", ""))
		settle()
		wants := g.serve("interactive", sent(true, ""))
		pass(time.Second)
		c := clients[mostMissed]
		g.wantCode(c, "running")
		last.Send(saidWith(" b", "", ""))
		last.Finish("stop")
		settle()
		g.wantCode(c, "")
		finish(g, wants)
		g.wantEmpty()
	})
}

// TestOneOddAnswer: what one request brings on its engine does not keep the others
// from being continued.
func TestOneOddAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSeen(t)
		e := g.engines[0]
		for range 2 * mostMissed {
			c := g.serve("batch", sent(true, `,"max_tokens":50`))
			call := e.Accept(t)
			call.Start()
			call.Send(strings.Replace(opened, `"content":""`, `"reasoning":"hm","content":""`, 1) + saidWith("a", `,"token_ids":[1]`, ""))
			call.Finish("stop")
			settle()
			g.wantCode(c, "")
		}
		g.serve("batch", sent(true, `,"max_tokens":50`))
		call := e.Accept(t)
		if !gjson.GetBytes(call.Body, "return_token_ids").Bool() {
			t.Errorf("the next one is sent as %s", call.Body)
		}
		call.Start()
		call.Finish("stop")
		settle()
	})
}

// TestKeptIsMeasuredByTheEngine: an answer goes on by the length that the engine told of
// its prompt, however far off the estimate was.
func TestKeptIsMeasuredByTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSeen(t)
		e := g.engines[0]
		// 3,900 tokens by the estimate, of a context of 4,096; two by the engine.
		body := fmt.Sprintf(`{"model":"test-model","messages":[{"role":"user","content":%q}],"stream":true,"max_tokens":190}`, strings.Repeat("word ", 3100))
		batch := g.serve("batch", body)
		call := e.Accept(t)
		call.Start()
		call.Send(opened)
		for i := range 180 {
			call.Send(saidWith("a", fmt.Sprintf(`,"token_ids":[%d]`, i), ""))
		}
		settle()
		g.wantCode(batch, "running")
		wants := g.serve("interactive", sent(true, ""))
		<-call.Gone()
		finish(g, wants)
		pass(3 * time.Second)
		g.wantCode(batch, "running")
		again := e.Accept(t)
		if n := gjson.GetBytes(again.Body, "max_tokens").Int(); n != 10 {
			t.Errorf("%d tokens are left: want 10", n)
		}
		again.Start()
		again.Send(`data: {"choices":[{"index":0,"text":" b","finish_reason":"stop","token_ids":[2]}]}` + "\n\ndata: [DONE]\n\n")
		settle()
		g.wantCode(batch, "")
		pass(5 * time.Second)
		g.wantEmpty()
	})
}
