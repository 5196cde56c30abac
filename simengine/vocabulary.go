package simengine

// The vocabulary is arithmetic, not a table: ids and text map to each other by
// counting.
//
//	0 .. 255      one byte
//	256 .. 258    EndOfText, MessageStart, MessageEnd
//	259 ..        a piece: a letter, which may be a capital, and up to five
//	              lower-case letters behind it, with or without a space in front
//
// Encode takes the longest piece at each place and single bytes elsewhere, so
// English comes to about one token in 4.5 characters, any bytes come back as
// they were, and a generated text encodes to the ids that it was made of: each
// generated word has its own space in front, which no other piece can reach over.
const (
	EndOfText    Token = 256 + iota // ends an answer; decodes to nothing
	MessageStart                    // opens a chat message; decodes to nothing
	MessageEnd                      // closes a chat message; decodes to nothing
	firstPiece
)

const maxPiece = 6 // letters

// piecesOf[n] counts the lower-case pieces of fewer than n letters.
var piecesOf = func() (sum [maxPiece + 2]Token) {
	power := Token(1)
	for n := 1; n <= maxPiece; n++ {
		power *= 26
		sum[n+1] = sum[n] + power
	}
	return sum
}()

// VocabSize is one more than the largest id.
var VocabSize = firstPiece + 4*piecesOf[maxPiece+1]

// Encode appends the tokens of a text.
func Encode(dst []Token, text string) []Token {
	for i := 0; i < len(text); {
		if t, n := piece(text[i:]); n > 0 {
			dst = append(dst, t)
			i += n
			continue
		}
		dst = append(dst, Token(text[i]))
		i++
	}
	return dst
}

// piece reads the piece at the beginning of s and its length in bytes; 0 if
// there is none.
func piece(s string) (t Token, length int) {
	kind, i := Token(0), 0
	if len(s) > 1 && s[0] == ' ' {
		kind, i = 1, 1
	}
	if i == len(s) {
		return 0, 0
	}
	first := s[i]
	if first >= 'A' && first <= 'Z' {
		kind += 2
		first += 'a' - 'A'
	}
	if first < 'a' || first > 'z' {
		return 0, 0
	}
	value, letters := Token(first-'a'), 1
	for i++; i < len(s) && letters < maxPiece && s[i] >= 'a' && s[i] <= 'z'; i++ {
		value = value*26 + Token(s[i]-'a')
		letters++
	}
	return firstPiece + kind*piecesOf[maxPiece+1] + piecesOf[letters] + value, i
}

// Decode appends the bytes of a token; special tokens and ids outside the
// vocabulary have none.
func Decode(dst []byte, t Token) []byte {
	switch {
	case t >= 0 && t <= 0xff:
		return append(dst, byte(t))
	case t < firstPiece || t >= VocabSize:
		return dst
	}
	t -= firstPiece
	kind := t / piecesOf[maxPiece+1]
	t %= piecesOf[maxPiece+1]
	letters := 1
	for t >= piecesOf[letters+1] {
		letters++
	}
	t -= piecesOf[letters]
	if kind&1 != 0 {
		dst = append(dst, ' ')
	}
	at := len(dst)
	for range letters {
		dst = append(dst, 'a')
	}
	for i := at + letters - 1; i >= at; i-- {
		dst[i] = 'a' + byte(t%26)
		t /= 26
	}
	if kind&2 != 0 {
		dst[at] -= 'a' - 'A'
	}
	return dst
}

// DecodeAll returns the text of tokens; it is the bytes that they stand for and
// so may end inside a character.
func DecodeAll(tokens []Token) string {
	var text []byte
	for _, t := range tokens {
		text = Decode(text, t)
	}
	return string(text)
}

// words are what a generated text is made of.
var words = [...]string{
	"water", "gate", "river", "stone", "field", "upper", "lower", "canal", "spring", "summer",
	"winter", "right", "senior", "junior", "call", "flow", "head", "tail", "level", "gauge",
	"meadow", "valley", "ditch", "weir", "sluice", "bank", "bridge", "mill", "wheel", "turn",
	"share", "lease", "loan", "grant", "claim", "return", "hold", "open", "close", "rise",
	"fall", "early", "late", "first", "last", "north", "south", "east", "west", "old",
	"new", "deep", "clear", "still", "swift", "long", "short", "wide", "small", "great",
	"the", "a", "and", "of",
}

var wordTokens = func() (tokens [len(words)]Token) {
	for i, w := range words {
		t, n := piece(" " + w)
		if n != len(w)+1 {
			panic("simengine: " + w + " is not one token")
		}
		tokens[i] = t
	}
	return tokens
}()
