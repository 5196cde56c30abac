import {get, post} from '../api'
import {plural} from '../format'
import {attribute, h, head, mayOperate, missing, replace, scroll, section} from '../operate'
import {empty, failed, loading} from '../states'
import type {View} from '../view'

type Value = string | number | boolean | null | Value[] | {[key: string]: Value}

interface Problem { file?: string, line: number, column: number, path?: string, text: string, warning?: boolean }
interface Change { path: string, old: string, new: string, restart: boolean }

/** Settings are /api/config. */
interface Settings {
  /** file is '' where the configuration is built in. */
  file: string
  effective: Value
  provenance: Value
  changes: Change[]
  problems: Problem[]
  refused: boolean
}

interface Check { good: boolean, problems: Problem[], effective: Value, changes: Change[] }

interface Row { path: string, value: string, from: string }

const view: View = {
  name: 'config',
  title: 'Config',
  about: 'What is in force and where each value comes from, what the file would change, and a check of one that is pasted.',
  available: s => s.parts.includes('pools'),
  show(root, app) {
    const leaving = new AbortController()
    const out = h('div', {class: 'parts'}, loading())
    root.append(out)
    async function read(): Promise<void> {
      try {
        const s = await get<Settings>('api/config', leaving.signal)
        replace(out, file(s, () => void read()), checker(mayOperate(app), leaving.signal, app.announce), inForce(s))
      } catch (err) {
        if (!leaving.signal.aborted) {
          replace(out, missing(err) ? empty('This process tells nothing of its configuration', 'A controller is configured by its command line and the file it was given: headgate config show prints that.') : failed(err, () => void read()))
        }
      }
    }
    void read()
    return () => leaving.abort()
  },
}

/** flat is a tree of values as rows, with where each comes from. */
function flat(value: Value, from: Value, path: string, rows: Row[]): Row[] {
  if (Array.isArray(value)) {
    if (value.length === 0) rows.push({path, value: '[]', from: ''})
    value.forEach((v, i) => flat(v, Array.isArray(from) ? from[i] ?? null : null, `${path}[${i}]`, rows))
  } else if (value !== null && typeof value === 'object') {
    for (const [k, v] of Object.entries(value)) flat(v, from !== null && typeof from === 'object' && !Array.isArray(from) ? from[k] ?? null : null, path ? `${path}.${k}` : k, rows)
  } else {
    rows.push({path, value: value === '' ? '""' : String(value), from: typeof from === 'string' ? from : ''})
  }
  return rows
}

function file(s: Settings, again: () => void): HTMLElement {
  const reread = h('button', {type: 'button', class: 'quiet', onclick: again}, 'Read again')
  if (!s.file) {
    return section('The file', h('p', null, 'There is no file: the configuration is built in.'))
  }
  const errors = s.problems.filter(p => !p.warning).length
  const state = s.refused ? h('span', {class: 'badge badge-bad'}, `refused: ${plural(errors, 'problem')}`)
    : s.changes.length > 0 ? h('span', {class: 'badge badge-warn'}, `differs in ${plural(s.changes.length, 'value')}`)
    : h('span', {class: 'badge badge-good'}, 'as it is in force')
  return section('The file', h('div', {class: 'tools'}, h('p', null, h('code', {class: 'mono'}, s.file), ' ', state), reread),
    s.refused ? h('p', null, 'What was in force before goes on. Mend the file: it is read again when it changes.') : null,
    s.problems.length > 0 ? problems(s.problems, s.file) : null,
    s.changes.length > 0 ? changes(s.changes, 'What the file would change', 'In force', 'In the file') : null)
}

/** problems names the file of those that are in another one than the configuration. */
function problems(all: Problem[], main = ''): HTMLElement {
  return scroll('Problems', h('table', null, head('Line#', 'Setting', 'What is wrong'),
    h('tbody', null, ...all.map(p => h('tr', null, h('td', {class: 'number'}, p.line ? `${p.file && p.file !== main ? `${p.file}:` : ''}${p.line}:${p.column}` : ''), h('td', {class: 'mono'}, p.path ?? ''),
      h('td', {class: 'room'}, p.warning ? h('span', {class: 'badge badge-warn'}, 'warning') : null, p.warning ? ' ' : null, p.text))))))
}

