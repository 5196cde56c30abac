package vllmapi

import (
	"encoding/json"
	"errors"
	"hash/maphash"
	"io"
	"net/http"
	"strconv"
	"strings"

	"headgate/simengine"
)

// api is a generating route.
type api uint8

const (
	chatAPI       api = 1 + iota
	completionAPI     // text or ids in, text out
	tokensAPI         // ids in, ids out
	embeddingAPI      // text or ids in, vectors out
)

// Bounds of a request; vLLM's own are of the same order.
const (
	maxBody      = 64 << 20 // bytes
	maxChoices   = 128
	maxSequences = 4096 // prompts times choices
	maxStops     = 64
)

// generation is a parsed request.
type generation struct {
	api      api
	prompts  [][]simengine.Token
	n        int
	max, min int // output tokens; max is 0 where it depends on the prompt
	priority int
	salt     uint64
	noEnd    bool
	stops    []string
	keepStop bool

	stream, usage, eachUsage, ids bool
}

// body is the union of what the generating routes read. Fields it does not
// have are accepted and mean nothing, as in vLLM.
type body struct {
	Model         string            `json:"model"`
	Messages      []json.RawMessage `json:"messages"`
	Prompt        json.RawMessage   `json:"prompt"`
	Open          *bool             `json:"add_generation_prompt"`
	GoOn          bool              `json:"continue_final_message"`
	TokenIDs      []simengine.Token `json:"token_ids"`
	Sampling      *sampling         `json:"sampling_params"`
	Stream        bool              `json:"stream"`
	StreamOptions *struct {
		Usage     bool `json:"include_usage"`
		EachUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	ReturnIDs bool   `json:"return_token_ids"`
	Priority  int    `json:"priority"`
	CacheSalt string `json:"cache_salt"`
	Echo      bool   `json:"echo"`
	Logprobs  any    `json:"logprobs"`
	sampling
}

type sampling struct {
	N                   *int            `json:"n"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           int             `json:"min_tokens"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	Stop                json.RawMessage `json:"stop"`
	KeepStop            bool            `json:"include_stop_str_in_output"`
}

// read reads and parses the body of a generating request.
func (s *Server) read(a api, r *http.Request, w http.ResponseWriter) (*generation, *apiError) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return nil, &apiError{http.StatusRequestEntityTooLarge, "BadRequestError", "", "body: larger than " + strconv.Itoa(maxBody) + " bytes"}
		}
		return nil, badRequest("", "body: %v", err)
	}
	g, e := s.parse(a, data)
	if e != nil {
		return nil, e
	}
	if h := r.Header.Get("X-Vllm-Priority"); h != "" {
		if g.priority, err = strconv.Atoi(h); err != nil {
			return nil, badRequest("X-Vllm-Priority", "X-Vllm-Priority: %q: allowed are whole numbers, lower is earlier", h)
		}
	}
	return g, nil
}

func (s *Server) parse(a api, data []byte) (*generation, *apiError) {
	var b body
	if e := unmarshal(data, &b); e != nil {
		return nil, e
	}
	if b.Model != "" && b.Model != s.cfg.ModelName {
		return nil, unknownModel(b.Model)
	}
	if b.Logprobs != nil && b.Logprobs != false {
		return nil, badRequest("logprobs", "logprobs: the simulated model has none")
	}
	if b.Echo {
		return nil, badRequest("echo", "echo: not simulated")
	}
	g := &generation{api: a, priority: b.Priority, stream: b.Stream, ids: b.ReturnIDs || a == tokensAPI}
	if b.CacheSalt != "" {
		g.salt = maphash.String(saltSeed, b.CacheSalt)
	}
	if b.StreamOptions != nil {
		if !b.Stream {
			return nil, badRequest("stream_options", "stream_options: allowed only with stream: true")
		}
		g.usage, g.eachUsage = b.StreamOptions.Usage, b.StreamOptions.EachUsage
	}
	var e *apiError
	if g.prompts, e = b.prompts(a); e != nil {
		return nil, e
	}
	set := &b.sampling
	if a == tokensAPI {
		if set = b.Sampling; set == nil {
			return nil, badRequest("sampling_params", "sampling_params: missing")
		}
	}
	if e := set.into(g); e != nil {
		return nil, e
	}
	return g, s.fit(g)
}

// saltSeed keeps salts apart within one process, which is all that they do.
var saltSeed = maphash.MakeSeed()

func unmarshal(data []byte, v any) *apiError {
	err := json.Unmarshal(data, v)
	var typed *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &typed):
		// An embedded struct is in the path by its Go name, which no client knows.
		field := strings.TrimPrefix(strings.TrimPrefix(typed.Field, "body."), "sampling.")
		return badRequest(field, "%s: %s: allowed is %s", field, typed.Value, typed.Type)
	}
	return badRequest("", "body: not JSON: %v", err)
}

