import './style.css'
import {get, Failure, hasKey, onRefused, setKey} from './api'
import {attribute, h, list, replace, show, text} from './dom'
import {restart, subscribe} from './live'
import {signIn} from './signin'
import {failed, loading} from './states'
import {themeButton} from './theme'
import type {Session} from './types'
import type {App, View} from './view'
import actions from './views/actions'
import batch from './views/batch'
import config from './views/config'
import fleet from './views/fleet'
import lab from './views/lab'
import now from './views/now'
import recalls from './views/recalls'
import traffic from './views/traffic'

/** views are in the order of the navigation; the first is where one begins. */
const views: View[] = [now, recalls, traffic, batch, fleet, config, lab, actions]

const links = h('ul', {class: 'nav-links'})
const setLinks = list(links, (x: {view: View, current: boolean}) => x.view.name, ({view}) => {
  const link = h('a', {href: `#/${view.name}`}, view.title)
  return {element: h('li', null, link), update: x => attribute(link, 'aria-current', x.current ? 'page' : null)}
})
const state = h('p', {class: 'stream', role: 'status'})
const out = h('button', {type: 'button', class: 'quiet', hidden: true, onclick: () => {
  setKey(null)
  restart()
  void begin()
}}, 'Sign out')
const heading = h('h1', {tabindex: '-1'})
const about = h('p', {class: 'about'})
const body = h('div', {class: 'view'})
const main = h('main', {id: 'main', tabindex: '-1'}, h('header', {class: 'view-head'}, heading, about), body)
const said = h('p', {class: 'unseen', 'aria-live': 'polite'})
const version = h('span')

document.getElementById('start')?.remove() // what is painted while this is on its way
document.body.append(
  h('a', {class: 'skip', href: '#main', onclick: e => {
    e.preventDefault() // the address is the view's
    main.focus()
  }}, 'Skip to the content'),
  h('header', {class: 'top'},
    h('a', {class: 'brand', href: '#/now'}, h('span', {class: 'brand-gate', 'aria-hidden': 'true'}), 'Headgate'),
    h('nav', {'aria-label': 'Views'}, links),
    h('div', {class: 'top-end'}, state, themeButton(), out)),
  main,
  h('footer', null, version),
  said)

const app: Omit<App, 'session'> = {
  announce(message) {
    // The same text again is said again only if it was gone in between.
    text(said, '')
    setTimeout(() => text(said, message), 50)
  },
}

let session: Session | null = null
let end = (): void => {}
let move: ((rest: string) => void) | null = null
let shown: View | null = null

function route(): void {
  if (!session) return
  const [name, ...rest] = location.hash.replace(/^#\/?/, '').split('/')
  const there = views.filter(v => !session || (v.available?.(session) ?? true))
  const view = there.find(v => v.name === name) ?? there[0]
  if (!view) return
  setLinks(there.map(v => ({view: v, current: v === view})))
  links.querySelector('[aria-current]')?.scrollIntoView({block: 'nearest', inline: 'nearest'}) // in a narrow window
  text(heading, view.title)
  text(about, view.about)
  document.title = `${view.title} · Headgate`
  const below = rest.map(decoded).join('/')
  if (shown === view && move) {
    move(below)
    return
  }
  end()
  replace(body)
  const now = view.show(body, {...app, session}, below)
  end = typeof now === 'function' ? now : () => now.end()
  move = typeof now === 'function' ? null : rest => now.move(rest)
  if (shown && shown !== view) {
    heading.focus({preventScroll: true})
    scrollTo(0, 0)
  }
  shown = view
}

/** decoded is a part of an address, as it is where somebody typed what can't be decoded. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

/** leave ends the view that is shown. */
function leave(): void {
  end()
  end = () => {}
  move = null
  session = null
  shown = null
  setLinks([])
}

/** begin asks who we are to the listener, and shows the view or asks for a key. */
async function begin(): Promise<void> {
  leave()
  replace(body, loading())
  try {
    session = await get<Session>('api/session')
  } catch (err) {
    if (err instanceof Failure && (err.status === 401 || err.status === 403)) {
      ask(hasKey() ? err.message : '')
      return
    }
    replace(body, failed(err, () => void begin()))
    return
  }
  show(out, session.keys)
  text(version, `Headgate ${session.version}${session.replica ? ` · replica ${session.replica}` : ''}${session.operator ? ` · ${session.operator} (${session.role})` : ''}`)
  route()
}

/** ask shows where a key is put in. */
function ask(why: string): void {
  setKey(null)
  leave()
  show(out, false)
  text(heading, 'Sign in')
  text(about, 'This admin listener asks for a key.')
  document.title = 'Sign in · Headgate'
  replace(body, signIn(why, key => {
    setKey(key)
    restart()
    void begin()
  }))
}

onRefused(() => {
  if (session) ask('The key is not taken any more. It may have expired, or been removed from the configuration.')
})

subscribe('state', s => {
  attribute(state, 'data-state', s.at)
  text(state, {connecting: 'Connecting…', live: 'Live', paused: '', lost: 'Not live'}[s.at])
  attribute(state, 'title', s.at === 'lost' ? s.why : null)
})

addEventListener('hashchange', route)
void begin()
