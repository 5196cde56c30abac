package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"headgate/journal"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
	"headgate/telemetry"
	"headgate/trace"
)

// The storm: batch that borrows everything, and an interactive request every 0.3 to
// 2 s that wants a part of it back.
const (
	stormLeast  = 300 * time.Millisecond
	stormMost   = 2 * time.Second
	stormBatch  = 6 // requests in the gateway at any time
	stormSpeed  = 0.25
	stormOutput = 16 // tokens of an interactive answer
	stormAnswer = 128
)

// stormYAML is the gateway. It lends again as soon as it can, where the default
// policy waits until it pays.
const stormYAML = `listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
log: {level: error}
journal: {file: JOURNAL}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
pools:
  - name: storm
    engines:
      - {name: simulated, kind: vllm, url: "http://ENGINE", slots: 4, priority: true, observe_every: 100ms}
    classes:
      - {name: interactive, floor: {slots: 4, kv_tokens: 25%}, idle_after: 100ms, priority: 0}
      - {name: batch, floor: {slots: 1, kv_tokens: 50%}, guarantee: window, window: 60s, reclaim: reclaim, pin_after: 2, priority: 10, queue: {per_tenant: 0, wait: 0s}}
`

// stormRun is what one seed gave, with or without the engine's prefix caching.
type stormRun struct {
	Seed          uint32 `json:"seed"`
	PrefixCaching bool   `json:"prefix_caching"`

	Interactive   int      `json:"interactive"`
	FirstTokenP50 *float64 `json:"first_token_p50_s"`
	FirstTokenP99 *float64 `json:"first_token_p99_s"`
	Recalls       int      `json:"recalls"`

	Batch     int `json:"batch"`
	Completed int `json:"completed"` // with every token of their answers
	Reclaims  int `json:"reclaims"`
	// ReclaimsOf counts batch requests by how often they were reclaimed, from 0 on.
	ReclaimsOf []int `json:"reclaims_of"`

	Generated int `json:"generated_tokens"` // of batch answers
	// Again is what the engine computed of prompts, less each prompt once: what was
	// computed again. The prompt of an attempt that was ended before its first token
	// counts whole, though the engine may never have begun with it.
	Again int     `json:"again_tokens"`
	Waste float64 `json:"waste"`   // Again / Generated
	Drain float64 `json:"drain_s"` // from the storm's end to that of the last batch request
}

type stormReport struct {
	Runs []stormRun `json:"runs"`
	Bars []liveBar  `json:"bars"`
}

func benchStormCommand() *cobra.Command {
	var seedList, output string
	var lasts time.Duration
	cmd := &cobra.Command{
		Use: "storm", Short: "Measure in real time how batch gets on under one recall after the other", Args: cobra.NoArgs,
		Long: fmt.Sprintf(`Measure in real time how batch gets on under one recall after the other. An
interactive request comes every 0.3 to 2 s, drawn by the seed, on a simulated engine
of four slots (the M1's steps at %g of their time) all of which batch borrows again
at once, with the engine's prefix caching off and on.`, stormSpeed),
		RunE: func(cmd *cobra.Command, _ []string) error {
			seeds, err := parseSeeds(seedList)
			switch {
			case err != nil:
				return err
			case output != "table" && output != "json":
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			case lasts < time.Second || lasts > time.Hour:
				return fmt.Errorf("--for is %v: allowed are 1s to 1h", lasts)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			var rep stormReport
			for _, seed := range seeds {
				for _, caching := range []bool{false, true} {
					run, err := measureStorm(ctx, seed, caching, lasts)
					if err != nil {
						return fmt.Errorf("seed %d, prefix caching %t: %w", seed, caching, err)
					}
					rep.Runs = append(rep.Runs, run)
					fmt.Fprintf(cmd.ErrOrStderr(), "seed %d, prefix caching %t: %d of %d batch requests, %d reclaims, waste %.2f\n", seed, caching, run.Completed, run.Batch, run.Reclaims, run.Waste)
				}
			}
			rep.Bars = stormBars(rep.Runs)
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rep)
			}
			return rep.writeTable(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&seedList, "seeds", "1-3", "seeds, such as 1-30 or 1,4,7-9")
	f.DurationVar(&lasts, "for", time.Minute, "how long interactive requests come")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

func measureStorm(ctx context.Context, seed uint32, caching bool, lasts time.Duration) (r stormRun, err error) {
	r = stormRun{Seed: seed, PrefixCaching: caching}
	err = inTemp(func(file string) error {
		if err := r.measure(ctx, lasts, file); err != nil {
			return err
		}
		events, err := readJournal(file)
		if err != nil {
			return err
		}
		r.count(events)
		return nil
	})
	return r, err
}

func (r *stormRun) measure(ctx context.Context, lasts time.Duration, file string) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg := vllmapi.Config{Engine: simengine.DefaultConfig(), Version: telemetry.ReadBuild().Version, PerRequestMetrics: true}
	cfg.Engine.Speed, cfg.Engine.PrefixCaching = stormSpeed, r.PrefixCaching
	_, at, closeEngine, err := startBenchEngine(ctx, cfg, nil)
	if err != nil {
		return err
	}
	defer closeEngine()
	g, err := startBenchGateway(ctx, "storm", strings.NewReplacer("ENGINE", at.String(), "JOURNAL", file).Replace(stormYAML))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.stop()) }()

	before, err := computedPrompts(ctx, at.String())
	if err != nil {
		return err
	}
	var batch, interactive sync.WaitGroup
	var mu sync.Mutex
	var failed error
	var first []float64
	prompts := 0
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil && ctx.Err() == nil {
			failed = err
			cancel()
		}
	}
	// Prompts differ from their first token on: what the cache finds is a request's own.
	mark := 0
	marked := func(class string, prompt, output int, stream bool) (*http.Request, error) {
		mu.Lock()
		mark++
		prompts += prompt
		begins := mark
		mu.Unlock()
		return completionFrom(ctx, g.clients, class, begins, prompt, output, stream)
	}
	draw := rand.New(rand.NewPCG(uint64(r.Seed), 2))
	lengths := make([]int, 4096)
	for i := range lengths {
		lengths[i] = 150 + draw.IntN(700)
	}
	over := make(chan struct{})
	for worker := range stormBatch {
		batch.Go(func() {
			for i := worker; ; i += stormBatch {
				select {
				case <-over:
					return
				default:
				}
				mu.Lock()
				r.Batch++
				mu.Unlock()
				// Every other answer is a stream.
				req, err := marked(trace.Batch, lengths[i%len(lengths)], stormAnswer, i%2 == 1)
				var answer []byte
				if err == nil {
					answer, err = fetch(req)
				}
				if err != nil {
					fail(fmt.Errorf("batch request: %w", err))
					return
				}
				if strings.Contains(string(answer), `"finish_reason":"length"`) && !strings.Contains(string(answer), `"error":`) {
					mu.Lock()
					r.Completed++
					r.Generated += stormAnswer
					mu.Unlock()
				}
			}
		})
	}
	ended := time.Now().Add(lasts)
	for pause(ctx, stormLeast+time.Duration(draw.Float64()*float64(stormMost-stormLeast))) && time.Now().Before(ended) {
		r.Interactive++
		length := 32 + draw.IntN(200)
		interactive.Go(func() {
			req, err := marked(trace.Interactive, length, stormOutput, true)
			var s streamed
			if err == nil {
				s, err = stream(req)
			}
			if err != nil {
				fail(fmt.Errorf("interactive request: %w", err))
				return
			}
			mu.Lock()
			defer mu.Unlock()
			first = append(first, microseconds(s.first.Sub(s.sent)))
		})
	}
	close(over)
	interactive.Wait()
	batch.Wait()
	r.Drain = microseconds(time.Since(ended))
	if failed != nil || ctx.Err() != nil {
		return errors.Join(failed, ctx.Err())
	}
	r.FirstTokenP50, r.FirstTokenP99 = percentile(first, 50), percentile(first, 99)
	computed, err := computedPrompts(ctx, at.String())
	r.Again = computed - before - prompts
	return err
}