function changes(all: Change[], label: string, old: string, next: string): HTMLElement {
  return scroll(label, h('table', null, h('caption', null, label), head('Setting', old, next, 'Taken over'),
    h('tbody', null, ...all.map(c => h('tr', null, h('td', {class: 'mono'}, c.path), h('td', {class: 'mono'}, c.old || '–'), h('td', {class: 'mono'}, c.new || '–'),
      h('td', null, c.restart ? h('span', {class: 'badge badge-warn'}, 'with a restart') : h('span', {class: 'badge badge-plain'}, 'while it runs')))))))
}

function inForce(s: Settings): HTMLElement {
  const rows = flat(s.effective, s.provenance, '', [])
  const body = h('tbody')
  const shown = h('p', {class: 'hint', role: 'status'})
  const find = h('input', {id: 'find', type: 'search', autocomplete: 'off', spellcheck: 'false', oninput: draw})
  const own = h('input', {type: 'checkbox', checked: true, onchange: draw})
  function draw(): void {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean)
    const some = rows.filter(r => (!own.checked || r.from !== 'default' && r.from !== '') && words.every(w => `${r.path} ${r.value} ${r.from}`.toLowerCase().includes(w)))
    replace(body, ...some.map(r => h('tr', null, h('td', {class: 'mono'}, r.path), h('td', {class: 'mono'}, r.value), h('td', null, origin(r.from, s.file)))))
    shown.textContent = `${some.length} of ${plural(rows.length, 'value')}`
  }
  draw()
  return section('In force', h('div', {class: 'tools'}, h('div', {class: 'field'}, h('label', {for: 'find'}, 'Find'), find), h('label', {class: 'choice'}, own, 'Without defaults')), shown,
    scroll('Values in force', h('table', null, head('Setting', 'Value', 'From'), body)))
}

function origin(from: string, file: string): HTMLElement | string {
  const line = from.slice(from.lastIndexOf(':') + 1)
  if (file && from.startsWith(file + ':')) return `line ${line}`
  if (from === 'earlier file') return h('span', {class: 'badge badge-warn', title: 'The file says something else by now: see The file.'}, 'the file as it was')
  if (from === 'command line') return h('span', {class: 'badge badge-plain'}, 'command line')
  return from
}

/** checker lets an operator paste a configuration; nothing is done with it but to judge it. */
function checker(may: boolean, left: AbortSignal, announce: (said: string) => void): HTMLElement {
  const input = h('textarea', {id: 'pasted', spellcheck: 'false', autocomplete: 'off', 'aria-describedby': 'pasted-hint'})
  const out = h('div', {class: 'stack'})
  const go = h('button', {type: 'submit', disabled: !may}, 'Check')
  const form = h('form', {class: 'stack', onsubmit: e => {
    e.preventDefault()
    void check()
  }}, h('label', {for: 'pasted'}, 'A configuration'), input,
  h('p', {id: 'pasted-hint', class: 'hint'}, 'As headgate validate judges it: nothing is applied, kept or written down. Files that it names are not read.'),
  h('div', {class: 'buttons'}, go, may ? null : h('span', {class: 'hint'}, 'It takes a key with role operate or admin.')))
  async function check(): Promise<void> {
    go.disabled = true
    attribute(out, 'aria-busy', 'true')
    try {
      const c = await post<Check>('api/config/check', {text: input.value}, left)
      const errors = c.problems.filter(p => !p.warning).length
      const said = !c.good ? `It is refused: ${plural(errors, 'problem')}.` : c.changes.length === 0 ? 'It is good, and changes nothing here.' : `It is good, and changes ${plural(c.changes.length, 'value')} here.`
      replace(out, h('p', null, h('span', {class: `badge badge-${c.good ? 'good' : 'bad'}`}, said)),
        c.problems.length > 0 ? problems(c.problems) : null,
        c.changes.length > 0 ? changes(c.changes, 'What it would change', 'In force', 'Pasted') : null)
      announce(said)
    } catch (err) {
      if (!left.aborted) replace(out, failed(err))
    } finally {
      go.disabled = false
      attribute(out, 'aria-busy', null)
    }
  }
  return section('Check a configuration', form, out)
}

export default view
