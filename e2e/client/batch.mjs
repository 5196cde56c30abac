// Runs steps of OpenAI's SDK on files and batches, one after the other.
//
//   node batch.mjs < {baseURL, apiKey, steps}
//
// A step is {call, args}: a method such as "batches.create" and its arguments. In place of
// an argument {$: "0.id"} stands for that part of the result of an earlier step. Three
// calls are not the SDK's own: "upload" [text, name, purpose, more] makes a file of a
// text, "all" [call, args...] reads a list through all its pages, and "until" [id,
// statuses] looks at a batch until it has one of them. Standard output has a line of JSON
// for each step: {value}, of a content its text, or {error} by its class.

import OpenAI, {toFile} from 'openai'

const {baseURL, apiKey, steps} = JSON.parse(await new Response(process.stdin).text())
const client = new OpenAI({baseURL, apiKey, maxRetries: 0, timeout: 60_000})
const results = []

const own = {
  async upload(text, name, purpose, more) {
    return client.files.create({file: await toFile(Buffer.from(text), name), purpose, ...more})
  },
  async all(call, ...args) {
    const all = []
    for await (const entry of sdk(call, args)) all.push(entry)
    return all
  },
  async until(id, statuses) {
    for (;;) {
      const batch = await client.batches.retrieve(id)
      if (statuses.includes(batch.status)) return batch
      await new Promise(resolve => setTimeout(resolve, 50))
    }
  },
}

function sdk(call, args) {
  const [resource, method] = call.split('.')
  return client[resource][method](...args)
}

function filled(value) {
  if (Array.isArray(value)) return value.map(filled)
  if (value === null || typeof value !== 'object') return value
  if ('$' in value) return value.$.split('.').reduce((from, key) => from[key], results)
  return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, filled(v)]))
}

for (const {call, args} of steps) {
  let value, error
  try {
    value = await (call in own ? own[call](...filled(args)) : sdk(call, filled(args)))
    if (value instanceof Response) value = await value.text()
  } catch (e) {
    error = {class: e.constructor.name, status: e.status ?? 0, code: e.code ?? '', param: e.param ?? '', message: e.message}
  }
  results.push(value)
  console.log(JSON.stringify({value, error}))
}
