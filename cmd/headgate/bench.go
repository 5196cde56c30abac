package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"headgate/prove"
	"headgate/trace"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Compare policies by a plan, draw workloads, and measure in real time", Args: cobra.NoArgs,
	}
	cmd.AddCommand(benchRunCommand(), benchReportCommand(), benchCompareCommand(), benchAACommand(), benchPublishCommand(), benchTraceCommand(), benchAvailabilityCommand(), benchBurstCommand(), benchNoHarmCommand(), benchStormCommand())
	return cmd
}

func benchTraceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trace", Short: "Draw a profile's trace for a seed, or take in a recorded log", Args: cobra.NoArgs,
		Long: "Draw a profile's trace for a seed, or take in a recorded log. The profiles:\n\n" + profileList(),
	}
	cmd.AddCommand(traceGenerateCommand(), traceImportCommand(), traceHashCommand())
	return cmd
}

func traceGenerateCommand() *cobra.Command {
	var d drawnTrace
	cmd := &cobra.Command{
		Use: "generate", Aliases: []string{"write"}, Short: "Write a profile's trace to standard output, in the published format", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := d.draw()
			if err != nil {
				return err
			}
			_, err = t.WriteTo(cmd.OutOrStdout())
			return err
		},
	}
	d.flags(cmd)
	return cmd
}

func traceImportCommand() *cobra.Command {
	var class string
	var journal prove.Source
	var limit int
	var duration time.Duration
	cmd := &cobra.Command{
		Use: "import FILE...", Short: "Write a recorded log or a journal to standard output, as a trace in the published format", Args: cobra.MinimumNArgs(1),
		Long: `Write a recorded log to standard output, as a trace in the published format. A
journal of Headgate's may be in several files, rotated or compressed with gzip; it has
classes of its own, and the lengths that answers really had.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case class != trace.Interactive && class != trace.Batch:
				return fmt.Errorf("--class is %q: allowed are %s and %s", class, trace.Interactive, trace.Batch)
			case limit < 0 || duration < 0:
				return fmt.Errorf("--limit is %d and --duration %v: allowed are 0, which is all, and more", limit, duration)
			}
			var t *trace.Trace
			var err error
			if prove.IsJournal(args[0]) {
				journal.Files = args
				t, err = journalTrace(journal)
			} else if len(args) > 1 || journal.Pool != "" || journal.Engine != "" {
				return fmt.Errorf("%s is no journal: allowed is one file, without --pool and --engine-name", args[0])
			} else {
				t, err = readTrace(args[0], class)
			}
			if err != nil {
				return err
			}
			if t = t.Cut(limit, duration); len(t.Entries) == 0 {
				return fmt.Errorf("%s: no request in the first %v", args[0], duration)
			}
			_, err = t.WriteTo(cmd.OutOrStdout())
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&class, "class", trace.Interactive, "class of its requests: interactive or batch; a trace of the published format has its own")
	f.StringVar(&journal.Pool, "pool", "", "of a journal: the pool, where it has several")
	f.StringVar(&journal.Engine, "engine-name", "", "of a journal: the engine, where the pool has several")
	f.IntVar(&limit, "limit", 0, "most requests, the first ones; 0 is all")
	f.DurationVar(&duration, "duration", 0, "how much of its time, such as 10m; 0 is all")
	return cmd
}

func traceHashCommand() *cobra.Command {
	var d drawnTrace
	cmd := &cobra.Command{
		Use: "hash [FILE]", Short: "Print a trace's canonical hash and nothing else", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := d.draw()
			if len(args) == 1 {
				if cmd.Flags().Changed("profile") || cmd.Flags().Changed("seed") {
					return errors.New("--profile and --seed draw a trace: allowed without a file")
				}
				t, err = readTrace(args[0], trace.Interactive)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), t.Hash())
			return err
		},
	}
	d.flags(cmd)
	return cmd
}

// drawnTrace is a trace by flags.
type drawnTrace struct {
	profile string
	seed    uint32
}

func (d *drawnTrace) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.profile, "profile", "metal-long-context-v1", "workload to draw: "+strings.Join(trace.Names(), ", "))
	cmd.Flags().Uint32Var(&d.seed, "seed", 1, "what it is drawn from, a whole number below 2^32")
}

func (d *drawnTrace) draw() (*trace.Trace, error) { return trace.Generate(d.profile, d.seed) }

func profileList() string {
	var b strings.Builder
	for _, p := range trace.Profiles() {
		fmt.Fprintf(&b, "  %-24s %s\n", p.Name, p.About)
	}
	return b.String()
}
