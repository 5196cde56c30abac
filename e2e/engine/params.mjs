// What a generation request asks for besides its prompt, checked.

import {BadRequest} from './errors.mjs'

// readParams returns the sampling, the limits and the form of the answer. promptTokens and
// ctx (the context length) bound the output; fallback is the route's max_tokens
// where the request names none.
export function readParams(body, {promptTokens, ctx, fallback}) {
  refuseUnsupported(body)
  const left = ctx - promptTokens
  const asked = body.max_completion_tokens ?? body.max_tokens
  const max = asked == null ? Math.min(fallback ?? left, left) : number(body.max_completion_tokens == null ? 'max_tokens' : 'max_completion_tokens', asked, {min: 1, whole: true})
  if (left < 1 || max > left) {
    const output = asked == null ? 1 : max
    throw new BadRequest(`This model's maximum context length is ${ctx} tokens, but ${promptTokens} prompt tokens and ${output} output tokens were asked for`, 'input_tokens')
  }
  return {
    limits: {
      max,
      min: number('min_tokens', body.min_tokens ?? 0, {min: 0, max, whole: true}),
      ignoreEnd: body.ignore_eos === true,
    },
    sampling: {
      temperature: number('temperature', body.temperature ?? 1, {min: 0}),
      topP: number('top_p', body.top_p ?? 1, {min: 0, max: 1}),
      topK: Math.max(0, number('top_k', body.top_k ?? 0, {min: -1, whole: true})),
      minP: number('min_p', body.min_p ?? 0, {min: 0, max: 1}),
      seed: body.seed == null ? Math.floor(Math.random() * 2 ** 32) : number('seed', body.seed, {min: 0, whole: true}),
    },
    priority: number('priority', body.priority ?? 0, {whole: true}),
    stops: readStops(body.stop),
    stream: body.stream === true,
    includeUsage: body.stream === true && body.stream_options?.include_usage === true,
    tokenIds: body.return_token_ids === true,
  }
}

function number(name, value, {min = -Infinity, max = Infinity, whole = false}) {
  const ok = typeof value === 'number' && value >= min && value <= max && (!whole || Number.isInteger(value))
  if (!ok) throw new BadRequest(`${name} is ${JSON.stringify(value)}, allowed is ${whole ? 'an integer' : 'a number'} from ${min} to ${max}`, name)
  return value
}

function readStops(stop) {
  const list = stop == null ? [] : [stop].flat()
  if (!list.every(s => typeof s === 'string' && s !== '')) throw new BadRequest(`stop is ${JSON.stringify(stop)}, allowed is a string or a list of them`, 'stop')
  return list
}

// refuseUnsupported refuses what would change the answer's shape or content and
// is not implemented: an answer that silently lacks it would pass for a right one.
function refuseUnsupported(body) {
  const asks = {
    n: body.n > 1,
    best_of: body.best_of > 1,
    echo: body.echo === true,
    logprobs: body.logprobs != null && body.logprobs !== false,
    response_format: body.response_format != null && body.response_format.type !== 'text',
    tools: body.tools?.length > 0,
  }
  for (const [name, asked] of Object.entries(asks)) {
    if (asked) throw new BadRequest(`${name} is not supported by this engine`, name)
  }
}
