package telemetry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"headgate/identity"
)

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLogger(&b, Config{Level: "warn", Format: "json"}, new(slog.LevelVar))
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hidden")
	log.Warn("seen", "key", identity.NewSecret("hunter2"), "engine", "gpu0")
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("not one line of JSON: %v\n%s", err, b.String())
	}
	delete(line, "time")
	want := map[string]any{"level": "WARN", "msg": "seen", "key": "[redacted]", "engine": "gpu0"}
	if d := cmp.Diff(want, line); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}

	b.Reset()
	log, err = NewLogger(&b, Config{Level: "debug", Format: "text"}, new(slog.LevelVar))
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("seen")
	if !strings.Contains(b.String(), "level=DEBUG msg=seen") {
		t.Errorf("not text: %s", b.String())
	}
	for _, c := range []Config{{"loud", "json"}, {"info", "xml"}} {
		if _, err := NewLogger(&b, c, new(slog.LevelVar)); err == nil || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%v: want an error that says what is allowed, got %v", c, err)
		}
	}
	var c Config
	c.SetDefaults()
	if _, err := NewLogger(&b, c, new(slog.LevelVar)); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func TestRegistry(t *testing.T) {
	r := NewRegistry(Build{Version: "v1", Revision: "abc", Go: "go1"})
	want := `# HELP headgate_build_info Always 1; the labels say which build this is. Moves only with a new binary.
# TYPE headgate_build_info gauge
headgate_build_info{go="go1",revision="abc",version="v1"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "headgate_build_info"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(r, "go_goroutines", "process_open_fds"); err != nil || n != 2 {
		t.Errorf("runtime and process metrics: want 2, got %d, %v", n, err)
	}
}

func TestReadBuild(t *testing.T) {
	b := ReadBuild()
	if b.Version != "dev" || !strings.HasPrefix(b.Go, "go") {
		t.Errorf("got %+v", b)
	}
	for want, b := range map[string]Build{
		"headgate v1 (abc) go1": {"v1", "abc", "go1"},
		"headgate v1 go1":       {"v1", "", "go1"},
	} {
		if got := b.String(); got != want {
			t.Errorf("want %q, got %q", want, got)
		}
	}
}

// Case 34: metric labels grow with model names or tenants from the wire.
func TestLabelsAreBounded(t *testing.T) {
	models := NewNames("qwen", "llama")
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "n"}, []string{"model"})
	for i := range 10000 {
		c.WithLabelValues(models.Label(fmt.Sprintf("model-%d", i))).Inc()
	}
	c.WithLabelValues(models.Label("qwen")).Inc()
	if n := testutil.CollectAndCount(c); n != 2 {
		t.Errorf("want 2 series, got %d", n)
	}
	if v := testutil.ToFloat64(c.WithLabelValues(Other)); v != 10000 {
		t.Errorf("other: want 10000, got %v", v)
	}
	if got := (Names{}).Label("x"); got != Other {
		t.Errorf("the zero Names: want %s, got %s", Other, got)
	}
}
