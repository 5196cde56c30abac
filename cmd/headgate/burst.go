package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os/signal"
	"slices"
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

// The burst: so many arrive at once on an engine whose every slot is lent.
const (
	burstSlots    = 20
	burstArrivals = 32
	burstPrompt   = 48 // tokens; all slots' prompts fit one step
	burstOutput   = 8
	lentPrompt    = 256
	lentOutput    = 1024
	metricsLag    = 2 * time.Second
)

// burstYAML is the gateway. All slots are interactive's, and all are lent.
const burstYAML = `listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
log: {level: error}
journal: {file: JOURNAL}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
pools:
  - name: burst
    engines:
      - {name: simulated, kind: vllm, url: "http://ENGINE", slots: 20, priority: ORDERED, observe_every: 100ms}
    classes:
      - {name: interactive, floor: {slots: 20, kv_tokens: 50%}, priority: 0}
      - {name: batch, floor: {slots: 0}, reclaim: reclaim, priority: 10}
`

// burstEngine is an engine that tells of itself in one way.
type burstEngine struct {
	Name    string
	About   string
	ordered bool // by priority
	metrics func(*vllmapi.Server, http.Handler) http.Handler
}

var burstEngines = []burstEngine{
	{"plain", "metrics of this moment", true, nil},
	{"lag", "metrics of 2 s ago", true, lagging},
	{"sticky", "metrics as when a step last ran", true, sticky},
	{"unordered", "first come, first served", false, nil},
	{"idle", "the same, with metrics as when a step last ran", false, sticky},
}

// lagging serves metrics as they were some time ago.
func lagging(_ *vllmapi.Server, engine http.Handler) http.Handler {
	type sample struct {
		at   time.Time
		body []byte
	}
	var mu sync.Mutex
	var kept []sample
	return onMetrics(engine, func(r *http.Request) []byte {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		kept = append(kept, sample{now, render(engine, r)})
		for len(kept) > 1 && now.Sub(kept[1].at) >= metricsLag {
			kept = kept[1:]
		}
		return kept[0].body
	})
}

// sticky serves metrics as they were when a step last ran, as real engines do
// when all that they ran is aborted.
func sticky(s *vllmapi.Server, engine http.Handler) http.Handler {
	var mu sync.Mutex
	var last []byte
	return onMetrics(engine, func(r *http.Request) []byte {
		mu.Lock()
		defer mu.Unlock()
		if _, _, running := s.Step(); running || last == nil {
			last = render(engine, r)
		}
		return last
	})
}

func onMetrics(engine http.Handler, metrics func(*http.Request) []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			engine.ServeHTTP(w, r)
			return
		}
		_, _ = w.Write(metrics(r))
	})
}

// render is what a handler answers to a request.
func render(h http.Handler, r *http.Request) []byte {
	plain := r.Clone(r.Context())
	plain.Header.Del("Accept-Encoding")
	c := &capture{header: http.Header{}}
	h.ServeHTTP(c, plain)
	return c.body.Bytes()
}

type capture struct {
	header http.Header
	body   bytes.Buffer
}

func (c *capture) Header() http.Header         { return c.header }
func (c *capture) Write(b []byte) (int, error) { return c.body.Write(b) }
func (c *capture) WriteHeader(int)             {}

// burstRun is what one seed gave on one engine. Times are in seconds.
type burstRun struct {
	Engine string `json:"engine"`
	Seed   uint32 `json:"seed"`
	// What the engine did when the burst came, and what came then: the step with
	// the burst's prompts, without and with the time until its tokens are told.
	StepLeft float64 `json:"step_left_s"`
	Step     float64 `json:"step_s"`
	StepTold float64 `json:"step_told_s"`

	Recalls   int      `json:"recalls"`
	Reclaims  int      `json:"reclaims"`
	Spread    float64  `json:"reclaims_spread_s"` // from the first to the last that was sent
	Confirmed *float64 `json:"confirmed_s"`       // from the first sent to the last confirmed

	// From arrival to first token, ascending.
	FirstToken []float64 `json:"first_token_s"`
	// The same of those that got a slot at once, less what was left of the step that
	// ran when each was sent on, and one step.
	Beyond []float64 `json:"beyond_s"`
	// Of the others: from the end of the answer whose slot each got to their first token.
	Waited []float64 `json:"waited_s"`
}

type burstReport struct {
	Model string     `json:"model"`
	Runs  []burstRun `json:"runs"`
	Bars  []liveBar  `json:"bars"`
}

