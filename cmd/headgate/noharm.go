package main

import (
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

	"headgate/journal"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
	"headgate/telemetry"
	"headgate/trace"
)

// What a run without a recall consists of: one interactive request after the other,
// in the slot that is never lent, beside batch that borrows all the rest.
const (
	harmlessPrompt = 100 // tokens of an interactive request
	harmlessOutput = 4
	harmlessBatch  = 200 // tokens of a batch prompt
	harmlessAnswer = 96
	harmlessPause  = 20 * time.Millisecond // mean, between interactive requests
	harmlessSpeed  = 0.05
)

const noHarmYAML = `listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
log: {level: error}
journal: {file: JOURNAL}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
pools:
  - name: noharm
    engines:
      - {name: simulated, kind: vllm, url: "http://ENGINE", slots: 4, priority: true, observe_every: 100ms}
    classes:
      - {name: interactive, floor: {slots: 3}, unlent: {slots: 1}, priority: 0}
      - {name: batch, floor: {slots: 1}, reclaim: MODE, priority: 10, queue: {per_tenant: 0, wait: 0s}}
`

// The arms. again is attrition once more: what it differs by from the first is what
// two equal arms differ by on this machine.
var noHarmArms = []struct{ name, mode string }{{"attrition", "attrition"}, {"again", "attrition"}, {"reclaim", "reclaim"}}

// noHarmRun is one run of one arm.
type noHarmRun struct {
	Seed        uint32  `json:"seed"`
	Arm         string  `json:"arm"`
	Makespan    float64 `json:"makespan_s"` // from the first batch request to the end of the last
	Throughput  float64 `json:"tokens_per_s"`
	Interactive int     `json:"interactive"`
	FirstToken  float64 `json:"first_token_p50_s"` // of the interactive ones
	Recalls     int     `json:"recalls"`           // 0, or the run is no evidence
	Loans       int     `json:"loans"`
}

// noHarmRatio is one arm's figure over attrition's, by pairs of runs.
type noHarmRatio struct {
	Arm    string  `json:"arm"`
	Figure string  `json:"figure"`
	Pairs  int     `json:"pairs"`
	Ratio  float64 `json:"ratio"` // Hodges-Lehmann
	Low    float64 `json:"low"`   // 95 % interval by signed ranks
	High   float64 `json:"high"`
}

type noHarmReport struct {
	Runs    []noHarmRun   `json:"runs"`
	Invalid int           `json:"invalid_pairs"` // left out, since there was a recall
	Ratios  []noHarmRatio `json:"ratios"`
	Bars    []liveBar     `json:"bars"`
}

func benchNoHarmCommand() *cobra.Command {
	var seedList, output string
	var work int
	cmd := &cobra.Command{
		Use: "noharm", Short: "Compare reclaim with attrition in real time where nothing is recalled", Args: cobra.NoArgs,
		Long: fmt.Sprintf(`Compare reclaim with attrition in real time where nothing is recalled. Each seed
runs three arms on the same arrivals, in rotated order: attrition, attrition again,
and reclaim. An arm is a simulated engine of four slots (the M1's steps at %g of
their time) and a gateway; batch borrows what interactive leaves, and
interactive stays within its unlent slot. Ratios are by pairs of one seed.`, harmlessSpeed),
		RunE: func(cmd *cobra.Command, _ []string) error {
			seeds, err := parseSeeds(seedList)
			switch {
			case err != nil:
				return err
			case output != "table" && output != "json":
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			case work < 4 || work > 1000:
				return fmt.Errorf("--work is %d: allowed are 4 to 1000 batch requests a run", work)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			var rep noHarmReport
			for i, seed := range seeds {
				for k := range noHarmArms {
					arm := noHarmArms[(i+k)%len(noHarmArms)]
					run, err := measureNoHarm(ctx, arm.name, arm.mode, seed, work)
					if err != nil {
						return fmt.Errorf("seed %d, %s: %w", seed, arm.name, err)
					}
					rep.Runs = append(rep.Runs, run)
					fmt.Fprintf(cmd.ErrOrStderr(), "seed %d, %s: %.1f tokens/s, first token %.4f s, %d recalls\n", seed, arm.name, run.Throughput, run.FirstToken, run.Recalls)
				}
			}
			rep.compare()
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rep)
			}
			return rep.writeTable(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&seedList, "seeds", "1-20", "seeds, such as 1-30 or 1,4,7-9; each is one pair")
	f.IntVar(&work, "work", 24, "batch requests of a run")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

func measureNoHarm(ctx context.Context, arm, mode string, seed uint32, work int) (r noHarmRun, err error) {
	r = noHarmRun{Seed: seed, Arm: arm}
	err = inTemp(func(file string) error {
		if err := r.measure(ctx, mode, work, file); err != nil {
			return err
		}
		events, err := readJournal(file)
		for _, e := range events {
			switch {
			case e.Kind == journal.RecallOpened:
				r.Recalls++
			case e.Kind == journal.Admitted && e.Loan:
				r.Loans++
			}
		}
		return err
	})
	return r, err
}

func (r *noHarmRun) measure(ctx context.Context, mode string, work int, file string) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg := vllmapi.Config{Engine: simengine.DefaultConfig(), Version: telemetry.ReadBuild().Version, PerRequestMetrics: true}
	cfg.Engine.Speed, cfg.Engine.NumBlocks = harmlessSpeed, 2048
	_, at, closeEngine, err := startBenchEngine(ctx, cfg, nil)
	if err != nil {
		return err
	}
	defer closeEngine()
	g, err := startBenchGateway(ctx, "noharm", strings.NewReplacer("ENGINE", at.String(), "JOURNAL", file, "MODE", mode).Replace(noHarmYAML))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.stop()) }()

	// Every other batch answer is a stream, every other is collected.
	start := time.Now()
	var batch sync.WaitGroup
	errs := make([]error, work)
	for i := range work {
		batch.Go(func() {
			req, err := completion(ctx, g.clients, trace.Batch, harmlessBatch+i, harmlessAnswer, i%2 == 0)
			switch {
			case err != nil:
			case i%2 == 0:
				_, err = stream(req)
			default:
				_, err = fetch(req)
			}
			errs[i] = err
		})
	}
	done := make(chan struct{})
	go func() { batch.Wait(); r.Makespan = microseconds(time.Since(start)); close(done) }()
	defer func() { cancel(); <-done }()
	pauses := rand.New(rand.NewPCG(uint64(r.Seed), 1))
	var first []float64
	for {
		select {
		case <-done:
			if r.Interactive == 0 {
				return errors.New("batch was done before an interactive request")
			}
			r.Throughput = float64(work*harmlessAnswer) / r.Makespan
			r.FirstToken = *percentile(first, 50)
			return errors.Join(errs...)
		case <-time.After(time.Duration(pauses.ExpFloat64() * float64(harmlessPause))):
		}
		req, err := completion(ctx, g.clients, trace.Interactive, harmlessPrompt, harmlessOutput, true)
		if err != nil {
			return err
		}
		s, err := stream(req)
		if err != nil {
			return fmt.Errorf("interactive request: %w", err)
		}
		r.Interactive++
		first = append(first, microseconds(s.first.Sub(s.sent)))
	}
}

