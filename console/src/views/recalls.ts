import {get} from '../api'
import {attribute, h, list, replace, show, style, svg, text, type Row} from '../dom'
import {count, date, duration, milliseconds, none, plural, time} from '../format'
import {subscribe} from '../live'
import {empty, failed, loading} from '../states'
import type {Recall} from '../types'
import type {View} from '../view'

/** kept bounds the recalls that the page remembers, first those that the list begins with. */
const kept = 500, first = 25

const idOf = (r: Recall): string => `${r.pool}/${r.seq}`

/** events are what one reads of a recall first, by the value that is surely not too small. */
const events: {name: string, what: string, at(r: Recall): number | null}[] = [
  {name: 'granted', what: 'admission may admit it', at: r => r.granted_s},
  {name: 'scheduled', what: 'the engine runs the request; at the latest, where it does not tell', at: r => r.scheduled_upper_s ?? r.scheduled_s},
  {name: 'settled', what: 'what was ended for it is out', at: r => r.settled_s},
  {name: 'first token', what: 'of the returning request', at: r => r.first_token_s},
]

function interval(r: Recall): string {
  if (r.scheduled_s === null) return none
  return r.scheduled_upper_s === null ? milliseconds(r.scheduled_s) : `${milliseconds(r.scheduled_s).replace(' ms', '')} to ${milliseconds(r.scheduled_upper_s)}`
}

const loansOf = (r: Recall): number => r.reclaims.length + (r.reclaims_left_out ?? 0)

function row(): Row<{r: Recall, chosen: boolean}> {
  const link = h('a')
  const pool = h('td'), granted = h('td', {class: 'number'}), scheduled = h('td', {class: 'number'}), settled = h('td', {class: 'number'}), loans = h('td', {class: 'number'})
  const element = h('tr', null, h('th', {scope: 'row'}, link), pool, granted, scheduled, settled, loans)
  return {element, update({r, chosen}) {
    attribute(element, 'data-chosen', chosen)
    attribute(link, 'href', `#/recalls/${encodeURIComponent(r.pool)}/${r.seq}`)
    attribute(link, 'aria-current', chosen ? 'true' : null)
    attribute(link, 'title', `Recall ${r.seq}, ${date(r.opened)}`)
    text(link, time(r.opened))
    text(pool, `${r.class} · ${r.pool}`)
    text(granted, milliseconds(r.granted_s))
    text(scheduled, interval(r))
    text(settled, milliseconds(r.settled_s))
    text(loans, count(loansOf(r)))
  }}
}

/** Mark is a moment on the timeline. */
interface Mark { name: string, what: string, from: number, to: number, kind: 'event' | 'request' | 'loan' | 'open' }

function marks(r: Recall): Mark[] {
  const all: Mark[] = []
  const at = (name: string, what: string, s: number | null, kind: Mark['kind']): void => {
    if (s !== null) all.push({name, what, from: s, to: s, kind})
  }
  at('granted', 'admission may admit the request', r.granted_s, 'event')
  at('admitted', 'the request has its place', r.admitted_s, 'request')
  at('dispatched', 'and is sent to the engine', r.dispatched_s, 'request')
  r.reclaims.forEach((c, i) => {
    if (c.sent_s !== null) {
      all.push({name: `loan ${i + 1}`, what: c.confirmed_s === null ? `${c.class} ended, and not confirmed yet` : `${c.class} ended, confirmed after ${milliseconds(c.confirmed_s - c.sent_s)}`,
        from: c.sent_s, to: c.confirmed_s ?? Number.POSITIVE_INFINITY, kind: c.confirmed_s === null ? 'open' : 'loan'})
    }
  })
  at('settled', 'what was ended for it is out', r.settled_s, 'event')
  if (r.scheduled_s !== null) {
    all.push({name: 'scheduled', what: r.scheduled_upper_s === null ? 'the engine runs the request' : 'the engine began between these two: it does not tell',
      from: r.scheduled_s, to: r.scheduled_upper_s ?? r.scheduled_s, kind: 'event'})
  }
  at('first token', 'of the returning request', r.first_token_s, 'request')
  return all
}

/** span is where the timeline ends, in seconds: behind all that is of interest in it. */
function span(all: Mark[]): number {
  const last = Math.max(...all.flatMap(m => [m.from, m.to]).filter(Number.isFinite), 0.001)
  return last * 1.04
}

/** ticks are round numbers of seconds up to an end, some five of them. */
function ticks(end: number): number[] {
  const raw = end / 5
  const unit = 10 ** Math.floor(Math.log10(raw))
  const step = [1, 2, 5, 10].map(n => n * unit).find(s => s >= raw) ?? 10 * unit
  const all: number[] = []
  for (let i = 0; i * step <= end; i++) all.push(i * step)
  return all
}

