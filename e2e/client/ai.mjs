// Calls of the AI SDK (npm's `ai`), which speaks OpenAI's APIs by @ai-sdk/openai.
//
// A call's body is what the SDK's function takes, but for
//
//   api     "chat" or "responses": what the model is asked by; embeddings need none
//   tools   {name: {description, inputSchema, result}}, schemas as JSON, result
//           being what the tool answers
//   schema  a JSON schema that the answer is to have
//
// Of its result, message is what a program reads of the last step: the object for
// a schema, and what tools were called with in all steps.

import {createOpenAI} from '@ai-sdk/openai'
import {embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool} from 'ai'

globalThis.AI_SDK_LOG_WARNINGS = false // standard output is for results

function provider(call, fetch) {
  return createOpenAI({baseURL: call.baseURL, apiKey: call.apiKey ?? 'none', headers: call.headers, fetch})
}

function options(call, fetch) {
  const {model, api, tools = {}, schema, ...rest} = call.body
  return {
    ...rest, model: provider(call, fetch)[api](model), maxRetries: call.maxRetries ?? 0, abortSignal: AbortSignal.timeout(call.timeoutMs ?? 60_000),
    tools: Object.fromEntries(Object.entries(tools).map(([name, {description, inputSchema, result}]) =>
      [name, tool({description, inputSchema: jsonSchema(inputSchema), execute: () => result})])),
    stopWhen: stepCountIs(3),
    ...schema && {output: Output.object({schema: jsonSchema(schema)})},
  }
}

export async function generate(call, seen, fetch) {
  const result = await generateText(options(call, fetch))
  told(result, await result.response, result.steps, call.body.schema && result.output, seen)
}

export async function stream(call, seen, fetch, onFirst) {
  const stop = new AbortController()
  const common = options(call, fetch)
  let failure
  const result = streamText({...common, abortSignal: AbortSignal.any([common.abortSignal, stop.signal]), onError: ({error}) => { failure = error }})
  for await (const part of result.fullStream) {
    if (part.type !== 'text-delta') continue
    if (++seen.chunks === 1) onFirst()
    if (call.abortAfter > 0 && seen.chunks >= call.abortAfter) {
      stop.abort()
      seen.aborted = true
      return
    }
  }
  if (failure) throw failure
  const done = {text: await result.text, finishReason: await result.finishReason, usage: await result.usage}
  told(done, await result.response, await result.steps, call.body.schema && await result.output, seen)
}

export async function embed(call, seen, fetch) {
  const {model, ...rest} = call.body
  const {embeddings, usage} = await embedMany({...rest, model: provider(call, fetch).embedding(model), maxRetries: call.maxRetries ?? 0})
  seen.embeddings = embeddings
  seen.usage = {prompt_tokens: usage.tokens, completion_tokens: 0, total_tokens: usage.tokens}
}

function told({text, finishReason, usage}, response, steps, output, seen) {
  seen.id = response.id
  seen.text = text
  seen.finishReason = finishReason
  seen.usage = {prompt_tokens: usage.inputTokens, completion_tokens: usage.outputTokens, total_tokens: usage.totalTokens}
  seen.message = {output, calls: steps.flatMap(step => step.toolCalls.map(({toolName, input}) => ({name: toolName, input}))), steps: steps.length}
}

// failed is what the SDK threw, and after retries what the last of them met.
export function failed(error) {
  const {statusCode, data} = error.lastError ?? error
  const {type, code, param} = data?.error ?? {}
  return {class: error.name, message: error.message, status: statusCode ?? 0, type: type ?? '', code: String(code ?? ''), param: param ?? '', requestID: ''}
}
