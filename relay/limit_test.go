package relay

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/quota"
	"headgate/quota/keeper"
	"headgate/wire"
)

// plenty are limits that nothing of a test comes near, with a balance.
func plenty() quota.Rules {
	rate := quota.Rate{N: 10_000, Burst: 1_000_000, Window: quota.MaxWindow} // nothing comes back
	return quota.Rules{Requests: rate, Tokens: rate, Input: 1, Output: 1, Prepaid: true}
}

// keeping gives the pool limits of acme's, with so much in its balance.
func (g *rig) keeping(rules quota.Rules, balance int64) *keeper.Keeper {
	g.t.Helper()
	k, err := keeper.New(keeper.Config{Table: quota.Table{Tenants: []quota.Named{{Tenant: "acme", Rules: rules}}}, Most: 10})
	if err != nil {
		g.t.Fatal(err)
	}
	if rules.Prepaid {
		if _, err := k.Refill("acme", balance); err != nil {
			g.t.Fatal(err)
		}
	}
	g.pool.cfg.Limits = k
	return k
}

// TestEveryEndSettlesOnce: however a call ends, nothing of it stays reserved, and what it
// is charged is what was made of it: nothing if no engine ran it; of the balance nothing if
// the engine or the gateway has failed it before its client saw anything.
func TestEveryEndSettlesOnce(t *testing.T) {
	// The engine counts 15 tokens of the prompt, which are 10 by the estimate where an answer
	// has no usage. Where a loan ends, or one waits behind another, that one is acme's too.
	want := strings.TrimLeft(`
finish, stream true: 1 requests, 17 tokens, 17 billed
finish, stream false: 1 requests, 17 tokens, 17 billed
engine error before the stream, stream true: 0 requests, 0 tokens, 0 billed
engine error before the stream, stream false: 0 requests, 0 tokens, 0 billed
engine error in the stream, stream true: 1 requests, 12 tokens, 12 billed
engine error in the stream, stream false: 1 requests, 12 tokens, 0 billed
torn stream, stream true: 1 requests, 12 tokens, 12 billed
torn stream, stream false: 1 requests, 12 tokens, 0 billed
stream without an end, stream true: 1 requests, 12 tokens, 12 billed
stream without an end, stream false: 1 requests, 12 tokens, 0 billed
idle before the first event, stream true: 0 requests, 0 tokens, 0 billed
idle before the first event, stream false: 0 requests, 0 tokens, 0 billed
idle after it, stream true: 1 requests, 13 tokens, 13 billed
idle after it, stream false: 1 requests, 13 tokens, 0 billed
client gone while queued, stream true: 1 requests, 17 tokens, 17 billed
client gone while queued, stream false: 1 requests, 17 tokens, 17 billed
client gone before the engine answers, stream true: 1 requests, 10 tokens, 10 billed
client gone before the engine answers, stream false: 1 requests, 10 tokens, 10 billed
client gone before the first event, stream true: 1 requests, 10 tokens, 10 billed
client gone before the first event, stream false: 1 requests, 10 tokens, 10 billed
client gone after it, stream true: 1 requests, 12 tokens, 12 billed
client gone after it, stream false: 1 requests, 12 tokens, 12 billed
client does not take the answer, stream true: 1 requests, 13 tokens, 13 billed
client does not take the answer, stream false: 1 requests, 18 tokens, 18 billed
loan ended before the dispatch, stream true: 2 requests, 32 tokens, 32 billed
loan ended before the dispatch, stream false: 2 requests, 32 tokens, 32 billed
loan ended before the engine answers, stream true: 2 requests, 32 tokens, 32 billed
loan ended before the engine answers, stream false: 2 requests, 32 tokens, 32 billed
loan ended before the first event, stream true: 2 requests, 32 tokens, 32 billed
loan ended before the first event, stream false: 2 requests, 32 tokens, 32 billed
loan ended after it, stream true: 2 requests, 28 tokens, 28 billed
loan ended after it, stream false: 2 requests, 32 tokens, 32 billed
`, "\n")
	var got strings.Builder
	for _, e := range endings {
		for _, stream := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}, classes: lender(), configure: neverContinued})
				k := g.keeping(plenty(), 1_000_000)
				c := e.run(g, stream)
				pass(5 * time.Second)
				if e.again != nil && e.again(stream) {
					pass(lender()[0].IdleAfter)
					finish(g, c)
				}
				a := k.Account("acme")
				if a.Open != 0 || a.Requests.Held != 0 || a.Tokens.Held != 0 || a.Balance.Held != 0 {
					t.Errorf("%s: it is over, and %+v is held", e.name, a)
				}
				fmt.Fprintf(&got, "%s, stream %t: %d requests, %d tokens, %d billed\n", e.name, stream, a.Requests.Used, a.Tokens.Used, 1_000_000-a.Balance.Left)
			})
		}
	}
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got.String(), "\n")); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestResumedIsBilledOnce: an answer that was interrupted and gone on with is billed what
// its client's usage says, and what an uninterrupted one is.
func TestResumedIsBilledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, 1, nil)
		k := s.keeping(plenty(), 1_000_000)
		body := ask(wire.Chat, false, "hello there", 80, `,"min_tokens":80,"temperature":0`)
		billed := func(after ...time.Duration) (int64, int64) {
			before := k.Account("acme")
			c, cuts := s.answer(wire.Chat, body, after...)
			if cuts != len(after) {
				t.Fatalf("it was interrupted %d times, want %d", cuts, len(after))
			}
			now := k.Account("acme")
			if rate := now.Tokens.Used - before.Tokens.Used; rate < before.Balance.Left-now.Balance.Left-1 {
				t.Errorf("%d were charged to the rate, and %d to the balance", rate, before.Balance.Left-now.Balance.Left)
			}
			return before.Balance.Left - now.Balance.Left, gjson.Get(c.text(), "usage.total_tokens").Int()
		}
		whole, usage := billed()
		if whole != usage || usage < 80 {
			t.Fatalf("billed %d, the client was told %d", whole, usage)
		}
		if cut, usage := billed(20*simStep, 30*simStep); cut != whole || usage != whole {
			t.Errorf("interrupted twice it is billed %d, and the client was told %d; want %d", cut, usage, whole)
		}
	})
}

