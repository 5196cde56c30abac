package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"headgate/control"
	"headgate/control/agent"
	"headgate/gateway"
)

// followEvery is how often events are asked for while they are followed. The leader
// publishes once a second.
const followEvery = time.Second

func eventsCommand() *cobra.Command {
	var admin adminClient
	var output string
	var n int
	var follow bool
	cmd := &cobra.Command{
		Use: "events", Short: "Print the last handoffs between a fleet's replicas, and who came and went", Args: cobra.NoArgs,
		Long: `Print the last events, newest first. Of a replica: joined (it has a lease), left (it
has given that back), expired (its lease has run out), forgotten (an operator had what
survives of it let go of), differs (it has another configuration of the pool than the
leader) and agrees (not any more). Of a handoff its stages: prepared (lower grants are
written for those who give), applied (the last of them has acknowledged), drained
(what they used above is out), committed (the one who wanted it has it), dropped
(nobody wants it any more). AFTER is since the handoff was opened. The leader keeps
the last 64 events of each pool, and a new leader begins with none.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if follow {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				return followEvents(ctx, cmd.OutOrStdout(), &admin, output, n)
			}
			body, events, err := readEvents(&admin, n)
			if err != nil {
				return err
			}
			if output == "json" {
				_, err = cmd.OutOrStdout().Write(body)
				return err
			}
			printEvents(cmd.OutOrStdout(), events, true)
			return nil
		},
	}
	f := cmd.Flags()
	admin.flags(f, adminHelp)
	f.IntVarP(&n, "number", "n", 50, "how many, at most")
	f.BoolVarP(&follow, "follow", "f", false, "print what comes, oldest first, until it is interrupted; json is one object a line")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

func readEvents(admin *adminClient, n int) (body []byte, events []agent.Event, err error) {
	if body, err = admin.askFleet(http.MethodGet, fmt.Sprintf("/api/events?n=%d", n), nil); err == nil {
		err = json.Unmarshal(body, &events)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("no events: %w", err)
	}
	return body, events, nil
}

// stage names one stage of one handoff, which has each once.
type stage struct {
	pool  string
	epoch uint64
	seq   uint64
	stage control.Stage
}

// followEvents prints the last n stages and those that come, until ctx is over or the
// listener is gone.
func followEvents(ctx context.Context, w io.Writer, admin *adminClient, output string, n int) error {
	seen := map[stage]bool{}
	for first := true; ; first = false {
		_, events, err := readEvents(admin, gateway.MaxEvents)
		if err != nil {
			return err
		}
		if first {
			for _, e := range events[min(n, len(events)):] {
				seen[stageOf(&e)] = true
			}
		}
		there := map[stage]bool{}
		var fresh []agent.Event
		for _, e := range slices.Backward(events) {
			there[stageOf(&e)] = true
			if !seen[stageOf(&e)] {
				fresh = append(fresh, e)
			}
		}
		seen = there // what the leader has dropped does not come back
		if output == "json" {
			for _, e := range fresh {
				if err := json.NewEncoder(w).Encode(e); err != nil {
					return err
				}
			}
		} else {
			printEvents(w, fresh, first)
		}
		if !pause(ctx, followEvery) {
			return nil
		}
	}
}

func stageOf(e *agent.Event) stage { return stage{e.Pool, e.Epoch, e.Seq, e.Stage} }
