import {get} from '../api'
import {attribute, h, list, replace, show, style, text, type Row} from '../dom'
import {age, count, duration, milliseconds, plural, short} from '../format'
import {subscribe} from '../live'
import {empty, loading} from '../states'
import type {Amount, Class, Engine, Now, Pool, Recall} from '../types'
import {colorOf, legend, swatch, vessel, words, type Resource} from '../vessel'
import type {View} from '../view'

const resources: Resource[] = ['slots', 'kv_tokens']

/** amounts are the columns of a class's table. */
const amounts: [string, string, (c: Class) => Amount][] = [
  ['used', 'what its reservations hold', c => c.used],
  ['floor', 'capacity protected for it', c => c.floor],
  ['unlent', 'the part of its floor that is never lent', c => c.unlent],
  ['keeps', 'what it keeps out of the others’ reach now', c => c.hold],
  ['ceiling', 'its hard maximum', c => c.ceiling],
  ['on loan', 'what it uses beyond its own floor', c => c.borrowed],
]

function badge(kind: 'good' | 'warn' | 'bad' | 'plain'): HTMLElement {
  return h('span', {class: `badge badge-${kind}`})
}

function classCard(): Row<{c: Class, rank: number}> {
  const name = h('h3')
  const lending = badge('plain')
  const why = h('p', {class: 'hint'})
  const recall = h('p', {class: 'recall-open'})
  const cells = resources.map(() => amounts.map(() => h('td', {class: 'number'})))
  const table = h('table', {class: 'amounts'},
    h('thead', null, h('tr', null, h('td'), ...amounts.map(([title, what]) => h('th', {class: 'number', scope: 'col', title: what}, title)))),
    h('tbody', null, ...resources.map((r, i) => h('tr', null, h('th', {scope: 'row'}, words[r].title), ...(cells[i] ?? [])))))
  const waiting = h('strong')
  const waitingWord = h('span')
  const late = badge('warn')
  const sentence = h('p')
  const forecast = h('p', {class: 'forecast'})
  const queue = h('div', {class: 'queue'}, h('p', {class: 'queue-depth'}, waiting, waitingWord, late), h('div', {class: 'queue-head'}, sentence, forecast))
  const title = h('header', {class: 'class-head'}, name, lending)
  const element = h('li', {class: 'class'}, title, why, recall, h('div', {class: 'scroll', tabindex: '0', role: 'region'}, table), queue)
  let ranked = -1
  return {element, update({c, rank}) {
    if (rank !== ranked) {
      ranked = rank
      style(element, '--color', colorOf(rank))
      replace(name, swatch(rank), c.name)
      attribute(table.parentElement!, 'aria-label', `Amounts of ${c.name}`)
    }
    const lends = c.floor.slots > 0 || c.floor.kv_tokens > 0
    attribute(lending, 'class', `badge badge-${!lends ? 'plain' : c.lending ? 'good' : 'warn'}`)
    text(lending, !lends ? 'no floor to lend' : c.lending ? 'lending open' : 'lending closed')
    show(why, lends && !c.lending && !!c.lending_why)
    text(why, `Closed: ${c.lending_why ?? ''}.`)
    show(recall, !!c.recall)
    attribute(recall, 'data-served', !!c.recall?.served)
    if (c.recall) text(recall, `Recall ${c.recall.seq}, open for ${age(c.recall.since_s)}: ${plural(c.recall.loans, 'loan')} out${c.recall.served ? ', its request is admitted' : ''}.`)
    resources.forEach((r, i) => amounts.forEach(([, , read], k) => {
      const cell = cells[i]?.[k]
      if (cell) text(cell, words[r].write(read(c)[r]))
    }))
    text(waiting, count(c.queue))
    text(waitingWord, c.queue === 1 ? 'request waits' : 'requests wait')
    show(late, !!c.late)
    text(late, `${c.late ?? 0} late`)
    attribute(queue, 'data-empty', c.queue === 0)
    show(sentence, !!c.head)
    show(forecast, !!c.head)
    if (c.head) {
      text(sentence, `The head has waited ${duration(c.head.waited_s)}, for ${c.head.waits_for}.`)
      text(forecast, c.head.forecast_s === null ? 'No forecast: too little is known.' : `Forecast: starts in about ${duration(c.head.forecast_s)}.`)
    }
  }}
}

