package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"headgate/bench"
)

// engine is the one that a run is on.
type engine struct {
	url, kind, model string
	slots            int
	kvTokens         int64 // 0 is what the engine tells
	orders           bool  // by priority
	maxModelLen      int   // 0 is not known
	speed            float64
	simulated        bool
	version          string

	process *process // nil: attached
	ending  []string // the command that stops it
}

// onAt is how `headgate engine` says where it listens.
var onAt = regexp.MustCompile(`^(\S+) on (http://\S+)$`)

// startEngine starts a fresh engine, or attaches to the plan's.
func (r *Runner) startEngine(ctx context.Context, j *bench.Job) (*engine, error) {
	if j.Plan.Engine.Simulated != nil {
		return r.simulated(ctx, j)
	}
	return served(ctx, j.Plan.Engine.Served)
}

func (r *Runner) simulated(ctx context.Context, j *bench.Job) (*engine, error) {
	s := j.Plan.Engine.Simulated
	c, err := s.Config(j.Plan, j.Arm)
	if err != nil {
		return nil, err
	}
	argv := []string{
		r.Headgate, "engine", "--listen", "127.0.0.1:0", "--speed", strconv.FormatFloat(c.Speed, 'g', -1, 64),
		"--max-num-seqs", strconv.Itoa(c.MaxNumSeqs), "--num-gpu-blocks", strconv.Itoa(c.NumBlocks), "--block-size", strconv.Itoa(c.BlockSize),
		"--max-model-len", strconv.Itoa(c.MaxModelLen), "--max-num-batched-tokens", strconv.Itoa(c.MaxBatchedTokens),
		"--scheduling-policy", string(c.Policy), "--enable-per-request-metrics", "--enable-prompt-tokens-details",
	}
	if most := j.Arm.MaxQueued; most > 0 {
		argv = append(argv, "--max-num-queued-reqs", strconv.Itoa(most))
	}
	if c.PrefixCaching {
		argv = append(argv, "--enable-prefix-caching")
	}
	if s.Model != "" {
		argv = append(argv, "--engine-model", j.Plan.ModelFile())
	}
	p, said, err := startSaying(ctx, argv, onAt)
	if err != nil {
		return nil, err
	}
	j.Skip(c.MaxModelLen)
	e := &engine{
		url: said[2], kind: "vllm", model: said[1], slots: c.MaxNumSeqs, orders: true, maxModelLen: c.MaxModelLen, speed: c.Speed, simulated: true, process: p,
		kvTokens: int64(c.NumBlocks-1) * int64(c.BlockSize),
	}
	e.version, _ = e.field(ctx, "/version", "version")
	return e, nil
}

func served(ctx context.Context, s *bench.Served) (*engine, error) {
	e := &engine{url: strings.TrimSuffix(s.URL, "/"), kind: s.Kind, model: s.Model, slots: s.Slots, kvTokens: int64(s.KVTokens), orders: s.Priority, ending: s.Stop}
	if len(s.Start) > 0 {
		// What answers there before is not what is about to be started.
		if err := e.healthy(ctx); err == nil {
			return nil, fmt.Errorf("%s answers before it is started: allowed is a free address, or no start command", e.url)
		}
		p, err := start(s.Start, nil)
		if err != nil {
			return nil, err
		}
		e.process = p
	}
	err := e.ready(ctx, time.Duration(s.Ready))
	if err == nil {
		err = do(ctx, s.Reset)
	}
	if err == nil && e.model == "" {
		e.model, err = e.field(ctx, "/v1/models", "data.0.id")
	}
	if err != nil {
		return nil, errors.Join(err, e.stop())
	}
	switch e.kind {
	case "vllm":
		e.version, _ = e.field(ctx, "/version", "version")
	case "llamacpp":
		e.version, _ = e.field(ctx, "/props", "build_info")
	}
	return e, nil
}

// stop ends an engine that was started.
func (e *engine) stop() error {
	if e.process == nil {
		return nil
	}
	var err error
	if len(e.ending) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		err = do(ctx, e.ending)
	}
	return errors.Join(err, e.process.stop())
}

// ready waits until the engine takes requests.
func (e *engine) ready(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var last error
	for {
		if last = e.healthy(ctx); last == nil {
			return nil
		}
		if e.lost() {
			return fmt.Errorf("it left (%v) and said:\n%s", e.process.err, e.process.said())
		}
		if !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("%s is not ready within %v: %w", e.url, within, last)
		}
	}
}

// lost tells whether the started process has ended before it should. One that has
// a command which stops it may leave the engine to others and go.
func (e *engine) lost() bool {
	return e.process != nil && e.process.gone() && (len(e.ending) == 0 || e.process.err != nil)
}

func (e *engine) healthy(ctx context.Context) error {
	path := "/health"
	if e.kind == "openai" {
		path = "/v1/models"
	}
	_, err := get(ctx, e.url+path)
	return err
}

// field is a value of one of the engine's JSON answers.
func (e *engine) field(ctx context.Context, path, field string) (string, error) {
	body, err := get(ctx, e.url+path)
	if err != nil {
		return "", err
	}
	v := gjson.GetBytes(body, field)
	if !v.Exists() {
		return "", fmt.Errorf("%s%s has no %s", e.url, path, field)
	}
	return v.String(), nil
}

