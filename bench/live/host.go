package live

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"headgate/bench"
)

// host is what this process and its machine were like when a run began.
type host struct {
	at       time.Time
	cpu      time.Duration
	pauses   int64
	pressure *time.Duration
	swapIn   *int64
}

func beginHost() *host {
	runtime.GC() // what making ready has left is not collected in the run
	return &host{at: time.Now(), cpu: cpu(), pauses: pauses().NumGC, pressure: pressure(), swapIn: swapIn()}
}

// end is what has come since.
func (h *host) end() *bench.Real {
	now := time.Now()
	r := &bench.Real{CPU: cpu() - h.cpu, Wall: now.Sub(h.at), WallClock: now.Round(0).Sub(h.at.Round(0))}
	s := pauses()
	for i := range min(int(s.NumGC-h.pauses), len(s.Pause)) {
		r.GCPause = max(r.GCPause, s.Pause[i])
	}
	if p := pressure(); p != nil && h.pressure != nil {
		d := *p - *h.pressure
		r.Pressure = &d
	}
	if n := swapIn(); n != nil && h.swapIn != nil {
		d := *n - *h.swapIn
		r.SwapIn = &d
	}
	return r
}

func pauses() *debug.GCStats {
	var s debug.GCStats
	debug.ReadGCStats(&s)
	return &s
}

// pressure is how long something on this machine has waited for memory, since it
// began: the kernel's PSI.
func pressure() *time.Duration {
	b, err := os.ReadFile("/proc/pressure/memory")
	if err != nil {
		return nil
	}
	return parsePressure(string(b))
}

func parsePressure(text string) *time.Duration {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "some ") {
			continue
		}
		for _, f := range strings.Fields(line) {
			if v, ok := strings.CutPrefix(f, "total="); ok {
				if us, err := strconv.ParseInt(v, 10, 64); err == nil {
					d := time.Duration(us) * time.Microsecond
					return &d
				}
			}
		}
	}
	return nil
}

// swapIn is how many pages have come back from swap.
func swapIn() *int64 {
	b, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return nil
	}
	return parseSwapIn(string(b))
}

func parseSwapIn(text string) *int64 {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, "pswpin "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
				return &n
			}
		}
	}
	return nil
}
