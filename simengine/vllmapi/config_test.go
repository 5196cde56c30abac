package vllmapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"headgate/simengine"
)

// Of another scheduler only what this API can say is served.
func TestRefusesACommonContext(t *testing.T) {
	_, err := New(Config{Engine: simengine.LlamaServerConfig(4, 4096, true)})
	if err == nil || !strings.Contains(err.Error(), "engine.scheduler: llama-server: allowed: vllm, or llama-server with a context for each slot") {
		t.Errorf("error %v", err)
	}
}

// Slots that divide the KV take no prompt beyond their part, and end there whatever
// was asked for, though the model takes more and the other slots are idle.
func TestPerSlot(t *testing.T) {
	cfg := Many(4)
	cfg.Engine.NumBlocks, cfg.Engine.MaxModelLen = 321, 4096
	_, h := serve(t, cfg.PerSlot())
	if models := get(t, h.URL+"/v1/models"); !strings.Contains(models, `"max_model_len":4096`) {
		t.Errorf("%s, want the model's own 4096 tokens", models)
	}
	ask := func(prompt int, more string) (int, string) {
		ids, err := json.Marshal(make([]int, prompt))
		if err != nil {
			t.Fatal(err)
		}
		return post(t, h.URL+"/v1/completions", `{"prompt":`+string(ids)+more+`}`)
	}
	if status, body := ask(1280, `,"max_tokens":1`); status != http.StatusBadRequest || !strings.Contains(body, "1280 input tokens and exceeds the available context size of a slot, 1280 tokens") {
		t.Errorf("status %d: %s", status, body)
	}
	status, body := ask(1270, `,"max_tokens":500,"ignore_eos":true`)
	if a := parse(t, body); status != http.StatusOK || a.Choices[0].Finish != "length" || a.Usage.Completion != 10 {
		t.Errorf("status %d: %s, want an end by length after the 10 tokens that the slot has left", status, body)
	}
}
