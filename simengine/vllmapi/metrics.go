package vllmapi

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/simengine"
)

// metrics has vLLM's series, names and labels. Gauges and counters are read
// from the model when scraped; histograms are fed by the loop.
type metrics struct {
	server   *Server
	registry *prometheus.Registry

	gauges   map[string]*prometheus.Desc
	counters []counter
	info     prometheus.Metric

	ttft, gap, e2e, queue, prefill, decode, inference prometheus.Observer
	prompt, output, limit                             prometheus.Observer
}

type counter struct {
	desc   *prometheus.Desc
	labels []string
	value  func(s *simengine.Stats) int64
}

var (
	// Bucket bounds as vLLM's, which start coarse: the first bound of the
	// request times is 0.3 s.
	ttftBuckets    = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	gapBuckets     = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

func newMetrics(s *Server) *metrics {
	m := &metrics{server: s, registry: prometheus.NewRegistry(), gauges: map[string]*prometheus.Desc{}}
	labels := prometheus.Labels{"model_name": s.cfg.ModelName, "engine": "0"}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("vllm:"+name, help, variable, labels)
	}
	m.gauges["running"] = desc("num_requests_running", "Requests in the batch.")
	m.gauges["waiting"] = desc("num_requests_waiting", "Requests that wait for a place in the batch, preempted ones included.")
	m.gauges["reason"] = desc("num_requests_waiting_by_reason", "Waiting requests by what they wait for.", "reason")
	m.gauges["kv"] = desc("kv_cache_usage_perc", "Share of the KV blocks that requests hold, 0 to 1; cached blocks that none holds count as free.")
	add := func(name, help string, value func(s *simengine.Stats) int64) {
		m.counters = append(m.counters, counter{desc(name, help), nil, value})
	}
	add("num_preemptions_total", "Requests that lost their KV and have to be computed again.", func(s *simengine.Stats) int64 { return s.Preemptions })
	add("prompt_tokens_total", "Prompt tokens of requests that have their first token.", func(s *simengine.Stats) int64 { return s.PromptTokens })
	add("generation_tokens_total", "Generated tokens.", func(s *simengine.Stats) int64 { return s.GeneratedTokens })
	add("prefix_cache_queries_total", "Tokens looked for in the prefix cache, counted at admission.", func(s *simengine.Stats) int64 { return s.PrefixQueries })
	add("prefix_cache_hits_total", "Tokens found in the prefix cache.", func(s *simengine.Stats) int64 { return s.PrefixHits })
	success := desc("request_success_total", "Requests that ended by themselves.", "finished_reason")
	m.counters = append(m.counters,
		counter{success, []string{"length"}, func(s *simengine.Stats) int64 { return s.FinishedLength }},
		counter{success, []string{"stop"}, func(s *simengine.Stats) int64 { return s.FinishedStop }},
		// As on vLLM, an aborted request shows in no per-request series.
		counter{success, []string{"abort"}, func(*simengine.Stats) int64 { return 0 }},
	)
	m.info = cacheConfig(s.cfg.Engine)
	m.registry.MustRegister(m)
	m.histograms(labels)
	return m
}

// cacheConfig is the info series with the size of the KV pool.
func cacheConfig(c simengine.Config) prometheus.Metric {
	caching := "False"
	if c.PrefixCaching {
		caching = "True"
	}
	tokens := c.NumBlocks * c.BlockSize
	return prometheus.MustNewConstMetric(prometheus.NewDesc("vllm:cache_config_info", "Settings of the KV cache.", nil, prometheus.Labels{
		"engine": "0", "block_size": strconv.Itoa(c.BlockSize), "num_gpu_blocks": strconv.Itoa(c.NumBlocks),
		"enable_prefix_caching": caching, "cache_dtype": "auto", "kv_cache_size_tokens": strconv.Itoa(tokens),
		"kv_cache_max_concurrency": strconv.FormatFloat(float64(tokens)/float64(c.MaxModelLen), 'f', 2, 64),
	}), prometheus.GaugeValue, 1)
}

func (m *metrics) histograms(labels prometheus.Labels) {
	add := func(name, help string, buckets []float64) prometheus.Observer {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "vllm:" + name, Help: help, Buckets: buckets, ConstLabels: labels})
		m.registry.MustRegister(h)
		return h
	}
	m.ttft = add("time_to_first_token_seconds", "From arrival to the first token.", ttftBuckets)
	m.gap = add("inter_token_latency_seconds", "Between two tokens of a request.", gapBuckets)
	m.e2e = add("e2e_request_latency_seconds", "From arrival to the last token.", requestBuckets)
	m.queue = add("request_queue_time_seconds", "From arrival to the first step.", requestBuckets)
	m.prefill = add("request_prefill_time_seconds", "From the first step to the first token.", requestBuckets)
	m.decode = add("request_decode_time_seconds", "From the first token to the last.", requestBuckets)
	m.inference = add("request_inference_time_seconds", "From the first step to the last token.", requestBuckets)
	tokens := tokenBuckets(m.server.cfg.Engine.MaxModelLen)
	m.prompt = add("request_prompt_tokens", "Prompt tokens of a request.", tokens)
	m.output = add("request_generation_tokens", "Generated tokens of a request.", tokens)
	m.limit = add("request_params_max_tokens", "Output limits asked for.", tokens)
}

// tokenBuckets are 1, 2, 5, 10, 20, ... up to the model's context.
func tokenBuckets(most int) []float64 {
	var bounds []float64
	for scale := 1; scale <= most; scale *= 10 {
		for _, v := range []int{scale, 2 * scale, 5 * scale} {
			if v <= most {
				bounds = append(bounds, float64(v))
			}
		}
	}
	return bounds
}

// token and finished are the loop's: c is as it was before this event, and as
// it is after the last one.
func (m *metrics) token(c *child, at simengine.Time) {
	if c.output == 0 {
		m.ttft.Observe(seconds(at - c.arrived))
		return
	}
	m.gap.Observe(seconds(at - c.last))
}

func (m *metrics) finished(c *child) {
	m.e2e.Observe(seconds(c.last - c.arrived))
	m.queue.Observe(seconds(c.scheduled - c.arrived))
	m.prefill.Observe(seconds(c.first - c.scheduled))
	m.decode.Observe(seconds(c.last - c.first))
	m.inference.Observe(seconds(c.last - c.scheduled))
	m.prompt.Observe(float64(c.prompt))
	m.output.Observe(float64(c.output))
	m.limit.Observe(float64(c.request.MaxTokens))
}

func seconds(t simengine.Time) float64 { return float64(t) / 1e9 }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.gauges {
		ch <- d
	}
	for _, c := range m.counters {
		ch <- c.desc
	}
	ch <- m.info.Desc()
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.server.mu.Lock()
	s := m.server.stats
	m.server.mu.Unlock()
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.gauges[name], prometheus.GaugeValue, v, labels...)
	}
	gauge("running", float64(s.Running))
	gauge("waiting", float64(s.Waiting))
	gauge("reason", float64(s.Waiting), "capacity")
	gauge("reason", 0, "deferred")
	gauge("kv", float64(s.UsedBlocks)/float64(s.TotalBlocks))
	for _, c := range m.counters {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.value(&s)), c.labels...)
	}
	ch <- m.info
}
