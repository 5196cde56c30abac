package gguf

import "fmt"

// Revision changes whenever the same Options give other bytes, so that a cache
// of written files can be keyed by it.
const Revision = 1

// Options describe a model. A zero field takes the default its comment names.
type Options struct {
	Name    string  // general.name, "random-llama"
	Layers  int     // transformer blocks, 8
	Width   int     // embedding width, 448; a multiple of 32 and of 2*Heads
	FF      int     // feed-forward width, 3*Width; a multiple of 32
	Heads   int     // attention heads, Width/64
	KVHeads int     // key and value heads, Heads; divides Heads
	Context int     // tokens the model claims to be trained for, 8192
	Mean    float64 // mean tokens before the end of text at temperature 1; 0: never ends; else > 1
	Seed    uint64  // picks the weights
	// Exact makes all weights single precision, instead of q8_0 in the blocks:
	// four times the size and a quarter of the speed. A greedy answer is then the
	// same whether its prompt was evaluated at once or token by token, and so
	// whether a resumed prefix was found in a cache or not; quantized, about one
	// resumed answer in seven differs somewhere (measured, 16 answers cut thrice).
	Exact bool
}

// Tiny is a model whose answers still depend on their whole history: two
// megabytes, a thousand tokens a second and more.
var Tiny = Options{Name: "random-tiny", Layers: 2, Width: 64, Heads: 2, Exact: true}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if o.Name == "" {
		o.Name = "random-llama"
	}
	def(&o.Layers, 8)
	def(&o.Width, 448)
	def(&o.FF, 3*o.Width)
	def(&o.Heads, max(1, o.Width/64))
	def(&o.KVHeads, o.Heads)
	def(&o.Context, 8192)
	return o
}

func (o Options) validate() error {
	bad := func(field string, value any, allowed string) error {
		return fmt.Errorf("gguf: %s is %v, allowed is %s", field, value, allowed)
	}
	switch {
	case o.Layers < 1:
		return bad("Layers", o.Layers, "1 and more")
	case o.Heads < 1:
		return bad("Heads", o.Heads, "1 and more")
	case o.Width < 32 || o.Width%32 != 0 || o.Width%(2*o.Heads) != 0:
		return bad("Width", o.Width, fmt.Sprintf("a multiple of 32 and of twice the %d heads", o.Heads))
	case o.FF < 32 || o.FF%32 != 0:
		return bad("FF", o.FF, "a multiple of 32")
	case o.KVHeads < 1 || o.Heads%o.KVHeads != 0:
		return bad("KVHeads", o.KVHeads, fmt.Sprintf("a divisor of the %d heads", o.Heads))
	case o.KVHeads*(o.Width/o.Heads)%32 != 0:
		return bad("KVHeads", o.KVHeads, fmt.Sprintf("one that makes %d-wide heads a multiple of 32 in all", o.Width/o.Heads))
	case o.Context < 1:
		return bad("Context", o.Context, "1 and more")
	case o.Mean != 0 && o.Mean <= 1:
		return bad("Mean", o.Mean, "0, or more than 1")
	}
	return nil
}
