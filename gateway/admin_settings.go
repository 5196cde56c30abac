package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// Settings is what the admin listener tells of the configuration. Nothing that it tells has
// a secret in it: that is kept by who makes it.
type Settings struct {
	// Show tells what is in force, and what its file would change.
	Show func() (*SettingsView, error)
	// Check judges a configuration with which nothing is done.
	Check func(text []byte) (*CheckView, error)

	// One at a time: a large file takes some memory and time.
	busy sync.Mutex
}

// SettingsView is /api/config.
type SettingsView struct {
	// File is where the configuration is from; "": it is built in, as of --demo.
	File string `json:"file"`
	// Effective is what is in force, with every default filled in, and Provenance where each
	// of its values comes from: FILE:LINE, default, derived from others, command line, or
	// before restart, of one that is not the file's any more and stays until a restart.
	Effective  json.RawMessage `json:"effective"`
	Provenance json.RawMessage `json:"provenance"`
	// Changes are what the file as it is now would change, and Problems what is wrong with
	// it; while Refused, all of it is left.
	Changes  []SettingChange  `json:"changes"`
	Problems []SettingProblem `json:"problems"`
	Refused  bool             `json:"refused"`
}

// SettingChange is one value that would be another.
type SettingChange struct {
	Path    string `json:"path"`
	Old     string `json:"old"` // "": absent
	New     string `json:"new"`
	Restart bool   `json:"restart"` // a running process can't take it over
}

// SettingProblem is one thing that is wrong with a configuration, or unlikely to be meant.
type SettingProblem struct {
	File    string `json:"file,omitempty"` // the configuration's or its keys_file; none where it was pasted
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Path    string `json:"path,omitempty"`
	Text    string `json:"text"`
	Warning bool   `json:"warning,omitempty"`
}

// CheckView is what came of a check.
type CheckView struct {
	Good     bool             `json:"good"`
	Problems []SettingProblem `json:"problems"`
	// Of a good one: it with every default filled in, and what it would change here.
	Effective json.RawMessage `json:"effective"`
	Changes   []SettingChange `json:"changes"`
}

// maxCheck bounds a request to check a configuration, in bytes: the largest file, as text
// in JSON.
const maxCheck = 1 << 20

func (s *Settings) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/config", func(w http.ResponseWriter, _ *http.Request) {
		v, err := s.show()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writeJSON(w, v)
	})
	mux.HandleFunc("POST /api/config/check", s.check)
}

// show holds up nobody while it is written, to a reader who may be slow.
func (s *Settings) show() (*SettingsView, error) {
	s.busy.Lock()
	defer s.busy.Unlock()
	return s.Show()
}

// check tells what headgate validate would say of a configuration. Nothing is applied, and
// no file that it names is read.
func (s *Settings) check(w http.ResponseWriter, r *http.Request) {
	if !ownJSON(w, r) {
		return
	}
	var in struct {
		Text *string `json:"text"`
	}
	err := object(http.MaxBytesReader(w, r.Body, maxCheck), &in)
	if err == nil && in.Text == nil {
		err = fmt.Errorf(`the body must have "text", a configuration`)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !s.busy.TryLock() {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another configuration is being looked at: try again", http.StatusTooManyRequests)
		return
	}
	defer s.busy.Unlock()
	v, err := s.Check([]byte(*in.Text))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, v)
}
