package bench

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

// Workloads are a plan's traces: one is one pair of runs.
type Workloads struct {
	Sources []Source
	plan    *Plan
	read    []*trace.Trace // nil where they are drawn
}

// Workloads reads what the plan's traces are made from.
func (p *Plan) Workloads() (*Workloads, error) {
	w := &Workloads{plan: p}
	var err error
	switch {
	case p.Workload.Profile != "":
		seeds, bad := Seeds(p.Workload.Seeds)
		if bad != nil {
			return nil, bad
		}
		for _, seed := range seeds {
			w.Sources = append(w.Sources, Source{Name: fmt.Sprintf("seed%d", seed), Profile: p.Workload.Profile, Seed: seed})
		}
	case p.Workload.Traces != "":
		err = w.directory(p.Path(p.Workload.Traces))
	default:
		err = w.logs()
	}
	if err == nil {
		err = w.classes()
	}
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	return w, nil
}

// classes tells whether the plan names classes that the traces have. A class that is
// written wrong would be asked of nobody, or have the priority of none.
func (w *Workloads) classes() error {
	have := map[string]bool{}
	for i := range max(1, len(w.read)) { // drawn traces have the same classes
		t, err := w.Trace(i)
		if err != nil {
			return err
		}
		for k := range t.Entries {
			have[t.Entries[k].Class] = true
		}
	}
	known := strings.Join(slices.Sorted(maps.Keys(have)), ", ")
	if c := w.plan.OnTime.Class; !have[c] {
		return fmt.Errorf("on_time.class is %s: allowed is a class of the traces: %s", c, known)
	}
	for i := range w.plan.Arms {
		a := &w.plan.Arms[i]
		var named []string
		if a.Direct != nil {
			named = slices.Sorted(maps.Keys(a.Direct.Priority))
		}
		if a.Proxy != nil {
			named = slices.Sorted(maps.Keys(a.Proxy.Headers))
		}
		for _, c := range named {
			if !have[c] {
				return fmt.Errorf("arm %s names the class %s: allowed are classes of the traces: %s", a.Name, c, known)
			}
		}
	}
	return nil
}

// Doubts are criteria that the traces are too small for, in words: no run of them could
// pass or fail such a plan.
func (w *Workloads) Doubts() ([]string, error) {
	c := &w.plan.Compare
	if !slices.ContainsFunc(append(slices.Clone(c.NoHarm), c.Gain), func(k Criterion) bool { return k.Metric == "ttft_p99" }) {
		return nil, nil
	}
	t, err := w.Trace(0)
	if err != nil {
		return nil, err
	}
	asked := 0
	lines := w.plan.lines(t, &w.Sources[0], "")
	for i := range lines {
		if w.plan.OnTime.Of(&lines[i]) {
			asked++
		}
	}
	if asked >= P99Requests {
		return nil, nil
	}
	return []string{fmt.Sprintf("a criterion asks ttft_p99, which needs %d requests a run: %s has %d that on_time asks, so the verdict will be inconclusive; ttft_p95 is one that it has", P99Requests, w.Sources[0].Name, asked)}, nil
}

// Files are the hashes of the files that the plan names, by their paths in it:
// what they say is part of what was registered.
func (p *Plan) Files() (map[string]string, error) {
	paths := []string{p.Workload.Interactive, p.Workload.Batch}
	if dir := p.Workload.Traces; dir != "" {
		files, err := os.ReadDir(p.Path(dir))
		if err != nil {
			return nil, fmt.Errorf("workload.traces: %w", err)
		}
		for _, f := range files {
			if f.Type().IsRegular() {
				paths = append(paths, filepath.Join(dir, f.Name()))
			}
		}
	}
	paths = append(paths, p.runFiles()...)
	hashes := map[string]string{}
	for _, path := range paths {
		if path == "" {
			continue
		}
		b, err := os.ReadFile(p.Path(path))
		if err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
		hashes[path] = hash(b)
	}
	return hashes, nil
}

// runFiles are the paths of the files that every run reads again: the step-time model
// and the policies.
func (p *Plan) runFiles() []string {
	var paths []string
	if s := p.Engine.Simulated; s != nil && s.Model != "" && !slices.Contains(simengine.Models(), s.Model) {
		paths = append(paths, s.Model)
	}
	for i := range p.Arms {
		if f := p.Arms[i].Policy; f != "" && f != DefaultPolicy {
			paths = append(paths, f)
		}
	}
	return paths
}

// Trace returns a source's trace as it is sent: cut, and sped up.
func (w *Workloads) Trace(i int) (*trace.Trace, error) {
	s := &w.Sources[i]
	if w.read != nil {
		return faster(w.read[i], w.plan.Workload.Speedup), nil
	}
	t, err := trace.Generate(s.Profile, s.Seed)
	if err != nil {
		return nil, err
	}
	return faster(t, w.plan.Workload.Speedup), nil
}

// directory reads every file of a known format, in the order of their names.
func (w *Workloads) directory(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if !f.Type().IsRegular() {
			continue
		}
		t, err := readTrace(filepath.Join(dir, f.Name()), trace.Interactive)
		if errors.Is(err, trace.ErrFormat) {
			continue
		}
		if err != nil {
			return err
		}
		if err := w.add(f.Name(), t); err != nil {
			return err
		}
	}
	if len(w.read) == 0 {
		return fmt.Errorf("%s: no file in it has a known format: allowed is a directory with at least one", dir)
	}
	return nil
}

