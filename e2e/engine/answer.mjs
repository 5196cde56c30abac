// The forms of an answer: chat or completion, whole or in chunks.

import {randomUUID} from 'node:crypto'

// Answer formats everything that is sent for one request, with vLLM's places for
// token ids: in chat the prompt's stand beside the choices, in completions inside.
export class Answer {
  #chat
  #head
  #tokenIds
  #promptIds

  constructor({chat, model, requestId, params, ids}) {
    this.#chat = chat
    this.#tokenIds = params.tokenIds
    this.#promptIds = ids
    const kind = chat ? 'chat.completion' : 'text_completion'
    this.#head = {
      id: (chat ? 'chatcmpl-' : 'cmpl-') + (requestId || randomUUID().replaceAll('-', '')),
      object: chat && params.stream ? 'chat.completion.chunk' : kind,
      created: Math.floor(Date.now() / 1000),
      model,
    }
  }

  get id() {
    return this.#head.id
  }

  // role is the chunk that opens a chat stream; null for completions.
  role() {
    if (!this.#chat) return null
    const prompt = this.#tokenIds ? {prompt_token_ids: this.#promptIds} : {}
    return {...this.#head, choices: [{index: 0, delta: {role: 'assistant', content: ''}, finish_reason: null}], ...prompt}
  }

  // chunk carries text and the tokens behind it; reason is null before the end,
  // first is true on the first chunk.
  chunk(text, tokens, reason, first) {
    const choice = this.#chat
      ? {index: 0, delta: text === '' ? {} : {content: text}, finish_reason: reason}
      : {index: 0, text, finish_reason: reason}
    if (this.#tokenIds) {
      choice.token_ids = tokens
      if (first && !this.#chat) choice.prompt_token_ids = this.#promptIds
    }
    return {...this.#head, choices: [choice]}
  }

  // usage is the chunk that closes a stream with include_usage.
  usage(usage, metrics) {
    return {...this.#head, choices: [], usage, ...metrics}
  }

  // whole is a non-streamed answer.
  whole(text, tokens, reason, usage, metrics) {
    const choice = this.#chat
      ? {index: 0, message: {role: 'assistant', content: text}, finish_reason: reason}
      : {index: 0, text, finish_reason: reason}
    const top = {}
    if (this.#tokenIds) {
      choice.token_ids = tokens
      const place = this.#chat ? top : choice
      place.prompt_token_ids = this.#promptIds
    }
    return {...this.#head, choices: [choice], usage, ...top, ...metrics}
  }
}
