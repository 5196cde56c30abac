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
)

func simCommand() *cobra.Command {
	var seeds, output, requestsOut, engineFile string
	plan := sim.Plan{Engine: simengine.DefaultConfig()}
	cmd := &cobra.Command{
		Use: "sim", Short: "Compare policies on a trace in virtual time", Args: cobra.NoArgs,
		Long: `Run the traces of a profile through several arms in virtual time: the gateway's own
admission, and a model of the engine. The same input gives the same output.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if plan.Seeds, err = parseSeeds(seeds); err != nil {
				return err
			}
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			}
			if engineFile != "" {
				if plan.Engine.Model, err = simengine.LoadModel(engineFile); err != nil {
					return err
				}
			}
			var each func(string, uint32, *sim.Record) error
			done := func() error { return nil }
			if requestsOut != "" {
				f, err := os.Create(requestsOut)
				if err != nil {
					return fmt.Errorf("--requests-out: %w", err)
				}
				buf := bufio.NewWriter(f)
				enc := json.NewEncoder(buf)
				each = func(arm string, seed uint32, r *sim.Record) error {
					return sim.WriteRequest(enc, plan.Profile, arm, seed, r)
				}
				done = func() error { return errors.Join(buf.Flush(), f.Close()) }
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
	f.StringVar(&plan.Profile, "profile", "metal-long-context-v1", "workload to draw traces from")
	f.StringVar(&seeds, "seeds", "1-5", "seeds, such as 1-30 or 1,4,7-9")
	f.StringSliceVar(&plan.Arms, "arms", sim.ArmNames(), "arms to compare")
	f.Float64Var(&plan.Engine.Speed, "speed", 1, "factor on every engine step's time: 2 takes twice as long")
	f.StringVar(&engineFile, "engine", "", "file with the engine's step-time model (default: the M1's, built in)")
	f.StringVar(&output, "output", "table", "table or json")
	f.StringVar(&requestsOut, "requests-out", "", "write every request's record to this file, one JSON object a line")
	return cmd
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
