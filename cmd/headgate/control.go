package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func controlCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "control", Short: "Change what a fleet's leader keeps", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(controlForgetCommand())
	return cmd
}

func controlForgetCommand() *cobra.Command {
	var admin adminClient
	var reason string
	cmd := &cobra.Command{
		Use: "forget REPLICA", Short: "Let go of what is kept for a replica that will not come back", Args: cobra.ExactArgs(1),
		Long: `Let go of the survival floor that is kept for a replica without a lease: it may
still serve by it, cut off from the store, so nobody but an operator can know that
it does not. Say it only of a replica that is known not to run any more. What it may
have left in the engines stays reserved until that is over.

Only the leader can do it; another replica says who leads. Each use is logged, and
written to the journal of the replica that leads.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := json.Marshal(map[string]string{"replica": args[0], "reason": reason})
			if err != nil {
				return err
			}
			if _, err := admin.askFleet(http.MethodPost, "/api/fleet/forget", body); err != nil {
				return fmt.Errorf("replica %s is not forgotten: %w", args[0], err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "replica %s is forgotten\n", args[0])
			return err
		},
	}
	f := cmd.Flags()
	admin.flags(f, "URL of the leader's admin listener")
	f.StringVar(&reason, "reason", "", "for the record")
	return cmd
}
