// Command recompute computes every figure of a bench report again, from the requests
// alone, and says where the report differs. It shares no code with the program that
// wrote the report: a fault would have to be made twice to pass.
//
//	recompute REPORT.json FILE_OR_DIRECTORY...
//
// The files are *.requests.jsonl; a directory is looked through. Each is found by the
// SHA-256 that the report has of it.
//
// What it takes from the report is what no request can say: the plan's objective,
// criteria and margins, which runs are pairs, and what the gates said of a run. What
// it cannot compute, since it is not of requests, it counts and names: beside_requests,
// which is from recalls and samples. Any other figure that it has not computed is an
// error. It exits with 1 if anything differs, with 2 if it could not be done.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: recompute REPORT.json FILE_OR_DIRECTORY...")
		os.Exit(2)
	}
	ok, err := recompute(os.Args[1], os.Args[2:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "recompute:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// claimed is what is taken from a report.
type claimed struct {
	Schema string
	Plan   struct {
		OnTime       objective `json:"on_time"`
		StopAt       float64   `json:"stop_at"`
		PairsPlanned int       `json:"pairs_planned"`
	}
	Analysis struct {
		Level       float64
		FlipSeed    uint64 `json:"flip_seed"`
		P99Requests int    `json:"p99_requests"`
	}
	Decisions, Secondary, Described []effectClaim
	Floor                           *struct {
		Runs  []runClaim
		Pairs []pairClaim
		Noise []effectClaim
	} `json:"noise_floor"`
	Shift []struct{ Quantile float64 }
	Arms  []struct{ Name string }
	Pairs []pairClaim
	Runs  []runClaim
}

type objective struct {
	Class, Window string
	TTFT          float64 `json:"ttft_ms"`
	E2E           float64 `json:"e2e_ms"`
}

type effectClaim struct {
	Role, Metric, Scale, Better string
	Margin                      float64
}

type pairClaim struct {
	Source              string
	Baseline, Treatment int
	TreatmentFirst      bool `json:"treatment_first"`
	Excluded            string
}

type runClaim struct {
	Arm, Source string
	Requests    string
	SHA256      string `json:"requests_sha256"`
	Invalid     []string
	Censored    []string
}

const schema = "headgate.bench.report/1"

// recompute tells whether all figures of a report are those of the requests.
func recompute(report string, paths []string, out io.Writer) (bool, error) {
	raw, err := os.ReadFile(report)
	if err != nil {
		return false, err
	}
	var c claimed
	if err := json.Unmarshal(raw, &c); err != nil {
		return false, fmt.Errorf("%s: %w", report, err)
	}
	if c.Schema != schema {
		return false, fmt.Errorf("%s: schema is %q, allowed is %q", report, c.Schema, schema)
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return false, err
	}
	files, err := index(paths)
	if err != nil {
		return false, err
	}
	x := &computation{claimed: &c, figures: map[string]any{}}
	if err := x.all(files); err != nil {
		return false, err
	}
	have := map[string]any{}
	flatten("", tree, have)
	return compare(have, x.figures, out), nil
}

// index finds requests files by their hashes.
func index(paths []string) (map[string]string, error) {
	found := map[string]string{}
	for _, p := range paths {
		err := filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".jsonl") {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			found[hex.EncodeToString(sum[:])] = path
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// readLines reads one run's requests.
func readLines(files map[string]string, r *runClaim) ([]request, error) {
	path, ok := files[r.SHA256]
	if !ok {
		return nil, fmt.Errorf("%s: no file has its hash %s", r.Requests, r.SHA256)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lines []request
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		var l request
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF):
			return lines, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		lines = append(lines, l)
	}
}

// flatten names every leaf of a JSON value by its path.
func flatten(path string, v any, into map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			flatten(strings.TrimPrefix(path+"."+k, "."), e, into)
		}
	case []any:
		for i, e := range v {
			flatten(fmt.Sprintf("%s[%d]", path, i), e, into)
		}
	default:
		into[path] = v
	}
}

// taken are figures that no request can tell: settings, places in lists, seeds.
var taken = regexp.MustCompile(`^(plan|evidence\[\d+\]|analysis)\.|\.asked$|^decisions\[\d+\]\.margin$|^shift\[\d+\]\.quantile$|` +
	`(^|\.)pairs\[\d+\]\.(baseline|treatment)$|(^|\.)runs\[\d+\]\.(evidence|run|seed)$`)

// beside are figures that are not of requests.
var beside = regexp.MustCompile(`\.beside_requests\.`)

// compare holds the report's leaves against what was computed.
func compare(have, want map[string]any, out io.Writer) bool {
	differ, same, apart, other := 0, 0, 0, 0
	for _, path := range slices.Sorted(maps.Keys(want)) {
		h, ok := have[path]
		switch {
		case !ok:
			fmt.Fprintf(out, "%s: not in the report, computed %s\n", path, text(want[path]))
			differ++
		case !equal(path, h, want[path]):
			fmt.Fprintf(out, "%s: the report has %s, computed %s\n", path, text(h), text(want[path]))
			differ++
		default:
			same++
		}
	}
	for _, path := range slices.Sorted(maps.Keys(have)) {
		if _, done := want[path]; done || !figure(have[path]) {
			continue
		}
		switch {
		case beside.MatchString(path):
			apart++
		case taken.MatchString(path):
			other++
		default:
			fmt.Fprintf(out, "%s: %s is in the report, and was not computed\n", path, text(have[path]))
			differ++
		}
	}
	fmt.Fprintf(out, "%d figures and names are the same, %d differ; %d are not of requests (beside_requests), %d are settings\n", same, differ, apart, other)
	return differ == 0
}

// figure tells whether a leaf is a number, in one of its forms.
func figure(v any) bool {
	switch v := v.(type) {
	case float64:
		return true
	case string:
		return v == "inf" || v == "-inf"
	}
	return false
}

// tolerances: rounding of sums in another order; and of a power that both programs find
// by their own numerical integration.
const (
	tolerance      = 1e-9
	tolerancePower = 2e-4
)

func equal(path string, have, want any) bool {
	w, ok := want.(float64)
	if !ok {
		return have == want
	}
	switch {
	case math.IsNaN(w):
		return have == nil
	case math.IsInf(w, 1):
		return have == "inf"
	case math.IsInf(w, -1):
		return have == "-inf"
	}
	h, ok := have.(float64)
	t := tolerance
	if strings.HasSuffix(path, "mde") {
		t = tolerancePower
	}
	return ok && math.Abs(h-w) <= t*max(1e-3, math.Abs(w))
}

func text(v any) string {
	if f, ok := v.(float64); ok {
		return fmt.Sprintf("%.12g", f)
	}
	return fmt.Sprintf("%v", v)
}
