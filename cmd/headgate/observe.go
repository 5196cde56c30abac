package main

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

func observeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "observe", Short: "What enforcing would have done in a pool that observes", Args: cobra.NoArgs}
	cmd.AddCommand(observeReportCommand())
	return cmd
}

func observeReportCommand() *cobra.Command {
	var admin adminClient
	var pool, output string
	cmd := &cobra.Command{
		Use: "report", Short: "Print the report of a running gateway", Args: cobra.NoArgs,
		Long: `Print what enforcing would have refused, delayed, lent, reclaimed and saved, by
class, since a pool with mode: observe began to observe: of all pools, or with
--pool of one. In JSON all are a list of {pool, report}, and one is its report.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			formats := map[string]string{"table": "text", "json": "json"}
			if formats[output] == "" {
				return fmt.Errorf("--output is %q, must be table or json", output)
			}
			body, err := observeReport(&admin, pool, formats[output])
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(body)
			return err
		},
	}
	f := cmd.Flags()
	admin.flags(f, "URL of the admin listener")
	f.StringVar(&pool, "pool", "", "the pool's name; without it, all pools")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

func observeReport(admin *adminClient, pool, format string) ([]byte, error) {
	path := "/api/observe"
	if pool != "" {
		path = "/api/pools/" + url.PathEscape(pool) + "/observe"
	}
	body, err := admin.ask(http.MethodGet, path+"?format="+format, nil)
	if err != nil {
		return nil, fmt.Errorf("no report: %w", err)
	}
	return body, nil
}
