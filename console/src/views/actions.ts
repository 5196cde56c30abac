import {get, post} from '../api'
import {date, duration, plural} from '../format'
import {confirm, h, mayOperate, missing, poll, replace, type Confirmation} from '../operate'
import {subscribe} from '../live'
import {empty, failed, loading} from '../states'
import type {Now, Pool} from '../types'
import type {App, View} from '../view'

interface Switch { on: boolean, recall?: boolean, since?: string, actor?: string, reason?: string }

/** Switches are a pool's, as /api/switches has them. */
interface Switches { pool: string, switches: {lending_paused: Switch, drain: Switch, bypass: Switch} }

/** Plan is where a pool that re-plans is, of /api/plan. */
interface Plan {
  pool: string
  engine: string
  state: string
  profile: string
  to?: string
  why: string
  override?: string
  override_s?: number
  dry_run?: boolean
  promised_sessions: number
  profiles: {name: string, slots: number, kv_tokens: number, max_context: number}[]
}

const every = 2000

const view: View = {
  name: 'actions',
  title: 'Actions',
  about: 'Drain a pool, pause its lending, recall what is lent, or switch an engine’s profile. Each is asked about once more, and written down.',
  available: s => s.parts.includes('pools'),
  show(root, app) {
    const out = h('div', {class: 'parts'}, loading())
    root.append(out)
    // What will happen is told with the numbers of the moment.
    let now: Now | null = null
    const unsubscribe = subscribe('now', n => { now = n })
    let was = ''
    const looking = poll(every, async signal => {
      try {
        const [switches, plans] = await Promise.all([get<Switches[]>('api/switches', signal), get<Plan[]>('api/plan', signal)])
        // What is the same is left as it is, with the focus in it.
        const is = JSON.stringify([switches, plans.map(p => [p.pool, p.profile, p.to, p.override, p.state])])
        if (is === was) return
        was = is
        const had = document.activeElement?.getAttribute('data-of')
        replace(out, mayOperate(app) ? null : h('p', {class: 'state'}, 'This key is for reading: the switches are shown, and turned with a key of role operate or admin.'),
          ...switches.map(s => card(app, s, plans.find(p => p.pool === s.pool), () => now?.pools.find(p => p.name === s.pool), () => {
            was = ''
            looking.now()
          })))
        if (had) out.querySelector<HTMLElement>(`[data-of="${CSS.escape(had)}"]`)?.focus({preventScroll: true})
      } catch (err) {
        if (signal.aborted) return
        was = ''
        replace(out, missing(err) ? empty('There are no pools here', 'This process serves nobody.') : failed(err))
      }
    })
    return () => {
      looking.end()
      unsubscribe()
    }
  },
}

function since(s: Switch): string {
  return [s.since ? `since ${date(s.since)}` : '', s.actor ? `by ${s.actor}` : '', s.reason ? `“${s.reason}”` : ''].filter(Boolean).join(', ')
}

function card(app: App, s: Switches, plan: Plan | undefined, pool: () => Pool | undefined, again: () => void): HTMLElement {
  const {lending_paused: lending, drain, bypass} = s.switches
  const may = mayOperate(app)
  const act = (name: string, danger: boolean, what: () => Confirmation): HTMLElement | null => may
    ? h('button', {type: 'button', class: danger ? 'danger' : null, 'data-of': `${s.pool} ${name}`, onclick: () => confirm(app, what())}, name) : null
  const turn = async (which: string, body: object): Promise<void> => {
    await post(`api/pools/${encodeURIComponent(s.pool)}/${which}`, body)
    again()
  }
  const loans = (then: (n: number) => string): string => {
    const p = pool()
    return p ? then(p.loans) : 'How many loans are out can’t be told now.'
  }
  const runs = (): string => {
    const p = pool()
    return p ? `${plural(p.waiting, 'request')} wait${p.waiting === 1 ? 's' : ''} and ${plural(p.used.slots, 'slot')} ${p.used.slots === 1 ? 'is' : 'are'} in use at this moment.` : ''
  }
  return h('section', {class: 'card stack', 'aria-label': `Pool ${s.pool}`},
    h('h2', null, `Pool ${s.pool}`),
    row('Lending', lending.on ? badge('warn', lending.recall ? 'paused, what is lent is recalled' : 'paused') : badge('good', 'as configured'), since(lending),
      lending.on
        ? act('Resume lending', false, () => ({
          title: `Resume lending in pool ${s.pool}?`, verb: 'Resume lending',
          what: ['Classes lend what they do not need again, by the configuration and after their idle time.'],
          run: async reason => { await turn('lending', {paused: false, reason}); return `Pool ${s.pool} lends again.` },
        }))
        : act('Pause lending', true, () => ({
          title: `Pause lending in pool ${s.pool}?`, verb: 'Pause lending',
          what: ['Every class keeps its whole floor, and none gets more than that, though it lies idle: what needs more waits, and a class without a floor waits altogether.', loans(n => `${plural(n, 'loan')} that ${n === 1 ? 'is' : 'are'} out now go${n === 1 ? 'es' : ''} on.`), 'It stays so until lending is resumed, or this process ends.'],
          run: async reason => { await turn('lending', {paused: true, reason}); return `Lending is paused in pool ${s.pool}.` },
        })),
      lending.on && lending.recall ? null : act('Recall now', true, () => ({
        title: `Recall what pool ${s.pool} has lent?`, verb: 'Recall now',
        what: [loans(n => `${plural(n, 'loan')} ${n === 1 ? 'is' : 'are'} out at this moment.`) + ' Each is ended as its class’s reclaim says, and goes on later: at once, or when the loan’s life is over; with attrition it runs to its end.',
          'Lending is paused with it, and stays so until it is resumed, or this process ends.'],
        run: async reason => { await turn('lending', {paused: true, recall: true, reason}); return `What pool ${s.pool} has lent is recalled.` },
      }))),
    row('Requests', drain.on ? badge('bad', 'refused: draining') : badge('good', 'taken'), since(drain),
      drain.on
        ? act('End the drain', false, () => ({
          title: `End the drain of pool ${s.pool}?`, verb: 'End the drain', what: ['What comes is taken again.'],
          run: async reason => { await turn('drain', {on: false, reason}); return `Pool ${s.pool} takes requests again.` },
        }))
        : act('Drain', true, () => ({
          title: `Drain pool ${s.pool}?`, verb: 'Drain',
          what: ['What comes is refused, and what waits too: clients get 503 and go elsewhere.', 'What runs goes on to its end.', runs() || 'How much that is can’t be told now.',
            'When every pool is drained, this process is not ready. It stays so until the drain is ended, or this process ends.'],
          run: async reason => { await turn('drain', {on: true, reason}); return `Pool ${s.pool} is draining.` },
        }))),
    bypass.on ? row('Admission', badge('bad', 'bypassed: everything is admitted at once'), since(bypass)) : null,
    plan ? profiles(app, plan, may, again) : null)
}

