package probe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"headgate/engine"
	"headgate/simengine"
)

// Format is the version of the file that this program writes.
const Format = 1

// Profile is what a probe found out about one engine, as it is saved.
type Profile struct {
	Format int `json:"format"`
	// Kind, Version and Model are of the engine that was probed: what is found holds for
	// it, started as it was, and for no other.
	Kind    engine.Kind `json:"kind"`
	Version string      `json:"version"`
	Model   string      `json:"model"`
	At      time.Time   `json:"at"`
	Took    float64     `json:"took_s"`
	// Requests and Tokens are what the probe has cost the engine, prompts and answers.
	Requests int   `json:"requests"`
	Tokens   int64 `json:"tokens"`
	// Findings has every subject once, in the order of Subjects.
	Findings []Finding `json:"findings"`
	// StepTimes is the fitted model for the simulator, nil where it is unknown.
	StepTimes *simengine.Model `json:"step_times,omitempty"`
}

// Finding is what is known of one subject, and from what.
type Finding struct {
	Subject    Subject    `json:"subject"`
	Value      any        `json:"value"` // a string, or a float64 in Unit; nil where Unknown
	Unit       string     `json:"unit,omitempty"`
	Confidence Confidence `json:"confidence"`
	// Evidence is what was done and seen, a sentence each; of an unknown subject why
	// the probe could not tell.
	Evidence []string `json:"evidence"`
}

// Confidence tells how far a finding can be relied on.
type Confidence string

const (
	// Shown: the engine was made to do it, and could not have done so otherwise.
	Shown Confidence = "shown"
	// Said: the engine says so, and nothing that was done speaks against it.
	Said Confidence = "said"
	// Unknown: the probe could not tell. There is no value.
	Unknown Confidence = "unknown"
)

// Subject is what a finding is about.
type Subject string

const (
	KVTokens     Subject = "kv_tokens"     // what the whole KV pool holds
	KVLayout     Subject = "kv_layout"     // Shared or PerSlot
	Slots        Subject = "slots"         // sequences that really run at once
	Waiting      Subject = "waiting"       // what a request of better priority does to running ones: Preempts or Waits
	PrioritySign Subject = "priority_sign" // LowerFirst, HigherFirst or Ignored
	WholePrompt  Subject = "whole_prompt"  // Whole: a request starts once all its prompt fits; Chunk: once a first piece does
	PrefixCache  Subject = "prefix_cache"  // Kept or None
	AbortSeconds Subject = "abort"         // from an abort to the slot's next request having begun
	AbortTold    Subject = "abort_told"    // how the release is confirmed: engine.ConfirmedBy
	ChunkTokens  Subject = "chunk"         // most prompt tokens of one step
	MaxContext   Subject = "max_context"   // longest sequence that was taken, prompt and output
	Steps        Subject = "step_times"    // Fitted; the model itself is in StepTimes
)

// Values of the subjects that have names for them.
const (
	Shared      = "shared"
	PerSlot     = "per-slot"
	Preempts    = "preempts"
	Waits       = "waits"
	LowerFirst  = "lower-first"
	HigherFirst = "higher-first"
	Ignored     = "ignored"
	Whole       = "whole"
	Chunk       = "chunk"
	Kept        = "kept"
	None        = "none"
	Fitted      = "fitted"
)

// Subjects are all of them, in the order in which a profile has them.
var Subjects = []Subject{KVTokens, KVLayout, Slots, Waiting, PrioritySign, WholePrompt, PrefixCache, AbortSeconds, AbortTold, ChunkTokens, MaxContext, Steps}

// kinds says what each subject's value may be: words, or a number in a unit.
var kinds = map[Subject]struct {
	words []string
	unit  string
}{
	KVTokens: {unit: "tokens"}, Slots: {unit: "sequences"}, ChunkTokens: {unit: "tokens"}, MaxContext: {unit: "tokens"}, AbortSeconds: {unit: "s"},
	KVLayout: {words: []string{Shared, PerSlot}}, Waiting: {words: []string{Preempts, Waits}}, PrioritySign: {words: []string{LowerFirst, HigherFirst, Ignored}},
	WholePrompt: {words: []string{Whole, Chunk}}, PrefixCache: {words: []string{Kept, None}}, Steps: {words: []string{Fitted}},
	AbortTold: {words: []string{string(engine.ByCompletion), string(engine.ByProgress), string(engine.BySlot), string(engine.ByGrace)}},
}

