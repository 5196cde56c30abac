package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"headgate/relay"
)

func planCommand() *cobra.Command {
	var admin adminClient
	var pool, set, reason, output string
	var lasts time.Duration
	cmd := &cobra.Command{
		Use: "plan", Short: "Why an engine is in its profile, and what would change that", Args: cobra.NoArgs,
		Long: `Print for each pool of a running gateway that re-plans in which profile its engine
is, why it stays or goes, what sessions were promised, what each profile could run
now and on average, what a switch would gain and cost, and when it may come at the
earliest. With --set an operator takes the engine to a profile, at once and for as
long as --for says, or, with auto, leaves it to the planner again; no promise to a
session is broken by it. A pool with replan.dry_run only says what it would do.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q, must be table or json", output)
			}
			if set == "" && lasts != 0 {
				return errors.New("--for goes with --set")
			}
			if lasts < 0 {
				return fmt.Errorf("--for is %s, must be at least 0s", lasts)
			}
			var body []byte
			if set != "" {
				body, _ = json.Marshal(map[string]any{"pool": pool, "profile": set, "for": lasts.String(), "reason": reason}) // of texts
			}
			views, raw, err := readPlan(&admin, pool, body)
			if err != nil {
				return err
			}
			if output == "json" {
				_, err = cmd.OutOrStdout().Write(raw)
				return err
			}
			for i := range views {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				printPlan(cmd.OutOrStdout(), &views[i])
			}
			return nil
		},
	}
	f := cmd.Flags()
	admin.flags(f, "URL of the admin listener")
	f.StringVar(&pool, "pool", "", "the pool's name; without it, all pools that re-plan")
	f.StringVar(&set, "set", "", "take the engine to a profile, or, with auto, leave it to the planner")
	f.DurationVar(&lasts, "for", 0, "with --set: for how long; 0 is until it is set again")
	f.StringVar(&reason, "reason", "", "with --set: why, for the journal")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

// readPlan asks for plans, or, with a body, sets one.
func readPlan(admin *adminClient, pool string, body []byte) ([]relay.PlanView, []byte, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	raw, err := admin.ask(method, "/api/plan", body)
	if err != nil {
		return nil, nil, fmt.Errorf("no plan: %w", err)
	}
	var views []relay.PlanView
	if err := json.Unmarshal(raw, &views); err != nil {
		return nil, nil, fmt.Errorf("no plan: %w", err)
	}
	if pool == "" {
		return views, raw, nil
	}
	for _, v := range views {
		if v.Pool == pool {
			raw, err = json.MarshalIndent([]relay.PlanView{v}, "", "  ")
			return []relay.PlanView{v}, append(raw, '\n'), err
		}
	}
	var names []string
	for _, v := range views {
		names = append(names, v.Pool)
	}
	do := "those that re-plan are " + strings.Join(names, ", ")
	if len(names) == 0 {
		do = "give a pool replan: see docs/replan.md"
	}
	return nil, nil, hint(fmt.Errorf("no plan: pool %q does not re-plan, or there is none of that name", pool), do)
}

func printPlan(w io.Writer, v *relay.PlanView) {
	fmt.Fprintf(w, "pool %s, engine %s", v.Pool, v.Engine)
	if v.DryRun {
		fmt.Fprint(w, ", a dry run")
	}
	fmt.Fprintf(w, "\n%s", v.View)
	fmt.Fprintf(w, "every session has %d tokens of context; %d sessions were promised up to %d\n", v.Guarantee, v.Sessions, v.Promised)
	if v.Held > 0 {
		fmt.Fprintf(w, "%d requests wait for another profile\n", v.Held)
	}
	if v.Amiss != "" {
		fmt.Fprintf(w, "the engine is not where it should be: %s\n", v.Amiss)
	}
}
