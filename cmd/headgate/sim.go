package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

func simCommand() *cobra.Command {
	var output, requestsOut, engineFile string
	var in simTraces
	plan := sim.Plan{Engine: simengine.DefaultConfig()}
	cmd := &cobra.Command{
		Use: "sim", Short: "Compare policies on a trace in virtual time", Args: cobra.NoArgs,
		Long: `Run traces through several arms in virtual time: the gateway's own admission,
and a model of the engine. The same input gives the same output.

The traces are drawn (--profile, --seeds), read from a directory (--traces), or
recorded logs, one of a class (--interactive, --batch). Requests whose prompts
the engine's --max-model-len does not take are skipped and counted.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			}
			var err error
			if engineFile != "" {
				if plan.Engine.Model, err = simengine.LoadModel(engineFile); err != nil {
					return err
				}
			}
			if err := checkEngine(&plan.Engine); err != nil {
				return err
			}
			if plan.Traces, err = in.sources(cmd.Flags().Changed, cmd.ErrOrStderr()); err != nil {
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
	f, e := cmd.Flags(), &plan.Engine
	in.flags(f)
	f.StringSliceVar(&plan.Arms, "arms", sim.ArmNames(), "arms to compare")
	f.StringVar(&engineFile, "engine", "", "the engine's step-time model: a file, or one of "+strings.Join(simengine.Models(), ", ")+" (default m1)")
	f.Float64Var(&e.Speed, "speed", e.Speed, "factor on every engine step's time: 2 takes twice as long")
	f.IntVar(&e.MaxNumSeqs, "slots", e.MaxNumSeqs, "sequences that the engine runs at once")
	f.IntVar(&e.NumBlocks, "kv-blocks", e.NumBlocks, "KV blocks of the engine, of which one is never used")
	f.IntVar(&e.BlockSize, "block-size", e.BlockSize, "tokens in a KV block")
	f.IntVar(&e.MaxModelLen, "max-model-len", e.MaxModelLen, "longest sequence, prompt and output, in tokens")
	f.IntVar(&e.MaxBatchedTokens, "batched-tokens", e.MaxBatchedTokens, "most tokens of one engine step")
	f.BoolVar(&e.PrefixCaching, "prefix-caching", e.PrefixCaching, "the engine keeps the blocks of ended sequences for reuse")
	f.StringVar(&output, "output", "table", "table or json")
	f.StringVar(&requestsOut, "requests-out", "", "write every request's record to this file, one JSON object a line")
	return cmd
}

// checkEngine reports what is wrong with an engine in the words of the flags.
func checkEngine(e *simengine.Config) error {
	flags := strings.NewReplacer("max_num_batched_tokens", "--batched-tokens", "max_num_seqs", "--slots", "num_gpu_blocks", "--kv-blocks",
		"block_size", "--block-size", "max_model_len", "--max-model-len", "speed", "--speed")
	var all []error
	e.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("%s is %v: allowed: %s", flags.Replace(path), value, flags.Replace(allowed)))
	})
	return errors.Join(all...)
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

// maxSeeds bounds one comparison.
const maxSeeds = 100_000

func parseSeeds(s string) ([]uint32, error) {
	bad := fmt.Errorf("--seeds is %q: allowed are numbers and ranges from 0 to 4294967295, such as 1-30 or 1,4,7-9, %d in all", s, maxSeeds)
	var seeds []uint32
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(part, "-")
		a, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			return nil, bad
		}
		b := a
		if ranged {
			if b, err = strconv.ParseUint(to, 10, 32); err != nil || b < a {
				return nil, bad
			}
		}
		if uint64(len(seeds))+b-a >= maxSeeds {
			return nil, bad
		}
		for n := a; n <= b; n++ {
			seeds = append(seeds, uint32(n))
		}
	}
	return seeds, nil
}
