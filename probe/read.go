package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/upstream"
)

// Options say what is probed, and within which bounds.
type Options struct {
	// Engine is where it is. Its Capabilities, where they are set, count as what the
	// engine says.
	Engine engine.Config
	// Model to ask for; "": the first that the engine has loaded.
	Model string
	// MaxTokens bounds prompts and answers together; Timeout the whole probe, without
	// the wait for its last requests to be confirmed as ended.
	MaxTokens int64
	Timeout   time.Duration
	// MaxStreams bounds how many requests are in the engine at once.
	MaxStreams int
	// Only are the subjects to look for; empty: all of them. What they rest on is looked
	// for as well.
	Only []Subject
	// Busy goes on beside others' requests.
	Busy bool
	// Progress is told what is looked for next; nil: nobody is.
	Progress func(string)
}

// Defaults of the bounds.
const (
	DefaultMaxTokens  = 200_000
	DefaultTimeout    = 5 * time.Minute
	DefaultMaxStreams = 64
)

// Validate calls bad for everything that the options can't have.
func (o *Options) Validate(bad func(path string, value any, allowed string)) {
	o.Engine.Validate(bad)
	if o.MaxTokens < 1 {
		bad("max-tokens", o.MaxTokens, "tokens from 1")
	}
	if o.Timeout <= 0 {
		bad("timeout", o.Timeout, "a time above 0, such as 5m")
	}
	if o.MaxStreams < 2 || o.MaxStreams > 4096 {
		bad("max-streams", o.MaxStreams, "requests from 2 to 4096")
	}
	for _, s := range o.Only {
		if !slices.Contains(Subjects, s) {
			bad("only", s, fmt.Sprint("of ", Subjects))
		}
	}
}

// Reading is what an engine says of itself where nothing is sent to it but questions
// for documents (GET).
type Reading struct {
	Kind    engine.Kind
	Version string
	Model   string
	// Context is the longest sequence that it takes, ModelContext that of the model
	// itself where that is another thing, KVTokens the pool, Block its blocks and Slots
	// how many run at once: 0 where it does not say.
	Context, ModelContext, KVTokens, Block, Slots int
	// SlotIsPool: what a slot's context is depends on whether the pool is divided.
	SlotIsPool  bool
	PrefixCache bool
	Load        engine.Observation

	sign int
}

const maxDocument = 8 << 20 // bytes

// Read asks an engine what it is. Nothing is generated.
func Read(ctx context.Context, o *Options) (*Reading, error) {
	a, err := adapters.New(o.Engine.Kind, o.Engine)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	return read(ctx, o, a)
}

func read(ctx context.Context, o *Options, a engine.Adapter) (*Reading, error) {
	web, err := upstream.New(o.Engine, upstream.Hooks{})
	if err != nil {
		return nil, err
	}
	defer web.Close()
	r := &Reading{Kind: o.Engine.Kind, sign: 1}
	list, err := web.GetOK(ctx, "/v1/models", maxDocument)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	models, err := web.Models(ctx)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	at := slices.IndexFunc(models, func(m engine.Model) bool {
		return m.ID == o.Model || o.Model == "" && !m.Unloaded && m.Parent == ""
	})
	switch {
	case at < 0 && o.Model != "":
		return nil, fmt.Errorf("probe: the engine has no model %q: it lists %s", o.Model, names(models))
	case at < 0:
		return nil, errors.New("probe: the engine has loaded no model: name one")
	case models[at].Unloaded:
		return nil, fmt.Errorf("probe: the engine has not loaded %q, and would have to unload another for it", models[at].ID)
	}
	r.Model, r.Context = models[at].ID, models[at].MaxContext
	r.ModelContext = r.Context
	var caps engine.Capabilities
	if r.Kind == engine.LlamaCpp {
		// Its adapter asks it to cut texts as well, which is no GET, and takes a pool for
		// shared where it can't know.
		caps, err = readSlots(ctx, web, o)
		r.SlotIsPool = true
		r.ModelContext = 0
		for _, m := range gjson.GetBytes(list, "data").Array() {
			if m.Get("id").String() == r.Model {
				r.ModelContext = max(0, upstream.Number(m.Get("meta.n_ctx_train")))
			}
		}
	} else {
		caps, err = a.Capabilities(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	if r.Kind == engine.SGLang {
		info, err := web.Get(ctx, "/server_info", maxDocument)
		if err == nil && info.Status == http.StatusNotFound {
			info, err = web.Get(ctx, "/get_server_info", maxDocument)
		}
		if err != nil {
			return nil, fmt.Errorf("probe: %w", err)
		}
		if !gjson.GetBytes(info.Body, "schedule_low_priority_values_first").Bool() {
			r.sign = -1 // the adapter turns priorities round
		}
	}
	r.Version, r.Slots, r.KVTokens, r.Block, r.PrefixCache = caps.Version, caps.Slots, caps.KVTokens, caps.BlockSize, caps.PrefixCache
	if r.Context == 0 || o.Engine.Capabilities.MaxContext > 0 {
		r.Context = caps.MaxContext
	}
	r.Load = a.Observe(ctx)
	return r, nil
}

// readSlots asks a llama-server.
func readSlots(ctx context.Context, web *upstream.Client, o *Options) (engine.Capabilities, error) {
	c := engine.Capabilities{BlockSize: 1, PrefixCache: true}
	props, err := web.Get(ctx, "/props", maxDocument)
	if err != nil {
		return c, err
	}
	if props.Status == http.StatusOK {
		p := gjson.ParseBytes(props.Body)
		c.Version = p.Get("build_info").String()
		c.Slots = max(0, upstream.Number(p.Get("total_slots")))
		c.MaxContext = max(0, upstream.Number(p.Get("default_generation_settings.n_ctx")))
	}
	return o.Engine.Capabilities.Apply(c), nil
}

func names(models []engine.Model) string {
	var all []string
	for _, m := range models {
		all = append(all, m.ID)
	}
	if len(all) > 8 {
		all = append(all[:8], "...")
	}
	return fmt.Sprint(all)
}