// asking is the client for everything that is not the workload.
var asking = &http.Client{Timeout: 5 * time.Second}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := asking.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", url, res.Status)
	}
	return body, err
}

// sample is what the engine told at one moment; nil is what it does not tell.
type sample struct {
	at               time.Time
	running, waiting *float64
	kv               *float64 // share in use
	generated        *float64 // tokens since it began
	preemptions      *float64
	began            *float64 // Unix time, s
}

// names of a kind's series, by what they are; the first that is there counts.
type names struct{ running, waiting, kv, generated, preemptions []string }

var series = map[string]names{
	"vllm": {
		[]string{"vllm:num_requests_running"}, []string{"vllm:num_requests_waiting"}, []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
		[]string{"vllm:generation_tokens_total"}, []string{"vllm:num_preemptions_total"},
	},
	"sglang": {
		[]string{"sglang:num_running_reqs"}, []string{"sglang:num_queue_reqs"}, []string{"sglang:token_usage"},
		[]string{"sglang:generation_tokens_total"}, []string{"sglang:num_retracted_requests_total"},
	},
	"llamacpp": {
		[]string{"llamacpp:requests_processing"}, []string{"llamacpp:requests_deferred"}, []string{"llamacpp:kv_cache_usage_ratio"},
		[]string{"llamacpp:tokens_predicted_total"}, nil,
	},
}

// sample asks the engine for its metrics.
func (e *engine) sample(ctx context.Context) sample {
	s := sample{at: time.Now()}
	n, ok := series[e.kind]
	if !ok {
		return s
	}
	body, err := get(ctx, e.url+"/metrics")
	if err != nil {
		return s
	}
	sums := sumSeries(string(body))
	find := func(names []string) *float64 {
		for _, name := range names {
			if v, ok := sums[name]; ok {
				return &v
			}
		}
		return nil
	}
	s.running, s.waiting, s.kv = find(n.running), find(n.waiting), find(n.kv)
	s.generated, s.preemptions, s.began = find(n.generated), find(n.preemptions), find([]string{"process_start_time_seconds"})
	if s.running != nil && s.waiting == nil {
		s.waiting = new(float64)
	}
	return s
}

// sumSeries adds up the values of each name in Prometheus' text format.
func sumSeries(text string) map[string]float64 {
	sums := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		name, rest := line, ""
		if i := strings.IndexAny(line, "{ "); i > 0 {
			name, rest = line[:i], line[i:]
		}
		if name == "" || name[0] == '#' {
			continue
		}
		if i := strings.LastIndexByte(rest, '}'); i >= 0 {
			rest = rest[i+1:]
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		if v, err := strconv.ParseFloat(fields[0], 64); err == nil {
			sums[name] += v
		}
	}
	return sums
}

// settled samples the engine once what was sent before is out of it, or when it
// has had time enough for that.
func (e *engine) settled(ctx context.Context) sample {
	for range 20 {
		s := e.sample(ctx)
		if s.running == nil || *s.running+*s.waiting == 0 || !pause(ctx, 250*time.Millisecond) {
			return s
		}
	}
	return e.sample(ctx)
}

// probing samples an engine at an interval.
type probing struct {
	end  context.CancelFunc
	over sync.WaitGroup
	all  []sample
}

func (e *engine) watch(ctx context.Context) *probing {
	ctx, cancel := context.WithCancel(ctx)
	p := &probing{end: cancel}
	p.over.Go(func() {
		tick := time.NewTicker(bench.TimelineEvery)
		defer tick.Stop()
		for {
			if s := e.sample(ctx); s.running != nil {
				p.all = append(p.all, s)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return p
}

func (p *probing) stop() []sample {
	p.end()
	p.over.Wait()
	return p.all
}

// restarted looks for an engine that is not the one it was: a process that ended,
// another beginning, or a counter that fell.
func (e *engine) restarted(all []sample) (can bool, how string) {
	if e.process != nil {
		can = true
		if e.lost() {
			return true, "its process ended"
		}
	}
	var began, generated *float64
	for _, s := range all {
		if s.began != nil {
			can = true
			if began != nil && *s.began != *began {
				return true, fmt.Sprintf("its process began at %.0f, and then at %.0f", *began, *s.began)
			}
			began = s.began
		}
		if s.generated != nil {
			can = true
			if generated != nil && *s.generated < *generated {
				return true, fmt.Sprintf("its count of generated tokens fell from %.0f to %.0f", *generated, *s.generated)
			}
			generated = s.generated
		}
	}
	return can, ""
}

func (e *engine) facts(before, after sample) bench.Facts {
	f := bench.Facts{Kind: e.kind, Version: e.version, Model: e.model, Speed: e.speed, Slots: e.slots, KVTokens: e.kvTokens, Preemptions: -1, StartKV: -1}
	if e.simulated {
		f.Kind = "simulated"
	}
	if before.kv != nil {
		f.StartKV = *before.kv
	}
	if before.began != nil {
		f.ProcessStart = *before.began
	}
	if before.preemptions != nil && after.preemptions != nil {
		f.Preemptions = int64(*after.preemptions - *before.preemptions)
	}
	return f
}
