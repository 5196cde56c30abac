package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// saved is how far an answer has come, in a form that outlives the process. Ids and
// text are as the engine wrote them, to the byte.
type saved struct {
	FromText bool              `json:"from_text,omitempty"`
	Model    string            `json:"model"` // by which the engine knows it
	Most     int               `json:"most,omitempty"`
	Window   int               `json:"window,omitempty"`
	Head     map[string][]byte `json:"head,omitempty"`
	Prompt   []byte            `json:"prompt,omitempty"`
	PromptN  int               `json:"prompt_tokens,omitempty"`
	Kept     []byte            `json:"kept"`
	KeptN    int               `json:"kept_tokens"`
	Begun    []byte            `json:"begun,omitempty"` // of a stop string
	// Chunk is what was collected, as one chunk of a stream.
	Chunk []byte `json:"chunk"`
}

// Save returns what an answer that is collected has come to, for Restore. It is to be
// called when all that is kept was collected, and nothing else; model is the engine's name
// for it.
func Save(s *Stitch, a *Assembler, model string) ([]byte, error) {
	v := saved{
		FromText: s.fromText, Model: model, Most: s.most, Window: s.window, Head: map[string][]byte{},
		Prompt: s.prompt, PromptN: s.promptTokens, Kept: s.kept.text, KeptN: s.kept.n,
		Chunk: a.write(nil, &a.root, elsewhere),
	}
	for h, b := range s.head {
		if b != nil {
			v.Head[headNames[h]] = b
		}
	}
	if s.stops != nil {
		v.Begun = s.stops.kept
	}
	return json.Marshal(&v)
}

var quote = []byte{'"'}

var errSaved = errors.New("what was saved of the answer can't be continued")

// Restore returns the answer to a request that Save has saved, as after a cut, and the
// model that it is of. The answer is at most maxBytes long.
func Restore(r *Request, data []byte, maxBytes int) (*Stitch, *Assembler, string, error) {
	var v saved
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, nil, "", fmt.Errorf("%w: %w", errSaved, err)
	}
	if v.Model == "" || len(v.Kept) == 0 || v.KeptN < 1 || !v.FromText && (v.PromptN < 1 || !isIDs(v.Prompt, v.PromptN) || !isIDs(v.Kept, v.KeptN)) {
		return nil, nil, "", fmt.Errorf("%w: it has no tokens, or not as many as it says", errSaved)
	}
	if v.FromText && !json.Valid(slices.Concat(quote, v.Kept, quote)) {
		return nil, nil, "", fmt.Errorf("%w: its text is none", errSaved)
	}
	s := NewStitch(r, v.Most, v.Window)
	s.fromText = v.FromText
	s.prompt, s.promptTokens = v.Prompt, v.PromptN
	s.kept = ids{text: v.Kept, n: v.KeptN}
	for h, name := range headNames {
		if b, ok := v.Head[name]; ok {
			if !json.Valid(b) {
				return nil, nil, "", fmt.Errorf("%w: its %s is no JSON", errSaved, name)
			}
			s.head[h] = b
		}
	}
	if s.stops != nil {
		s.stops.kept = v.Begun
	}
	s.Cut()
	a := NewAssembler(r.API, maxBytes)
	if err := a.Add(v.Chunk); err != nil {
		return nil, nil, "", fmt.Errorf("%w: %w", errSaved, err)
	}
	return s, a, v.Model, nil
}

// isIDs tells whether a text is so many numbers with commas between them.
func isIDs(text []byte, n int) bool {
	all := bytes.Split(text, []byte(","))
	for _, id := range all {
		if len(id) == 0 || len(bytes.Trim(id, "0123456789")) > 0 {
			return false
		}
	}
	return len(all) == n
}
