package bench

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"headgate/sim"
)

// Dir is a directory of evidence. Every file in it is written once, whole or not
// at all:
//
//	plan.yaml                          the plan, byte for byte
//	manifest.json                      Manifest
//	runs/NNN-SOURCE-ARM.json           one Result a run, in the order of running
//	runs/NNN-SOURCE-ARM.requests.jsonl its requests, one sim.RequestLine a line
//
// A run's requests are written before its result, so a result always has them.
// Requests without a result are what is left of a run that was cut off; they stay,
// and their number is not used again.
type Dir struct {
	path string
	next int      // number of the next run
	held *os.File // the plan's file, while nobody else may run it into this directory
}

const (
	planFile     = "plan.yaml"
	manifestFile = "manifest.json"
	runsDir      = "runs"
)

// ErrOtherPlan reports a directory that has another plan's evidence.
var ErrOtherPlan = errors.New("the directory has the evidence of another plan")

// Create opens a directory for a plan's runs, and makes it where there is none.
// One that has runs of the same plan by the same runner goes on; one of another
// plan is ErrOtherPlan.
func Create(path string, p *Plan, m Manifest) (*Dir, error) {
	if err := os.MkdirAll(filepath.Join(path, runsDir), 0o755); err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	m.PlanSHA256, m.Name = p.SHA256(), p.Name
	have, err := os.ReadFile(filepath.Join(path, planFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := writeOnce(filepath.Join(path, planFile), p.Bytes()); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("evidence: %w", err)
	case !bytes.Equal(have, p.Bytes()):
		return nil, fmt.Errorf("%s: %w: allowed is a new directory, or the plan whose hash is %s", path, ErrOtherPlan, hash(have))
	}
	old, err := readManifest(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b, err := json.MarshalIndent(m, "", "  ")
		if err != nil {
			return nil, err
		}
		if err := writeOnce(filepath.Join(path, manifestFile), append(b, '\n')); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case old.Runner != m.Runner:
		return nil, fmt.Errorf("%s has runs by runner %s, not %s: allowed is a new directory", path, old.Runner, m.Runner)
	case old.Version != m.Version:
		return nil, fmt.Errorf("%s has runs by headgate %s, this is %s: allowed is a new directory", path, old.Version, m.Version)
	case old.Program != "" && old.Program != m.Program:
		return nil, fmt.Errorf("%s has runs by another build of headgate %s (%s, this is %s): allowed is a new directory", path, old.Version, old.Program, m.Program)
	case m.Runner == Live && !old.Host.same(m.Host): // in virtual time a machine has no part in a run
		return nil, fmt.Errorf("%s has runs of another machine (%+v, this is %+v): allowed is a new directory", path, old.Host, m.Host)
	case !maps.Equal(old.Files, m.Files):
		return nil, fmt.Errorf("%s has runs with other files, of the same names, than the plan finds now (%v, then %v): allowed is a new directory", path, m.Files, old.Files)
	}
	d, err := Open(path)
	if err != nil {
		return nil, err
	}
	if d.held, err = os.Open(filepath.Join(path, planFile)); err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	if err := lock(d.held); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: another process runs the plan into it: %w", path, err), d.Close())
	}
	return d, nil
}

// Close lets others run the plan into the directory.
func (d *Dir) Close() error {
	if d.held == nil {
		return nil
	}
	return d.held.Close()
}

// Open opens a directory that there is, for reading.
func Open(path string) (*Dir, error) {
	d := &Dir{path: path, next: 1}
	files, err := os.ReadDir(filepath.Join(path, runsDir))
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	for _, f := range files {
		if m := runFile.FindStringSubmatch(f.Name()); m != nil {
			n, _ := strconv.Atoi(m[1]) // digits
			d.next = max(d.next, n+1)
		}
	}
	return d, nil
}

// runFile is a file's name in the directory of runs.
var runFile = regexp.MustCompile(`^(\d{3,9})-[A-Za-z0-9_.-]+?(\.requests\.jsonl|\.json)$`)

// Path is where the directory is.
func (d *Dir) Path() string { return d.path }

// Plan reads the plan.
func (d *Dir) Plan() (*Plan, error) { return Load(filepath.Join(d.path, planFile)) }

