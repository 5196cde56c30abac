package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"headgate/e2e/client"
	"headgate/e2e/headgate"
)

// The official SDK with an issuer's token in the place of an API key.
func TestSDKWithAToken(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	sso := httptest.NewServer(nil)
	t.Cleanup(sso.Close)
	sso.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"%s/keys"}`, sso.URL, sso.URL)
			return
		}
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":%q}]}`, enc(public))
	})
	token := func(audience string) string {
		text := enc([]byte(`{"alg":"EdDSA","kid":"k","typ":"at+jwt"}`)) + "." + enc(fmt.Appendf(nil, `{"iss":%q,"aud":%q,"sub":"u1","groups":["eng"],"exp":%d}`, sso.URL, audience, time.Now().Add(time.Hour).Unix()))
		return text + "." + enc(ed25519.Sign(private, []byte(text)))
	}
	g := headgate.Start(t, fmt.Sprintf(`issuers: [{name: sso, issuer: %q, audiences: [headgate]}]
rules: [{name: eng, from: [sso], claims: [{name: groups, any: [eng]}], tenant: eng, classes: [interactive]}]
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: %q, slots: 4}]
    classes: [{name: interactive, floor: {slots: 2}}]
`, sso.URL, headgate.StartEngine(t).URL)).AwaitReady()
	models := func(key string) client.Call {
		return client.Call{BaseURL: g.URL + "/v1", APIKey: key, Route: client.Models}
	}
	s := client.Start(t, sdk, models(token("headgate")), models(token("other")), models("none"))
	if r := s.Result(0); r.Error != nil || len(r.Models) == 0 {
		t.Errorf("a token: %+v", r)
	}
	for i := 1; i < 3; i++ {
		if r := s.Result(i); r.Error == nil || r.Error.Class != "AuthenticationError" {
			t.Errorf("call %d: %+v, want AuthenticationError", i, r.Error)
		}
	}
}
