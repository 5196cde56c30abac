package wire

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestContinuesText: an answer goes on from its text where there is one place for it.
func TestContinuesText(t *testing.T) {
	for _, c := range []struct {
		api  API
		body string
		want bool
	}{
		{Chat, `"messages":[{"role":"user","content":"hi"}]`, true},
		{Chat, `"messages":[{"role":"user","content":"hi"}],"continue_final_message":null`, true},
		{Chat, `"messages":[{"role":"assistant","content":"a"},{"content":"hi","role":"user"}]`, true},
		{Chat, `"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"a"}]`, false},
		{Chat, `"messages":[{"role":"user","content":"hi"},{"r\u006fle":"assist\u0061nt","content":"a"}]`, false},
		{Chat, `"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false`, false},
		{Chat, `"messages":[{"role":"user","content":"hi"}],"continue_final_message":true`, false},
		{Chat, `"messages":[{"role":"user","content":"hi"}],"seed":1`, false},
		{Completions, `"prompt":"hi"`, true},
		{Completions, `"prompt":["hi"]`, false},
		{Completions, `"prompt":[1,2]`, false},
		{Completions, `"prompt":"hi","echo":true`, false},
	} {
		r, err := Parse(c.api, []byte(`{"model":"m","max_tokens":9,`+c.body+`}`))
		if err != nil || r.ContinuesText() != c.want {
			t.Errorf("%s: %v, want %t", c.body, err, c.want)
		}
	}
}

func chatEvent(delta string) string {
	return `{"id":"1","choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}]}`
}

// TestTextIsContinued: what goes to the engine is the client's own request, to the
// byte, with the text behind it and what is left of its limits.
func TestTextIsContinued(t *testing.T) {
	for _, c := range []struct {
		api   API
		body  string
		final bool
		want  string
	}{
		{Chat, `{"messages":[{"role":"user","content":"h\u00e9"} ], "model":"m","max_tokens":9,"stop":["x"],"temperature":0.50}`, false,
			`{"messages":[{"role":"user","content":"h\u00e9"} ,{"role":"assistant","content":"a \ud83d\ude00b"}], "model":"up","max_tokens":6,"stop":["x"],"temperature":0.50,"stream":true,"stream_options":{"include_usage":true}}`},
		{Chat, `{"model":"m","max_completion_tokens":9,"min_tokens":5,"add_generation_prompt":null,"messages":[{"role":"user","content":"hi"}],"priority":7}`, true,
			`{"model":"up","max_completion_tokens":6,"min_tokens":2,"add_generation_prompt":false,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"a \ud83d\ude00b"}],"continue_final_message":true,"stream":true,"stream_options":{"include_usage":true}}`},
		{Completions, `{"model":"m","prompt":"say \"","max_tokens":9,"min_tokens":2}`, true,
			`{"model":"up","prompt":"say \"a \ud83d\ude00b","max_tokens":6,"min_tokens":0,"stream":true,"stream_options":{"include_usage":true}}`},
	} {
		r, refused := Parse(c.api, []byte(c.body))
		if refused != nil {
			t.Fatal(refused)
		}
		s := NewTextStitch(r, 9)
		sure := ""
		for _, text := range []string{`a \ud83d`, `\ude00b`} {
			event := chatEvent(`{"content":"` + text + `"}`)
			if c.api == Completions {
				event = `{"choices":[{"index":0,"text":"` + text + `"}]}`
			}
			p, err := s.Add([]byte(event))
			if err != nil || p.Last {
				t.Fatalf("%v, %+v", err, p)
			}
			sure += map[bool]string{true: "y", false: "n"}[p.Sure]
			if p.Sure {
				s.Keep()
			}
		}
		if sure != "ny" {
			t.Errorf("cut inside a character: %s", sure)
		}
		s.kept.n = 3
		if !s.Cut() {
			t.Fatal("it can't be continued")
		}
		if got := s.Continue(Projection{Model: "up", FinalMessage: c.final}, 0); string(got) != c.want {
			t.Errorf("%s\nwant\n%s", got, c.want)
		}
	}
}

