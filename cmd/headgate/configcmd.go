package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"headgate/config"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Show, compare and describe configurations", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(configSchemaCommand(), configShowCommand(), configDiffCommand())
	return cmd
}

func configSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of a configuration file", Args: cobra.NoArgs,
		Long: `Print the JSON Schema (2020-12) of a configuration file, with which an editor
completes keys and marks what validate would refuse. Editors that use
yaml-language-server find it by a first line in the configuration file:

  # yaml-language-server: $schema=headgate.schema.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Schema)
			return err
		},
	}
}

func configShowCommand() *cobra.Command {
	var file, output string
	cmd := &cobra.Command{
		Use: "show -c FILE", Short: "Print a configuration as it is in effect, and where each value comes from", Args: cobra.NoArgs,
		Long: `Print a configuration as it is in effect, with every default filled in. Each
value tells where it comes from: its line of the file, default, or derived, which
is worked out from other values of the file. No secret is printed, since a
configuration holds none: keys are hashed, and those of engines are named by
environment variables.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			print, ok := map[string]func(*config.Config) ([]byte, error){"yaml": config.ShowYAML, "json": config.ShowJSON}[output]
			if !ok {
				return fmt.Errorf("--output %s: allowed yaml or json", output)
			}
			cfg, err := loadConfig(cmd, file)
			if err != nil {
				return err
			}
			out, err := print(cfg)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "configuration file")
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "yaml with comments, or json with a second object")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}

// Exit statuses of config diff, which are those of diff.
const (
	statusDiffer = 1
	statusFailed = 2
)

func configDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff OLD NEW", Short: "Print what changes in effect between two configurations",
		Long: `Print what changes in effect between two configuration files, one value a line:
live if a running process can take it over or restart if it can't, its path, and
the old and the new value, - where there is none. Defaults are filled in, so that
a default which is spelled out is no change. Pools, engines, classes and keys are
compared by their names.

The exit status is 0 if nothing changes, 1 if something does, and 2 if a file
can't be used.`,
		Args: func(cmd *cobra.Command, args []string) error {
			return withStatus(statusFailed, cobra.ExactArgs(2)(cmd, args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			changes, err := diffConfigs(cmd, args[0], args[1])
			if err == nil {
				err = printChanges(cmd.OutOrStdout(), changes)
			}
			switch {
			case err != nil:
				return withStatus(statusFailed, err)
			case len(changes) > 0:
				return &status{code: statusDiffer}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return withStatus(statusFailed, err) })
	return cmd
}

// diffConfigs reads both files before it says that one can't be used.
func diffConfigs(cmd *cobra.Command, old, new string) ([]config.Change, error) {
	was, errOld := loadConfig(cmd, old)
	is, errNew := loadConfig(cmd, new)
	switch {
	case errOld != nil:
		return nil, errOld
	case errNew != nil:
		return nil, errNew
	}
	return config.Changes(was, is), nil
}

func printChanges(w io.Writer, changes []config.Change) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range changes {
		how := "live"
		if c.Restart {
			how = "restart"
		}
		fmt.Fprintf(t, "%s\t%s\t%s -> %s\n", how, c.Path, orDash(c.Old), orDash(c.New))
	}
	return t.Flush()
}

func orDash(value string) string {
	if value == "" {
		return "-"
	}
	return value
}

// status is an error with an exit status of its own. Without an err there is nothing
// to say beside it.
type status struct {
	code int
	err  error
}

func (s *status) Error() string { return fmt.Sprintf("exit status %d: %v", s.code, s.err) }

func withStatus(code int, err error) error {
	if err == nil {
		return nil
	}
	return &status{code, err}
}

// report says what went wrong and returns the exit status.
func report(w io.Writer, err error) (code int) {
	code = 1
	if s, ok := errors.AsType[*status](err); ok {
		code, err = s.code, s.err
	}
	if err != nil {
		fmt.Fprintln(w, "headgate:", err)
		if do := wayOut(err); do != "" {
			fmt.Fprintln(w, "  try:", do)
		}
	}
	return code
}
