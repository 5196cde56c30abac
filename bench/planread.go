package bench

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"headgate/trace"
)

// UnmarshalYAML reads a duration as Go writes them.
func (d *Duration) UnmarshalYAML(n ast.Node) error {
	v, err := time.ParseDuration(n.GetToken().Value)
	if err != nil {
		return misread(n, "allowed are durations such as 250ms, 5s and 10m")
	}
	*d = Duration(v)
	return nil
}

// misread is the error about a value of the wrong form, with its place.
func misread(n ast.Node, allowed string) error {
	t := n.GetToken()
	return fmt.Errorf("%d:%d: value %s: %s", t.Position.Line, t.Position.Column, t.Value, allowed)
}

// UnmarshalYAML reads 5%, 0.5pp or a number.
func (m *Margin) UnmarshalYAML(n ast.Node) error {
	number, scale := n.GetToken().Value, 1.0
	if s, ok := strings.CutSuffix(number, "%"); ok {
		number, scale, m.Relative = s, 0.01, true
	} else if s, ok := strings.CutSuffix(number, "pp"); ok {
		number, scale, m.Points = s, 0.01, true
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return misread(n, "allowed are 5% of the baseline, 0.5pp of a share, and a number in the metric's unit")
	}
	m.Value = v * scale
	return nil
}

// maxPlan bounds a plan's file, in bytes.
const maxPlan = 1 << 20

// Load reads a plan. Paths in it are relative to its own directory.
func Load(file string) (*Plan, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if info.Size() > maxPlan {
		return nil, fmt.Errorf("plan %s has %d bytes: allowed are %d", file, info.Size(), maxPlan)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return Parse(file, b)
}

// Parse reads a plan; file is its name in errors, and where its paths begin.
// Whatever is wrong with it is in the error, a line for each thing.
func Parse(file string, b []byte) (*Plan, error) {
	p := &Plan{raw: slices.Clone(b), file: file}
	if err := yaml.UnmarshalWithOptions(b, p, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("plan %s: %w", file, readable(err))
	}
	// The reader takes the first document, and would leave what another says unsaid.
	if doc, err := parser.ParseBytes(b, 0); err == nil && len(doc.Docs) > 1 {
		return nil, fmt.Errorf("plan %s: a second document: allowed is one in a file", file)
	}
	sum := sha256.Sum256(b)
	p.sha256 = hex.EncodeToString(sum[:])
	p.setDefaults()
	if err := p.err(); err != nil {
		return nil, err
	}
	return p, nil
}

// err is everything that Validate reports.
func (p *Plan) err() error {
	var all []error
	p.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("plan %s: %s is %v: allowed is %s", p.file, path, value, allowed))
	})
	return errors.Join(all...)
}

// SetRunner runs the plan by another runner than it says, if it can be.
func (p *Plan) SetRunner(runner string) error {
	p.Runner = runner
	return p.err()
}

// readable is a reader's error in one line: the place, and for a key that is
// none, the keys there are that look like it.
func readable(err error) error {
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		key, at := unknown.Token.Value, unknown.Token.Position
		text := fmt.Sprintf("%d:%d: %s is no key here", at.Line, at.Column, key)
		if like := nearest(key, planKeys()); like != "" {
			text += ": did you mean " + like + "?"
		}
		return errors.New(text)
	}
	return errors.New(strings.TrimSpace(yaml.FormatError(err, false, false)))
}

// SHA256 is the plan's hash, over its bytes, in hexadecimal.
func (p *Plan) SHA256() string { return p.sha256 }

// Bytes are the plan as it was read.
func (p *Plan) Bytes() []byte { return p.raw }

// Path is a path of the plan's, from where the program runs.
func (p *Plan) Path(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(p.file), path)
}

func (p *Plan) setDefaults() {
	or(&p.Runner, Live)
	or(&p.OnTime.Class, trace.Interactive)
	or(&p.OnTime.Window, ReturnWindow)
	or(&p.Workload.Speedup, 1)
	or(&p.Workload.Drain, Duration(2*time.Minute))
	if p.Workload.Profile != "" {
		or(&p.Workload.Seeds, "1-30")
	}
	if s := p.Engine.Simulated; s != nil {
		or(&s.Speed, 1)
	}
	if s := p.Engine.Served; s != nil {
		or(&s.Ready, Duration(time.Minute))
	}
	for i := range p.Arms {
		a := &p.Arms[i]
		or(&a.Speed, 1)
		if a.Proxy != nil {
			or(&a.Proxy.Ready, Duration(time.Minute))
		}
	}
	d := DefaultLimits()
	g := &p.Gates
	or(&g.ScheduleDelay, d.ScheduleDelay)
	or(&g.ScheduleDelayShare, d.ScheduleDelayShare)
	or(&g.RateOff, d.RateOff)
	or(&g.GeneratorCPU, d.GeneratorCPU)
	or(&g.GCPause, d.GCPause)
	or(&g.ClockDrift, d.ClockDrift)
	or(&g.StartKV, d.StartKV)
	or(&g.BatchDry, d.BatchDry)
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Seeds reads a list of numbers and ranges. The error says what is allowed.
func Seeds(s string) ([]uint32, error) {
	bad := fmt.Errorf("numbers and ranges from 0 to 4294967295, such as 1-30 or 1,4,7-9, no number twice, %d in all", trace.MaxSeeds)
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	seeds, ok := trace.ParseSeeds(strings.Join(parts, ","))
	if !ok {
		return nil, bad
	}
	sorted := slices.Clone(seeds)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(seeds) {
		return nil, bad
	}
	return seeds, nil
}
