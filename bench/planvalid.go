package bench

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"headgate/trace"
)

// Kinds of engine.
var kinds = []string{"vllm", "sglang", "llamacpp", "openai"}

// Validate reports every value that is impossible.
func (p *Plan) Validate(bad func(path string, value any, allowed string)) {
	if p.Name == "" || strings.ContainsAny(p.Name, "\n\r\t") {
		bad("name", strconv.Quote(p.Name), "a line of text")
	}
	if p.Hypothesis == "" {
		bad("hypothesis", `""`, "what the comparison is to show, in words")
	}
	if p.Runner != Live && p.Runner != Sim {
		bad("runner", p.Runner, Live+" or "+Sim)
	}
	p.Engine.validate(bad)
	p.validateArms(bad)
	p.Workload.validate(bad)
	if p.OnTime.Window != ReturnWindow && p.OnTime.Window != BorrowWindow && p.OnTime.Window != AllWindow {
		bad("on_time.window", p.OnTime.Window, "return, borrow or all")
	}
	if p.OnTime.TTFT <= 0 {
		bad("on_time.ttft", p.OnTime.TTFT, "a time above 0")
	}
	if p.OnTime.E2E < p.OnTime.TTFT {
		bad("on_time.e2e", p.OnTime.E2E, "a time from on_time.ttft on")
	}
	p.validateCompare(bad)
	p.Gates.validate(bad)
	for i, w := range p.Waive {
		if !slices.Contains(GateNames(), w) {
			bad(fmt.Sprintf("waive[%d]", i), w, strings.Join(GateNames(), ", "))
		}
	}
	s := &p.Stop
	switch {
	case s.Pairs < 0:
		bad("stop.pairs", s.Pairs, "pairs from 1, or 0 for one for each source")
	case s.EProcess != 0 && s.Pairs != 0:
		bad("stop.pairs", s.Pairs, "0 beside e_process: a comparison stops by one rule")
	case s.EProcess != 0 && s.EProcess <= 1:
		bad("stop.e_process", s.EProcess, "a value above 1, such as 20")
	case s.EProcess == 0 && s.Pairs == 0 && s.AtMost != 0, s.AtMost < 0:
		bad("stop.at_most", s.AtMost, "pairs from 1 on, beside e_process or pairs")
	case s.AtMost != 0 && s.AtMost < s.Pairs:
		bad("stop.at_most", s.AtMost, fmt.Sprintf("as many as stop.pairs, %d, or more", s.Pairs))
	}
}

func (e *Engine) validate(bad func(path string, value any, allowed string)) {
	if (e.Simulated == nil) == (e.Served == nil) {
		bad("engine", given(e.Simulated != nil, "simulated", e.Served != nil, "served"), "one of simulated and served")
	}
	if s := e.Simulated; s != nil {
		if !(s.Speed > 0 && s.Speed <= 1000) {
			bad("engine.simulated.speed", s.Speed, "a factor above 0 and up to 1000")
		}
		for _, n := range []struct {
			name string
			v    int
		}{{"slots", s.Slots}, {"kv_blocks", s.KVBlocks}, {"block_size", s.BlockSize}, {"max_model_len", s.MaxModelLen}, {"batched_tokens", s.BatchedTokens}} {
			if n.v < 0 {
				bad("engine.simulated."+n.name, n.v, "a number from 1, or 0 for the published experiment's")
			}
		}
	}
	if s := e.Served; s != nil {
		if !isURL(s.URL) {
			bad("engine.served.url", strconv.Quote(s.URL), "http://host:port, without a path")
		}
		if !slices.Contains(kinds, s.Kind) {
			bad("engine.served.kind", strconv.Quote(s.Kind), strings.Join(kinds, ", "))
		}
		if s.Slots < 1 {
			bad("engine.served.slots", s.Slots, "sequences that it runs at once, from 1")
		}
		if s.KVTokens < 0 {
			bad("engine.served.kv_tokens", s.KVTokens, "tokens from 1, or 0 where the engine tells")
		}
		if s.Ready <= 0 {
			bad("engine.served.ready", s.Ready, "a time above 0")
		}
		if len(s.Stop) > 0 && len(s.Start) == 0 {
			bad("engine.served.stop", s.Stop, "a command beside start: what was not started is not stopped")
		}
	}
}

