// From a request's messages or prompt to token ids.

import {BadRequest} from './errors.mjs'

// render returns messages as one text, as the chat template in the generated model does. With
// goOn the last message is left open, to be continued.
function render(messages, {goOn, generate}) {
  const lines = messages.map(({role, content}) => `${role} says ${content.trim()} . `)
  let text = lines.join('')
  if (goOn) {
    const {role, content} = messages.at(-1)
    const last = content === '' || content.startsWith(' ') ? content : ' ' + content
    text = lines.slice(0, -1).join('') + `${role} says${last}`
  }
  return generate ? text + 'assistant says' : text
}

function plainMessage(m, i) {
  const at = `messages[${i}]`
  if (typeof m !== 'object' || m === null) throw new BadRequest(`${at} is not an object`, at)
  if (typeof m.role !== 'string' || m.role === '') throw new BadRequest(`${at}.role is ${JSON.stringify(m.role)}, allowed is a role's name`, `${at}.role`)
  if (typeof m.content === 'string') return {role: m.role, content: m.content}
  if (m.content == null) return {role: m.role, content: ''}
  if (!Array.isArray(m.content)) throw new BadRequest(`${at}.content is neither a string nor a list of parts`, `${at}.content`)
  const parts = m.content.map((p, j) => {
    if (p?.type !== 'text' || typeof p.text !== 'string') throw new BadRequest(`${at}.content[${j}] is of type ${JSON.stringify(p?.type)}, allowed is text`, `${at}.content`)
    return p.text
  })
  return {role: m.role, content: parts.join(' ')}
}

// chatIds returns the prompt of a chat request, in vLLM's terms: by default a new
// answer is begun (add_generation_prompt), with continue_final_message the last
// message is gone on with, and the two exclude each other.
export function chatIds(body, model) {
  if (!Array.isArray(body.messages) || body.messages.length === 0) throw new BadRequest('messages is missing or empty, allowed is a list of messages', 'messages')
  const goOn = body.continue_final_message === true
  const generate = body.add_generation_prompt ?? true
  if (goOn && generate) throw new BadRequest('continue_final_message is true, which is allowed only with add_generation_prompt false', 'continue_final_message')
  return model.tokenize(render(body.messages.map(plainMessage), {goOn, generate}))
}

// completionIds returns the prompt of a completion request: text, or ids as they
// are. A list of one prompt is that prompt; more than one is refused.
export function completionIds({prompt}, model) {
  if (typeof prompt === 'string') return model.tokenize(prompt)
  if (Array.isArray(prompt) && prompt.length > 0) {
    if (prompt.every(Number.isInteger)) return knownIds(prompt, model, 'prompt')
    if (prompt.length === 1) return completionIds({prompt: prompt[0]}, model)
  }
  throw new BadRequest('prompt is not usable, allowed is one string or one list of token ids', 'prompt')
}

// knownIds returns ids, or throws when one is not in the vocabulary.
export function knownIds(ids, model, param) {
  const wrong = ids.find(id => !Number.isInteger(id) || id < 0 || id >= model.vocabulary)
  if (wrong !== undefined) throw new BadRequest(`${param} holds ${wrong}, allowed is 0 to ${model.vocabulary - 1}`, param)
  return ids
}
