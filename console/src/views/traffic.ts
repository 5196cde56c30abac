import {get} from '../api'
import {chart, type Line} from '../chart'
import {h, replace, show, style, text} from '../dom'
import {count, duration, none, plural, rate, share, short} from '../format'
import {subscribe} from '../live'
import {empty, failed, loading} from '../states'
import type {Point, Traffic, TrafficClass} from '../types'
import type {View} from '../view'
import {swatch} from '../vessel'

/** reasons are what the outcomes of refused requests mean; see docs/errors.md. */
const reasons: Record<string, string> = {
  rejected_context: 'longer than every engine’s context',
  rejected_too_large: 'more KV tokens than the pool or the class could ever hold',
  rejected_too_many: 'more sequences than the pool or the class could ever run',
  rejected_queue_full: 'the class’s queue was full',
  rejected_tenant_queue_full: 'the tenant’s share of the queue was full',
  rejected_queue_wait: 'waited as long as the class allows',
  rejected_forecast: 'would have waited for longer than the class allows, by the forecast',
  rejected_unavailable: 'no engine was up',
  rejected_draining: 'draining',
  failed: 'the engine failed it',
  client_gone: 'the client left',
  timeout: 'the gateway gave up on it',
  unreachable: 'the engine could not be reached',
  reclaimed: 'reclaimed, and could not go on',
}

/** seconds writes a power of ten. */
function seconds(s: number): string {
  return s < 1 ? `${Math.round(s * 1000)} ms` : `${s} s`
}

function word(outcome: string): string {
  return outcome.replace(/^rejected_/, 'refused: ').replaceAll('_', ' ')
}

/** bars is a list of amounts, each with a bar as long as its share of the largest. */
function bars(rows: {name: Node | string, what?: string, n: number, said: string}[]): HTMLElement {
  const most = Math.max(...rows.map(r => r.n), 1)
  return h('table', {class: 'bar-table'}, h('tbody', null, ...rows.map(r => {
    const bar = h('div')
    style(bar, 'width', `${r.n / most * 100}%`)
    return h('tr', null, h('th', {scope: 'row'}, r.name, r.what ? h('span', {class: 'hint'}, r.what) : null),
      h('td', {class: 'bar-cell', 'aria-hidden': 'true'}, h('div', {class: 'bar-of'}, bar)), h('td', {class: 'number'}, r.said))
  })))
}

