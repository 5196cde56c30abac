import {Failure} from './api'
import {h} from './dom'

/** loading stands where data has been asked for. */
export function loading(): HTMLElement {
  return h('p', {class: 'state', role: 'status'}, 'Reading…')
}

/** empty stands where there is nothing: what would be here, and how it comes about. */
export function empty(title: string, how?: string): HTMLElement {
  return h('div', {class: 'state'}, h('p', {class: 'state-title'}, title), how ? h('p', null, how) : null)
}

/** failed stands where data could not be had: what the listener said, and what can be done. */
export function failed(err: unknown, again?: () => void): HTMLElement {
  const message = err instanceof Error ? err.message : String(err)
  const title = err instanceof Failure && err.status === 403 ? 'This key is not for that'
    : err instanceof Failure && err.status === 404 ? 'This process has nothing of it'
    : 'That could not be read'
  return h('div', {class: 'state state-failed', role: 'alert'}, h('p', {class: 'state-title'}, title), h('p', null, message),
    again ? h('button', {type: 'button', onclick: again}, 'Try again') : null)
}
