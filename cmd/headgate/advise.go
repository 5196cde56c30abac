package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"headgate/advise"
	"headgate/config"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/probe"
	"headgate/prove"
	"headgate/simengine"
)

func adviseCommand() *cobra.Command {
	var in adviseInput
	var output string
	cmd := &cobra.Command{
		Use: "advise [JOURNAL...]", Short: "Tell from a journal whether other settings would have served it better, and what that relies on", Args: cobra.ArbitraryArgs,
		Long: `Replay a journal's requests in virtual time under the present settings and under
others, and print one page whose first line is the verdict. A proposal is named with
--propose, or made by a rule from the traffic. Each relies on a mechanism of the
engine: what a probe's profile contradicts is withdrawn, and without a profile all is
unproven. A configuration, the engine and documentation are held against each other.

  headgate advise journal.jsonl --config serve.yaml --profile profile.json
  headgate advise journal*.jsonl.gz --config serve.yaml --propose slots=2 --propose slots=4,max_context=65536
  headgate advise --config serve.yaml --docs docs --docs README.md

Settings of a proposal: ` + proposalKeys() + `.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := map[string]func(*advise.Report) ([]byte, error){
				"md": func(r *advise.Report) ([]byte, error) { return r.Markdown(), nil },
				"json": func(r *advise.Report) ([]byte, error) {
					b, err := json.MarshalIndent(r, "", "  ")
					return append(b, '\n'), err
				},
			}[output]
			if !ok {
				return fmt.Errorf("--output is %q: allowed are md and json", output)
			}
			rep, err := in.run(cmd, args)
			if err != nil {
				return err
			}
			page, err := write(rep)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(page)
			return err
		},
	}
	f := cmd.Flags()
	in.flags(f)
	f.StringVar(&in.profileFile, "profile", "", "engine profile, as headgate probe saves it; what it found goes before what --config says")
	f.StringArrayVar(&in.propose, "propose", nil, "settings to try, such as slots=2 or slots=4,max_context=65536; may be given several times")
	f.StringArrayVar(&in.docs, "docs", nil, "file, or folder of text files, whose numbers are held against --config; may be given several times")
	f.BoolVar(&in.ask, "ask", false, "ask each engine of --config for its models and sizes, with a few GET requests")
	f.DurationVar(&in.client.Timeout, "client-timeout", 0, "how long clients wait for an answer (default: what the journal shows, if many left at one age)")
	f.DurationVar(&in.block, "block", 0, "length of the blocks that are paired; 20 of them are needed (default a 48th of the journal)")
	f.Float64Var(&in.margin, "margin", 0.5, "percentage points on time that are no difference")
	f.StringVar(&output, "output", "md", "md or json")
	return cmd
}

func proposalKeys() string {
	var all []string
	for _, k := range advise.Keys {
		name := k.Name
		if k.OfClass {
			name += ".CLASS"
		}
		all = append(all, name+" ("+k.Allowed+")")
	}
	return strings.Join(all, "; ")
}

// adviseInput is what the flags say.
type adviseInput struct {
	proveInput
	profileFile   string
	propose, docs []string
	ask           bool
	client        advise.Client
	block         time.Duration
}

func (in *adviseInput) run(cmd *cobra.Command, args []string) (*advise.Report, error) {
	if in.client.Timeout < 0 {
		return nil, fmt.Errorf("--client-timeout is %v: allowed are times above 0", in.client.Timeout)
	}
	if (len(in.docs) > 0 || in.ask) && in.configFile == "" {
		return nil, errors.New("--docs and --ask are held against a configuration: give --config")
	}
	in.client.From = "--client-timeout"
	plan := &advise.Plan{BatchClass: in.plan.Batch.Class, Block: in.block, Command: "headgate " + strings.Join(append([]string{"advise", "JOURNAL"}, in.given(cmd)...), " ")}
	plan.Probe = "headgate probe --url URL --kind KIND --yes"
	if in.configFile != "" {
		plan.Probe = "headgate probe --config " + in.configFile + " --yes"
	}
	for _, text := range in.propose {
		p, err := advise.ParseProposal(text)
		if err != nil {
			return nil, fmt.Errorf("--propose: %w", err)
		}
		plan.Propose = append(plan.Propose, p)
	}
	var err error
	if in.profileFile != "" {
		if plan.Profile, err = probe.Load(in.profileFile); err != nil {
			return nil, err
		}
	}
	if len(args) == 0 {
		switch {
		case in.configFile == "":
			return nil, errors.New("no journal: give one or more files, or --config for an audit alone")
		case len(in.propose) > 0:
			return nil, errors.New("--propose is replayed with a journal: give one or more files")
		}
		cfg, err := loadConfig(cmd, in.configFile)
		if err != nil {
			return nil, err
		}
		found, err := in.audit(cmd.Context(), cfg, plan.Profile, nil)
		if err != nil {
			return nil, err
		}
		return advise.AuditReport(found), nil
	}
	in.source.Files = args
	for _, file := range args {
		if !prove.IsJournal(file) {
			return nil, fmt.Errorf("%s is no journal of headgate serve: allowed are those, since a replay needs the tokens of each prompt and answer, which other logs do not have; headgate occupancy reads them, and headgate advise --config without a journal audits", file)
		}
	}
	p := &in.plan
	said, priority := in.engine, p.Priority
	cfg, pool, err := in.load(cmd, in.profiled(plan.Profile, cmd.Flags().Changed))
	if err != nil {
		return nil, err
	}
	if plan.Foreign = in.foreign(plan.Profile, cfg, pool); plan.Foreign != "" {
		// Not its sizes either: all anew without it.
		plan.Profile, in.engine, p.Priority = nil, said, priority
		if cfg, pool, err = in.load(cmd, cmd.Flags().Changed); err != nil {
			return nil, fmt.Errorf("%s, and is not used: %w", plan.Foreign, err)
		}
	}
	plan.Recording, plan.OnTime, plan.Margin, plan.ModelGiven = p.Recording, p.OnTime, p.Margin, p.ModelGiven
	if plan.Profile != nil && plan.Profile.StepTimes != nil && !p.ModelGiven {
		p.Engine.Model, plan.ModelGiven = *plan.Profile.StepTimes, true
	}
	most := int64(0)
	if cfg != nil {
		for i := range cfg.Pools[pool].Engines {
			if e := &cfg.Pools[pool].Engines[i]; e.Name == cmp.Or(in.source.Engine, p.Recording.Engines[0]) {
				most = e.MaxContext
			}
		}
	}
	plan.Present = in.settings(plan.Profile, int(most))
	if cfg != nil || in.policyFile != "" {
		if plan.Policy, _, err = in.proposed(cmd, cfg, pool); err != nil {
			return nil, err
		}
	} else if plan.Present.Enforced {
		return nil, errors.New("the journal is of a pool that enforced: give the policy that was in force, by --config or --policy")
	}
	if cfg != nil {
		if plan.Audit, err = in.audit(cmd.Context(), cfg, plan.Profile, p.Recording); err != nil {
			return nil, err
		}
	} else if f := advise.Evictions(p.Recording); f != nil {
		plan.Audit = append(plan.Audit, *f)
	}
	return advise.Run(plan)
}

// foreign tells why a profile is of another engine than the one that the journal is of;
// empty: nothing says that it is.
func (in *adviseInput) foreign(p *probe.Profile, cfg *config.Config, pool int) string {
	if p == nil {
		return ""
	}
	r := in.plan.Recording
	if cfg != nil {
		for i := range cfg.Pools[pool].Engines {
			e := &cfg.Pools[pool].Engines[i]
			if slices.Contains(r.Engines, e.Name) && (in.source.Engine == "" || e.Name == in.source.Engine) && engine.Kind(e.Kind) != p.Kind {
				return fmt.Sprintf("the profile is of a %s engine, and %s of the journal is %s", p.Kind, e.Name, e.Kind)
			}
		}
	}
	models := map[string]bool{}
	for i := range r.Requests {
		models[r.Requests[i].Model] = true
	}
	delete(models, "") // it was not recorded
	if p.Model == "" || len(models) == 0 || models[p.Model] {
		return ""
	}
	names := slices.Sorted(maps.Keys(models))
	if len(names) > 8 {
		names = append(names[:8], "others")
	}
	return fmt.Sprintf("the profile is of model %s, and the journal has %s", p.Model, strings.Join(names, ", "))
}

// given are the flags as they were, without the proposals.
func (in *adviseInput) given(cmd *cobra.Command) []string {
	var all []string
	for _, name := range []string{"config", "policy", "pool", "engine-name", "profile", "slots", "kv-blocks", "context", "ttft", "e2e"} {
		if f := cmd.Flags().Lookup(name); f.Changed {
			all = append(all, "--"+name, f.Value.String())
		}
	}
	return all
}

// profiled lets what a probe found stand as if flags said it, where none does.
func (in *adviseInput) profiled(p *probe.Profile, given func(string) bool) func(string) bool {
	if p == nil {
		return given
	}
	found := map[string]bool{}
	set := func(flag string, do func()) {
		if !given(flag) {
			found[flag] = true
			do()
		}
	}
	e := &in.engine.vllm
	if p.Kind == engine.LlamaCpp {
		set("scheduler", func() { in.engine.scheduler = string(simengine.LlamaServer) })
	}
	llama := in.engine.scheduler == string(simengine.LlamaServer)
	if n, ok := p.Number(probe.Slots); ok && n >= 1 {
		set("slots", func() { e.MaxNumSeqs = int(n) })
	}
	if w := p.Word(probe.KVLayout); w != "" && llama {
		set("unified", func() { in.engine.unified = w == probe.Shared })
	}
	if n, ok := p.Number(probe.KVTokens); ok && n >= 1 {
		if llama {
			set("context", func() { in.engine.context = int(n) })
		} else {
			set("kv-blocks", func() {
				e.NumBlocks = int(n)/e.BlockSize + 1
				found["block-size"] = true // or another size would make another number of it
			})
		}
	}
	if n, ok := p.Number(probe.MaxContext); ok && n >= 2 && !llama {
		set("max-model-len", func() { e.MaxModelLen = min(int(n), (e.NumBlocks-1)*e.BlockSize) })
	}
	if n, ok := p.Number(probe.ChunkTokens); ok && n >= 1 {
		set("batched-tokens", func() { e.MaxBatchedTokens = int(n) })
	}
	if w := p.Word(probe.WholePrompt); w != "" {
		e.WholePromptGate = w == probe.Whole
	}
	if w := p.Word(probe.PrioritySign); w == probe.Ignored || w == probe.HigherFirst {
		set("priority", func() { in.plan.Priority = false })
	}
	return func(flag string) bool { return given(flag) || found[flag] }
}

// settings are the present ones, of the engine as it was made. most is the longest sequence
// that its configuration has, 0 where it says none.
func (in *adviseInput) settings(p *probe.Profile, most int) advise.Settings {
	e := &in.plan.Engine
	s := advise.Settings{
		Engine: *e, Slots: e.MaxNumSeqs, KVTokens: (e.NumBlocks - 1) * e.BlockSize, MaxContext: e.MaxModelLen,
		Layout: cmp.Or(p.Word(probe.KVLayout), probe.Shared), Priority: in.plan.Priority, Enforced: !in.plan.Recording.Observed,
	}
	if e.Scheduler == simengine.LlamaServer {
		if p.Word(probe.KVLayout) == "" && !in.engine.unified {
			s.Layout = probe.PerSlot
		}
		// A slot's context follows from the KV and the slots, up to what a session may have
		// for another reason: the model, or what the gateway refuses.
		s.MaxContext = most
		if n, ok := p.Number(probe.MaxContext); ok && most == 0 {
			s.MaxContext = int(n)
		}
		if s.MaxContext >= s.KVTokens*98/100 {
			s.MaxContext = 0 // it is the pool's
		}
	}
	return s
}

// audit holds everything against the configuration.
func (in *adviseInput) audit(ctx context.Context, cfg *config.Config, p *probe.Profile, r *prove.Recording) ([]advise.Finding, error) {
	c := &advise.Config{File: in.configFile, IdleTimeout: cfg.Limits.IdleTimeout, DrainTimeout: cfg.Limits.DrainTimeout}
	var engines []advise.Engine
	for i := range cfg.Pools {
		pool := &cfg.Pools[i]
		if in.source.Pool != "" && pool.Name != in.source.Pool || r != nil && pool.Name != r.Pool {
			continue
		}
		q := advise.Pool{Name: pool.Name}
		for _, a := range pool.Aliases {
			q.Aliases = append(q.Aliases, advise.Alias{Name: a.Name, Model: a.Model})
		}
		envelope := pool.Envelope()
		for k := range pool.Engines {
			e := &pool.Engines[k]
			one := advise.Engine{Name: e.Name, Kind: engine.Kind(e.Kind), Slots: e.Slots, KVTokens: e.KVTokens, MaxLength: e.MaxContext, Priority: e.Priority, PrefixCaching: e.PrefixCaching}
			if in.ask {
				caps, err := askEngine(ctx, e)
				if err != nil {
					return nil, fmt.Errorf("--ask: engine %s: %w", e.Name, err)
				}
				one.Models = caps.Models
				if one.Models == nil {
					one.Models = []engine.Model{} // it was asked
				}
				one.Slots, one.KVTokens, one.MaxLength = cmp.Or(one.Slots, int64(caps.Slots)), cmp.Or(one.KVTokens, int64(caps.KVTokens)), cmp.Or(one.MaxLength, int64(caps.MaxContext))
			}
			q.Engines = append(q.Engines, one)
		}
		capacity, _ := cfg.Resolve(i, envelope) // its problems are validate's to tell
		for k := range pool.Classes {
			class := &pool.Classes[k]
			one := advise.Class{Name: class.Name, Wait: class.Queue.Wait, TTFT: class.Objective.TTFT, E2E: class.Objective.E2E}
			if at := slices.IndexFunc(capacity, func(c config.Capacity) bool { return c.Class == class.Name }); at >= 0 && class.Guarantee == config.GuaranteeInstant {
				one.Floor = capacity[at].Floor.Slots
			}
			q.Classes = append(q.Classes, one)
		}
		engines = append(engines, q.Engines...)
		c.Pools = append(c.Pools, q)
	}
	if len(c.Pools) == 0 {
		return nil, fmt.Errorf("--pool is %q: --config %s has no such pool", in.source.Pool, in.configFile)
	}
	found := advise.Audit(c, in.source.Engine, p, r, in.client)
	stated, err := advise.ScanDocs(in.docs, in.configFile)
	if err != nil {
		return nil, err
	}
	return append(found, advise.Contradicts(stated, engines)...), nil
}

// askEngine reads what an engine says of itself.
func askEngine(ctx context.Context, e *config.Engine) (engine.Capabilities, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ec := adapterConfig(e)
	adapter, err := adapters.New(ec.Kind, ec)
	if err != nil {
		return engine.Capabilities{}, err
	}
	defer adapter.Close()
	return adapter.Capabilities(ctx)
}
