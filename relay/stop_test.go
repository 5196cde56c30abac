package relay

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/simengine/vllmapi"
	"headgate/wire"
)

// told is what an answer says, in whatever pieces.
type told struct {
	text, finish, stop, usage string
	openings, ends            int
}

func toldBy(answer string) told {
	var t told
	if !strings.HasPrefix(answer, "data:") {
		t.add(answer, "choices.0.message.content")
		return t
	}
	for event := range strings.SplitSeq(answer, "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		switch {
		case data == "[DONE]":
			t.ends++
		case ok:
			t.add(data, "choices.0.delta.content")
		}
	}
	return t
}

func (t *told) add(data, chat string) {
	t.text += gjson.Get(data, chat).String() + gjson.Get(data, "choices.0.text").String()
	if f := gjson.Get(data, "choices.0.finish_reason").String(); f != "" {
		t.finish += f
		t.stop += gjson.Get(data, "choices.0.stop_reason").String()
	}
	if u := gjson.Get(data, "usage"); u.IsObject() {
		t.usage += u.Raw
	}
	if gjson.Get(data, "choices.0.delta.role").Exists() {
		t.openings++
	}
}

// stopping is the part of a body that asks for stop strings.
func stopping(stops []string, include bool) string {
	list, err := json.Marshal(stops)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`,"temperature":0,"stop":%s,"include_stop_str_in_output":%t`, list, include)
}

// TestStopsAreExact: an answer with stop strings that is interrupted anywhere, any
// number of times, is what the engine says that looks for them itself: the strings
// lie across cuts and characters, overlap, begin others, and come before min_tokens.
func TestStopsAreExact(t *testing.T) {
	counts := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		api := rapid.SampledFrom([]wire.API{wire.Chat, wire.Completions}).Draw(rt, "api")
		stream := rapid.Bool().Draw(rt, "stream")
		include := rapid.Bool().Draw(rt, "include")
		most := rapid.IntRange(1, 90).Draw(rt, "max_tokens")
		least := rapid.IntRange(0, 1).Draw(rt, "min") * rapid.IntRange(0, most).Draw(rt, "min_tokens")
		prompt := rapid.StringOfN(rapid.RuneFrom([]rune("ab é水😀")), 1, 12, -1).Draw(rt, "prompt")
		var after []time.Duration
		for range rapid.IntRange(1, 5).Draw(rt, "cuts") {
			after = append(after, time.Duration(rapid.IntRange(0, 100).Draw(rt, "after"))*simStep/10)
		}
		type place struct{ at, length, kind int } // in thousandths of the answer, in characters
		var drawn []place
		for range rapid.IntRange(1, 4).Draw(rt, "stops") {
			drawn = append(drawn, place{rapid.IntRange(0, 999).Draw(rt, "at"), rapid.IntRange(1, 14).Draw(rt, "length"), rapid.IntRange(0, 4).Draw(rt, "kind")})
		}
		synctest.Test(t, func(t *testing.T) {
			s := newSimulated(t, 1, nil)
			s.answer(wire.Chat, ask(wire.Chat, false, "x", 1, ""))
			atLeast := fmt.Sprintf(`,"min_tokens":%d`, least)
			text := []rune(toldBy(s.engineSays(api, ask(api, true, prompt, most, atLeast))).text)
			var stops []string
			for _, d := range drawn {
				at := d.at * len(text) / 1000
				stop := string(text[at:min(len(text), at+d.length)])
				switch d.kind {
				case 0:
					stop += "!" // all but its end comes
				case 1:
					r := []rune(stop)
					stops = append(stops, string(r[:(len(r)+1)/2]))
				case 2:
					r := []rune(stop)
					stops = append(stops, string(r[len(r)/2:]))
				}
				stops = append(stops, stop)
			}
			stops = slices.DeleteFunc(stops, func(s string) bool { return s == "" || strings.Contains(s, "\ufffd") })
			body := ask(api, stream, prompt, most, atLeast+stopping(stops, include))
			got, cuts := s.answer(api, body, after...)
			a, b := toldBy(got.text()), toldBy(s.engineSays(api, body))
			if _, names := nameless(got.text()); a != b || names != 2 {
				rt.Errorf("%s\nafter %d cuts, with %d names:\n%+v\nwant\n%+v\n%s", body, cuts, names, a, b, got.text())
			}
			pass(time.Second)
			s.wantEmpty()
			kept := false
			for _, e := range s.events() {
				kept = kept || e.Cause == "reclaimed" && e.OutputTokens > 0
			}
			if kept {
				counts["kept"]++
			}
			if kept && b.stop != "" {
				counts["stopped"]++
			}
		})
	})
	t.Logf("%v", counts)
	if counts["stopped"] == 0 {
		t.Error("no answer was continued and stopped")
	}
}

