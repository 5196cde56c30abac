package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/identity"
	"headgate/wire"
	"headgate/wire/anthropic"
	"headgate/wire/responses"
)

// apis are the routes that generate, each with a body.
var apis = map[string]string{
	chat:                   chatBody(""),
	"/v1/completions":      `{"model":"test-model","prompt":"hello"}`,
	"/v1/embeddings":       `{"model":"test-model","input":"hello"}`,
	anthropic.MessagesPath: messageBody(""),
	responses.Path:         `{"model":"test-model","input":"hello"}`,
}

// TestOwnLimits: on every API a request that has limits of its own is told which it
// got, and one that may not have them that it has its class's; who asks for none is
// told nothing.
func TestOwnLimits(t *testing.T) {
	bob := []string{"Authorization", "Bearer " + bobKey}
	for path, body := range apis {
		for _, c := range []struct {
			name    string
			headers []string
			observe bool
			want    string
		}{
			{"none", nil, false, ""},
			{"both", []string{"x-slo-ttft-ms", "250", "x-slo-tpot-ms", "12.5"}, false, "request; ttft-ms=250; tpot-ms=12.5; e2e-ms=60000"},
			{"observed", []string{"x-slo-ttft-ms", "250"}, true, "request; ttft-ms=250; tpot-ms=50; e2e-ms=60000"},
			{"beyond the whole", []string{"x-slo-ttft-ms", "90000"}, false, "request; ttft-ms=60000; tpot-ms=50; e2e-ms=60000"},
			{"the class's", []string{"x-slo-ttft-ms", "0"}, false, "class; ttft-ms=2000; tpot-ms=50; e2e-ms=60000"},
			{"not permitted", append([]string{"x-slo-ttft-ms", "1", "x-slo-tpot-ms", "soon"}, bob...), false, "class"},
		} {
			t.Run(path+" "+c.name, func(t *testing.T) {
				bubble(t, setup{slo: true, observe: c.observe, objective: admission.Objective{First: 2 * time.Second, Token: 50 * time.Millisecond, Whole: time.Minute}}, func(t *testing.T, r *rig) {
					done := r.start("POST", path, body, c.headers...)
					call := r.engine.Accept(t)
					if call.API == wire.Embeddings {
						call.Document(200, `{"object":"list","data":[]}`)
					} else {
						call.Emit(1)
						call.Finish("stop")
					}
					a := <-done
					if got := a.header.Get(headerObjective); a.status != 200 || got != c.want {
						t.Errorf("%d, objective %q, want %q: %s", a.status, got, c.want, a.body)
					}
					for name := range call.Header { // a value may be a random id
						if strings.Contains(strings.ToLower(name), "slo") {
							t.Errorf("the engine got %v", call.Header)
						}
					}
					r.quiet()
				})
			})
		}
	}
}

// TestBadLimits: a value that isn't allowed is refused in the API's own shape, with
// the header, the value and what is allowed; where nothing is admitted none is read.
func TestBadLimits(t *testing.T) {
	bubble(t, setup{slo: true}, func(t *testing.T, r *rig) {
		for path, body := range apis {
			for _, c := range [][3]string{
				{"x-slo-ttft-ms", "soon", `x-slo-ttft-ms is "soon"; allowed: 100, the least for this key, to 3600000`},
				{"x-slo-ttft-ms", "99", `x-slo-ttft-ms is "99"; allowed: 100, the least for this key, to 3600000`},
				{"x-slo-tpot-ms", "-1", `x-slo-tpot-ms is "-1"; allowed: 0 (the class's own limit) to 3600000`},
			} {
				a := r.send("POST", path, body, c[0], c[1])
				text := gjson.Get(a.body, "error.message").String()
				if path == anthropic.MessagesPath {
					told(t, a, 400, "invalid_request_error", wire.CodeInvalidField)
				} else if e := documented(t, a.status, a.body); *e.Error.Code != wire.CodeInvalidField || *e.Error.Param != c[0] {
					t.Errorf("%s: %s", path, a.body)
				}
				if !strings.Contains(text, c[2]) || a.header.Get(headerDecision) != "rejected" {
					t.Errorf("%s %s: %s: %d %v %s", path, c[0], c[1], a.status, a.header, a.body)
				}
			}
		}
		if a := r.send("POST", anthropic.CountTokensPath, `{"model":"test-model","messages":[{"role":"user","content":"hello"}]}`, identity.TTFTHeader, "soon"); a.status != 200 {
			t.Errorf("a count: %d %s", a.status, a.body)
		}
		r.quiet()
	})
}
