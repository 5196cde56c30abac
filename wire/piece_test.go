package wire

import "testing"

func TestPiece(t *testing.T) {
	for _, tt := range []struct {
		more  string
		split bool
		salt  string
	}{
		{``, true, ``},
		{`,"cache_salt":"a\"b","priority":9`, true, `,"cache_salt":"a\"b"`},
		{`,"cache_salt":null`, true, ``},
		{`,"logprobs":true,"top_logprobs":3`, true, ``},
		{`,"documents":[],"echo":false,"prompt_logprobs":null`, true, ``},
		{`,"documents":[{"text":"a"}]`, false, ``},
		{`,"ech\u006f":true`, false, ``},
		{`,"prompt_logprobs":0`, false, ``},
		{`,"reasoning_effort":"low"`, false, ``},
		{`,"n":2`, false, ``},
	} {
		r, refused := Parse(Chat, []byte(`{"model":"m","messages":[{"role":"user","content":"x"}]`+tt.more+`}`))
		if refused != nil {
			t.Fatal(refused)
		}
		if got := r.Splittable(); got != tt.split {
			t.Errorf("%s: splittable %t", tt.more, got)
		}
		got := string(r.Piece(Projection{Model: "up", HasPriority: true, Priority: 10}, []int32{1, 22}))
		want := `{"model":"up","prompt":[1,22],"max_tokens":1,"temperature":0` + tt.salt + `,"priority":10,"stream":true,"stream_options":{"include_usage":true}}`
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.more, got, want)
		}
	}
}
