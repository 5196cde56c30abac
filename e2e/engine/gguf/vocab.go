package gguf

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed words.txt
var wordList string

// The tokenizer's token types, as llama.cpp numbers them.
const (
	typeNormal  int32 = 1
	typeUnknown int32 = 2
	typeControl int32 = 3
	typeByte    int32 = 6
)

// The ids of the special tokens.
const (
	idUnknown = 0
	idBOS     = 1
	idEOS     = 2
)

// wordStart is what an SPM vocabulary writes for the space before a word.
const wordStart = "\u2581"

// vocab is an SPM vocabulary: parallel lists, indexed by token id.
type vocab struct {
	pieces []string
	types  []int32
	scores []float32
	word   []bool // the piece is a whole word, which the model may generate
}

func (v *vocab) add(piece string, typ int32, score float32, word bool) {
	v.pieces = append(v.pieces, piece)
	v.types = append(v.types, typ)
	v.scores = append(v.scores, score)
	v.word = append(v.word, word)
}

// words returns how many tokens are whole words.
func (v *vocab) words() int {
	n := 0
	for _, w := range v.word {
		if w {
			n++
		}
	}
	return n
}

// newVocab builds the vocabulary. A prefix scores by its length: the merges of a
// word then go strictly left to right, and reach the longest piece there is.
func newVocab() *vocab {
	v := &vocab{}
	v.add("<unk>", typeUnknown, 0, false)
	v.add("<s>", typeControl, 0, false)
	v.add("</s>", typeControl, 0, false)
	for b := range 256 {
		v.add(fmt.Sprintf("<0x%02X>", b), typeByte, 0, false)
	}
	list := strings.Fields(wordList)
	whole := make(map[string]bool, len(list))
	for _, w := range list {
		whole[w] = true
	}
	seen := make(map[string]bool)
	for _, w := range list {
		for n := 1; n <= len(w); n++ {
			if p := w[:n]; !seen[p] {
				seen[p] = true
				v.add(wordStart+p, typeNormal, float32(n), whole[p])
			}
		}
	}
	const loneScore = -100 // never preferred to a merge
	v.add(wordStart, typeNormal, loneScore, false)
	for c := '!'; c <= '~'; c++ {
		v.add(string(c), typeNormal, loneScore, false)
	}
	return v
}
