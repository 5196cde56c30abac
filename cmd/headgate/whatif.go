package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"headgate/admission"
	"headgate/config"
	"headgate/gateway"
	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

// Bounds of a simulation beside a gateway's traffic.
const (
	mostSeeds                   = 5
	leastSpeed, mostSpeed       = 0.01, 100.0
	whatIfSlice                 = 2 * time.Millisecond // of computing, between two looks at the clock
	whatIfProcessors            = 4                    // of which it may have one whole
	mostPolicyBytes             = 64 << 10
	whatIfBlock           int64 = 16 // tokens, where the configuration does not say
)

// lab is what operators can try things out with.
func (s *server) lab() *gateway.Lab {
	return &gateway.Lab{
		Reports: func() string { return s.config.Load().Console.Reports },
		Present: s.whatIfOffer, Simulate: s.whatIf,
	}
}

func (s *server) whatIfOffer() *gateway.WhatIfOffer {
	cfg := s.config.Load()
	v := &gateway.WhatIfOffer{Pools: []gateway.WhatIfPool{}, Profiles: []gateway.WhatIfProfile{}, MaxSeeds: mostSeeds, LimitS: gateway.WhatIfTime.Seconds()}
	for _, p := range trace.Profiles() {
		v.Profiles = append(v.Profiles, gateway.WhatIfProfile{Name: p.Name, About: p.About})
	}
	for i := range cfg.Pools {
		p := gateway.WhatIfPool{Pool: cfg.Pools[i].Name}
		text, err := config.PolicyText(&cfg.Pools[i].Policy)
		var e simengine.Config
		if err == nil {
			p.Policy, p.Engine = string(text), cfg.Pools[i].Engines[0].Name
			e, err = s.simulated(&cfg.Pools[i])
		}
		if err == nil {
			spec := sim.EngineSpec(e)
			p.Slots, p.KV = spec.Slots, spec.KV
			err = hasClasses(&cfg.Pools[i].Policy)
		}
		if err != nil {
			p.Not = err.Error()
		}
		v.Pools = append(v.Pools, p)
	}
	return v
}

// hasClasses tells whether a policy has the classes that traces have.
func hasClasses(p *config.Policy) error {
	for _, name := range []string{trace.Interactive, trace.Batch} {
		if !slices.ContainsFunc(p.Classes, func(c config.Class) bool { return c.Name == name }) {
			return fmt.Errorf("there is no class %s, which the profiles' requests are of", name)
		}
	}
	return nil
}

// simulated is a model of a pool's first engine: its slots, its KV, its kind and whether it
// keeps prefixes are the engine's, and its step times those of the model that headgate sim has
// by default.
func (s *server) simulated(p *config.Pool) (simengine.Config, error) {
	c := &p.Engines[0]
	slots, kv, caching := c.Slots, c.KVTokens, c.PrefixCaching != nil && *c.PrefixCaching
	for _, live := range s.present() {
		if live.Name() != p.Name {
			continue
		}
		if state := live.Snapshot(); state != nil {
			for _, e := range state.Engines {
				if e.Name == c.Name && e.Total.Slots > 0 && e.Total.KV > 0 {
					slots, kv = e.Total.Slots, e.Total.KV
				}
			}
		}
		for _, e := range live.Engines() {
			if e.Name == c.Name && e.Known {
				caching = e.Capabilities.PrefixCache // what the configuration says is in it
			}
		}
	}
	if slots < 1 || kv < 1 {
		return simengine.Config{}, fmt.Errorf("engine %s has not said yet how many slots and how much KV it has", c.Name)
	}
	e := simengine.DefaultConfig()
	if c.Kind == config.KindLlamaCpp {
		e = simengine.LlamaServerConfig(int(slots), int(kv), true)
	} else {
		block := whatIfBlock
		if c.BlockSize > 0 {
			block = c.BlockSize
		}
		e.MaxNumSeqs, e.BlockSize, e.NumBlocks = int(slots), int(block), int(kv/block)+1
		e.MaxModelLen = int(kv / block * block)
		e.PrefixCaching = caching
	}
	if c.MaxContext > 0 {
		e.MaxModelLen = min(e.MaxModelLen, int(c.MaxContext))
	}
	e.MaxBatchedTokens = max(e.MaxBatchedTokens, e.MaxNumSeqs)
	var all []error
	e.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("the model of engine %s: %s is %v: allowed: %s", c.Name, path, value, allowed))
	})
	return e, errors.Join(all...)
}

