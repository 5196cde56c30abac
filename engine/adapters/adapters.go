// Package adapters makes an engine's adapter by its kind. It stands apart from
// package engine, which every adapter imports.
package adapters

import (
	"fmt"

	"headgate/engine"
	"headgate/engine/llamacpp"
	"headgate/engine/openai"
	"headgate/engine/sglang"
	"headgate/engine/vllm"
)

// New makes an adapter of the given kind from a configuration that was found
// valid. It dials nothing; an error is about the URL, the API key's variable or
// the kind.
func New(kind engine.Kind, cfg engine.Config) (engine.Adapter, error) {
	cfg.Kind = kind
	var a engine.Adapter
	var err error
	switch kind {
	case engine.VLLM:
		a, err = vllm.New(cfg)
	case engine.SGLang:
		a, err = sglang.New(cfg)
	case engine.LlamaCpp:
		a, err = llamacpp.New(cfg)
	case engine.OpenAI:
		a, err = openai.New(cfg)
	default:
		err = fmt.Errorf("allowed are vllm, sglang, llamacpp and openai")
	}
	if err != nil {
		return nil, fmt.Errorf("engine of kind %q: %w", kind, err)
	}
	return a, nil
}
