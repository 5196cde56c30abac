// Package kv is the arithmetic of an engine's KV cache: how many tokens a
// sequence holds once rounded up to blocks, and how many bytes a token costs
// for a model's geometry.
//
// Budgets are kept in the engine's own unit, tokens rounded up to blocks.
// Bytes are for planning only: what a pool of a given size can hold, before
// there is an engine to ask.
package kv

import "fmt"

// RoundUp returns tokens rounded up to a multiple of block, the number of
// tokens that a sequence of that length really occupies. A block of 0 or 1
// means the engine does not divide its KV into blocks.
func RoundUp(tokens, block int64) int64 {
	if block <= 1 {
		return tokens
	}
	return (tokens + block - 1) / block * block
}

// Geometry is what of a model's shape decides the size of its KV cache.
//
// Grouped-query attention stores a key and a value for each KV head
// (2 * layers * kv heads * head size elements per token); multi-head latent
// attention stores one compressed vector and one rotary key per layer instead
// (layers * (rank + rope) elements), the same on every tensor-parallel rank.
type Geometry struct {
	Layers   int
	KVHeads  int // grouped-query attention
	HeadDim  int
	LoRARank int // latent attention: compressed dimension; 0 for grouped-query
	RopeDim  int // latent attention: rotary dimension
	// ElementBytes is the size of one stored element: 2 for f16 and bf16, 1 for
	// fp8, 1.0625 for q8_0, 0.5625 for q4_0.
	ElementBytes float64
}

// Validate reports every field that is out of range.
func (g Geometry) Validate(bad func(path string, value any, allowed string)) {
	positive := func(path string, v int) {
		if v <= 0 {
			bad(path, v, "a positive integer")
		}
	}
	positive("layers", g.Layers)
	if g.LoRARank != 0 {
		positive("lora_rank", g.LoRARank)
		positive("rope_dim", g.RopeDim)
	} else {
		positive("kv_heads", g.KVHeads)
		positive("head_dim", g.HeadDim)
	}
	if !(g.ElementBytes > 0) {
		bad("element_bytes", g.ElementBytes, "a positive number of bytes")
	}
}

// BytesPerToken returns the bytes one token occupies on one of tp
// tensor-parallel ranks. KV heads are split over ranks until each has one;
// a latent cache is replicated.
func (g Geometry) BytesPerToken(tp int) (float64, error) {
	var wrong error
	g.Validate(func(path string, value any, allowed string) {
		if wrong == nil {
			wrong = fmt.Errorf("kv geometry: %s is %v, must be %s", path, value, allowed)
		}
	})
	if wrong != nil {
		return 0, wrong
	}
	if tp < 1 {
		return 0, fmt.Errorf("kv geometry: tensor parallel size is %d, must be at least 1", tp)
	}
	if g.LoRARank != 0 {
		return float64(g.Layers*(g.LoRARank+g.RopeDim)) * g.ElementBytes, nil
	}
	return float64(2*g.Layers*max(1, g.KVHeads/tp)*g.HeadDim) * g.ElementBytes, nil
}
