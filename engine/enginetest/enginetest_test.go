package enginetest_test

import (
	"io"
	"testing"

	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// The same through a socket: what a closed connection does must not depend on
// the network in memory.
func TestThroughSocket(t *testing.T) {
	for _, kind := range engine.Kinds {
		e := enginetest.New(t, enginetest.Options{Kind: kind})
		cfg := e.Config()
		cfg.URL, cfg.DialContext = e.Listen(t), nil
		cfg.AbortGrace = 1
		a, err := adapters.New(kind, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if o := a.Observe(t.Context()); o.State != engine.Ready || o.Err != nil {
			t.Errorf("%s: %v, %v", kind, o.State, o.Err)
		}
		for _, abort := range []bool{false, true} {
			calls := make(chan *enginetest.Call, 1)
			go func() {
				c := e.Accept(t)
				c.Emit(3)
				if !abort {
					c.Finish("stop")
				}
				calls <- c
			}()
			s, err := a.Dispatch(t.Context(), &engine.Attempt{
				API: wire.Completions, Body: enginetest.Body(true), ID: "a", Stream: true, Interruptible: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			call, tokens := <-calls, 0
			for range 3 {
				d, err := s.Next()
				if err != nil {
					t.Fatal(err)
				}
				tokens += d.Tokens
			}
			if abort {
				if c := s.Abort(t.Context()); c.By == engine.Unconfirmed || c.By == engine.ByCompletion {
					t.Errorf("%s: %+v", kind, c)
				}
				<-call.Gone()
				continue
			}
			usage := wire.Usage{}
			for {
				d, err := s.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if d.HasUsage {
					usage = d.Usage
				}
			}
			if c := s.Abort(t.Context()); c.By != engine.ByCompletion || tokens != 3 || usage.Completion != 3 {
				t.Errorf("%s: %+v, %d tokens, usage %+v", kind, c, tokens, usage)
			}
		}
		if e.Aborted() != 1 || e.Running() != 0 || e.Waiting() != 0 {
			t.Errorf("%s: %d aborted, %d running, %d waiting", kind, e.Aborted(), e.Running(), e.Waiting())
		}
	}
}
