package vllmapi

import (
	"encoding/json"
	"io"
	"net/http"

	"headgate/simengine"
)

// rendered is what the render routes answer: the body of a request to
// /inference/v1/generate.
type rendered struct {
	RequestID      string            `json:"request_id"`
	TokenIDs       []simengine.Token `json:"token_ids"`
	SamplingParams struct {
		N         int      `json:"n"`
		MaxTokens int      `json:"max_tokens"`
		MinTokens int      `json:"min_tokens"`
		IgnoreEOS bool     `json:"ignore_eos"`
		Stop      []string `json:"stop"`
		KeepStop  bool     `json:"include_stop_str_in_output"`
	} `json:"sampling_params"`
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Priority int    `json:"priority"`
}

// rendering answers with the token ids that a generating request would give the
// engine: one object for a chat, a list for completions.
func (s *Server) rendering(a api) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g, e := s.read(a, r, w)
		if e != nil {
			e.write(w)
			return
		}
		an := s.newAnswer(g, r.Header.Get("X-Request-Id"))
		all := make([]rendered, len(g.prompts))
		for i, prompt := range g.prompts {
			c := an.choices[i*g.n]
			out := rendered{RequestID: c.child.external, TokenIDs: prompt, Model: s.cfg.ModelName, Stream: g.stream, Priority: g.priority}
			p := &out.SamplingParams
			p.N, p.MaxTokens, p.MinTokens, p.IgnoreEOS, p.KeepStop = g.n, c.child.request.MaxTokens, g.min, g.noEnd, g.keepStop
			p.Stop = append([]string{}, g.stops...)
			all[i] = out
		}
		if a == chatAPI {
			writeJSON(w, all[0])
		} else {
			writeJSON(w, all)
		}
	}
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		body
		Text *string `json:"prompt"`
	}
	if e := readJSON(w, r, &b); e != nil {
		e.write(w)
		return
	}
	var tokens []simengine.Token
	if b.Text != nil {
		tokens = simengine.Encode([]simengine.Token{}, *b.Text)
	} else {
		prompts, e := b.prompts(chatAPI)
		if e != nil {
			e.write(w)
			return
		}
		tokens = prompts[0]
	}
	writeJSON(w, map[string]any{"count": len(tokens), "max_model_len": s.cfg.modelContext(), "tokens": tokens, "token_strs": nil})
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Tokens []simengine.Token `json:"tokens"`
	}
	e := readJSON(w, r, &b)
	if e == nil {
		e = checkIDs("tokens", b.Tokens)
	}
	if e != nil {
		e.write(w)
		return
	}
	writeJSON(w, map[string]string{"prompt": simengine.DecodeAll(b.Tokens)})
}

func readJSON(w http.ResponseWriter, r *http.Request, v any) *apiError {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return badRequest("", "body: %v", err)
	}
	return unmarshal(data, v)
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("vllmapi: " + err.Error()) // our own types
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(body)
}
