package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"headgate/occupancy"
)

func occupancyCommand() *cobra.Command {
	var output string
	var in occupancyInput
	cmd := &cobra.Command{
		Use: "occupancy FILE...", Short: "Measure from logs how many requests were in flight", Args: cobra.ArbitraryArgs,
		Long: `Measure from logs how many requests were in flight at once: the share of busy
time by requests in flight, utilisation, the peak and what it was made of, by
model, class, principal and hour.

A log is Headgate's journal, one of the presets ("headgate occupancy presets"),
JSON of which the fields are given, or text of which patterns are given:

  headgate occupancy journal.jsonl
  headgate occupancy --format jsonl --time ts --id req_id --event event --start start --done done FILE...
  headgate occupancy --format text --pattern '(?P<time>\S+) end id=(?P<id>\S+) took (?P<duration>\S+)' FILE...
  journalctl -u llama -o json | headgate occupancy --format llama-server --in journald-json -

Files may be compressed with gzip; - is the standard input. Several files are read
together, in order of time. Fields are paths, such as request.id; a pattern is a
regular expression with named groups.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := map[string]func(*occupancy.Report, io.Writer) error{
				"table": (*occupancy.Report).WriteTable, "csv": (*occupancy.Report).WriteCSV, "svg": (*occupancy.Report).WriteSVG,
				"json": func(r *occupancy.Report, w io.Writer) error { return json.NewEncoder(w).Encode(r) },
			}[output]
			if !ok {
				return fmt.Errorf("--output is %q: allowed are table, json, csv and svg", output)
			}
			if len(args) == 0 {
				return errors.New("no log: give one or more files, or - for the standard input")
			}
			f, err := in.format(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			o, err := in.options()
			if err != nil {
				return err
			}
			r, err := runOccupancy(cmd, args, f, o)
			if err != nil {
				return fmt.Errorf("occupancy: %w", err)
			}
			return write(r, cmd.OutOrStdout())
		},
	}
	in.flags(cmd.Flags())
	cmd.Flags().StringVar(&output, "output", "table", "table, json, csv or svg")
	cmd.AddCommand(&cobra.Command{
		Use: "presets", Short: "List the logs that --format knows, with what they need", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, p := range occupancy.Presets {
				t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 1, ' ', 0)
				fmt.Fprintf(t, "%s\t%s\n  needs\t%s\n  from\t%s\n", p.Name, p.About, p.Needs, p.Source)
				if err := t.Flush(); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return cmd
}

func runOccupancy(cmd *cobra.Command, args []string, f *occupancy.Format, o occupancy.Options) (*occupancy.Report, error) {
	var inputs []occupancy.Input
	for _, name := range args {
		if name == "-" {
			inputs = append(inputs, occupancy.Input{Name: "standard input", Data: cmd.InOrStdin()})
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // only read
		inputs = append(inputs, occupancy.Input{Name: name, Data: file})
	}
	return occupancy.Run(inputs, f, o)
}

// occupancyInput is what the flags say of the log.
type occupancyInput struct {
	name               string
	own                occupancy.Format // of the flags that are a format's
	timeIs, unit, zone string
	from, to, epoch    string
	opts               occupancy.Options
	excludePattern     string
}

func (in *occupancyInput) flags(f *pflag.FlagSet) {
	o := &in.own
	f.StringVar(&in.name, "format", "journal", "jsonl, text or a preset: "+strings.Join(presetNames(), ", "))
	f.StringVar(&o.Time, "time", "", "field with the time")
	f.StringVar(&o.End, "end", "", "field with the time of the end, where a line has both")
	f.StringVar(&o.ID, "id", "", "field with the request's id")
	f.StringVar(&o.Event, "event", "", "field that says what happened; what it says is in the next five")
	f.StringSliceVar(&o.Starts, "start", nil, "events that begin a span")
	f.StringSliceVar(&o.Dones, "done", nil, "events that end one")
	f.StringSliceVar(&o.Waits, "wait", nil, "events after which a request waits for its start")
	f.StringSliceVar(&o.Gones, "gone", nil, "events after which it no longer does")
	f.StringSliceVar(&o.Restarts, "restart", nil, "events that say that the process began anew, which ends all its spans")
	f.StringVar(&o.Duration, "duration", "", "field with the duration, where a line has both ends")
	f.StringVar(&o.Queue, "queue", "", "field with how much of the span, at its start, was a wait; it is taken off")
	f.StringVar(&in.unit, "duration-unit", "s", "of durations without a unit: s, ms, us or ns")
	f.StringVar(&in.timeIs, "time-is", "end", "of a line with a duration: its start or its end")
	f.StringVar(&o.Model, "model", "", "field with the model")
	f.StringVar(&o.Class, "class", "", "field with the class")
	f.StringVar(&o.Principal, "principal", "", "field with the principal")
	f.StringVar(&o.Tag, "tag", "", "field with a tag, or an array of them")
	f.StringVar(&o.Process, "process", "", "field with what changes when the process begins anew, such as its id")
	f.StringArrayVar(&o.Patterns, "pattern", nil, "of a text log: regular expression with groups "+strings.Join(occupancy.Groups, ", ")+"; may be given several times, the first that matches counts")
	f.StringVar(&o.TimeFormat, "time-format", "", "auto, rfc3339, unix, unix_ms, unix_us, unix_ns, elapsed, elapsed_us, or a layout as of Go's time package (default auto)")
	f.StringVar(&in.zone, "zone", "UTC", "zone of times without one, and of the hours of the day: a name such as Europe/Berlin, or local")
	f.IntVar(&in.opts.Year, "year", 0, "year of the first line, where times have none (default this year)")
	f.StringVar(&in.epoch, "epoch", "", "RFC 3339 time at which the process began, where times are since then (default 1970)")
	f.StringVar(&o.Wrapper, "in", "", "the log that the lines are in: "+strings.Join(occupancy.WrapperNames(), ", "))
	f.BoolVar(&o.Separate, "separate", false, "every file is a process of its own: ids and restarts concern it alone")
	f.StringVar(&in.from, "from", "", "RFC 3339 time from which to count (default the first line's)")
	f.StringVar(&in.to, "to", "", "RFC 3339 time up to which to count (default the last line's)")
	f.StringSliceVar(&in.opts.Exclude.Tags, "exclude-tag", nil, "tags of traffic that is not measured, such as a benchmark's")
	f.StringSliceVar(&in.opts.Exclude.Principals, "exclude-principal", nil, "principals of such traffic")
	f.StringVar(&in.excludePattern, "exclude", "", "regular expression of lines of such traffic")
	f.DurationVar(&in.opts.Slack, "slack", occupancy.DefaultSlack, "how far a line may stand behind one of a later time")
	f.DurationVar(&in.opts.MaxSpan, "max-span", occupancy.DefaultMaxSpan, "longest span; a start that is older has lost its done")
	f.DurationVar(&in.opts.Dedupe, "dedupe", occupancy.DefaultDedupe, "how long after a done a second one of the same id is a double")
}

func presetNames() (names []string) {
	for _, p := range occupancy.Presets {
		names = append(names, p.Name)
	}
	return names
}

// Flags that say what a log looks like, which a preset knows itself.
var occupancyMapping = []string{"time", "end", "id", "event", "start", "done", "wait", "gone", "restart", "duration", "queue", "duration-unit", "time-is", "model", "class", "principal", "tag", "process", "pattern", "time-format"}

// format returns the one that the flags say.
func (in *occupancyInput) format(given func(string) bool) (*occupancy.Format, error) {
	f := &in.own
	f.Name = in.name
	unit, ok := map[string]time.Duration{"s": time.Second, "ms": time.Millisecond, "us": time.Microsecond, "ns": time.Nanosecond}[in.unit]
	if !ok {
		return nil, fmt.Errorf("--duration-unit is %q: allowed are s, ms, us and ns", in.unit)
	}
	f.DurationUnit = unit
	if in.timeIs != "start" && in.timeIs != "end" {
		return nil, fmt.Errorf("--time-is is %q: allowed are start and end", in.timeIs)
	}
	f.TimeIsStart = in.timeIs == "start"
	var not []string
	switch in.name {
	case "jsonl":
		f.JSON, not = true, []string{"pattern"}
	case "text":
		not = []string{"time", "end", "id", "duration", "queue", "model", "class", "principal", "tag", "process"}
	default:
		p := occupancy.Preset(in.name)
		if p == nil {
			return nil, fmt.Errorf("--format is %q: allowed are jsonl, text, %s", in.name, strings.Join(presetNames(), ", "))
		}
		not = occupancyMapping
		p.Wrapper = cmp.Or(f.Wrapper, p.Wrapper)
		p.Separate = p.Separate || f.Separate
		f = p
	}
	if i := slices.IndexFunc(not, given); i >= 0 {
		return nil, fmt.Errorf("--%s: not with --format %s", not[i], in.name)
	}
	return f, nil
}

func (in *occupancyInput) options() (o occupancy.Options, err error) {
	o = in.opts
	if o.Zone, err = time.LoadLocation(in.zone); in.zone == "local" {
		o.Zone, err = time.Local, nil
	}
	if err != nil {
		return o, fmt.Errorf("--zone: %w", err)
	}
	if o.Year == 0 {
		o.Year = time.Now().In(o.Zone).Year()
	}
	for _, t := range []struct {
		flag, value string
		to          *int64
	}{{"from", in.from, &o.From}, {"to", in.to, &o.To}, {"epoch", in.epoch, &o.Epoch}} {
		if t.value == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, t.value)
		if err != nil {
			return o, fmt.Errorf("--%s is %q: allowed is an RFC 3339 time, such as 2026-11-30T06:40:00Z", t.flag, t.value)
		}
		*t.to = at.UnixNano()
	}
	if in.excludePattern != "" {
		if o.Exclude.Pattern, err = regexp.Compile(in.excludePattern); err != nil {
			return o, fmt.Errorf("--exclude: %w", err)
		}
	}
	return o, nil
}
