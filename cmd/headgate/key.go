package main

import (
	"crypto/rand"
	"fmt"

	"github.com/spf13/cobra"

	"headgate/identity"
)

func keyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "key", Short: "Make an API key and the hash that the configuration stores for it", Args: cobra.NoArgs,
		Long: `Make a random API key. The key is printed once and stored nowhere; the hash goes
into the configuration, under keys.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			key, hash, err := identity.NewKey(rand.Reader)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "key:  %s\nhash: %s\n", key.Reveal(), hash)
			return nil
		},
	}
}
