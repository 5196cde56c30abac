package sse

// AppendEvent appends one event to dst: its name, unless "", one data field for
// each line of data, and the closing blank line. Line ends in data may be LF,
// CR or CRLF; a reader sees LF. A name ends at its first line end.
func AppendEvent(dst []byte, name string, data []byte) []byte {
	if name != "" {
		dst = append(dst, "event: "...)
		if at := lineEnd([]byte(name)); at >= 0 {
			name = name[:at]
		}
		dst = append(append(dst, name...), '\n')
	}
	return append(appendLines(dst, "data: ", data), '\n')
}

// AppendComment appends a comment, which every reader of the stream ignores: a
// sign of life for a client that waits.
func AppendComment(dst []byte, text string) []byte {
	return append(appendLines(dst, ": ", []byte(text)), '\n')
}

func appendLines(dst []byte, prefix string, text []byte) []byte {
	for {
		dst = append(dst, prefix...)
		at := lineEnd(text)
		if at < 0 {
			return append(append(dst, text...), '\n')
		}
		dst = append(append(dst, text[:at]...), '\n')
		if text[at] == '\r' && at+1 < len(text) && text[at+1] == '\n' {
			at++
		}
		text = text[at+1:]
	}
}
