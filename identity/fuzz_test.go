package identity

import (
	"net/http"
	"strings"
	"testing"
)

// FuzzAuthenticate: whatever the headers hold, only the right key is let in,
// and no refusal repeats what was sent.
func FuzzAuthenticate(f *testing.F) {
	f.Add("Bearer "+aliceKey, "", "interactive")
	f.Add("bearer  x", aliceKey, "gold\x1b[31m")
	f.Add("", bobKey, "")
	a := authenticator(f, testConfig(f))
	f.Fuzz(func(t *testing.T, authorization, apiKey, class string) {
		h := http.Header{}
		if authorization != "" {
			h.Set("Authorization", authorization)
		}
		if apiKey != "" {
			h.Set("X-Api-Key", apiKey)
		}
		p, err := a.Authenticate(asked(h))
		if err != nil {
			for _, sent := range []string{authorization, apiKey} {
				if len(sent) > 60 && strings.Contains(err.Message, sent) {
					t.Fatalf("the refusal repeats what was sent: %s", err.Message)
				}
			}
			return
		}
		key := map[string]string{"alice": aliceKey, "bob": bobKey}[p.Name]
		if !strings.Contains(authorization+" "+apiKey, key) {
			t.Fatalf("%q and %q are taken for %s", authorization, apiKey, p.Name)
		}
		got, refused := p.Class(class, "")
		if refused == nil && class != "" && (got != class || !p.ByHeader) {
			t.Fatalf("%s asked for %q and got %q", p.Name, class, got)
		}
		if refused != nil && strings.ContainsAny(refused.Message, "\x1b\r\n") {
			t.Fatalf("control characters in %q", refused.Message)
		}
	})
}