function engineCard(): Row<Engine> {
  const name = h('h4')
  const state = badge('plain')
  const aside = badge('warn')
  const kind = h('p', {class: 'hint'})
  const running = h('dd'), waiting = h('dd'), kv = h('dd'), foreign = h('dd'), seen = h('dd')
  const bar = h('div', {class: 'bar', 'aria-hidden': 'true'}, h('div'))
  const error = h('p', {class: 'wrong'})
  const pair = (title: string, dd: HTMLElement, what: string): HTMLElement => h('div', {title: what}, h('dt', null, title), dd)
  const element = h('li', {class: 'engine'}, h('header', null, name, state, aside), kind,
    h('dl', null, pair('running', running, 'requests that it runs, as it says itself'), pair('waiting', waiting, 'requests that wait inside it'),
      pair('KV', kv, 'KV tokens in use, as it says itself'), pair('foreign', foreign, 'what it runs that was not sent from here'),
      pair('seen', seen, 'age of the last observation')), bar, error)
  return {element, update(e) {
    text(name, e.name)
    attribute(state, 'class', `badge badge-${e.state === 'ready' ? 'good' : e.state === 'loading' ? 'warn' : 'bad'}`)
    text(state, e.state)
    show(aside, !!e.demoted || !!e.set_aside_s)
    text(aside, e.set_aside_s ? `set aside for ${duration(e.set_aside_s)}` : 'demoted')
    text(kind, [e.kind, e.version].filter(Boolean).join(' '))
    text(running, count(e.running))
    text(waiting, count(e.waiting))
    text(kv, e.total.kv_tokens > 0 ? `${short(e.kv_tokens)} of ${short(e.total.kv_tokens)}` : short(e.kv_tokens))
    text(foreign, e.foreign.slots || e.foreign.kv_tokens ? `${count(e.foreign.slots)} · ${short(e.foreign.kv_tokens)}` : '0')
    text(seen, e.age_s === null ? 'never' : `${age(e.age_s)} ago`)
    attribute(seen, 'data-old', e.age_s === null || e.age_s > 5)
    style(bar.firstElementChild as HTMLElement, 'width', `${e.total.kv_tokens > 0 ? Math.min(100, e.kv_tokens / e.total.kv_tokens * 100).toFixed(1) : 0}%`)
    show(error, !!e.error)
    text(error, e.error ?? '')
  }}
}

/** flags are what of a pool somebody should know before he reads on. */
function flags(p: Pool): [kind: 'warn' | 'bad' | 'plain', what: string][] {
  const all: [boolean | undefined, 'warn' | 'bad' | 'plain', string][] = [
    [!!p.not_ready, 'bad', 'not ready'], [p.draining, 'bad', 'drained'], [p.bypassed, 'bad', 'bypassed: nothing is decided'],
    [p.lending_paused, 'warn', 'lending paused'], [p.lease_over, 'bad', 'lease over'], [p.observes, 'plain', 'observes only'],
    [p.ghosts > 0, 'warn', plural(p.ghosts, 'ghost')],
  ]
  return all.filter(([is]) => is).map(([, kind, what]) => [kind, what])
}

