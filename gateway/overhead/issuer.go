package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// issuer signs the token that clients of a Headgate with everything on have. It is one
// for all that this process starts.
type issuer struct {
	at    string
	token string
}

func startIssuer() (*issuer, error) {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: secret.Public(), KeyID: "bench", Use: "sig"}}})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(keys) }))
	}()
	i := &issuer{at: "http://" + l.Addr().String()}
	by, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: secret, KeyID: "bench"}}, nil)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	signed, err := by.Sign(fmt.Appendf(nil, `{"iss":%q,"aud":"headgate","sub":"bench","iat":%d,"exp":%d}`, i.at, now.Unix(), now.Add(24*time.Hour).Unix()))
	if err != nil {
		return nil, err
	}
	i.token, err = signed.CompactSerialize()
	return i, err
}
