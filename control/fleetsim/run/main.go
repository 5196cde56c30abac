// Command run runs histories of a fleet, see package fleetsim.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"headgate/control/fleetsim"
)

// recent is how many of the last events of a history that went wrong are shown.
const recent = 40

func main() {
	seeds := flag.Int("seeds", 2000, "how many histories")
	from := flag.Uint64("from", 1, "the first seed")
	seed := flag.Uint64("seed", 0, "run this history alone, 0: all")
	verbose := flag.Bool("v", false, "with -seed: print everything that happens")
	quiet := flag.Bool("q", false, "print nothing but violations")
	first := flag.Bool("first", false, "stop at the first violation")
	parallel := flag.Int("parallel", runtime.GOMAXPROCS(0), "how many at a time")
	flag.Parse()
	if *seed != 0 {
		os.Exit(one(*seed, *verbose))
	}
	began := time.Now()
	total, bad := all(*from, *seeds, *parallel, *first, *quiet)
	for i, v := range bad {
		fmt.Println("\nviolation:", v)
		if i < 3 && !*quiet {
			show(v.Seed)
		}
	}
	if !*quiet {
		fmt.Printf("\n%s\nin %s\n", total.String(), time.Since(began).Round(time.Millisecond))
	}
	missing := total.Missing()
	if *seeds >= 500 && !*first {
		for _, m := range missing {
			fmt.Printf("nothing seen of: %s\n", m)
		}
	} else {
		missing = nil
	}
	fmt.Printf("violations: %d\n", len(bad))
	if len(bad) > 0 || len(missing) > 0 {
		os.Exit(1)
	}
}

// all runs the histories from one seed on.
func all(from uint64, seeds, parallel int, first, quiet bool) (total fleetsim.Stats, bad []*fleetsim.Violation) {
	var mu sync.Mutex
	var group sync.WaitGroup
	next := 0
	for range parallel {
		group.Go(func() {
			for {
				mu.Lock()
				n := next
				next++
				stop := n >= seeds || first && len(bad) > 0
				mu.Unlock()
				if stop {
					return
				}
				stats, v := fleetsim.Run(from+uint64(n), fleetsim.Options{})
				mu.Lock()
				total.Add(&stats)
				if v != nil {
					bad = append(bad, v)
				}
				if total.Histories%500 == 0 && !quiet {
					fmt.Printf("%d histories, %d steps, violations: %d\n", total.Histories, total.Steps, len(bad))
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return total, bad
}

// show runs a history again and prints its last events.
func show(seed uint64) {
	var last []string
	fleetsim.Run(seed, fleetsim.Options{Log: func(format string, args ...any) {
		if len(last) == recent {
			last = last[1:]
		}
		last = append(last, fmt.Sprintf(format, args...))
	}})
	for _, line := range last {
		fmt.Println(line)
	}
}

// one runs one history.
func one(seed uint64, verbose bool) int {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var logf func(format string, args ...any)
	if verbose {
		logf = func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	}
	stats, v := fleetsim.Run(seed, fleetsim.Options{Log: logf})
	fmt.Fprintln(out, stats.String())
	if v != nil {
		fmt.Fprintf(out, "violation: %s\nviolations: 1\n", v)
		return 1
	}
	fmt.Fprintln(out, "violations: 0")
	return 0
}
