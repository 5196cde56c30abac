// A pool's capacity as a vessel, for one resource: a compartment for each class's floor, and
// one for what is nobody's floor. A class fills its own from the left. What others have
// borrowed stands in it from the right, in their colour and hatched, so that a loan is seen
// where it lies: in the room of the class that lends. The gate stands where that class keeps
// room for itself: at the end of its floor while its lending is closed.
import {attribute, h, list, show, style, svg, text, type Row} from './dom'
import {count, short} from './format'
import type {Amount, Class, Pool} from './types'

export type Resource = keyof Amount

/** words are what a resource is called, and how amounts of it are written. */
export const words: Record<Resource, {title: string, unit: string, write(n: number): string}> = {
  slots: {title: 'Slots', unit: 'slots', write: count},
  kv_tokens: {title: 'KV tokens', unit: 'KV tokens', write: short},
}

/** colorOf is the token of a class's colour, by its place among the classes. */
export function colorOf(rank: number): string {
  return `var(--class-${rank % 8})`
}

/** Guest is what stands in a compartment that is not its class's own. */
interface Guest { name: string, color: string, kind: 'loan' | 'foreign' | 'withheld', amount: number }

interface Compartment {
  /** class is whose floor it is; null: nobody's. */
  class: Class | null
  color: string
  size: number
  own: number
  keeps: number
  unlent: number
  guests: Guest[]
}

export interface Layout { total: number, compartments: Compartment[], over: number }

/** layout finds a place for everything that a pool holds of a resource. */
export function layout(pool: Pool, r: Resource): Layout {
  const compartments: Compartment[] = pool.classes.map((c, rank) => ({
    class: c, color: colorOf(rank), size: c.floor[r], own: Math.min(c.used[r], c.floor[r]),
    keeps: Math.min(c.hold[r], c.floor[r]), unlent: Math.min(c.unlent[r], c.floor[r]), guests: [],
  }))
  const floors = compartments.reduce((sum, c) => sum + c.size, 0)
  const shared: Compartment = {class: null, color: 'var(--strong-line)', size: Math.max(pool.envelope[r] - floors, 0), own: 0, keeps: 0, unlent: 0, guests: []}
  const guests: Guest[] = pool.classes.map((c, rank): Guest => ({name: c.name, color: colorOf(rank), kind: 'loan', amount: c.borrowed[r]}))
  guests.push({name: 'foreign', color: 'var(--foreign)', kind: 'foreign', amount: pool.foreign[r]},
    {name: 'withheld', color: 'var(--foreign)', kind: 'withheld', amount: pool.withheld[r]})
  // Nobody's room is used first, and what is never lent last: only what others than classes
  // hold can stand there.
  const room = (c: Compartment, all: boolean): number =>
    Math.max(c.size - (all ? c.own : Math.max(c.own, c.unlent)) - c.guests.reduce((sum, g) => sum + g.amount, 0), 0)
  let over = 0
  for (const g of guests) {
    let left = g.amount
    for (const all of [false, true]) {
      for (const c of [shared, ...compartments]) {
        const n = Math.min(left, room(c, all))
        if (n > 0 && c.class?.name !== (g.kind === 'loan' ? g.name : '')) {
          const same = c.guests.find(o => o.name === g.name && o.kind === g.kind)
          if (same) same.amount += n
          else c.guests.push({...g, amount: n})
          left -= n
        }
      }
    }
    over += left
  }
  const all = shared.size > 0 ? [...compartments, shared] : compartments
  return {total: Math.max(pool.envelope[r], floors, 1), compartments: all.filter(c => c.size > 0), over}
}

function percent(part: number, of: number): string {
  return `${of > 0 ? Math.round(part / of * 1e4) / 100 : 0}%`
}

function guest(resource: Resource): (g: Guest) => Row<{guest: Guest, size: number, from: number}> {
  return () => {
    const number = h('span'), word = h('span', {class: 'pill-word'})
    const element = h('div', {class: 'guest'}, h('span', {class: 'pill'}, number, word))
    return {element, update({guest: g, size, from}) {
      attribute(element, 'data-kind', g.kind)
      style(element, '--color', g.color)
      style(element, 'right', percent(from, size))
      style(element, 'width', percent(g.amount, size))
      const what = g.kind === 'loan' ? 'on loan' : g.kind
      text(number, words[resource].write(g.amount))
      text(word, ` ${what}`)
      attribute(element, 'title', g.kind === 'loan' ? `${g.name}: ${words[resource].write(g.amount)} ${words[resource].unit} on loan` : `${g.kind}: ${words[resource].write(g.amount)} ${words[resource].unit}`)
    }}
  }
}