// logs reads one recorded log, or two and lays them over each other.
func (w *Workloads) logs() error {
	var files []string
	var traces []*trace.Trace
	for _, l := range []struct{ path, class string }{{w.plan.Workload.Interactive, trace.Interactive}, {w.plan.Workload.Batch, trace.Batch}} {
		if l.path == "" {
			continue
		}
		t, err := readTrace(w.plan.Path(l.path), l.class)
		if err != nil {
			return err
		}
		files, traces = append(files, filepath.Base(l.path)), append(traces, t)
	}
	t, err := trace.Mix(traces[0], traces[1:]...)
	if err != nil {
		return err
	}
	return w.add(strings.Join(files, ","), t)
}

func (w *Workloads) add(file string, t *trace.Trace) error {
	t = t.Cut(w.plan.Workload.Limit, time.Duration(w.plan.Workload.Duration))
	if len(t.Entries) == 0 {
		return fmt.Errorf("%s: no request in the first %v", file, w.plan.Workload.Duration)
	}
	var parts []string
	for part := range strings.SplitSeq(file, ",") {
		parts = append(parts, strings.TrimSuffix(part, filepath.Ext(part)))
	}
	name := fileName(strings.Join(parts, "_"))
	if slices.ContainsFunc(w.Sources, func(s Source) bool { return s.Name == name }) {
		return fmt.Errorf("%s: another file is named %s too", file, name)
	}
	if i := slices.IndexFunc(w.read, func(o *trace.Trace) bool { return o.Hash() == t.Hash() }); i >= 0 {
		return fmt.Errorf("%s has the same requests as %s: allowed is each trace once, since a pair that is repeated is no further pair", file, w.Sources[i].File)
	}
	w.Sources = append(w.Sources, Source{Name: name, Profile: t.Profile, Seed: t.Seed, File: file})
	w.read = append(w.read, t)
	return nil
}

// fileName is a name that can be part of a file's.
func fileName(s string) string {
	return strings.Map(func(c rune) rune {
		if validArm(string(c)) {
			return c
		}
		return '_'
	}, s[:min(len(s), 60)])
}

func readTrace(path, class string) (*trace.Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	t, err := trace.Read(f, path, class)
	return t, errors.Join(err, f.Close())
}

// faster returns the trace with arrivals, and windows, that many times sooner.
func faster(t *trace.Trace, speedup float64) *trace.Trace {
	if speedup == 1 {
		return t
	}
	f := *t
	f.Entries = slices.Clone(t.Entries)
	for i := range f.Entries {
		f.Entries[i].Arrival = time.Duration(float64(f.Entries[i].Arrival) / speedup).Round(time.Microsecond)
	}
	w := &f.Workload
	for _, ms := range []*int{&w.DurationMs, &w.BatchStartMs, &w.BatchDurationMs, &w.InteractiveStartMs, &w.InteractiveDurationMs, &w.ResumeStartMs, &w.ResumeDurationMs} {
		*ms = int(float64(*ms)/speedup + 0.5)
	}
	w.InteractiveRps, w.BatchRps, w.ResumeRps = w.InteractiveRps*speedup, w.BatchRps*speedup, w.ResumeRps*speedup
	return &f
}

// Slot is one run that a plan asks for.
type Slot struct {
	Block, Order int
	Arm          string
}

// Schedule is the order of a plan's runs over so many sources: each source's runs
// one after another, the arms rotated. Every len(arms) sources have each rotation
// once, in an order that the plan's hash draws, so nobody chooses it.
func (p *Plan) Schedule(sources int) []Slot {
	h := fnv.New64a()
	_, _ = h.Write([]byte(p.sha256)) // never fails
	r := rand.New(rand.NewPCG(h.Sum64(), 0))
	var all []Slot
	var rotations []int
	for block := range sources {
		if len(rotations) == 0 {
			rotations = r.Perm(len(p.Arms))
		}
		for k := range p.Arms {
			all = append(all, Slot{block, k, p.Arms[(rotations[0]+k)%len(p.Arms)].Name})
		}
		rotations = rotations[1:]
	}
	return all
}

// tenant deals requests to tenants: of a session all to one. The first of n gets
// most, by 1/rank, as the busiest client of a real service does.
func tenant(e *trace.Entry, seed uint32, n int) string {
	if n == 0 {
		return ""
	}
	h := fnv.New64a()
	name := e.Session
	if name == "" {
		name = e.ID
	}
	_, _ = h.Write([]byte(name)) // never fails
	sum := 0.0
	for k := range n {
		sum += 1 / float64(k+1)
	}
	u := rand.New(rand.NewPCG(uint64(seed), h.Sum64())).Float64() * sum
	k := 0
	for ; k < n-1 && u >= 1/float64(k+1); k++ {
		u -= 1 / float64(k+1)
	}
	return fmt.Sprintf("tenant-%d", k+1)
}

// lines begins the lines of a run: what is known of each request before it is
// sent.
func (p *Plan) lines(t *trace.Trace, s *Source, arm string) []sim.RequestLine {
	borrow, back, end := t.Workload.Borrow(), t.Workload.Return(), t.Workload.Duration()
	warm := time.Duration(p.Workload.Warmup)
	all := make([]sim.RequestLine, len(t.Entries))
	for i := range t.Entries {
		e := &t.Entries[i]
		at := float64(e.Arrival) / float64(time.Millisecond)
		all[i] = sim.RequestLine{
			Profile: s.Profile, Seed: s.Seed, File: s.File, Arm: arm, ID: e.ID, Class: e.Class, ArrivalMS: &at, Prompt: e.PromptTokens,
			Tenant: tenant(e, s.Seed, p.Workload.Tenants), Warmup: e.Arrival < warm, MeasuredMS: float64(end-warm) / float64(time.Millisecond),
		}
		switch {
		case borrow.Contains(e.Arrival):
			all[i].Window = BorrowWindow
		case back.Contains(e.Arrival):
			all[i].Window = ReturnWindow
		}
	}
	return all
}
