// Command testlog reads the stream of go test -json and prints go test's own
// lines: of every package its result, of what failed or was skipped its whole
// output, of what passed nothing more. It ends by listing what was skipped,
// which go test says only among everything else.
//
//	go test -json ./... | testlog [-no-skips] [-skips FILE]
//
// It exits with 1 if anything failed, or with -no-skips if anything was skipped.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	noSkips := flag.Bool("no-skips", false, "fail if anything was skipped")
	skips := flag.String("skips", "", "append what was skipped to this `file` too")
	flag.Parse()
	l := newLog(os.Stdout)
	if err := l.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		os.Exit(1)
	}
	if *skips != "" && len(l.skipped) > 0 {
		if err := appendLines(*skips, l.skipped); err != nil {
			fmt.Fprintln(os.Stderr, "testlog:", err)
			os.Exit(1)
		}
	}
	for _, s := range l.skipped {
		fmt.Println("skipped:", s)
	}
	switch {
	case l.failed:
		os.Exit(1)
	case *noSkips && len(l.skipped) > 0:
		fmt.Println("FAIL: nothing may be skipped here")
		os.Exit(1)
	}
}

// event is one line of go test -json.
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
}

// log keeps the output of tests that run until their end decides about it.
type log struct {
	out     io.Writer
	pending map[[2]string][]string // by package and test
	failed  bool
	skipped []string
}

func newLog(out io.Writer) *log { return &log{out: out, pending: map[[2]string][]string{}} }

func (l *log) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				// What go itself says, about a module that can't be loaded.
				fmt.Fprint(l.out, string(line))
				l.failed = true
			} else {
				l.event(e)
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("read the output of go test: %w", err)
		}
	}
}

func (l *log) event(e event) {
	at := [2]string{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(l.out, e.Output)
	case "build-fail":
		l.failed = true
	case "output":
		l.pending[at] = append(l.pending[at], e.Output)
	case "pass", "fail", "skip":
		lines := l.pending[at]
		delete(l.pending, at)
		if e.Action == "fail" {
			l.failed = true
		}
		switch {
		case e.Test == "" && e.Action == "fail":
			// A panic leaves tests that never ended.
			for other, out := range l.pending {
				if other[0] == e.Package {
					l.print(out)
					delete(l.pending, other)
				}
			}
			l.print(lines)
		case e.Test == "":
			for _, s := range lines {
				if strings.HasPrefix(s, "ok ") {
					fmt.Fprint(l.out, s)
				}
			}
		case e.Action == "skip":
			l.print(lines)
			l.skipped = append(l.skipped, e.Package+" "+e.Test+reason(lines))
		case e.Action == "fail":
			l.print(lines)
		}
	}
}

func (l *log) print(lines []string) {
	for _, s := range lines {
		if !strings.HasPrefix(s, "=== ") {
			fmt.Fprint(l.out, s)
		}
	}
}

// reason is what a skipped test said last.
func reason(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if s := strings.TrimSpace(lines[i]); s != "" && !strings.HasPrefix(s, "---") && !strings.HasPrefix(s, "===") {
			return ": " + s
		}
	}
	return ""
}

func appendLines(path string, lines []string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(strings.Join(lines, "\n") + "\n"); err != nil {
		_ = f.Close() // the first failure is the one to tell
		return err
	}
	return f.Close()
}
