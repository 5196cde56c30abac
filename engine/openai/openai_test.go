package openai_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/engine/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestObserve(t *testing.T) {
	e := enginetest.New(t, enginetest.Options{Kind: engine.OpenAI})
	a, err := openai.New(e.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, c := range []struct {
		status int
		want   engine.State
		err    string
	}{{200, engine.Ready, ""}, {429, engine.Ready, ""}, {503, engine.Loading, ""}, {401, engine.Unknown, "status 401"}, {500, engine.Unknown, "status 500"}} {
		e.Answer("/v1/models", c.status, `{"data":[]}`)
		o := a.Observe(t.Context())
		want := engine.Observation{State: c.want, Running: -1, Waiting: -1, KVUsed: -1, KVTotal: -1, Progress: -1, Preemptions: -1}
		if d := cmp.Diff(want, o, cmpopts.IgnoreFields(engine.Observation{}, "Asked", "At", "Err")); d != "" {
			t.Error(c.status, d)
		}
		if (o.Err == nil) != (c.err == "") || c.err != "" && !strings.Contains(o.Err.Error(), c.err) {
			t.Error(c.status, o.Err)
		}
	}
}

func TestCapabilities(t *testing.T) {
	e := enginetest.New(t, enginetest.Options{Kind: engine.OpenAI})
	cfg := e.Config()
	cfg.Capabilities.Slots, cfg.Capabilities.KVTokens = 8, 65536
	a, err := openai.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	e.Answer("/v1/models", 200, `{"data":[{"id":"a"},{"id":"b","max_model_len":1000},{"name":"no id"}]}`)
	got, err := a.Capabilities(t.Context())
	want := engine.Capabilities{
		Kind: engine.OpenAI, Models: []engine.Model{{ID: "a"}, {ID: "b", MaxContext: 1000}}, Slots: 8, KVTokens: 65536, MaxContext: 1000,
		FinalMessage: engine.FinalTurn,
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	e.Answer("/v1/models", 200, `<html>`)
	if _, err := a.Capabilities(t.Context()); err == nil || !strings.Contains(err.Error(), "want an object") {
		t.Error(err)
	}
}
