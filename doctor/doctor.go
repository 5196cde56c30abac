// Package doctor looks at a set-up from outside and says what is wrong with it, by what it
// has seen, and what to do about it.
//
// A [Check] looks at one thing: a pool's engines, a store, a folder. A [Finding] is one thing
// that is wrong: its [Kind], the value that shows it, and the way out. What is as it should be
// is not told, so that what is told is to be done.
//
// # Rules
//
// Nothing is changed anywhere: what is asked of others is what they answer to a read, a file
// is opened for writing and not written, a port is taken for a moment and given back. Each
// check has a bound in time, and one that is not over by then is a finding itself, so that a
// server which accepts and says nothing holds up nobody. No secret is in a finding: what
// evidence quotes are values of the configuration that are shown elsewhere too, and answers
// to questions that carry no key in them.
//
// What validate and serve look at already is not judged here a second time: the command asks
// them, and hands on what they say.
//
// Alternatives: to have serve do this when it starts would keep it from starting for what
// may pass, and can't be asked of a process that runs. Probing the engine by requests
// (package probe) shows what it does and not what it says, and costs it work; that is for
// when there is time.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Level is how bad a finding is.
type Level string

const (
	// Error: serve does not start, or does not do what the configuration says.
	Error Level = "error"
	// Warning: it serves, and something is lost or will be.
	Warning Level = "warning"
)

// Kind is what can be wrong.
type Kind struct {
	ID    string
	Level Level
	What  string
}

// Finding is something that is wrong.
type Finding struct {
	Level    Level  `json:"level"`
	ID       string `json:"id"`
	Of       string `json:"of"` // which thing
	What     string `json:"what"`
	Evidence string `json:"evidence"` // the value that shows it
	Do       string `json:"do"`
}

// Check looks at one thing.
type Check struct {
	Of  string // engine gpu0, listen
	Run func(ctx context.Context, r *Reporter)
}

// Reporter takes what a check finds.
type Reporter struct {
	of string

	mu    sync.Mutex
	found []Finding
	over  bool // the check's time is up, and nobody hears it any more
}

// Found reports a finding about what the check looks at.
func (r *Reporter) Found(k *Kind, evidence, do string) { r.FoundOf(r.of, k, evidence, do) }

// FoundOf reports one about a part of that.
func (r *Reporter) FoundOf(of string, k *Kind, evidence, do string) {
	r.Add(Finding{k.Level, k.ID, of, k.What, evidence, do})
}

// Add reports what another check has found.
func (r *Reporter) Add(f Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.found = append(r.found, f)
	}
}

// Report is what all checks have found, in their order.
type Report struct {
	Checks   int       `json:"checks"`
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Ignored  int       `json:"ignored"` // findings that somebody knows of
	Findings []Finding `json:"findings"`

	ignored []string // their ids
}

// unchecked are the kinds that say that something was not looked at.
var unchecked = []*Kind{ConfigUnreadable, ConfigProblem, NothingToCheck, AdminAway, CheckSlow}

// Known tells which of ids can't be ignored: it is of no kind, or says that much was not
// looked at.
func Known(ids []string) error {
	for _, id := range ids {
		i := slices.IndexFunc(kinds, func(k *Kind) bool { return k.ID == id })
		if i < 0 {
			return fmt.Errorf("%.100q is not the id of a finding: allowed are those of docs/doctor.md, such as %s", id, EnginePrefix.ID)
		}
		if slices.Contains(unchecked, kinds[i]) {
			return fmt.Errorf("%s can't be ignored: what it hides was not looked at", id)
		}
	}
	return nil
}

// Ignore takes out the findings of kinds with these ids, and counts them.
func (r *Report) Ignore(ids []string) {
	r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool {
		if !slices.Contains(ids, f.ID) {
			return false
		}
		if r.Ignored++; !slices.Contains(r.ignored, f.ID) {
			r.ignored = append(r.ignored, f.ID)
		}
		return true
	})
	r.count()
}

func (r *Report) count() {
	r.Errors, r.Warnings = 0, 0
	for _, f := range r.Findings {
		if f.Level == Error {
			r.Errors++
		} else {
			r.Warnings++
		}
	}
}

// atOnce bounds how many checks run at a time.
const atOnce = 16

// Run runs checks beside each other, each within a bound.
func Run(ctx context.Context, checks []Check, bound time.Duration) *Report {
	found := make([][]Finding, len(checks))
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range checks {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			found[i] = run(ctx, &checks[i], bound)
		})
	}
	all.Wait()
	r := &Report{Checks: len(checks), Findings: []Finding{}}
	for _, f := range found {
		r.Findings = append(r.Findings, f...)
	}
	r.count()
	return r
}

// grace is what a check has to say that its context is over.
const grace = 250 * time.Millisecond

func run(ctx context.Context, c *Check, bound time.Duration) []Finding {
	r := &Reporter{of: c.Of}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, r)
	}()
	late := time.NewTimer(bound + grace)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		// A driver that does not heed its context is left to itself.
		r.Found(CheckSlow, fmt.Sprintf("not over after %v", bound), "give it longer with --timeout, or see why what it asks does not answer")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	return r.found
}

// Status is the exit status: 0 without a finding, 1 with warnings alone, 2 with an error.
func (r *Report) Status() int {
	switch {
	case r.Errors > 0:
		return 2
	case r.Warnings > 0:
		return 1
	}
	return 0
}

// WriteText prints the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s: %s [%s]\n  seen: %s\n  do:   %s\n\n", f.Level, f.Of, f.What, f.ID, indented(f.Evidence), indented(f.Do))
	}
	fmt.Fprintf(&b, "%s in %s", counted(r.Errors, r.Warnings), plural(r.Checks, "check"))
	if r.Ignored > 0 {
		fmt.Fprintf(&b, "; ignored: %s", strings.Join(r.ignored, ", "))
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// indented keeps further lines below the first.
func indented(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n        ") }

func counted(errors, warnings int) string {
	if errors+warnings == 0 {
		return "nothing found"
	}
	var parts []string
	if errors > 0 {
		parts = append(parts, plural(errors, "error"))
	}
	if warnings > 0 {
		parts = append(parts, plural(warnings, "warning"))
	}
	return strings.Join(parts, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// WriteJSON prints it for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
