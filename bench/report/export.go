package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"headgate/bench"
	"headgate/sim"
)

// Formats that runs can be exported to, for tools that read those.
const (
	ExportVLLM = "vllm"  // vLLM's benchmark JSON
	ExportLLMD = "llm-d" // llm-d's Benchmark Report 0.2
)

// Export writes runs in another tool's form, a JSON object a line for each run; run is
// the number of one, 0 for all. What was not measured is absent. All times are from
// the intended send, where those tools count from the real one.
func (e *Evidence) Export(format string, run int) ([]byte, error) {
	if format != ExportVLLM && format != ExportLLMD {
		return nil, fmt.Errorf("export is %q: allowed is %s or %s", format, ExportVLLM, ExportLLMD)
	}
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	found := false
	for i := range e.Results {
		r := &e.Results[i]
		if run != 0 && r.Run != run {
			continue
		}
		found = true
		lines, err := e.Requests(r)
		if err != nil {
			return nil, err
		}
		s := sum(lines)
		var v any = e.vllm(r, lines, s)
		if format == ExportLLMD {
			v = e.llmd(r, s)
		}
		if err := w.Encode(v); err != nil {
			return nil, fmt.Errorf("run %d: %w", r.Run, err)
		}
	}
	if !found {
		return nil, fmt.Errorf("run is %d: allowed is one of the directory's %d runs", run, len(e.Results))
	}
	return b.Bytes(), nil
}

// sums are what both forms are made of, over all requests that were offered and are
// not of the warm-up. Times are in seconds.
type sums struct {
	offered, completed       int
	incomplete               int // left without an end
	input, output            []float64
	ttft, e2e, tpot, perTok  []float64 // of completed requests; tpot of those with two output tokens or more
	first, last              float64   // arrivals
	end                      float64   // of the last answer
	inputTokens, outputToken int
}

func sum(lines []sim.RequestLine) *sums {
	s := &sums{first: math.Inf(1)}
	for i := range lines {
		l := &lines[i]
		if l.Outcome == sim.Skipped || l.Warmup {
			continue
		}
		s.offered++
		at := *l.ArrivalMS / 1000
		s.first, s.last = min(s.first, at), max(s.last, at)
		if l.Outcome == bench.TimedOut {
			s.incomplete++
		}
		if l.Outcome != sim.Completed || l.FirstTokenMS == nil || l.DoneMS == nil {
			continue
		}
		s.completed++
		first, done := *l.FirstTokenMS/1000, *l.DoneMS/1000
		s.end = max(s.end, done)
		s.inputTokens, s.outputToken = s.inputTokens+l.Prompt, s.outputToken+l.Output
		s.input, s.output = append(s.input, float64(l.Prompt)), append(s.output, float64(l.Output))
		s.ttft, s.e2e = append(s.ttft, first-at), append(s.e2e, done-at)
		if l.Output > 1 {
			s.tpot = append(s.tpot, (done-first)/float64(l.Output-1))
		}
		if l.Output > 0 {
			s.perTok = append(s.perTok, (done-at)/float64(l.Output))
		}
	}
	return s
}

// duration is from the first intended send to the last answer.
func (s *sums) duration() float64 { return s.end - s.first }

// percentile interpolates between neighbours, as both tools do; values are in order.
func percentile(sorted []float64, p float64) float64 {
	at := p / 100 * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

func meanAndSD(values []float64) (mean, sd float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		sd += (v - mean) * (v - mean) / float64(len(values))
	}
	return mean, math.Sqrt(sd)
}

// vllm is a run in the form of vllm bench serve --save-result --save-detailed.
func (e *Evidence) vllm(r *bench.Result, lines []sim.RequestLine, s *sums) map[string]any {
	v := map[string]any{
		"date": r.Started.UTC().Format("20060102-150405"), "backend": r.Engine.Kind, "label": r.Arm,
		"num_prompts": s.offered, "completed": s.completed, "failed": s.offered - s.completed,
		"total_input_tokens": s.inputTokens, "total_output_tokens": s.outputToken,
	}
	if r.Engine.Model != "" {
		v["model_id"] = r.Engine.Model
	}
	if s.completed == 0 {
		return v
	}
	d := s.duration()
	v["duration"] = d
	v["request_throughput"], v["output_throughput"] = float64(s.completed)/d, float64(s.outputToken)/d
	v["total_token_throughput"] = float64(s.inputTokens+s.outputToken) / d
	for name, values := range map[string][]float64{"ttft": s.ttft, "tpot": s.tpot, "e2el": s.e2e} {
		if len(values) == 0 {
			continue
		}
		sorted := slices.Sorted(slices.Values(values))
		mean, sd := meanAndSD(values)
		v["mean_"+name+"_ms"], v["std_"+name+"_ms"], v["median_"+name+"_ms"] = 1000*mean, 1000*sd, 1000*percentile(sorted, 50)
		if len(values) >= p99Requests {
			v["p99_"+name+"_ms"] = 1000 * percentile(sorted, 99)
		}
	}
	// Goodput is of all requests there, so it is there only where on_time asks all.
	o := &e.Plan.OnTime
	good, all := 0, true
	var input, output []int
	var ttfts, starts []*float64
	var errors []string
	for i := range lines {
		l := &lines[i]
		if l.Outcome == sim.Skipped || l.Warmup {
			continue
		}
		all = all && o.Of(l)
		if o.Of(l) && o.Met(l) {
			good++
		}
		input, output = append(input, l.Prompt), append(output, l.Output)
		starts = append(starts, seconds(l.SentMS, 0))
		problem := ""
		var first *float64
		if l.Outcome != sim.Completed {
			problem = string(l.Outcome)
			if l.Cause != "" {
				problem += ": " + l.Cause
			}
		}
		if l.FirstTokenMS != nil {
			first = seconds(l.FirstTokenMS, *l.ArrivalMS)
		}
		ttfts, errors = append(ttfts, first), append(errors, problem)
	}
	if all {
		v["request_goodput"] = float64(good) / d
	}
	v["input_lens"], v["output_lens"], v["ttfts"], v["start_times"], v["errors"] = input, output, ttfts, starts, errors
	return v
}

