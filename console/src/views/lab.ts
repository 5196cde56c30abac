import {get, post} from '../api'
import {count, date, duration, none, plural, share, short} from '../format'
import {bytes, call, h, head, mayOperate, missing, replace, scroll, section, text} from '../operate'
import {empty, failed, loading} from '../states'
import type {App, View} from '../view'

interface Report { file: string, bytes: number, modified: string, kind?: string, title?: string, verdict?: string }
interface Reports { configured: boolean, reports: Report[], left_out: boolean }

/** Offer is what there is to simulate with. */
interface Offer {
  pools: {pool: string, policy: string, engine: string, slots: number, kv_tokens: number, not?: string}[]
  profiles: {name: string, about: string}[]
  max_seeds: number
  limit_s: number
}

interface Score {
  interactive: number
  on_time: number
  return: number
  return_on_time: number
  batch: number
  batch_done: number
  batch_tokens: number
  makespan_s: number
  refused: Record<string, number>
  failed: number
  recalls: number
  reclaims: number
  preemptions: number
  recomputed_tokens: number
  per_seed: {seed: number, interactive: number, on_time: number, batch: number, batch_done: number}[]
}

interface Result { pool: string, profile: string, seeds: number, speed: number, skipped: number, took_s: number, present: Score, changed: Score }

const view: View = {
  name: 'lab',
  title: 'Lab',
  about: 'A pool’s policy beside a changed one, simulated; and reports of past runs.',
  available: s => s.parts.includes('pools'),
  show(root, app, rest) {
    const leaving = new AbortController()
    const out = h('div', {class: 'parts'}, loading())
    root.append(out)
    void (rest ? one(out, rest, leaving.signal) : all(out, app, leaving.signal))
    return () => leaving.abort()
  },
}

async function all(out: HTMLElement, app: App, left: AbortSignal): Promise<void> {
  try {
    const [offer, reports] = await Promise.all([get<Offer>('api/lab/whatif', left), get<Reports>('api/lab/reports', left).catch((err: unknown) => err)])
    replace(out, whatIf(offer, app, left), list(reports))
  } catch (err) {
    if (left.aborted) return
    replace(out, missing(err) ? empty('This process has no lab', 'It serves nobody. headgate sim and headgate bench run anywhere.') : failed(err, () => void all(out, app, left)))
  }
}

function list(r: unknown): HTMLElement {
  const title = 'Reports of past runs'
  if (r instanceof Error) return section(title, failed(r))
  const {configured, reports, left_out} = r as Reports
  if (!configured) return section(title, empty('No folder of reports is configured', 'Set console.reports to one: what headgate bench and headgate sim --output json write there is listed here.'))
  if (reports.length === 0) return section(title, empty('The folder of reports is empty', 'headgate bench run and headgate bench report write there.'))
  return section(title, scroll(title, h('table', null, head('Report', 'Of', 'Verdict', 'Written', 'Size#'),
    h('tbody', null, ...reports.map(f => h('tr', null, h('td', {class: 'room'}, h('a', {href: `#/lab/${f.file.split('/').map(encodeURIComponent).join('/')}`}, f.file)),
      h('td', {class: 'room'}, f.kind ? `${f.kind}: ${f.title ?? ''}` : none),
      h('td', null, f.verdict ? h('span', {class: `badge badge-${f.verdict === 'pass' ? 'good' : f.verdict === 'fail' ? 'bad' : 'warn'}`}, f.verdict) : none),
      h('td', null, date(f.modified)), h('td', {class: 'number'}, bytes(f.bytes))))))),
  left_out ? h('p', {class: 'hint'}, 'There are more, older ones.') : null)
}

/** one shows a report: a page in a frame that can run and load nothing, all else as text. */
async function one(out: HTMLElement, name: string, left: AbortSignal): Promise<void> {
  const back = h('p', null, h('a', {href: '#/lab'}, 'All reports'))
  try {
    const body = await (await call(`api/lab/report?${new URLSearchParams({file: name})}`, {signal: left})).text()
    replace(out, back, section(name, name.endsWith('.html') ? frame(name, body) : h('pre', {tabindex: 0}, name.endsWith('.json') ? pretty(body) : body)))
  } catch (err) {
    if (!left.aborted) replace(out, back, failed(err, () => void one(out, name, left)))
  }
}

function pretty(body: string): string {
  try {
    return JSON.stringify(JSON.parse(body), null, 2)
  } catch {
    return body
  }
}

/**
 * frame shows a page that may have come from anywhere. The frame runs no script, and has the
 * console's own policy: it can load nothing. Its styles, which that policy would not let it
 * have, are put into it by hand.
 */
