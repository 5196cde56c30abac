package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"headgate/prove"
	"headgate/sim"
	"headgate/trace"
)

// simTraces is where a comparison's traces come from: one of three places.
type simTraces struct {
	profiles []string // drawn
	seeds    string

	dir     string // read, a trace a file
	classOf map[string]string

	interactive, batch string // recorded logs, together one trace

	limit    int
	duration time.Duration
}

// origins are the flags of each place.
var origins = [][]string{{"profile", "seeds"}, {"traces", "class-of"}, {"interactive", "batch"}}

func (in *simTraces) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&in.profiles, "profile", []string{"metal-long-context-v1"}, "workloads to draw traces from: "+strings.Join(trace.Names(), ", "))
	f.StringVar(&in.seeds, "seeds", "1-5", "seeds, such as 1-30 or 1,4,7-9")
	f.StringVar(&in.dir, "traces", "", "directory with files of traces; what is of no known format is passed over")
	f.StringToStringVar(&in.classOf, "class-of", nil, "class of a recorded log in --traces, as FILE=CLASS: interactive or batch (default interactive)")
	f.StringVar(&in.interactive, "interactive", "", "recorded log whose requests are interactive")
	f.StringVar(&in.batch, "batch", "", "recorded log whose requests are batch; with --interactive it becomes one trace")
	f.IntVar(&in.limit, "limit", 0, "most requests of a recorded trace, its first ones; 0 is all")
	f.DurationVar(&in.duration, "duration", 0, "how much of a recorded trace's time to take, such as 10m; 0 is all")
}

// sources returns the traces. What is passed over in a directory is told to
// notes.
func (in *simTraces) sources(given func(flag string) bool, notes io.Writer) ([]sim.Source, error) {
	if err := in.check(given); err != nil {
		return nil, err
	}
	switch {
	case in.dir != "":
		return in.directory(notes)
	case in.interactive != "" || in.batch != "":
		return in.logs()
	}
	seeds, err := parseSeeds(in.seeds)
	if err != nil {
		return nil, err
	}
	return sim.Drawn(in.profiles, seeds), nil
}

func (in *simTraces) check(given func(flag string) bool) error {
	from := ""
	for _, flags := range origins {
		for _, f := range flags {
			switch {
			case !given(f):
			case from != "" && !slices.Contains(flags, from):
				return fmt.Errorf("--%s and --%s: allowed is one origin of traces: --profile with --seeds, --traces with --class-of, or --interactive with --batch", from, f)
			default:
				from = f
			}
		}
	}
	recorded := in.dir != "" || in.interactive != "" || in.batch != ""
	switch {
	case in.limit < 0:
		return fmt.Errorf("--limit is %d: allowed is a number of requests from 1, or 0 for all", in.limit)
	case in.duration < 0:
		return fmt.Errorf("--duration is %v: allowed is a time above 0, or 0 for all", in.duration)
	case (given("limit") || given("duration")) && !recorded:
		return errors.New("--limit and --duration cut recorded traces: allowed with --traces, --interactive and --batch")
	case given("class-of") && in.dir == "":
		return errors.New("--class-of: allowed with --traces")
	}
	for _, file := range slices.Sorted(maps.Keys(in.classOf)) {
		if class := in.classOf[file]; class != trace.Interactive && class != trace.Batch {
			return fmt.Errorf("--class-of %s is %q: allowed are %s and %s", file, class, trace.Interactive, trace.Batch)
		}
	}
	return nil
}

// directory reads every file of known format, in the order of their names.
func (in *simTraces) directory(notes io.Writer) ([]sim.Source, error) {
	files, err := os.ReadDir(in.dir) // sorted
	if err != nil {
		return nil, fmt.Errorf("--traces: %w", err)
	}
	var all []sim.Source
	classed := map[string]bool{}
	for _, f := range files {
		path := filepath.Join(in.dir, f.Name())
		if info, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("--traces: %w", err)
		} else if !info.Mode().IsRegular() {
			continue
		}
		class, named := in.classOf[f.Name()]
		if !named {
			class = trace.Interactive
		}
		t, err := readTrace(path, class)
		if errors.Is(err, trace.ErrFormat) {
			fmt.Fprintf(notes, "headgate: passed over: %v\n", err)
			continue
		}
		if err == nil {
			t, err = in.cut(path, t)
		}
		if err != nil {
			return nil, fmt.Errorf("--traces: %w", err)
		}
		if named {
			if err := isLog(path, t, class); err != nil {
				return nil, fmt.Errorf("--class-of: %w", err)
			}
			classed[f.Name()] = true
		}
		all = append(all, sim.FromFile(f.Name(), t))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("--traces is %s: no file in it has a known format: allowed is a directory with at least one", in.dir)
	}
	for _, file := range slices.Sorted(maps.Keys(in.classOf)) {
		if !classed[file] {
			return nil, fmt.Errorf("--class-of names %s: allowed are the recorded logs in %s", file, in.dir)
		}
	}
	return all, nil
}

// logs reads one recorded log, or two and lays them over each other.
func (in *simTraces) logs() ([]sim.Source, error) {
	var files []string
	var traces []*trace.Trace
	for _, l := range []struct{ path, class string }{{in.interactive, trace.Interactive}, {in.batch, trace.Batch}} {
		if l.path == "" {
			continue
		}
		t, err := readTrace(l.path, l.class)
		if err == nil {
			err = isLog(l.path, t, l.class)
		}
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", l.class, err)
		}
		files, traces = append(files, filepath.Base(l.path)), append(traces, t)
	}
	t, err := trace.Mix(traces[0], traces[1:]...)
	if err != nil {
		return nil, err
	}
	file := strings.Join(files, ",")
	if t, err = in.cut(file, t); err != nil {
		return nil, err
	}
	return []sim.Source{sim.FromFile(file, t)}, nil
}

// isLog reports a trace that did not take the class it was given.
func isLog(path string, t *trace.Trace, class string) error {
	for i := range t.Entries {
		if t.Entries[i].Class != class {
			return fmt.Errorf("%s has classes of its own: allowed is a recorded log", path)
		}
	}
	return nil
}

func (in *simTraces) cut(file string, t *trace.Trace) (*trace.Trace, error) {
	cut := t.Cut(in.limit, in.duration)
	if len(cut.Entries) == 0 {
		return nil, fmt.Errorf("%s: no request in the first %v: allowed is a --duration beyond %v", file, in.duration, t.Entries[0].Arrival)
	}
	return cut, nil
}

// readTrace reads a trace of any format; a journal has classes of its own.
func readTrace(path, class string) (*trace.Trace, error) {
	if prove.IsJournal(path) {
		return journalTrace(prove.Source{Files: []string{path}})
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	t, err := trace.Read(f, path, class)
	return t, errors.Join(err, f.Close())
}

// journalTrace is the arrivals that a journal recorded.
func journalTrace(s prove.Source) (*trace.Trace, error) {
	r, err := prove.Record(s)
	if err != nil {
		return nil, err
	}
	return r.Trace()
}