// compare makes the ratios of pairs in which nothing was recalled.
func (rep *noHarmReport) compare() {
	by := map[uint32]map[string]noHarmRun{}
	var seeds []uint32
	for _, r := range rep.Runs {
		if by[r.Seed] == nil {
			by[r.Seed] = map[string]noHarmRun{}
			seeds = append(seeds, r.Seed)
		}
		by[r.Seed][r.Arm] = r
	}
	figures := []struct {
		name string
		of   func(noHarmRun) float64
		less bool // is worse
	}{
		{"tokens/s", func(r noHarmRun) float64 { return r.Throughput }, true},
		{"first token p50", func(r noHarmRun) float64 { return r.FirstToken }, false},
	}
	for _, arm := range noHarmArms[1:] {
		for _, f := range figures {
			var logs []float64
			for _, seed := range seeds {
				base, other := by[seed][noHarmArms[0].name], by[seed][arm.name]
				if base.Recalls > 0 || other.Recalls > 0 || base.Loans == 0 || other.Loans == 0 {
					if f.less {
						rep.Invalid++
					}
					continue
				}
				logs = append(logs, math.Log(f.of(other)/f.of(base)))
			}
			mid, low, high, ok := hodgesLehmann(logs)
			if !ok {
				continue
			}
			q := noHarmRatio{Arm: arm.name, Figure: f.name, Pairs: len(logs), Ratio: math.Exp(mid), Low: math.Exp(low), High: math.Exp(high)}
			rep.Ratios = append(rep.Ratios, q)
			worst := q.High - 1
			if f.less {
				worst = 1 - q.Low
			}
			worst = math.Round(worst*1e6) / 1e4
			if arm.name == "reclaim" {
				rep.Bars = append(rep.Bars, newBar("reclaim worse than attrition, "+f.name+", upper end of the 95 % interval", "%", 2, &worst, len(logs)))
			}
		}
	}
}

// hodgesLehmann is the median of the means of all pairs of values, a value with
// itself too, and the 95 % interval for it that the signed-rank test gives, by the
// exact distribution. ok is false for fewer than six values, which have none.
func hodgesLehmann(values []float64) (mid, low, high float64, ok bool) {
	n := len(values)
	var means []float64
	for i, a := range values {
		for _, b := range values[i:] {
			means = append(means, (a+b)/2)
		}
	}
	slices.Sort(means)
	// ways[w] is the share of the sign patterns whose positive ranks sum to w.
	ways := make([]float64, len(means)+1)
	ways[0] = 1
	for rank := 1; rank <= n; rank++ {
		for w := len(ways) - 1; w >= 0; w-- {
			ways[w] /= 2
			if w >= rank {
				ways[w] += ways[w-rank] / 2
			}
		}
	}
	cut, tail := 0, 0.0
	for ; cut < len(ways) && tail+ways[cut] <= 0.025; cut++ {
		tail += ways[cut]
	}
	if cut == 0 {
		return 0, 0, 0, false
	}
	m := len(means)
	return (means[(m-1)/2] + means[m/2]) / 2, means[cut-1], means[m-cut], true
}

func (rep *noHarmReport) writeTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "seed\tarm\tmakespan s\ttokens/s\tinteractive\tfirst token p50 s\tloans\trecalls")
	for _, r := range rep.Runs {
		fmt.Fprintf(tw, "%d\t%s\t%.3f\t%.1f\t%d\t%.4f\t%d\t%d\n", r.Seed, r.Arm, r.Makespan, r.Throughput, r.Interactive, r.FirstToken, r.Loans, r.Recalls)
	}
	fmt.Fprintf(tw, "\narm\tfigure\tpairs\tratio to attrition\t95 %% interval\n")
	for _, q := range rep.Ratios {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%.4f\t%.4f to %.4f\n", q.Arm, q.Figure, q.Pairs, q.Ratio, q.Low, q.High)
	}
	fmt.Fprintf(tw, "\n%d pairs left out: something was recalled, or nothing lent\n", rep.Invalid)
	writeBars(tw, rep.Bars)
	return tw.Flush()
}
