package identity

import (
	"bytes"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
)

func TestNewKey(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		key, hash, err := NewKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if !wellFormed(key.Reveal()) {
			t.Fatalf("not well-formed: %q", key.Reveal())
		}
		if again, err := Hash(key); err != nil || again != hash {
			t.Fatalf("Hash: want %s, got %s, %v", hash, again, err)
		}
		if _, ok := parseHash(hash); !ok {
			t.Fatalf("hash does not parse: %s", hash)
		}
		if seen[hash] {
			t.Fatal("the same key twice")
		}
		seen[hash] = true
	}
}

func TestNewKeyIsUniform(t *testing.T) {
	// Bytes of 248 and more are skipped: kept, they would favour the first
	// eight characters.
	in := append(bytes.Repeat([]byte{255, 248}, 32), make([]byte, 64)...)
	for i := range 64 {
		in[64+i] = byte(i)
	}
	key, _, err := NewKey(bytes.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	if want := keyPrefix + base62[:newKeyChars]; key.Reveal() != want {
		t.Errorf("want %s, got %s", want, key.Reveal())
	}
}

func TestNewKeyReportsItsSource(t *testing.T) {
	if _, _, err := NewKey(strings.NewReader("short")); err == nil || !strings.Contains(err.Error(), "randomness") {
		t.Errorf("want an error about randomness, got %v", err)
	}
}

func TestHashRefusesWhatCanBeGuessed(t *testing.T) {
	for _, weak := range []string{
		"", "hg_", "password", "hg_password", "hg_0000000000000000000000", "hg_abababababababababababab",
		"hg_secret0000000000000000000", "sk-ABCDEFGHIJKLMNOPQRSTUVWX", "hg_ABCDEFGHIJKLMNOPQRSTU",
		"hg_ABCDEFGHIJKLMNOPQRST-_", "hg_" + strings.Repeat("ABCDEFGHIJ", 13),
	} {
		if h, err := Hash(NewSecret(weak)); !errors.Is(err, ErrWeakKey) {
			t.Errorf("%q: want ErrWeakKey, got %q, %v", weak, h, err)
		}
	}
}
