package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"headgate/control"
	"headgate/control/agent"
	"headgate/gateway"
)

func checkOutput(output string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("--output is %q, must be table or json", output)
	}
	return nil
}

const adminHelp = "URL of the admin listener of a replica or a controller"

func grantsCommand() *cobra.Command {
	var admin adminClient
	var pool, output string
	cmd := &cobra.Command{
		Use: "grants", Short: "Print who has what of a fleet's engines", Args: cobra.NoArgs,
		Long: `Print what the fleet's leader has granted, as any replica or controller reads it
from the store, and first what the one that is asked goes by.

Amounts are slots/KV tokens. Of an engine, and of a class with a ceiling:
  GRANTED   what the replica may use
  BOUND     the most that it can have: more than granted until it has
            acknowledged a lower grant, and what it used above that is out
  USED      as it last said
  SURVIVAL  what it may use without a lease, which is kept from the others
Of a class at a replica:
  PART      its part of the class's floor
  FLOOR     what of it it has now
  KEPT      what of it stays there though it is not used, and WHY
  LENT      what of its part it neither uses nor keeps, so that others may
  BORROWED  what it uses beyond its floor`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			body, err := admin.askFleet(http.MethodGet, "/api/grants", nil)
			if err != nil {
				return fmt.Errorf("no grants: %w", err)
			}
			var v gateway.GrantsView
			if err := json.Unmarshal(body, &v); err != nil {
				return fmt.Errorf("no grants: %w", err)
			}
			if pool != "" {
				if !only(&v, pool) {
					return fmt.Errorf("no pool %q; the fleet has %s", pool, strings.Join(slices.Sorted(maps.Keys(v.Pools)), ", "))
				}
				if body, err = json.MarshalIndent(v, "", "  "); err != nil {
					return err
				}
				body = append(body, '\n')
			}
			if output == "json" {
				_, err = cmd.OutOrStdout().Write(body)
				return err
			}
			return printGrants(cmd.OutOrStdout(), &v)
		},
	}
	f := cmd.Flags()
	admin.flags(f, adminHelp)
	f.StringVar(&pool, "pool", "", "only this pool")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

// only leaves one pool in the view.
func only(v *gateway.GrantsView, pool string) bool {
	status, ok := v.Pools[pool]
	v.Held = slices.DeleteFunc(v.Held, func(h gateway.HeldView) bool { return h.Pool != pool })
	if ok {
		v.Pools = map[string]json.RawMessage{pool: status}
	}
	return ok || v.StoreError != "" && len(v.Held) > 0
}

