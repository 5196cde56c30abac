// A browser in which a console is looked at, and what is wrong with what it showed.
import {readFileSync} from 'node:fs'
import {createRequire} from 'node:module'
import {chromium} from 'playwright-core'

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

/** launch starts Chromium. In a container's root there is no sandbox to be had. */
export function launch(executablePath) {
  return chromium.launch({executablePath, args: process.getuid() === 0 ? ['--no-sandbox'] : []})
}

/**
 * open opens a page that keeps what is wrong: requests that leave the address, messages of
 * errors, and scripts that throw.
 */
export async function open(browser, base, options = {}) {
  const context = await browser.newContext({viewport: {width: 1280, height: 800}, bypassCSP: false, ...options})
  const page = await context.newPage()
  const wrong = []
  page.on('request', r => {
    if (!r.url().startsWith(base + '/')) wrong.push(`a request leaves: ${r.url()}`)
  })
  page.on('console', m => {
    // A status that is asked for, such as that of a wrong key, is a message too.
    if (m.type() === 'error' || m.type() === 'warning') wrong.push(`the browser's console says: ${m.text()}`)
  })
  page.on('pageerror', err => wrong.push(`a script throws: ${err.stack ?? err}`))
  return {page, wrong, close: () => context.close()}
}

/** faults are what axe finds that is serious or worse. */
export async function faults(page) {
  // The page's own policy does not let a script be added; the debugger may evaluate one.
  await page.evaluate(axe)
  const {violations} = await page.evaluate(() => globalThis.axe.run(document, {resultTypes: ['violations']}))
  return violations.filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map(n => `${n.target.join(' ')} (${n.failureSummary.replaceAll('\n', ' ')})`).join('; ')}`)
}

/** sideways is by how much a page is wider than its window, in pixels. */
export function sideways(page) {
  return page.evaluate(() => document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth)
}
