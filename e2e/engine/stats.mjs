// Counters, and their exposition under vLLM's metric names.

import {blockSize} from './scheduler.mjs'

const waitBounds = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60] // seconds
const firstTokenBounds = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40] // seconds

class Histogram {
  #bounds
  #counts
  #sum = 0

  constructor(bounds) {
    this.#bounds = [...bounds, Infinity]
    this.#counts = this.#bounds.map(() => 0)
  }

  observe(value) {
    this.#sum += value
    this.#counts[this.#bounds.findIndex(b => value <= b)]++
  }

  * samples() {
    let total = 0
    for (const [i, bound] of this.#bounds.entries()) {
      total += this.#counts[i]
      yield ['_bucket', total, {le: bound === Infinity ? '+Inf' : String(bound)}]
    }
    yield ['_sum', this.#sum, {}]
    yield ['_count', total, {}]
  }
}

export class Stats {
  #promptTokens = 0 // evaluated or found cached
  #cachedTokens = 0
  #queriedTokens = 0
  #generatedTokens = 0
  #finished = {stop: 0, length: 0, abort: 0, error: 0}
  #queueTime = new Histogram(waitBounds)
  #firstToken = new Histogram(firstTokenBounds)
  #latency = new Histogram(waitBounds)

  // scheduled is called when a job gets its slot.
  scheduled(job) {
    this.#queueTime.observe((job.started - job.arrived) / 1000)
    this.#queriedTokens += job.ids.length
    this.#cachedTokens += job.cached
    this.#promptTokens += job.cached
  }

  // prompt is called after n prompt tokens were evaluated.
  prompt(n) {
    this.#promptTokens += n
  }

  // token is called for each output token, before it counts in job.output.
  token(job) {
    this.#generatedTokens++
    if (job.output > 0) return
    job.firstToken = performance.now()
    this.#firstToken.observe((job.firstToken - job.arrived) / 1000)
  }

  // finished is called once per job that was submitted.
  finished(job, reason) {
    this.#finished[reason]++
    // As in vLLM an aborted request appears in no per-request histogram.
    if (reason === 'stop' || reason === 'length') this.#latency.observe((performance.now() - job.arrived) / 1000)
  }

  // exposition returns the metrics in Prometheus' text format.
  exposition(model, scheduler) {
    const load = scheduler.load()
    const lines = []
    const put = (name, type, samples) => {
      lines.push(`# TYPE ${name} ${type}`)
      for (const [suffix, value, labels] of samples) {
        const list = Object.entries({engine: '0', ...labels, model_name: model}).map(([k, v]) => `${k}="${escape(v)}"`)
        lines.push(`${name}${suffix}{${list.join(',')}} ${value}`)
      }
    }
    const gauge = (name, value, labels = {}) => put(name, 'gauge', [['', value, labels]])
    const counter = (name, value) => put(name + '_total', 'counter', [['', value, {}]])

    gauge('vllm:num_requests_running', load.running)
    gauge('vllm:num_requests_waiting', load.waiting)
    put('vllm:num_requests_waiting_by_reason', 'gauge', [['', load.waiting, {reason: 'capacity'}], ['', 0, {reason: 'deferred'}]])
    gauge('vllm:kv_cache_usage_perc', load.blocks / scheduler.blocks)
    counter('vllm:num_preemptions', 0)
    counter('vllm:prompt_tokens', this.#promptTokens)
    counter('vllm:prompt_tokens_cached', this.#cachedTokens)
    counter('vllm:generation_tokens', this.#generatedTokens)
    counter('vllm:prefix_cache_queries', this.#queriedTokens)
    counter('vllm:prefix_cache_hits', this.#cachedTokens)
    put('vllm:request_success_total', 'counter', Object.entries(this.#finished).map(([finished_reason, n]) => ['', n, {finished_reason}]))
    gauge('vllm:cache_config_info', 1, {
      block_size: String(blockSize),
      cache_dtype: 'auto',
      enable_prefix_caching: 'True',
      kv_cache_size_tokens: String(scheduler.blocks * blockSize),
      num_gpu_blocks: String(scheduler.blocks + 1), // vLLM counts one block that it never hands out
    })
    put('vllm:request_queue_time_seconds', 'histogram', this.#queueTime.samples())
    put('vllm:time_to_first_token_seconds', 'histogram', this.#firstToken.samples())
    put('vllm:e2e_request_latency_seconds', 'histogram', this.#latency.samples())
    return lines.join('\n') + '\n'
  }
}

function escape(value) {
  return value.replace(/[\\"\n]/g, c => c === '\n' ? '\\n' : '\\' + c)
}
