package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"headgate/gateway"
)

func limitsCommand() *cobra.Command {
	var admin adminClient
	var tenant, output string
	var n int
	cmd := &cobra.Command{
		Use: "limits", Short: "Print what tenants have used of their limits", Args: cobra.NoArgs,
		Long: `Print what a gateway's tenants have used of their limits: those with limits of
their own, and others that have used something within a window.

  LIMIT     what may be used in a window; with a star it is in dry run
  USED      what was used and has not come back yet
  RESERVED  what requests that wait or run may still use
  LEFT      what may be used at once
  RESET     when all that was used has come back

In a fleet each replica has its part of the limits: see docs/limits.md.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			query := url.Values{"n": {strconv.Itoa(n)}}
			if tenant != "" {
				query.Set("tenant", tenant)
			}
			body, err := admin.ask(http.MethodGet, "/api/limits?"+query.Encode(), nil)
			if err != nil {
				return fmt.Errorf("no limits: %w", err)
			}
			if output == "json" {
				_, err = cmd.OutOrStdout().Write(body)
				return err
			}
			var v gateway.LimitsView
			if err := json.Unmarshal(body, &v); err != nil {
				return fmt.Errorf("no limits: %w", err)
			}
			return printLimits(cmd.OutOrStdout(), &v)
		},
	}
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "only this tenant")
	f.IntVar(&n, "others", 100, "how many tenants without limits of their own to list at most")
	f.StringVar(&output, "output", "table", "table or json")
	admin.flags(cmd.PersistentFlags(), "URL of the gateway's admin listener")
	cmd.AddCommand(limitsRefillCommand(&admin))
	return cmd
}

// printLimits prints the view for people.
func printLimits(to io.Writer, v *gateway.LimitsView) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tOF\tLIMIT\tUSED\tRESERVED\tLEFT\tRESET")
	for i := range v.Tenants {
		t := &v.Tenants[i]
		name := t.Tenant
		switch {
		case t.Together:
			name = "(all others)"
		case t.Shared:
			name = "(without room)"
		}
		for _, r := range []struct {
			of   string
			rate *gateway.RateView
		}{{"requests", t.Requests}, {"tokens", t.Tokens}} {
			if r.rate == nil {
				continue
			}
			window := time.Duration(r.rate.WindowS * float64(time.Second))
			reset := time.Duration(r.rate.ResetS * float64(time.Second)).Round(time.Millisecond)
			fmt.Fprintf(w, "%s\t%s\t%d in %v%s\t%d\t%d\t%d\t%v\n", name, r.of, r.rate.Limit, window, star(r.rate.DryRun), r.rate.Used, r.rate.Reserved, r.rate.Left, reset)
		}
		if b := t.Balance; b != nil {
			fmt.Fprintf(w, "%s\tbalance\tprepaid%s\t-\t%d\t%d\t-\n", name, star(b.DryRun), b.Reserved, b.Left)
		}
	}
	return w.Flush()
}

func star(dry bool) string {
	if dry {
		return "*"
	}
	return ""
}

func limitsRefillCommand(admin *adminClient) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "refill TENANT TOKENS", Short: "Put tokens into a tenant's balance", Args: cobra.ExactArgs(2),
		Long: `Put weighted tokens into the balance of a tenant, or with a number below 0, behind
a --, take some out. When it says so it outlives the process. Each use is logged, and
written to the journal.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			tokens, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return fmt.Errorf("TOKENS is %q, must be a whole number", args[1])
			}
			body, err := json.Marshal(map[string]any{"tenant": args[0], "tokens": tokens, "reason": reason})
			if err != nil {
				return err
			}
			if body, err = admin.ask(http.MethodPost, "/api/limits/refill", body); err != nil {
				return fmt.Errorf("the balance of %s is not refilled: %w", args[0], err)
			}
			var v gateway.LimitView
			if err := json.Unmarshal(body, &v); err != nil || v.Balance == nil {
				return fmt.Errorf("the balance of %s: the answer is not understood: %s", args[0], body)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "tenant %s has %d tokens left, and %d reserved\n", v.Tenant, v.Balance.Left, v.Balance.Reserved)
			return err
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "for the record")
	return cmd
}
