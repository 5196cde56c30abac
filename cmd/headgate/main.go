// Command headgate is the admission layer in front of LLM inference engines.
package main

import (
	"context"
	"fmt"
	"os"
	_ "time/tzdata" // the image has none

	"github.com/spf13/cobra"

	"headgate/telemetry"
)

func main() {
	if err := execute(context.Background(), root()); err != nil {
		os.Exit(report(os.Stderr, err))
	}
}

// execute runs what the line says. An error from before a command has begun is about the line,
// and leads to the command's help.
func execute(ctx context.Context, cmd *cobra.Command) error {
	begun := false
	noteBegin(cmd, &begun)
	ran, err := cmd.ExecuteContextC(ctx)
	if err != nil && !begun {
		return usageHint(ran, err)
	}
	return err
}

// noteBegin has all commands say that they have begun.
func noteBegin(cmd *cobra.Command, begun *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*begun = true
			return run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		noteBegin(c, begun)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "headgate",
		Short: "Keep LLM engines ready for interactive traffic and lend what is idle to batch work",
		Long: `Headgate stands in front of LLM inference engines. It admits requests by slots
and KV tokens, protects each class of traffic, lends what is idle, and takes it
back when the protected demand returns.`,
		Version:      telemetry.ReadBuild().String(),
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.AddCommand(
		serveCommand(),
		batchCommand(),
		controllerCommand(),
		grantsCommand(),
		topCommand(),
		limitsCommand(),
		eventsCommand(),
		controlCommand(),
		validateCommand(),
		configCommand(),
		engineCommand(),
		doctorCommand(),
		keyCommand(),
		auditCommand(),
		observeCommand(),
		planCommand(),
		simCommand(),
		kvCommand(),
		probeCommand(),
		occupancyCommand(),
		proveCommand(),
		adviseCommand(),
		benchCommand(),
		manCommand(),
		versionCommand(),
	)
	completions(cmd)
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), telemetry.ReadBuild()) },
	}
}
