package trace

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"strconv"
)

// canonicalVersion is the version of the canonical form.
const canonicalVersion = 3

// Hash returns the SHA-256 of the trace's canonical form, in hexadecimal. It
// covers everything that a run sees: the workload, and every entry's arrival,
// size and chance.
func (t *Trace) Hash() string {
	h := sha256.New()
	w := bufio.NewWriterSize(h, 32<<10)
	if err := t.canonical(w); err != nil {
		panic(err) // a hash refuses nothing, and a workload has finite numbers
	}
	if err := w.Flush(); err != nil {
		panic(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// canonical writes compact JSON with a fixed order of keys and numbers in
// their shortest form that reads back the same.
func (t *Trace) canonical(w io.Writer) error {
	head, err := json.Marshal(struct {
		Version  int      `json:"version"`
		Workload Workload `json:"workload"`
		Planned  Planned  `json:"planned"`
	}{canonicalVersion, t.Workload, t.Planned()})
	if err != nil {
		return err
	}
	line := append(head[:len(head)-1], `,"entries":[`...)
	for i := range t.Entries {
		if i > 0 {
			line = append(line, ',')
		}
		line = t.appendCanonical(line, &t.Entries[i])
		if _, err := w.Write(line); err != nil {
			return err
		}
		line = line[:0]
	}
	_, err = w.Write(append(line, `]}`...))
	return err
}

// appendCanonical writes an entry. What follows the draws is written only where
// it is not what the class, or another field, already says.
func (t *Trace) appendCanonical(b []byte, e *Entry) []byte {
	b = append(append(b, `{"id":"`...), e.ID...)
	b = append(append(b, `","class":"`...), e.Class...)
	b = strconv.AppendFloat(append(b, `","arrivalMs":`...), toMs(e.Arrival), 'f', -1, 64)
	b = strconv.AppendFloat(append(b, `,"retryJitter":[`...), e.Draw.RetryJitter, 'f', -1, 64)
	b = strconv.AppendUint(append(b, `],"targetSlots":[`...), uint64(e.Draw.TargetSlot), 10)
	b = strconv.AppendUint(append(b, `],"providerSeeds":[`...), e.Draw.ProviderSeed, 10)
	b = append(b, ']')
	chars, tokens := t.Workload.size(e.Class)
	if e.InputChars != chars {
		b = appendInt(b, `,"inputChars":`, e.InputChars)
	}
	if e.MaxTokens != tokens || t.Protocol.statesTokens(e.ID) {
		b = appendInt(b, `,"maxTokens":`, e.MaxTokens)
	}
	if e.PromptTokens != PromptTokens(e.InputChars) {
		b = appendInt(b, `,"promptTokens":`, e.PromptTokens)
	}
	if e.Output != e.MaxTokens {
		b = appendInt(b, `,"outputTokens":`, e.Output)
	}
	if e.Session != "" {
		b = append(append(append(b, `,"session":"`...), e.Session...), '"')
	}
	if e.Prefix != nil {
		b = appendPrefix(append(b, `,"prefix":`...), e.Prefix)
	}
	return append(b, '}')
}

func appendInt(b []byte, key string, n int) []byte {
	return strconv.AppendInt(append(b, key...), int64(n), 10)
}

func appendPrefix(b []byte, ids []uint64) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, id, 10)
	}
	return append(b, ']')
}