function timeline(r: Recall): HTMLElement {
  const all = marks(r)
  const end = span(all)
  const left = (s: number): string => `${Math.min(s / end, 1) * 100}%`
  const ms = (s: number): string => milliseconds(s)
  const axis = h('div', {class: 'axis', 'aria-hidden': 'true'}, ...ticks(end).map(s => {
    const e = h('span', null, s === 0 ? '0' : s < 1 ? `${Math.round(s * 1e6) / 1e3} ms` : `${Math.round(s * 1e3) / 1e3} s`)
    style(e, 'left', left(s))
    return e
  }))
  const rows = all.map(m => {
    const open = !Number.isFinite(m.to)
    const bar = h('span', {class: 'moment', 'data-kind': m.kind, 'data-interval': m.to > m.from})
    style(bar, 'left', left(m.from))
    style(bar, 'width', m.to > m.from ? `calc(${left(open ? end : m.to)} - ${left(m.from)})` : '0')
    const when = m.to > m.from ? `${ms(m.from)} to ${open ? '…' : ms(m.to)}` : ms(m.from)
    return h('li', null, h('span', {class: 'moment-name', 'data-kind': m.kind}, m.name), h('span', {class: 'track', 'aria-hidden': 'true'}, bar),
      h('span', {class: 'moment-at'}, when), h('span', {class: 'moment-what'}, m.what))
  })
  return h('div', {class: 'timeline'}, axis, h('ol', {'aria-label': 'From the opening of the recall'}, ...rows))
}

function facts(r: Recall): HTMLElement {
  const pair = (title: string, value: string): HTMLElement => h('div', null, h('dt', null, title), h('dd', null, value))
  return h('dl', {class: 'facts'}, pair('opened', date(r.opened)), pair('class', r.class), pair('pool', r.pool),
    pair('for request', r.request || none), pair('loans reclaimed', count(loansOf(r))),
    pair('closed', r.closed_s === null ? 'not yet: something lent before it is still out' : `after ${duration(r.closed_s)}`))
}

const bins = 28, least = 0.001, most = 20 // seconds

/** bin is where on a logarithmic scale a time lies, from 0 to bins - 1. */
function bin(s: number): number {
  const at = Math.floor(Math.log(Math.max(s, least) / least) / Math.log(most / least) * bins)
  return Math.min(Math.max(at, 0), bins - 1)
}

function quantile(sorted: number[], q: number): number | null {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? null
}

