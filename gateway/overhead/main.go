// Command overhead measures what Headgate costs beside no proxy at all and beside
// a bare httputil.ReverseProxy, in one run, with the same upstream, the same
// requests and the same events.
//
//	go build -o bin/overhead ./gateway/overhead
//	bin/overhead cost -headgate bin/headgate     # CPU, throughput, first byte, gaps, allocations
//	bin/overhead scale -headgate bin/headgate    # memory of many streams and of many that wait
//	bin/overhead peers -headgate bin/headgate    # beside nginx, HAProxy, vmauth and Portkey's gateway
//	bin/overhead soak -headgate bin/headgate     # many streams for long, of which clients leave some
//
// # Processes
//
// The upstream, the proxy and Headgate are each a process, so that the kernel
// tells whose CPU time and whose memory it was; this one is the clients. Headgate
// is the program as it is released, with keys, admission and the journal on. The
// proxy is this program again. Both are read the same way, from their /metrics; what
// peers are compared by, the kernel tells of all arms, children included. All of them
// end when this process is gone.
//
// # What makes a comparison fair
//
// Every repetition measures the arms directly one after another, and begins with
// another of them each time, because the machine's speed drifts. The proxy keeps
// as many idle connections as Headgate does: with the two that a transport keeps
// by default it would dial for most requests. Streams are paced, as an engine's
// are: where events lie ready the proxy passes several on at once and a token's
// cost can't be told from its batching. What that buys is shown by the workload
// "burst", which is not paced.
//
// Peers are configured as one would for streams in production: connections to the
// engine are kept, nothing is collected, a line is logged and a key checked for each
// request, where the program can. Their files are the templates in peers/.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the command line's.
type options struct {
	headgate, output, profile string

	reps    int           // of cost
	each    time.Duration // of one workload, in one arm
	samples int           // first bytes an arm

	streaming, waiting int // of scale
	rounds             int // seconds under load

	peers string   // where those that are no Debian package are installed
	only  []string // peers to measure; none is all

	streams  int // of soak
	duration time.Duration
	leave    float64 // part of the answers that clients leave
}

func run(args []string, out, errs io.Writer) int {
	if len(args) == 0 {
		args = []string{""}
	}
	var o options
	f := flag.NewFlagSet("overhead "+args[0], flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&o.headgate, "headgate", "bin/headgate", "the program to measure")
	f.StringVar(&o.output, "output", "", "file to write the report to, as JSON")
	var measure func(*options, io.Writer) (*report, error)
	show := (*report).write
	switch args[0] {
	case roleUpstream, roleProxy, roleCollector:
		if err := serveRole(args[0], args[1:], os.Stdin, out); err != nil {
			fmt.Fprintln(errs, "overhead:", err)
			return 1
		}
		return 0
	case "cost":
		measure = measureCost
		profiles(f, &o)
		f.IntVar(&o.reps, "reps", 5, "repetitions")
		f.DurationVar(&o.each, "each", 3*time.Second, "time of one workload in one arm")
		f.IntVar(&o.samples, "samples", 2000, "first bytes measured in each arm")
	case "scale":
		measure = measureScale
		f.IntVar(&o.streaming, "streaming", 5000, "streams that get an event a second")
		f.IntVar(&o.waiting, "waiting", 10000, "requests that wait for admission meanwhile")
		f.IntVar(&o.rounds, "seconds", 20, "how long the load lasts")
	case "peers":
		measure = measurePeers
		show = func(r *report, w io.Writer) { r.writeArms(w); r.writeBars(w) }
		profiles(f, &o)
		f.StringVar(&o.peers, "peers", installed, "folder in which tools/peers.sh has put vmauth and Portkey's gateway")
		f.Func("only", "a peer to measure, nginx, haproxy, vmauth or portkey; may be repeated (default all)", func(name string) error {
			if !slices.ContainsFunc(peers, func(p peer) bool { return p.name == name }) {
				return fmt.Errorf("%q: allowed are nginx, haproxy, vmauth, portkey", name)
			}
			o.only = append(o.only, name)
			return nil
		})
		f.IntVar(&o.reps, "reps", 6, "repetitions")
		f.DurationVar(&o.each, "each", time.Second, "time of one workload in one arm")
		f.IntVar(&o.samples, "samples", 200, "requests of one connection in each arm, a repetition; a tenth of it clients that leave")
		f.IntVar(&o.streaming, "streaming", 1000, "streams of which the memory is measured")
	case "soak":
		measure = measureSoak
		f.IntVar(&o.streams, "streams", 10000, "answers under way at a time, each with an event a second")
		f.DurationVar(&o.duration, "duration", 30*time.Minute, "how long")
		f.Float64Var(&o.leave, "leave", 0.01, "part of the answers that clients leave, at a random moment")
	default:
		fmt.Fprintln(errs, "usage: overhead cost | scale | peers | soak [flags]")
		return 2
	}
	if err := f.Parse(args[1:]); err != nil {
		return 2
	}
	r, err := measure(&o, out)
	if err == nil {
		show(r, out)
		err = r.save(o.output)
	}
	switch {
	case err != nil:
		fmt.Fprintln(errs, "overhead:", err)
		return 1
	case slices.ContainsFunc(r.Bars, func(b bar) bool { return !b.Met }):
		return 3
	}
	return 0
}

