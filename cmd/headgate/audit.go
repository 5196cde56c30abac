package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"headgate/audit"
	auditotlp "headgate/audit/collector"
	"headgate/audit/postgres"
	"headgate/config"
	"headgate/identity"
	"headgate/telemetry/otlp"
)

// openAudit begins to write down decisions; nil: nobody asks for it. A file that can't be
// written is an error at once; a database or a collector may come later.
func openAudit(c *config.Audit, export *otlp.Exporter, version string, log *slog.Logger, reg prometheus.Registerer) (*audit.Writer, error) {
	if c == nil {
		return nil, nil
	}
	source, err := auditSource(c)
	if err != nil {
		return nil, err
	}
	var sink audit.Sink
	switch {
	case c.File != "":
		f := audit.NewFile(audit.FileConfig{Path: c.File, RotateBytes: int64(c.RotateBytes), KeepFiles: c.KeepFiles, Sync: audit.Sync(c.Sync)}, log)
		if _, err := f.Open(context.Background()); err != nil {
			return nil, hint(err, cmp.Or(wayOut(err), "end the other gateway, or give each an audit.file of its own"))
		}
		sink = f
	case c.OTLP:
		sink = auditotlp.New(export)
	default:
		dsn := os.Getenv(c.PostgresEnv)
		if dsn == "" {
			return nil, fmt.Errorf("audit.postgres_env: variable %s is empty or not set: allowed is the URL of a PostgreSQL database", c.PostgresEnv)
		}
		if sink, err = postgres.New(dsn, source); err != nil {
			return nil, fmt.Errorf("audit.postgres_env: %w", err)
		}
	}
	return audit.NewWriter(sink, audit.Options{
		Buffer: c.Buffer, Source: source, Version: version, Required: c.Required, Log: log, Metrics: reg,
	}), nil
}

func auditSource(c *config.Audit) (string, error) {
	if c.Source != "" {
		return c.Source, nil
	}
	name, err := os.Hostname()
	if err == nil && !identity.ValidName(name) {
		err = fmt.Errorf("the host's name %q must be %s", name, identity.NameRule)
	}
	if err != nil {
		return "", fmt.Errorf("audit.source is absent, and %w", err)
	}
	return name, nil
}

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Check records of decisions", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(auditVerifyCommand())
	return cmd
}

func auditVerifyCommand() *cobra.Command {
	var head string
	var alone bool
	cmd := &cobra.Command{
		Use: "verify FILE...", Short: "Tell whether audit records were changed, moved or removed", Args: cobra.MinimumNArgs(1),
		Long: `Read a file of audit records, and those that were put by before it, and tell
whether they are one chain: each line has the hash of the one before it. Of several
files those are read and no others, in their order. That the end is missing shows
only against a head that was kept elsewhere: serve logs one for each file that it
puts by, and one when it stops. The status is 1 if something is wrong.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && !alone {
				var err error
				if args, err = audit.Files(args[0]); err != nil {
					return err
				}
			}
			r, err := audit.Verify(args)
			if err != nil {
				return err
			}
			if head != "" && head != r.Head.Hash {
				r.Faults = append(r.Faults, fmt.Sprintf("the last line's hash is not %s: the end is missing, or it is another chain's", head))
			}
			printVerified(cmd.OutOrStdout(), r)
			if n := len(r.Faults) + r.More; n > 0 {
				return fmt.Errorf("the records are not what was written: %d faults", n)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&head, "head", "", "hash of the last line, as it was kept elsewhere")
	cmd.Flags().BoolVar(&alone, "alone", false, "read this file only, and none that was put by before it")
	return cmd
}

func printVerified(w io.Writer, r *audit.Report) {
	for _, f := range r.Faults {
		fmt.Fprintln(w, f)
	}
	if r.More > 0 {
		fmt.Fprintf(w, "and %d more\n", r.More)
	}
	fmt.Fprintf(w, "%d records in %d files, %d to %d", r.Records, r.Files, r.First, r.Head.Seq)
	if r.Records > 0 {
		fmt.Fprintf(w, ", %s to %s", r.From.Format(time.RFC3339), r.To.Format(time.RFC3339))
	}
	fmt.Fprintln(w)
	if !r.Begins {
		fmt.Fprintln(w, "what was before the first is not here")
	}
	fmt.Fprintf(w, "%d starts, %d of them after a process that did not stop: what it had in memory is lost\n", r.Starts, r.Killed)
	fmt.Fprintf(w, "%d gaps, in which %d records are lost; %d lines cut by a crash\n", r.Gaps, r.Lost, r.Torn)
	fmt.Fprintf(w, "head %s\n", r.Head.Hash)
}

// auditReload writes down what became of a configuration file.
func auditReload(to *audit.Writer, outcome string, changes []config.Change, err error) {
	r := audit.Record{Kind: audit.Config, Outcome: outcome}
	if err != nil {
		r.Detail = err.Error()
	}
	for i, c := range changes {
		if i > 0 {
			r.Detail += ", "
		}
		r.Detail += c.Path
	}
	r.Detail = r.Detail[:min(len(r.Detail), 1000)]
	if outcome != "unchanged" {
		to.Append(&r)
	}
}