func (b *body) prompts(a api) ([][]simengine.Token, *apiError) {
	switch a {
	case chatAPI:
		open := b.Open == nil || *b.Open
		if b.GoOn && open && b.Open != nil {
			return nil, badRequest("continue_final_message", "continue_final_message and add_generation_prompt: both true: allowed is one of them")
		}
		messages, e := parseMessages(b.Messages)
		if e != nil {
			return nil, e
		}
		if b.GoOn && messages[len(messages)-1].role != "assistant" {
			return nil, badRequest("continue_final_message", "continue_final_message: the last message is of role %q: allowed is assistant", messages[len(messages)-1].role)
		}
		return [][]simengine.Token{render(messages, open && !b.GoOn, b.GoOn)}, nil
	case tokensAPI:
		return [][]simengine.Token{b.TokenIDs}, checkIDs("token_ids", b.TokenIDs)
	}
	return parsePrompt("prompt", b.Prompt)
}

// parsePrompt reads a text, a list of texts, a list of ids or a list of those.
func parsePrompt(param string, raw json.RawMessage) ([][]simengine.Token, *apiError) {
	var text string
	if json.Unmarshal(raw, &text) == nil && len(raw) > 0 && raw[0] == '"' {
		return [][]simengine.Token{simengine.Encode(nil, text)}, nil
	}
	var texts []string
	if json.Unmarshal(raw, &texts) == nil && len(texts) > 0 {
		all := make([][]simengine.Token, len(texts))
		for i, t := range texts {
			all[i] = simengine.Encode(nil, t)
		}
		return all, nil
	}
	var ids []simengine.Token
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return [][]simengine.Token{ids}, checkIDs(param, ids)
	}
	var lists [][]simengine.Token
	if json.Unmarshal(raw, &lists) == nil && len(lists) > 0 {
		for _, ids := range lists {
			if e := checkIDs(param, ids); e != nil {
				return nil, e
			}
		}
		return lists, nil
	}
	return nil, badRequest(param, "%s: allowed are a text, a list of texts, a list of token ids or a list of such lists, none of them empty", param)
}

func checkIDs(param string, ids []simengine.Token) *apiError {
	for i, id := range ids {
		if id < 0 || id >= simengine.VocabSize {
			return badRequest(param, "%s[%d]: token id %d: allowed are 0 to %d", param, i, id, simengine.VocabSize-1)
		}
	}
	return nil
}

// into reads the sampling parameters that have a meaning here.
func (p *sampling) into(g *generation) *apiError {
	g.n = 1
	if p.N != nil {
		g.n = *p.N
	}
	if g.n < 1 || g.n > maxChoices {
		return badRequest("n", "n: %d: allowed are 1 to %d", g.n, maxChoices)
	}
	if len(g.prompts)*g.n > maxSequences {
		return badRequest("prompt", "prompt: %d prompts of %d choices: allowed are %d sequences in one request", len(g.prompts), g.n, maxSequences)
	}
	name, most := "max_tokens", p.MaxTokens
	if g.api == chatAPI && p.MaxCompletionTokens != nil {
		name, most = "max_completion_tokens", p.MaxCompletionTokens
	}
	switch {
	case most != nil && *most < 1:
		return badRequest(name, "%s: %d: allowed is at least 1", name, *most)
	case most != nil:
		g.max = *most
	case g.api == completionAPI || g.api == tokensAPI:
		g.max = 16
	}
	g.min, g.noEnd, g.keepStop = p.MinTokens, p.IgnoreEOS, p.KeepStop
	if g.min < 0 || g.max > 0 && g.min > g.max {
		return badRequest("min_tokens", "min_tokens: %d: allowed are 0 to max_tokens %d", g.min, g.max)
	}
	return p.stops(g)
}

func (p *sampling) stops(g *generation) *apiError {
	if len(p.Stop) == 0 || string(p.Stop) == "null" {
		return nil
	}
	var one string
	if json.Unmarshal(p.Stop, &one) == nil {
		g.stops = []string{one}
	} else if json.Unmarshal(p.Stop, &g.stops) != nil {
		return badRequest("stop", "stop: allowed are a text and a list of texts")
	}
	if len(g.stops) > maxStops {
		return badRequest("stop", "stop: %d texts: allowed are %d", len(g.stops), maxStops)
	}
	for i, text := range g.stops {
		if text == "" {
			return badRequest("stop", "stop[%d]: empty", i)
		}
	}
	return nil
}

// fit checks the prompts against the model's context.
func (s *Server) fit(g *generation) *apiError {
	most, perSlot := s.cfg.Engine.MaxModelLen, s.cfg.Engine.Scheduler == simengine.LlamaServer
	for _, p := range g.prompts {
		if len(p) == 0 {
			return badRequest("prompt", "prompt: empty: at least 1 token is needed")
		}
		if perSlot {
			if len(p) >= most {
				return slotFull(len(p), most)
			}
			continue // whatever it asks for, it ends where its slot does
		}
		if len(p) >= most || g.max > most-len(p) {
			return tooLong(len(p), g.max, most)
		}
		if g.min > most-len(p) {
			return badRequest("min_tokens", "min_tokens: %d: allowed are 0 to the %d that the context leaves", g.min, most-len(p))
		}
	}
	return nil
}