/** distribution draws how long events took, and marks where the chosen recall's is. */
function distribution(name: string, what: string, values: number[], mine: number | null): Node[] {
  const sorted = values.toSorted((a, b) => a - b)
  const counts = Array.from({length: bins}, () => 0)
  for (const v of sorted) counts[bin(v)] = (counts[bin(v)] ?? 0) + 1
  const top = Math.max(...counts, 1)
  const w = 10, tall = 46
  const chart = svg('svg', {class: 'bars', viewBox: `0 0 ${bins * w} ${tall + 4}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'},
    ...counts.map((n, i) => svg('rect', {x: i * w + 1, y: tall - n / top * tall, width: w - 2, height: n === 0 ? 0 : Math.max(n / top * tall, 2), 'data-mine': mine !== null && bin(mine) === i})),
    svg('line', {x1: 0, x2: bins * w, y1: tall + 1, y2: tall + 1}))
  return [h('tr', null, h('th', {scope: 'row', title: what}, name), h('td', {class: 'bars-cell'}, chart),
    ...[0.5, 0.95, 1].map(q => h('td', {class: 'number'}, duration(quantile(sorted, q)))))]
}

const view: View = {
  name: 'recalls',
  title: 'Recalls',
  about: 'Protected demand came back and wanted lent capacity: when it was granted, scheduled and settled, from the moment it was opened.',
  available: s => s.parts.includes('pools'),
  show(root, app, rest) {
    const all = new Map<string, Recall>()
    let chosen = rest, shown = first, dirty = false, drawn = ''
    const body = h('tbody')
    const setRows = list(body, (x: {r: Recall}) => idOf(x.r), row)
    const total = h('p', {class: 'hint'})
    const more = h('button', {type: 'button', class: 'quiet', onclick: () => {
      shown += 100
      draw()
    }}, 'Show more')
    const table = h('section', {class: 'card recall-list', 'aria-labelledby': 'recall-list'}, h('h2', {id: 'recall-list'}, 'The last recalls'), total,
      h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-labelledby': 'recall-list'}, h('table', null,
        h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'opened'), h('th', {scope: 'col'}, 'class · pool'), ...['granted', 'scheduled', 'settled', 'loans'].map(t => h('th', {scope: 'col', class: 'number'}, t)))), body)), more)
    const title = h('h2', {id: 'recall-one'})
    const follow = h('a', {href: '#/recalls'}, 'Follow the newest')
    const followed = h('span')
    const following = h('p', {class: 'hint'}, follow, followed)
    const one = h('div')
    const detail = h('section', {class: 'card recall-one', 'aria-labelledby': 'recall-one'}, title, following, one)
    const spread = h('tbody')
    const spreadTitle = h('p', {class: 'hint'})
    const spreadCard = h('section', {class: 'card recall-spread', 'aria-labelledby': 'recall-spread'}, h('h2', {id: 'recall-spread'}, 'Distribution'), spreadTitle,
      h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-labelledby': 'recall-spread'}, h('table', null, h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'event'),
        h('th', {scope: 'col', class: 'bars-cell'}, '1 ms to 20 s, log'), ...['half within', '95 % within', 'longest'].map(t => h('th', {scope: 'col', class: 'number'}, t)))), spread)))
    const layout = h('div', {class: 'recalls'}, h('div', {class: 'recall-side'}, detail, spreadCard), table)
    const wait = loading()
    const nothing = empty('No recall yet', 'A recall is opened when a class wants capacity within its floor that it has lent and that others use. Nothing was lent and wanted back since the process began.')
    nothing.hidden = true
    layout.hidden = true
    root.append(wait, nothing, layout)

    function draw(): void {
      dirty = false
      const sorted = [...all.values()].toSorted((a, b) => a.opened < b.opened ? 1 : a.opened > b.opened ? -1 : b.seq - a.seq)
      for (const r of sorted.slice(kept)) all.delete(idOf(r))
      wait.remove()
      show(nothing, sorted.length === 0)
      show(layout, sorted.length > 0)
      const r = all.get(chosen) ?? sorted[0]
      if (!r) return
      setRows(sorted.slice(0, shown).map(x => ({r: x, chosen: x === r})))
      show(more, sorted.length > shown)
      text(total, `${plural(sorted.length, 'recall')}, newest first.`)
      // What is drawn again though it is the same would lose what its reader has marked.
      const now = JSON.stringify(r)
      if (now !== drawn) {
        drawn = now
        text(title, `Recall ${r.seq}`)
        replace(one, facts(r), timeline(r), r.reclaims_left_out ? h('p', {class: 'hint'}, `${plural(r.reclaims_left_out, 'further loan')} not listed.`) : null)
      }
      show(follow, all.has(chosen))
      text(followed, all.has(chosen) ? '' : chosen ? `Recall ${chosen} is not kept any more; this is the newest.` : 'The newest; choose one of the list to stay with it.')
      const same = sorted.filter(x => x.pool === r.pool && x.class === r.class)
      text(spreadTitle, `The last ${plural(same.length, 'recall')} of ${r.class} in ${r.pool}, and where recall ${r.seq} is among them.`)
      replace(spread, ...events.flatMap(e => distribution(e.name, e.what, same.map(e.at).filter(v => v !== null), e.at(r))))
    }

    /** later draws once for all that comes within a frame. */
    function later(): void {
      if (dirty) return
      dirty = true
      requestAnimationFrame(draw)
    }

    let spoke = 0
    function take(some: Recall[]): void {
      for (const r of some) {
        const fresh = !all.has(idOf(r))
        all.set(idOf(r), r)
        if (fresh && Date.now() - spoke > 15_000) {
          spoke = Date.now()
          app.announce(`${r.class} of pool ${r.pool} recalls what it lent.`)
        }
      }
    }
    const gone = new AbortController()
    function read(): void {
      get<Recall[]>(`api/recalls?limit=${kept}`, gone.signal).then(some => {
        for (const r of some) if (!all.has(idOf(r))) all.set(idOf(r), r)
        draw()
      }, err => {
        if (!gone.signal.aborted) replace(root, failed(err, () => {
          replace(root, wait, nothing, layout)
          read()
        }))
      })
    }
    let lost = false
    const ends = [
      subscribe('recalls', some => {
        take(some)
        later()
      }),
      // What came while the stream was away is not told again.
      subscribe('state', s => {
        if (s.at === 'live' && lost) read()
        lost = s.at !== 'live'
      }),
      () => gone.abort(),
    ]
    read()
    return {
      end: () => {
        for (const end of ends) end()
      },
      move: to => {
        chosen = to
        draw()
      },
    }
  },
}

export default view
