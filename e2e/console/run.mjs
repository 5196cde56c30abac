// Looks at a console as its users do, and prints what is wrong: a line of JSON for each check,
// {"check", "wrong": [...], "figures": {...}}. Checks are run at once.
//
//	node run.mjs CHROMIUM CHECK[,CHECK...] LISTENER [PICTURES | KEY]
import {mkdirSync} from 'node:fs'
import {join} from 'node:path'
import {faults, launch, open, sideways} from './browser.mjs'

const [executable, which, base, extra] = process.argv.slice(2)
const patience = 20_000
const views = ['now', 'recalls', 'traffic']

/** ready waits until a view shows what it is for. */
const ready = {
  now: page => page.locator('.pool .basin').first().waitFor({timeout: patience}),
  recalls: page => page.locator('.recall-list tbody tr').first().waitFor({timeout: patience}),
  traffic: page => page.locator('.chart canvas').first().waitFor({timeout: patience}),
}

async function go(page, view) {
  await page.goto(`${base}/console/#/${view}`)
  await ready[view](page)
}

/** until waits for a condition, or says what it waited for. */
async function until(page, what, f, arg) {
  try {
    await page.waitForFunction(f, arg, {timeout: patience, polling: 50})
    return []
  } catch {
    return [`not within ${patience} ms: ${what}`]
  }
}