func (p *Plan) validateArms(bad func(path string, value any, allowed string)) {
	if len(p.Arms) < 2 {
		bad("arms", len(p.Arms), "two arms or more")
	}
	seen := map[string]bool{}
	for i := range p.Arms {
		a := &p.Arms[i]
		at := fmt.Sprintf("arms[%d].", i)
		if !validArm(a.Name) || seen[a.Name] {
			bad(at+"name", strconv.Quote(a.Name), "a name of 1 to 40 letters, digits and any of -_. that no other arm has")
		}
		seen[a.Name] = true
		ways := given(a.Direct != nil, "direct", a.Published != "", "published", a.Policy != "", "policy", a.Proxy != nil, "proxy")
		if len(ways) != 1 {
			bad(at[:len(at)-1], ways, "one of direct, published, policy and proxy")
		}
		if s := p.Engine.Served; s != nil && !s.Priority && a.Direct != nil && len(a.Direct.Priority) > 0 {
			bad(at+"direct.priority", a.Direct.Priority, "none on an engine that does not order by it; engine.served.priority: true says that it does")
		}
		if a.Published != "" && !slices.Contains(PublishedArms(), a.Published) {
			bad(at+"published", a.Published, strings.Join(PublishedArms(), ", "))
		}
		if a.Slots < 0 || a.Slots > 0 && a.Policy == "" && a.Published == "" {
			bad(at+"slots", a.Slots, "0 for the engine's own, or requests from 1 on of an arm with a policy")
		}
		if a.IdleAfter < 0 || a.IdleAfter > 0 && a.Published == "" {
			bad(at+"idle_after", a.IdleAfter, "0, or a time of a published arm: a policy has its own")
		}
		if a.Reopen != "" && (a.Published == "" || a.Reopen != "idle" && a.Reopen != "settled") {
			bad(at+"reopen", a.Reopen, "idle or settled, of a published arm: a policy has its own")
		}
		if x := a.Proxy; x != nil {
			if !isURL(x.URL) {
				bad(at+"proxy.url", strconv.Quote(x.URL), "http://host:port, without a path")
			}
			if p.Runner == Sim {
				bad(at+"proxy", x.URL, "an arm of runner live")
			}
			if len(x.Stop) > 0 && len(x.Start) == 0 {
				bad(at+"proxy.stop", x.Stop, "a command beside start: what was not started is not stopped")
			}
		}
		if d := a.Direct; d != nil && (d.Attempts < 0 || d.Attempts > 100) {
			bad(at+"direct.attempts", d.Attempts, "0 to 100 times")
		}
		if d := a.Direct; d != nil && (d.Backoff < 0 || d.Attempts > 1 && d.Backoff == 0) {
			bad(at+"direct.backoff", d.Backoff, "a time above 0 beside attempts")
		}
		if a.MaxQueued < 0 || a.MaxQueued > 0 && p.Engine.Simulated == nil {
			bad(at+"max_queued", a.MaxQueued, "requests from 1 on of a simulated engine, or 0 for no bound")
		}
		if !(a.Speed > 0 && a.Speed <= 100) || a.Speed != 1 && p.Engine.Simulated == nil {
			bad(at+"speed", a.Speed, "a factor above 0 and up to 100, of a simulated engine")
		}
	}
	if p.Runner == Sim && p.Engine.Simulated == nil {
		bad("engine", "served", "simulated, with runner sim")
	}
}

func (w *Workload) validate(bad func(path string, value any, allowed string)) {
	origins := given(w.Profile != "", "profile", w.Traces != "", "traces", w.Interactive+w.Batch != "", "interactive and batch")
	if len(origins) != 1 {
		bad("workload", origins, "one origin of traces: profile with seeds, traces, or interactive with batch")
	}
	if w.Profile != "" && !slices.Contains(trace.Names(), w.Profile) {
		bad("workload.profile", w.Profile, strings.Join(trace.Names(), ", "))
	}
	if w.Profile != "" {
		if _, err := Seeds(w.Seeds); err != nil {
			bad("workload.seeds", w.Seeds, err.Error())
		}
	} else if w.Seeds != "" {
		bad("workload.seeds", w.Seeds, "seeds beside profile")
	}
	if w.Limit < 0 {
		bad("workload.limit", w.Limit, "requests from 1, or 0 for all")
	}
	for _, d := range []struct {
		name string
		v    Duration
	}{{"duration", w.Duration}, {"warmup", w.Warmup}, {"drain", w.Drain}} {
		if d.v < 0 {
			bad("workload."+d.name, d.v, "a time from 0 on")
		}
	}
	if w.Profile != "" && (w.Limit != 0 || w.Duration != 0) {
		bad("workload.limit", w.Limit, "0, and no duration, beside profile: a drawn trace is not cut")
	}
	if !(w.Speedup > 0 && w.Speedup <= 1000) {
		bad("workload.speedup", w.Speedup, "a factor above 0 and up to 1000")
	}
	for _, class := range slices.Sorted(maps.Keys(w.Patience)) {
		if v := w.Patience[class]; v <= 0 {
			bad("workload.patience."+class, v, "a time above 0; a class that is not named waits for ever")
		}
	}
	if w.Tenants < 0 || w.Tenants > 1000 {
		bad("workload.tenants", w.Tenants, "0 to 1000 tenants")
	}
	if w.Prime < 0 || w.Prime > 1000 {
		bad("workload.prime", w.Prime, "0 to 1000 requests")
	}
}

