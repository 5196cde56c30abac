// One stream for all views: it is open while a view listens and somebody can see it, and the
// server builds nothing while it is not.
import {call, Failure} from './api'
import type {Now, Recall, Traffic} from './types'

/** Events are what the stream brings, by the name of the event. */
export interface Events {
  /** The state of all pools, about four times a second. */
  now: Now
  /** Recalls that are new or have come a step further. */
  recalls: Recall[]
  /** The newest point of the traffic, and the total with it. */
  traffic: Traffic
  /** Whether the stream is open; what is shown is as old as it says. */
  state: State
}

export type State = {at: 'connecting' | 'live' | 'paused'} | {at: 'lost', why: string}

type Listener<K extends keyof Events> = (data: Events[K]) => void
const listeners: {[K in keyof Events]: Set<Listener<K>>} = {now: new Set(), recalls: new Set(), traffic: new Set(), state: new Set()}

let state: State = {at: 'paused'}
let latest: Now | null = null
let running: AbortController | null = null

/**
 * subscribe has f called with every event of a kind from now on, and with the last one if
 * there is one. It returns what ends that.
 */
export function subscribe<K extends keyof Events>(kind: K, f: Listener<K>): () => void {
  const set = listeners[kind] as Set<Listener<K>>
  set.add(f)
  if (kind === 'state') (f as Listener<'state'>)(state)
  if (kind === 'now' && latest) (f as Listener<'now'>)(latest)
  adjust()
  return () => {
    set.delete(f)
    // The next view may be about to listen.
    setTimeout(adjust, 100)
  }
}

/** restart opens the stream anew, with another key. */
export function restart(): void {
  running?.abort()
  running = null
  latest = null
  adjust()
}

document.addEventListener('visibilitychange', adjust)

function adjust(): void {
  const wanted = !document.hidden && listeners.now.size + listeners.recalls.size + listeners.traffic.size > 0
  if (wanted && !running) {
    running = new AbortController()
    void follow(running.signal)
  } else if (!wanted && running) {
    running.abort()
    running = null
    become({at: 'paused'})
  }
}

function become(next: State): void {
  if (next.at === state.at && next.at !== 'lost') return
  state = next
  emit('state', next)
}

function emit<K extends keyof Events>(kind: K, data: Events[K]): void {
  for (const f of listeners[kind] as Set<Listener<K>>) f(data)
}

async function follow(signal: AbortSignal): Promise<void> {
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, 8000)) {
    become({at: 'connecting'})
    try {
      const res = await call('api/live', {signal, headers: {Accept: 'text/event-stream'}})
      if (!res.body) throw new Failure(0, 'The stream has no body.')
      become({at: 'live'})
      await read(res.body, signal, () => { wait = 250 }) // what was open is opened again soon
    } catch (err) {
      if (signal.aborted) return
      become({at: 'lost', why: err instanceof Error ? err.message : String(err)})
      // Without a key there is no use in asking again.
      if (err instanceof Failure && (err.status === 401 || err.status === 403 || err.status === 404)) return
    }
    await new Promise(done => setTimeout(done, wait * (0.75 + Math.random() / 2)))
  }
}

/** read takes events apart: lines of event: and data:, a blank line after each. */
async function read(body: ReadableStream<Uint8Array>, signal: AbortSignal, heard: () => void): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader()
  let rest = ''
  for (;;) {
    const {done, value} = await reader.read()
    if (signal.aborted) return
    if (done) throw new Failure(0, 'The stream has ended. It is opened again.')
    rest += value
    for (let end = rest.indexOf('\n\n'); end >= 0; end = rest.indexOf('\n\n')) {
      take(rest.slice(0, end))
      heard()
      rest = rest.slice(end + 2)
    }
  }
}

function take(block: string): void {
  let kind = '', data = ''
  for (const line of block.split('\n')) {
    if (line.startsWith('event: ')) kind = line.slice(7)
    else if (line.startsWith('data: ')) data = line.slice(6)
  }
  if (!data) return
  switch (kind) {
    case 'now':
      latest = JSON.parse(data) as Now
      emit('now', latest)
      break
    case 'recalls':
      emit('recalls', JSON.parse(data) as Recall[])
      break
    case 'traffic':
      emit('traffic', JSON.parse(data) as Traffic)
      break
  }
}
