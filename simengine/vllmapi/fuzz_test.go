package vllmapi

import (
	"strings"
	"testing"
	"unicode/utf8"

	"headgate/simengine"
)

// FuzzParse: whatever a body says, it is either refused with a reason or fits
// the engine.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{` + hello + `,"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":"a b","n":2,"stop":["x","y"],"min_tokens":1,"ignore_eos":true,"priority":-4,"cache_salt":"s"}`,
		`{"prompt":[1,2,3],"max_tokens":1}`, `{"prompt":[[1],[2]]}`, `{"prompt":["a",""]}`, `{"prompt":[1.5]}`,
		`{"token_ids":[256,259,300],"sampling_params":{"max_tokens":2,"stop":"z"}}`,
		`{"messages":[{"role":"assistant","content":[{"type":"text","text":"a"}]}],"continue_final_message":true,"add_generation_prompt":false}`,
		`{"max_tokens":9223372036854775807,"prompt":"a"}`, `{"logprobs":true,"prompt":"a"}`, `null`, `[]`, `{"prompt":null}`,
	} {
		for a := chatAPI; a <= tokensAPI; a++ {
			f.Add(uint8(a), []byte(seed))
		}
	}
	s, err := New(fast())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a uint8, data []byte) {
		g, e := s.parse(chatAPI+api(a)%3, data)
		if e != nil {
			if e.message == "" || e.status < 400 || e.status > 499 {
				t.Fatalf("refused without a reason: %+v", e)
			}
			return
		}
		if g.n < 1 || len(g.prompts) < 1 || len(g.prompts)*g.n > maxSequences {
			t.Fatalf("%d prompts of %d choices", len(g.prompts), g.n)
		}
		an := s.newAnswer(g, "")
		engine, err := simengine.New(s.cfg.Engine)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range an.job.children {
			if _, err := engine.Submit(0, c.request); err != nil {
				t.Fatalf("accepted, but: %v", err)
			}
		}
	})
}

// FuzzText: text that comes out in pieces is valid and, as a whole, what the
// tokens stand for.
func FuzzText(f *testing.F) {
	f.Add([]byte("a stone gate"), "gate")
	f.Add([]byte("\xf0\x9f\x98\x80 \xe4\xb8"), "\xe4")
	f.Add([]byte("\xc3\xa9t\xc3\xa9"), "té")
	f.Fuzz(func(t *testing.T, data []byte, stop string) {
		var stops []string
		if stop != "" && utf8.ValidString(stop) {
			stops = []string{stop}
		}
		stream := newTextStream(stops, false)
		var got strings.Builder
		ended := false
		for _, token := range simengine.Encode(nil, string(data)) {
			delta, by := stream.push(token, true)
			if !utf8.ValidString(delta) {
				t.Fatalf("piece %q is not valid", delta)
			}
			got.WriteString(delta)
			if ended = by != ""; ended {
				break
			}
		}
		if !ended {
			got.WriteString(stream.finish())
		}
		want := strings.Map(func(r rune) rune { return r }, string(data))
		if stops != nil {
			want, _, _ = strings.Cut(want, stop)
		}
		// The last character may be cut short, which is one U+FFFD however many
		// of its bytes there are.
		if text := strings.TrimRight(got.String(), "\ufffd"); text != strings.TrimRight(want, "\ufffd") {
			t.Fatalf("got %q: want %q (stop %q)", got.String(), want, stop)
		}
	})
}
