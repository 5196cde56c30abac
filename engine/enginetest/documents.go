package enginetest

import (
	"fmt"
	"strings"

	"headgate/engine"
)

// document is what the engine says of itself at a path.
func (e *Engine) document(path string) (string, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.opts.Manual {
		e.stepLocked()
	}
	o := e.opts
	if path == "/v1/models" {
		limit := ""
		switch o.Kind {
		case engine.VLLM, engine.SGLang:
			limit = fmt.Sprintf(`,"max_model_len":%d`, o.MaxContext)
		case engine.LlamaCpp:
			limit = fmt.Sprintf(`,"meta":{"n_ctx":%d,"n_ctx_train":131072}`, o.MaxContext)
		}
		return fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model"%s}]}`, o.Model, limit), true
	}
	switch o.Kind {
	case engine.VLLM:
		switch path {
		case "/health":
			return "", true
		case "/version":
			return `{"version":"0.28.0"}`, true
		case "/metrics":
			return e.vllmMetrics(), true
		}
	case engine.SGLang:
		return e.sglangDocument(path)
	case engine.LlamaCpp:
		switch path {
		case "/health":
			return `{"status":"ok"}`, true
		case "/props":
			return fmt.Sprintf(`{"default_generation_settings":{"n_ctx":%d},"total_slots":%d,"build_info":"b10573-test","chat_template":"{{ messages }}"}`, o.MaxContext, o.Slots), true
		case "/slots":
			return e.slots(), true
		case "/metrics":
			return fmt.Sprintf("# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing %d\n"+
				"llamacpp:requests_deferred %d\nllamacpp:prompt_tokens_total 0\nllamacpp:tokens_predicted_total %d\n",
				e.now.running, e.now.waiting, e.now.generated), true
		}
	}
	return "", false
}

func (e *Engine) vllmMetrics() string {
	var b strings.Builder
	label := fmt.Sprintf("{engine=\"0\",model_name=%q}", e.opts.Model)
	blocks := e.opts.KVTokens / e.opts.BlockSize
	held := 0 // one block a sequence
	if blocks > 0 {
		held = min(e.now.running, blocks)
	}
	fmt.Fprintf(&b, "# HELP vllm:num_requests_running Number of requests in model execution batches.\n# TYPE vllm:num_requests_running gauge\n")
	fmt.Fprintf(&b, "vllm:num_requests_running%s %d\n", label, e.now.running)
	fmt.Fprintf(&b, "vllm:num_requests_waiting%s %d\n", label, e.now.waiting)
	fmt.Fprintf(&b, "vllm:kv_cache_usage_perc%s %g\n", label, float64(held)/float64(max(1, blocks)))
	fmt.Fprintf(&b, "vllm:num_preemptions_total%s 0\n", label)
	fmt.Fprintf(&b, "vllm:prompt_tokens_total%s 0\n", label)
	fmt.Fprintf(&b, "vllm:generation_tokens_total%s %d\n", label, e.now.generated)
	fmt.Fprintf(&b, "vllm:cache_config_info{block_size=\"%d\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"%d\"} 1\n",
		e.opts.BlockSize, blocks+1)
	return b.String()
}

// slots are always of this moment.
func (e *Engine) slots() string {
	busy := 0
	for _, s := range e.held {
		if s == running {
			busy++
		}
	}
	slots := make([]string, e.opts.Slots)
	for i := range slots {
		tokens := 0
		if i < busy {
			tokens = 10
		}
		slots[i] = fmt.Sprintf(`{"id":%d,"n_ctx":%d,"is_processing":%t,"id_task":%d,"n_prompt_tokens":%d,"next_token":[{"n_decoded":1}]}`,
			i, e.opts.MaxContext, i < busy, i, tokens)
	}
	return "[" + strings.Join(slots, ",") + "]"
}
