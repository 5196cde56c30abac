package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"
)

// stoppedAt is what vLLM makes of tokens with these texts (detokenizer.py: update
// and check_stop_strings), told by its words: all output, its new part, and where in
// it a string may begin.
func stoppedAt(pieces, stops []string, include bool, least int) (text, stop string, tokens int) {
	for i, piece := range pieces {
		text += piece
		if i+1 <= least || piece == "" {
			continue
		}
		best := len(text) + 1
		at := 0
		for _, s := range stops {
			from := max(0, len(text)+1-len(piece)-len(s))
			if j := strings.Index(text[from:], s); j >= 0 && from+j+len(s) < best {
				stop, at, best = s, from+j, from+j+len(s)
			}
		}
		if stop != "" {
			if include {
				at = best
			}
			return text[:at], stop, i + 1
		}
	}
	return text, "", len(pieces)
}

type failing interface{ Fatalf(string, ...any) }

// requestOf is a chat with stop strings.
func requestOf(t failing, stops []string, include bool, least int) *Request {
	list, err := json.Marshal(stops)
	if err != nil {
		t.Fatalf("%v", err)
	}
	r, refused := Parse(Chat, fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":900,"stop":%s,"include_stop_str_in_output":%t,"min_tokens":%d}`, list, include, least))
	if refused != nil {
		t.Fatalf("%v", refused)
	}
	if !r.Resumable() {
		t.Fatalf("with stop %s it isn't resumable", list)
	}
	return r
}

// eventOf is one token of an attempt, the first in the shape of a chat.
func eventOf(attempt, token int, text, finish string) []byte {
	reason := "null"
	if finish != "" {
		reason = string(appendString(nil, finish))
	}
	written := appendString(nil, text)
	if attempt == 0 {
		return fmt.Appendf(nil, `{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":%s},"finish_reason":%s,"token_ids":[%d]}],"prompt_token_ids":[1,2]}`, written, reason, token+10)
	}
	return fmt.Appendf(nil, `{"id":"x","choices":[{"index":0,"text":%s,"finish_reason":%s,"stop_reason":null,"token_ids":[%d]}]}`, written, reason, token+10)
}

func begins(text string, stops []string) bool {
	for _, s := range stops {
		if strings.HasPrefix(s, text) && s != text {
			return true
		}
	}
	return false
}

// clientOf is what a client has got.
type clientOf struct {
	text, finish, stop string
	tokens             int64
}

func (c *clientOf) take(data []byte) {
	choice := gjson.GetBytes(data, "choices.0")
	c.text += choice.Get("delta.content").String()
	c.finish += choice.Get("finish_reason").String()
	c.stop += choice.Get("stop_reason").String()
	c.tokens += gjson.GetBytes(data, "usage.completion_tokens").Int()
}

// TestStopsOverCuts: whatever the tokens, the strings and the cuts, the answer ends
// where the engine would have ended it, and no more is held back than may still be
// the beginning of a string.
func TestStopsOverCuts(t *testing.T) {
	hits, carried := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.RuneFrom([]rune("aab é😀"))
		pieces := rapid.SliceOfN(rapid.StringOfN(letters, 0, 3, -1), 1, 25).Draw(t, "pieces")
		stops := rapid.SliceOfN(rapid.StringOfN(letters, 1, 6, -1), 1, 4).Draw(t, "stops")
		include := rapid.Bool().Draw(t, "include")
		least := rapid.IntRange(0, 12).Draw(t, "least") * rapid.IntRange(0, 1).Draw(t, "with")
		cuts := rapid.SliceOfN(rapid.IntRange(0, 24), 0, 5).Draw(t, "cuts")

		s := NewStitch(requestOf(t, stops, include, least), 900, 0)
		var got clientOf
		cut := map[int]int{}
		for _, at := range cuts {
			cut[at]++
		}
		attempt, kept := 0, 0 // tokens
		for i := 0; i < len(pieces); i++ {
			finish := ""
			if i == len(pieces)-1 {
				finish = "length"
			}
			p, err := s.Add(eventOf(attempt, i, pieces[i], finish))
			if err != nil || !json.Valid(p.Data) {
				t.Fatalf("%v: %s", err, p.Data)
			}
			if !p.Last && cut[i] > 0 {
				// The event didn't come to the client: it comes again.
				cut[i]--
				attempt++
				if s.Cut() {
					i = kept - 1
					if len(s.stops.begun) > 0 {
						carried++
					}
				} else {
					s, got = NewStitch(requestOf(t, stops, include, least), 900, 0), clientOf{}
					attempt, i = 0, -1
				}
				continue
			}
			got.take(p.Data)
			if p.Sure || p.Last {
				s.Keep()
				kept = i + 1
			}
			if p.Stop {
				hits++
				got.take(s.Usage(0))
				break
			}
			held := strings.Join(pieces[:i+1], "")[len(got.text):]
			if held != "" && (p.Last || include || !begins(held, stops)) {
				t.Fatalf("%q is held back", held)
			}
		}
		text, stop, tokens := stoppedAt(pieces, stops, include, least)
		want := clientOf{text: text, finish: "length"}
		if stop != "" {
			want = clientOf{text, "stop", stop, int64(tokens)}
		}
		if got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
	t.Logf("%d stops, %d cuts with text that was held back", hits, carried)
	if hits == 0 || carried == 0 {
		t.Error("nothing was stopped or carried")
	}
}

// TestStopAfterMinTokens: tokens that a cut has lost do not count twice.
func TestStopAfterMinTokens(t *testing.T) {
	s := NewStitch(requestOf(t, []string{"b"}, false, 3), 9, 0)
	var got clientOf
	add := func(attempt, token int, text string) {
		p, err := s.Add(eventOf(attempt, token, text, ""))
		if err != nil {
			t.Fatal(err)
		}
		got.take(p.Data)
	}
	add(0, 0, "a")
	s.Keep()
	for attempt := range 3 {
		add(attempt, 1, "") // the beginning of a character
		s.Cut()
	}
	add(3, 1, "")
	add(3, 2, "b")
	s.Keep()
	if got.finish != "" {
		t.Errorf("stopped with the third token: %+v", got)
	}
	add(3, 3, "b")
	if got != (clientOf{text: "ab", finish: "stop", stop: "b"}) {
		t.Errorf("%+v", got)
	}
}

// TestStopWithinMinTokens: what came within min_tokens does not stop the answer
// later, though it is held back as the beginning of another string.
func TestStopWithinMinTokens(t *testing.T) {
	s := NewStitch(requestOf(t, []string{"ab", "xabc"}, false, 1), 9, 0)
	var got clientOf
	for i, text := range []string{"xab", "y", "ab"} {
		p, err := s.Add(eventOf(0, i, text, ""))
		if err != nil {
			t.Fatal(err)
		}
		got.take(p.Data)
	}
	if got != (clientOf{text: "xaby", finish: "stop", stop: "ab"}) {
		t.Errorf("%+v", got)
	}
}

// TestStopInEvents: what becomes of an event's members, whatever the engine's shape.
func TestStopInEvents(t *testing.T) {
	chat := func(stops string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stop":` + stops + `}`
	}
	completion := func(stops string) string { return `{"model":"m","max_tokens":9,"prompt":"hi","stop":` + stops + `}` }
	for _, c := range []struct {
		name string
		api  API
		body string
		in   string // events, with | between them
		want string
	}{
		{"the end releases", Chat, chat(`"abc"`),
			`{"choices":[{"delta":{"content":"xab"},"finish_reason":null}]}|{"choices":[{"delta":{"content":"d"},"finish_reason":"length"}]}`,
			`{"choices":[{"delta":{"content":"x"},"finish_reason":null}]}|{"choices":[{"delta":{"content":"abd"},"finish_reason":"length"}]}`},
		{"into an empty delta", Chat, chat(`"abc"`),
			`{"choices":[{"delta":{"content":"ab"}}]}|{"choices":[{"delta":{},"finish_reason":"stop"}]}`,
			`{"choices":[{"delta":{"content":""}}]}|{"choices":[{"delta":{"content":"ab"},"finish_reason":"stop"}]}`},
		{"into a delta of other things", Chat, chat(`"abc"`),
			`{"choices":[{"delta":{"content":"ab"}}]}|{"choices":[{"finish_reason":"stop","delta":{ "role":"assistant" }}]}`,
			`{"choices":[{"delta":{"content":""}}]}|{"choices":[{"finish_reason":"stop","delta":{"content":"ab", "role":"assistant" }}]}`},
		{"where there is no delta", Chat, chat(`"abc"`),
			`{"choices":[{"delta":{"content":"ab"}}]}|{"choices":[{"finish_reason":"stop"}]}`,
			`{"choices":[{"delta":{"content":""}}]}|{"choices":[{"finish_reason":"stop","delta":{"content":"ab"}}]}`},
		{"where the delta is null", Chat, chat(`"abc"`),
			`{"choices":[{"delta":{"content":"ab"}}]}|{"choices":[{"delta":null,"finish_reason":"stop"}]}`,
			`{"choices":[{"delta":{"content":""}}]}|{"choices":[{"delta":{"content":"ab"},"finish_reason":"stop"}]}`},
		{"where the text is null", Completions, completion(`["abc"]`),
			`{"choices":[{"text":"ab"}]}|{"choices":[{"text":null,"finish_reason":"stop"}]}|{"choices":[],"usage":{}}`,
			`{"choices":[{"text":""}]}|{"choices":[{"text":"ab","finish_reason":"stop"}]}|{"choices":[],"usage":{}}`},
		{"where there is no text", Completions, completion(`["abc"]`),
			`{"choices":[{"text":"ab"}]}|{"choices":[{"finish_reason":"stop"}]}`,
			`{"choices":[{"text":""}]}|{"choices":[{"finish_reason":"stop","text":"ab"}]}`},
		{"reasons that are there", Completions, completion(`["abc","b"]`),
			`{"choices":[{"finish_reason":null,"text":"1abc","stop_reason":null}]}`,
			`{"choices":[{"finish_reason":"stop","text":"1a","stop_reason":"b"}]}`},
		{"no reasons", Completions, completion(`["b"]`),
			`{"choices":[{"text":"1abc"}]}`,
			`{"choices":[{"text":"1a","finish_reason":"stop","stop_reason":"b"}]}`},
		{"goes before the limit", Chat, chat(`"b"`),
			`{"choices":[{"delta":{"content":"ab"},"finish_reason":"length"}]}`,
			`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop","stop_reason":"b"}]}`},
		{"a token that the engine stops at", Chat, chat(`"b"`),
			`{"choices":[{"delta":{"content":"ab"},"finish_reason":"stop","stop_reason":7}]}`,
			`{"choices":[{"delta":{"content":"ab"},"finish_reason":"stop","stop_reason":7}]}`},
		{"an event of several at the engine's stop", Chat, chat(`"b"`),
			`{"choices":[{"delta":{"content":"ab"},"finish_reason":"stop","stop_reason":7,"token_ids":[1,7]}]}`,
			`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop","stop_reason":"b"}]}`},
		{"escapes", Chat, chat(`"\n\u00e9\ud83d\ude00"`),
			`{"choices":[{"delta":{"content":"\u0041\n"}}]}|{"choices":[{"delta":{"content":"\u00E9"}}]}|{"choices":[{"delta":{"content":"\\"}}]}|{"choices":[{"delta":{"content":"\u000Aé😀 "}}]}`,
			`{"choices":[{"delta":{"content":"A"}}]}|{"choices":[{"delta":{"content":""}}]}|{"choices":[{"delta":{"content":"\u000aé\\"}}]}|` +
				`{"choices":[{"delta":{"content":""},"finish_reason":"stop","stop_reason":"\u000aé😀"}]}`},
	} {
		r, err := Parse(c.api, []byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		s := NewStitch(r, 9, 0)
		var got []string
		stopped := false
		for in := range strings.SplitSeq(c.in, "|") {
			p, err := s.Add([]byte(in))
			if err != nil {
				t.Fatal(err)
			}
			got, stopped = append(got, string(p.Data)), p.Stop
		}
		if text := strings.Join(got, "|"); text != c.want || stopped != strings.Contains(c.want, `"stop_reason":"`) {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, text, c.want)
		}
	}
}

// TestStopIsNotSentUpstream, but where the engine is to look for it.
func TestStopIsNotSentUpstream(t *testing.T) {
	for body, want := range map[string]string{
		`{"stop":"x","model":"m","max_tokens":9,"prompt":"hi"}`:                       `{"stop":null,"model":"m","max_tokens":9,"prompt":"hi","return_token_ids":true}`,
		`{"model":"m","max_tokens":9,"prompt":"hi","stop":["x"],"priority":1}`:        `{"model":"m","max_tokens":9,"prompt":"hi","stop":null,"return_token_ids":true}`,
		`{"model":"m","max_tokens":9,"prompt":"hi","\u0073top" : [ "x" ], "user":""}`: `{"model":"m","max_tokens":9,"prompt":"hi","\u0073top" : null, "user":"","return_token_ids":true}`,
		`{"model":"m","max_tokens":9,"prompt":"hi","stop":[]}`:                        `{"model":"m","max_tokens":9,"prompt":"hi","stop":[],"return_token_ids":true}`,
	} {
		r, refused := Parse(Completions, []byte(body))
		if refused != nil {
			t.Fatal(refused)
		}
		got, err := r.Project(nil, Projection{TokenIDs: true})
		if err != nil || string(got) != want {
			t.Errorf("%v: %s\nwant %s", err, got, want)
		}
		if got, err := r.Project(nil, Projection{Priority: 1, HasPriority: true}); err != nil || strings.Contains(string(got), "null") {
			t.Errorf("%v: %s", err, got)
		}
	}
	if _, refused := Parse(Completions, []byte(`{"model":"m","prompt":"hi","stop":"a","stop":"b"}`)); refused == nil || refused.Param != "stop" {
		t.Errorf("two stops: %v", refused)
	}
}

// FuzzStop: an answer in any two pieces of any text ends as one that is looked at as
// a whole, with any strings.
func FuzzStop(f *testing.F) {
	f.Add("a stone gate", "gate", "e g", 3, false)
	f.Add("a😀b😀é", "😀é", "é", 7, true)
	f.Add("aabaabaaab", "aaab", "aab!", 5, false)
	f.Add("a\"\\\n<b>", "\n<", "\"\\", 2, true)
	f.Fuzz(func(t *testing.T, text, one, other string, at int, include bool) {
		if !utf8.ValidString(text) || at < 0 || at > len(text) || !utf8.ValidString(text[:at]) {
			return
		}
		for _, s := range []string{one, other} {
			if s == "" || len(s) > maxStop || !utf8.ValidString(s) || strings.ContainsRune(s, utf8.RuneError) {
				return
			}
		}
		stops, pieces := []string{one, other}, []string{text[:at], text[at:]}
		s := NewStitch(requestOf(t, stops, include, 0), 900, 0)
		var got clientOf
		for i, finish := range []string{"", "length"} {
			p, err := s.Add(eventOf(0, i, pieces[i], finish))
			if err != nil || !json.Valid(p.Data) {
				t.Fatalf("%v: %s", err, p.Data)
			}
			if got.take(p.Data); p.Stop {
				got.take(s.Usage(0))
				break
			}
			s.Keep()
		}
		want, stop, tokens := stoppedAt(pieces, stops, include, 0)
		if got.text != want || got.stop != stop || stop != "" && got.tokens != int64(tokens) {
			t.Errorf("%+v, want %q stopped by %q after %d tokens", got, want, stop, tokens)
		}
	})
}

// BenchmarkStop is what an event of an answer that can be continued costs: without
// stop strings, with some of which none begins in it, and with text held back.
func BenchmarkStop(b *testing.B) {
	const head = `{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1717171717,"model":"m","choices":[{"index":0,"delta":{"content":`
	const tail = `},"logprobs":null,"finish_reason":null,"token_ids":[12345]}]}`
	for _, c := range []struct{ name, stop, text string }{
		{"none", "", `" water"`},
		{"unsuspicious", `,"stop":["\n\n","User:","Observation:","</answer>"]`, `" water"`},
		{"held", `,"stop":["\n\n","User:","Observation:","</answer>"]`, `" water\nU"`},
	} {
		b.Run(c.name, func(b *testing.B) {
			r, err := Parse(Chat, []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":900`+c.stop+`}`))
			if err != nil {
				b.Fatal(err)
			}
			s := NewStitch(r, 900, 0)
			if _, err := s.Add([]byte(`{"choices":[],"prompt_token_ids":[1]}`)); err != nil {
				b.Fatal(err)
			}
			event := []byte(head + c.text + tail)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Add(event); err != nil {
					b.Fatal(err)
				}
				s.tail = ids{text: s.tail.text[:0]}
			}
		})
	}
}