func benchBurstCommand() *cobra.Command {
	var seedList, engines, model, output string
	var names []string
	for _, e := range burstEngines {
		names = append(names, e.Name)
	}
	cmd := &cobra.Command{
		Use: "burst", Short: "Measure in real time what a burst meets that finds every slot lent", Args: cobra.NoArgs,
		Long: fmt.Sprintf(`Measure in real time what a burst meets that finds every slot lent: %d interactive
requests arrive at once on an engine of %d slots, all of which run batch. The
seed draws the moment within a step. The engines:

%s
A run takes 2 to 8 s; nothing else should want the processor meanwhile.`, burstArrivals, burstSlots, engineList()),
		RunE: func(cmd *cobra.Command, _ []string) error {
			seeds, err := parseSeeds(seedList)
			if err != nil {
				return err
			}
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			}
			var on []burstEngine
			for name := range strings.SplitSeq(engines, ",") {
				i := slices.Index(names, name)
				if i < 0 {
					return fmt.Errorf("--engines has %q: allowed are %s", name, strings.Join(names, ", "))
				}
				on = append(on, burstEngines[i])
			}
			steps, err := simengine.LoadModel(model)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			rep := burstReport{Model: steps.Name}
			for _, seed := range seeds {
				for _, e := range on {
					run, err := measureBurst(ctx, e, steps, seed)
					if err != nil {
						return fmt.Errorf("seed %d on %s: %w", seed, e.Name, err)
					}
					rep.Runs = append(rep.Runs, run)
					fmt.Fprintf(cmd.ErrOrStderr(), "seed %d on %s: %d recalls, %d reclaims, first token p95 %s s\n", seed, e.Name, run.Recalls, run.Reclaims, shown(percentile(slices.Clone(run.FirstToken), 95)))
				}
			}
			rep.Bars = burstBars(rep.Runs)
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rep)
			}
			return rep.writeTable(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&seedList, "seeds", "1-5", "seeds, such as 1-30 or 1,4,7-9")
	f.StringVar(&engines, "engines", strings.Join(names, ","), "engines to measure on")
	f.StringVar(&model, "engine-model", "llama2-70b-a100-80gb-tp8", "the engines' step times: a built-in model or a file")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

func engineList() string {
	var b strings.Builder
	for _, e := range burstEngines {
		fmt.Fprintf(&b, "  %-10s %s\n", e.Name, e.About)
	}
	return b.String()
}

// measureBurst runs one burst on an engine and a gateway of its own.
func measureBurst(ctx context.Context, kind burstEngine, steps simengine.Model, seed uint32) (r burstRun, err error) {
	r = burstRun{Engine: kind.Name, Seed: seed}
	err = inTemp(func(file string) error {
		var seen stepLog
		came, answers, err := r.measure(ctx, kind, steps, file, &seen)
		if err != nil {
			return err
		}
		events, err := readJournal(file)
		if err != nil {
			return err
		}
		r.count(events)
		r.weigh(&seen, came, answers, events)
		return nil
	})
	return r, err
}

// measure returns when the burst came, and its answers.
func (r *burstRun) measure(ctx context.Context, kind burstEngine, steps simengine.Model, file string, seen *stepLog) (came time.Time, answers []streamed, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg := vllmapi.Config{Engine: simengine.DefaultConfig(), ModelName: demoModel, Version: telemetry.ReadBuild().Version, PerRequestMetrics: true}
	cfg.Engine.Model, cfg.Engine.MaxNumSeqs, cfg.Engine.NumBlocks = steps, burstSlots, 4096
	if !kind.ordered {
		cfg.Engine.Policy = simengine.FCFS
	}
	engine, at, closeEngine, err := startBenchEngine(ctx, cfg, kind.metrics)
	if err != nil {
		return came, nil, err
	}
	defer closeEngine()
	g, err := startBenchGateway(ctx, "burst", strings.NewReplacer("ENGINE", at.String(), "JOURNAL", file, "ORDERED", fmt.Sprint(kind.ordered)).Replace(burstYAML))
	if err != nil {
		return came, nil, err
	}
	var background sync.WaitGroup
	defer func() {
		cancel() // the batch requests' clients leave
		background.Wait()
		err = errors.Join(err, g.stop())
	}()
	background.Go(func() { seen.watch(ctx, engine) })
	failed := make(chan error, burstSlots)
	for i := range burstSlots {
		background.Go(func() {
			req, err := completion(ctx, g.clients, trace.Batch, lentPrompt+i, lentOutput, false)
			if err == nil {
				_, err = fetch(req)
			}
			if err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("batch request: %w", err)
			}
		})
	}
	for full := false; !full; {
		step, _, ok := engine.Step()
		full = ok && step.Decodes == burstSlots && step.Prefill == 0
		if !pause(ctx, 5*time.Millisecond) {
			return came, nil, ctx.Err()
		}
	}
	// Metrics that lag have to know of it too.
	settle := 500 * time.Millisecond
	if kind.Name == "lag" {
		settle += metricsLag
	}
	u := rand.New(rand.NewPCG(uint64(r.Seed), 0)).Float64()
	if !pause(ctx, settle+time.Duration(u*float64(200*time.Millisecond))) {
		return came, nil, ctx.Err()
	}

	answers = make([]streamed, burstArrivals)
	errs := make([]error, burstArrivals)
	var ready, arriving sync.WaitGroup
	now := make(chan struct{})
	for i := range burstArrivals {
		ready.Add(1)
		arriving.Go(func() {
			req, err := completion(ctx, g.clients, trace.Interactive, burstPrompt+i%8, burstOutput, true)
			ready.Done()
			<-now
			if err == nil {
				answers[i], err = stream(req)
			}
			errs[i] = err
		})
	}
	ready.Wait()
	came = time.Now()
	close(now)
	arriving.Wait()
	if err := errors.Join(errs...); err != nil {
		return came, nil, err
	}
	select {
	case err := <-failed:
		return came, nil, err
	default:
		return came, answers, nil
	}
}

