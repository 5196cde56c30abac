package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"headgate/engine"
)

func TestRoot(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"http://h:8000", "http://h:8000"},
		{"http://h:8000/", "http://h:8000"},
		{"http://h:8000/v1", "http://h:8000"},
		{"http://h:8000/v1/", "http://h:8000"},
		{"https://h/openai/v1", "https://h/openai"},
		{"https://[::1]:8000/base", "https://[::1]:8000/base"},
		{"https://h/v10", "https://h/v10"},
		{"h:8000", ""}, {"ftp://h", ""}, {"http://", ""}, {"http://:80", ""}, {"", ""}, {"http://h:x", ""},
		{"http://user:pass@h", ""}, {"http://user@h", ""}, {"http://h?x=1", ""}, {"http://h?", ""}, {"http://h#", ""}, {"http://h#x", ""},
	} {
		cfg := engine.Config{URL: c.url}
		u, err := cfg.Root()
		if got := fmt.Sprint(u); (err == nil) != (c.want != "") || err == nil && got != c.want {
			t.Errorf("%q: %s, %v; want %q", c.url, got, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "pass") {
			t.Errorf("%v shows the password", err)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		change func(*engine.Config)
		want   []string
	}{
		{func(*engine.Config) {}, nil},
		{func(c *engine.Config) { c.HeaderTimeout = 0; c.Headers = map[string]string{"X-Team": "a\tb"} }, nil},
		{func(c *engine.Config) { c.Kind = "tgi" }, []string{"kind: tgi: vllm, sglang, llamacpp or openai"}},
		{func(c *engine.Config) { c.URL = "http://me:pw@h" }, []string{"url: [redacted]@h: http:// or https://, a host, and no user, query or fragment"}},
		{func(c *engine.Config) {
			c.Headers = map[string]string{"host": "x", "a b": "", "X": "\n", "authorization": "key"}
		}, []string{
			"headers.X: \n: a value without control characters",
			"headers.a b: a b: a header name that the adapter does not set itself",
			"headers.authorization: [redacted]: another header: this one carries the API key, see api_key_env",
			"headers.host: host: a header name that the adapter does not set itself",
		}},
		{func(c *engine.Config) { c.Headers = map[string]string{"x-conversation-id": "1"} }, []string{
			"headers.x-conversation-id: x-conversation-id: a header name that the adapter does not set itself"}},
		{func(c *engine.Config) { c.APIKeyHeader = "Content-Type" }, []string{
			"api_key_header: Content-Type: a header name that the adapter does not set itself"}},
		{func(c *engine.Config) {
			c.ConnectTimeout, c.HeaderTimeout, c.ScrapeTimeout, c.AbortGrace = 0, -1, -1, 0
		}, []string{
			"connect_timeout: 0s: a duration above 0", "header_timeout: -1ns: 0 (no limit) or a duration",
			"scrape_timeout: -1ns: a duration above 0", "abort_grace: 0s: a duration above 0"}},
		{func(c *engine.Config) { c.MaxEvent, c.MaxAnswer = 0, 2<<30 }, []string{
			"max_event_bytes: 0: 1024 to 1073741824", "max_answer_bytes: 2147483648: 1024 to 1073741824"}},
		{func(c *engine.Config) { c.Capabilities = engine.Override{Slots: -1, KVTokens: 1 << 40} }, []string{
			"capabilities.slots: -1: 1 to 2147483647, or absent: what the engine says",
			"capabilities.kv_tokens: 1099511627776: 1 to 2147483647, or absent: what the engine says"}},
	} {
		cfg := engine.Config{}
		cfg.SetDefaults()
		cfg.Kind, cfg.URL = engine.VLLM, "http://h:8000"
		c.change(&cfg)
		var got []string
		cfg.Validate(func(path string, value any, allowed string) {
			got = append(got, fmt.Sprintf("%s: %v: %s", path, value, allowed))
		})
		if d := cmp.Diff(c.want, got); d != "" {
			t.Error(d)
		}
	}
}

func TestOverride(t *testing.T) {
	no, yes := false, true
	said := engine.Capabilities{Slots: 4, KVTokens: 100, BlockSize: 16, MaxContext: 50, PrefixCache: true, Fatal: true}
	if got := (engine.Override{}).Apply(said); !cmp.Equal(got, said) {
		t.Errorf("an empty override changed %+v to %+v", said, got)
	}
	got := engine.Override{Slots: 8, KVTokens: 400, BlockSize: 1, MaxContext: 60, Priority: &yes, PrefixCache: &no, Fatal: &no,
		TextCompletions: &yes, FinalMessage: engine.FinalTrailing}.Apply(said)
	want := engine.Capabilities{Slots: 8, KVTokens: 400, BlockSize: 1, MaxContext: 60, Priority: true, TextCompletions: true, FinalMessage: engine.FinalTrailing}
	if !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

func TestYAML(t *testing.T) {
	got := engine.Config{}
	got.SetDefaults()
	err := yaml.UnmarshalWithOptions([]byte(`
kind: llamacpp
url: http://h:8080
api_key_env: ENGINE_KEY
headers: {X-Team: search}
header_timeout: 90s
capabilities: {slots: 4, kv_exhaustion_fatal: false}
`), &got, yaml.Strict())
	if err != nil {
		t.Fatal(err)
	}
	want := engine.Config{}
	want.SetDefaults()
	no := false
	want.Kind, want.URL, want.APIKeyEnv = engine.LlamaCpp, "http://h:8080", "ENGINE_KEY"
	want.Headers, want.HeaderTimeout = map[string]string{"X-Team": "search"}, 90*time.Second
	want.Capabilities = engine.Override{Slots: 4, Fatal: &no}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(engine.Config{}, "APIKey", "DialContext")); d != "" {
		t.Error(d)
	}
}