func (p *Plan) validateCompare(bad func(path string, value any, allowed string)) {
	c := &p.Compare
	var names []string
	for i := range p.Arms {
		names = append(names, p.Arms[i].Name)
	}
	for _, a := range []struct{ at, name string }{{"baseline", c.Baseline}, {"treatment", c.Treatment}} {
		if !slices.Contains(names, a.name) {
			bad("compare."+a.at, strconv.Quote(a.name), "the name of an arm: "+strings.Join(names, ", "))
		}
	}
	if c.Baseline == c.Treatment {
		bad("compare.treatment", strconv.Quote(c.Treatment), "another arm than the baseline")
	}
	criterion := func(at string, k *Criterion) {
		m, ok := MetricNamed(k.Metric)
		if !ok {
			bad(at+".metric", strconv.Quote(k.Metric), strings.Join(MetricNames(), ", "))
			return
		}
		if k.Margin.Value < 0 {
			bad(at+".margin", k.Margin, "a margin from 0 on")
		}
		if k.Margin.Relative && k.Margin.Value >= 1 {
			bad(at+".margin", k.Margin, "below 100% of the baseline")
		}
		if !k.Margin.Relative && k.Margin.Value > 1 && m.Unit == "share" {
			bad(at+".margin", k.Margin, "at most 1 for a share: 0.5pp is half a hundredth")
		}
		if k.Margin.Points && m.Unit != "share" {
			bad(at+".margin", fmt.Sprintf("%gpp", 100*k.Margin.Value), "a share of the baseline, as 5%, or a number of "+m.Unit+": only shares have percentage points")
		}
	}
	for i := range c.NoHarm {
		criterion(fmt.Sprintf("compare.no_harm[%d]", i), &c.NoHarm[i])
	}
	if len(c.NoHarm) == 0 {
		bad("compare.no_harm", "empty", "one criterion or more")
	}
	criterion("compare.gain", &c.Gain)
	for i, name := range p.Secondary {
		if _, ok := MetricNamed(name); !ok {
			bad(fmt.Sprintf("secondary[%d]", i), name, strings.Join(MetricNames(), ", "))
		}
	}
}

func (g *Limits) validate(bad func(path string, value any, allowed string)) {
	for _, v := range []struct {
		name string
		v    Duration
	}{{"schedule_delay_p99", g.ScheduleDelay}, {"gc_pause", g.GCPause}, {"clock_drift", g.ClockDrift}, {"memory_pressure", g.MemoryPressure}} {
		if v.v < 0 {
			bad("gates."+v.name, v.v, "a time from 0 on")
		}
	}
	for _, v := range []struct {
		name string
		v    float64
	}{{"schedule_delay_share", g.ScheduleDelayShare}, {"rate_off", g.RateOff}, {"start_kv", g.StartKV}, {"generator_cpu", g.GeneratorCPU}, {"batch_dry", g.BatchDry}} {
		if !(v.v > 0 && v.v <= 1) {
			bad("gates."+v.name, v.v, "a share above 0 and up to 1, such as 0.01")
		}
	}
}

// given lists the names whose conditions hold: condition, name, condition, name.
func given(pairs ...any) []string {
	names := []string{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i].(bool) {
			names = append(names, pairs[i+1].(string))
		}
	}
	return names
}

func validArm(s string) bool {
	return s != "" && len(s) <= 40 && !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
	})
}