// TestCheckpointedIsBilledAtItsEnd: of an item that was stopped nothing is taken from the
// balance; the one that goes on with it, and ends, pays for both, and its rate only for
// what was new.
func TestCheckpointedIsBilledAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t, 1, nil)
		k := s.keeping(plenty(), 1_000_000)
		body := ask(wire.Chat, false, "hello there", 120, `,"min_tokens":120,"temperature":0`)
		_, kept, tokens := s.checkpointed(wire.Chat, body, nil, 60*simStep)
		first := k.Account("acme")
		if tokens == 0 || first.Balance.Left != 1_000_000 || first.Tokens.Used < int64(tokens) {
			t.Fatalf("%d tokens were kept; the balance is %d, the rate was charged with %d", tokens, first.Balance.Left, first.Tokens.Used)
		}
		answer, _, _ := s.checkpointed(wire.Chat, body, kept, 0)
		now := k.Account("acme")
		if usage := gjson.Get(answer, "usage.total_tokens").Int(); usage < 120 || 1_000_000-now.Balance.Left != usage {
			t.Errorf("billed %d, the answer's usage is %d", 1_000_000-now.Balance.Left, usage)
		}
		if more, usage := now.Tokens.Used-first.Tokens.Used, gjson.Get(answer, "usage.total_tokens").Int(); more != usage-int64(tokens) {
			t.Errorf("the rate was charged with %d more of %d, of which %d had been made before", more, usage, tokens)
		}
	})
}

// TestLimitsRefuse: what is beyond a tenant's limits is refused before the core hears of
// it, with the time after which it comes in.
func TestLimitsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}})
		rules := plenty()
		rules.Requests, rules.Prepaid = quota.Rate{N: 2, Burst: 1, Window: 10 * time.Second}, false
		g.keeping(rules, 0)
		first, call := answering(g, "interactive", true)
		refused := g.serve("interactive", sent(true, ""))
		g.wantCode(refused, wire.CodeRateLimited)
		if refused.err.Retry != 5*time.Second || refused.err.Status != 429 {
			t.Errorf("status %d, hint %v: want 429 and 5s", refused.err.Status, refused.err.Retry)
		}
		call.Finish("stop")
		settle()
		g.wantCode(first, "")
		pass(refused.err.Retry)
		second, call := answering(g, "interactive", true)
		call.Finish("stop")
		settle()
		g.wantCode(second, "")
		events := g.events()
		if got := story(events, refused.id); got != "arrived rejected(limit_requests)" {
			t.Errorf("story of the refused: %s", got)
		}
	})
}

// TestLimitsOfARefused: what admission refuses has used nothing of its tenant's limits.
func TestLimitsOfARefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := loose("interactive")
		class.Depth = 0
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}, classes: []admission.ClassSpec{class}})
		k := g.keeping(plenty(), 1_000_000)
		_, call := answering(g, "interactive", true)
		before := k.Account("acme")
		g.wantCode(g.serve("interactive", sent(true, "")), wire.CodeQueueFull)
		if now := k.Account("acme"); now != before {
			t.Errorf("%+v, before the refusal %+v", now, before)
		}
		call.Finish("stop")
		settle()
	})
}

// TestLimitsWhereAPoolObserves: nothing is refused, and it is written down what would be.
func TestLimitsWhereAPoolObserves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}, pool: func(c *Config) { c.Observe = true }})
		rules := plenty()
		rules.Requests = quota.Rate{N: 1, Burst: 1, Window: time.Hour}
		k := g.keeping(rules, 0)
		var last *client
		for range 2 {
			c, call := answering(g, "interactive", true)
			call.Finish("stop")
			settle()
			g.wantCode(c, "")
			last = c
		}
		if a := k.Account("acme"); a.Requests.Used != 1 || a.Balance.Left != 0 {
			t.Errorf("%+v: want one request used, and nothing taken from an empty balance", a)
		}
		if got := story(g.events(), last.id); !strings.HasPrefix(got, "arrived limited(limit_requests) limited(limit_balance) ") {
			t.Errorf("story: %s", got)
		}
	})
}
