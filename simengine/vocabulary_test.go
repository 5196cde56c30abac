package simengine

import (
	"slices"
	"testing"
)

// FuzzVocabulary: any bytes come back as they were, and all ids exist.
func FuzzVocabulary(f *testing.F) {
	for _, s := range []string{"", " ", "  a", "Hello, world!", "helloWorld HELLO abcdefghijkl", "é 漢字 😀", "\xff\xfe", "x\x00 Zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tokens := Encode(nil, s)
		for _, id := range tokens {
			if id < 0 || id >= VocabSize {
				t.Fatalf("%q: id %d", s, id)
			}
		}
		if got := DecodeAll(tokens); got != s {
			t.Fatalf("%q came back as %q", s, got)
		}
	})
}

// TestPieces: the ids of pieces are a bijection over their whole range.
func TestPieces(t *testing.T) {
	for id := firstPiece; id < VocabSize; id += 9973 {
		text := string(Decode(nil, id))
		if got := Encode(nil, text); len(got) != 1 || got[0] != id {
			t.Fatalf("id %d is %q, which is %v", id, text, got)
		}
	}
	last := VocabSize - 1
	if text := string(Decode(nil, last)); text != " Zzzzzz" {
		t.Errorf("last id %d is %q", last, text)
	}
	for _, special := range []Token{EndOfText, MessageStart, MessageEnd, VocabSize, -1} {
		if text := Decode(nil, special); len(text) > 0 {
			t.Errorf("%d decodes to %q: want nothing", special, text)
		}
	}
}

// TestGeneratedTextReencodes: a text that was generated, characters over
// several tokens included, encodes to the tokens it was made of.
func TestGeneratedTextReencodes(t *testing.T) {
	for _, split := range []int{0, 1, 3, 10} {
		c := startOf(uint64(split), 100)
		var ids []Token
		for range 5000 {
			id := c.next(split)
			c.push(id)
			ids = append(ids, id)
		}
		if got := Encode(nil, DecodeAll(ids)); !slices.Equal(got, ids) {
			t.Errorf("split %d: the text's tokens differ from the generated ones", split)
		}
	}
}

// TestOneToken: every change of what is before changes what follows.
func TestOneToken(t *testing.T) {
	follow := func(prompt []Token) (ids [16]Token) {
		c := startOf(0, 0)
		for _, id := range prompt {
			c.push(id)
		}
		for i := range ids {
			ids[i] = c.next(0)
			c.push(ids[i])
		}
		return ids
	}
	prompt := Encode(nil, "the water of the upper field flows to the lower mill")
	want := follow(prompt)
	for i := range prompt {
		lost := slices.Delete(slices.Clone(prompt), i, i+1)
		doubled := slices.Insert(slices.Clone(prompt), i, prompt[i])
		for _, wrong := range [][]Token{lost, doubled} {
			if follow(wrong) == want {
				t.Errorf("token %d lost or doubled: the answer is the same", i)
			}
		}
		if i > 0 && prompt[i] != prompt[i-1] {
			swapped := slices.Clone(prompt)
			swapped[i], swapped[i-1] = swapped[i-1], swapped[i]
			if follow(swapped) == want {
				t.Errorf("tokens %d and %d swapped: the answer is the same", i-1, i)
			}
		}
	}
}
