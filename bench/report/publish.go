package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"headgate/bench"
)

// Files of a report, in the directory of its evidence.
const (
	JSONFile       = "report.json"
	MarkdownFile   = "report.md"
	HTMLFile       = "report.html"
	ProvenanceFile = "provenance.json"
)

// JSON is the report in its own form.
func (r *Report) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return append(b, '\n'), nil
}

// Write puts a report's files into a directory, in the place of older ones: a report is
// no evidence, and can be made again. Formats are json, md, html and all.
func (a *Analysis) Write(dir, format string) ([]string, error) {
	files := map[string]func() ([]byte, error){
		JSONFile:     a.Report.JSON,
		MarkdownFile: func() ([]byte, error) { return a.Report.Markdown(), nil },
		HTMLFile:     func() ([]byte, error) { return a.HTML(), nil },
	}
	names := map[string][]string{"json": {JSONFile}, "md": {MarkdownFile}, "html": {HTMLFile}, "all": {JSONFile, MarkdownFile, HTMLFile}}[format]
	if names == nil {
		return nil, fmt.Errorf("format is %q: allowed is json, md, html or all", format)
	}
	var written []string
	for _, name := range names {
		b, err := files[name]()
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, name)
		if err := replace(path, b); err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		written = append(written, path)
	}
	return written, nil
}

// replace writes a file whole.
func replace(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Provenance says which files were published, and what they are.
type Provenance struct {
	Schema     string    `json:"schema"`
	PlanSHA256 string    `json:"plan_sha256"`
	Verdict    string    `json:"verdict"`
	Version    string    `json:"version"` // of headgate, that published
	Published  time.Time `json:"published"`
	Files      []File    `json:"files"` // by path
}

// File is one that was published. Path is within the directory, with slashes.
type File struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

const provenanceSchema = "headgate.bench.provenance/1"

// Publish copies a directory with its report to a new place, with the hash of every
// file. A place that is there already is refused, and so is a report that is not of
// these runs, or evidence that is not what its own hashes say. version and now are
// said in the provenance.
func Publish(dir, dest, version string, now time.Time) (*Provenance, error) {
	rep, err := current(dir)
	if err != nil {
		return nil, err
	}
	if err := remade(dir, rep); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(dest); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("publish: %s is there already: allowed is a new directory, what is published is not replaced", dest), err)
	}
	if inside, err := within(dir, dest); err != nil || inside {
		return nil, errors.Join(fmt.Errorf("publish: %s is in %s: allowed is a place outside, or it would be evidence the next time", dest, dir), err)
	}
	files, err := list(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(dest), 0o755); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	building, err := os.MkdirTemp(filepath.Dir(dest), ".publishing-")
	if err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	defer os.RemoveAll(building)
	p := &Provenance{Schema: provenanceSchema, PlanSHA256: rep.Plan.SHA256, Verdict: rep.Verdict, Version: version, Published: now.UTC(), Files: []File{}}
	for _, path := range files {
		if path == ProvenanceFile {
			return nil, fmt.Errorf("publish: %s was published already, it has a %s: allowed is the directory that bench run wrote", dir, ProvenanceFile)
		}
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(path)))
		if err == nil {
			to := filepath.Join(building, filepath.FromSlash(path))
			err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, b, 0o444))
		}
		if err != nil {
			return nil, fmt.Errorf("publish: %w", err)
		}
		p.Files = append(p.Files, File{Path: path, Bytes: int64(len(b)), SHA256: sha(b)})
	}
	b, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(building, ProvenanceFile), append(b, '\n'), 0o444); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	if _, err := Verify(building); err != nil { // what was written, not what was meant
		return nil, err
	}
	if err := errors.Join(os.Chmod(building, 0o755), os.Rename(building, dest)); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	return p, nil
}

// within tells whether a path is in a directory.
func within(dir, path string) (bool, error) {
	d, err := filepath.Abs(dir)
	if err != nil {
		return false, err
	}
	p, err := filepath.Abs(path)
	if err != nil {
		return false, err
	}
	rel, err := filepath.Rel(d, p)
	return err == nil && filepath.IsLocal(rel), nil // no way between them is not inside
}