// TestStopAcrossEveryCut: a stop string of several tokens, with characters of several
// bytes among them, is found wherever in it or before it the answer is cut.
func TestStopAcrossEveryCut(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulated(t, 1, func(c *vllmapi.Config) { c.Engine.MeanOutput = 0 })
				s.answer(wire.Chat, ask(wire.Chat, false, "x", 1, ""))
				const prompt, most = "the river", 60
				text := []rune(toldBy(s.engineSays(wire.Chat, ask(wire.Chat, true, prompt, most, ""))).text)
				stop := string(text[len(text)/3 : len(text)/3+60])
				if !strings.ContainsFunc(stop, func(r rune) bool { return r > 0x7f }) {
					t.Fatalf("%q has no long character", stop)
				}
				body := ask(wire.Chat, stream, prompt, most, stopping([]string{stop, "never"}, false))
				want := toldBy(s.engineSays(wire.Chat, body))
				all := int(gjson.Get(want.usage, "completion_tokens").Int())
				if want.finish != "stop" || all < 15 {
					t.Fatalf("the engine says %+v", want)
				}
				seen := map[int64]bool{}
				for n := range all {
					got, _ := s.answer(wire.Chat, body, time.Duration(n)*simStep+simStep/2, 3*simStep/2)
					if a := toldBy(got.text()); a != want {
						t.Errorf("cut at %d:\n%+v\nwant\n%+v", n, a, want)
					}
				}
				pass(time.Second)
				s.wantEmpty()
				for _, e := range s.events() {
					if e.Kind == journal.Ended && e.Cause == "reclaimed" {
						seen[e.OutputTokens] = true
					}
				}
				if len(seen) < all/2 { // behind a part of a character nothing is kept
					t.Errorf("of %d tokens, cut behind %d", all, len(seen))
				}
			})
		})
	}
}

