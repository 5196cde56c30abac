package wire

// What a byte of ASCII is to measureText.
const (
	letter = iota
	digit
	space
	symbol
	escape
	high // not ASCII
)

var asciiClass = func() (t [256]uint8) {
	for i := range t {
		switch c := byte(i); {
		case c >= 0x80:
			t[i] = high
		case 'a' <= c|0x20 && c|0x20 <= 'z':
			t[i] = letter
		case '0' <= c && c <= '9':
			t[i] = digit
		case c <= ' ' || c == 0x7f:
			t[i] = space
		case c == '\\':
			t[i] = escape
		default:
			t[i] = symbol
		}
	}
	return t
}()

// heap is how many symbols in a row are ordinary punctuation. JSON and code
// rarely pile up more, tokenizers have words for what they do pile up, and
// beyond it a symbol costs about as much as a digit.
const heap = 3

// measureText adds the bytes of a JSON string's content to c, by kind and as
// they are once its escapes are undone.
//
// Kinds are decided by runs of letters and digits. A run of both is an id, hex
// or base64 and Dense as a whole; one of letters is a word. A symbol is Dense
// when it differs from the one before and is beyond the first few in a row:
// "-----" is one token.
func measureText(c *Content, raw []byte) {
	var prose, dense, wide int
	var letters, digits, symbols int
	var last byte
	for i := 0; i < len(raw); {
		b := raw[i]
		class, width := asciiClass[b], 1
		switch class {
		case letter:
			j := i + 1
			for j < len(raw) && asciiClass[raw[j]] == letter {
				j++
			}
			letters += j - i
			symbols = 0
			i = j
			continue
		case escape:
			var r rune
			r, width = unescape(raw[i:])
			switch {
			case r < 0x80:
				b = byte(r)
				if class = asciiClass[b]; class == escape {
					class = symbol
				}
			default:
				class = high
				b = leadByte(r)
			}
		case high:
			width = runeLen(b)
		}
		i += width
		switch class {
		case letter:
			letters, symbols = letters+1, 0
			continue
		case digit:
			digits, symbols = digits+1, 0
			continue
		}
		if digits > 0 {
			if letters > 0 {
				dense += letters
				letters = 0
			}
			dense += digits
			digits = 0
		}
		prose += letters
		letters = 0
		switch class {
		case symbol:
			if symbols++; symbols > heap && b != last {
				dense++
			} else {
				prose++
			}
			last = b
		case high:
			symbols = 0
			if n := runeLen(b); n == 2 {
				prose += n
			} else {
				wide += n
			}
		default:
			symbols = 0
			prose++
		}
	}
	if digits > 0 {
		dense += digits + letters
	} else {
		prose += letters
	}
	c.Bytes[Prose] += prose
	c.Bytes[Dense] += dense
	c.Bytes[Wide] += wide
}

// runeLen is the length in UTF-8 of what begins with a lead byte.
func runeLen(lead byte) int {
	switch {
	case lead >= 0xf0:
		return 4
	case lead >= 0xe0:
		return 3
	}
	return 2
}

// leadByte is a lead byte with the length that r has in UTF-8.
func leadByte(r rune) byte {
	switch {
	case r < 0x800:
		return 0xc0
	case r < 0x10000:
		return 0xe0
	}
	return 0xf0
}
