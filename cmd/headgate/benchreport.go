package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	benchreport "headgate/bench/report"
	"headgate/telemetry"
)

func benchReportCommand() *cobra.Command {
	var format, aa, export, out string
	var run int
	cmd := &cobra.Command{
		Use: "report DIR", Short: "Say what came of a plan's runs: verdict, effects, pictures", Args: cobra.ExactArgs(1),
		Long: `Make DIR's report from what is in DIR: report.json, report.md and report.html. An
older report is replaced, since it is no evidence and can be made again. The exit
status is 0 whatever the verdict is.

With --export the runs are written for another tool instead, a JSON object a line
for each run: vllm is vLLM's benchmark JSON, llm-d its Benchmark Report 0.2. What was
not measured is absent.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := benchreport.Read(args[0])
			if err != nil {
				return err
			}
			if export != "" {
				return exportRuns(e, export, run, out)
			}
			if out != "" || run != 0 {
				return errors.New("--out and --run are of --export: allowed is --export vllm or llm-d beside them")
			}
			q := benchreport.Registered(e)
			if q.AA, err = readAA(aa); err != nil {
				return err
			}
			a, err := benchreport.Analyse(q)
			if err != nil {
				return err
			}
			written, err := a.Write(args[0], format)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), a.Report.Verdict)
			for _, line := range append(a.Report.Reasons, a.Report.Notes...) {
				fmt.Fprintln(cmd.OutOrStdout(), "  "+line)
			}
			for _, path := range written {
				fmt.Fprintln(cmd.OutOrStdout(), path)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&format, "format", "all", "json, md, html or all")
	f.StringVar(&aa, "aa", "", "directory with an A/A run on the same rig, below whose noise no effect is claimed")
	f.StringVar(&export, "export", "", "vllm or llm-d: write the runs for that tool, and no report")
	f.StringVar(&out, "out", "", "new file for --export")
	f.IntVar(&run, "run", 0, "number of the one run to export, 0 for all")
	return cmd
}

// readAA reads an A/A directory; nil for none.
func readAA(dir string) (*benchreport.Evidence, error) {
	if dir == "" {
		return nil, nil
	}
	e, err := benchreport.Read(dir)
	if err != nil {
		return nil, fmt.Errorf("--aa: %w", err)
	}
	return e, nil
}

func exportRuns(e *benchreport.Evidence, format string, run int, out string) error {
	if out == "" {
		return errors.New("--out is empty: allowed is a new file for the export")
	}
	b, err := e.Export(format, run)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("--out: %s is there already: allowed is a new file", out)
	}
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func benchCompareCommand() *cobra.Command {
	var baseline, treatment, aa, format string
	cmd := &cobra.Command{
		Use: "compare DIR [DIR]", Short: "Compare any two arms of a directory, or of two", Args: cobra.RangeArgs(1, 2),
		Long: `Compare any two arms by the criteria of the first directory's plan, and print the
report. It says that the comparison was not registered, if it was not. With two
directories the baseline's runs are in the first, the treatment's in the second, and a
pair is two runs of the same trace by its hash.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			first, err := benchreport.Read(args[0])
			if err != nil {
				return err
			}
			q := benchreport.Registered(first)
			if len(args) == 2 {
				same, err := sameDirectory(args[0], args[1])
				if err != nil {
					return err
				}
				if !same {
					if q.Treatment, err = benchreport.Read(args[1]); err != nil {
						return err
					}
				}
			}
			if baseline != "" {
				q.BaselineArm = baseline
			}
			if treatment != "" {
				q.TreatmentArm = treatment
			}
			if q.AA, err = readAA(aa); err != nil {
				return err
			}
			a, err := benchreport.Analyse(q)
			if err != nil {
				return err
			}
			var b []byte
			switch format {
			case "md":
				b = a.Report.Markdown()
			case "html":
				b = a.HTML()
			case "json":
				if b, err = a.Report.JSON(); err != nil {
					return err
				}
			default:
				return fmt.Errorf("--format is %q: allowed is md, json or html", format)
			}
			_, err = cmd.OutOrStdout().Write(b)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&baseline, "baseline", "", "arm; the plan's if empty")
	f.StringVar(&treatment, "treatment", "", "arm; the plan's if empty")
	f.StringVar(&aa, "aa", "", "directory with an A/A run on the same rig")
	f.StringVar(&format, "format", "md", "md, json or html")
	return cmd
}

func sameDirectory(a, b string) (bool, error) {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	if err := errors.Join(errA, errB); err != nil {
		return false, err
	}
	return os.SameFile(x, y), nil
}

func benchAACommand() *cobra.Command {
	return &cobra.Command{
		Use: "aa DIR", Short: "Print the rig's own noise, from one arm against itself", Args: cobra.ExactArgs(1),
		Long: `Print what the rig sees where there is nothing to be seen: two arms of DIR's plan that
are the same but for their names. A metric's noise needs ten pairs. The exit status is
1 if the rig is rejected for a metric of the plan's criteria, since no comparison of
that on this rig is to be believed.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := benchreport.Read(args[0])
			if err != nil {
				return err
			}
			q := benchreport.Registered(e)
			q.AA = e
			a, err := benchreport.Analyse(q)
			if err != nil {
				return err
			}
			if _, err := cmd.OutOrStdout().Write(a.Report.FloorMarkdown()); err != nil {
				return err
			}
			if bad := a.Report.RejectedRig(); len(bad) > 0 {
				return &status{1, fmt.Errorf("the rig is rejected: %v", bad)}
			}
			return nil
		},
	}
}

func benchPublishCommand() *cobra.Command {
	var verify bool
	cmd := &cobra.Command{
		Use: "publish DIR DEST", Short: "Copy evidence and its report to a new place, with the hash of every file",
		Long: `Copy DIR, with its report, to DEST, which must not be there yet: what is published is
not replaced. DEST/provenance.json has the SHA-256 of every file. A report that is not
of the runs in DIR is refused, and so is evidence that was changed.

bench publish --verify DEST tells whether DEST is still what was published.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if verify {
				return cobra.ExactArgs(1)(cmd, args)
			}
			return cobra.ExactArgs(2)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at := args[len(args)-1]
			var p *benchreport.Provenance
			var err error
			if verify {
				p, err = benchreport.Verify(at)
			} else {
				p, err = benchreport.Publish(args[0], filepath.Clean(at), telemetry.ReadBuild().String(), time.Now())
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, plan %s, verdict %s\n", at, len(p.Files), p.PlanSHA256, p.Verdict)
			return err
		},
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "check a published directory against its hashes")
	return cmd
}