// TestStopEndsTheAttempt: the engine is not asked to look for stop strings, in no
// attempt, and is told to end the attempt in which one came; the hold is released
// once it has. What the client gets is of the shape of the first attempt.
func TestStopEndsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSeen(t)
		e := g.engines[0]
		batch := g.serve("batch", sent(true, `,"max_tokens":50,"stop":["three","b c"],"stream_options":{"include_usage":true}`))
		first := e.Accept(t)
		if stop := gjson.GetBytes(first.Body, "stop").Raw; stop != "null" {
			t.Errorf("the engine is asked for stop %s", stop)
		}
		first.Start()
		first.Send(opened + saidWith("a", `,"token_ids":[1]`, "") + saidWith(" b", `,"token_ids":[2]`, ""))
		settle()
		wants := g.serve("interactive", sent(true, ""))
		<-first.Gone()
		finish(g, wants)
		pass(2 * time.Second)
		again := e.Accept(t)
		if ids := gjson.GetBytes(again.Body, "prompt").Raw; ids != "[11,12,1,2]" || gjson.GetBytes(again.Body, "stop").Exists() {
			t.Errorf("it goes on as %s", again.Body)
		}
		again.Start()
		again.Send(`data: {"id":"cmpl-2","choices":[{"index":0,"text":" cd","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[3]}]}` + "\n\n")
		<-again.Gone()
		settle()
		g.wantCode(batch, "")
		if n := len(g.pool.Snapshot().Holds); n != 1 {
			t.Errorf("%d holds before the engine has confirmed the abort", n)
		}
		head := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"test-model","choices":[`
		want := head + `{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
		for _, text := range []string{"a", " "} {
			want += head + fmt.Sprintf(`{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, text) + "\n\n"
		}
		// The continuation's events name themselves as the first attempt's did.
		want += `data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":"b c"}]}` + "\n\n" +
			head + `],"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3,"prompt_tokens_details":null}}` + "\n\ndata: [DONE]\n\n"
		if batch.text() != want {
			t.Errorf("the client got\n%s\nwant\n%s", batch.text(), want)
		}
		pass(5 * time.Second)
		g.wantEmpty()
		if got, want := confirmedBy(story(g.events(), batch.id)), "ended(finished) finished(finished) released(?)"; !strings.HasSuffix(got, want) {
			t.Errorf("%s: want ... %s", got, want)
		}
	})
}

// TestStopMeetsRecall: a stop string that comes when the attempt's end has been asked
// for is found by the next attempt: the client is not told of it twice, nor never.
func TestStopMeetsRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSeen(t)
		e := g.engines[0]
		batch := g.serve("batch", sent(true, `,"max_tokens":50,"stop":"xy"`), func(c *client) {
			c.onEvent = func(n int) error {
				if n == 2 {
					(&simulated{rig: g}).interrupt()
				}
				return nil
			}
		})
		first := e.Accept(t)
		first.Start()
		first.Send(opened + saidWith("ax", `,"token_ids":[1]`, "") + saidWith("yz", `,"token_ids":[2]`, ""))
		<-first.Gone()
		pass(5 * time.Second)
		again := e.Accept(t)
		again.Start()
		again.Send(`data: {"id":"cmpl-2","choices":[{"index":0,"text":"yz","finish_reason":null,"token_ids":[2]}]}` + "\n\n")
		<-again.Gone()
		settle()
		g.wantCode(batch, "")
		if got := toldBy(batch.text()); got != (told{text: "a", finish: "stop", stop: "xy", openings: 1, ends: 1}) {
			t.Errorf("the client got %s", batch.text())
		}
		pass(5 * time.Second)
		g.wantEmpty()
	})
}

// TestStopWithoutIDs: an engine that was believed to return ids does not. What nobody
// has seen starts over, with the stop strings for the engine to look for; a stream
// goes on to its end, and the gateway looks.
func TestStopWithoutIDs(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newSeen(t)
				e := g.engines[0]
				batch := g.serve("batch", sent(stream, `,"stop":"xy","min_tokens":1`))
				first := e.Accept(t)
				first.Start()
				first.Send(opened + saidWith("ax", "", ""))
				settle()
				if stream {
					first.Send(saidWith("yz", "", ""))
					<-first.Gone()
				} else {
					wants := g.serve("interactive", sent(true, ""))
					<-first.Gone()
					finish(g, wants)
					pass(2 * time.Second)
					again := e.Accept(t)
					if gjson.GetBytes(again.Body, "stop").String() != "xy" {
						t.Errorf("it runs again as %s", again.Body)
					}
					again.Send(opened + saidWith("a", "", ""))
					again.Finish("stop")
				}
				settle()
				g.wantCode(batch, "")
				if got := toldBy(batch.text()); got.text != "a" || got.finish != "stop" {
					t.Errorf("the client got %s", batch.text())
				}
				pass(5 * time.Second)
				g.wantEmpty()
			})
		})
	}
}

// TestStopInADocument: an engine that answers with a document has not looked for
// stop strings, and it may go on behind one.
func TestStopInADocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: reclaimer(1), engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}})
		paced(g)
		batch := g.serve("batch", sent(false, `,"max_tokens":9,"stop":"xy"`))
		g.engines[0].Accept(t).Document(200, `{"choices":[{"index":0,"message":{"content":"axyz"},"finish_reason":"stop"}]}`)
		settle()
		g.wantCode(batch, "upstream_error")
	})
}
