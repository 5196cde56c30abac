// What views do that look again and again, or let an operator do something.
import {call, Failure} from './api'
import {attribute, h, replace, show, text, type Child} from './dom'
import type {App} from './view'
import './operate.css'

/** mayOperate tells whether the key that was sent is for more than reading. */
export function mayOperate(app: App): boolean {
  return app.session.role !== 'read'
}

/**
 * poll calls look at once and then every so many milliseconds, while somebody can see the
 * page, and never twice at a time. It returns what ends that, and what looks now.
 */
export function poll(every: number, look: (signal: AbortSignal) => Promise<void>): {end: () => void, now: () => void} {
  const over = new AbortController()
  let timer = 0, busy = false, again = false
  async function run(): Promise<void> {
    clearTimeout(timer)
    if (over.signal.aborted) return
    if (busy) {
      again = true
      return
    }
    busy = true
    if (!document.hidden) await look(over.signal)
    busy = false
    if (over.signal.aborted) return
    timer = setTimeout(() => void run(), again ? 0 : every)
    again = false
  }
  const seen = (): void => {
    if (!document.hidden) void run()
  }
  document.addEventListener('visibilitychange', seen)
  void run()
  return {
    end() {
      over.abort()
      clearTimeout(timer)
      document.removeEventListener('visibilitychange', seen)
    },
    now: () => void run(),
  }
}

/** Confirmation is what an operator is asked before something is done. */
export interface Confirmation {
  title: string
  /** what will happen, a sentence each, with the numbers of this moment. */
  what: Child[]
  /** fields are put in between what will happen and why. */
  fields?: HTMLElement
  /** verb is on the button that does it. */
  verb: string
  /** run does it; what it returns is said. It throws a Failure. */
  run(reason: string): Promise<string>
}

/** confirm asks, does it, and says what came of it. What the listener refuses is said in the dialog. */
export function confirm(app: App, c: Confirmation): void {
  const before = document.activeElement
  const reason = h('input', {id: 'reason', maxlength: 300, autocomplete: 'off'})
  const wrong = h('p', {class: 'wrong', role: 'alert', hidden: true})
  const go = h('button', {type: 'submit'}, c.verb)
  const not = h('button', {type: 'button', class: 'quiet', onclick: () => dialog.close()}, 'Cancel')
  const dialog = h('dialog', {class: 'confirm', 'aria-labelledby': 'confirm-title'},
    h('form', {class: 'stack', onsubmit: e => {
      e.preventDefault()
      void act()
    }},
    h('h2', {id: 'confirm-title'}, c.title),
    h('ul', {class: 'happens'}, ...c.what.map(w => h('li', null, w))),
    c.fields,
    h('div', {class: 'field'}, h('label', {for: 'reason'}, 'Why'), reason,
      h('p', {class: 'hint'}, 'For the record: who does it, what and why is written to the journal, and to the audit where there is one.')),
    wrong,
    h('div', {class: 'buttons'}, go, not)))
  async function act(): Promise<void> {
    go.disabled = true
    show(wrong, false)
    try {
      const said = await c.run(reason.value.trim())
      dialog.close()
      app.announce(said)
    } catch (err) {
      text(wrong, err instanceof Failure && err.status === 403 ? `Nothing was done. ${err.message}` : err instanceof Error ? err.message : String(err))
      show(wrong, true)
      go.disabled = false
    }
  }
  dialog.addEventListener('close', () => {
    dialog.remove()
    // What was there may have been made anew meanwhile.
    const of = before?.getAttribute('data-of')
    const back = before?.isConnected ? before : of ? document.querySelector(`[data-of="${CSS.escape(of)}"]`) : null
    if (back instanceof HTMLElement) back.focus({preventScroll: true})
  })
  document.body.append(dialog)
  dialog.showModal()
  not.focus()
}

/** bytes writes a size: 512 B, 1.5 MiB. */
export function bytes(n: number): string {
  for (const [unit, name] of [[2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']] as const) {
    if (n >= unit) return `${(n / unit).toFixed(n / unit < 10 ? 1 : 0)} ${name}`
  }
  return `${n} B`
}

/** missing tells whether the listener has nothing of the kind. */
export function missing(err: unknown): boolean {
  return err instanceof Failure && err.status === 404
}

/** head is a table's first row; names that end with # are of columns of numbers. */
export function head(...names: string[]): HTMLElement {
  return h('thead', null, h('tr', null, ...names.map(n => h('th', {scope: 'col', class: n.endsWith('#') ? 'number' : null}, n ? n.replace(/#$/, '') : h('span', {class: 'unseen'}, 'What can be done')))))
}

/** section is a part of a view, with its heading. */
export function section(title: string, ...children: Child[]): HTMLElement {
  const id = `part-${title.toLowerCase().replaceAll(/[^a-z]+/g, '-')}`
  return h('section', {class: 'card stack', 'aria-labelledby': id}, h('h2', {id}, title), ...children)
}

/** scroll is a frame for a table that may be wider than the page; it can be reached by keyboard. */
export function scroll(label: string, table: HTMLElement): HTMLElement {
  return h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label}, table)
}

export {attribute, call, h, replace, show, text}
