package relay

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tidwall/gjson"

	"headgate/engine/enginetest"
	"headgate/wire"
)

const twoModels = `{"data":[{"id":"base","max_model_len":%d},{"id":"lora","parent":"base","max_model_len":null}]}`

// TestModelsOfAPool: names, beginnings and aliases, what an engine is sent for them, and
// what clients are told of them.
func TestModelsOfAPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options{engines: two(2)}
		lists := []string{fmt.Sprintf(twoModels, 4000), `{"data":[{"id":"base","max_model_len":3000}]}`}
		o.before = func(e *enginetest.Engine) {
			e.Answer("/v1/models", 200, lists[0])
			lists = lists[1:]
		}
		o.pool = func(c *Config) {
			c.Models = []string{"base", "lora", "other", "big-*"}
			c.Aliases = []Alias{{"gpt-4o", "base"}, {"tuned", "lora"}, {"nothing", "absent"}}
		}
		g := newRig(t, o)
		for name, want := range map[string]int{"base": exact, "gpt-4o": exact, "nothing": exact, "big-one": 5, "big-": 5, "big": 0, "unknown": 0} {
			if got := g.pool.Match(name); got != want {
				t.Errorf("%s matches %d, want %d", name, got, want)
			}
		}
		var got []string
		for _, m := range g.pool.Models() {
			got = append(got, fmt.Sprintf("%s %d", m.ID, m.MaxContext))
		}
		// The adapter is on the first engine only, which is the wider one.
		if want := "base 3000, lora 4000, other 3000, gpt-4o 3000, tuned 4000"; strings.Join(got, ", ") != want {
			t.Errorf("models %s, want %s", strings.Join(got, ", "), want)
		}
		if got, want := strings.Join(g.pool.Problems(), "; "), "pool main: alias nothing: no engine has model absent"; got != want {
			t.Errorf("problems %q, want %q", got, want)
		}
		for i, tt := range []struct{ name, upstream string }{
			{"base", "base"}, {"gpt-4o", "base"}, {"other", "base"}, {"big-one", "base"}, {"lora", "lora"}, {"tuned", "lora"}, {"tuned", "lora"}, {"tuned", "lora"},
		} {
			c := g.serve("interactive", strings.Replace(sent(true, ""), "test-model", tt.name, 1))
			var call *enginetest.Call
			for k, e := range g.engines {
				if e.Waiting() > 0 {
					if call = e.Accept(t); tt.upstream == "lora" && k != 0 {
						t.Errorf("%d: an engine got a request for a model that it has not got", i)
					}
				}
			}
			if call == nil {
				t.Fatalf("%s reached no engine: %s", tt.name, c.code())
			}
			if got := gjson.GetBytes(call.Body, "model").String(); got != tt.upstream {
				t.Errorf("%s is sent as %s, want %s", tt.name, got, tt.upstream)
			}
			call.Emit(1)
			call.Finish("stop")
			settle()
			g.wantCode(c, "")
		}
		c := g.serve("interactive", strings.Replace(sent(true, ""), "test-model", "nothing", 1))
		g.wantCode(c, wire.CodeEngineUnavailable)
		if want := "no engine of pool main has model absent"; c.err == nil || c.err.Message != want {
			t.Errorf("error %v, want %q", c.err, want)
		}
		g.wantEmpty()
	})
}

// TestAdapterOfOneEngine: without configured names an engine is given only what it
// lists, and a full one is waited for.
func TestAdapterOfOneEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options{engines: two(1)}
		lists := []string{fmt.Sprintf(twoModels, 4000), `{"data":[{"id":"base","max_model_len":3000}]}`}
		o.before = func(e *enginetest.Engine) {
			e.Answer("/v1/models", 200, lists[0])
			lists = lists[1:]
		}
		g := newRig(t, o)
		lora := strings.Replace(sent(true, ""), "test-model", "lora", 1)
		base := strings.Replace(sent(true, ""), "test-model", "base", 1)
		first := g.serve("interactive", lora)
		call := g.engines[0].Accept(t)
		second := g.serve("interactive", lora)
		if g.engines[1].Waiting() != 0 {
			t.Error("an engine got a request for a model that it has not got")
		}
		// Who waits for one engine is in nobody's way on the other.
		third := g.serve("interactive", base)
		other := g.engines[1].Accept(t)
		for _, c := range []*enginetest.Call{other, call} {
			c.Emit(1)
			c.Finish("stop")
			settle()
		}
		g.wantCode(first, "")
		g.wantCode(third, "")
		call = g.engines[0].Accept(t)
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(second, "")
		g.wantEmpty()
	})
}

// TestModelsThatEvictEachOther are told by name.
func TestModelsThatEvictEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{before: func(e *enginetest.Engine) {
			e.Answer("/v1/models", 200, `{"data":[{"id":"a","status":{"value":"loaded"}},{"id":"b","status":{"value":"unloaded"}},{"id":"c","parent":"a"}]}`)
		}})
		want := "pool main: engine e0: models a, b evict each other, of which b is not loaded: name one in models, or give each an engine"
		if got := strings.Join(g.pool.Problems(), "; "); got != want {
			t.Errorf("problems %q, want %q", got, want)
		}
		if err := g.pool.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
	})
}
