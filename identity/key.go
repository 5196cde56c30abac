package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	keyPrefix  = "hg_"
	hashPrefix = "sha256:"

	minKeyChars = 22  // of base62: 131 bits
	newKeyChars = 27  // of base62: 160 bits
	maxKeyChars = 128 // a bound on what is hashed for a stranger

	// minDistinct is how many different characters a key must show. Of 22
	// random base62 characters fewer than 10 distinct ones come up less than
	// once in 10^8 keys; "hg_" followed by a word and zeros does not reach it.
	minDistinct = 10

	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// ErrWeakKey is returned by Hash for a secret that is not a random key.
var ErrWeakKey = errors.New("not a random key: allowed is hg_ and 22 to 128 random characters of 0-9, A-Z, a-z, as made by NewKey")

// NewKey makes a key from rand, normally crypto/rand.Reader, and the hash that
// the configuration stores for it. The error is rand's.
func NewKey(rand io.Reader) (key Secret, hash string, err error) {
	var b strings.Builder
	b.WriteString(keyPrefix)
	var buf [64]byte
	for chars := 0; chars < newKeyChars; {
		if _, err := io.ReadFull(rand, buf[:]); err != nil {
			return Secret{}, "", fmt.Errorf("read randomness for a key: %w", err)
		}
		for _, c := range buf {
			// 248 is the largest multiple of 62 in a byte; taking the rest
			// too would favour the first characters.
			if c < 248 && chars < newKeyChars {
				b.WriteByte(base62[c%62])
				chars++
			}
		}
	}
	key = NewSecret(b.String())
	hash, err = Hash(key)
	return key, hash, err
}

// Hash returns what the configuration stores for key, "sha256:" and 64 hex
// digits, or ErrWeakKey: a secret that somebody made up can be found from its
// fast hash by guessing.
func Hash(key Secret) (string, error) {
	k := key.Reveal()
	if !wellFormed(k) || distinct(k[len(keyPrefix):]) < minDistinct {
		return "", ErrWeakKey
	}
	d := sha256.Sum256([]byte(k))
	return hashPrefix + hex.EncodeToString(d[:]), nil
}

type digest [sha256.Size]byte

// parseHash reads the configuration's form of a digest.
func parseHash(s string) (d digest, ok bool) {
	h, ok := strings.CutPrefix(s, hashPrefix)
	if !ok || len(h) != hex.EncodedLen(len(d)) {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(h))
	return d, err == nil
}

func wellFormed(k string) bool {
	body, ok := strings.CutPrefix(k, keyPrefix)
	if !ok || len(body) < minKeyChars || len(body) > maxKeyChars {
		return false
	}
	for i := range len(body) {
		if !isAlnum(body[i]) {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

func distinct(s string) int {
	var seen [256]bool
	n := 0
	for i := range len(s) {
		if !seen[s[i]] {
			seen[s[i]] = true
			n++
		}
	}
	return n
}