// TestTextOfAContinuation: the client has one opening, one usage and the names of the
// first attempt; and an attempt is not to be cut behind what engines trim.
func TestTextOfAContinuation(t *testing.T) {
	r, refused := Parse(Chat, []byte(`{"model":"m","max_tokens":90,"messages":[{"role":"user","content":"hi"}]}`))
	if refused != nil {
		t.Fatal(refused)
	}
	s := NewTextStitch(r, 90)
	for _, c := range []struct {
		event string
		sure  bool
		kept  int // once it is
	}{
		{chatEvent(`{"role":"assistant","content":""}`), false, 0},
		{chatEvent(`{"content":"one"}`), true, 1},
		{chatEvent(`{"content":" "}`), false, 1},
		{chatEvent(`{"content":"\n\t"}`), false, 1},
		{chatEvent(`{"content":"\u00a0"}`), false, 1},
		{chatEvent(`{"content":"\ufffd"}`), false, 1},
		{chatEvent(`{"content":""}`), false, 1},
		{chatEvent(`{"content":"two"}`), true, 7},
		{chatEvent(`{"content":" three more words"}`), true, 7 + Bound(Content{Bytes: [NumKinds]int{Prose: 17}})},
		{strings.Replace(chatEvent(`{"content":"x"}`), `"choices"`, `"usage":{"completion_tokens":50},"choices"`, 1), true, 50},
	} {
		p, err := s.Add([]byte(c.event))
		if err != nil || p.Sure != c.sure || p.Blank || p.Last {
			t.Errorf("%s: %v, %+v", c.event, err, p)
		}
		if p.Sure {
			s.Keep()
		}
		if s.Kept() != c.kept {
			t.Errorf("%s: %d tokens are kept, want %d", c.event, s.Kept(), c.kept)
		}
	}
	if !s.Cut() {
		t.Fatal("it can't be continued")
	}
	for _, c := range []struct{ event, want string }{
		{chatEvent(`{"role":"assistant","content":""}`), ""},
		{chatEvent(`{"role":"assistant","content":null}`), ""},
		{strings.Replace(chatEvent(`{"role":"assistant","content":"y"}`), `"1"`, `"2"`, 1), chatEvent(`{"content":"y"}`)},
		{`{"choices":[],"usage":{"prompt_tokens":60,"total_tokens":64,"completion_tokens":4}}`,
			`{"choices":[],"usage":{"prompt_tokens":10,"total_tokens":64,"completion_tokens":54}}`},
	} {
		p, err := s.Add([]byte(c.event))
		if err != nil || p.Blank != (c.want == "") || !p.Blank && string(p.Data) != c.want {
			t.Errorf("%s: %v, %+v\n%s", c.event, err, p, p.Data)
		}
	}
	for _, event := range []string{chatEvent(`{"reasoning_content":"hm"}`), chatEvent(`{"content":["a"]}`), `{"choices":[{"index":1,"delta":{}}]}`} {
		s := NewTextStitch(r, 90)
		if p, err := s.Add([]byte(event)); err != nil || !p.Last || s.Able() || s.Cut() {
			t.Errorf("%s: %v, %+v", event, err, p)
		}
	}
}

// TestTextComesToTheSame: wherever and however often an answer is cut, what the engine
// is given back and what the client has are the same text, of stop strings too.
func TestTextComesToTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := `{"model":"m","max_tokens":500,"prompt":"p"` + rapid.SampledFrom([]string{"", `,"stop":["b\"b","cc"]`, `,"stop":"é😀","include_stop_str_in_output":true`}).Draw(t, "stop") + `}`
		r, refused := Parse(Completions, []byte(body))
		if refused != nil {
			t.Fatal(refused)
		}
		answer := rapid.StringOfN(rapid.RuneFrom([]rune("ab\"c\\ \né水😀")), 1, 40, -1).Draw(t, "answer")
		quoted, _ := json.Marshal(answer)
		if rapid.Bool().Draw(t, "escaped") {
			quoted = []byte(strings.NewReplacer("😀", `\ud83d\ude00`, "é", `\u00e9`).Replace(string(quoted)))
		}
		// told is what the client gets, until a stop string or the end.
		run := func(s *Stitch, sizes func(left int) int, cut func() bool) (told string) {
			written := string(quoted[1 : len(quoted)-1])
			units := split(written)
			for at := 0; at < len(units); {
				n := sizes(len(units) - at)
				p, err := s.Add([]byte(`{"choices":[{"index":0,"text":"` + strings.Join(units[at:at+n], "") + `"}]}`))
				if err != nil {
					t.Fatal(err)
				}
				var out struct{ Choices []struct{ Text string } }
				if err := json.Unmarshal(p.Data, &out); err != nil {
					t.Fatal(err)
				}
				told += out.Choices[0].Text
				if at += n; p.Stop {
					return told
				}
				if p.Sure {
					if s.Keep(); cut() {
						if !s.Cut() {
							t.Fatal("it can't be continued")
						}
						var going struct{ Prompt string }
						if err := json.Unmarshal(s.Continue(Projection{}, 0), &going); err != nil {
							t.Fatal(err)
						}
						var had string
						_ = json.Unmarshal([]byte(`"`+strings.Join(units[:at], "")+`"`), &had)
						if going.Prompt != "p"+had {
							t.Fatalf("it goes on from %q, want %q", going.Prompt, had)
						}
					}
				}
			}
			return told
		}
		want := run(NewTextStitch(r, 500), func(int) int { return 1 }, func() bool { return false })
		got := run(NewTextStitch(r, 500), func(left int) int { return rapid.IntRange(1, min(left, 4)).Draw(t, "size") },
			func() bool { return rapid.Bool().Draw(t, "cut") })
		if got != want {
			t.Errorf("the client got %q, want %q", got, want)
		}
	})
}

var character = regexp.MustCompile(`\\ud83d\\ude00|\\u[0-9a-f]{4}|\\.|.`)

// split is a text as it is written, in characters.
func split(written string) []string { return character.FindAllString(written, -1) }