// Find returns the finding about a subject. One that the profile has not is unknown.
func (p *Profile) Find(s Subject) Finding {
	if p != nil {
		for _, f := range p.Findings {
			if f.Subject == s {
				return f
			}
		}
	}
	return Finding{Subject: s, Confidence: Unknown, Evidence: []string{"it was not probed"}}
}

// Word is a named value, "" where it is unknown.
func (p *Profile) Word(s Subject) string {
	word, _ := p.Find(s).Value.(string)
	return word
}

// Number is a value in its unit, and false where it is unknown.
func (p *Profile) Number(s Subject) (float64, bool) {
	n, ok := p.Find(s).Value.(float64)
	return n, ok
}

// mostCount of tokens or sequences: no engine has so many, and an int holds them.
const mostCount = 1<<31 - 1

// Validate calls bad for everything that a profile can't have.
func (p *Profile) Validate(bad func(path string, value any, allowed string)) {
	if p.Format != Format {
		bad("format", p.Format, fmt.Sprint(Format))
	}
	if !slices.Contains(engine.Kinds, p.Kind) {
		bad("kind", p.Kind, "vllm, sglang, llamacpp or openai")
	}
	for i, f := range p.Findings {
		at := fmt.Sprintf("findings[%d].", i)
		kind, known := kinds[f.Subject]
		switch {
		case !known:
			bad(at+"subject", f.Subject, fmt.Sprint("one of ", Subjects))
			continue
		case slices.ContainsFunc(p.Findings[:i], func(o Finding) bool { return o.Subject == f.Subject }):
			bad(at+"subject", f.Subject, "each subject once")
		case f.Confidence == Unknown && f.Value != nil:
			bad(at+"value", f.Value, "null where the confidence is unknown")
		case f.Confidence != Unknown && f.Confidence != Shown && f.Confidence != Said:
			bad(at+"confidence", f.Confidence, "shown, said or unknown")
		case len(f.Evidence) == 0:
			bad(at+"evidence", f.Evidence, "a sentence or more")
		}
		if f.Confidence == Unknown {
			continue
		}
		if kind.words != nil {
			if word, ok := f.Value.(string); !ok || !slices.Contains(kind.words, word) {
				bad(at+"value", f.Value, strings.Join(kind.words, ", "))
			}
		} else if n, ok := f.Value.(float64); !ok || math.IsInf(n, 0) || math.IsNaN(n) || n < 0 || f.Unit != kind.unit {
			bad(at+"value", f.Value, "a number of "+kind.unit+" from 0 on, with that as its unit")
		} else if kind.unit != "s" && (n != math.Trunc(n) || n > mostCount) {
			bad(at+"value", f.Value, fmt.Sprintf("a whole number of %s up to %d", kind.unit, mostCount))
		}
	}
	if (p.StepTimes != nil) != (p.Word(Steps) == Fitted) {
		bad("step_times", p.StepTimes, "a model where step_times is found to be fitted, and none elsewhere")
	}
	if p.StepTimes != nil {
		p.StepTimes.Validate(func(path string, value any, allowed string) { bad("step_times."+path, value, allowed) })
	}
}

// Parse reads a profile. An unknown or impossible field is an error that names it and
// says what is allowed.
func Parse(data []byte) (*Profile, error) {
	p := new(Profile)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("there is more after the profile: allowed is one")
	}
	var wrong []string
	p.Validate(func(path string, value any, allowed string) {
		wrong = append(wrong, fmt.Sprintf("%s: %v: allowed: %s", path, value, allowed))
	})
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return p, nil
}

// Load reads the profile in a file.
func Load(file string) (*Profile, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("engine profile: %w", err)
	}
	p, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("engine profile %s: %w", file, err)
	}
	return p, nil
}
