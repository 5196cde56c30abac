package console

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/admission"
	"headgate/e2e/headgate"
)

// BenchmarkFirstPaint is how soon the page shows something, of five.
func BenchmarkFirstPaint(b *testing.B) {
	g := headgate.StartDemo(b).AwaitReady()
	for b.Loop() {
		all := look(b, "paint", g.Admin)["paint"].Figures["first_paint_ms"].([]any)
		ms := make([]float64, len(all))
		for i := range all {
			ms[i] = all[i].(float64)
		}
		slices.Sort(ms)
		b.ReportMetric(slices.Min(ms), "least_ms")
		b.ReportMetric(ms[len(ms)/2], "middle_ms")
		b.ReportMetric(slices.Max(ms), "most_ms")
	}
}

// BenchmarkOpenConsole has 1,000 requests in flight and an open console: what share of a core
// the page works to redraw, and how much more the server does than without.
//
//	go test -run '^$' -bench OpenConsole -benchtime 1x -v ./e2e/console
func BenchmarkOpenConsole(b *testing.B) {
	const requests = 1000
	e := headgate.StartEngine(b, "--max-num-seqs", "1200", "--num-gpu-blocks", "200000", "--max-num-batched-tokens", "65536")
	g := headgate.Start(b, `
anonymous: {classes: [interactive, batch], header: true}
limits: {drain_timeout: 1s}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "`+e.URL+`", slots: 1200, priority: true}]
    classes:
      - {name: interactive, floor: {slots: 800}, unlent: {slots: 50}, queue: {depth: 2000, per_tenant: 2000}}
      - {name: batch, floor: {slots: 400}, priority: 10, reclaim: reclaim, queue: {depth: 2000, per_tenant: 2000, wait: 10m}}
`).AwaitReady()
	ctx, stop := context.WithCancel(b.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for i := range requests {
		clients.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				body := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hello"}]}`, e.Model, 50+n*37%200)
				req, err := http.NewRequestWithContext(ctx, "POST", g.URL+"/v1/chat/completions", strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Headgate-Class", []string{"interactive", "batch"}[i%2])
				if res, err := http.DefaultClient.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
			}
		})
	}
	g.AwaitPool("nearly all run", func(s *admission.Snapshot) bool { return s.Used.Slots > requests*9/10 })
	for b.Loop() {
		// The load is not the same all the time, so without comes before and after.
		without := cores(b, g.PID(), 10*time.Second)
		done := make(chan map[string]result)
		go func() { done <- look(b, "cost", g.Admin) }()
		time.Sleep(2 * time.Second) // the browser starts
		with := cores(b, g.PID(), 10*time.Second)
		page := (<-done)["cost"].Figures
		after := cores(b, g.PID(), 10*time.Second)
		for name, v := range page {
			b.ReportMetric(v.(float64), name)
		}
		b.ReportMetric(100*with, "server_with_percent")
		b.ReportMetric(100*(without+after)/2, "server_without_percent")
	}
	stop()
	clients.Wait()
}

// cores is how much processor time a process takes over a while, as a share of it.
func cores(b *testing.B, pid int, while time.Duration) float64 {
	b.Helper()
	read := func() float64 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Skip(err)
		}
		// Behind the name: user and system time are the twelfth and thirteenth, in hundredths.
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		sum := 0.0
		for _, s := range f[11:13] {
			n, err := strconv.ParseFloat(s, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += n / 100
		}
		return sum
	}
	before := read()
	time.Sleep(while)
	return (read() - before) / while.Seconds()
}
