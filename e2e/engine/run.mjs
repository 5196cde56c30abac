// Job is one request as the scheduler sees it; Run is a job that has a slot.

export class Job {
  ids // the prompt
  limits // {max, min, ignoreEnd}: output tokens
  sampling
  priority // lower goes first
  emit // called with each output token and whether it ends the text; returns whether to go on
  cached = 0 // prompt tokens found in the slot's history
  output = 0 // tokens emitted
  arrived = performance.now()
  started // when it got its slot
  firstToken
  aborted = false
  done // resolves to 'stop', 'length' or 'abort'; rejects when the engine failed

  constructor(request) {
    Object.assign(this, request)
    this.done = new Promise((resolve, reject) => Object.assign(this, {resolve, reject}))
  }
}

export class Run {
  #job
  #sequence
  #isEnd
  #stats
  #at // prompt tokens that are in the sequence
  #output // the generator of output tokens, once the whole prompt is in

  constructor(job, sequence, isEnd, stats) {
    this.#job = job
    this.#sequence = sequence
    this.#isEnd = isEnd
    this.#stats = stats
    job.started = performance.now()
    // The last prompt token is always evaluated: its logits give the first output token.
    this.#at = job.cached = Math.min(sequence.common(job.ids), job.ids.length - 1)
    stats.scheduled(job)
  }

  // wants returns how many tokens this run could evaluate in one step.
  get wants() {
    return this.#output ? 1 : this.#job.ids.length - this.#at
  }

  get decoding() {
    return this.#output !== undefined
  }

  // step evaluates n tokens, and returns the finish reason if that ended the run.
  async step(n) {
    const {ids, cached} = this.#job
    if (this.#at === cached && !this.#output) await this.#sequence.truncate(cached)
    if (this.#output) return this.#token()
    const chunk = ids.slice(this.#at, this.#at + n)
    this.#at += n
    if (this.#at < ids.length) {
      await this.#sequence.feed(chunk)
      this.#stats.prompt(n)
      return undefined
    }
    const {limits, sampling} = this.#job
    this.#output = this.#sequence.generate(chunk, sampling, () => !limits.ignoreEnd && this.#job.output >= limits.min)
    const reason = await this.#token()
    this.#stats.prompt(n)
    return reason
  }

  // close leaves the sequence as a history that can be reused.
  async close() {
    await this.#output?.return()
  }

  async #token() {
    const {value: token, done} = await this.#output.next()
    if (done) throw new Error('llama.cpp ended the generation by itself')
    const job = this.#job
    this.#stats.token(job)
    job.output++
    const end = this.#isEnd(token)
    if (!job.emit(token, end) || end) return 'stop'
    return job.output >= job.limits.max ? 'length' : undefined
  }
}
