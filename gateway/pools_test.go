package gateway

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/identity"
	"headgate/relay"
	"headgate/wire"
)

// TestPoolOfAModel: the longest name or beginning decides between pools, and a class
// only between equals: nobody is answered by another model because his class has no
// share of the one that he asked for.
func TestPoolOfAModel(t *testing.T) {
	pool := func(name string, classes, models []string, aliases ...relay.Alias) *relay.Pool {
		return relay.New(relay.Config{Name: name, Classes: classes, Models: models, Aliases: aliases})
	}
	g := New(Config{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Pools: []*relay.Pool{
		pool("all", []string{"interactive", "batch"}, []string{"*"}),
		pool("llamas", []string{"interactive", "batch"}, []string{"llama-*"}, relay.Alias{Name: "gpt-4o", Model: "llama-3-8b"}),
		pool("large", []string{"interactive"}, []string{"llama-3-70b"}),
		pool("large-batch", []string{"batch"}, []string{"llama-3-*", "llama-3-70b"}),
	}})
	for _, tt := range []struct{ model, class, pool, code string }{
		{"mistral", "batch", "all", ""},
		{"llama-2-7b", "interactive", "llamas", ""},
		{"gpt-4o", "batch", "llamas", ""},
		{"gpt-4o-mini", "batch", "all", ""},
		{"llama-3-70b", "interactive", "large", ""},
		{"llama-3-70b", "batch", "large-batch", ""},
		{"llama-3-8b", "batch", "large-batch", ""},
		{"llama-3-8b", "interactive", "", wire.CodeClassNotPermitted},
	} {
		name, code := "", ""
		if p, err := (&response{cfg: g.live()}).pool(&identity.Principal{}, tt.model, tt.class); err != nil {
			code = err.Code
		} else {
			name = p.Name()
		}
		if name != tt.pool || code != tt.code {
			t.Errorf("%s for %s: pool %q, code %q, want %q, %q", tt.model, tt.class, name, code, tt.pool, tt.code)
		}
	}
}
