package engine

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"headgate/certs"
	"headgate/identity"
)

// Config says where an engine is and how to speak to it. SetDefaults gives
// every field that may be left out its value; Validate checks the rest.
type Config struct {
	// Kind of adapter: vllm, sglang, llamacpp or openai.
	Kind Kind `yaml:"kind"`
	// URL the engine listens at, with or without the trailing /v1: http://10.0.0.7:8000.
	URL string `yaml:"url"`
	// APIKeyEnv names the environment variable that holds the engine's API key; absent: none is sent.
	APIKeyEnv string `yaml:"api_key_env,omitempty"`
	// APIKeyHeader carries the key. In Authorization it is sent as a bearer token, in any other header bare.
	APIKeyHeader string `yaml:"api_key_header"`
	// Headers are sent with every request. No place for secrets: they are shown as configured.
	Headers map[string]string `yaml:"headers,omitempty"`
	// TLS is how an https URL is spoken to; absent: by the system's authorities.
	TLS *certs.Client `yaml:"tls,omitempty"`
	// AllowLinkLocal lets the URL lead to addresses that egress.Refused.
	AllowLinkLocal bool `yaml:"allow_link_local"`

	// ConnectTimeout bounds dialling and the TLS handshake.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// HeaderTimeout bounds the wait for the answer's status line; 0, the default, sets no bound, because some engines hold it back for as long as a request waits in their queue.
	HeaderTimeout time.Duration `yaml:"header_timeout"`
	// ScrapeTimeout bounds one request for load or capabilities.
	ScrapeTimeout time.Duration `yaml:"scrape_timeout"`
	// AbortGrace is how long after an abort capacity counts as free on an engine that shows no evidence: with kind openai always, with vllm when its counters have stood still for so long, with sglang for a request without an answer when the engine is empty so long after. Longer than the engine's longest step.
	AbortGrace time.Duration `yaml:"abort_grace"`
	// MaxEvent bounds one streamed event, in bytes.
	MaxEvent int `yaml:"max_event_bytes"`
	// MaxAnswer bounds an answer that is not streamed, in bytes.
	MaxAnswer int `yaml:"max_answer_bytes"`

	// Capabilities replaces what the engine says of itself, or does not say.
	Capabilities Override `yaml:"capabilities"`

	// APIKey is the key itself, where a program has it; it goes before APIKeyEnv.
	APIKey identity.Secret `yaml:"-"`
	// DialContext replaces the network, for engines in the same process.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error) `yaml:"-"`
}

// Override replaces single capabilities: numbers from 1, and switches that are
// set at all.
type Override struct {
	// Slots is the number of sequences the engine runs at once.
	Slots int `yaml:"slots,omitempty"`
	// KVTokens is the size of the engine's KV pool, in tokens.
	KVTokens int `yaml:"kv_tokens,omitempty"`
	// BlockSize is the number of tokens in a KV block.
	BlockSize int `yaml:"block_size,omitempty"`
	// MaxContext is the limit of one sequence, prompt and output, in tokens.
	MaxContext int `yaml:"max_context,omitempty"`
	// Priority tells that the engine orders waiting work by the request's priority (vLLM: --scheduling-policy priority; SGLang says it).
	Priority *bool `yaml:"priority,omitempty"`
	// PrefixCache tells that finished and aborted sequences stay reusable.
	PrefixCache *bool `yaml:"prefix_cache,omitempty"`
	// TokenIDs tells whether answers come with token ids where they are asked for, so that they can be continued; where not, they are continued from their text or start over.
	TokenIDs *bool `yaml:"token_ids,omitempty"`
	// TextCompletions tells whether a completion goes on from whatever text its prompt ends with.
	TextCompletions *bool `yaml:"text_completions,omitempty"`
	// FinalMessage is what the engine makes of a chat that ends with a message of the assistant's: none, trailing or flags.
	FinalMessage FinalMessage `yaml:"final_message,omitempty"`
	// Fatal tells that running out of KV ends every running request (llama-server with a unified pool).
	Fatal *bool `yaml:"kv_exhaustion_fatal,omitempty"`
}

// SetDefaults gives what need not be said. The kind and the URL have none.
func (c *Config) SetDefaults() {
	c.APIKeyHeader = "Authorization"
	c.ConnectTimeout = 5 * time.Second
	c.ScrapeTimeout = 2 * time.Second
	c.AbortGrace = 2 * time.Second
	// The first event of a completion with return_token_ids lists the whole
	// prompt: about a megabyte for 128k tokens.
	c.MaxEvent = 16 << 20
	c.MaxAnswer = 64 << 20
}

// Kinds are the adapters there are.
var Kinds = []Kind{VLLM, SGLang, LlamaCpp, OpenAI}

// ownHeaders are set by the adapters themselves.
var ownHeaders = []string{
	"Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type",
	"Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "X-Request-Id",
	// llama-server goes on generating for a conversation whose client has left.
	"X-Conversation-Id",
}

