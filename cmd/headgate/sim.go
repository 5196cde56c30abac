package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"headgate/config"
	"headgate/engine"
	"headgate/probe"
	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

func simCommand() *cobra.Command {
	var output, requestsOut, policyFile string
	var in simTraces
	var engine simEngine
	var plan sim.Plan
	fleet := sim.Fleet{Replicas: 1, Spread: sim.RoundRobin, Delay: sim.DefaultDelay}
	cmd := &cobra.Command{
		Use: "sim", Short: "Compare policies on a trace in virtual time", Args: cobra.NoArgs,
		Long: `Run traces through several arms in virtual time: the gateway's own admission,
and a model of the engine. The same input gives the same output.

The traces are drawn (--profile, --seeds), read from a directory (--traces), or
recorded logs, one of a class (--interactive, --batch). Requests whose prompts
the engine's --max-model-len does not take are skipped and counted.

With --replicas the arms with admission have so many gateways in front of the one
engine, which share it under grants. Its other two flags say which gateway a request
comes to, and how late these hear of each other.

The arm headgate runs the default policy, or the one in a --policy file. "headgate
sim policy" prints the default as such a file.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			}
			var err error
			if plan.Engine, err = engine.config(given); err != nil {
				return err
			}
			var wrong []error
			fleet.Validate(func(path string, value any, allowed string) {
				wrong = append(wrong, fmt.Errorf("--%s is %v: allowed are %s", path, value, allowed))
			})
			if len(wrong) > 0 {
				return errors.Join(wrong...)
			}
			if fleet.Replicas > 1 {
				plan.Fleet = &fleet
			} else if given("control-delay") || given("spread") {
				return errors.New("--control-delay and --spread are of a fleet: allowed with --replicas 2 or more")
			}
			if !given("arms") {
				plan.Arms = sim.ArmsFor(plan.Engine)
			}
			if policyFile != "" {
				if !slices.Contains(plan.Arms, sim.Headgate) {
					return fmt.Errorf("--policy is the policy of arm %s: --arms leaves that out", sim.Headgate)
				}
				if plan.Policy, err = loadPolicy(cmd, policyFile, plan.Engine); err != nil {
					return err
				}
			}
			if plan.Traces, err = in.sources(given, cmd.ErrOrStderr()); err != nil {
				return err
			}
			each, done, err := requestWriter(requestsOut)
			if err != nil {
				return err
			}
			rep, err := sim.Execute(&plan, each)
			if err = errors.Join(err, done()); err != nil {
				return err
			}
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rep)
			}
			return rep.WriteTable(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	in.flags(f)
	engine.flags(f)
	f.StringSliceVar(&plan.Arms, "arms", nil, "arms to compare: "+strings.Join(sim.ArmNames(), ", ")+" (default all that the engine can run)")
	f.StringVar(&policyFile, "policy", "", "file with the policy of arm headgate: a pool's classes, stall_share and reclaims_per_second")
	f.IntVar(&fleet.Replicas, "replicas", fleet.Replicas, "gateways in front of the engine")
	f.DurationVar(&fleet.Delay, "control-delay", fleet.Delay, "how long what one part of a fleet says takes to the next, a write and a watch of the store")
	f.StringVar((*string)(&fleet.Spread), "spread", string(fleet.Spread), "which gateway a request comes to: round-robin, session or class")
	f.StringVar(&output, "output", "table", "table or json")
	f.StringVar(&requestsOut, "requests-out", "", "write every request's record to this file, one JSON object a line")
	cmd.AddCommand(&cobra.Command{
		Use: "policy", Short: "Print the default policy as a file for --policy", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), policyYAML)
			return err
		},
	})
	return cmd
}

//go:embed policy.yaml
var policyYAML string

// loadPolicy reads a policy and makes its table for an engine. Every problem of
// the file is printed; the error is that it can't be used.
func loadPolicy(cmd *cobra.Command, path string, e simengine.Config) (*sim.Policy, error) {
	f, problems, err := config.LoadPolicy(path)
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		fmt.Fprintln(cmd.ErrOrStderr(), p)
	}
	if f == nil {
		return nil, fmt.Errorf("--policy %s: %d problems", path, config.Errors(problems))
	}
	p, err := simPolicy(f, e)
	if err != nil {
		return nil, fmt.Errorf("--policy %s: %w", path, err)
	}
	return p, nil
}

// simEngine is the engine that a comparison runs on.
type simEngine struct {
	model     string
	profile   string // a file of a probe's
	scheduler string
	unified   bool
	context   int
	vllm      simengine.Config
}

// Flags of one kind of engine only.
var (
	vllmFlags  = []string{"kv-blocks", "block-size", "max-model-len", "prefix-caching"}
	llamaFlags = []string{"context", "unified"}
)

func (in *simEngine) flags(f *pflag.FlagSet) {
	in.vllm = simengine.DefaultConfig()
	e := &in.vllm
	f.StringVar(&in.model, "engine", "", "the engine's step-time model: a file, or one of "+strings.Join(simengine.Models(), ", ")+" (default m1)")
	f.StringVar(&in.profile, "engine-profile", "", "file of headgate probe's: what it found sets the flags below and the step times, as far as they are not given")
	f.StringVar(&in.scheduler, "scheduler", string(simengine.VLLM), "kind of engine: vllm or llama-server")
	f.Float64Var(&e.Speed, "speed", e.Speed, "factor on every engine step's time: 2 takes twice as long")
	f.IntVar(&e.MaxNumSeqs, "slots", e.MaxNumSeqs, "sequences that the engine runs at once")
	f.IntVar(&e.MaxBatchedTokens, "batched-tokens", e.MaxBatchedTokens, "most tokens of one engine step")
	f.IntVar(&e.NumBlocks, "kv-blocks", e.NumBlocks, "vllm: KV blocks, of which one is never used")
	f.IntVar(&e.BlockSize, "block-size", e.BlockSize, "vllm: tokens in a KV block")
	f.IntVar(&e.MaxModelLen, "max-model-len", e.MaxModelLen, "vllm: longest sequence, prompt and output, in tokens")
	f.BoolVar(&e.PrefixCaching, "prefix-caching", e.PrefixCaching, "vllm: the blocks of ended sequences are kept for reuse")
	f.IntVar(&in.context, "context", 8192, "llama-server: KV tokens of all slots together")
	f.BoolVar(&in.unified, "unified", true, "llama-server: any slot may use all of the context; false gives each its equal part")
}

// fill takes over what a probe found, where no flag says otherwise.
func (in *simEngine) fill(p *probe.Profile, given func(flag string) bool) {
	number := func(flag string, to *int, s probe.Subject) {
		if n, ok := p.Number(s); ok && !given(flag) {
			*to = int(n)
		}
	}
	e, layout := &in.vllm, p.Word(probe.KVLayout)
	number("slots", &e.MaxNumSeqs, probe.Slots)
	number("batched-tokens", &e.MaxBatchedTokens, probe.ChunkTokens)
	if in.model == "" && p.StepTimes != nil {
		e.Model = *p.StepTimes
	}
	if !given("scheduler") && (p.Kind == engine.LlamaCpp || layout == probe.PerSlot) {
		in.scheduler = string(simengine.LlamaServer)
	}
	if in.scheduler == string(simengine.LlamaServer) {
		number("context", &in.context, probe.KVTokens)
		if layout != "" && !given("unified") {
			in.unified = layout == probe.Shared
		}
		return
	}
	if n, ok := p.Number(probe.KVTokens); ok && !given("kv-blocks") {
		e.NumBlocks = 1 + int(n)/max(1, e.BlockSize)
	}
	number("max-model-len", &e.MaxModelLen, probe.MaxContext)
	if word := p.Word(probe.PrefixCache); word != "" && !given("prefix-caching") {
		e.PrefixCaching = word == probe.Kept
	}
}

// config checks the flags and returns the engine.
func (in *simEngine) config(given func(flag string) bool) (e simengine.Config, err error) {
	if in.profile != "" {
		p, err := probe.Load(in.profile)
		if err != nil {
			return e, fmt.Errorf("--engine-profile: %w", err)
		}
		in.fill(p, given)
	}
	e = in.vllm
	others, names := llamaFlags, []string{"num_gpu_blocks", "--kv-blocks", "max_model_len", "--max-model-len"}
	switch simengine.Scheduler(in.scheduler) {
	case simengine.VLLM:
	case simengine.LlamaServer:
		e = simengine.LlamaServerConfig(e.MaxNumSeqs, in.context, in.unified)
		e.Model, e.Speed, e.MaxBatchedTokens = in.vllm.Model, in.vllm.Speed, in.vllm.MaxBatchedTokens
		others, names = vllmFlags, []string{"num_gpu_blocks", "--context + 1", "max_model_len", "a slot's part of --context"}
	default:
		return e, fmt.Errorf("--scheduler is %q: allowed are %s and %s", in.scheduler, simengine.VLLM, simengine.LlamaServer)
	}
	for _, flag := range others {
		if given(flag) {
			return e, fmt.Errorf("--%s: not with --scheduler %s", flag, in.scheduler)
		}
	}
	if in.model != "" {
		if e.Model, err = simengine.LoadModel(in.model); err != nil {
			return e, err
		}
	}
	// What is wrong is said in the words of the flags.
	words := strings.NewReplacer(append(names, "max_num_batched_tokens", "--batched-tokens", "max_num_seqs", "--slots", "block_size", "--block-size", "speed", "--speed")...)
	var all []error
	e.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("%s is %v: allowed: %s", words.Replace(path), value, words.Replace(allowed)))
	})
	return e, errors.Join(all...)
}

// requestWriter returns what writes requests to a file, and what ends it; a path
// of "" writes none.
func requestWriter(path string) (each func(string, *sim.Source, *trace.Trace, *sim.Record) error, done func() error, err error) {
	if path == "" {
		return nil, func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, fmt.Errorf("--requests-out: %w", err)
	}
	buf := bufio.NewWriter(f)
	enc := json.NewEncoder(buf)
	each = func(arm string, s *sim.Source, t *trace.Trace, r *sim.Record) error {
		return sim.WriteRequest(enc, arm, s, t, r)
	}
	return each, func() error { return errors.Join(buf.Flush(), f.Close()) }, nil
}

func parseSeeds(s string) ([]uint32, error) {
	seeds, ok := trace.ParseSeeds(s)
	if !ok {
		return nil, fmt.Errorf("--seeds is %q: allowed are numbers and ranges from 0 to 4294967295, such as 1-30 or 1,4,7-9, %d in all", s, trace.MaxSeeds)
	}
	return seeds, nil
}