const view: View = {
  name: 'traffic',
  title: 'Traffic',
  about: 'What requests met over the last ten minutes: on time or not, how long they waited, who was refused, and what reclaims have cost.',
  available: s => s.parts.includes('pools'),
  show(root) {
    let points: Point[] = [], total: Point | null = null, pool = ''
    const choice = h('select', {id: 'pool', onchange: () => {
      pool = choice.value
      draw()
    }})
    const choose = h('p', {class: 'choose'}, h('label', {for: 'pool'}, 'Pool'), choice)
    const charts = {
      onTime: chart('On-time share', 'Answers that kept every limit of their objective. A class without one has no line.', n => share(n), {top: 1, fixed: true}),
      ttft: chart('Time to first token', 'From a request’s arrival: half of them within the solid line, 95 % within the dashed one. The scale is logarithmic.', n => duration(n), {top: 1, from: 0.001, tick: seconds}),
      wait: chart('Wait', 'From a request’s arrival to its admission: half of them within the solid line, 95 % within the dashed one. The scale is logarithmic.', n => duration(n), {top: 1, from: 0.001, tick: seconds}),
      finished: chart('Requests', 'That finished (solid) and that were refused (dashed), a second.', n => rate(n), {top: 1}),
      waste: chart('Waste by reclaim', 'Tokens that engines compute again because the class recalled what it had lent, in the window.', n => n === null ? none : short(n), {top: 100}),
    }
    const refusals = h('div'), fairness = h('div'), summary = h('tbody')
    const windows = h('p', {class: 'hint'})
    const table = h('section', {class: 'card wide'}, h('h2', null, 'In all'), windows, h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'In all'}, h('table', null, h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'class'),
      ...['on time', 'TTFT, half', 'TTFT, 95 %', 'wait, half', 'wait, 95 %', 'finished', 'refused', 'failed', 'waste'].map(t => h('th', {scope: 'col', class: 'number'}, t)))), summary)))
    const grid = h('div', {class: 'charts'}, table, charts.onTime.element, charts.ttft.element, charts.wait.element, charts.finished.element,
      h('section', {class: 'card chart'}, h('h2', null, 'Refusals and failures by reason'), refusals),
      h('section', {class: 'card chart'}, h('h2', null, 'Fairness between tenants'), h('p', {class: 'hint'}, 'Work done for each tenant that the configuration names: prompt tokens once, output tokens twice. Of those that wait, the one served next is 0 ahead.'), fairness),
      charts.waste.element)
    const wait = loading()
    const nothing = empty('Nothing to show yet', 'The first point comes five seconds after the process has begun.')
    grid.hidden = choose.hidden = nothing.hidden = true
    root.append(wait, nothing, choose, grid)

    function draw(): void {
      wait.remove()
      show(nothing, !total || points.length === 0)
      show(grid, !!total && points.length > 0)
      if (!total) return
      const pools = [...new Set(total.classes.map(c => c.pool))]
      if (!pools.includes(pool)) pool = pools[0] ?? ''
      if (choice.options.length !== pools.length || pools.some((p, i) => choice.options[i]?.value !== p)) {
        replace(choice, ...pools.map(p => h('option', {value: p}, p)))
        choice.value = pool
      }
      show(choose, pools.length > 1)
      const classes = total.classes.filter(c => c.pool === pool)
      const at = points.map(p => Date.parse(p.at) / 1000)
      const of = (name: string, read: (c: TrafficClass) => number | null): (number | null)[] => points.map(p => {
        const c = p.classes.find(c => c.pool === pool && c.class === name)
        return c ? read(c) : null
      })
      const one = (what: string): Line[] => classes.map((c, i) => ({name: what ? `${c.class} ${what}` : c.class, color: `--class-${i % 8}`}))
      const pair = (a: string, b: string): Line[] => [...one(a), ...one(b).map(l => ({...l, dashed: true}))]
      charts.onTime.update(one(''), at, classes.map(c => of(c.class, x => x.on_time)))
      charts.ttft.update(pair('half', '95 %'), at, [...classes.map(c => of(c.class, x => x.ttft_p50_s)), ...classes.map(c => of(c.class, x => x.ttft_p95_s))])
      charts.wait.update(pair('half', '95 %'), at, [...classes.map(c => of(c.class, x => x.wait_p50_s)), ...classes.map(c => of(c.class, x => x.wait_p95_s))])
      charts.finished.update(pair('finished', 'refused'), at, [...classes.map(c => of(c.class, x => x.finished_per_s)), ...classes.map(c => of(c.class, x => x.refused_per_s))])
      charts.waste.update(one(''), at, classes.map(c => of(c.class, x => x.waste_tokens)))
      text(windows, `Over the last ${duration(total.span_s)}. Quantiles are estimated from histograms, as exact as their buckets are narrow.`)
      const span = total.span_s
      replace(summary, ...classes.map((c, i) => h('tr', null, h('th', {scope: 'row'}, swatch(i), c.class), ...[
        share(c.on_time), duration(c.ttft_p50_s), duration(c.ttft_p95_s), duration(c.wait_p50_s), duration(c.wait_p95_s),
        rate(c.finished_per_s), count(Math.round(c.refused_per_s * span)), count(Math.round(c.failed_per_s * span)), short(c.waste_tokens),
      ].map(v => h('td', {class: 'number'}, v)))))
      const outcomes = classes.flatMap((c, i) => Object.entries(c.outcomes ?? {}).filter(([o]) => o !== 'finished').map(([o, n]) => ({o, n, c, i}))).toSorted((a, b) => b.n - a.n)
      replace(refusals, outcomes.length === 0 ? h('p', {class: 'state'}, `All requests of the last ${duration(span)} finished.`)
        : bars(outcomes.map(x => ({name: h('span', null, swatch(x.i), `${x.c.class}, ${word(x.o)}`), what: reasons[x.o] ?? '', n: x.n, said: count(x.n)}))))
      const tenants = classes.flatMap((c, i) => (c.tenants ?? []).map(t => ({t, c, i})))
      replace(fairness, tenants.length === 0 ? h('p', {class: 'state'}, 'No tenant that the configuration names has asked for anything.')
        : bars(tenants.map(x => ({name: h('span', null, swatch(x.i), `${x.t.tenant}, ${x.c.class}`), n: x.t.work_tokens,
          what: x.t.waiting > 0 ? `${plural(x.t.waiting, 'request waits', 'requests wait')}, ${short(x.t.ahead_tokens)} ahead` : '', said: `${short(x.t.work_tokens)}`}))))
    }

    const gone = new AbortController()
    function read(): void {
      get<Traffic>('api/traffic', gone.signal).then(t => {
        points = t.points
        total = t.total
        draw()
      }, err => {
        if (!gone.signal.aborted) replace(root, failed(err, () => {
          replace(root, wait, nothing, choose, grid)
          read()
        }))
      })
    }
    let lost = false
    const ends = [
      subscribe('traffic', t => {
        const last = points.at(-1)
        points = [...points.slice(-119), ...t.points.filter(p => !last || p.at > last.at)]
        total = t.total
        draw()
      }),
      subscribe('state', s => {
        if (s.at === 'live' && lost) read()
        lost = s.at !== 'live'
      }),
      () => gone.abort(),
      ...Object.values(charts).map(c => c.end),
    ]
    read()
    return () => {
      for (const end of ends) end()
    }
  },
}

export default view
