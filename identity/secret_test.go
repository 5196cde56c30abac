package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// Case 32: a key shows up in a log line, an error, a panic, a metric or a dump.
func TestSecretIsNeverPrinted(t *testing.T) {
	const text = "hunter2hunter2"
	s := NewSecret(text)
	type holder struct{ hidden Secret }
	type shown struct {
		Key Secret `json:"key" yaml:"key"`
	}
	out := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%T"} {
		out["fmt "+verb] = fmt.Sprintf(verb, s)
		out["fmt pointer "+verb] = fmt.Sprintf(verb, &s)
		out["fmt unexported field "+verb] = fmt.Sprintf(verb, holder{s})
		out["fmt slice "+verb] = fmt.Sprintf(verb, []Secret{s})
		out["fmt map "+verb] = fmt.Sprintf(verb, map[string]any{"k": s})
	}
	out["error"] = fmt.Errorf("key %v: %w", s, errors.New("x")).Error()
	out["panic"] = func() (p string) {
		defer func() { p = fmt.Sprint(recover()) }()
		panic(s)
	}()
	for name, h := range map[string]func(*bytes.Buffer) slog.Handler{
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
	} {
		var b bytes.Buffer
		slog.New(h(&b)).Info("m", "key", s, "in", shown{s}, "hidden", holder{s}, "list", []Secret{s})
		out["slog "+name] = b.String()
	}
	j, err := json.Marshal(shown{s})
	if err != nil {
		t.Fatal(err)
	}
	out["json"] = string(j)
	y, err := yaml.Marshal(shown{s})
	if err != nil {
		t.Fatal(err)
	}
	out["yaml"] = string(y)
	for how, printed := range out {
		for _, leak := range []string{text, fmt.Sprintf("%x", text), fmt.Sprintf("%X", text)} {
			if strings.Contains(printed, leak) {
				t.Errorf("%s shows the secret: %s", how, printed)
			}
		}
	}
	for _, how := range []string{"fmt %v", "fmt %d", "json", "yaml", "slog json", "panic"} {
		if !strings.Contains(out[how], Redacted) {
			t.Errorf("%s: want %s in it, got %s", how, Redacted, out[how])
		}
	}
	if s.Reveal() != text || s.Empty() {
		t.Errorf("Reveal: want %q, got %q", text, s.Reveal())
	}
	if !(Secret{}).Empty() {
		t.Error("the zero Secret is not empty")
	}
}
