package vllmapi

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"headgate/simengine"
)

// Config describes one simulated server. Engine must be set; the rest may be
// zero.
type Config struct {
	Engine simengine.Config
	// ModelContext is the longest sequence of the model itself, in tokens, which
	// /v1/models says; 0 is Engine.MaxModelLen. It is more where slots divide the KV.
	ModelContext int
	// ModelName is the served model; "" is headgate-simulated-<step-time model>.
	ModelName string
	// Version is appended to headgate-simengine in /version.
	Version string
	// DevMode opens /abort_requests and /server_info, as VLLM_SERVER_DEV_MODE=1
	// does.
	DevMode bool
	// PerRequestMetrics adds a request's own timings to its usage, as
	// --enable-per-request-metrics does.
	PerRequestMetrics bool
	// PromptTokensDetails adds the count of cached prompt tokens to usage, as
	// --enable-prompt-tokens-details does.
	PromptTokensDetails bool
	// RequestIDHeaders returns X-Request-Id, as --enable-request-id-headers
	// does.
	RequestIDHeaders bool
	// MaxQueuedRequests refuses a request with 503 when so many, running and
	// waiting, are in the server; 0 queues without bound, as vLLM does.
	MaxQueuedRequests int
	// TracesEndpoint is where a span of every finished request is sent, OTLP over
	// HTTP in protobuf, as --otlp-traces-endpoint does; "" sends none.
	TracesEndpoint string
	// TracesDelay is for how long spans are gathered, as OTEL_BSP_SCHEDULE_DELAY
	// says; 0 is its default, 5 s.
	TracesDelay time.Duration
}

// Many returns a configuration for testing what is in front of an engine: any
// number of slots, steps of a tenth of a millisecond, and a KV pool that holds
// what the slots can.
func Many(slots int) Config {
	e := simengine.DefaultConfig()
	e.Model.Name = "instant"
	e.Model.Source = "chosen, not measured"
	e.Model.Step.Base = 0.1
	e.Model.Step.PrefillToken = 0
	e.Model.Step.FirstDecode = 0
	e.Model.Step.MoreDecode = 0
	e.Model.Step.ContextToken = 0
	e.Model.Idle.Penalty = 0
	e.Model.Overhead = 0
	e.MaxNumSeqs = slots
	e.MaxBatchedTokens = max(8192, 2*slots)
	e.NumBlocks = 1 + slots*e.MaxModelLen/e.BlockSize
	return Config{Engine: e}
}

// PerSlot returns the configuration with its KV pool divided among its slots, as
// llama-server's is by -np: each has its equal part, and a sequence no more than that,
// however idle the others are. Waiting requests are then taken in order of arrival,
// and nothing is cached. The model's own limit stays what /v1/models says. No vLLM is
// like that: it is for what has to tell the two apart.
func (c Config) PerSlot() Config {
	e := &c.Engine
	c.ModelContext = e.MaxModelLen
	slots := simengine.LlamaServerConfig(e.MaxNumSeqs, (e.NumBlocks-1)*e.BlockSize, false)
	slots.Model, slots.Speed, slots.MaxBatchedTokens = e.Model, e.Speed, e.MaxBatchedTokens
	slots.MeanOutput, slots.SplitCharacters = e.MeanOutput, e.SplitCharacters
	slots.MaxModelLen = min(slots.MaxModelLen, c.ModelContext)
	c.Engine = slots
	return c
}

// modelContext is what the server says that its model takes.
func (c *Config) modelContext() int { return max(c.ModelContext, c.Engine.MaxModelLen) }

// Validate reports every field with an impossible value.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	c.Engine.Validate(func(path string, value any, allowed string) { bad("engine."+path, value, allowed) })
	if e := &c.Engine; e.Scheduler == simengine.LlamaServer && e.MaxModelLen > (e.NumBlocks-1)/max(1, e.MaxNumSeqs) {
		bad("engine.scheduler", e.Scheduler, "vllm, or llama-server with a context for each slot: what becomes of all when a common one runs out has no word in this API")
	}
	if c.ModelContext != 0 && c.ModelContext < c.Engine.MaxModelLen {
		bad("model_context", c.ModelContext, "at least engine.max_model_len, or 0 for that")
	}
	if strings.ContainsFunc(c.ModelName, func(r rune) bool { return r < ' ' }) {
		bad("model_name", c.ModelName, "a name without control characters")
	}
	if c.MaxQueuedRequests < 0 {
		bad("max_num_queued_reqs", c.MaxQueuedRequests, "requests from 1, or 0 for no bound")
	}
	if u, err := url.Parse(c.TracesEndpoint); c.TracesEndpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		bad("otlp_traces_endpoint", c.TracesEndpoint, "http://host:port/v1/traces")
	}
	if c.TracesDelay < 0 {
		bad("otlp_traces_delay", c.TracesDelay, "a time from 1ms, or 0 for the default")
	}
}

func (c *Config) err() error {
	var all []string
	c.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Sprintf("%s: %v: allowed: %s", path, value, allowed))
	})
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("simulated server: %s", strings.Join(all, "; "))
}
