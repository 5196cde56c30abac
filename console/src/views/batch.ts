import {get, post} from '../api'
import {date, duration, none, plural, rate, share, short, count} from '../format'
import {attribute, bytes, confirm, h, head, mayOperate, missing, poll, replace, scroll, section} from '../operate'
import {empty, failed, loading} from '../states'
import type {App, View} from '../view'

/** Job is a batch, as /api/batches/jobs has it. */
interface Job {
  id: string
  tenant: string
  key: string
  class: string
  endpoint: string
  status: string
  created: string
  /** expires is the end of its window. */
  expires: string
  ended: string | null
  items: {total: number, completed: number, failed: number}
  prompt_tokens: number
  output_tokens: number
  wasted_tokens: number
  output_bytes: number
  error_bytes: number
  problems: {code: string, param?: string, line?: number}[]
  problems_left_out?: number
}

interface Tenant {
  tenant: string
  backlog: number
  running: number
  oldest: string | null
  done: number
  done_on_loans: number
  failed: number
  output_tokens: number
  output_tokens_on_loans: number
  wasted_tokens: number
}

const page = 20
const every = 4000

const tones: Record<string, string> = {completed: 'good', in_progress: 'plain', validating: 'plain', finalizing: 'plain', cancelling: 'warn', cancelled: 'plain', expired: 'warn', failed: 'bad'}

/** Rates are what items are done a second, by two looks at their counts. */
class Rates {
  private readonly seen = new Map<string, {at: number, done: number, rate: number | null}>()

  of(id: string, done: number): number | null {
    const at = performance.now(), was = this.seen.get(id)
    if (!was) {
      this.seen.set(id, {at, done, rate: null})
      return null
    }
    // Over some seconds, or one item more or less would make it jump.
    if (at - was.at > 8000) {
      was.rate = Math.max(0, done - was.done) / ((at - was.at) / 1000)
      was.at = at
      was.done = done
    }
    return was.rate
  }
}

const view: View = {
  name: 'batch',
  title: 'Batch',
  about: 'Batches of all tenants: how far they are, how fast they go, and what they came to.',
  available: s => s.parts.includes('batch'),
  show(root, app) {
    const rates = new Rates()
    const open = h('input', {type: 'checkbox', onchange: () => go('')})
    const newest = h('button', {type: 'button', class: 'quiet', onclick: () => go('')}, 'Newest')
    const older = h('button', {type: 'button', class: 'quiet', onclick: () => go(last)}, 'Older')
    const jobs = h('div', null, loading())
    const tenants = h('div', null)
    let after = '', last = ''
    root.append(h('div', {class: 'parts'},
      section('Batches', h('div', {class: 'tools'}, h('label', {class: 'choice'}, open, 'Only those that have not ended'), h('div', {class: 'buttons'}, newest, older)), jobs),
      section('Tenants', h('p', {class: 'hint'}, 'What is done and generated counts from this process’s start.'), tenants)))
    function go(to: string): void {
      after = to
      looking.now()
    }
    const looking = poll(every, async signal => {
      try {
        const query = new URLSearchParams({limit: String(page), open: String(open.checked), ...(after ? {after} : {})})
        const [list, by] = await Promise.all([get<{jobs: Job[], more: boolean}>(`api/batches/jobs?${query}`, signal), get<Tenant[]>('api/batches', signal)])
        last = list.jobs.at(-1)?.id ?? ''
        older.disabled = !list.more
        newest.disabled = after === ''
        keep(jobs, list.jobs.length > 0 ? jobTable(app, list.jobs, rates, looking.now)
          : empty(open.checked ? 'No batch is under way' : 'There are no batches', 'A client makes one of a file of requests: headgate batch submit, or OpenAI’s Batch API.'))
        keep(tenants, by.length > 0 ? tenantTable(by) : empty('No tenant has a batch'))
      } catch (err) {
        if (signal.aborted) return
        replace(jobs, missing(err) && !after ? empty('There are no batches here', 'The configuration has no batch section.') : failed(err, () => go('')))
        replace(tenants)
      }
    })
    return looking.end
  },
}

/** keep replaces what is shown, and leaves the focus on the button that had it. */
function keep(parent: HTMLElement, next: HTMLElement): void {
  const had = parent.contains(document.activeElement) ? document.activeElement?.getAttribute('data-of') : null
  const [left, at] = [parent.firstElementChild?.scrollLeft ?? 0, document.activeElement === parent.firstElementChild]
  replace(parent, next)
  next.scrollLeft = left
  if (at) next.focus({preventScroll: true})
  if (had) next.querySelector<HTMLElement>(`[data-of="${CSS.escape(had)}"]`)?.focus({preventScroll: true})
}

