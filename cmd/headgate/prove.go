package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"headgate/admission"
	"headgate/config"
	"headgate/prove"
	"headgate/sim"
	"headgate/simengine"
)

func proveCommand() *cobra.Command {
	in := proveInput{plan: prove.Plan{GPUs: 1, Block: 30 * time.Minute, Margin: 0.005, Batch: prove.Batch{Prompt: 1000, Output: 200}}}
	var output string
	cmd := &cobra.Command{
		Use: "prove JOURNAL...", Short: "Tell from a journal how much could be lent, and what it would cost", Args: cobra.MinimumNArgs(1),
		Long: `Replay a journal's requests in virtual time under the present way of serving and
under a proposed policy, with and without batch that always has work, and print one
page: how many GPU-hours could be lent, what that costs on time, with intervals,
whether the replay is like the day, and what was assumed. Observe mode is enough.

  headgate prove journal.jsonl --config serve.yaml > page.md
  headgate prove journal*.jsonl.gz --slots 16 --kv-blocks 12000 --output html > page.html

The files may be rotated ones, in any order, compressed with gzip or not. The policy
is that of the pool in --config, of a --policy file, or the default one.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := map[string]func(*prove.Report) ([]byte, error){
				"md":   func(r *prove.Report) ([]byte, error) { return r.Markdown(), nil },
				"html": func(r *prove.Report) ([]byte, error) { return r.HTML(), nil },
				"json": func(r *prove.Report) ([]byte, error) {
					b, err := json.MarshalIndent(r, "", "  ")
					return append(b, '\n'), err
				},
			}[output]
			if !ok {
				return fmt.Errorf("--output is %q: allowed are md, html and json", output)
			}
			in.source.Files = args
			rep, err := in.run(cmd)
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
	f, p := cmd.Flags(), &in.plan
	in.flags(f)
	f.StringVar(&in.presentFile, "present", "", "file with the policy that was in force, of a pool that enforced (default: the proposed one)")
	f.Float64Var(&p.GPUs, "gpus", p.GPUs, "GPUs of the engine")
	f.IntVar(&p.Batch.Prompt, "batch-prompt", p.Batch.Prompt, "tokens of a batch request's prompt, where the journal has fewer than 20 of its class")
	f.IntVar(&p.Batch.Output, "batch-output", p.Batch.Output, "tokens of its output, likewise")
	f.IntVar(&p.Batch.Depth, "batch-depth", 0, "batch requests under way at any moment (default twice the slots)")
	f.DurationVar(&p.Block, "block", p.Block, "length of the blocks that intervals are made of; 20 of them are needed")
	f.Float64Var(&in.margin, "margin", 0.5, "percentage points on time that may be lost without that being harm")
	f.StringVar(&output, "output", "md", "md, html or json")
	return cmd
}

// flags that say what was recorded and what served it.
func (in *proveInput) flags(f *pflag.FlagSet) {
	in.engine.flags(f)
	f.Lookup("engine").Usage = "the engine's step-time model: a file, or a name as of sim (default: fitted to the journal)"
	for _, flag := range []string{"slots", "kv-blocks", "max-model-len", "context"} {
		f.Lookup(flag).DefValue = "0" // sim's engine is nobody's, so there is no default
	}
	f.StringVar(&in.configFile, "config", "", "configuration whose pool has the proposed policy, and says what its engine holds")
	f.StringVar(&in.policyFile, "policy", "", "file with the proposed policy, as of sim --policy (default: sim policy prints it)")
	f.StringVar(&in.source.Pool, "pool", "", "the pool, where the journal has several")
	f.StringVar(&in.source.Engine, "engine-name", "", "the engine, where the pool has several: only what it served is replayed")
	f.StringVar(&in.from, "from", "", "RFC 3339 time from which requests are taken (default the journal's first)")
	f.StringVar(&in.to, "to", "", "RFC 3339 time up to which requests are taken (default the journal's last)")
	f.BoolVar(&in.plan.Priority, "priority", false, "the engine runs what waits by the priority of its class; with --config what the engine's priority says")
	f.StringVar(&in.plan.Batch.Class, "batch-class", "", "class of the batch that capacity is lent to (default batch, or the policy's last)")
	f.DurationVar(&in.plan.OnTime.First, "ttft", 0, "longest time to the first token that is on time; with this or --e2e the journal's own limits do not count")
	f.DurationVar(&in.plan.OnTime.Whole, "e2e", 0, "longest time to the whole answer that is on time")
}

// proveInput is what the flags say.
type proveInput struct {
	plan                                prove.Plan
	source                              prove.Source
	engine                              simEngine
	configFile, policyFile, presentFile string
	from, to                            string
	margin                              float64
}

func (in *proveInput) run(cmd *cobra.Command) (*prove.Report, error) {
	p := &in.plan
	switch {
	case !(p.GPUs > 0):
		return nil, fmt.Errorf("--gpus is %v: allowed is a number above 0", p.GPUs)
	case p.Batch.Prompt < 1 || p.Batch.Output < 1:
		return nil, fmt.Errorf("--batch-prompt is %d and --batch-output %d: allowed are 1 or more", p.Batch.Prompt, p.Batch.Output)
	case p.Batch.Depth < 0:
		return nil, fmt.Errorf("--batch-depth is %d: allowed are 1 or more, or 0 for twice the slots", p.Batch.Depth)
	}
	cfg, pool, err := in.load(cmd, cmd.Flags().Changed)
	if err != nil {
		return nil, err
	}
	if p.Proposed, p.ProposedWords, err = in.proposed(cmd, cfg, pool); err != nil {
		return nil, err
	}
	p.PresentWords = "every request goes to the engine as it comes, in the order of arrival, as in the journal's time"
	switch {
	case in.presentFile != "":
		if p.Recording.Observed {
			return nil, fmt.Errorf("--present %s: the journal is of a pool that observed, where no policy was in force", in.presentFile)
		}
		p.PresentWords = "the policy " + in.presentFile
		if p.Present, err = loadPolicy(cmd, in.presentFile, p.Engine); err != nil {
			return nil, err
		}
	case !p.Recording.Observed:
		p.Present, p.PresentWords = p.Proposed, "the proposed policy, which is taken to be the one that was in force"
	}
	for _, policy := range []*sim.Policy{p.Present, p.Proposed} {
		if policy != nil {
			policy.Table.Engines[0].Ordered = p.Priority
		}
	}
	return prove.Run(p)
}

// load reads the journal and the configuration, and makes the engine of what they and
// the flags say. The configuration, of which pool is the one of the journal, is nil where
// there is none.
func (in *proveInput) load(cmd *cobra.Command, given func(string) bool) (cfg *config.Config, pool int, err error) {
	p := &in.plan
	switch {
	case in.configFile != "" && in.policyFile != "":
		return nil, 0, errors.New("--config and --policy both have a policy: allowed is one of them")
	case !(in.margin >= 0 && in.margin < 100):
		return nil, 0, fmt.Errorf("--margin is %v: allowed are percentage points from 0 to below 100", in.margin)
	case p.OnTime.First < 0 || p.OnTime.Whole < 0:
		return nil, 0, fmt.Errorf("--ttft is %v and --e2e %v: allowed are times above 0", p.OnTime.First, p.OnTime.Whole)
	}
	for _, t := range []struct {
		flag, value string
		to          *time.Time
	}{{"from", in.from, &in.source.From}, {"to", in.to, &in.source.To}} {
		if t.value == "" {
			continue
		}
		if *t.to, err = time.Parse(time.RFC3339, t.value); err != nil {
			return nil, 0, fmt.Errorf("--%s is %q: allowed is an RFC 3339 time, such as 2026-11-30T06:40:00Z", t.flag, t.value)
		}
	}
	if given("speed") && !given("engine") {
		return nil, 0, errors.New("--speed is a factor on a model's step times: allowed with --engine")
	}
	p.Margin = in.margin / 100
	if p.Recording, err = prove.Record(in.source); err != nil {
		return nil, 0, err
	}
	if in.configFile != "" {
		if cfg, err = loadConfig(cmd, in.configFile); err != nil {
			return nil, 0, err
		}
		if pool = slices.IndexFunc(cfg.Pools, func(c config.Pool) bool { return c.Name == p.Recording.Pool }); pool < 0 {
			return nil, 0, fmt.Errorf("--config %s: no pool %s, of which the journal is", in.configFile, p.Recording.Pool)
		}
		if err := in.holds(&cfg.Pools[pool], given); err != nil {
			return nil, 0, err
		}
	} else if !given("slots") || !given("kv-blocks") && !given("context") {
		return nil, 0, errors.New("what the engine holds is not in a journal: give --slots, and --kv-blocks or for llama-server --context, or a --config")
	}
	if !given("max-model-len") && in.configFile == "" {
		in.engine.vllm.MaxModelLen = (in.engine.vllm.NumBlocks - 1) * in.engine.vllm.BlockSize
	}
	if p.Engine, err = in.engine.config(given); err != nil {
		return nil, 0, err
	}
	p.ModelGiven = in.engine.model != ""
	if p.Engine.Scheduler != simengine.VLLM && p.Priority {
		return nil, 0, fmt.Errorf("--priority: %s has none", p.Engine.Scheduler)
	}
	return cfg, pool, nil
}

// proposed is the policy to be tried, and where it is from.
func (in *proveInput) proposed(cmd *cobra.Command, cfg *config.Config, pool int) (*sim.Policy, string, error) {
	e := in.plan.Engine
	switch {
	case cfg != nil:
		c := &cfg.Pools[pool]
		t, err := table(&c.Policy, func(e config.Envelope) ([]config.Capacity, []config.Problem) { return cfg.Resolve(pool, e) }, []admission.EngineSpec{sim.EngineSpec(e)})
		if err != nil {
			return nil, "", fmt.Errorf("--config %s: %w", in.configFile, err)
		}
		p := &sim.Policy{Table: t, Priority: map[string]int{}}
		for i := range c.Classes {
			p.Priority[c.Classes[i].Name] = int(c.Classes[i].Priority)
		}
		return p, fmt.Sprintf("the policy of pool %s in %s", c.Name, in.configFile), nil
	case in.policyFile != "":
		p, err := loadPolicy(cmd, in.policyFile, e)
		return p, "the policy " + in.policyFile, err
	}
	a, err := sim.NewArm(sim.Headgate, e)
	if err != nil {
		return nil, "", err
	}
	return &sim.Policy{Table: a.Table, Priority: a.Priority}, "the default policy", nil
}

// holds takes over what a configuration says of the engine, where no flag does.
func (in *proveInput) holds(pool *config.Pool, given func(string) bool) error {
	name := in.plan.Recording.Engines[0]
	if in.source.Engine != "" {
		name = in.source.Engine
	}
	at := slices.IndexFunc(pool.Engines, func(e config.Engine) bool { return e.Name == name })
	if at < 0 {
		return fmt.Errorf("--config %s: pool %s has no engine %s, which served the journal's requests", in.configFile, pool.Name, name)
	}
	c, e := &pool.Engines[at], &in.engine.vllm
	if !given("scheduler") && c.Kind == config.KindLlamaCpp {
		in.engine.scheduler = string(simengine.LlamaServer)
	}
	if c.Priority != nil && !given("priority") {
		in.plan.Priority = *c.Priority
	}
	switch {
	case !given("slots") && c.Slots == 0:
		return fmt.Errorf("--config %s: engine %s does not say its slots: set slots there, or give --slots", in.configFile, name)
	case !given("slots"):
		e.MaxNumSeqs = int(c.Slots)
	}
	if in.engine.scheduler == string(simengine.LlamaServer) {
		switch {
		case !given("context") && c.KVTokens == 0:
			return fmt.Errorf("--config %s: engine %s does not say its kv_tokens: set them there, or give --context", in.configFile, name)
		case !given("context"):
			in.engine.context = int(c.KVTokens)
		}
		return nil
	}
	if c.BlockSize > 0 && !given("block-size") {
		e.BlockSize = int(c.BlockSize)
	}
	switch {
	case !given("kv-blocks") && c.KVTokens == 0:
		return fmt.Errorf("--config %s: engine %s does not say its kv_tokens: set them there, or give --kv-blocks", in.configFile, name)
	case !given("kv-blocks"):
		e.NumBlocks = int(c.KVTokens)/e.BlockSize + 1
	}
	if !given("max-model-len") {
		e.MaxModelLen = (e.NumBlocks - 1) * e.BlockSize
		if c.MaxContext > 0 {
			e.MaxModelLen = min(e.MaxModelLen, int(c.MaxContext))
		}
	}
	if c.PrefixCaching != nil && !given("prefix-caching") {
		e.PrefixCaching = *c.PrefixCaching
	}
	return nil
}
