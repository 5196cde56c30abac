import {get} from '../api'
import {count, duration, none, time} from '../format'
import {h, head, missing, poll, replace, scroll, section} from '../operate'
import {empty, failed, loading} from '../states'
import type {View} from '../view'

/** Pair is slots and KV tokens. */
type Pair = [number, number]

interface Grants {
  fleet: string
  replica?: string
  held: Held[]
  store_error?: string
  leader: string
  epoch: number
  members: {replica: string, boot: string, address?: string}[]
  pools: Record<string, Pool>
}

interface Held {
  pool: string
  lease: number
  lease_left_s: number
  in_force: boolean
  grant_age_s: number
  grant: {epoch: number, revision: number} | null
  not_ready?: string
}

interface Pool {
  revision: number
  fingerprint?: string
  accounts: {engine?: string, class?: string, total: Pair, foreign: Pair, free: Pair}[] | null
  replicas: {
    replica: string
    live: boolean
    fingerprint?: string
    revision: number
    acknowledged: number
    accounts: {granted: Pair, bound: Pair, used: Pair, survival: Pair}[] | null
    residual_ns?: number
  }[] | null
}

interface Handoff {
  handoff: number
  pool: string
  to: string
  class?: string
  from: string[] | null
  why?: string
  want: Pair
  stage: string
  since_ns: number
  epoch: number
  time: string
}

const every = 2000

const view: View = {
  name: 'fleet',
  title: 'Fleet',
  about: 'Replicas that share the pools, what each was granted, and who leads.',
  show(root, app) {
    const out = h('div', {class: 'parts'}, loading())
    root.append(out)
    if (!app.session.parts.includes('fleet')) {
      replace(out, alone())
      return () => {}
    }
    return poll(every, async signal => {
      try {
        const [g, handoffs] = await Promise.all([get<Grants>('api/grants', signal), get<Handoff[]>('api/events?n=50', signal).catch(() => null)])
        const at = scrolled(out)
        replace(out, summary(g), held(g), ...pools(g), stages(handoffs, g))
        at()
      } catch (err) {
        if (!signal.aborted) replace(out, missing(err) ? alone() : failed(err))
      }
    }).end
  },
}

/** alone is what there is to say where there is no fleet. */
function alone(): HTMLElement {
  return empty('There is one replica only',
    'This process has its pools to itself: it allocates their envelopes by itself, nothing is granted or handed off, and nobody leads. With control in the configuration several replicas share the pools.')
}

/** scrolled keeps what was scrolled and focused of frames that are made anew. */
function scrolled(out: HTMLElement): () => void {
  const was = [...out.querySelectorAll<HTMLElement>('.scroll')].map(e => [e.getAttribute('aria-label'), e.scrollLeft, e === document.activeElement] as const)
  return () => {
    for (const e of out.querySelectorAll<HTMLElement>('.scroll')) {
      const old = was.find(w => w[0] === e.getAttribute('aria-label'))
      if (!old) continue
      e.scrollLeft = old[1]
      if (old[2]) e.focus({preventScroll: true})
    }
  }
}

function pair(p: Pair): string {
  return `${count(p[0])} slots, ${count(p[1])} KV`
}

function orNone(p: Pair): string {
  return p[0] === 0 && p[1] === 0 ? none : pair(p)
}

function summary(g: Grants): HTMLElement {
  const one = g.members.length === 1
  return section('Fleet',
    h('dl', {class: 'figures'}, ...([['Name', g.fleet], ['This replica', g.replica ?? 'a controller, which serves nobody'], ['Leader', g.leader || 'nobody'], ['Epoch', String(g.epoch)], ['Replicas', String(g.members.length)]] as const)
      .map(([k, v]) => h('div', null, h('dt', null, k), h('dd', null, v)))),
    g.store_error ? h('p', {class: 'wrong', role: 'alert'}, `${g.store_error}. What this replica holds is shown all the same.`) : null,
    one ? h('p', null, 'There is one replica only. It is granted everything, and nothing is handed off until another joins.') : null,
    scroll('Replicas', h('table', null, head('Replica', 'Leads', 'Address for the others', 'This boot'),
      h('tbody', null, ...g.members.map(m => h('tr', null, h('th', {scope: 'row'}, m.replica + (m.replica === g.replica ? ' (this one)' : '')),
        h('td', null, m.replica === g.leader ? h('span', {class: 'badge badge-good'}, 'leader') : none), h('td', {class: 'mono'}, m.address || none), h('td', {class: 'mono'}, m.boot)))))))
}

