// The admin listener's API. Where it asks for a key, that is kept for as long as the tab is
// open, and goes nowhere but to the listener that the page came from.

const storage = 'headgate-admin-key'

/** root is where the admin listener is: the page lies one below it. */
export const root = new URL('..', document.baseURI)

/** Failure is an answer that is none of what was asked for; status 0: there was no answer. */
export class Failure extends Error {
  constructor(readonly status: number, message: string) {
    super(message)
  }
}

const refused = new Set<() => void>()

/** onRefused calls f whenever the listener asks for a key, or for another one. */
export function onRefused(f: () => void): void {
  refused.add(f)
}

export function hasKey(): boolean {
  return sessionStorage.getItem(storage) !== null
}

/** setKey keeps a key until the tab is closed; null forgets it. */
export function setKey(key: string | null): void {
  if (key === null) sessionStorage.removeItem(storage)
  else sessionStorage.setItem(storage, key)
}

/** call asks the listener for a path such as api/now. It throws a Failure. */
export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers)
  const key = sessionStorage.getItem(storage)
  if (key !== null) headers.set('Authorization', `Bearer ${key}`)
  let res: Response
  try {
    res = await fetch(new URL(path, root), {...init, headers, credentials: 'omit', redirect: 'error', cache: 'no-store'})
  } catch (err) {
    if (init.signal?.aborted) throw err
    throw new Failure(0, 'The admin listener does not answer. It may be restarting; this page tries again.')
  }
  if (res.ok) return res
  const said = (await res.text()).trim()
  if (res.status === 401) for (const f of refused) f()
  throw new Failure(res.status, said || `The admin listener answers with status ${res.status}.`)
}

/** get reads a JSON document. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return await (await call(path, signal ? {signal} : {})).json() as T
}

/** post sends a JSON document and reads one. */
export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const init: RequestInit = {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)}
  if (signal) init.signal = signal
  return await (await call(path, init)).json() as T
}
