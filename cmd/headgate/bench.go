package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"headgate/trace"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Compare policies by a plan, draw workloads, and measure in real time", Args: cobra.NoArgs,
	}
	cmd.AddCommand(benchRunCommand(), benchTraceCommand(), benchAvailabilityCommand(), benchBurstCommand(), benchNoHarmCommand(), benchStormCommand())
	return cmd
}

func benchTraceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trace", Short: "Draw a profile's trace for a seed", Args: cobra.NoArgs,
		Long: "Draw a profile's trace for a seed. The profiles:\n\n" + profileList(),
	}
	cmd.AddCommand(
		traceCommand("hash", "Print the trace's canonical hash and nothing else", func(cmd *cobra.Command, t *trace.Trace) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), t.Hash())
			return err
		}),
		traceCommand("write", "Write the trace to standard output, in the published format", func(cmd *cobra.Command, t *trace.Trace) error {
			_, err := t.WriteTo(cmd.OutOrStdout())
			return err
		}),
	)
	return cmd
}

func traceCommand(use, short string, show func(*cobra.Command, *trace.Trace) error) *cobra.Command {
	var profile string
	var seed uint32
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := trace.Generate(profile, seed)
			if err != nil {
				return err
			}
			return show(cmd, t)
		},
	}
	cmd.Flags().StringVar(&profile, "profile", "metal-long-context-v1", "workload to draw: "+strings.Join(trace.Names(), ", "))
	cmd.Flags().Uint32Var(&seed, "seed", 1, "what it is drawn from, a whole number below 2^32")
	return cmd
}

func profileList() string {
	var b strings.Builder
	for _, p := range trace.Profiles() {
		fmt.Fprintf(&b, "  %-24s %s\n", p.Name, p.About)
	}
	return b.String()
}