function poolCard(recalls: Map<string, Recall>): Row<Pool> {
  const name = h('h2')
  const marks = h('span', {class: 'flags'})
  const summary = h('p', {class: 'summary'})
  const why = h('p', {class: 'wrong'})
  const lastLink = h('a', null, 'Last recall')
  const lastTimes = h('span')
  const last = h('p', {class: 'last-recall'}, lastLink, lastTimes)
  const pictures = resources.map(r => vessel(r))
  const classes = h('ul', {class: 'classes'})
  const engines = h('ul', {class: 'engines'})
  const body = h('div', {class: 'pool-body'}, h('div', {class: 'vessels'}, ...pictures.map(p => p.element)), classes)
  const element = h('article', {class: 'card pool'}, h('header', {class: 'pool-head'}, h('div', null, name, marks), summary, last), why, body,
    h('h3', {class: 'unseen'}, 'Engines'), engines)
  const setFlags = list(marks, (f: [string, string]) => f[1], ([kind, what]) => ({element: h('span', {class: `badge badge-${kind}`}, what), update() {}}))
  const setClasses = list(classes, (x: {c: Class}) => x.c.name, classCard)
  const setEngines = list(engines, (e: Engine) => e.name, engineCard)
  return {element, update(p) {
    text(name, p.name)
    setFlags(flags(p))
    show(why, !!p.not_ready)
    text(why, p.not_ready ?? '')
    show(body, p.classes.length > 0)
    text(summary, p.classes.length === 0 ? 'No engine has said yet what it is.'
      : `${plural(p.engines.length, 'engine')}, ${plural(p.loans, 'loan')}, ${plural(p.waiting, 'request waits', 'requests wait')}`)
    const r = recalls.get(p.name)
    show(last, !!r)
    if (r) {
      attribute(lastLink, 'href', `#/recalls/${encodeURIComponent(r.pool)}/${r.seq}`)
      text(lastTimes, `: granted ${milliseconds(r.granted_s)}, scheduled ${scheduled(r)}, settled ${r.settled_s === null ? 'not yet' : milliseconds(r.settled_s)}`)
    }
    if (p.classes.length > 0) for (const picture of pictures) picture.update(p)
    setClasses(p.classes.map((c, rank) => ({c, rank})))
    setEngines(p.engines)
  }}
}

/** scheduled is an interval where the engine does not tell. */
function scheduled(r: Recall): string {
  if (r.scheduled_s === null) return 'not yet'
  return r.scheduled_upper_s === null ? milliseconds(r.scheduled_s) : `${milliseconds(r.scheduled_s)} to ${milliseconds(r.scheduled_upper_s)}`
}

const view: View = {
  name: 'now',
  title: 'Now',
  about: 'What each pool holds at this moment, and for whom.',
  available: s => s.parts.includes('pools'),
  show(root, app) {
    const problems = h('ul', {class: 'problems'})
    const pools = h('div', {class: 'pools'})
    const wait = loading()
    const nothing = empty('There is no pool', 'The configuration names none: add one below pools, with the address of an engine.')
    nothing.hidden = true
    root.append(problems, wait, nothing, pools, legend())
    const recalls = new Map<string, Recall>()
    const setPools = list(pools, (p: Pool) => p.name, () => poolCard(recalls))
    const setProblems = list(problems, (what: string) => what, what => ({element: h('li', null, what), update() {}}))
    const open = new Map<string, number>()
    const states = new Map<string, string>()
    let spoke = 0

    /** tell says aloud what somebody who does not see the picture would miss. */
    function tell(n: Now): void {
      for (const p of n.pools) {
        for (const c of p.classes) {
          const key = `${p.name} ${c.name}`
          const seq = c.recall?.seq ?? 0
          if (seq && open.get(key) !== seq && Date.now() - spoke > 15_000) {
            spoke = Date.now()
            app.announce(`${c.name} of pool ${p.name} recalls what it lent.`)
          }
          open.set(key, seq)
        }
        for (const e of p.engines) {
          const key = `${p.name} ${e.name}`
          const was = states.get(key)
          if (was && was !== e.state) app.announce(`Engine ${e.name} of pool ${p.name} is ${e.state}, and was ${was}.`)
          states.set(key, e.state)
        }
      }
    }

    function take(all: Recall[]): void {
      for (const r of all) {
        const known = recalls.get(r.pool)
        if (!known || known.opened <= r.opened) recalls.set(r.pool, r)
      }
    }
    const gone = new AbortController()
    // Without them the pools are shown all the same.
    void get<Recall[]>('api/recalls?limit=20', gone.signal).then(all => take(all.reverse()), () => {})
    const ends = [
      subscribe('recalls', take),
      subscribe('now', n => {
        wait.remove()
        setProblems([...(n.not_ready ? [n.not_ready] : []), ...(n.problems ?? [])])
        show(nothing, n.pools.length === 0)
        setPools(n.pools)
        attribute(pools, 'data-several', n.pools.length > 1)
        tell(n)
      }),
      subscribe('state', s => attribute(root, 'data-stale', s.at === 'lost')),
      () => gone.abort(),
    ]
    return () => {
      for (const end of ends) end()
      root.removeAttribute('data-stale')
    }
  },
}

export default view
