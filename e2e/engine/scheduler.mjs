// Who runs in which slot, who waits, and what each step evaluates.
//
// The engine advances in steps, as vLLM's does: all running requests are in one
// batch, decodes first, prompts in chunks that share what is left of the budget.
// Arrivals and aborts take effect between steps, so dropping a long prompt takes
// one step and not the whole prompt. A waiting request never takes a slot from a
// running one; priority only orders the queue.

import {Job, Run} from './run.mjs'

// A slot's history is worth keeping for a prompt when it covers at least this
// share of it (llama-server's measure); below, the least recently used slot loses
// its history instead, or one long chat would be cut back by every short prompt
// that begins with the same few tokens.
const worthKeeping = 0.1

export const blockSize = 16 // tokens; only for accounting, as vLLM reports it

export class Scheduler {
  #model
  #config
  #stats
  #slots
  #queue = []
  #dispatched = 0
  #stepping = false

  constructor(model, config, stats) {
    this.#model = model
    this.#config = config
    this.#stats = stats
    this.#slots = model.sequences.map(sequence => ({sequence, job: null, run: null, used: 0}))
  }

  // submit queues a request and returns its job.
  submit(request) {
    const job = new Job(request)
    let at = this.#queue.length
    while (this.#config.priority && at > 0 && this.#queue[at - 1].priority > job.priority) at--
    this.#queue.splice(at, 0, job)
    this.#dispatch()
    this.#advance()
    return job
  }

  // abort ends a job: at once while it waits, before the next step while it runs.
  abort(job) {
    job.aborted = true
    const i = this.#queue.indexOf(job)
    if (i < 0) return
    this.#queue.splice(i, 1)
    job.resolve('abort')
  }

  // load is what the engine holds now, in requests and in KV blocks.
  load() {
    const running = this.#running()
    const blocks = running.reduce((n, s) => n + Math.ceil(s.sequence.held / blockSize), 0)
    return {running: running.length, waiting: this.#queue.length, blocks}
  }

  // blocks is the size of the KV pool.
  get blocks() {
    return Math.floor(this.#config.ctx / blockSize) * this.#config.slots
  }

  #running() {
    return this.#slots.filter(s => s.job)
  }

  // dispatch gives free slots to the head of the queue.
  #dispatch() {
    while (this.#queue.length > 0) {
      const slot = this.#choose(this.#queue[0].ids)
      if (!slot) return
      slot.job = this.#queue.shift()
      slot.run = new Run(slot.job, slot.sequence, this.#model.isEnd, this.#stats)
      slot.used = ++this.#dispatched
    }
  }

  // choose returns the free slot whose history covers most of the prompt, or the
  // least recently used one, or none.
  #choose(ids) {
    const free = this.#slots.filter(s => !s.job).sort((a, b) => a.used - b.used)
    let best = free[0], most = worthKeeping * ids.length
    for (const slot of free) {
      const common = slot.sequence.common(ids)
      if (common > most) [best, most] = [slot, common]
    }
    return best
  }

  // advance makes steps as long as something runs.
  async #advance() {
    if (this.#stepping) return
    this.#stepping = true
    for (let slots = this.#running(); slots.length > 0; slots = this.#running()) {
      const shares = this.#share(slots.filter(s => !s.job.aborted))
      await Promise.all([
        ...slots.filter(s => s.job.aborted).map(s => this.#finish(s, 'abort')),
        ...Array.from(shares, ([slot, n]) => this.#step(slot, n)),
      ])
      this.#dispatch()
    }
    this.#stepping = false
  }

  // share splits one step's budget: a token for each that decodes, the rest to
  // prompts in the order in which they got their slots.
  #share(slots) {
    const order = [...slots].sort((a, b) => b.run.decoding - a.run.decoding || a.used - b.used)
    const shares = new Map()
    let left = this.#config.batch
    for (const slot of order) {
      const n = Math.min(slot.run.wants, left)
      if (n > 0) shares.set(slot, n)
      left -= n
    }
    return shares
  }

  async #step(slot, n) {
    try {
      const reason = await slot.run.step(n)
      if (reason) await this.#finish(slot, reason)
    } catch (error) {
      slot.job.reject(error)
      slot.job = slot.run = null
    }
  }

  async #finish(slot, reason) {
    await slot.run.close()
    slot.job.resolve(reason)
    slot.job = slot.run = null
  }
}