const checks = {
  /** Every view shows live data: what it says changes while nobody touches it. */
  async live(browser) {
    const {page, wrong, close} = await open(browser, base)
    await go(page, 'now')
    const words = await page.locator('.pool').first().innerText()
    for (const word of ['interactive', 'batch', 'lending', 'simulated', 'ready', 'floor', 'unlent']) {
      if (!words.includes(word)) wrong.push(`now does not say ${word}: ${words}`)
    }
    wrong.push(...await until(page, 'a loan is seen', () => document.querySelector('.guest[data-kind=loan]')))
    wrong.push(...await until(page, 'the head of a queue says what it waits for', () => [...document.querySelectorAll('.queue-head')].some(e => e.innerText.includes('for '))))
    const picture = await page.locator('.basin').nth(1).getAttribute('aria-label')
    wrong.push(...await until(page, `the KV vessel is described otherwise than: ${picture}`, was => document.querySelectorAll('.basin')[1].getAttribute('aria-label') !== was, picture))
    await page.goto(`${base}/console/#/recalls/%`) // a page's error is found wrong
    await go(page, 'recalls')
    const newest = await page.locator('.recall-list tbody tr th').first().innerText()
    wrong.push(...await until(page, 'a newer recall than the first', was => document.querySelector('.recall-list tbody tr th').innerText !== was, newest))
    wrong.push(...await until(page, 'a timeline of the three events and of loans', () => {
      const names = [...document.querySelectorAll('.moment-name')].map(e => e.innerText)
      return ['granted', 'settled', 'scheduled', 'loan 1'].every(n => names.includes(n))
    }))
    await go(page, 'traffic')
    wrong.push(...await until(page, 'time to first token in numbers', () => /\d (ms|s)/.test(document.querySelector('.wide table tbody tr')?.innerText ?? '')))
    const at = await page.evaluate(() => document.querySelector('.wide .hint').innerText)
    wrong.push(...await until(page, `a later point than: ${at}`, was => document.querySelector('.wide .hint').innerText !== was, at))
    await close()
    return {wrong}
  },

  /** A recall is on the page within a second of its opening, by the clock that both have. */
  async recall(browser) {
    const {page, wrong, close} = await open(browser, base)
    await go(page, 'recalls')
    const seen = await page.evaluate(async patience => {
      const fresh = []
      const known = new Set([...document.querySelectorAll('.recall-list tbody a')].map(a => a.hash))
      await new Promise(done => {
        const watch = new MutationObserver(() => {
          for (const a of document.querySelectorAll('.recall-list tbody a')) {
            if (!known.has(a.hash)) {
              known.add(a.hash)
              fresh.push({seq: Number(a.hash.split('/').at(-1)), at: Date.now()})
            }
          }
          if (fresh.length >= 2) done()
        })
        watch.observe(document.querySelector('.recall-list tbody'), {childList: true})
        setTimeout(done, 3 * patience)
      })
      const all = await (await fetch('../api/recalls')).json()
      return fresh.map(f => f.at - Date.parse(all.find(r => r.seq === f.seq).opened))
    }, patience)
    if (seen.length < 2) wrong.push(`${seen.length} recalls were seen, want 2`)
    else if (Math.min(...seen) > 1000) wrong.push(`recalls are seen ${seen} ms after they are opened`)
    await close()
    return {wrong, figures: {recall_seen_ms: seen}}
  },

  /** All of it can be reached and used with the keyboard. */
  async keyboard(browser) {
    const {page, wrong, close} = await open(browser, base)
    await go(page, 'now')
    const focused = () => page.evaluate(() => {
      const e = document.activeElement
      const box = e.getBoundingClientRect()
      return {text: e.innerText ?? '', id: e.id, tag: e.tagName, hash: e.hash ?? '', ringed: getComputedStyle(e).outlineStyle !== 'none', shown: box.top >= 0 && box.width > 0}
    })
    const tabTo = async (what, is) => {
      for (let i = 0; i < 60; i++) {
        await page.keyboard.press('Tab')
        const at = await focused()
        if (!at.ringed && at.tag !== 'BODY') wrong.push(`the focus is not seen at ${JSON.stringify(at)}`)
        if (is(at)) return at
      }
      wrong.push(`${what} can't be reached by Tab`)
    }
    await page.keyboard.press('Tab')
    const skip = await focused()
    if (!skip.text.startsWith('Skip') || !skip.shown) wrong.push(`first is ${JSON.stringify(skip)}, want the skip link, seen`)
    await page.keyboard.press('Enter')
    if ((await focused()).id !== 'main') wrong.push('the skip link does not lead to the content')
    await page.reload()
    await ready.now(page)
    await tabTo('Recalls', at => at.text === 'Recalls')
    await page.keyboard.press('Enter')
    await ready.recalls(page)
    if ((await focused()).tag !== 'H1') wrong.push('a new view does not have the focus')
    // The newest may become another while the focus is on its way.
    const third = await tabTo('a recall', at => at.hash.startsWith('#/recalls/'))
    if (third) {
      await page.keyboard.press('Enter')
      const seq = third.hash.split('/').at(-1)
      wrong.push(...await until(page, `recall ${seq} is shown`, s => document.querySelector('#recall-one').innerText === `Recall ${s}`, seq))
      if ((await focused()).hash !== third.hash) wrong.push('the focus is lost where a recall is chosen')
    }
    await page.reload()
    await ready.recalls(page)
    const before = await page.evaluate(() => getComputedStyle(document.body).backgroundColor)
    await tabTo('the theme', at => at.text.startsWith('Theme'))
    for (let i = 0; i < 2; i++) await page.keyboard.press('Space')
    wrong.push(...await until(page, 'the dark theme', was => getComputedStyle(document.body).backgroundColor !== was, before))
    await page.goto(`${base}/console/#/traffic`)
    await ready.traffic(page)
    await tabTo('a chart’s table', at => at.tag === 'SUMMARY')
    await page.keyboard.press('Enter')
    wrong.push(...await until(page, 'the chart as a table', () => document.querySelector('details[open] tbody tr')))
    await close()
    return {wrong}
  },

  /**
   * axe finds nothing serious in either theme, and no page is wider than its window. Pictures
   * of every view are left, to be looked at.
   */
  async looks(browser) {
    const wrong = []
    mkdirSync(extra, {recursive: true})
    await Promise.all(['light', 'dark'].map(async colorScheme => {
      for (const [width, height] of [[360, 740], [1280, 800], [3840, 2160]]) {
        const {page, wrong: own, close} = await open(browser, base, {colorScheme, reducedMotion: 'reduce', viewport: {width, height}})
        for (const view of views) {
          await go(page, view)
          await page.screenshot({path: join(extra, `${view}-${width}-${colorScheme}.png`), fullPage: true})
          const over = await sideways(page)
          if (over > 0) wrong.push(`${view} is ${over} px wider than a window of ${width}`)
          if (width > 360) continue
          if (view === 'traffic') await page.locator('details summary').first().click()
          wrong.push(...(await faults(page)).map(f => `${view}, ${colorScheme}: ${f}`))
        }
        wrong.push(...own)
        await close()
      }
    }))
    return {wrong}
  },

  /** How soon the page is painted, five times. */
  async paint(browser) {
    const all = []
    for (let i = 0; i < 5; i++) {
      const {page, close} = await open(browser, base)
      await page.goto(`${base}/console/`)
      await ready.now(page)
      all.push(await page.evaluate(() => Math.round(performance.getEntriesByName('first-contentful-paint')[0].startTime)))
      await close()
    }
    return {wrong: [], figures: {first_paint_ms: all}}
  },

  /** Where there are keys one is asked for, and kept until the tab is closed. */
  async key(browser) {
    const {page, wrong, close} = await open(browser, base)
    await page.goto(`${base}/console/`)
    const input = page.getByLabel('Admin key')
    await input.waitFor({timeout: patience})
    wrong.push(...(await faults(page)).map(f => `sign in: ${f}`))
    await input.fill('hg_0000000000000000000000000')
    await page.keyboard.press('Enter')
    wrong.push(...await until(page, 'a wrong key is named as one', () => document.querySelector('[role=alert]')?.innerText.includes('not known')))
    await page.getByLabel('Admin key').fill(extra)
    await page.keyboard.press('Enter')
    wrong.push(...await until(page, 'why the pool is not ready', () => document.querySelector('.pool')?.innerText.includes('not ready')))
    await page.reload()
    wrong.push(...await until(page, 'the key is kept', () => document.querySelector('.pool')))
    await page.getByRole('button', {name: 'Sign out'}).click()
    await page.getByLabel('Admin key').waitFor({timeout: patience})
    if (await page.evaluate(() => sessionStorage.length) > 0) wrong.push('the key is kept after signing out')
    await close()
    // The browser itself tells of each answer with a status of an error.
    return {wrong: wrong.filter(w => !w.includes('status of 401'))}
  },

  /** What it costs to redraw: the share of a core that the page's own thread works. */
  async cost(browser) {
    const {page, wrong, close} = await open(browser, base)
    await go(page, 'now')
    const session = await page.context().newCDPSession(page)
    await session.send('Performance.enable')
    const read = async () => Object.fromEntries((await session.send('Performance.getMetrics')).metrics.map(m => [m.name, m.value]))
    const seconds = 10
    const before = await read()
    await new Promise(done => setTimeout(done, seconds * 1000))
    const after = await read()
    const figures = {}
    for (const name of ['TaskDuration', 'ScriptDuration', 'LayoutDuration', 'RecalcStyleDuration']) {
      figures[`${name}_percent`] = Math.round((after[name] - before[name]) / seconds * 1e4) / 100
    }
    await close()
    return {wrong, figures}
  },
}

const browser = await launch(executable)
try {
  // Most of the time they wait for something to happen.
  await Promise.all(which.split(',').map(async check => {
    const {wrong, figures = {}} = await checks[check](browser)
    console.log(JSON.stringify({check, wrong, figures}))
  }))
} finally {
  await browser.close()
}