function badge(tone: string, words: string): HTMLElement {
  return h('span', {class: `badge badge-${tone}`}, words)
}

function row(name: string, state: HTMLElement, how: string, ...actions: (HTMLElement | null)[]): HTMLElement {
  return h('div', {class: 'tools'}, h('div', null, h('h3', null, name), h('p', null, state), how ? h('p', {class: 'hint'}, how) : null), h('div', {class: 'buttons'}, ...actions))
}

function profiles(app: App, p: Plan, may: boolean, again: () => void): HTMLElement {
  const id = `profile-${p.pool}`
  const choice = h('select', {id}, ...p.profiles.map(q => h('option', {value: q.name, selected: q.name === p.profile}, `${q.name}: ${plural(q.slots, 'slot')}`)), h('option', {value: 'auto'}, 'leave it to the planner'))
  const how = p.override ? `An operator wants ${p.override}${p.override_s && p.override_s > 0 ? ` for ${duration(p.override_s)} more` : ''}.` : `The planner decides: ${p.why}`
  const go = h('button', {type: 'button', class: 'danger', 'data-of': `${p.pool} profile`, onclick: () => {
    const lasts = h('select', {id: 'lasts'}, ...([['1h', 'an hour'], ['8h', 'eight hours'], ['24h', 'a day'], ['0s', 'until it is set again']] as const).map(([v, t]) => h('option', {value: v}, t)))
    const to = p.profiles.find(q => q.name === choice.value)
    confirm(app, {
      title: to ? `Switch ${p.engine} to profile ${to.name}?` : `Leave ${p.engine} to the planner?`,
      verb: to ? 'Switch' : 'Leave it to the planner',
      what: to
        ? [`The engine drains, is switched, and comes back with ${plural(to.slots, 'slot')} and ${to.kv_tokens.toLocaleString('en')} KV tokens. What waits is kept for as long as it may wait.`,
          p.promised_sessions > 0 ? `${plural(p.promised_sessions, 'session')} that was promised a context keeps it: a profile that can’t hold it is refused.` : 'No session was promised a context.',
          p.dry_run ? 'The pool’s plan is a dry run: it is only said what would be done.' : 'The planner does not switch it back for as long as is chosen here.']
        : ['The planner chooses the profile again, by what it sees of the traffic.'],
      ...(to ? {fields: h('div', {class: 'field'}, h('label', {for: 'lasts'}, 'For'), lasts)} : {}),
      async run(reason) {
        await post('api/plan', {pool: p.pool, profile: choice.value, ...(to ? {for: lasts.value} : {}), reason})
        again()
        return to ? `${p.engine} goes to profile ${to.name}.` : `${p.engine} is left to the planner.`
      },
    })
  }}, 'Switch profile')
  return row('Profile', badge('plain', p.to ? `${p.profile}, going to ${p.to}` : p.profile), how,
    may ? h('div', {class: 'buttons'}, h('label', {class: 'unseen', for: id}, `Profile of ${p.engine}`), choice, go) : null)
}

export default view