func profiles(f *flag.FlagSet, o *options) {
	f.StringVar(&o.profile, "profile", "", "folder for profiles of the proxy and of Headgate, taken after the measures")
}

// report is what a run found.
type report struct {
	Machine string   `json:"machine"`
	Notes   []string `json:"notes,omitempty"` // where the run is not what was asked for
	Figures []figure `json:"figures"`
	Bars    []bar    `json:"bars"`
}

// figure is one measure in one arm over all repetitions.
type figure struct {
	Name   string    `json:"name"`
	Arm    string    `json:"arm"`
	Unit   string    `json:"unit"`
	Min    float64   `json:"min"`
	Median float64   `json:"median"`
	Max    float64   `json:"max"`
	All    []float64 `json:"all"`
}

// bar is a median that is held against a limit.
type bar struct {
	Name     string  `json:"name"`
	Unit     string  `json:"unit"`
	Limit    float64 `json:"limit"`
	Measured float64 `json:"measured"`
	Met      bool    `json:"met"`
}

func (r *report) add(name, arm, unit string, v float64) {
	at := slices.IndexFunc(r.Figures, func(f figure) bool { return f.Name == name && f.Arm == arm })
	if at < 0 {
		at = len(r.Figures)
		r.Figures = append(r.Figures, figure{Name: name, Arm: arm, Unit: unit})
	}
	f := &r.Figures[at]
	f.All = append(f.All, v)
	sorted := slices.Sorted(slices.Values(f.All))
	f.Min, f.Median, f.Max = sorted[0], median(sorted), sorted[len(sorted)-1]
}

// median of a figure in an arm; 0 if there is none.
func (r *report) median(name, arm string) float64 {
	for i := range r.Figures {
		if f := &r.Figures[i]; f.Name == name && f.Arm == arm {
			return f.Median
		}
	}
	return 0
}

func (r *report) hold(name, unit string, limit, measured float64) {
	r.Bars = append(r.Bars, bar{name, unit, limit, measured, measured <= limit})
}

func (r *report) write(w io.Writer) {
	fmt.Fprintln(w, r.Machine)
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	fmt.Fprintf(w, "\n%-44s %-9s %10s %10s %10s  %s\n", "", "arm", "min", "median", "max", "unit")
	for _, f := range r.Figures {
		fmt.Fprintf(w, "%-44s %-9s %10.4g %10.4g %10.4g  %s\n", f.Name, f.Arm, f.Min, f.Median, f.Max, f.Unit)
	}
	r.writeBars(w)
}

// writeBars writes what was held against what, and whether it is met.
func (r *report) writeBars(w io.Writer) {
	width := 44
	for _, b := range r.Bars {
		width = max(width, len(b.Name))
	}
	fmt.Fprintf(w, "\n%-*s %10s %10s  %s\n", width, "bar (medians)", "measured", "at most", "unit")
	for _, b := range r.Bars {
		verdict := "met"
		if !b.Met {
			verdict = "NOT MET"
		}
		fmt.Fprintf(w, "%-*s %10.4g %10.4g  %-8s %s\n", width, b.Name, b.Measured, b.Limit, b.Unit, verdict)
	}
}

// save writes the report; an empty name is none.
func (r *report) save(file string) error {
	if file == "" {
		return nil
	}
	doc, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(doc, '\n'), 0o644)
}

// median of sorted values.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quantile is the smallest of the values that so many of a hundred do not
// exceed, 0 without any. It sorts them.
func quantile(values []float64, percent int) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[max((percent*len(values)+99)/100, 1)-1]
}
