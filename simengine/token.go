package simengine

// Token is an id of the vocabulary.
type Token int32

// chain is the state from which the next token of a sequence follows: a hash
// over all token ids so far, and how much of a character of several bytes is
// still missing. It is the whole point of the generated text that nothing else
// goes into it.
type chain struct {
	h uint64
	// missing bytes of the character that the last tokens began; the next of
	// them lies in lo..hi.
	missing, lo, hi uint8
}

// startOf returns the chain after the first n tokens of the text that seed
// names: a text that has no ids, for those who only count tokens.
func startOf(seed uint64, n int) chain {
	if n == 0 {
		return chain{h: mix(0x6865616467617465)}
	}
	return chain{h: mix(mix(seed+0x9e3779b97f4a7c15) ^ uint64(n))}
}

// push appends one token.
func (c *chain) push(t Token) {
	c.h = mix(c.h ^ mix(uint64(uint32(t))+0x9e3779b97f4a7c15))
	if t < 0x80 || t > 0xff {
		c.missing = 0
		return
	}
	b := uint8(t)
	if c.missing > 0 && b >= c.lo && b <= c.hi {
		c.missing--
		c.lo, c.hi = 0x80, 0xbf
		return
	}
	c.missing, c.lo, c.hi = leads(b)
}

// leads tells how many bytes follow a lead byte and which may come next.
func leads(b uint8) (missing, lo, hi uint8) {
	switch {
	case b >= 0xc2 && b <= 0xdf:
		return 1, 0x80, 0xbf
	case b == 0xe0:
		return 2, 0xa0, 0xbf
	case b == 0xed:
		return 2, 0x80, 0x9f
	case b >= 0xe1 && b <= 0xef:
		return 2, 0x80, 0xbf
	case b == 0xf0:
		return 3, 0x90, 0xbf
	case b >= 0xf1 && b <= 0xf3:
		return 3, 0x80, 0xbf
	case b == 0xf4:
		return 3, 0x80, 0x8f
	}
	return 0, 0, 0
}

// splitLeads begin generated characters: accented letters, CJK, and emoji with
// what is above them.
var splitLeads = [...]Token{0xc3, 0xe4, 0xf0}

// next returns the token that follows. split is Config.SplitCharacters.
func (c *chain) next(split int) Token {
	v := mix(c.h ^ 0x746f6b656e)
	if c.missing > 0 {
		return Token(c.lo) + Token(v%uint64(c.hi-c.lo+1))
	}
	if split > 0 && v%uint64(split) == 0 {
		return splitLeads[v>>32%uint64(len(splitLeads))]
	}
	return wordTokens[v>>32%uint64(len(wordTokens))]
}

// ends tells whether a sequence that may end here does; mean is
// Config.MeanOutput.
func (c *chain) ends(mean int) bool {
	return mean > 0 && c.missing == 0 && mix(c.h^0x656e64)%uint64(mean) == 0
}

// mix is the finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection in
// which every input bit changes every output bit with probability near 1/2.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return x
}