// Manifest reads the manifest.
func (d *Dir) Manifest() (*Manifest, error) { return readManifest(d.path) }

func readManifest(path string) (*Manifest, error) {
	b, err := os.ReadFile(filepath.Join(path, manifestFile))
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	m := &Manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("evidence: %s: %w", filepath.Join(path, manifestFile), err)
	}
	return m, nil
}

// Append keeps a run, which gets its number here.
func (d *Dir) Append(r *Result, lines []sim.RequestLine) error {
	r.Run = d.next
	base := fmt.Sprintf("%03d-%s-%s", r.Run, r.Source.Name, r.Arm)
	requests, err := EncodeRequests(lines)
	if err != nil {
		return fmt.Errorf("evidence: %s: %w", base, err)
	}
	r.Requests, r.RequestsSHA256 = base+".requests.jsonl", hash(requests)
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("evidence: %s: %w", base, err)
	}
	d.next++
	if err := writeOnce(filepath.Join(d.path, runsDir, r.Requests), requests); err != nil {
		return err
	}
	return writeOnce(filepath.Join(d.path, runsDir, base+".json"), append(b, '\n'))
}

// Results reads all runs, in the order of running.
func (d *Dir) Results() ([]Result, error) {
	files, err := os.ReadDir(filepath.Join(d.path, runsDir))
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	var all []Result
	for _, f := range files {
		m := runFile.FindStringSubmatch(f.Name())
		if m == nil || m[2] != ".json" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d.path, runsDir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("evidence: %w", err)
		}
		var r Result
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("evidence: %s: %w", f.Name(), err)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Result) int { return a.Run - b.Run })
	return all, nil
}

// Requests reads a run's requests. That they are not what the result was made
// with is an error.
func (d *Dir) Requests(r *Result) ([]sim.RequestLine, error) {
	if filepath.Base(r.Requests) != r.Requests {
		return nil, fmt.Errorf("evidence: run %d: requests is %q: allowed is a file's name", r.Run, r.Requests)
	}
	b, err := os.ReadFile(filepath.Join(d.path, runsDir, r.Requests))
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	if h := hash(b); h != r.RequestsSHA256 {
		return nil, fmt.Errorf("evidence: %s has hash %s, its result says %s: it was changed", r.Requests, h, r.RequestsSHA256)
	}
	lines, err := DecodeRequests(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("evidence: %s: %w", r.Requests, err)
	}
	return lines, nil
}

// WriteRequests writes all runs' lines, in the order of running: the form of
// sim --requests-out.
func (d *Dir) WriteRequests(w io.Writer) error {
	results, err := d.Results()
	if err != nil {
		return err
	}
	for i := range results {
		lines, err := d.Requests(&results[i])
		if err != nil {
			return err
		}
		b, err := EncodeRequests(lines)
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// EncodeRequests writes an object a line.
func EncodeRequests(lines []sim.RequestLine) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for i := range lines {
		if err := e.Encode(&lines[i]); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// DecodeRequests reads what EncodeRequests or sim --requests-out has written.
func DecodeRequests(r io.Reader) ([]sim.RequestLine, error) {
	var lines []sim.RequestLine
	d := json.NewDecoder(bufio.NewReader(r))
	d.DisallowUnknownFields()
	for n := 1; ; n++ {
		var l sim.RequestLine
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF):
			return lines, nil
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", n, err)
		case l.ArrivalMS == nil:
			return nil, fmt.Errorf("line %d: arrival_ms is null: allowed are milliseconds", n)
		}
		lines = append(lines, l)
	}
}

// ReadRequests reads a file of lines.
func ReadRequests(file string) ([]sim.RequestLine, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	lines, err := DecodeRequests(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return lines, errors.Join(err, f.Close())
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// writeOnce puts a file there, whole, unless there is one: that is an error, and
// the file stays as it is.
func writeOnce(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return fmt.Errorf("evidence: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Chmod(0o444), f.Close()); err != nil {
		return fmt.Errorf("evidence: %w", err)
	}
	if err := os.Link(f.Name(), path); err != nil { // a rename would replace
		return fmt.Errorf("evidence is not replaced: %w", err)
	}
	return nil
}
