package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestSavedIsAsIfCut: an answer that goes on from what was saved of it, in another
// process, comes to the same as one that was never left.
func TestSavedIsAsIfCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stop := rapid.SampledFrom([]string{"", `,"stop":["b\"b","cc"]`, `,"stop":"é😀","include_stop_str_in_output":true`}).Draw(t, "stop")
		fromText := rapid.Bool().Draw(t, "from text")
		r, refused := Parse(Completions, []byte(`{"model":"m","max_tokens":500,"prompt":"p"`+stop+`}`))
		if refused != nil {
			t.Fatal(refused)
		}
		words := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("ab\"c<\\é水😀")), 1, 4, -1), 1, 25).Draw(t, "words")
		run := func(leave func(i int) bool) string {
			s, a := NewStitch(r, 500, 0), NewAssembler(Completions, 1<<20)
			if fromText {
				s = NewTextStitch(r, 500)
			}
			attempt := 0
			for i, word := range words {
				finish, head := "null", ""
				if i == len(words)-1 {
					finish = `"length"`
				}
				if attempt == 0 || !fromText {
					head = `"prompt_token_ids":[1,2],`
				}
				text, _ := json.Marshal(word)
				p, err := s.Add(fmt.Appendf(nil, `{"id":"cmpl-%d","object":"text_completion","model":"up","choices":[{%s"index":0,"text":%s,"finish_reason":%s,"token_ids":[%d]}]}`, attempt, head, text, finish, i+10))
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Add(p.Data); err != nil {
					t.Fatal(err)
				}
				if p.Sure || p.Last {
					s.Keep()
				}
				if p.Stop {
					if err := a.Add(s.Usage(2)); err != nil {
						t.Fatal(err)
					}
					break
				}
				if p.Last || !p.Sure || !leave(i) {
					continue
				}
				data, err := Save(s, a, "up")
				if err != nil {
					t.Fatal(err)
				}
				attempt++
				kept := s.Before() + s.Kept()
				var model string
				if s, a, model, err = Restore(r, data, 1<<20); err != nil || model != "up" || s.Before() != kept || s.Kept() != 0 || s.FromText() != fromText {
					t.Fatalf("%v: model %q, %d tokens of %d", err, model, s.Before(), kept)
				}
				var body struct{ Prompt any }
				if err := json.Unmarshal(s.Continue(Projection{}, 0), &body); err != nil {
					t.Fatal(err)
				}
				if want := "p" + strings.Join(words[:i+1], ""); fromText && body.Prompt != want {
					t.Fatalf("it goes on from %q, want %q", body.Prompt, want)
				}
				if ids, _ := body.Prompt.([]any); !fromText && len(ids) != 2+kept {
					t.Fatalf("it goes on from %v, want %d ids", body.Prompt, 2+kept)
				}
			}
			all, err := a.JSON()
			if err != nil {
				t.Fatal(err)
			}
			return string(all)
		}
		want := run(func(int) bool { return false })
		got := run(func(int) bool { return rapid.Bool().Draw(t, "leave") })
		if got != want {
			t.Errorf("came to\n%s, want\n%s", got, want)
		}
	})
}

// TestSavedIsRefused: what can't be continued is said to be so, whatever it is.
func TestSavedIsRefused(t *testing.T) {
	r, refused := Parse(Completions, []byte(`{"model":"m","max_tokens":500,"prompt":"p"}`))
	if refused != nil {
		t.Fatal(refused)
	}
	whole := saved{Model: "m", Prompt: []byte("1,2"), PromptN: 2, Kept: []byte("3"), KeptN: 1, Chunk: []byte(`{"choices":[{"index":0,"text":"a"}]}`)}
	for what, change := range map[string]func(*saved){
		"as it is":         func(*saved) {},
		"no model":         func(s *saved) { s.Model = "" },
		"nothing kept":     func(s *saved) { s.Kept = nil },
		"fewer ids":        func(s *saved) { s.KeptN = 2 },
		"no ids":           func(s *saved) { s.Kept = []byte("x") },
		"no prompt":        func(s *saved) { s.Prompt, s.PromptN = nil, 0 },
		"no text":          func(s *saved) { s.FromText, s.Kept = true, []byte(`"`) },
		"no chunk":         func(s *saved) { s.Chunk = nil },
		"a head that lies": func(s *saved) { s.Head = map[string][]byte{"id": []byte(`"`)} },
	} {
		v := whole
		change(&v)
		data, err := json.Marshal(&v)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err = Restore(r, data, 1<<20); (err == nil) != (what == "as it is") || err != nil && !errors.Is(err, errSaved) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzRestore(f *testing.F) {
	f.Add([]byte(`{"model":"m","prompt":"MSwy","prompt_tokens":2,"kept":"Mw==","kept_tokens":1,"chunk":"eyJjaG9pY2VzIjpbeyJpbmRleCI6MCwidGV4dCI6ImEifV19"}`))
	r, refused := Parse(Completions, []byte(`{"model":"m","max_tokens":9,"prompt":"p","stop":"ab"}`))
	if refused != nil {
		f.Fatal(refused)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, a, model, err := Restore(r, data, 1<<16)
		if err != nil {
			return
		}
		if body := s.Continue(Projection{}, 0); !json.Valid(body) {
			t.Errorf("the continuation is no JSON: %s", body)
		}
		again, err := Save(s, a, model)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := Restore(r, again, 1<<16); err != nil {
			t.Errorf("what was restored can't be saved: %v", err)
		}
	})
}
