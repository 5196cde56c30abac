package vllmapi

import (
	"net/http"
	"strings"
)

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": s.cfg.ModelName, "object": "model", "created": s.start.Unix(), "owned_by": "headgate-simengine",
		"root": s.cfg.ModelName, "parent": nil, "max_model_len": s.cfg.modelContext(),
	}}})
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (s *Server) version(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, map[string]string{"version": strings.TrimSpace("headgate-simengine " + s.cfg.Version)})
}

func (s *Server) load(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	live := s.live
	s.mu.Unlock()
	writeJSON(w, map[string]int{"server_load": live})
}

// abortRequests ends requests by their external ids, or all of them if none is
// named.
func (s *Server) abortRequests(w http.ResponseWriter, r *http.Request) {
	var b struct {
		IDs []string `json:"request_ids"`
	}
	if e := readJSON(w, r, &b); e != nil {
		e.write(w)
		return
	}
	s.abortIDs(b.IDs)
	writeJSON(w, map[string]string{"status": "aborted"})
}

// serverInfo tells the settings that vLLM doesn't export otherwise.
func (s *Server) serverInfo(w http.ResponseWriter, r *http.Request) {
	c := s.cfg.Engine
	writeJSON(w, map[string]any{"vllm_config": map[string]any{
		"model_config": map[string]any{"served_model_name": s.cfg.ModelName, "max_model_len": s.cfg.modelContext()},
		"cache_config": map[string]any{"block_size": c.BlockSize, "num_gpu_blocks": c.NumBlocks, "enable_prefix_caching": c.PrefixCaching},
		"scheduler_config": map[string]any{
			"max_num_seqs": c.MaxNumSeqs, "max_num_batched_tokens": c.MaxBatchedTokens, "policy": c.Policy,
			"enable_chunked_prefill": c.ChunkedPrefill, "long_prefill_token_threshold": c.LongPrefillThreshold,
			"async_scheduling": c.OutputLag,
		},
	}})
}