// printGrants prints the view for people.
func printGrants(w io.Writer, v *gateway.GrantsView) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "fleet %s, led by %s, epoch %d\n", v.Fleet, cmp.Or(v.Leader, "nobody"), v.Epoch)
	if v.StoreError != "" {
		b.Reset()
		fmt.Fprintf(&b, "fleet %s: %s\n", v.Fleet, v.StoreError)
	}
	for _, h := range v.Held {
		fmt.Fprintf(&b, "%s, pool %s: %s\n", v.Replica, h.Pool, goesBy(&h))
	}
	for _, pool := range slices.Sorted(maps.Keys(v.Pools)) {
		var p agent.Published
		if err := json.Unmarshal(v.Pools[pool], &p); err != nil {
			return fmt.Errorf("what the leader says of pool %s is not understood: %w", pool, err)
		}
		printPool(&b, &p)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// goesBy says what a replica goes by in a pool.
func goesBy(h *gateway.HeldView) string {
	text := "no grant yet"
	switch {
	case h.Grant != nil && h.InForce:
		text = fmt.Sprintf("grant %d.%d for %.1f s, in force for %.1f s at least", h.Grant.Epoch, h.Grant.Rev, h.AgeS, h.LeaseLeftS)
	case h.Grant != nil:
		text = fmt.Sprintf("grant %d.%d is not in force any more", h.Grant.Epoch, h.Grant.Rev)
	}
	if h.NotReady != "" {
		text += "; not ready: " + h.NotReady
	}
	return text
}

// pair prints slots and KV tokens.
func pair(a control.Amount) string { return fmt.Sprintf("%d/%d", a[0], a[1]) }

// dash prints nothing as such.
func dash(a control.Amount) string {
	if a == (control.Amount{}) {
		return "-"
	}
	return pair(a)
}

func printPool(b *bytes.Buffer, p *agent.Published) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	flush := func() { _ = t.Flush() } // to memory
	name := func(i int) string {
		if i >= len(p.Accounts) {
			return "?"
		}
		if c := p.Accounts[i].Class; c != "" {
			return "class " + c
		}
		return p.Accounts[i].Engine
	}
	fmt.Fprintf(b, "\npool %s, revision %d\n\n", p.Pool, p.Revision)
	fmt.Fprintln(t, "OF\tTOTAL\tFREE\tFOREIGN")
	for i, a := range p.Accounts {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name(i), pair(a.Total), dash(a.Free), dash(a.Foreign))
	}
	flush()
	fmt.Fprintln(b)
	fmt.Fprintln(t, "REPLICA\tGRANT\tTAKEN\tOF\tGRANTED\tBOUND\tUSED\tSURVIVAL")
	for _, r := range p.Replicas {
		who, grant, taken := r.Replica, fmt.Sprint(r.Revision), fmt.Sprint(r.Acknowledged)
		if !r.Live {
			who, grant, taken = r.Replica+" (gone)", "-", "-"
		}
		for i, a := range r.Accounts {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", who, grant, taken, name(i), dash(a.Granted), dash(a.Bound), dash(a.Used), dash(a.Survival))
			who, grant, taken = "", "", ""
		}
	}
	flush()
	for _, r := range p.Replicas {
		if r.Live && r.Fingerprint != "" && p.Fingerprint != "" && r.Fingerprint != p.Fingerprint {
			fmt.Fprintf(b, "%s has another configuration of the pool than the leader: its fingerprint is %s, the leader's %s\n", r.Replica, r.Fingerprint, p.Fingerprint)
		}
		if !r.Live {
			fmt.Fprintf(b, "%s is gone: what it was bound by stays reserved for %s at most from the end of its lease\n", r.Replica, r.Residual.Round(time.Millisecond))
		}
	}
	fmt.Fprintln(b)
	fmt.Fprintln(t, "REPLICA\tCLASS\tPART\tFLOOR\tUSED\tKEPT\tLENT\tBORROWED\tWAITING\tWHY")
	for _, r := range p.Replicas {
		for _, c := range r.Classes {
			waiting := "-"
			if c.Waiting > 0 {
				waiting = fmt.Sprint(c.Waiting)
				if c.Short {
					waiting += ", short"
				}
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
				r.Replica, c.Class, dash(c.Guarantee), dash(c.Floor), dash(c.Used), dash(c.Kept), dash(c.Lent), dash(c.Borrowed), waiting, cmp.Or(c.Why, "-"))
		}
	}
	flush()
	printLoans(b, p)
	if len(p.Handoffs) > 0 {
		fmt.Fprintln(b, "\nhandoffs, newest first")
		printEvents(b, p.Handoffs[:min(len(p.Handoffs), 12)], true)
	}
}

// printLoans says who lends to whom: what replicas have lent of a class's floor, and
// who uses more than his own.
func printLoans(b *bytes.Buffer, p *agent.Published) {
	var lend, borrow []string
	for _, r := range p.Replicas {
		for _, c := range r.Classes {
			if c.Lent != (control.Amount{}) {
				lend = append(lend, fmt.Sprintf("%s %s of %s", r.Replica, pair(c.Lent), c.Class))
			}
			if c.Borrowed != (control.Amount{}) {
				borrow = append(borrow, fmt.Sprintf("%s %s for %s", r.Replica, pair(c.Borrowed), c.Class))
			}
		}
	}
	if len(borrow) > 0 {
		fmt.Fprintf(b, "\nborrowed by %s\nlent by %s\n", strings.Join(borrow, "; "), cmp.Or(strings.Join(lend, "; "), "nobody: out of what no class has a floor of"))
	}
}

func printEvents(w io.Writer, events []agent.Event, header bool) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if header {
		fmt.Fprintln(t, "TIME\tPOOL\tHANDOFF\tSTAGE\tAFTER\tTO\tCLASS\tFROM\tWANT")
	}
	for _, e := range events {
		if !e.Stage.OfHandoff() {
			fmt.Fprintf(t, "%s\t%s\t-\t%s\t-\t%s\t-\t-\t%s\n", e.Time.Local().Format("15:04:05.000"), e.Pool, e.Stage, e.To, cmp.Or(e.Why, "-"))
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%d.%d\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.Local().Format("15:04:05.000"), e.Pool, e.Epoch, e.Seq, e.Stage,
			e.Since.Round(100*time.Microsecond), e.To, cmp.Or(e.Class, "-"), cmp.Or(strings.Join(e.From, ", "), "-"), pair(e.Want))
	}
	_ = t.Flush() // the writer's own error is the command's
}
