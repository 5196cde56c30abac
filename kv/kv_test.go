package kv

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRoundUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int64Range(0, 1<<40).Draw(t, "tokens")
		block := rapid.Int64Range(0, 4096).Draw(t, "block")
		got := RoundUp(tokens, block)
		if got < tokens || (block > 1 && (got%block != 0 || got-tokens >= block)) || (block <= 1 && got != tokens) {
			t.Fatalf("RoundUp(%d, %d) = %d", tokens, block, got)
		}
	})
}

// The table of published models: bytes per token from layers, KV heads and
// head size as their model cards give them.
func TestBytesPerToken(t *testing.T) {
	for _, c := range []struct {
		model string
		g     Geometry
		tp    int
		want  float64
	}{
		{"Qwen2.5-1.5B", Geometry{Layers: 28, KVHeads: 2, HeadDim: 128, ElementBytes: 2}, 1, 28672},
		{"Qwen3-8B", Geometry{Layers: 36, KVHeads: 8, HeadDim: 128, ElementBytes: 2}, 1, 147456},
		{"Llama-3.1-70B", Geometry{Layers: 80, KVHeads: 8, HeadDim: 128, ElementBytes: 2}, 1, 327680},
		{"Llama-3.1-70B on 16 ranks keeps one head each", Geometry{Layers: 80, KVHeads: 8, HeadDim: 128, ElementBytes: 2}, 16, 40960},
		{"DeepSeek-V3 is replicated", Geometry{Layers: 61, LoRARank: 512, RopeDim: 64, ElementBytes: 2}, 8, 70272},
	} {
		got, err := c.g.BytesPerToken(c.tp)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", c.model, got, err, c.want)
		}
	}
}

func TestBytesPerTokenRefuses(t *testing.T) {
	_, err := Geometry{Layers: 28, HeadDim: 128, ElementBytes: 2}.BytesPerToken(1)
	if err == nil || !strings.Contains(err.Error(), "kv_heads is 0, must be a positive integer") {
		t.Fatalf("got %v", err)
	}
	if _, err := (Geometry{Layers: 1, KVHeads: 1, HeadDim: 1, ElementBytes: 1}).BytesPerToken(0); err == nil {
		t.Fatal("tensor parallel size 0 was accepted")
	}
}
