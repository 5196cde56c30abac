package vllm

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"headgate/engine/upstream"
)

// load is what /metrics says; -1: it does not.
type load struct {
	running, waiting int
	kvUsed           int // tokens
	progress         int64
	preemptions      int64
	cache            cache
}

// cache is the KV pool as configured.
type cache struct {
	tokens, block int
	prefix        bool
}

// A metric's present name and its former ones. Counters end in _total in the
// text format since its client library adds it; servers that imitate vLLM may
// leave it out.
var (
	running     = []string{"vllm:num_requests_running"}
	waiting     = []string{"vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"}
	usage       = []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}
	prompted    = []string{"vllm:prompt_tokens_total", "vllm:prompt_tokens"}
	generated   = []string{"vllm:generation_tokens_total", "vllm:generation_tokens"}
	preemptions = []string{"vllm:num_preemptions_total", "vllm:num_preemptions"}
)

const cacheInfo = "vllm:cache_config_info"

var wanted = func() []string {
	names := []string{cacheInfo}
	for _, n := range [][]string{running, waiting, usage, prompted, generated, preemptions} {
		names = append(names, n...)
	}
	return names
}()

// parseLoad reads an exposition. With data parallelism every engine has a series
// of its own: requests, tokens and preemptions add up, and usage, the share of
// one engine's pool, is averaged.
func parseLoad(body []byte) (load, error) {
	m, err := upstream.ParseMetrics(body, wanted...)
	if err != nil {
		return load{}, err
	}
	l := load{
		running: upstream.Whole(m.Sum(running...)), waiting: upstream.Whole(m.Sum(waiting...)),
		kvUsed: -1, progress: -1, preemptions: int64(upstream.Whole(m.Sum(preemptions...))),
	}
	if p, g := m.Sum(prompted...), m.Sum(generated...); p >= 0 || g >= 0 {
		l.progress = int64(upstream.Whole(max(0, p) + max(0, g)))
	}
	shares := m.Values(usage...)
	l.cache = parseCache(m, max(1, len(shares)))
	if len(shares) > 0 && l.cache.tokens > 0 {
		sum := 0.0
		for _, s := range shares {
			sum += min(s, 1)
		}
		block := float64(max(1, l.cache.block))
		// The share was made of whole blocks, but not in exact arithmetic.
		blocks := math.Round(sum / float64(len(shares)) * float64(l.cache.tokens) / block)
		l.kvUsed = min(int(blocks*block), l.cache.tokens)
	}
	return l, nil
}

// parseCache reads the KV pool's size. Newer servers say it in tokens, which is
// right for hybrid models too. Older ones say blocks, summed over engines, of
// which each engine keeps one back as the null block. Whether the size in tokens
// is a sum is not documented, so it is taken as one: if it is not, the pool is
// understated and nothing is promised twice.
func parseCache(m upstream.Metrics, engines int) cache {
	c := cache{tokens: -1, block: -1}
	for _, s := range m[cacheInfo] {
		if b := upstream.LabelCount(s, "block_size"); b > 0 {
			c.block = b
		}
		c.prefix = c.prefix || strings.EqualFold(upstream.Label(s, "enable_prefix_caching"), "true")
		tokens := upstream.LabelCount(s, "kv_cache_size_tokens")
		if blocks := upstream.LabelCount(s, "num_gpu_blocks"); tokens <= 0 && blocks > engines && c.block > 0 {
			tokens = min((blocks-engines)*c.block, math.MaxInt32)
		}
		if tokens > 0 && (c.tokens < 0 || tokens < c.tokens) {
			c.tokens = tokens
		}
	}
	return c
}

// missing tells which part of the load the server does not export.
func (l load) missing() error {
	var names []string
	for _, part := range []struct {
		absent bool
		name   string
	}{
		{l.running < 0, running[0]}, {l.waiting < 0, waiting[0]}, {l.kvUsed < 0, usage[0]},
		{l.progress < 0, generated[0]}, {l.cache.tokens < 0, cacheInfo},
	} {
		if part.absent {
			names = append(names, part.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("get /metrics: %w: %s", errNotExported, strings.Join(names, ", "))
}

var errNotExported = errors.New("not exported")
