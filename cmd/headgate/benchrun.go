package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"headgate/bench"
	"headgate/bench/live"
	"headgate/sim"
	"headgate/simengine"
	"headgate/telemetry"
)

func benchRunCommand() *cobra.Command {
	var out, runner, requestsOut string
	cmd := &cobra.Command{
		Use: "run PLAN --out DIR", Short: "Run a plan: arms on the same traces, in rotated order, checked and kept", Args: cobra.ExactArgs(1),
		Long: `Run a plan: every trace through every arm, one after another in rotated order, each
run checked by gates and kept in DIR. Nothing in DIR is ever replaced. A DIR that
has runs of this plan already goes on with what is missing, so a comparison can be
interrupted; one of another plan is refused.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return errors.New("--out is empty: allowed is a directory for the evidence")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			x, err := newExecutor(cmd, args[0], out, runner)
			if err != nil {
				return err
			}
			err = x.Execute(ctx)
			if err != nil && ctx.Err() != nil {
				err = fmt.Errorf("interrupted: the same command goes on with what is missing in %s", out)
			}
			if err == nil && requestsOut != "" {
				err = writeRequests(requestsOut, x.Dir)
			}
			return errors.Join(err, x.Dir.Close())
		},
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "", "directory for the evidence")
	f.StringVar(&runner, "runner", "", "live or sim in place of the plan's, which the evidence tells as a deviation")
	f.StringVar(&requestsOut, "requests-out", "", "write every request of every run to this file, one JSON object a line")
	return cmd
}

// newExecutor makes everything ready for a plan's runs.
func newExecutor(cmd *cobra.Command, file, out, runner string) (*bench.Executor, error) {
	p, err := bench.Load(file)
	if err != nil {
		return nil, err
	}
	m := bench.Manifest{Version: telemetry.ReadBuild().String(), Created: time.Now().UTC(), Host: bench.ThisHost(), Deviations: []string{}}
	if runner != "" && runner != p.Runner {
		m.Deviations = append(m.Deviations, fmt.Sprintf("runner is %s, the plan says %s", runner, p.Runner))
		if err := p.SetRunner(runner); err != nil {
			return nil, err
		}
	}
	m.Runner = p.Runner
	w, err := p.Workloads()
	if err != nil {
		return nil, err
	}
	doubts, err := w.Doubts()
	if err != nil {
		return nil, err
	}
	for _, words := range doubts {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+words)
	}
	m.Sources = len(w.Sources)
	if m.Files, err = p.Files(); err != nil {
		return nil, err
	}
	if m.Program, err = programHash(); err != nil {
		return nil, err
	}
	x := &bench.Executor{Plan: p, Workloads: w, Tell: func(now bench.Progress) { tellProgress(cmd.ErrOrStderr(), now) }}
	if x.Runner, err = planRunner(cmd, p); err != nil {
		return nil, err
	}
	x.Dir, err = bench.Create(out, p, m)
	return x, err
}

// programHash is the hash of the file that this program was started from.
func programHash() (string, error) {
	self, err := thisProgram()
	if err != nil {
		return "", err
	}
	f, err := os.Open(self)
	if err != nil {
		return "", fmt.Errorf("this program's own file: %w", err)
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}

// thisProgram is this program's file. On Linux it is what runs, even if its file is
// replaced in the middle of a plan, which would be another program in later runs.
func thisProgram() (string, error) {
	const running = "/proc/self/exe"
	if _, err := os.Stat(running); err == nil {
		return running, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("this program's own file: %w", err)
	}
	return self, nil
}

func planRunner(cmd *cobra.Command, p *bench.Plan) (bench.Runner, error) {
	if p.Runner == bench.Live {
		self, err := thisProgram()
		if err != nil {
			return nil, err
		}
		return &live.Runner{Headgate: self, Policy: policyYAML}, nil
	}
	return &bench.Virtual{LoadPolicy: func(file string, e simengine.Config) (*sim.Policy, error) { return loadPolicy(cmd, file, e) }}, nil
}

// tellProgress says what has just ended and how long the rest may take.
func tellProgress(w io.Writer, now bench.Progress) {
	var said []string
	if r := now.Result; r != nil {
		verdict := "valid"
		if bad := r.Invalid(); len(bad) > 0 {
			var names []string
			for _, g := range bad {
				names = append(names, fmt.Sprintf("%s (%s: %g, at most %g %s)", g.Name, g.Words, *g.Value, g.Limit, g.Unit))
			}
			verdict = "INVALID: " + strings.Join(names, "; ")
		}
		said = append(said, fmt.Sprintf("run %d: %s, %s: %s", r.Run, r.Source.Name, r.Arm, verdict))
	}
	said = append(said, fmt.Sprintf("%d of %d runs", now.Done, now.Of))
	if now.Left > 0 {
		said = append(said, fmt.Sprintf("about %v left", now.Left.Round(time.Second)))
	}
	if now.EValue > 0 {
		said = append(said, fmt.Sprintf("e-process %.3g", now.EValue))
	}
	fmt.Fprintln(w, strings.Join(said, ", "))
}

func writeRequests(path string, d *bench.Dir) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--requests-out: %w", err)
	}
	b := bufio.NewWriter(f)
	return errors.Join(d.WriteRequests(b), b.Flush(), f.Close())
}