function held(g: Grants): HTMLElement | null {
  if (g.held.length === 0) return null
  return section('What this replica holds', scroll('What this replica holds', h('table', null, head('Pool', 'Goes by', 'Grant', 'Age#', 'Lease left#'),
    h('tbody', null, ...g.held.map(v => h('tr', null, h('th', {scope: 'row'}, v.pool),
      h('td', null, h('span', {class: `badge badge-${v.in_force ? 'good' : 'warn'}`}, v.in_force ? 'its grant' : 'its survival floor'), v.not_ready ? h('p', {class: 'wrong'}, v.not_ready) : null),
      h('td', {class: 'mono'}, v.grant ? `${v.grant.epoch}.${v.grant.revision}` : none),
      h('td', {class: 'number'}, v.grant ? duration(v.grant_age_s) : none), h('td', {class: 'number'}, v.lease ? duration(v.lease_left_s) : none)))))))
}

function pools(g: Grants): HTMLElement[] {
  return Object.entries(g.pools).sort(([a], [b]) => a.localeCompare(b)).map(([name, p]) => {
    const accounts = p.accounts ?? []
    const of = (i: number): string => accounts[i]?.engine ?? (accounts[i]?.class ? `class ${accounts[i].class}` : none)
    return section(`Pool ${name}, revision ${p.revision}`,
      scroll(`What there is of pool ${name}`, h('table', null, head('Of', 'Total', 'Free', 'Foreign'),
        h('tbody', null, ...accounts.map((a, i) => h('tr', null, h('th', {scope: 'row'}, of(i)), h('td', null, pair(a.total)), h('td', null, orNone(a.free)), h('td', null, orNone(a.foreign))))))),
      scroll(`Grants of pool ${name}`, h('table', null, h('caption', null, 'Bound is the most that a replica can have: its grant, or more until it has acknowledged and drained to a lower one.'),
        head('Replica', 'Of', 'Granted', 'Bound', 'Used', 'Survival floor', 'Revision', 'Acknowledged'),
        h('tbody', null, ...(p.replicas ?? []).flatMap(r => (r.accounts ?? []).map((s, i) => h('tr', null,
          h('th', {scope: 'row'}, i === 0 ? r.replica : '', i === 0 && !r.live ? h('p', null, h('span', {class: 'badge badge-bad'}, 'gone')) : null,
            i === 0 && p.fingerprint && r.fingerprint && r.fingerprint !== p.fingerprint ? h('p', null, h('span', {class: 'badge badge-warn'}, 'another configuration')) : null),
          h('td', null, of(i)), h('td', null, orNone(s.granted)), h('td', null, orNone(s.bound)), h('td', null, orNone(s.used)), h('td', null, orNone(s.survival)),
          h('td', {class: 'mono'}, String(r.revision)), h('td', {class: 'mono'}, String(r.acknowledged)))))))))
  })
}

function stages(all: Handoff[] | null, g: Grants): HTMLElement {
  if (!all || all.length === 0) {
    return section('Handoffs', h('p', {class: 'hint'}, !all ? 'They can’t be read now.' : g.members.length === 1 ? 'None: there is one replica only.' : 'None yet. One comes when protected demand at a replica wants what another was granted.'))
  }
  return section('Handoffs', h('p', {class: 'hint'}, 'Newest first: prepared (a lower grant is written), applied (it is in force, and drained), committed (the other’s raise is written).'),
    scroll('Handoffs', h('table', null, head('Time', 'Pool', 'Handoff', 'Stage', 'After#', 'To', 'Class', 'From', 'Wants'),
      h('tbody', null, ...all.map(e => h('tr', null, h('td', {class: 'mono'}, time(e.time)), h('td', null, e.pool), h('td', {class: 'mono'}, e.handoff ? `${e.epoch}.${e.handoff}` : none),
        h('td', null, e.stage), h('td', {class: 'number'}, e.handoff ? duration(e.since_ns / 1e9) : none), h('td', null, e.to), h('td', null, e.class || none),
        h('td', null, (e.from ?? []).join(', ') || none), h('td', null, e.handoff ? orNone(e.want) : e.why || none)))))))
}

export default view
