// Command bars reads the output of go test -bench and holds it against limits.
//
//	go test -run '^$' -bench . -benchmem ./admission | bars FILE
//
// A line of FILE is a benchmark, a unit and the most that is allowed, such as
//
//	BenchmarkAdmitRelease ns/op 1000
//
// It exits with 1 if a limit is passed or a benchmark is missing.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bars FILE < output of go test -bench")
		os.Exit(2)
	}
	f, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bars:", err)
		os.Exit(2)
	}
	ok, err := hold(f, io.TeeReader(os.Stdin, os.Stdout), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bars:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// hold tells whether every limit is kept, and prints each.
func hold(limits, bench io.Reader, out io.Writer) (bool, error) {
	got := map[[2]string]float64{} // benchmark and unit
	for s := bufio.NewScanner(bench); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := f[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i] // the number of processors
		}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return false, fmt.Errorf("%s: %q is no number", name, f[i])
			}
			got[[2]string{name, f[i+1]}] = v
		}
	}
	ok := true
	for s := bufio.NewScanner(limits); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) != 3 {
			return false, fmt.Errorf("limit %q: want a benchmark, a unit and a number", s.Text())
		}
		most, err := strconv.ParseFloat(f[2], 64)
		if err != nil {
			return false, fmt.Errorf("limit %q: %q is no number", s.Text(), f[2])
		}
		v, there := got[[2]string{f[0], f[1]}]
		switch {
		case !there:
			ok = false
			fmt.Fprintf(out, "FAIL %s: no %s in the output\n", f[0], f[1])
		case v > most:
			ok = false
			fmt.Fprintf(out, "FAIL %s: %g %s, allowed %g\n", f[0], v, f[1], most)
		default:
			fmt.Fprintf(out, "ok   %s: %g %s, allowed %g\n", f[0], v, f[1], most)
		}
	}
	return ok, nil
}
