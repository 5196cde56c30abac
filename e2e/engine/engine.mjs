// The real engine: llama.cpp with continuous batching behind vLLM's HTTP API (started by main.cjs).
//
//   node main.cjs --model FILE.gguf [--slots 4] [--ctx 2048] [--batch 256] [--threads 1]
//                 [--port 0] [--name ID] [--priority] [--per-request-metrics] [--exit-with-stdin]
//
// It binds 127.0.0.1 and prints one JSON line on stdout once it takes requests;
// everything else goes to stderr. README.md says what it is for and what it does.

import {parseArgs} from 'node:util'
import {openModel} from './model.mjs'
import {Scheduler} from './scheduler.mjs'
import {createServer} from './server.mjs'
import {Stats} from './stats.mjs'

const {values: flags} = parseArgs({
  options: {
    model: {type: 'string'},
    name: {type: 'string'}, // the model id served; by default the file's general.name
    slots: {type: 'string', default: '4'}, // sequences run at once
    ctx: {type: 'string', default: '2048'}, // tokens of one sequence, prompt and output
    batch: {type: 'string', default: '256'}, // tokens evaluated in one step
    threads: {type: 'string', default: '1'},
    port: {type: 'string', default: '0'},
    priority: {type: 'boolean', default: false}, // order the queue by (priority, arrival)
    'per-request-metrics': {type: 'boolean', default: false}, // vLLM's option of that name
    'exit-with-stdin': {type: 'boolean', default: false}, // end when the parent that holds stdin does
  },
})

function whole(name, min, max) {
  const n = Number(flags[name])
  if (!Number.isInteger(n) || n < min || n > max) {
    console.error(`--${name} is ${flags[name]}, allowed is ${min} to ${max}`)
    process.exit(2)
  }
  return n
}

if (!flags.model) {
  console.error('--model is missing: a GGUF file')
  process.exit(2)
}
const config = {
  slots: whole('slots', 1, 64),
  ctx: whole('ctx', 16, 1 << 20),
  batch: whole('batch', 1, 1 << 16),
  threads: whole('threads', 1, 256),
  priority: flags.priority,
  perRequestMetrics: flags['per-request-metrics'],
}
const port = whole('port', 0, 65535)

// There is no state worth saving, so ending is leaving at once: sockets close,
// and whoever waits on one sees it.
const leave = () => process.exit(0)
process.on('SIGTERM', leave)
process.on('SIGINT', leave)
if (flags['exit-with-stdin']) process.stdin.on('end', leave).on('error', leave).resume()

const model = await openModel(flags.model, config)
const name = flags.name ?? model.name
const stats = new Stats()
const scheduler = new Scheduler(model, config, stats)
const server = createServer({name, model, scheduler, stats, config})
server.listen(port, '127.0.0.1', () => {
  console.log(JSON.stringify({url: `http://127.0.0.1:${server.address().port}`, model: name, ...config}))
})
