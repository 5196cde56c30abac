package relay

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// unreachable makes every connection to an engine fail while why has an error.
func unreachable(why *atomic.Pointer[error]) func(*engine.Config) {
	return func(c *engine.Config) {
		dial := c.DialContext
		c.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if err := why.Load(); err != nil {
				return nil, &net.OpError{Op: "dial", Net: network, Err: *err}
			}
			return dial(ctx, network, addr)
		}
	}
}

// TestKeptIsTriedLater: where a pool's one engine does not take the rest of an answer
// for now, that is no end of the answer: it is asked again, when it said or later, and
// the client has it as if nothing had been.
func TestKeptIsTriedLater(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		hint   []string
		err    error
		after  time.Duration // of the failure, that it is asked again
	}{
		{name: "busy", status: 429, hint: []string{"Retry-After", "7"}, after: 7 * time.Second},
		{name: "unavailable", status: 503, after: time.Second},
		{name: "out of descriptors", err: syscall.EMFILE, after: time.Second},
		{name: "connection refused", err: syscall.ECONNREFUSED, after: time.Second},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", tt.name, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var why atomic.Pointer[error]
					g := newRig(t, options{classes: reclaimer(1), configure: unreachable(&why)})
					paced(g)
					e := g.engines[0]
					batch := g.serve("batch", sent(stream, `,"max_tokens":50`))
					first := e.Accept(t)
					first.Start()
					first.Send(opened + saidWith("a", `,"token_ids":[1]`, ""))
					settle()
					wants := g.serve("interactive", sent(true, ""))
					<-first.Gone()
					pass(5 * time.Second)
					call := e.Accept(t)
					call.Emit(1)
					if tt.err != nil {
						why.Store(&tt.err)
					}
					call.Finish("stop")
					settle()
					g.wantCode(wants, "")
					pass(2 * time.Second) // interactive lends again
					if tt.err == nil {
						e.Accept(t).Document(tt.status, `{}`, tt.hint...)
						settle()
					}
					g.wantCode(batch, "running")
					why.Store(nil)
					pass(tt.after - 2*time.Millisecond)
					if tt.err == nil && e.Waiting()+e.Running() > 0 {
						t.Error("the engine is asked again before its time")
					}
					pass(2 * time.Second)
					again := e.Accept(t)
					if got := gjson.GetBytes(again.Body, "prompt").Raw; got != "[11,12,1]" {
						t.Errorf("it goes on from %s", again.Body)
					}
					again.Start()
					again.Send(`data: {"id":"cmpl-2","choices":[{"index":0,"text":"b","finish_reason":"stop","token_ids":[2],"prompt_token_ids":[11,12,1]}]}` + "\n\n")
					again.End()
					settle()
					g.wantCode(batch, "")
					if got := said(stream, batch.text()); got != "abstop" || strings.Contains(batch.text(), "error") {
						t.Errorf("the client got %s", batch.text())
					}
					pass(5 * time.Second)
					g.wantEmpty()
					wantOneReleaseEach(t, g.events())
				})
			})
		}
	}
}

// TestKeptIsGivenUp: an engine that never takes the rest of an answer ends it, after a
// while and with its own word.
func TestKeptIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}, classes: reclaimer(1)})
		paced(g)
		e := g.engines[0]
		batch := g.serve("batch", sent(true, `,"max_tokens":50`))
		first := e.Accept(t)
		first.Start()
		first.Send(opened + saidWith("a", `,"token_ids":[1]`, ""))
		settle()
		wants := g.serve("interactive", sent(true, ""))
		<-first.Gone()
		finish(g, wants)
		e.Answer(wire.Completions.Path(), 503, `{}`)
		pass(5 * time.Minute)
		g.wantCode(batch, wire.CodeEngineUnavailable)
		if n := e.Scrapes(wire.Completions.Path()); n != 9 {
			t.Errorf("it was asked %d times, want 9", n)
		}
		g.wantEmpty()
	})
}