// Validate calls bad for every value that isn't allowed, with its path below
// the engine's own.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	if !slices.Contains(Kinds, c.Kind) {
		bad("kind", c.Kind, "vllm, sglang, llamacpp or openai")
	}
	if _, err := c.Root(); err != nil {
		// A URL with userinfo has a password in it.
		bad("url", hideUserinfo(c.URL), urlRule)
	}
	if c.TLS != nil {
		c.TLS.Validate(func(path string, value any, allowed string) { bad("tls."+path, value, allowed) })
	}
	if !token(c.APIKeyHeader) || slices.Contains(ownHeaders, http.CanonicalHeaderKey(c.APIKeyHeader)) {
		bad("api_key_header", c.APIKeyHeader, headerRule)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		at := "headers." + name
		switch canonical := http.CanonicalHeaderKey(name); {
		case !token(name) || slices.Contains(ownHeaders, canonical):
			bad(at, name, headerRule)
		case canonical == http.CanonicalHeaderKey(c.APIKeyHeader):
			bad(at, identity.Redacted, "another header: this one carries the API key, see api_key_env")
		case strings.ContainsFunc(c.Headers[name], control):
			bad(at, c.Headers[name], "a value without control characters")
		}
	}
	for _, d := range []struct {
		path  string
		value time.Duration
		zero  bool
	}{
		{"connect_timeout", c.ConnectTimeout, false},
		{"header_timeout", c.HeaderTimeout, true},
		{"scrape_timeout", c.ScrapeTimeout, false},
		{"abort_grace", c.AbortGrace, false},
	} {
		switch {
		case d.zero && d.value < 0:
			bad(d.path, d.value, "0 (no limit) or a duration")
		case !d.zero && d.value <= 0:
			bad(d.path, d.value, "a duration above 0")
		}
	}
	if c.MaxEvent < 1<<10 || c.MaxEvent > 1<<30 {
		bad("max_event_bytes", c.MaxEvent, "1024 to 1073741824")
	}
	if c.MaxAnswer < 1<<10 || c.MaxAnswer > 1<<30 {
		bad("max_answer_bytes", c.MaxAnswer, "1024 to 1073741824")
	}
	for _, n := range []struct {
		path  string
		value int
	}{
		{"slots", c.Capabilities.Slots}, {"kv_tokens", c.Capabilities.KVTokens},
		{"block_size", c.Capabilities.BlockSize}, {"max_context", c.Capabilities.MaxContext},
	} {
		if n.value < 0 || n.value > 1<<31-1 {
			bad("capabilities."+n.path, n.value, "1 to 2147483647, or absent: what the engine says")
		}
	}
	if f := c.Capabilities.FinalMessage; f != "" && !slices.Contains(FinalMessages, f) {
		bad("capabilities.final_message", f, "none, trailing or flags, or absent: what the engine does by default")
	}
}

const (
	urlRule    = "http:// or https://, a host, and no user, query or fragment"
	headerRule = "a header name that the adapter does not set itself"
)

// Root is the URL below which the engine's paths lie, without trailing slash
// and without /v1.
func (c *Config) Root() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(c.URL, "#") {
		return nil, fmt.Errorf("url %q: allowed is %s", hideUserinfo(c.URL), urlRule)
	}
	path := strings.TrimRight(u.Path, "/")
	path = strings.TrimRight(strings.TrimSuffix(path, "/v1"), "/")
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: path}, nil
}

// Key is the API key: APIKey, or what APIKeyEnv names. Empty when neither is
// given; an error when the variable is not set.
func (c *Config) Key() (identity.Secret, error) {
	if !c.APIKey.Empty() || c.APIKeyEnv == "" {
		return c.APIKey, nil
	}
	key := os.Getenv(c.APIKeyEnv)
	if key == "" || strings.ContainsFunc(key, control) {
		return identity.Secret{}, fmt.Errorf("api_key_env %q: the variable must be set, to a key without control characters", c.APIKeyEnv)
	}
	return identity.NewSecret(key), nil
}

// Apply returns the capabilities with the override's own in their place.
func (o Override) Apply(c Capabilities) Capabilities {
	number := func(to *int, n int) {
		if n > 0 {
			*to = n
		}
	}
	flag := func(to *bool, b *bool) {
		if b != nil {
			*to = *b
		}
	}
	number(&c.Slots, o.Slots)
	number(&c.KVTokens, o.KVTokens)
	number(&c.BlockSize, o.BlockSize)
	number(&c.MaxContext, o.MaxContext)
	flag(&c.Priority, o.Priority)
	flag(&c.PrefixCache, o.PrefixCache)
	flag(&c.TokenIDs, o.TokenIDs)
	flag(&c.ChatTokenIDs, o.TokenIDs)
	flag(&c.TextCompletions, o.TextCompletions)
	flag(&c.Fatal, o.Fatal)
	if o.FinalMessage != "" {
		c.FinalMessage = o.FinalMessage
	}
	return c
}

// hideUserinfo works on text that need not be a URL: what stands before an @
// may be a password.
func hideUserinfo(s string) string {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		return identity.Redacted + s[at:]
	}
	return s
}

// token tells whether s is an HTTP header name.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func control(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
