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
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"headgate/simengine"
	"headgate/simengine/vllmapi"
	"headgate/telemetry"
	"headgate/trace"
)

// The part of the trace that is run, in its own time.
const (
	cutFrom    = 47 * time.Second
	cutTo      = 67 * time.Second // at the latest
	fixedAt    = 60 * time.Second
	drawnFrom  = 56 * time.Second
	drawnFor   = 8 * time.Second
	backChars  = 2_000
	backTokens = 16
)

// availabilityYAML is the gateway; the default policy is appended to its pool.
const availabilityYAML = `listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
log: {level: error}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
pools:
  - name: availability
    engines:
      - {name: simulated, kind: vllm, url: "http://ENGINE", slots: 4, priority: true, observe_every: 100ms}
`

// availabilityRecall is what one seed gave. Seconds since the recall was opened;
// null is what never came.
type availabilityRecall struct {
	Seed    uint32  `json:"seed"`
	Arrived float64 `json:"arrived_s"` // in the trace's time
	// What the engine did when the request was sent: prefill, decode or idle.
	Phase    string  `json:"phase"`
	StepLeft float64 `json:"step_left_s"`

	Granted        *float64 `json:"granted_s"`
	Settled        *float64 `json:"settled_s"`
	Scheduled      *float64 `json:"scheduled_s"`
	ScheduledUpper *float64 `json:"scheduled_upper_s"`
	FirstToken     *float64 `json:"first_token_s"`
	Reclaims       int      `json:"reclaims"` // loans that were ended by force
}

// scheduled is the moment by which the engine surely ran the request.
func (r *availabilityRecall) scheduled() *float64 {
	if r.ScheduledUpper != nil {
		return r.ScheduledUpper
	}
	return r.Scheduled
}

type availabilityBar struct {
	Name     string   `json:"name"`
	Limit    float64  `json:"limit_s"`
	Measured *float64 `json:"measured_s"` // null if there is no such recall, or what it is about never came
	Of       int      `json:"of"`         // recalls
	Met      bool     `json:"met"`
}

type availabilitySummary struct {
	Seeds int `json:"seeds"`
	// WithoutRecall counts seeds in which the returning request fitted at once.
	WithoutRecall int               `json:"without_recall"`
	Unsettled     int               `json:"unsettled"` // when the seed's part of the trace was over
	Prefill       int               `json:"prefill"`
	Decode        int               `json:"decode"`
	FirstTokenP50 *float64          `json:"first_token_p50_s"`
	FirstTokenP99 *float64          `json:"first_token_p99_s"`
	Bars          []availabilityBar `json:"bars"`
}

type availabilityReport struct {
	Recalls []availabilityRecall `json:"recalls"`
	Summary availabilitySummary  `json:"summary"`
}

