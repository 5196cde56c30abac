// Package openai is the adapter for any server that speaks OpenAI's API and
// says no more of itself than its model list: LMDeploy, mlx-lm, TensorRT-LLM,
// a hosted service.
//
// Such a server shows no load, so observing it is asking whether it answers,
// and an abort is confirmed by time alone: the connection is closed, and after
// the configured grace what the attempt held counts as free. mlx-lm notices a
// closed connection only when it writes, and no server can be asked, so pools
// of this kind are best used with lending by attrition.
package openai

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"headgate/engine"
	"headgate/engine/release"
	"headgate/engine/upstream"
)

// Adapter implements engine.Adapter.
type Adapter struct {
	*upstream.Client
}

// New makes an adapter from a configuration that was found valid.
func New(cfg engine.Config) (*Adapter, error) {
	client, err := upstream.New(cfg, upstream.Hooks{
		Confirm: func(ctx context.Context, t *release.Ticket) engine.Confirmation {
			return release.Grace(ctx, t, cfg.AbortGrace)
		},
	})
	if err != nil {
		return nil, err
	}
	return &Adapter{client}, nil
}

// Observe implements engine.Adapter: the state, and no load. A refusal for lack
// of room (429) is the answer of a server that works.
func (a *Adapter) Observe(ctx context.Context) engine.Observation {
	o := engine.Unreported(time.Now())
	r, err := a.Get(ctx, "/v1/models", upstream.MaxModels)
	o.At = time.Now()
	switch {
	case err != nil:
		o.State, o.Err = upstream.State(err), err
	case r.Status == http.StatusServiceUnavailable:
		o.State = engine.Loading
	case r.Status >= 400 && r.Status != http.StatusTooManyRequests:
		o.Err = fmt.Errorf("get /v1/models: status %d", r.Status)
	default:
		o.State = engine.Ready
	}
	return o
}

// Capabilities implements engine.Adapter: the models, and what is configured.
func (a *Adapter) Capabilities(ctx context.Context) (engine.Capabilities, error) {
	models, err := a.Models(ctx)
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	return a.Override(engine.Capabilities{
		Models: models, MaxContext: upstream.LeastContext(models), FinalMessage: engine.FinalTurn,
	}), nil
}