func seconds(ms *float64, since float64) *float64 {
	if ms == nil {
		return nil
	}
	s := (*ms - since) / 1000
	return &s
}

// llmd is a run in the form of llm-d's Benchmark Report.
func (e *Evidence) llmd(r *bench.Result, s *sums) map[string]any {
	type object = map[string]any
	requests := object{"total": s.offered, "failures": s.offered - s.completed - s.incomplete, "incomplete": s.incomplete}
	aggregate := object{"requests": requests}
	load := object{
		"metadata": object{"cfg_id": r.Trace, "description": r.Source.Name},
		"native":   object{"config": object{"source": r.Source, "plan_sha256": r.Plan}},
	}
	if s.completed > 0 {
		requests["input_length"], requests["output_length"] = statistics(s.input, "count"), statistics(s.output, "count")
		latency := object{"time_to_first_token": statistics(s.ttft, "s"), "request_latency": statistics(s.e2e, "s")}
		if len(s.tpot) > 0 {
			latency["time_per_output_token"] = statistics(s.tpot, "s/token")
		}
		if len(s.perTok) > 0 {
			latency["normalized_time_per_output_token"] = statistics(s.perTok, "s/token")
		}
		d := s.duration()
		rate := func(n int, unit string) object { return object{"units": unit, "mean": float64(n) / d} }
		aggregate["latency"] = latency
		aggregate["throughput"] = object{
			"input_token_rate": rate(s.inputTokens, "tokens/s"), "output_token_rate": rate(s.outputToken, "tokens/s"),
			"total_token_rate": rate(s.inputTokens+s.outputToken, "tokens/s"), "request_rate": rate(s.completed, "queries/s"),
		}
		inputMean, _ := meanAndSD(s.input)
		standardized := object{
			"tool": "headgate", "tool_version": e.Manifest.Version, "source": "unknown",
			"input_seq_len": object{"distribution": "other", "value": inputMean, "min": int(slices.Min(s.input)), "max": int(slices.Max(s.input))},
		}
		if s.last > s.first {
			standardized["rate_qps"] = float64(s.offered-1) / (s.last - s.first)
		}
		load["standardized"] = standardized
	}
	scenario := object{}
	if _, ok := load["standardized"]; ok {
		scenario["load"] = load
	}
	if f := &r.Engine; f.Version != "" {
		config, _ := json.Marshal(f) // numbers and texts
		hash := sha256.Sum256(config)
		scenario["stack"] = []object{{
			"metadata":     object{"label": "engine", "cfg_id": hex.EncodeToString(hash[:])},
			"standardized": object{"kind": "generic", "tool": f.Kind, "tool_version": f.Version},
			"native":       object{"config": json.RawMessage(config)},
		}}
	}
	run := object{"uid": r.RequestsSHA256, "eid": r.Plan, "description": fmt.Sprintf("%s: arm %s on %s", e.Plan.Name, r.Arm, r.Source.Name)}
	if r.Runner == bench.Live { // how long the simulator took is of no use to anybody
		run["time"] = object{"start": r.Started.UTC().Format(time.RFC3339), "duration": fmt.Sprintf("PT%gS", r.WallS)}
	}
	out := object{"version": "0.2", "run": run, "results": object{"request_performance": object{"aggregate": aggregate}}}
	if len(scenario) > 0 {
		out["scenario"] = scenario
	}
	return out
}

// statistics are llm-d's of one quantity. Percentiles that are a run's luck are absent.
func statistics(values []float64, unit string) map[string]any {
	sorted := slices.Sorted(slices.Values(values))
	mean, sd := meanAndSD(values)
	v := map[string]any{"units": unit, "mean": mean, "stddev": sd, "min": sorted[0], "max": sorted[len(sorted)-1]}
	for _, p := range []struct {
		name string
		at   float64
		need int
	}{{"p0p1", 0.1, 5000}, {"p1", 1, 500}, {"p5", 5, 0}, {"p10", 10, 0}, {"p25", 25, 0}, {"p50", 50, 0}, {"p75", 75, 0}, {"p90", 90, 0}, {"p95", 95, 0}, {"p99", 99, 500}, {"p99p9", 99.9, 5000}} {
		if len(sorted) >= p.need {
			v[p.name] = percentile(sorted, p.at)
		}
	}
	return v
}
