package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func observeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "observe", Short: "What enforcing would have done in a pool that observes", Args: cobra.NoArgs}
	cmd.AddCommand(observeReportCommand())
	return cmd
}

func observeReportCommand() *cobra.Command {
	var admin, pool, output string
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
			body, err := observeReport(admin, pool, formats[output])
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(body)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&admin, "admin", "http://127.0.0.1:9090", "URL of the admin listener")
	f.StringVar(&pool, "pool", "", "the pool's name; without it, all pools")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

// maxReport bounds what is read: of one pool 64 classes take less than 100 KiB.
const maxReport = 16 << 20

func observeReport(admin, pool, format string) ([]byte, error) {
	client := &http.Client{Timeout: 10 * time.Second}
	path := "/api/observe"
	if pool != "" {
		path = "/api/pools/" + url.PathEscape(pool) + "/observe"
	}
	res, err := client.Get(strings.TrimRight(admin, "/") + path + "?format=" + format)
	if err != nil {
		return nil, fmt.Errorf("no report: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReport))
	if err != nil {
		return nil, fmt.Errorf("no report: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("no report: status %d: %s", res.StatusCode, strings.TrimSpace(string(body)))
	}
	return body, nil
}