// weigh holds the answers against the engine's steps. The gateway's share of an
// arrival's time is all but what was left of the step that ran when it sent the
// request on, which no engine interrupts, and the step that came then.
func (r *burstRun) weigh(seen *stepLog, came time.Time, answers []streamed, events []journal.Event) {
	dispatched := map[string]time.Time{}
	for _, e := range events {
		if e.Kind == journal.Dispatched {
			dispatched[e.Request] = e.TS
		}
	}
	left, then := seen.after(came)
	r.StepLeft = microseconds(left)
	if len(then) > 0 {
		r.Step, r.StepTold = microseconds(then[0].ends.Sub(then[0].begins)), microseconds(told(then))
	}
	slices.SortFunc(answers, func(a, b streamed) int { return a.first.Compare(b.first) })
	ended := make([]time.Time, burstSlots)
	for i, a := range answers {
		r.FirstToken = append(r.FirstToken, microseconds(a.first.Sub(a.sent)))
		if i < burstSlots {
			left, then := seen.after(dispatched[a.id])
			r.Beyond = append(r.Beyond, microseconds(a.first.Sub(a.sent)-left-told(then)))
			ended[i] = a.ended
			continue
		}
		if i == burstSlots {
			slices.SortFunc(ended, time.Time.Compare)
		}
		r.Waited = append(r.Waited, microseconds(a.first.Sub(ended[i-burstSlots])))
	}
	slices.Sort(r.FirstToken)
}

// count takes from the journal what was ended for the burst, and when.
func (r *burstRun) count(events []journal.Event) {
	var first, last, confirmed int64
	out := map[uint64]bool{}
	for _, e := range events {
		switch {
		case e.Kind == journal.RecallOpened && e.Class == trace.Interactive:
			r.Recalls++
		case e.Kind == journal.Ended && e.Cause == "reclaimed":
			if first == 0 {
				first = e.Mono
			}
			last = e.Mono
			out[e.Hold] = true
			r.Reclaims++
		case e.Kind == journal.Released && out[e.Hold]:
			delete(out, e.Hold)
			confirmed = e.Mono
		}
	}
	r.Spread = microseconds(time.Duration(last - first))
	if r.Reclaims > 0 && len(out) == 0 {
		c := microseconds(time.Duration(confirmed - first))
		r.Confirmed = &c
	}
}

// burstBars holds each engine's runs against what is asked of a burst: first tokens
// one abort and one step after arrival and 50 ms, of as many as there are slots; all
// loans ended by one recall, within a step. Those for which there is no slot wait
// for the others' answers, however soon loans are back.
func burstBars(runs []burstRun) (bars []liveBar) {
	for _, kind := range burstEngines {
		var beyond []float64
		n, whole, spread, step := 0, 0, 0.0, math.Inf(1)
		for _, r := range runs {
			if r.Engine != kind.Name {
				continue
			}
			n++
			beyond = append(beyond, r.Beyond...)
			if r.Recalls == 1 && r.Reclaims == burstSlots {
				whole++
			}
			spread, step = max(spread, r.Spread), min(step, r.Step)
		}
		if n == 0 {
			continue
		}
		broken := float64(n - whole)
		bars = append(bars,
			newBar(kind.Name+": first token beyond one abort and one step, p95", "s", 0.05, percentile(beyond, 95), len(beyond)),
			newBar(kind.Name+": bursts for which one recall did not end every loan", "bursts", 0, &broken, n),
			newBar(kind.Name+": longest time in which the reclaims of a burst were sent, against the shortest step", "s", step, &spread, n),
		)
	}
	return bars
}

func (rep *burstReport) writeTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "engine\tseed\tstep left s\tstep s\ttold s\trecalls\treclaims\tspread s\tconfirmed s\tfirst token p50 s\tp95 s\tbeyond p95 s\twaited p95 s")
	for _, r := range rep.Runs {
		fmt.Fprintf(tw, "%s\t%d\t%.3f\t%.3f\t%.3f\t%d\t%d\t%.3f\t%s\t%s\t%s\t%s\t%s\n", r.Engine, r.Seed, r.StepLeft, r.Step, r.StepTold, r.Recalls, r.Reclaims, r.Spread, shown(r.Confirmed),
			shown(percentile(slices.Clone(r.FirstToken), 50)), shown(percentile(slices.Clone(r.FirstToken), 95)), shown(percentile(slices.Clone(r.Beyond), 95)), shown(percentile(slices.Clone(r.Waited), 95)))
	}
	fmt.Fprintf(tw, "\nstep times of %s\n", rep.Model)
	writeBars(tw, rep.Bars)
	return tw.Flush()
}