function jobTable(app: App, jobs: Job[], rates: Rates, again: () => void): HTMLElement {
  const now = Date.now()
  return scroll('Batches', h('table', null,
    head('Batch', 'Tenant', 'Status', 'Items', 'Rate#', 'Oldest item#', 'Window ends#', 'Results#', 'Output tokens#', 'Wasted#', ''),
    h('tbody', null, ...jobs.map(j => {
      const done = j.items.completed + j.items.failed
      const over = j.ended !== null
      const left = (Date.parse(j.expires) - now) / 1000
      const meter = h('meter', {min: 0, max: Math.max(1, j.items.total), value: done, 'aria-label': `${done} of ${j.items.total} items`})
      const cancel = h('button', {type: 'button', class: 'danger small', 'data-of': j.id, onclick: () => cancelJob(app, j, again)}, 'Cancel')
      attribute(cancel, 'aria-label', `Cancel ${j.id}`)
      return h('tr', null,
        h('td', {class: 'mono', title: `made ${date(j.created)} by ${j.key}, ${j.endpoint}, class ${j.class}`}, j.id.replace(/^batch_/, '').slice(0, 10)),
        h('td', null, j.tenant),
        h('td', null, h('span', {class: `badge badge-${tones[j.status] ?? 'plain'}`}, j.status.replace('_', ' '))),
        h('td', {class: 'room'}, j.items.total > 0 ? meter : null,
          h('p', null, j.items.total > 0 ? `${count(done)} of ${count(j.items.total)}, ${share(done / j.items.total)}` : none),
          j.items.failed > 0 ? h('p', {class: 'wrong'}, `${plural(j.items.failed, 'item')} failed`) : null,
          ...j.problems.map(p => h('p', {class: 'wrong'}, `${p.line ? `line ${count(p.line)}: ` : ''}${p.code}${p.param ? ` (${p.param})` : ''}`)),
          j.problems_left_out ? h('p', {class: 'hint'}, `and ${plural(j.problems_left_out, 'more', 'more')}`) : null),
        h('td', {class: 'number'}, over ? none : rate(rates.of(j.id, done))),
        h('td', {class: 'number'}, over || done >= j.items.total ? none : duration((now - Date.parse(j.created)) / 1000)),
        h('td', {class: 'number', title: date(j.expires)}, over ? none : left > 0 ? `in ${duration(left)}` : 'over'),
        h('td', {class: 'number'}, j.output_bytes > 0 ? bytes(j.output_bytes) : none, j.error_bytes > 0 ? h('p', {class: 'hint'}, `errors ${bytes(j.error_bytes)}`) : null),
        h('td', {class: 'number'}, short(j.output_tokens)),
        h('td', {class: 'number'}, short(j.wasted_tokens)),
        h('td', null, !over && j.status !== 'cancelling' && mayOperate(app) ? cancel : null))
    }))))
}

function cancelJob(app: App, j: Job, again: () => void): void {
  const left = j.items.total - j.items.completed - j.items.failed
  confirm(app, {
    title: `Cancel batch ${j.id}?`,
    what: [
      `It is tenant ${j.tenant}’s, made ${date(j.created)}.`,
      left > 0 ? `${plural(left, 'item')} of ${count(j.items.total)} will not be run; what runs is ended.` : 'Nothing of it is left to run.',
      `${plural(j.items.completed, 'answer')} that it has are kept, and its files are written.`,
      'It can’t be taken back.',
    ],
    verb: 'Cancel the batch',
    async run(reason) {
      const b = await post<Job>(`api/batches/${encodeURIComponent(j.id)}/cancel`, {tenant: j.tenant, reason})
      again()
      return `Batch ${j.id} is ${b.status}.`
    },
  })
}

function tenantTable(by: Tenant[]): HTMLElement {
  const now = Date.now()
  return scroll('Tenants', h('table', null,
    head('Tenant', 'Items left#', 'Running#', 'Oldest#', 'Done#', 'On loans#', 'Failed#', 'Output tokens#', 'On loans#', 'Wasted tokens#'),
    h('tbody', null, ...by.map(t => h('tr', null, h('th', {scope: 'row'}, t.tenant),
      ...[count(t.backlog), count(t.running), t.oldest ? duration((now - Date.parse(t.oldest)) / 1000) : none, count(t.done), count(t.done_on_loans), count(t.failed),
        short(t.output_tokens), short(t.output_tokens_on_loans), short(t.wasted_tokens)].map(v => h('td', {class: 'number'}, v)))))))
}

export default view
