package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"headgate/engine"
	"headgate/probe"
)

func probeCommand() *cobra.Command {
	var o probe.Options
	var file, name, kind, out, output string
	var only []string
	var yes bool
	o.Engine.SetDefaults()
	cmd := &cobra.Command{
		Use: "probe --url URL --kind KIND", Short: "Ask a live engine by experiments how it works", Args: cobra.NoArgs,
		Long: `Ask a live engine by experiments how it works: whether its slots share the KV or
divide it, how many sequences run at once, what priorities do, whether prompts are
cached, how fast an abort frees a slot, how long its steps take. Each finding has its
evidence, and is unknown where the outcome would not tell; docs/probe.md says what each
is from.

It sends requests to the engine, within --max-tokens and --timeout, and ends each one
that is left, also when it is interrupted. Without --yes it only prints what it would
send, and ends with exit status 2. It stops when the engine has others' requests, unless
--busy allows them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			}
			o.Engine.Kind = engine.Kind(kind)
			for _, s := range only {
				o.Only = append(o.Only, probe.Subject(s))
			}
			if file != "" || name != "" {
				for _, flag := range []string{"url", "kind", "api-key-env"} {
					if cmd.Flags().Changed(flag) {
						return fmt.Errorf("--%s: not with --config, which has it", flag)
					}
				}
				var err error
				if o.Engine, err = configuredEngine(cmd, file, name); err != nil {
					return err
				}
			}
			var wrong []error
			o.Validate(func(path string, value any, allowed string) {
				flag := strings.ReplaceAll(path, "_", "-")
				wrong = append(wrong, fmt.Errorf("--%s is %v: allowed: %s", flag, value, allowed))
			})
			if err := errors.Join(wrong...); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if !yes {
				return planProbe(ctx, cmd, &o)
			}
			if out != "" { // before the engine has paid for what can't be kept
				if dir, err := os.Stat(filepath.Dir(out)); err != nil || !dir.IsDir() {
					return fmt.Errorf("--out is %q: allowed is a file in a folder that is there", out)
				}
			}
			o.Progress = func(stage string) { fmt.Fprintln(cmd.ErrOrStderr(), "probe:", stage) }
			p, err := probe.Run(ctx, &o)
			if p == nil {
				return err
			}
			var doc bytes.Buffer
			enc := json.NewEncoder(&doc)
			enc.SetIndent("", "  ")
			if e := enc.Encode(p); e != nil {
				return errors.Join(err, e)
			}
			if out != "" {
				if e := os.WriteFile(out, doc.Bytes(), 0o644); e != nil {
					err = errors.Join(err, fmt.Errorf("--out: %w", e))
				}
			}
			if output == "json" {
				_, e := cmd.OutOrStdout().Write(doc.Bytes())
				return errors.Join(err, e)
			}
			return errors.Join(err, p.WriteTable(cmd.OutOrStdout()))
		},
	}
	var subjects []string
	for _, s := range probe.Subjects {
		subjects = append(subjects, string(s))
	}
	f := cmd.Flags()
	f.StringVar(&o.Engine.URL, "url", "", "URL of the engine")
	f.StringVar(&kind, "kind", "", "kind of engine: vllm, sglang, llamacpp or openai")
	f.StringVar(&o.Engine.APIKeyEnv, "api-key-env", "", "environment variable with the engine's API key")
	f.StringVar(&file, "config", "", "configuration that has the engine, instead of --url and --kind")
	f.StringVar(&name, "engine", "", "name of the engine in --config")
	f.StringVar(&o.Model, "model", "", "model to ask for (default the first that the engine has loaded)")
	f.BoolVar(&yes, "yes", false, "send what it takes; without it, only print what that would be")
	f.StringVar(&out, "out", "", "write the profile to this file, for serve, sim and advise")
	f.Int64Var(&o.MaxTokens, "max-tokens", probe.DefaultMaxTokens, "tokens of all requests together, prompts and answers")
	f.DurationVar(&o.Timeout, "timeout", probe.DefaultTimeout, "time for all of it")
	f.IntVar(&o.MaxStreams, "max-streams", probe.DefaultMaxStreams, "most requests at once, to find out how many run")
	f.StringSliceVar(&only, "only", nil, "subjects to look for, of "+strings.Join(subjects, ", ")+" (default all)")
	f.BoolVar(&o.Busy, "busy", false, "go on beside others' requests; times are then less sure")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

// planProbe prints what would be sent. Its exit status says that nothing was.
func planProbe(ctx context.Context, cmd *cobra.Command, o *probe.Options) error {
	r, err := probe.Read(ctx, o)
	if err != nil {
		return err
	}
	if err := probe.WritePlan(cmd.OutOrStdout(), o, r, probe.Plan(o, r)); err != nil {
		return err
	}
	return &status{code: 2, err: errors.New("nothing was sent: --yes allows it")}
}

// configuredEngine is an engine of a configuration.
func configuredEngine(cmd *cobra.Command, file, name string) (engine.Config, error) {
	if file == "" || name == "" {
		return engine.Config{}, errors.New("--config and --engine: allowed are both or neither")
	}
	cfg, err := loadConfig(cmd, file)
	if err != nil {
		return engine.Config{}, err
	}
	var names []string
	for i := range cfg.Pools {
		for k := range cfg.Pools[i].Engines {
			e := &cfg.Pools[i].Engines[k]
			if e.Name == name {
				return adapterConfig(e), nil
			}
			names = append(names, e.Name)
		}
	}
	return engine.Config{}, fmt.Errorf("--engine is %q: %s has %s", name, file, strings.Join(names, ", "))
}
