package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"headgate/config"
)

func validateCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "validate -c FILE", Short: "Check a configuration and print its effective values", Args: cobra.NoArgs,
		Long: `Check a configuration file: unknown keys with their place and the nearest known
one, values out of range, and rules between fields. If it is good, its effective
values are printed, defaults filled in and secrets redacted. Engines are not
asked; what they have to say themselves is checked when they are found.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd, file)
			if err != nil {
				return err
			}
			for _, p := range cfg.Unset(os.Getenv) {
				fmt.Fprintln(cmd.ErrOrStderr(), p)
			}
			out, err := config.Effective(cfg)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "configuration file")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}

// loadConfig reads a configuration and prints every problem it has; the error
// is that it can't be used.
func loadConfig(cmd *cobra.Command, file string) (*config.Config, error) {
	cfg, problems, err := config.Load(file)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = hint(err, "name a file that is there; headgate serve --demo needs none, and docs/configuration.md begins with one to copy")
		}
		return nil, err
	}
	for _, p := range problems {
		fmt.Fprintln(cmd.ErrOrStderr(), p)
	}
	if cfg == nil {
		return nil, fmt.Errorf("%s: %d problems", file, config.Errors(problems))
	}
	return cfg, nil
}
