package wire

import "testing"

// TestPrompt: the prompt is the body's own bytes, wherever it stands, and a cache key of
// another kind than a text is the engine's to refuse.
func TestPrompt(t *testing.T) {
	for _, tt := range []struct {
		api               API
		body, prompt, key string
	}{
		{Chat, `{"model":"m","messages": [{"role":"user","content":"hi"}] ,"prompt_cache_key":"a\u0062"}`, `[{"role":"user","content":"hi"}]`, "ab"},
		{Chat, `{"prompt":"x","messages":[{"role":"user","content":"hi"}],"model":"m","prompt_cache_key":null}`, `[{"role":"user","content":"hi"}]`, ""},
		{Completions, `{"prompt":"the river","model":"m","prompt_cache_key":7}`, `"the river"`, ""},
		{Completions, `{"model":"m","prompt":[1,2,3]}`, `[1,2,3]`, ""},
	} {
		r, err := Parse(tt.api, []byte(tt.body))
		if err != nil {
			t.Errorf("%s: %v", tt.body, err)
			continue
		}
		if string(r.Prompt()) != tt.prompt || r.CacheKey != tt.key {
			t.Errorf("%s: prompt %s, key %q, want %s, %q", tt.body, r.Prompt(), r.CacheKey, tt.prompt, tt.key)
		}
	}
}
