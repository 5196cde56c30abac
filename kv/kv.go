// Package kv is the arithmetic of an engine's KV cache: how many tokens a
// sequence holds once rounded up to blocks, what a token and a sequence cost in
// bytes for a model's geometry, and what a budget of bytes holds on an engine.
//
// Admission keeps budgets in the engine's own unit, tokens rounded up to blocks
// (RoundUp). Bytes are for planning only: what a pool of a given size can hold,
// before there is an engine to ask.
//
// # From a file to an answer
//
// ReadConfig and ReadGGUF make a Model: the caches of its layers, each with the
// key that it was read from. A model whose architecture isn't known, or that has
// a key which changes the cache and isn't understood, is an error, since a wrong
// size looks like a right one. ReadEngine makes the engine's part of its name and
// flags: above all whether sessions share one pool or each has a slot's part of
// it. Compute puts both together.
//
// Every figure is of one card, the one that fills first. Sizes are whole bytes in
// int64; what is out of range saturates, so it fits nowhere.
//
// # What a layer costs
//
//	full      2 rows of kv heads x head size for each token; heads are split over
//	          tensor-parallel ranks until each rank has one
//	latent    one row of rank + rope for each token, the same on every rank
//	index     the keys by which sparse attention finds its tokens: fixed bytes
//	sliding   as full, for the last window of tokens only, and for the tokens of
//	          the step that computes a prompt
//	state     fixed bytes for each sequence and none for a token: state-space and
//	          linear attention, short convolutions
//
// # Alternatives
//
// One formula with an average of bytes per token was rejected: it is right at one
// length only where layers slide or keep state. So was taking what most configs
// mean for an unknown architecture.
package kv

import (
	"fmt"
	"math"
	"math/bits"
)

// RoundUp returns tokens rounded up to a multiple of block, the number of
// tokens that a sequence of that length really occupies. A block of 0 or 1
// means the engine does not divide its KV into blocks.
func RoundUp(tokens, block int64) int64 {
	if block <= 1 {
		return tokens
	}
	return (tokens + block - 1) / block * block
}

// Kind is how a layer's cache grows.
type Kind string

const (
	Full    Kind = "full"
	Latent  Kind = "latent"
	Index   Kind = "index"
	Sliding Kind = "sliding"
	State   Kind = "state"
)

// Cache is what one layer keeps. Which fields count depends on the kind.
type Cache struct {
	Layer int // from 0; a layer may have several caches
	Kind  Kind

	KVHeads, KeyDim, ValueDim int64 // full, sliding
	Width                     int64 // latent: elements of the row; index: its bytes
	Window                    int64 // sliding: tokens
	State                     []Part
}

// Part is one tensor of a layer's state.
type Part struct {
	Heads     int64 // split over tensor-parallel ranks until each has one
	Each      int64 // elements for each of them
	Recurrent bool  // stored as the recurrent state is; else as the convolution's
}

// Model is what decides the size of a model's cache.
type Model struct {
	Architecture string
	Layers       int
	Caches       []Cache // by layer
	MaxContext   int64   // tokens; 0 if the file does not say
	DType        string  // of the weights, as the file says; "" if it does not
	StateDType   string  // of the recurrent state, as the file says; "" if it does not
	KVDType      string  // how the checkpoint wants its cache stored, if it says
	Findings     []Finding
}

// Finding is a fact and where it was taken from.
type Finding struct {
	What  string `json:"what"`
	Value string `json:"value"`
	How   string `json:"how"`
}

// element is how numbers are stored: block of them in bytes.
type element struct {
	name         string
	block, bytes int64
}

// elements are the storage types by the names that engines and configs use. The
// types with a block above 1 are llama.cpp's: a scale with 32 numbers.
var elements = map[string]element{
	"float32": {"f32", 1, 4}, "f32": {"f32", 1, 4}, "fp32": {"f32", 1, 4}, "float": {"f32", 1, 4},
	"float16": {"f16", 1, 2}, "f16": {"f16", 1, 2}, "fp16": {"f16", 1, 2}, "half": {"f16", 1, 2},
	"bfloat16": {"bf16", 1, 2}, "bf16": {"bf16", 1, 2},
	"fp8": {"fp8", 1, 1}, "fp8_e4m3": {"fp8", 1, 1}, "fp8_e5m2": {"fp8", 1, 1}, "int8": {"int8", 1, 1},
	"q8_0": {"q8_0", 32, 34}, "q5_1": {"q5_1", 32, 24}, "q5_0": {"q5_0", 32, 22},
	"q4_1": {"q4_1", 32, 20}, "q4_0": {"q4_0", 32, 18}, "iq4_nl": {"iq4_nl", 32, 18},
	// 512 numbers of fp8, 4 scales of f32, and 64 rotary numbers of bf16.
	"fp8_ds_mla": {"fp8_ds_mla", 576, 656},
}

// Bits is how many bits a number takes in a cache of a type, with its share of what is
// stored beside it, and false for a type that is not known.
func Bits(cacheType string) (float64, bool) {
	e, ok := elements[cacheType]
	if !ok {
		return 0, false
	}
	return 8 * float64(e.bytes) / float64(e.block), true
}

// CacheTypes names the types that are known.
const CacheTypes = "f32, f16, bf16, fp8 (fp8_e4m3, fp8_e5m2), int8, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl and fp8_ds_mla"

// storage is how a model's caches are stored.
type storage struct {
	key, value, conv, recurrent element
	tp                          int64
}

// perRank is how many of n heads a rank has.
func (s *storage) perRank(what string, n int64) (int64, error) {
	if n >= s.tp && n%s.tp != 0 || n < s.tp && s.tp%n != 0 {
		return 0, fmt.Errorf("tensor parallel size is %d: it does not divide the model's %d %s, nor they it", s.tp, n, what)
	}
	return max(1, n/s.tp), nil
}

func row(e element, n int64) (int64, error) {
	if n%e.block != 0 {
		return 0, fmt.Errorf("cache type %s stores %d numbers together: a row has %d", e.name, e.block, n)
	}
	return n / e.block * e.bytes, nil
}

// bytes is what the cache costs on one rank: for each token if it grows, else for
// each sequence.
func (c *Cache) bytes(s *storage) (int64, error) {
	if c.Kind != Latent && c.Kind != Index && s.key.name == "fp8_ds_mla" {
		return 0, fmt.Errorf("cache type %s is of latent attention: layer %d has %s attention", s.key.name, c.Layer, c.Kind)
	}
	switch c.Kind {
	case Latent:
		return row(s.key, c.Width)
	case Index:
		return c.Width, nil
	case State:
		var sum int64
		for _, p := range c.State {
			heads, err := s.perRank("heads or channels of state", p.Heads)
			if err != nil {
				return 0, err
			}
			e := s.conv
			if p.Recurrent {
				e = s.recurrent
			}
			sum = add(sum, mul(mul(heads, p.Each), e.bytes))
		}
		return sum, nil
	}
	heads, err := s.perRank("KV heads", c.KVHeads)
	if err != nil {
		return 0, err
	}
	k, err := row(s.key, heads*c.KeyDim)
	if err != nil {
		return 0, err
	}
	v, err := row(s.value, heads*c.ValueDim)
	return k + v, err
}

// mul and add are those of numbers from 0; what is too large is the largest.
func mul(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
