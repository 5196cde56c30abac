package adapters_test

import (
	"testing"
	"time"

	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
)

// TestRecognise: each kind is known by what it shows, whatever it is said to be, and what
// shows nothing is none.
func TestRecognise(t *testing.T) {
	for _, kind := range engine.Kinds {
		e := enginetest.New(t, enginetest.Options{Kind: kind})
		want := kind
		if kind == engine.OpenAI {
			want = ""
		}
		for _, said := range engine.Kinds {
			cfg := e.Config()
			cfg.Kind = said
			s, err := adapters.Recognise(t.Context(), cfg)
			if err != nil || s.Kind != want || s.Models != 200 || (s.By == "") != (want == "") || s.Date.Sub(s.Sent).Abs() > time.Minute {
				t.Errorf("%s, said to be %s: %+v, %v", kind, said, s, err)
			}
		}
		e.Close()
		if _, err := adapters.Recognise(t.Context(), e.Config()); err == nil {
			t.Errorf("%s is gone, and is recognised", kind)
		}
	}
}
