package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is a number of bytes, written with a unit: 64KiB, 16MiB, or plain.
type Bytes int64

const (
	kib Bytes = 1 << 10
	mib Bytes = 1 << 20
	gib Bytes = 1 << 30
)

var units = []struct {
	suffix string
	size   Bytes
}{{"GiB", gib}, {"MiB", mib}, {"KiB", kib}, {"B", 1}, {"", 1}}

var errBytes = errors.New("a size such as 512, 64KiB, 16MiB or 1GiB")

// UnmarshalText reads a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, u := range units {
		digits, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := decimal(strings.TrimSpace(digits))
		if err != nil || n < 0 || n > math.MaxInt64/int64(u.size) {
			return errBytes
		}
		*b = Bytes(n) * u.size
		return nil
	}
	return errBytes
}

// String writes the size in the largest unit that divides it.
func (b Bytes) String() string {
	for _, u := range units {
		if b != 0 && b%u.size == 0 && u.suffix != "B" {
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return "0"
}

// MarshalText is String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

var errDecimal = errors.New("an integer in decimal digits, without zeros before it")

// decimal reads an integer as people write one. 020 is 16 to some readers of
// YAML and 20 to others, so it is no number here; nor are 0x10, 1_000 and +1.
func decimal(text string) (int64, error) {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || digits[0] < '0' || digits[0] > '9' || digits[0] == '0' && len(digits) > 1 {
		return 0, errDecimal
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrSyntax) {
		err = errDecimal
	}
	return n, err
}

// Share is a part of the time, in percent, written 50% or 0.5.
type Share float64

var errShare = errors.New("a share from 0% to 100%, such as 50% or 0.5")

// UnmarshalText reads a share in either form.
func (s *Share) UnmarshalText(text []byte) error {
	digits, percent := strings.CutSuffix(string(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if !percent {
		v = math.Round(v*1e10) / 1e8 // 0.07 of 100 is a hair more than 7
	}
	if err != nil || !(v >= 0 && v <= 100) {
		return errShare
	}
	*s = Share(v)
	return nil
}

// Fraction returns the share as a number from 0 to 1.
func (s Share) Fraction() float64 { return float64(s) / 100 }

func (s Share) String() string { return strconv.FormatFloat(float64(s), 'f', -1, 64) + "%" }

// MarshalText is String.
func (s Share) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Quantity is an amount of slots or tokens: a number, or a percentage of the
// pool's envelope. The zero Quantity is one that was not given.
type Quantity struct {
	given   bool
	percent bool
	n       int64   // slots or tokens
	share   float64 // percent
}

// Number is a quantity of n.
func Number(n int64) Quantity { return Quantity{given: true, n: n} }

// Percent is a quantity of p percent of the envelope.
func Percent(p float64) Quantity { return Quantity{given: true, percent: true, share: p} }

// Given tells whether the file says anything.
func (q Quantity) Given() bool { return q.given }

// Of returns the quantity out of an envelope, in the envelope's unit; a share
// is rounded down, so that shares which fit as percentages fit as numbers.
func (q Quantity) Of(envelope int64) int64 {
	if q.percent {
		// A hair is added because 7 % of 100 is 7.000000000000001 one way and
		// 6.999999999999999 another.
		return int64(math.Floor(float64(envelope)*q.share/100 + 1e-9))
	}
	return q.n
}

var errQuantity = errors.New("an integer of at least 0, or a percentage of the envelope such as 40%, at most 100%")

// UnmarshalText reads a number or a percentage.
func (q *Quantity) UnmarshalText(text []byte) error {
	if digits, ok := strings.CutSuffix(string(text), "%"); ok {
		p, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return errQuantity
		}
		*q = Percent(p)
		return nil
	}
	n, err := decimal(string(text))
	if err != nil || n < 0 {
		return errQuantity
	}
	*q = Number(n)
	return nil
}

func (q Quantity) String() string {
	switch {
	case !q.given:
		return ""
	case q.percent:
		return strconv.FormatFloat(q.share, 'f', -1, 64) + "%"
	}
	return strconv.FormatInt(q.n, 10)
}

// MarshalYAML writes a number as a number.
func (q Quantity) MarshalYAML() (any, error) {
	if q.given && !q.percent {
		return q.n, nil
	}
	return q.String(), nil
}

// IsZero tells whether there is nothing to write.
func (q Quantity) IsZero() bool { return !q.given }

var errDuration = errors.New("a duration with its unit, such as 250ms, 30s or 2m")

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errDuration
	}
	return d, nil
}

// formatDuration leaves out the zeros that time.Duration's own form ends with.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Amount is a quantity of both resources.
type Amount struct {
	// Slots is a number of sequences, or a percentage of the pool's.
	Slots Quantity `yaml:"slots,omitzero"`
	// KVTokens is a number of KV tokens, or a percentage of the pool's.
	KVTokens Quantity `yaml:"kv_tokens,omitzero"`
}

// IsZero tells whether neither is given.
func (a Amount) IsZero() bool { return !a.Slots.given && !a.KVTokens.given }

func (a Amount) String() string {
	var parts []string
	for _, r := range resources {
		if q := r.given(a); q.given {
			parts = append(parts, r.name+": "+q.String())
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
