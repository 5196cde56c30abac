package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestProbeKeepsWhatItPaidFor: a profile that has nowhere to go is refused before the
// engine is asked for anything.
func TestProbeKeepsWhatItPaidFor(t *testing.T) {
	var asked atomic.Int32
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer up.Close()
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs([]string{"probe", "--url", up.URL, "--kind", "vllm", "--yes", "--out", filepath.Join(t.TempDir(), "absent", "profile.json")})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "allowed is a file in a folder that is there") || asked.Load() > 0 {
		t.Errorf("%v, %d requests", err, asked.Load())
	}
}
