// Measures a running engine and prints one JSON line a figure.
//
//   node measure.mjs URL

const url = process.argv[2]
if (!url) {
  console.error('the engine\'s URL is missing')
  process.exit(2)
}

const word = i => ['river', 'stone', 'garden', 'winter', 'copper', 'shelter', 'window', 'harbor'][i * 7919 % 8]
const words = (n, salt) => Array.from({length: n}, (_, i) => word(i * i + salt)).join(' ')
const report = (figure, values) => console.log(JSON.stringify({figure, ...values}))
const ms = x => Math.round(x * 10) / 10

// stream runs one completion and calls onToken for each chunk that carries text.
async function stream(body, {signal, onToken = () => {}} = {}) {
  const begun = performance.now()
  const res = await fetch(url + '/v1/completions', {
    method: 'POST', signal, headers: {'content-type': 'application/json'},
    body: JSON.stringify({stream: true, stream_options: {include_usage: true}, temperature: 0, ignore_eos: true, ...body}),
  })
  if (!res.ok) throw new Error(`${res.status} ${await res.text()}`)
  let rest = '', first, usage, count = 0
  for await (const part of res.body.pipeThrough(new TextDecoderStream())) {
    const events = (rest + part).split('\n\n')
    rest = events.pop()
    for (const event of events) {
      const data = event.replace(/^data: /, '')
      if (data === '[DONE]') continue
      const chunk = JSON.parse(data)
      usage = chunk.usage ?? usage
      if (!chunk.choices[0]?.text) continue
      first ??= performance.now()
      onToken(++count)
    }
  }
  return {ttft: first - begun, decode: performance.now() - first, usage}
}

async function gauge(name) {
  const text = await (await fetch(url + '/metrics')).text()
  return Number(text.match(new RegExp(`^vllm:${name}{.*} (\\S+)$`, 'm'))[1])
}

async function freeAfter(condition) {
  const begun = performance.now()
  while (await gauge(condition) > 0) { /* each scrape is a round trip */ }
  return performance.now() - begun
}

await stream({prompt: 'warm up', max_tokens: 8})

for (const n of [1, 4]) {
  const runs = await Promise.all(Array.from({length: n}, (_, i) => stream({prompt: words(20, i), max_tokens: 200})))
  report('tokens per second of each stream', {streams: n, tokens_per_second: runs.map(r => Math.round(199 / (r.decode / 1000)))})
}

const aborts = []
for (let i = 0; i < 5; i++) {
  const control = new AbortController()
  await stream({prompt: words(20, i), max_tokens: 1000}, {signal: control.signal, onToken: n => n === 20 && control.abort()}).catch(() => {})
  aborts.push(ms(await freeAfter('num_requests_running')))
}
report('milliseconds from dropping a stream to its slot being free', {each: aborts})

const inPrompt = []
for (let i = 0; i < 3; i++) {
  const control = new AbortController()
  const run = stream({prompt: words(1800, i + 50), max_tokens: 8}, {signal: control.signal}).catch(() => {})
  while (await gauge('num_requests_running') === 0) { /* not scheduled yet */ }
  control.abort()
  await run
  inPrompt.push(ms(await freeAfter('num_requests_running')))
}
report('the same while a prompt of 1,800 words is evaluated', {each: inPrompt})

for (const name of ['cold', 'again', 'longer']) {
  const prompt = words(1500, 5) + (name === 'longer' ? ' and then some more' : '')
  const run = await stream({prompt, max_tokens: 4})
  report('milliseconds to the first token of a prompt of 1,500 words', {
    prompt: name, ttft: ms(run.ttft), prompt_tokens: run.usage.prompt_tokens, cached_tokens: run.usage.prompt_tokens_details.cached_tokens,
  })
}