function frame(name: string, page: string): HTMLIFrameElement {
  // In a template nothing of it is tried yet, so that the policy has nothing to complain about.
  const doc = h('template')
  doc.innerHTML = page.replace(/<[^>]*>/g, tag => tag.replace(/\son\w+\s*=/gi, ' data-off='))
  const css = [...doc.content.querySelectorAll('style')].map(e => e.textContent).join('\n')
  for (const e of doc.content.querySelectorAll('style, title, script, link, meta, base, iframe, object, embed, form, img, picture, video, audio, image')) e.remove()
  for (const e of doc.content.querySelectorAll('*')) {
    for (const a of [...e.attributes]) {
      if (a.name.startsWith('on') || a.name === 'style') e.removeAttribute(a.name)
    }
  }
  // Scripts stay forbidden; this lets the console put the styles in.
  const f = h('iframe', {class: 'report', sandbox: 'allow-same-origin', title: `Report ${name}`, srcdoc: `<!doctype html><html lang="en"><head><title>Report</title></head><body>${doc.innerHTML}</body></html>`, onload: () => {
    const inside = f.contentWindow as (Window & typeof globalThis) | null
    if (!inside) return
    const sheet = new inside.CSSStyleSheet()
    sheet.replaceSync(css)
    inside.document.adoptedStyleSheets = [sheet]
  }})
  return f
}

function whatIf(offer: Offer, app: App, left: AbortSignal): HTMLElement {
  const title = 'What if'
  const able = offer.pools.filter(p => !p.not)
  if (able.length === 0) {
    return section(title, empty('There is nothing to simulate with', offer.pools.map(p => `Pool ${p.pool}: ${p.not ?? ''}.`).join(' ')))
  }
  const may = mayOperate(app)
  const pool = h('select', {id: 'pool', onchange: fill}, ...able.map(p => h('option', {value: p.pool}, p.pool)))
  const profile = h('select', {id: 'profile', onchange: tell}, ...offer.profiles.map(p => h('option', {value: p.name}, p.name)))
  const seeds = h('input', {id: 'seeds', type: 'number', min: 1, max: offer.max_seeds, value: 3, required: true})
  const speed = h('input', {id: 'speed', type: 'number', min: 0.01, max: 100, step: 'any', value: 1, required: true, 'aria-describedby': 'speed-hint'})
  const policy = h('textarea', {id: 'policy', spellcheck: 'false', autocomplete: 'off', 'aria-describedby': 'policy-hint'})
  const about = h('p', {class: 'hint'})
  const model = h('p', {class: 'hint'})
  const go = h('button', {type: 'submit', disabled: !may}, 'Simulate')
  const stop = h('button', {type: 'button', class: 'quiet', hidden: true, onclick: () => running?.abort()}, 'Stop')
  const state = h('p', {class: 'hint', role: 'status'}, may ? '' : 'It takes a key with role operate or admin.')
  const out = h('div', {class: 'stack'})
  let running: AbortController | null = null
  left.addEventListener('abort', () => running?.abort())
  function tell(): void {
    text(about, offer.profiles.find(p => p.name === profile.value)?.about ?? '')
  }
  function fill(): void {
    const p = able.find(q => q.pool === pool.value)
    policy.value = p?.policy ?? ''
    text(model, p ? `An engine of ${plural(p.slots, 'slot')} and ${count(p.kv_tokens)} KV tokens, as ${p.engine} has; its step times are the simulator’s own, times the factor.` : '')
  }
  async function run(): Promise<void> {
    running = new AbortController()
    go.disabled = true
    stop.hidden = false
    text(state, `It runs, beside the traffic, for ${duration(offer.limit_s)} at most.`)
    try {
      const r = await post<Result>('api/lab/whatif', {pool: pool.value, profile: profile.value, seeds: seeds.valueAsNumber, speed: speed.valueAsNumber, policy: policy.value}, running.signal)
      replace(out, compare(r))
      text(state, `Done in ${duration(r.took_s)}.`)
    } catch (err) {
      if (left.aborted) return
      if (running.signal.aborted) {
        text(state, 'Stopped.')
      } else {
        text(state, '')
        replace(out, failed(err))
      }
    } finally {
      running = null
      go.disabled = !may
      stop.hidden = true
    }
  }
  const form = h('form', {class: 'stack', onsubmit: e => {
    e.preventDefault()
    if (!running) void run()
  }},
  h('div', {class: 'fields'},
    h('div', {class: 'field'}, h('label', {for: 'pool'}, 'Pool'), pool, model),
    h('div', {class: 'field'}, h('label', {for: 'profile'}, 'Traffic'), profile, about),
    h('div', {class: 'field'}, h('label', {for: 'seeds'}, 'Seeds'), seeds, h('p', {class: 'hint'}, `Traces that are drawn, 1 to ${offer.max_seeds}.`)),
    h('div', {class: 'field'}, h('label', {for: 'speed'}, 'Factor on step times'), speed, h('p', {id: 'speed-hint', class: 'hint'}, '2 is an engine that takes twice as long.'))),
  h('div', {class: 'field'}, h('label', {for: 'policy'}, 'Changed policy'), policy,
    h('p', {id: 'policy-hint', class: 'hint'}, 'It begins as the one in force. Change a floor, a reclaim or an objective, and see what becomes of the same traffic. Nothing is applied.')),
  h('div', {class: 'buttons'}, go, stop, state))
  fill()
  tell()
  return section(title, form, out)
}

