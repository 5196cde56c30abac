package simengine

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
)

//go:embed models/*.json
var models embed.FS

// Model is a step-time model: a data file, in JSON. A step with p prefill
// tokens and n generating sequences that hold c tokens of context takes
//
//	base + prefill_token*p + first_decode*[n > 0] + more_decode*max(0, n-1) + context_token*c
//
// and idle.penalty more if the engine had been idle for longer than idle.after
// (clocks and caches that went cold). The form is linear because each term is a
// different physical limit: launch cost, compute, weights read once a step, and
// KV read per token of context. All fields are in milliseconds.
type Model struct {
	Name   string `json:"name"`
	Source string `json:"source"` // what it was fitted to
	Step   struct {
		Base         float64 `json:"base_ms"`
		PrefillToken float64 `json:"prefill_token_ms"`
		FirstDecode  float64 `json:"first_decode_ms"`
		MoreDecode   float64 `json:"more_decode_ms"`
		ContextToken float64 `json:"context_token_ms"`
	} `json:"step"`
	Idle struct {
		After   float64 `json:"after_ms"`
		Penalty float64 `json:"penalty_ms"`
	} `json:"idle"`
	// Overhead is what a client saw on top of the engine's own time (HTTP,
	// tokenizing, first hop). The model does not apply it; whoever compares
	// with figures measured at a client adds it.
	Overhead float64 `json:"overhead_ms"`
}

// DefaultModel is the built-in model m1.
func DefaultModel() Model {
	m, err := LoadModel("m1")
	if err != nil {
		panic("simengine: " + err.Error())
	}
	return m
}

// Models returns the names of the built-in models, sorted; models/README.md
// says what each was measured on.
func Models() []string {
	files, err := models.ReadDir("models")
	if err != nil {
		panic("simengine: " + err.Error()) // they are in the binary
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = strings.TrimSuffix(f.Name(), ".json")
	}
	return names
}

// LoadModel returns the built-in model of that name, or else reads the file at
// that path. A file that has the name of a built-in model is read as ./name.
func LoadModel(pathOrName string) (Model, error) {
	var data []byte
	var err error
	if slices.Contains(Models(), pathOrName) {
		data, err = models.ReadFile("models/" + pathOrName + ".json")
	} else {
		data, err = os.ReadFile(pathOrName)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Model{}, fmt.Errorf("engine model %q: no such file; built in are %s", pathOrName, strings.Join(Models(), ", "))
	}
	if err != nil {
		return Model{}, fmt.Errorf("engine model: %w", err)
	}
	m, err := ParseModel(data)
	if err != nil {
		return Model{}, fmt.Errorf("engine model %s: %w", pathOrName, err)
	}
	return m, nil
}

// modelFields are the keys a model file has. All but source are required: a
// figure that was forgotten would be a term that costs nothing.
var modelFields = map[string][]string{
	"":     {"name", "source", "step", "idle", "overhead_ms"},
	"step": {"base_ms", "prefill_token_ms", "first_decode_ms", "more_decode_ms", "context_token_ms"},
	"idle": {"after_ms", "penalty_ms"},
}

// ParseModel reads a step-time model. An unknown, missing or impossible field
// is an error that names it and says what is allowed.
func ParseModel(data []byte) (Model, error) {
	if err := checkFields(data, ""); err != nil {
		return Model{}, err
	}
	var m Model
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Model{}, err
	}
	var bad []string
	m.Validate(func(path string, value any, allowed string) {
		bad = append(bad, fmt.Sprintf("%s: %v: allowed: %s", path, value, allowed))
	})
	if len(bad) > 0 {
		return Model{}, fmt.Errorf("%s", strings.Join(bad, "; "))
	}
	return m, nil
}

func checkFields(data []byte, under string) error {
	var have map[string]json.RawMessage
	if err := json.Unmarshal(data, &have); err != nil {
		if under != "" {
			return fmt.Errorf("%s: %s: allowed: an object with %s", under, data, strings.Join(modelFields[under], ", "))
		}
		return err
	}
	keys := make([]string, 0, len(have))
	for key := range have {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if !slices.Contains(modelFields[under], key) {
			return fmt.Errorf("%s: unknown field: allowed: %s", join(under, key), strings.Join(modelFields[under], ", "))
		}
	}
	for _, key := range modelFields[under] {
		value, ok := have[key]
		if !ok && key != "source" {
			return fmt.Errorf("%s: missing: every term of the model must be given, 0 where it costs nothing", join(under, key))
		}
		if _, nested := modelFields[key]; nested {
			if err := checkFields(value, key); err != nil {
				return err
			}
		}
	}
	return nil
}

func join(under, key string) string {
	if under == "" {
		return key
	}
	return under + "." + key
}

// Validate reports every field with an impossible value.
func (m *Model) Validate(bad func(path string, value any, allowed string)) {
	if m.Name == "" {
		bad("name", m.Name, "a name")
	}
	if !(m.Step.Base > 0 && m.Step.Base <= maxTerm) {
		bad("step.base_ms", m.Step.Base, "milliseconds above 0 and up to 60000 (a step takes time)")
	}
	for _, f := range []struct {
		path  string
		value float64
	}{
		{"step.prefill_token_ms", m.Step.PrefillToken},
		{"step.first_decode_ms", m.Step.FirstDecode},
		{"step.more_decode_ms", m.Step.MoreDecode},
		{"step.context_token_ms", m.Step.ContextToken},
		{"idle.after_ms", m.Idle.After},
		{"idle.penalty_ms", m.Idle.Penalty},
		{"overhead_ms", m.Overhead},
	} {
		if !(f.value >= 0 && f.value <= maxTerm) {
			bad(f.path, f.value, "milliseconds from 0 to 60000")
		}
	}
}

// maxTerm bounds every figure, so that no sum over a step overflows Time.
const maxTerm = 60_000

// work is what a step has to do.
type work struct {
	prefill int // tokens
	decodes int // sequences
	context int // tokens held by the decoding sequences
}

// stepTime returns how long a step with this work takes, in ns.
func (m *Model) stepTime(w work, idle Time, speed float64) Time {
	ms := m.Step.Base + m.Step.PrefillToken*float64(w.prefill) + m.Step.ContextToken*float64(w.context)
	if w.decodes > 0 {
		ms += m.Step.FirstDecode + m.Step.MoreDecode*float64(w.decodes-1)
	}
	if float64(idle) > m.Idle.After*1e6 {
		ms += m.Idle.Penalty
	}
	return Time(math.Round(ms * 1e6 * speed))
}
