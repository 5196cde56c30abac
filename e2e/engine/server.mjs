// The HTTP routes.

import http from 'node:http'
import {ApiError, BadRequest, NotFound} from './errors.mjs'
import {generate} from './generate.mjs'
import {chatIds, completionIds, knownIds} from './prompt.mjs'

const version = 'headgate-real-engine (llama.cpp in node-llama-cpp 3.21.1)'

// createServer returns an HTTP server that does not listen yet.
export function createServer(engine) {
  const {name, model, scheduler, stats, config} = engine
  const created = Math.floor(Date.now() / 1000)

  const routes = {
    'GET /health': (_, res) => res.writeHead(200).end(),
    'GET /version': (_, res) => reply(res, {version}),
    'GET /v1/models': (_, res) => reply(res, {
      object: 'list',
      data: [{id: name, object: 'model', created, owned_by: 'headgate', root: name, parent: null, max_model_len: config.ctx}],
    }),
    'GET /metrics': (_, res) => res.writeHead(200, {'content-type': 'text/plain; version=0.0.4; charset=utf-8'}).end(stats.exposition(name, scheduler)),
    async 'POST /tokenize'(req, res) {
      const body = await readJson(req)
      const tokens = body.messages ? chatIds(body, model) : textIds(body, model)
      reply(res, {count: tokens.length, max_model_len: config.ctx, tokens})
    },
    async 'POST /detokenize'(req, res) {
      const {tokens} = await readJson(req)
      if (!Array.isArray(tokens)) throw new BadRequest('tokens is missing, allowed is a list of token ids', 'tokens')
      reply(res, {prompt: model.detokenize(knownIds(tokens, model, 'tokens'))})
    },
    'POST /v1/chat/completions': (req, res) => answer(req, res, true),
    'POST /v1/completions': (req, res) => answer(req, res, false),
  }

  async function answer(req, res, chat) {
    await generate(engine, {chat, body: await readJson(req), requestId: req.headers['x-request-id']}, res)
  }

  return http.createServer(async (req, res) => {
    try {
      const route = routes[`${req.method} ${req.url.split('?')[0]}`]
      if (!route) throw new NotFound('Not Found')
      await route(req, res)
    } catch (error) {
      refuse(res, error)
    }
  })
}

function textIds(body, model) {
  if (typeof body.prompt !== 'string') throw new BadRequest('prompt is missing, allowed is a string', 'prompt')
  return body.add_special_tokens === false ? model.tokenize(body.prompt, false) : completionIds(body, model)
}

async function readJson(req) {
  const parts = []
  for await (const part of req) parts.push(part)
  let body
  try {
    body = JSON.parse(Buffer.concat(parts))
  } catch (error) {
    throw new BadRequest(`the body is not JSON: ${error.message}`)
  }
  if (typeof body !== 'object' || body === null || Array.isArray(body)) throw new BadRequest('the body is not a JSON object')
  return body
}

function reply(res, object, status = 200) {
  res.writeHead(status, {'content-type': 'application/json'}).end(JSON.stringify(object))
}

function refuse(res, error) {
  if (res.headersSent || res.destroyed) {
    res.destroy()
    return
  }
  if (!(error instanceof ApiError)) {
    console.error(error)
    error = new ApiError(500, 'InternalServerError', error.message)
  }
  reply(res, error.body, error.status)
}
