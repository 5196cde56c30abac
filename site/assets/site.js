'use strict'
// The search and the switch between light and dark. Without scripts the pages lack both.

const theme = document.querySelector('.theme')
theme.hidden = false
theme.addEventListener('click', () => {
  const now = document.documentElement.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')
  document.documentElement.dataset.theme = now === 'dark' ? 'light' : 'dark'
  try { localStorage.theme = document.documentElement.dataset.theme } catch { /* it holds for this page */ }
})

// On a narrow screen the list of pages is closed until it is wanted.
if (matchMedia('(max-width: 52rem)').matches) document.querySelector('.pages details').open = false
document.querySelector('.pages [aria-current]')?.scrollIntoView({block: 'nearest'})

const form = document.querySelector('.search')
const box = form.querySelector('input')
const panel = form.querySelector('.panel')
const list = form.querySelector('ol')
const count = form.querySelector('[role=status]')
// The address of the index is relative to the page, and what it lists to the site.
const index = form.querySelector('a[data-index]').href
form.hidden = false

let entries // [address, page, heading, text, and that in lower case]
let asked = false
window.headgateSearch = all => {
  entries = all.map(e => [...e, e.slice(1).map(s => s.toLowerCase())])
  search()
}

function load () {
  if (asked) return
  asked = true
  const script = document.createElement('script')
  script.src = index
  script.onerror = () => { count.textContent = 'The index could not be loaded.' }
  document.head.append(script)
}

// Every word has to be there. A word in a heading says more than one in a text, and the
// begin of a word more than its middle.
function rate (entry, words) {
  let total = 0
  for (const word of words) {
    let best = 0
    entry[4].forEach((text, i) => {
      let at = text.indexOf(word)
      if (at < 0) return
      const begins = at === 0 || !/[\p{L}\p{N}_]/u.test(text[at - 1])
      let points = [30, 40, 8][i] * (begins ? 2 : 1)
      if (text === word) points *= 2
      for (let n = 0; at >= 0 && n < 5; n++, at = text.indexOf(word, at + 1)) points++
      best = Math.max(best, points)
    })
    if (best === 0) return 0
    total += best
  }
  return total
}

function marked (text, words) {
  const out = document.createDocumentFragment()
  const low = text.toLowerCase()
  for (let at = 0; at < text.length;) {
    let from = text.length
    let to = text.length
    for (const word of words) {
      const i = low.indexOf(word, at)
      if (i >= 0 && i < from) { from = i; to = i + word.length }
    }
    out.append(text.slice(at, from))
    if (from < text.length) {
      const mark = document.createElement('mark')
      mark.textContent = text.slice(from, to)
      out.append(mark)
    }
    at = to
  }
  return out
}

function excerpt (entry, words) {
  const first = Math.min(...words.map(w => entry[4][2].indexOf(w)).filter(i => i >= 0), entry[3].length)
  const from = first === entry[3].length ? 0 : Math.max(0, first - 60)
  return (from ? '... ' : '') + entry[3].slice(from, from + 170) + (from + 170 < entry[3].length ? ' ...' : '')
}

function search () {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean)
  panel.hidden = words.length === 0
  list.replaceChildren()
  if (panel.hidden) return
  if (!entries) { count.textContent = 'Loading the index'; return }
  const found = entries.map(e => [rate(e, words), e]).filter(r => r[0] > 0).sort((a, b) => b[0] - a[0])
  count.textContent = found.length === 0 ? 'Nothing has all of these words.' : found.length > 20 ? `The best 20 of ${found.length}` : `${found.length} found`
  for (const [, e] of found.slice(0, 20)) {
    const a = document.createElement('a')
    a.href = new URL(e[0], index)
    const where = document.createElement('strong')
    where.append(marked(e[2] && e[2] !== e[1] ? `${e[1]}: ${e[2]}` : e[1], words))
    const what = document.createElement('span')
    what.append(marked(excerpt(e, words), words))
    a.append(where, what)
    const item = document.createElement('li')
    item.append(a)
    list.append(item)
  }
}

function close () { panel.hidden = true }

box.addEventListener('focus', load)
box.addEventListener('input', () => { load(); search() })
form.addEventListener('submit', e => {
  e.preventDefault()
  list.querySelector('a')?.click()
})
form.addEventListener('click', e => { if (e.target.closest('li a')) close() })
form.addEventListener('focusout', e => { if (e.relatedTarget && !form.contains(e.relatedTarget)) close() })
form.addEventListener('keydown', e => {
  const stops = [box, ...list.querySelectorAll('a')]
  const at = stops.indexOf(document.activeElement)
  if (e.key === 'Escape') { close(); box.focus() } else if (e.key === 'ArrowDown' && at + 1 < stops.length) stops[at + 1].focus()
  else if (e.key === 'ArrowUp' && at > 0) stops[at - 1].focus()
  else return
  e.preventDefault()
})
document.addEventListener('click', e => { if (!form.contains(e.target)) close() })
document.addEventListener('keydown', e => {
  if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return
  e.preventDefault()
  box.focus()
})
