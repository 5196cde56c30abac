package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/wire"
)

// Stage is one experiment: what it is for, and what it costs at most.
type Stage struct {
	Name     string
	Subjects []Subject
	Requests int
	Tokens   int64 // prompts and answers, at most
}

// stage is a Stage that can be run.
type stage struct {
	name     string
	subjects []Subject
	needs    []Subject // that have to be looked for before
	cost     func(p *prober) (requests, tokens int)
	run      func(ctx context.Context, p *prober) error
}

// stages are in the order in which they are run: each uses what those before it found.
var stages = []stage{
	{"context", []Subject{MaxContext}, nil, costContext, runContext},
	{"prefix", []Subject{PrefixCache}, nil, costPrefix, runPrefix},
	{"slots", []Subject{Slots}, nil, costSlots, runSlots},
	{"queue", []Subject{Waiting, PrioritySign, AbortSeconds, AbortTold}, []Subject{Slots}, costQueue, runQueue},
	{"layout", []Subject{KVTokens, KVLayout}, []Subject{MaxContext, Slots}, costLayout, runLayout},
	{"steps", []Subject{ChunkTokens, Steps}, []Subject{Slots}, costSteps, runSteps},
	{"gate", []Subject{WholePrompt}, []Subject{ChunkTokens, KVTokens}, costGate, runGate},
}

// prober has what is known so far.
type prober struct {
	*session
	o       *Options
	said    *Reading
	found   map[Subject]Finding
	why     map[Subject]string // why a subject was left out
	slots   int                // that run at once; 0: not known
	context int                // longest sequence that is taken; 0: not known
	chunk   int
	queues  []queue
	aborted []seen
	steps   *timedModel
}

// wanted are the stages for the subjects that are asked for.
func wanted(only []Subject) []stage {
	want := map[Subject]bool{}
	for _, s := range only {
		want[s] = true
	}
	var all []stage
	for _, st := range slices.Backward(stages) {
		if len(only) > 0 && !slices.ContainsFunc(st.subjects, func(s Subject) bool { return want[s] }) {
			continue
		}
		for _, s := range st.needs {
			want[s] = true
		}
		all = append(all, st)
	}
	slices.Reverse(all)
	return all
}

// Plan is what Run would do to an engine that says so of itself.
func Plan(o *Options, r *Reading) []Stage {
	p := &prober{o: o, said: r, slots: r.Slots, context: r.Context}
	var all []Stage
	for _, st := range wanted(o.Only) {
		requests, tokens := st.cost(p)
		all = append(all, Stage{st.name, st.subjects, requests, int64(tokens)})
	}
	return all
}

// Run probes an engine. What could not be found out is unknown, with the reason, so
// that an error is only that nothing could be, or that requests of the probe's may be
// left at the engine; then there is a profile as well. When it returns, every request
// that it sent has ended, and as far as the engine tells, is known to have.
func Run(ctx context.Context, o *Options) (*Profile, error) {
	a, err := adapters.New(o.Engine.Kind, o.Engine)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	said, err := read(ctx, o, a)
	if err != nil {
		return nil, err
	}
	if said.Load.State != engine.Ready {
		return nil, fmt.Errorf("probe: the engine is %v, and must be ready: %w", said.Load.State, errors.Join(said.Load.Err))
	}
	if n := said.Load.Running + max(0, said.Load.Waiting); n > 0 && !o.Busy {
		return nil, fmt.Errorf("probe: %w: %d; wait, or allow it with --busy", ErrBusy, n)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	timer := time.AfterFunc(o.Timeout, func() { stop(fmt.Errorf("%w: %s", ErrTime, o.Timeout)) })
	defer timer.Stop()
	s := &session{
		adapter: a, kind: said.Kind, model: said.Model, start: time.Now(), busy: o.Busy, sign: said.sign, stop: stop,
		random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), changed: make(chan struct{}), hurry: make(chan struct{}, 1), left: o.MaxTokens,
	}
	p := &prober{session: s, o: o, said: said, found: map[Subject]Finding{}, why: map[Subject]string{}}
	s.ids = vocabulary(ctx, a, said.Model)
	watching, unwatch := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watch(watching)
	}()
	for _, st := range wanted(o.Only) {
		if err := context.Cause(ctx); err != nil {
			p.leave(st, err)
			continue
		}
		if o.Progress != nil {
			o.Progress(st.name)
		}
		p.leave(st, st.run(ctx, p))
	}
	ghosts := s.close()
	unwatch()
	<-watched
	profile := p.profile()
	if ghosts > 0 {
		return profile, fmt.Errorf("probe: %d of its requests are not confirmed as ended: look at the engine", ghosts)
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.Canceled):
		return profile, fmt.Errorf("probe: it was interrupted; its requests have ended")
	case errors.Is(cause, ErrKey):
		return profile, fmt.Errorf("probe: %w", cause)
	}
	return profile, nil
}

// leave notes why a stage did not find what it was for.
func (p *prober) leave(st stage, err error) {
	if err == nil {
		return
	}
	for _, s := range st.subjects {
		if _, ok := p.found[s]; !ok {
			p.why[s] = fmt.Sprintf("it was not finished: %v", err)
		}
	}
}

func (p *prober) find(f Finding) { p.found[f.Subject] = f }

// profile is what was found of all subjects.
func (p *prober) profile() *Profile {
	out := &Profile{
		Format: Format, Kind: p.said.Kind, Version: p.said.Version, Model: p.said.Model,
		At: time.Now().UTC().Truncate(time.Second), Took: p.now().Seconds(), Requests: p.sent, Tokens: p.spent,
	}
	for _, s := range Subjects {
		f, ok := p.found[s]
		switch {
		case !ok && p.why[s] != "":
			f = unknown(s, p.why[s])
		case !ok:
			f = unknown(s, "it was not asked for")
		}
		if p.foreign != "" {
			f.Evidence = append(f.Evidence, "others used the engine meanwhile: "+p.foreign)
		}
		out.Findings = append(out.Findings, f)
	}
	if p.steps != nil {
		out.StepTimes = p.steps.model
	}
	return out
}

// vocabulary is ordinary tokens of the engine's, nil where it does not tell them.
func vocabulary(ctx context.Context, a engine.Adapter, model string) []int32 {
	t, ok := a.(engine.Tokenizer)
	if !ok {
		return nil
	}
	body, err := json.Marshal(map[string]any{"model": model, "prompt": strings.Join(words, " ")})
	if err != nil {
		return nil
	}
	ids, err := t.Tokens(ctx, wire.Completions, body)
	if err != nil || len(ids) < 32 {
		return nil
	}
	ids = ids[1:] // the first may be what begins a text
	slices.Sort(ids)
	return slices.Compact(ids)
}
