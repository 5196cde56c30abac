package live

import (
	"hash/fnv"
	"strconv"

	"headgate/trace"
)

// Prompts are token ids, so that they are exactly as long as the trace says for
// every engine that takes ids. The ids are those of a small part of any
// vocabulary, and behind the special tokens that come first in most.
const (
	firstID = 16
	idCount = 200
	// prefixBlock is how many tokens an id of a trace's prefix stands for, as in
	// Mooncake's traces.
	prefixBlock = 512
)

// words stand for ids where an engine takes text only.
var words = [...]string{"the", "river", "stone", "light", "morning", "under", "green", "house", "carries", "slow", "water", "over", "field", "and", "seven", "birds"}

// token is the token of a prompt at a place. Requests with the same ids of prefix
// have the same tokens there, those of one session the same beginning, and others
// share none.
func token(e *trace.Entry, seed uint32, i int) uint64 {
	h := fnv.New64a()
	switch block := i / prefixBlock; {
	case block < len(e.Prefix):
		_, _ = h.Write(strconv.AppendUint([]byte("p"), e.Prefix[block], 10))
	case e.Session != "":
		_, _ = h.Write([]byte("s" + e.Session))
	default:
		_, _ = h.Write([]byte("r" + e.ID))
	}
	return mix(h.Sum64() ^ uint64(seed)<<32 ^ uint64(i))
}

// mix spreads a number's bits: the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// appendPrompt appends a prompt as JSON: ids, or a text of as many words.
func appendPrompt(b []byte, e *trace.Entry, seed uint32, text bool) []byte {
	open, shut := byte('['), byte(']')
	if text {
		open, shut = '"', '"'
	}
	b = append(b, open)
	for i := range e.PromptTokens {
		t := token(e, seed, i)
		switch {
		case text && i > 0:
			b = append(append(b, ' '), words[t%uint64(len(words))]...)
		case text:
			b = append(b, words[t%uint64(len(words))]...)
		case i > 0:
			b = append(b, ',')
			fallthrough
		default:
			b = strconv.AppendUint(b, firstID+t%idCount, 10)
		}
	}
	return append(b, shut)
}
