package vllmapi

import (
	"strings"
	"testing"

	"headgate/simengine"
)

// Another engine's scheduler behind vLLM's API would be no engine that there is.
func TestRefusesAnotherScheduler(t *testing.T) {
	_, err := New(Config{Engine: simengine.LlamaServerConfig(4, 4096, true)})
	if err == nil || !strings.Contains(err.Error(), "engine.scheduler: llama-server: allowed: vllm") {
		t.Errorf("error %v", err)
	}
}