function compartment(resource: Resource): () => Row<{c: Compartment, total: number}> {
  return () => {
    const name = h('span', {class: 'compartment-name'})
    const floor = h('span', {class: 'compartment-floor'})
    const number = h('span', {class: 'own-number'})
    const own = h('div', {class: 'own'}, number)
    const kept = h('div', {class: 'kept'})
    const gate = h('div', {class: 'gate'})
    const unlent = h('div', {class: 'unlent-mark'})
    const cells = h('div', {class: 'cells'})
    const loans = h('div', {class: 'guests'})
    const basin = h('div', {class: 'water'}, kept, own, loans, cells, gate)
    const element = h('div', {class: 'compartment'}, h('div', {class: 'compartment-label'}, name, ' ', floor), basin, h('div', {class: 'below'}, unlent))
    const guests = list(loans, (g: {guest: Guest}) => `${g.guest.kind} ${g.guest.name}`, g => guest(resource)(g.guest))
    const write = words[resource].write
    return {element, update({c, total}) {
      style(element, 'flex-grow', String(c.size / total))
      style(element, '--color', c.color)
      text(name, c.class?.name ?? 'nobody’s floor')
      text(floor, c.class ? `floor ${write(c.size)}` : write(c.size))
      style(own, 'width', percent(c.own, c.size))
      text(number, c.own > 0 ? write(c.own) : '')
      attribute(number, 'data-short', c.own < 100)
      style(kept, 'width', percent(c.keeps, c.size))
      const open = c.class?.lending ?? true
      show(gate, c.class !== null)
      attribute(gate, 'data-open', open)
      style(gate, 'left', percent(open ? c.keeps : c.size, c.size))
      attribute(element, 'data-recall', !!c.class?.recall)
      show(unlent, c.unlent > 0)
      style(unlent, 'width', percent(c.unlent, c.size))
      text(unlent, c.unlent > 0 ? `unlent ${write(c.unlent)}` : '')
      // Slots are counted, tokens flow.
      show(cells, resource === 'slots' && c.size > 1 && total <= 64)
      style(cells, '--cells', String(c.size))
      let from = 0
      guests(c.guests.map(g => {
        const at = {guest: g, size: c.size, from}
        from += g.amount
        return at
      }))
    }}
  }
}

/** describe says in words what the picture shows. */
export function describe(pool: Pool, r: Resource): string {
  const {write, unit} = words[r]
  const parts = pool.classes.map(c => {
    const own = Math.min(c.used[r], c.floor[r])
    const loan = c.borrowed[r] > 0 ? `, and ${write(c.borrowed[r])} on loan` : ''
    return `${c.name} uses ${write(own)} of its floor of ${write(c.floor[r])}${loan}; of the floor ${write(c.unlent[r])} is unlent, and it keeps ${write(c.hold[r])}`
  })
  if (pool.foreign[r] > 0) parts.push(`${write(pool.foreign[r])} is foreign`)
  if (pool.withheld[r] > 0) parts.push(`${write(pool.withheld[r])} is withheld for other replicas`)
  return `${write(pool.used[r])} of ${write(pool.envelope[r])} ${unit} in use. ${parts.join('. ')}.`
}

/** vessel draws one resource of a pool. */
export function vessel(r: Resource): Row<Pool> {
  const used = h('strong')
  const of = h('span')
  const over = h('span', {class: 'badge badge-warn'})
  const row = h('div', {class: 'basin', role: 'img'})
  const element = h('figure', {class: 'vessel'}, h('figcaption', null, h('span', {class: 'vessel-title'}, words[r].title), used, of, over), row)
  const fill = list(row, (x: {c: Compartment}) => x.c.class?.name ?? ' nobody', compartment(r))
  return {element, update(pool) {
    const l = layout(pool, r)
    const {write} = words[r]
    text(used, write(pool.used[r]))
    text(of, `of ${write(pool.envelope[r])} in use`)
    show(over, l.over > 0)
    text(over, `${write(l.over)} beyond the envelope`)
    fill(l.compartments.map(c => ({c, total: l.total})))
    attribute(row, 'aria-label', describe(pool, r))
  }}
}

/** legend says what the marks mean; it does not change. */
export function legend(): HTMLElement {
  const item = (className: string, what: string): HTMLElement => h('li', null, h('span', {class: `key ${className}`, 'aria-hidden': 'true'}), what)
  return h('ul', {class: 'legend', 'aria-label': 'Marks'},
    item('key-own', 'in use by its class'),
    item('key-loan', 'on loan to another class'),
    item('key-kept', 'kept out of the others’ reach'),
    item('key-gate', 'gate: what is beyond it may be lent'),
    item('key-unlent', 'unlent: never lent'),
    item('key-foreign', 'foreign'))
}

/** swatch is a class's colour beside its name. */
export function swatch(rank: number): SVGSVGElement {
  const e = svg('svg', {class: 'swatch', viewBox: '0 0 10 10', 'aria-hidden': 'true'}, svg('rect', {width: 10, height: 10, rx: 2.5}))
  style(e, '--color', colorOf(rank))
  return e
}