// whatIf runs the traces of a profile under a pool's policy and under another.
func (s *server) whatIf(ctx context.Context, in *gateway.WhatIf) (*gateway.WhatIfView, error) {
	wrong := func(field string, value any, allowed string) error {
		return fmt.Errorf("%w: %q is %v, must be %s", gateway.ErrWhatIf, field, value, allowed)
	}
	cfg := s.config.Load()
	i := slices.IndexFunc(cfg.Pools, func(p config.Pool) bool { return p.Name == in.Pool })
	switch {
	case i < 0:
		var names []string
		for k := range cfg.Pools {
			names = append(names, cfg.Pools[k].Name)
		}
		return nil, wrong("pool", fmt.Sprintf("%.60q", in.Pool), strings.Join(names, ", "))
	case !slices.Contains(trace.Names(), in.Profile):
		return nil, wrong("profile", fmt.Sprintf("%.60q", in.Profile), strings.Join(trace.Names(), ", "))
	case in.Seeds < 1 || in.Seeds > mostSeeds:
		return nil, wrong("seeds", in.Seeds, fmt.Sprintf("1 to %d", mostSeeds))
	case !(in.Speed >= leastSpeed && in.Speed <= mostSpeed):
		return nil, wrong("speed", in.Speed, fmt.Sprintf("%g to %g", leastSpeed, mostSpeed))
	case len(in.Policy) > mostPolicyBytes:
		return nil, wrong("policy", fmt.Sprintf("%d bytes long", len(in.Policy)), fmt.Sprintf("at most %d", mostPolicyBytes))
	}
	engine, err := s.simulated(&cfg.Pools[i])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", gateway.ErrWhatIf, err)
	}
	engine.Speed = in.Speed
	present, err := config.PolicyText(&cfg.Pools[i].Policy)
	if err != nil {
		return nil, err
	}
	v := &gateway.WhatIfView{Pool: in.Pool, Profile: in.Profile, Seeds: in.Seeds, Speed: in.Speed}
	var plans [2]sim.Plan
	for k, text := range []string{string(present), in.Policy} {
		policy, err := policyOf([]string{"the present policy", "policy"}[k], text, engine)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", gateway.ErrWhatIf, err)
		}
		var seeds []uint32
		for seed := range in.Seeds {
			seeds = append(seeds, uint32(seed+1))
		}
		plans[k] = sim.Plan{Traces: sim.Drawn([]string{in.Profile}, seeds), Arms: []string{sim.Headgate}, Engine: engine, Policy: policy, Workers: 1, Stop: beside(ctx)}
	}
	for k, to := range []**gateway.WhatIfScore{&v.Present, &v.Changed} {
		rep, err := sim.Execute(&plans[k], nil)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, fmt.Errorf("%w: %w", gateway.ErrWhatIf, err)
		}
		*to, v.Skipped = whatIfScore(&rep.Arms[0]), rep.Skipped
	}
	return v, nil
}

// policyOf makes a policy of a text, for an engine. The first of what is wrong with it is told.
func policyOf(name, text string, e simengine.Config) (*sim.Policy, error) {
	f, problems := config.ParsePolicy(name, []byte(text))
	if f == nil {
		first := slices.IndexFunc(problems, func(p config.Problem) bool { return !p.Warning })
		if more := config.Errors(problems) - 1; more > 0 {
			return nil, fmt.Errorf("%v, and %d more", problems[first], more)
		}
		return nil, errors.New(problems[first].String())
	}
	if err := hasClasses(&f.Policy); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p, err := simPolicy(f, e)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// simPolicy is a policy for an engine that is simulated.
func simPolicy(f *config.PolicyFile, e simengine.Config) (*sim.Policy, error) {
	t, err := table(&f.Policy, f.Resolve, []admission.EngineSpec{sim.EngineSpec(e)})
	if err != nil {
		return nil, err
	}
	p := &sim.Policy{Table: t, Priority: map[string]int{}}
	for i := range f.Classes {
		p.Priority[f.Classes[i].Name] = int(f.Classes[i].Priority)
	}
	return p, nil
}

// beside is a sim.Plan's Stop for a simulation beside a gateway's traffic: it ends with ctx,
// and has of the processors no more than a whole one, and no more than a whatIfProcessors-th.
//
// Alternatives: a thread of low priority would be put aside by the system while the
// garbage collector waits for it, and all of the traffic with it.
func beside(ctx context.Context) func() error {
	rest := whatIfSlice * time.Duration(max(0, whatIfProcessors-runtime.GOMAXPROCS(0))) / time.Duration(runtime.GOMAXPROCS(0))
	began := time.Now()
	return func() error {
		if time.Since(began) >= whatIfSlice {
			if rest > 0 {
				time.Sleep(rest)
			}
			began = time.Now()
		}
		return ctx.Err()
	}
}

func whatIfScore(a *sim.ArmReport) *gateway.WhatIfScore {
	s := &gateway.WhatIfScore{
		Interactive: a.Interactive.Offered, OnTime: a.Interactive.OnTime, Return: a.Interactive.ReturnOffered, ReturnOnTime: a.Interactive.ReturnOnTime,
		Batch: a.Batch.Offered, BatchDone: a.Batch.Completed, BatchTokens: a.Batch.TokensInWindow, MakespanS: a.MakespanS,
		Refused: a.Refused, Failed: a.Failed, Recalls: len(a.Recalls), Reclaims: a.Reclaims, Preemptions: a.Preemptions, Recomputed: a.Recomputed,
	}
	if s.Refused == nil {
		s.Refused = map[string]int{}
	}
	for i := range a.PerSeed {
		p := &a.PerSeed[i]
		s.PerSeed = append(s.PerSeed, gateway.WhatIfSeed{Seed: p.Seed, Interactive: p.Interactive.Offered, OnTime: p.Interactive.OnTime, Batch: p.Batch.Offered, BatchDone: p.Batch.Completed})
	}
	return s
}