// computedPrompts is how many tokens of prompts an engine has computed, of requests
// that came to their first token.
func computedPrompts(ctx context.Context, engine string) (tokens int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+engine+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	body, err := fetch(req)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		sign := 0
		switch {
		case strings.HasPrefix(line, "vllm:prompt_tokens_total"):
			sign = 1
		case strings.HasPrefix(line, "vllm:prefix_cache_hits_total"):
			sign = -1
		default:
			continue
		}
		fields := strings.Fields(line)
		v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("the engine's metrics: %w", err)
		}
		tokens += sign * int(math.Round(v))
	}
	return tokens, nil
}

// count takes from the journal how often what was reclaimed.
func (r *stormRun) count(events []journal.Event) {
	of := map[string]int{}
	begun := map[uint64]bool{}
	for _, e := range events {
		switch {
		case e.Kind == journal.RecallOpened && e.Class == trace.Interactive:
			r.Recalls++
		case e.Kind == journal.FirstToken:
			begun[e.Hold] = true
		case e.Kind == journal.Ended && e.Cause == "reclaimed":
			of[e.Request]++
			r.Reclaims++
			if !begun[e.Hold] {
				r.Again += int(e.PromptTokens)
			}
		}
	}
	r.ReclaimsOf = []int{r.Batch - len(of)}
	for _, n := range of {
		for len(r.ReclaimsOf) <= n {
			r.ReclaimsOf = append(r.ReclaimsOf, 0)
		}
		r.ReclaimsOf[n]++
	}
	if r.Generated > 0 {
		r.Waste = math.Round(float64(r.Again)/float64(r.Generated)*1e4) / 1e4
	}
}

func stormBars(runs []stormRun) []liveBar {
	left, batch := 0.0, 0
	for _, r := range runs {
		left += float64(r.Batch - r.Completed)
		batch += r.Batch
	}
	return []liveBar{newBar("batch requests that did not complete", "requests", 0, &left, batch)}
}

func (rep *stormReport) writeTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "seed\tprefix caching\tinteractive\tfirst token p50 s\tp99 s\trecalls\tbatch\tcompleted\treclaims\tof requests 0,1,2.. times\tgenerated\tagain\twaste\tdrain s")
	for _, r := range rep.Runs {
		fmt.Fprintf(tw, "%d\t%t\t%d\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%d\t%d\t%.3f\t%.1f\n", r.Seed, r.PrefixCaching, r.Interactive, shown(r.FirstTokenP50), shown(r.FirstTokenP99), r.Recalls,
			r.Batch, r.Completed, r.Reclaims, strings.Trim(strings.ReplaceAll(fmt.Sprint(r.ReclaimsOf), " ", ","), "[]"), r.Generated, r.Again, r.Waste, r.Drain)
	}
	fmt.Fprintln(tw)
	writeBars(tw, rep.Bars)
	return tw.Flush()
}
