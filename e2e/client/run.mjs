// Runs calls through the official SDKs, OpenAI's and Anthropic's, and the AI SDK.
//
//   node run.mjs [in-order] < calls.json
//
// Standard input is a JSON list of calls, made all at once, or each when the one
// before it is done:
//
//   {baseURL, apiKey, route, body, headers, maxRetries, timeoutMs, abortAfter}
//
// route is "chat", "chatHelper", "completions", "responses", "retrieveResponse", "embeddings" or
// "models", of Anthropic's SDK "messages" or "countTokens", or of the AI SDK
// "generateText", "streamText" or "embedMany" (see ai.mjs); body goes to the SDK
// as it is, with stream for a streamed answer; abortAfter (> 0) drops the stream after so many
// chunks that carry text. Standard output has one JSON line per event: {index,
// event: "first"} at a call's first chunk, and {index, event: "done", ...} with
// what the caller of the SDK would have seen, an error by its class name included.

import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'

async function run(call, onFirst) {
  const begun = performance.now()
  const seen = {text: '', chunks: 0, attempts: []}
  // An SDK's own retries are invisible from outside, so they are counted here.
  const counted = async (url, init) => {
    const attempt = {atMs: performance.now() - begun, status: 0}
    seen.attempts.push(attempt)
    const response = await fetch(url, init)
    attempt.status = response.status
    seen.headers = Object.fromEntries(response.headers)
    return response
  }
  const first = () => {
    seen.firstMs = performance.now() - begun
    onFirst()
  }
  try {
    if (call.route in aiRoutes) await (await ai())[aiRoutes[call.route]](call, seen, counted, first)
    else await routes[call.route](client(call, counted), call, seen, first)
  } catch (error) {
    seen.error = call.route in aiRoutes ? (await ai()).failed(error) : {
      class: error.constructor.name, message: error.message,
      status: error.status ?? 0, type: error.type ?? '', code: String(error.code ?? error.error?.error?.code ?? ''),
      param: error.param ?? error.error?.error?.param ?? '', requestID: error.requestID ?? '',
    }
  }
  seen.elapsedMs = performance.now() - begun
  return seen
}

function client(call, fetch) {
  const anthropic = call.route === 'messages' || call.route === 'countTokens'
  return new (anthropic ? Anthropic : OpenAI)({
    baseURL: anthropic ? call.baseURL.replace(/\/v1$/, '') : call.baseURL,
    apiKey: call.apiKey ?? 'none',
    maxRetries: call.maxRetries ?? 0,
    timeout: call.timeoutMs ?? 60_000,
    fetch,
  })
}

// The AI SDK is large, and loaded where it is used.
const ai = () => import('./ai.mjs')
const aiRoutes = {generateText: 'generate', streamText: 'stream', embedMany: 'embed'}

const routes = {
  async models(client, call, seen) {
    seen.models = []
    for await (const model of client.models.list({headers: call.headers})) seen.models.push(model.id)
  },
  chat: (client, call, seen, onFirst) => generate(client.chat.completions, call, seen, onFirst, choice => choice.message?.content ?? choice.delta?.content),
  async countTokens(client, call, seen) {
    seen.usage = {prompt_tokens: (await client.messages.countTokens(call.body, {headers: call.headers})).input_tokens}
  },
  async chatHelper(client, call, seen) {
    const completion = await client.chat.completions.stream(call.body, {headers: call.headers}).finalChatCompletion()
    seen.id = completion.id
    seen.usage = completion.usage
    seen.finishReason = completion.choices[0].finish_reason
    seen.message = completion.choices[0].message
    seen.text = seen.message.content ?? ''
  },
  messages: converse,
  responses: respond,
  retrieveResponse: (client, call) => client.responses.retrieve(call.body.id, {}, {headers: call.headers}),
  async embeddings(client, call, seen) {
    const answer = await client.embeddings.create(call.body, {headers: call.headers})
    seen.embeddings = answer.data.map(item => item.embedding)
    seen.usage = answer.usage
  },
  completions: (client, call, seen, onFirst) => generate(client.completions, call, seen, onFirst, choice => choice.text),
}

async function generate(resource, call, seen, onFirst, textOf) {
  const answer = await resource.create(call.body, {headers: call.headers})
  const take = part => {
    seen.id ??= part.id
    if (part.usage) seen.usage = part.usage
    const [choice] = part.choices
    if (!choice) return
    if (choice.finish_reason) seen.finishReason = choice.finish_reason
    if (choice.message) seen.message = choice.message
    const text = textOf(choice)
    if (!text) return
    seen.text += text
    if (++seen.chunks === 1) onFirst()
  }
  if (!call.body.stream) return take(answer)
  for await (const part of answer) {
    take(part)
    if (call.abortAfter > 0 && seen.chunks >= call.abortAfter) {
      answer.controller.abort()
      seen.aborted = true
      return
    }
  }
}

// The SDK's own helper puts a stream together, and throws on events that are out
// of order.
async function converse(client, call, seen, onFirst) {
  const {stream, ...body} = call.body
  if (!stream) return told(await client.messages.create(body, {headers: call.headers}), seen)
  const events = client.messages.stream(body, {headers: call.headers})
  for await (const event of events) {
    if (event.type !== 'content_block_delta') continue
    if (++seen.chunks === 1) onFirst()
    if (call.abortAfter > 0 && seen.chunks >= call.abortAfter) {
      events.abort()
      seen.aborted = true
      return
    }
  }
  told(await events.finalMessage(), seen)
}

function told(message, seen) {
  seen.message = message
  seen.id = message.id
  seen.finishReason = message.stop_reason
  seen.text = message.content.filter(block => block.type === 'text').map(block => block.text).join('')
  const {input_tokens, cache_read_input_tokens, output_tokens} = message.usage
  const prompt = input_tokens + cache_read_input_tokens
  seen.usage = {prompt_tokens: prompt, completion_tokens: output_tokens, total_tokens: prompt + output_tokens}
}

// The SDK's own helper puts a stream together, and throws on pieces of what it has
// not been told of.
async function respond(client, call, seen, onFirst) {
  const {stream, ...body} = call.body
  if (!stream) return answered(await client.responses.create(body, {headers: call.headers}), seen)
  const events = client.responses.stream(body, {headers: call.headers})
  for await (const event of events) {
    if (!event.type.endsWith('.delta')) continue
    if (++seen.chunks === 1) onFirst()
    if (call.abortAfter > 0 && seen.chunks >= call.abortAfter) {
      events.abort()
      seen.aborted = true
      return
    }
  }
  answered(await events.finalResponse(), seen)
}

function answered(response, seen) {
  seen.message = response
  seen.id = response.id
  seen.finishReason = response.incomplete_details?.reason ?? response.status
  seen.text = response.output_text
  const {input_tokens, output_tokens, total_tokens} = response.usage
  seen.usage = {prompt_tokens: input_tokens, completion_tokens: output_tokens, total_tokens}
}

const calls = JSON.parse(await new Response(process.stdin).text())
const say = object => console.log(JSON.stringify(object))

async function tell(call, index) {
  const result = await run(call, () => say({index, event: 'first'}))
  say({index, event: 'done', ...result})
}

if (process.argv[2] === 'in-order') for (const [index, call] of calls.entries()) await tell(call, index)
else await Promise.all(calls.map(tell))
