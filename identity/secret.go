package identity

import (
	"fmt"
	"io"
	"log/slog"
)

// Redacted is what a Secret prints as.
const Redacted = "[redacted]"

// Secret holds a string that must not be seen in a log line, an error, a
// panic, a dump or a configuration listing: every way of printing it gives
// Redacted. The zero Secret is empty.
//
// The string sits behind a pointer because fmt ignores methods on unexported
// fields: a struct that holds a Secret then prints an address, not the text.
type Secret struct {
	_ [0]func() // comparing with == would compare addresses
	s *string
}

// NewSecret wraps s.
func NewSecret(s string) Secret { return Secret{s: &s} }

// Reveal returns the text itself. Call it where the text is used, as late as
// possible.
func (s Secret) Reveal() string {
	if s.s == nil {
		return ""
	}
	return *s.s
}

// Empty tells whether there is any text.
func (s Secret) Empty() bool { return s.Reveal() == "" }

func (s Secret) String() string { return Redacted }

// Format is needed besides String: for a verb that does not fit, fmt prints
// the fields behind a String method's back.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Redacted) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalText serves JSON, YAML and XML alike.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }
