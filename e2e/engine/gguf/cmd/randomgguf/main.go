// Randomgguf writes a llama model with random weights (see package gguf).
//
//	go run ./e2e/engine/gguf/cmd/randomgguf -o .cache/random.gguf
package main

import (
	"flag"
	"fmt"
	"os"

	"headgate/e2e/engine/gguf"
)

func main() {
	var o gguf.Options
	path := flag.String("o", "random.gguf", "`file` to write")
	flag.StringVar(&o.Name, "name", "", "general.name (default random-llama)")
	flag.IntVar(&o.Layers, "layers", 0, "transformer blocks (default 8)")
	flag.IntVar(&o.Width, "width", 0, "embedding width (default 448)")
	flag.IntVar(&o.FF, "ff", 0, "feed-forward width (default 3 times the width)")
	flag.IntVar(&o.Heads, "heads", 0, "attention heads (default width/64)")
	flag.IntVar(&o.KVHeads, "kvheads", 0, "key and value heads (default as many as heads)")
	flag.IntVar(&o.Context, "ctx", 0, "tokens it claims to be trained for (default 8192)")
	flag.Float64Var(&o.Mean, "mean", 0, "mean tokens before the end of text; 0: never ends")
	flag.Uint64Var(&o.Seed, "seed", 0, "picks the weights")
	flag.BoolVar(&o.Exact, "exact", false, "single precision: greedy answers do not depend on what was cached")
	flag.Parse()
	if err := gguf.WriteFile(*path, o); err != nil {
		fmt.Fprintln(os.Stderr, "randomgguf:", err)
		os.Exit(1)
	}
}
