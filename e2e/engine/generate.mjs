// One generation request, from its body to the last byte of its answer.

import {Answer} from './answer.mjs'
import {NotFound} from './errors.mjs'
import {readParams} from './params.mjs'
import {chatIds, completionIds} from './prompt.mjs'
import {TextStream} from './text.mjs'

const completionFallback = 16 // vLLM's max_tokens for completions that name none

// generate answers on res. It throws before anything was sent when the request
// has to be refused. A client that goes away, at whatever moment, ends the job.
export async function generate({name, model, scheduler, stats, config}, {chat, body, requestId}, res) {
  if (body.model != null && body.model !== name) throw new NotFound(`The model ${JSON.stringify(body.model)} does not exist, ${JSON.stringify(name)} does`, 'model')
  const ids = chat ? chatIds(body, model) : completionIds(body, model)
  const params = readParams(body, {promptTokens: ids.length, ctx: config.ctx, fallback: chat ? undefined : completionFallback})
  const answer = new Answer({chat, model: name, requestId, params, ids})
  const out = params.stream ? new Streamed(res, answer, params) : new Whole(res, answer)

  const text = new TextStream(model.detokenize, ids, params.stops)
  const job = scheduler.submit({
    ids,
    limits: params.limits,
    sampling: params.sampling,
    priority: params.priority,
    emit(token, end) {
      out.token(end ? '' : text.push(token), token)
      return !text.stopped
    },
  })
  res.on('close', () => scheduler.abort(job))

  let reason
  try {
    reason = await job.done
  } catch (error) {
    stats.finished(job, 'error')
    console.error(error)
    out.fail(error)
    return
  }
  stats.finished(job, reason)
  if (reason === 'abort') return // nobody is left to be told
  out.end(text.end(), reason, usageOf(job), config.perRequestMetrics ? {metrics: metricsOf(job)} : {})
}

function usageOf(job) {
  return {
    prompt_tokens: job.ids.length,
    completion_tokens: job.output,
    total_tokens: job.ids.length + job.output,
    prompt_tokens_details: {cached_tokens: job.cached},
  }
}

// metricsOf gives vLLM's per-request metrics, in milliseconds.
function metricsOf(job) {
  const now = performance.now()
  return {
    queue_time_ms: job.started - job.arrived,
    time_to_first_token_ms: job.firstToken - job.started,
    generation_time_ms: now - job.firstToken,
    mean_itl_ms: job.output > 1 ? (now - job.firstToken) / (job.output - 1) : 0,
    tokens_per_second: job.output / ((now - job.started) / 1000),
  }
}

// Streamed sends server-sent events. As in vLLM the status and headers go out
// when the request is accepted, not when it gets its slot.
class Streamed {
  #res
  #answer
  #usage
  #first = true
  #unsaid = [] // tokens whose text is held back

  constructor(res, answer, params) {
    this.#res = res
    this.#answer = answer
    this.#usage = params.includeUsage
    res.writeHead(200, {'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache', 'x-request-id': answer.id})
    res.flushHeaders()
  }

  token(text, token) {
    this.#unsaid.push(token)
    if (text !== '') this.#chunk(text, null)
  }

  end(text, reason, usage, metrics) {
    this.#chunk(text, reason)
    if (this.#usage) this.#send(this.#answer.usage(usage, metrics))
    this.#res.end('data: [DONE]\n\n')
  }

  fail(error) {
    this.#send({error: {message: error.message, type: 'InternalServerError', param: null, code: 500}})
    this.#res.end('data: [DONE]\n\n')
  }

  #chunk(text, reason) {
    const role = this.#first && this.#answer.role()
    if (role) this.#send(role)
    this.#send(this.#answer.chunk(text, this.#unsaid, reason, this.#first))
    this.#unsaid = []
    this.#first = false
  }

  #send(object) {
    this.#res.write(`data: ${JSON.stringify(object)}\n\n`)
  }
}

// Whole collects the answer and sends it as one JSON object.
class Whole {
  #res
  #answer
  #text = ''
  #tokens = []

  constructor(res, answer) {
    this.#res = res
    this.#answer = answer
  }

  token(text, token) {
    this.#text += text
    this.#tokens.push(token)
  }

  end(text, reason, usage, metrics) {
    this.#reply(200, this.#answer.whole(this.#text + text, this.#tokens, reason, usage, metrics))
  }

  fail(error) {
    this.#reply(500, {error: {message: error.message, type: 'InternalServerError', param: null, code: 500}})
  }

  #reply(status, object) {
    this.#res.writeHead(status, {'content-type': 'application/json', 'x-request-id': this.#answer.id})
    this.#res.end(JSON.stringify(object))
  }
}
