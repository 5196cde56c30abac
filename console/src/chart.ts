// Lines over time. Beside each there is a table of the same, for who does not see it and for
// who wants the numbers.
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import {attribute, h, replace, style, text} from './dom'
import {none, time} from './format'
import {color, onTheme} from './theme'

/** Line is one series of a chart. */
export interface Line {
  name: string
  /** color is a token of style.css, without var(). */
  color: string
  /** dashed lines are told apart from others of their colour. */
  dashed?: boolean
}

export interface Chart {
  element: HTMLElement
  /** update shows other values: seconds since 1970, and for each line as many. */
  update(lines: Line[], at: number[], values: (number | null)[][]): void
  end(): void
}

/** Bounds are of a chart's values: top is the least that its upper end may be. */
export interface Bounds {
  top: number
  /** fixed: it is the end whatever the values are. */
  fixed?: boolean
  /** tick writes values of the axis, where unit would take too much room. */
  tick?: (n: number) => string
  /** logarithmic from this value on, for what differs by orders of magnitude. */
  from?: number
}

/** decades are the powers of ten between two values. */
function decades(_: uPlot, __: number, from: number, to: number): number[] {
  const all: number[] = []
  for (let i = Math.round(Math.log10(from)); i <= Math.round(Math.log10(to)); i++) all.push(10 ** i)
  return all
}

/** chart makes a chart. unit writes a value. */
export function chart(title: string, about: string, unit: (n: number | null) => string, bounds: Bounds): Chart {
  const canvas = h('div', {class: 'plot', 'aria-hidden': 'true'})
  const key = h('ul', {class: 'key-list', 'aria-label': `Lines of ${title}`})
  const head = h('thead'), body = h('tbody')
  const table = h('details', {class: 'as-table'}, h('summary', null, 'As a table'), h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `${title}, as a table`}, h('table', null, head, body)))
  const element = h('section', {class: 'card chart'}, h('h2', null, title), h('p', {class: 'hint'}, about), key, canvas, table)
  let plot: uPlot | null = null
  let lines: Line[] = []
  let shape = ''
  let data: uPlot.AlignedData = [[]], raw: (number | null)[][] = []
  let labels: HTMLElement[] = []

  function make(): void {
    plot?.destroy()
    const [muted, grid, font] = [color('--muted'), color('--line'), `${Math.round(13 * scale())}px ${getComputedStyle(document.body).fontFamily}`]
    const axis = {stroke: muted, font, grid: {stroke: grid, width: 1}, ticks: {stroke: grid, width: 1}}
    plot = new uPlot({
      width: Math.max(canvas.clientWidth, 100), height: Math.round(220 * scale()),
      legend: {show: false}, cursor: {y: false, points: {size: 7}}, padding: [Math.round(12 * scale()), 12, 0, 0],
      scales: {x: {time: true}, y: bounds.from ? {distr: 3, range: (_, __, max) => [bounds.from ?? 1, 10 ** Math.ceil(Math.log10(Math.max(max, bounds.top)))]}
        : {range: (_, __, max) => [0, bounds.fixed ? bounds.top : Math.max(max * 1.1, bounds.top)]}},
      axes: [
        {...axis, size: Math.round(30 * scale()), space: Math.round(90 * scale()), values: (_, splits) => splits.map(s => time(s * 1000))},
        {...axis, size: Math.round(64 * scale()), values: (_, splits) => splits.map(s => (bounds.tick ?? unit)(s)), ...(bounds.from ? {splits: decades} : {})},
      ],
      series: [{}, ...lines.map((l): uPlot.Series => ({stroke: color(l.color), width: 2, spanGaps: false, points: {show: false}, ...(l.dashed ? {dash: [6, 4]} : {})}))],
      hooks: {setCursor: [u => values(u.cursor.idx ?? null)]},
    }, data, canvas)
  }

  /** values writes beside each line what it is at a place, or at the end. */
  function values(at: number | null): void {
    labels.forEach((e, i) => {
      const column = raw[i]
      const v = column?.[at ?? column.length - 1]
      text(e, v === null || v === undefined ? none : unit(v))
    })
  }

  const size = new ResizeObserver(() => plot?.setSize({width: Math.max(canvas.clientWidth, 100), height: Math.round(220 * scale())}))
  size.observe(canvas)
  const unlisten = onTheme(() => {
    if (plot) make()
  })

  function tabulate(at: number[]): void {
    // A row a minute: the newest, and back from there.
    const picked: number[] = []
    for (let i = at.length - 1; i >= 0; i--) {
      const before = picked.at(-1)
      if (before === undefined || (at[before] ?? 0) - (at[i] ?? 0) >= 59) picked.push(i)
    }
    replace(body, ...picked.map(i => h('tr', null, h('th', {scope: 'row'}, time((at[i] ?? 0) * 1000)), ...lines.map((_, k) => {
      const v = raw[k]?.[i]
      return h('td', {class: 'number'}, v === null || v === undefined ? none : unit(v))
    }))))
  }
  table.addEventListener('toggle', () => {
    if (table.open) tabulate(data[0] as number[])
  })

  return {
    element,
    update(next, at, columns) {
      raw = columns
      // There is no place for less than where a logarithmic scale begins.
      data = [at, ...bounds.from ? columns.map(c => c.map(v => v === null ? null : Math.max(v, bounds.from ?? 0))) : columns]
      const now = JSON.stringify(next)
      if (now !== shape) {
        shape = now
        lines = next
        labels = lines.map(() => h('strong'))
        replace(key, ...lines.map((l, i) => {
          const mark = h('span', {class: 'line-key', 'aria-hidden': 'true', 'data-dashed': !!l.dashed})
          style(mark, '--color', `var(${l.color})`)
          return h('li', null, mark, l.name, ' ', labels[i])
        }))
        replace(head, h('tr', null, h('th', {scope: 'col'}, 'at'), ...lines.map(l => h('th', {scope: 'col', class: 'number'}, l.name))))
        make()
      } else {
        plot?.setData(data)
      }
      values(plot?.cursor.idx ?? null)
      if (table.open) tabulate(at)
      attribute(element, 'data-empty', at.length === 0)
    },
    end() {
      size.disconnect()
      unlisten()
      plot?.destroy()
    },
  }
}

/** scale is how much larger than usual text is. */
function scale(): number {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) / 16
}
