// Command headgate is the admission layer in front of LLM inference engines.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"headgate/telemetry"
)

func main() {
	if err := root().ExecuteContext(context.Background()); err != nil {
		os.Exit(report(os.Stderr, err))
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "headgate",
		Short: "Keep LLM engines ready for interactive traffic and lend what is idle to batch work",
		Long: `Headgate stands in front of LLM inference engines. It admits requests by slots
and KV tokens, protects each class of traffic, lends what is idle, and takes it
back when the protected demand returns.`,
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.AddCommand(
		serveCommand(),
		batchCommand(),
		controllerCommand(),
		grantsCommand(),
		limitsCommand(),
		eventsCommand(),
		controlCommand(),
		validateCommand(),
		configCommand(),
		engineCommand(),
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
		versionCommand(),
	)
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), telemetry.ReadBuild()) },
	}
}
