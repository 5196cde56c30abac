package quota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestGoldens walks testdata: each step prints what it was told, if it was, and the whole
// ledger.
func TestGoldens(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var table Table
		var l *Ledger
		var now Time
		ids := map[string]ID{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			arg := func(key string, otherwise int64) (n int64) {
				if !d.HasArg(key) {
					return otherwise
				}
				d.ScanArgs(t, key, &n)
				return n
			}
			first := func(i int) string { return d.CmdArgs[i].Key }
			var told strings.Builder
			switch d.Cmd {
			case "rules":
				r := Rules{
					Requests: readRate(t, d, "requests"), Tokens: readRate(t, d, "tokens"), Input: arg("input", 1), Output: arg("output", 1),
					Prepaid: d.HasArg("balance"), PrepaidDryRun: d.HasArg("balance_dry"),
				}
				switch name := first(0); name {
				case "others":
					table.Others = r
				case "together":
					table.Together = r
				default:
					table.Tenants = append(table.Tenants, Named{name, r})
				}
				table.Validate(func(path string, value any, allowed string) {
					fmt.Fprintf(&told, "%s is %v, must be %s\n", path, value, allowed)
				})
				return told.String()
			case "new":
				l = New(&table, int(arg("most", 100)))
			case "apply":
				l.Apply(now, &table)
			case "forget-rules":
				table = Table{}
				return ""
			case "at":
				at, err := time.ParseDuration(first(0))
				if err != nil {
					t.Fatal(err)
				}
				now = Time(at)
				l.tick(now)
			case "reserve":
				answer := l.Reserve(now, first(1), Ask{Prompt: arg("prompt", 0), Output: arg("output", 0), Dry: d.HasArg("dry")})
				ids[first(0)] = answer.ID
				if answer.Dry != 0 {
					fmt.Fprintf(&told, "dry run would refuse: %03b\n", answer.Dry)
				}
				if answer.Refused {
					fmt.Fprintf(&told, "refused by %v: wants %d, left %d, retry %v, never %v, together %v\n", answer.By, answer.Want, answer.Left, answer.Retry, answer.Never, answer.Together)
				} else {
					told.WriteString("taken\n")
				}
			case "progress":
				l.Progress(now, ids[first(0)], arg("prompt", 0), arg("output", 0))
			case "settle":
				began := d.HasArg("prompt") || d.HasArg("output")
				fmt.Fprintln(&told, "settled:", l.Settle(now, ids[first(0)], Use{Began: began, Prompt: arg("prompt", 0), Output: arg("output", 0), Kept: arg("kept", 0), Free: d.HasArg("free")}))
			case "refill":
				left, ok := l.Refill(now, first(0), arg("tokens", 0))
				fmt.Fprintln(&told, "left:", left, ok)
			case "share":
				var parts []Part
				for _, tenant := range []string{"acme", "guest"} {
					if d.HasArg(tenant) {
						parts = append(parts, Part{tenant, arg(tenant, 0)})
					}
				}
				l.Share(now, arg("ppm", million), parts)
			case "demand":
				for _, d := range l.Demand(now, 10) {
					fmt.Fprintf(&told, "%s asked for %d\n", d.Tenant, d.PPM)
				}
				return told.String()
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return told.String() + l.String()
		})
	})
}

// readRate reads N/window, or N/window/burst, with /dry behind it.
func readRate(t *testing.T, d *datadriven.TestData, key string) (r Rate) {
	if !d.HasArg(key) {
		return r
	}
	var text string
	d.ScanArgs(t, key, &text)
	parts := strings.Split(text, "/")
	if parts[len(parts)-1] == "dry" {
		r.DryRun, parts = true, parts[:len(parts)-1]
	}
	if _, err := fmt.Sscan(parts[0], &r.N); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.Window, err = time.ParseDuration(parts[1]); err != nil {
		t.Fatal(err)
	}
	if r.Burst = r.N; len(parts) == 3 {
		if _, err := fmt.Sscan(parts[2], &r.Burst); err != nil {
			t.Fatal(err)
		}
	}
	return r
}