// Verify tells whether a published directory is what was published: every file with its
// hash, none more, a report of these runs, and evidence that is what its own hashes say.
func Verify(dir string) (*Provenance, error) {
	b, err := os.ReadFile(filepath.Join(dir, ProvenanceFile))
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	p := &Provenance{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("verify: %s: %w", ProvenanceFile, err)
	}
	if p.Schema != provenanceSchema {
		return nil, fmt.Errorf("verify: schema is %q: allowed is %s", p.Schema, provenanceSchema)
	}
	have, err := list(dir)
	if err != nil {
		return nil, err
	}
	var wrong []error
	for _, f := range p.Files {
		i := slices.Index(have, f.Path)
		if i < 0 {
			wrong = append(wrong, fmt.Errorf("verify: %s is gone", f.Path))
			continue
		}
		have = slices.Delete(have, i, i+1)
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.Path)))
		if err != nil {
			return nil, fmt.Errorf("verify: %w", err)
		}
		if h := sha(b); h != f.SHA256 {
			wrong = append(wrong, fmt.Errorf("verify: %s has hash %s, published was %s: it was changed", f.Path, h, f.SHA256))
		}
	}
	for _, path := range have {
		if path != ProvenanceFile {
			wrong = append(wrong, fmt.Errorf("verify: %s was not published", path))
		}
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	if rep, err := current(dir); err != nil {
		return nil, err
	} else if rep.Plan.SHA256 != p.PlanSHA256 || rep.Verdict != p.Verdict {
		return nil, fmt.Errorf("verify: %s says plan %s, verdict %s; the report %s, %s", ProvenanceFile, p.PlanSHA256, p.Verdict, rep.Plan.SHA256, rep.Verdict)
	}
	return p, nil
}

// current reads a directory's report, if it is one of all the directory's runs as they
// are now.
func current(dir string) (*Report, error) {
	e, err := Read(dir)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, JSONFile))
	if err != nil {
		return nil, fmt.Errorf("the directory has no report: headgate bench report makes one: %w", err)
	}
	rep := &Report{}
	if err := json.Unmarshal(b, rep); err != nil {
		return nil, fmt.Errorf("%s: %w", JSONFile, err)
	}
	same := rep.Schema == Schema && rep.Plan.SHA256 == e.Plan.SHA256() && len(rep.Evidence) == 1 &&
		slices.EqualFunc(rep.Runs, e.Results, func(a Run, b bench.Result) bool { return a.Run == b.Run && a.RequestsSHA256 == b.RequestsSHA256 })
	if !same {
		return nil, fmt.Errorf("%s is not of the runs that are in %s now: headgate bench report makes it again", JSONFile, dir)
	}
	for i := range e.Results {
		if _, err := e.Requests(&e.Results[i]); err != nil { // checks the hash
			return nil, err
		}
	}
	return rep, nil
}

// remade tells whether a report's files say what the evidence says now: not what it said
// before gates or runs were another, and not what somebody wrote into them. Of one that
// rests on another directory's A/A run too the figures cannot be made again, so only its
// pages are held against them.
func remade(dir string, rep *Report) error {
	want := map[string][]byte{MarkdownFile: rep.Markdown()}
	if rep.Floor == nil || len(rep.Floor.Runs) == 0 {
		e, err := Read(dir)
		if err != nil {
			return err
		}
		a, err := Analyse(Registered(e))
		if err != nil {
			return err
		}
		b, err := a.Report.JSON()
		if err != nil {
			return err
		}
		want = map[string][]byte{JSONFile: b, MarkdownFile: a.Report.Markdown(), HTMLFile: a.HTML()}
	}
	for _, name := range []string{JSONFile, MarkdownFile, HTMLFile} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		same := bytes.Equal(have, want[name])
		if want[name] == nil { // the page of a report with an A/A run, or that report itself
			b, err := os.ReadFile(filepath.Join(dir, JSONFile))
			if err != nil {
				return fmt.Errorf("publish: %w", err)
			}
			same = name == JSONFile || bytes.Contains(have, []byte(ofReport(b)))
		}
		if !same {
			return fmt.Errorf("publish: %s is not what the evidence in %s gives now: headgate bench report makes it again", name, dir)
		}
	}
	return nil
}

// ofReport names, on a page, the report.json that it shows.
func ofReport(report []byte) string {
	return `<meta name="report-sha256" content="` + sha(report) + `"/>`
}

// list names all files of a directory, in order. Nothing but files and directories is
// published.
func list(dir string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is no file: allowed are files and directories", rel)
		}
		all = append(all, filepath.ToSlash(rel))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	slices.Sort(all)
	return all, nil
}

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
