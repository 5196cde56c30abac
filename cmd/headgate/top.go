package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"headgate/console/now"
	"headgate/top"
)

func topCommand() *cobra.Command {
	var admin adminClient
	var pool string
	var every time.Duration
	var once, asJSON bool
	cmd := &cobra.Command{
		Use: "top", Short: "Show in the terminal what pools, classes, queues and engines are at", Args: cobra.NoArgs,
		Long: `Show in the terminal, as it changes, what a gateway's pools are at: slots and KV
tokens by class, with what is borrowed in a second style and floors behind it, who is
next in each queue and what for, engines, and the last recalls. ? explains the signs
and keys. When the gateway goes away the last picture stays, with the reason, until it
answers again.

With --once it prints all pools, or the one of --pool, as plain text and ends, with
--json too what the gateway said. NO_COLOR=1 has no colours.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond || every > time.Hour {
				return fmt.Errorf("--every is %v, must be 100ms to 1h", every)
			}
			client, err := admin.client()
			if err != nil {
				return err
			}
			defer client.CloseIdleConnections()
			ask := func(ctx context.Context) (*now.Now, []byte, error) {
				body, err := admin.askBy(ctx, client, http.MethodGet, "/api/now", nil)
				if err != nil {
					return nil, nil, err
				}
				n := &now.Now{}
				if err := json.Unmarshal(body, n); err != nil {
					return nil, nil, fmt.Errorf("the answer to /api/now is not understood: %w", err)
				}
				return n, body, nil
			}
			look := top.Look{
				URL: strings.TrimRight(admin.url, "/"), Pool: pool, Zone: time.Local, ASCII: !utf8Terminal(os.Getenv), Color: os.Getenv("NO_COLOR") == "",
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if once || asJSON {
				ctx, cancel := context.WithTimeout(ctx, adminTime)
				defer cancel()
				n, body, err := ask(ctx)
				if err == nil {
					err = topOnce(cmd.OutOrStdout(), n, body, look, asJSON)
				}
				if err != nil {
					return fmt.Errorf("nothing to show: %w", err)
				}
				return nil
			}
			if !terminal(os.Stdout) || !terminal(os.Stdin) {
				return hint(errors.New("input and output have to be a terminal's"), "headgate top --once prints it as text, once")
			}
			return top.Run(ctx, top.Config{
				Ask: func(ctx context.Context) (*now.Now, error) { n, _, err := ask(ctx); return n, err }, Every: every, Look: look,
				Reason: func(err error) string {
					if do := wayOut(err); do != "" {
						return err.Error() + "; " + do
					}
					return err.Error()
				},
			}, os.Stdin, os.Stdout)
		},
	}
	f := cmd.Flags()
	admin.flags(f, "URL of the gateway's admin listener")
	f.StringVar(&pool, "pool", "", "the pool to begin with; with --once the only one")
	f.DurationVar(&every, "every", time.Second, "how often the gateway is asked, from 100ms on")
	f.BoolVar(&once, "once", false, "print text once, and end")
	f.BoolVar(&asJSON, "json", false, "print once, as JSON, what the gateway said")
	return cmd
}

// onceWidth is how many places a line has where nobody says.
const onceWidth = 100

// topOnce prints what was told.
func topOnce(w io.Writer, n *now.Now, body []byte, look top.Look, asJSON bool) error {
	if look.Pool != "" {
		i := slices.IndexFunc(n.Pools, func(p now.Pool) bool { return p.Name == look.Pool })
		if i < 0 {
			return noPool(look.Pool, poolNames(n))
		}
		if n.Pools = n.Pools[i : i+1]; asJSON {
			var err error
			if body, err = json.MarshalIndent(n, "", "  "); err != nil {
				return err
			}
			body = append(body, '\n')
		}
	}
	if asJSON {
		_, err := w.Write(body)
		return err
	}
	look.All, look.Color, look.Width = true, false, onceWidth
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		look.Width = columns
	}
	_, err := io.WriteString(w, top.Text(n, look))
	return err
}

func poolNames(n *now.Now) (names []string) {
	for i := range n.Pools {
		names = append(names, n.Pools[i].Name)
	}
	return names
}

// noPool is the error of a pool's name that is none.
func noPool(name string, there []string) error {
	do := "the gateway has " + strings.Join(there, ", ")
	if len(there) == 0 {
		do = "the gateway has none"
	}
	return hint(fmt.Errorf("there is no pool %.64q", name), do)
}

// utf8Terminal tells whether a terminal shows more signs than ASCII's, as its environment
// says. One that says nothing is taken for one of today.
func utf8Terminal(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return getenv("TERM") != "dumb"
}

// terminal tells whether somebody looks.
func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