func benchAvailabilityCommand() *cobra.Command {
	var seedList, output string
	var fixed bool
	var parallel int
	cmd := &cobra.Command{
		Use: "availability", Short: "Measure in real time how soon lent capacity is back", Args: cobra.NoArgs,
		Long: `Measure in real time how soon lent capacity is back. Each seed gets a simulated
engine (the M1's step times, prefix caching off) and a gateway with the default
policy. The batch requests of the seed's fixed-burst-v3 trace run from 47 s on, and
an interactive request of 2,000 characters returns at a moment that is drawn from
56 to 64 s by the seed, or at 60 s. A seed takes up to 20 s; nothing else should
want the processor meanwhile.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			seeds, err := parseSeeds(seedList)
			switch {
			case err != nil:
				return err
			case output != "table" && output != "json":
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			case parallel < 1 || parallel > maxParallel:
				return fmt.Errorf("--parallel is %d: allowed are 1 to %d seeds at a time", parallel, maxParallel)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			recalls, err := measureAvailability(ctx, seeds, fixed, parallel, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			rep := availabilityReport{Recalls: recalls, Summary: summarise(recalls)}
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rep)
			}
			return rep.writeTable(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&seedList, "seeds", "1-5", "seeds, such as 1-30 or 1,4,7-9")
	f.BoolVar(&fixed, "fixed", false, "the request returns at 60 s, as in the trace, instead of at a drawn moment")
	f.IntVar(&parallel, "parallel", 1, "seeds at a time; more than a machine has processors to spare for falsifies the times")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

const maxParallel = 64

// returnsAt is when the returning request of a seed arrives, in the trace's time.
func returnsAt(seed uint32, fixed bool) time.Duration {
	if fixed {
		return fixedAt
	}
	u := rand.New(rand.NewPCG(uint64(seed), 0)).Float64()
	return drawnFrom + time.Duration(u*float64(drawnFor)).Truncate(time.Microsecond)
}

// measureAvailability runs the seeds and returns their recalls in the order of
// the seeds. Progress is told to notes.
func measureAvailability(ctx context.Context, seeds []uint32, fixed bool, parallel int, notes io.Writer) ([]availabilityRecall, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	recalls := make([]availabilityRecall, len(seeds))
	free := make(chan struct{}, parallel)
	var running sync.WaitGroup
	var telling sync.Mutex
	for i, seed := range seeds {
		free <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-free }()
			r, err := measureSeed(ctx, seed, returnsAt(seed, fixed))
			if err != nil {
				cancel(fmt.Errorf("seed %d: %w", seed, err))
				return
			}
			recalls[i] = r
			telling.Lock()
			defer telling.Unlock()
			fmt.Fprintf(notes, "seed %d: %s, %.3f s of the step left, scheduled %s s, first token %s s, settled %s s\n",
				seed, r.Phase, r.StepLeft, shown(r.scheduled()), shown(r.FirstToken), shown(r.Settled))
		})
	}
	running.Wait()
	return recalls, context.Cause(ctx)
}

// measureSeed runs one seed's part of the trace against an engine and a gateway
// of its own.
func measureSeed(ctx context.Context, seed uint32, back time.Duration) (r availabilityRecall, err error) {
	t, err := trace.Generate("fixed-burst-v3", seed)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	engine, at, closeEngine, err := startBenchEngine(ctx, vllmapi.Config{
		Engine: simengine.DefaultConfig(), Version: telemetry.ReadBuild().Version, PerRequestMetrics: true,
	}, nil)
	if err != nil {
		return r, err
	}
	defer closeEngine()
	policy := "    " + strings.ReplaceAll(strings.TrimSpace(policyYAML), "\n", "\n    ") + "\n"
	g, err := startBenchGateway(ctx, "availability", strings.ReplaceAll(availabilityYAML, "ENGINE", at.String())+policy)
	if err != nil {
		return r, err
	}
	var batch sync.WaitGroup
	defer func() {
		cancel() // the batch requests' clients leave
		batch.Wait()
		err = errors.Join(err, g.stop())
	}()

	start := time.Now().Add(-cutFrom) // the trace's 0
	until := func(at time.Duration) bool { return pause(ctx, time.Until(start.Add(at))) }
	failed := make(chan error, len(t.Entries))
	for _, e := range t.Entries {
		if e.Class != trace.Batch || e.Arrival < cutFrom || e.Arrival > cutTo {
			continue
		}
		batch.Go(func() {
			if !until(e.Arrival) {
				return
			}
			if err := complete(ctx, g.clients, trace.Batch, e.PromptTokens, e.MaxTokens); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("batch request %s: %w", e.ID, err)
			}
		})
	}
	if !until(back) {
		return r, ctx.Err()
	}
	r = availabilityRecall{Seed: seed, Arrived: back.Seconds(), Phase: "idle"}
	if step, left, ok := engine.Step(); ok {
		r.StepLeft, r.Phase = microseconds(left), "decode"
		if step.Prefill > 0 {
			r.Phase = "prefill"
		}
	}
	if err := complete(ctx, g.clients, trace.Interactive, trace.PromptTokens(backChars), backTokens); err != nil {
		return r, fmt.Errorf("the returning request: %w", err)
	}
	// What it recalled may be out later than it is done.
	for {
		found, err := r.take(ctx, g)
		if err != nil {
			return r, err
		}
		if !found || r.Settled != nil || time.Since(start) > cutTo {
			break
		}
		if !pause(ctx, 100*time.Millisecond) {
			return r, ctx.Err()
		}
	}
	select {
	case err := <-failed:
		return r, err
	default:
		return r, nil
	}
}

// complete sends a request and reads its answer. A batch request's answer is
// collected, so that it can be ended; the interactive one is a stream.
func complete(ctx context.Context, base, class string, prompt, output int) error {
	req, err := completion(ctx, base, class, prompt, output, class == trace.Interactive)
	if err != nil {
		return err
	}
	answer, err := fetch(req)
	if err == nil && bytes.Contains(answer, []byte(`"error":`)) {
		err = fmt.Errorf("answered %s", answer)
	}
	return err
}

// take reads what became of the interactive class's first recall; found tells
// whether there was one.
func (r *availabilityRecall) take(ctx context.Context, g *benchGateway) (found bool, err error) {
	all, err := g.recalls(ctx)
	if err != nil {
		return false, err
	}
	for _, v := range slices.Backward(all) {
		if v.Class == trace.Interactive {
			r.Granted, r.Settled, r.Scheduled, r.ScheduledUpper, r.FirstToken = v.Granted, v.Settled, v.Scheduled, v.ScheduledUpper, v.FirstToken
			r.Reclaims = len(v.Reclaims) + v.LeftOut
			return true, nil
		}
	}
	return false, nil
}

// summarise holds the recalls against what is asked of them. What never came is
// later than everything.
func summarise(recalls []availabilityRecall) availabilitySummary {
	s := availabilitySummary{Seeds: len(recalls)}
	never := math.Inf(1)
	at := func(t *float64) float64 {
		if t == nil {
			return never
		}
		return *t
	}
	var first, inDecode, scheduled, settled []float64
	for i := range recalls {
		r := &recalls[i]
		if r.Granted == nil {
			s.WithoutRecall++
			continue
		}
		switch r.Phase {
		case "prefill":
			s.Prefill++
		case "decode":
			s.Decode++
			inDecode = append(inDecode, at(r.scheduled()))
		}
		if r.Settled == nil {
			s.Unsettled++
		}
		first = append(first, at(r.FirstToken))
		scheduled = append(scheduled, at(r.scheduled())-r.StepLeft)
		settled = append(settled, at(r.Settled)-r.StepLeft)
	}
	s.FirstTokenP50, s.FirstTokenP99 = percentile(first, 50), percentile(first, 99)
	bar := func(name string, limit float64, of []float64, p int) {
		b := availabilityBar{Name: name, Limit: limit, Measured: percentile(of, p), Of: len(of)}
		b.Met = b.Measured != nil && *b.Measured <= limit
		s.Bars = append(s.Bars, b)
	}
	bar("scheduled in decode, p50", 0.25, inDecode, 50)
	bar("scheduled after the step in progress, p99", 0.4, scheduled, 99)
	bar("settled after the step in progress, p99", 0.6, settled, 99)
	return s
}

func (rep *availabilityReport) writeTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "seed\tarrived s\tphase\tstep left s\tgranted s\tscheduled s\tat most s\tfirst token s\tsettled s\treclaims")
	for _, r := range rep.Recalls {
		fmt.Fprintf(tw, "%d\t%.3f\t%s\t%.3f\t%s\t%s\t%s\t%s\t%s\t%d\n", r.Seed, r.Arrived, r.Phase, r.StepLeft,
			shown(r.Granted), shown(r.Scheduled), shown(r.ScheduledUpper), shown(r.FirstToken), shown(r.Settled), r.Reclaims)
	}
	s := &rep.Summary
	fmt.Fprintf(tw, "\n%d seeds, %d without a recall, %d unsettled; first token p50 %s s, p99 %s s\n", s.Seeds, s.WithoutRecall, s.Unsettled, shown(s.FirstTokenP50), shown(s.FirstTokenP99))
	for _, b := range s.Bars {
		verdict := "not met"
		if b.Met {
			verdict = "met"
		}
		fmt.Fprintf(tw, "%s: %s s of %d recalls, at most %g s: %s\n", b.Name, shown(b.Measured), b.Of, b.Limit, verdict)
	}
	return tw.Flush()
}