/** compare puts both policies side by side. */
function compare(r: Result): HTMLElement {
  const a = r.present, b = r.changed
  const part = (n: number, of: number): string => of > 0 ? `${share(n / of)} (${count(n)} of ${count(of)})` : none
  const rows: [string, string, string, number][] = [
    ['Interactive on time', part(a.on_time, a.interactive), part(b.on_time, b.interactive), b.on_time - a.on_time],
    ['On time in the return', part(a.return_on_time, a.return), part(b.return_on_time, b.return), b.return_on_time - a.return_on_time],
    ['Batch done', part(a.batch_done, a.batch), part(b.batch_done, b.batch), b.batch_done - a.batch_done],
    ['Batch tokens within the trace', short(a.batch_tokens), short(b.batch_tokens), b.batch_tokens - a.batch_tokens],
    ['Until the last answer', duration(a.makespan_s), duration(b.makespan_s), a.makespan_s - b.makespan_s],
    ['Refused', causes(a.refused), causes(b.refused), sum(a.refused) - sum(b.refused)],
    ['Recalls', count(a.recalls), count(b.recalls), 0],
    ['Loans that were reclaimed', count(a.reclaims), count(b.reclaims), 0],
    ['Tokens computed again', short(a.recomputed_tokens), short(b.recomputed_tokens), a.recomputed_tokens - b.recomputed_tokens],
  ]
  return h('div', {class: 'stack'},
    scroll('Present and changed policy', h('table', null, h('caption', null, `Pool ${r.pool}, ${r.profile}, ${plural(r.seeds, 'seed')}, step times × ${r.speed}`), head('Figure', 'Present policy', 'Changed policy', 'Difference'),
      h('tbody', null, ...rows.map(([name, old, next, better]) => h('tr', null, h('th', {scope: 'row'}, name), h('td', null, old), h('td', null, next),
        h('td', null, better > 0 ? h('span', {class: 'badge badge-good'}, 'better') : better < 0 ? h('span', {class: 'badge badge-bad'}, 'worse') : old === next ? h('span', {class: 'hint'}, 'the same') : null)))))),
    scroll('Seed by seed', h('table', null, h('caption', null, 'Seed by seed: interactive on time, and batch done'), head('Seed#', 'Present: on time#', 'Changed: on time#', 'Present: batch done#', 'Changed: batch done#'),
      h('tbody', null, ...a.per_seed.map((s, i) => {
        const o = b.per_seed[i]
        return h('tr', null, ...[String(s.seed), `${s.on_time} of ${s.interactive}`, o ? `${o.on_time} of ${o.interactive}` : none, `${s.batch_done} of ${s.batch}`, o ? `${o.batch_done} of ${o.batch}` : none].map(v => h('td', {class: 'number'}, v)))
      })))),
    h('p', {class: 'hint'}, 'On time is the published objective, whatever the classes’ own: a first token within 5 s, and all of the answer within 30 s. ',
      r.skipped > 0 ? `${plural(r.skipped, 'request')} had a prompt that the engine has no room for, and ${r.skipped === 1 ? 'was' : 'were'} left out. ` : null,
      `${plural(r.seeds, 'seed')} can’t tell small differences: headgate bench does, with more of them.`))
}

function sum(m: Record<string, number>): number {
  return Object.values(m).reduce((a, b) => a + b, 0)
}

function causes(m: Record<string, number>): string {
  const all = Object.entries(m)
  return all.length === 0 ? 'none' : all.map(([why, n]) => `${count(n)} ${why.replaceAll('_', ' ')}`).join(', ')
}

export default view
