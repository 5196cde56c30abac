// Uses the views Batch, Fleet, Config, Lab and Actions as an operator does, and prints what
// is wrong: a line of JSON for each check, {"check", "wrong": [...]}.
//
//	node operate.mjs CHROMIUM CONSOLE OPERATE-KEY READ-KEY PICTURES
import {mkdirSync, readFileSync} from 'node:fs'
import {join} from 'node:path'
import {faults, launch, open, sideways} from './browser.mjs'

const [executable, base, operateKey, readKey, pictures] = process.argv.slice(2)
const patience = 20_000

/** shown waits until a view shows what it is for. */
const shown = {
  batch: page => page.locator('table .badge').first().waitFor({timeout: patience}),
  fleet: page => page.getByText('There is one replica only').waitFor({timeout: patience}),
  config: page => page.getByLabel('Find').waitFor({timeout: patience}),
  lab: page => page.getByLabel('Changed policy').waitFor({timeout: patience}),
  actions: page => page.getByRole('heading', {name: 'Pool main'}).waitFor({timeout: patience}),
}

async function signedIn(browser, key, options = {}) {
  const at = await open(browser, base, options)
  await at.page.addInitScript(k => sessionStorage.setItem('headgate-admin-key', k), key)
  return at
}

async function go(page, view) {
  await page.goto(`${base}/console/#/${view}`)
  await shown[view](page)
}

async function until(page, what, f, arg) {
  try {
    await page.waitForFunction(f, arg, {timeout: patience, polling: 50})
    return []
  } catch {
    return [`not within ${patience} ms: ${what}; there is: ${(await page.locator('main').innerText()).slice(0, 1500)}`]
  }
}

/** tabTo presses Tab until what has the focus is called name. */
async function tabTo(page, wrong, name) {
  for (let i = 0; i < 80; i++) {
    await page.keyboard.press('Tab')
    const at = await page.evaluate(() => {
      const e = document.activeElement
      return {text: e.getAttribute('aria-label') ?? e.innerText ?? '', ringed: e === document.body || getComputedStyle(e).outlineStyle !== 'none'}
    })
    if (!at.ringed) wrong.push(`the focus is not seen at ${at.text}`)
    if (at.text === name) return
  }
  wrong.push(`${name} can't be reached by Tab`)
}

const says = text => document.querySelector('main').innerText.includes(text)

const checks = {
  async batch(browser) {
    const {page, wrong, close} = await signedIn(browser, operateKey)
    await go(page, 'batch')
    wrong.push(...await until(page, 'how far the batch is', () => /\d of 40,/.test(document.querySelector('main').innerText)))
    wrong.push(...await until(page, 'an item more', was => document.querySelector('meter').value > was, await page.evaluate(() => document.querySelector('meter').value)))
    wrong.push(...await until(page, 'its tenant below', () => [...document.querySelectorAll('table')].at(-1).innerText.includes('anonymous')))
    const cancel = await page.locator('button.danger').first().getAttribute('aria-label')
    await tabTo(page, wrong, cancel)
    await page.keyboard.press('Enter')
    const asked = await page.getByRole('dialog').innerText()
    for (const word of ['tenant anonymous', 'will not be run', 'can’t be taken back']) if (!asked.includes(word)) wrong.push(`the question does not say ${word}: ${asked}`)
    wrong.push(...(await faults(page)).map(f => `the question: ${f}`))
    await page.keyboard.press('Escape')
    wrong.push(...await until(page, 'Escape ends the question, and the focus comes back', name => !document.querySelector('dialog') && document.activeElement.getAttribute('aria-label') === name, cancel))
    await page.keyboard.press('Enter')
    await page.getByLabel('Why').fill('a test')
    await page.keyboard.press('Enter')
    wrong.push(...await until(page, 'the batch is cancelled', () => /cancell(ing|ed)/.test(document.querySelector('table .badge').innerText)))
    await close()
    return wrong
  },

  /** What a fleet of two said, in the place of a process that has its pools to itself. */
  async fleet(browser) {
    const {page, wrong, close} = await signedIn(browser, readKey)
    await page.route('**/api/session', async r => {
      const response = await r.fetch()
      const session = await response.json()
      await r.fulfill({response, json: {...session, replica: 'a', parts: [...session.parts, 'fleet']}})
    })
    for (const [path, file] of [['grants', 'grants.json'], ['events?n=50', 'events.json']]) {
      await page.route(`${base}/api/${path}`, r => r.fulfill({contentType: 'application/json', body: readFileSync(new URL(`testdata/${file}`, import.meta.url))}))
    }
    await page.goto(`${base}/console/#/fleet`)
    await page.getByRole('heading', {name: 'Pool demo, revision 12'}).waitFor({timeout: patience})
    const all = await page.locator('main').innerText()
    for (const word of ['a (this one)', 'leader', 'its grant', '6 slots, 5,120 KV', '3 slots, 2,187 KV', 'committed', 'joined']) if (!all.includes(word)) wrong.push(`the fleet does not say ${word}: ${all}`)
    for (const word of ['NaN', 'undefined', 'null']) if (all.includes(word)) wrong.push(`the fleet says ${word}`)
    wrong.push(...(await faults(page)).map(f => `fleet: ${f}`))
    await page.screenshot({path: join(pictures, 'fleet-of-two.png'), fullPage: true})
    await close()
    return wrong
  },

  async config(browser) {
    const {page, wrong, close} = await signedIn(browser, operateKey)
    await go(page, 'config')
    if (!await page.evaluate(says, 'as it is in force')) wrong.push('the file is not said to be as it is in force')
    await page.getByLabel('Find').fill('listen')
    wrong.push(...await until(page, 'admin.listen comes from the command line', () => [...document.querySelectorAll('tr')].some(r => r.innerText.startsWith('admin.listen') && r.innerText.includes('command line'))))
    await page.getByLabel('Find').fill('admin.keys[0]')
    wrong.push(...await until(page, 'a hash is redacted', () => [...document.querySelectorAll('tr')].some(r => r.innerText.includes('.hash') && r.innerText.includes('[redacted]') && /line \d/.test(r.innerText))))
    if ((await page.content()).includes('sha256:')) wrong.push('a hash is on the page')
    await page.getByRole('textbox', {name: 'A configuration'}).fill('listen: nowhere\npols: []\n')
    await page.getByRole('button', {name: 'Check'}).click()
    wrong.push(...await until(page, 'what is wrong, with its line', () => /refused: \d+ problem/.test(document.querySelector('main').innerText) && [...document.querySelectorAll('tr')].some(r => r.innerText.startsWith('2:1') && r.innerText.includes('pools'))))
    await page.getByRole('textbox', {name: 'A configuration'}).fill('anonymous: {classes: [interactive]}\npools:\n  - name: other\n    engines: [{name: e, kind: vllm, url: "http://127.0.0.1:9", slots: 4}]\n    classes: [{name: interactive, floor: {slots: 1}}]\n')
    await page.getByRole('button', {name: 'Check'}).click()
    wrong.push(...await until(page, 'what it would change', () => [...document.querySelectorAll('tr')].some(r => r.innerText.startsWith('pools') && r.innerText.includes('other'))))
    await close()
    return wrong
  },

  async lab(browser) {
    const {page, wrong, close} = await signedIn(browser, operateKey)
    await go(page, 'lab')
    const policy = page.getByLabel('Changed policy')
    const text = await policy.inputValue()
    if (!text.includes('reclaim: reclaim')) wrong.push(`the policy in force is not what one begins with: ${text}`)
    await policy.fill(text.replace('reclaim: reclaim', 'reclaim: never'))
    await page.getByRole('button', {name: 'Simulate'}).click()
    wrong.push(...await until(page, 'what is wrong with a policy', () => /reclaim: value never: allowed attrition/.test(document.querySelector('main').innerText)))
    // The browser itself tells of each answer with a status of an error.
    const told = wrong.findIndex(w => w.includes('status of 400'))
    if (told >= 0) wrong.splice(told, 1)
    await policy.fill(text.replace('reclaim: reclaim', 'reclaim: attrition'))
    await page.getByLabel('Seeds').fill('1')
    await page.getByRole('button', {name: 'Simulate'}).click()
    wrong.push(...await until(page, 'both policies beside each other', () => [...document.querySelectorAll('tr')].some(r => r.innerText.startsWith('Interactive on time') && (r.innerText.match(/%/g) ?? []).length === 2) && [...document.querySelectorAll('tr')].some(r => r.innerText.startsWith('Batch done'))))
    await page.screenshot({path: join(pictures, 'lab-what-if.png'), fullPage: true})
    await page.getByRole('link', {name: 'past/report.html'}).click()
    const frame = page.frameLocator('iframe')
    await frame.getByText('Lending pays').waitFor({timeout: patience})
    if (await frame.locator('h1').evaluate(e => getComputedStyle(e).color) !== 'rgb(1, 2, 3)') wrong.push('a report has not its own style')
    if (await frame.locator('script, link, meta[http-equiv], [onclick]').count() > 0) wrong.push('a report has something that runs or loads')
    if (await page.evaluate(() => document.title) === 'owned') wrong.push('a report runs')
    await page.getByRole('link', {name: 'All reports'}).click()
    await page.getByRole('link', {name: 'past/report.json'}).click()
    await page.getByText('"verdict": "pass"').waitFor({timeout: patience})
    await close()
    return wrong
  },

  /** With the keyboard alone: each action is asked about, done, and shown. */
  async actions(browser) {
    const {page, wrong, close} = await signedIn(browser, operateKey)
    await go(page, 'actions')
    const state = async () => (await (await page.request.get(`${base}/api/switches`, {headers: {Authorization: `Bearer ${operateKey}`}})).json())[0].switches
    const act = async (button, words, then) => {
      await page.evaluate(() => document.querySelector('h1').focus())
      await tabTo(page, wrong, button)
      await page.keyboard.press('Enter')
      const asked = await page.getByRole('dialog').innerText()
      for (const w of words) if (!asked.includes(w)) wrong.push(`${button}: the question does not say ${w}: ${asked}`)
      if (await page.evaluate(() => document.activeElement.innerText) !== 'Cancel') wrong.push(`${button}: what begins with the focus is not Cancel`)
      await page.keyboard.press('Shift+Tab') // to what does it
      await page.keyboard.press('Enter')
      wrong.push(...await until(page, `after ${button}: ${then}`, says, then))
    }
    await act('Pause lending', ['pool main', 'keeps its whole floor'], 'paused')
    let s = await state()
    if (!s.lending_paused.on || s.lending_paused.recall || s.lending_paused.actor !== 'ops') wrong.push(`after a pause: ${JSON.stringify(s)}`)
    await act('Recall now', ['out at this moment', 'stays so until it is resumed'], 'what is lent is recalled')
    if (!(s = await state()).lending_paused.recall) wrong.push(`after a recall: ${JSON.stringify(s)}`)
    await act('Resume lending', ['lend what they do not need'], 'as configured')
    await act('Drain', ['clients get 503', 'What runs goes on'], 'refused: draining')
    await page.screenshot({path: join(pictures, 'actions-draining.png'), fullPage: true})
    if (!(s = await state()).drain.on) wrong.push(`after a drain: ${JSON.stringify(s)}`)
    await act('End the drain', ['taken again'], 'taken')
    s = await state()
    if (s.drain.on || s.lending_paused.on) wrong.push(`at the end: ${JSON.stringify(s)}`)
    await close()
    return wrong
  },

  /** Who may only read sees all of it and can do nothing; the listener says the same. */
  async reader(browser) {
    const {page, wrong, close} = await signedIn(browser, readKey)
    await go(page, 'actions')
    if (await page.locator('main button').count() > 0) wrong.push('a reader has buttons')
    if (!await page.evaluate(says, 'This key is for reading')) wrong.push('a reader is not told why')
    await go(page, 'batch')
    if (await page.locator('button.danger').count() > 0) wrong.push('a reader can cancel')
    await go(page, 'config')
    if (await page.getByRole('button', {name: 'Check'}).isEnabled()) wrong.push('a reader can check')
    await go(page, 'lab')
    if (await page.getByRole('button', {name: 'Simulate'}).isEnabled()) wrong.push('a reader can simulate')
    for (const path of ['pools/main/drain', 'config/check', 'lab/whatif', 'batches/batch_x/cancel']) {
      const res = await page.request.post(`${base}/api/${path}`, {headers: {Authorization: `Bearer ${readKey}`}, data: {on: true}})
      if (res.status() !== 403) wrong.push(`a reader's ${path} has status ${res.status()}`)
    }
    await close()
    return wrong
  },

  /** axe finds nothing serious in either theme, no page is wider than its window, and there are pictures. */
  async accessible(browser) {
    const wrong = []
    for (const colorScheme of ['light', 'dark']) {
      const width = 360 // what is narrowest has most faults, and a picture costs a second of a processor
      const {page, wrong: own, close} = await signedIn(browser, operateKey, {colorScheme, reducedMotion: 'reduce', viewport: {width, height: 740}})
      for (const view of Object.keys(shown)) {
        await go(page, view)
        wrong.push(...(await faults(page)).map(f => `${view}, ${colorScheme}: ${f}`))
        const over = await sideways(page)
        if (over > 0) wrong.push(`${view} is ${over} px wider than a window of ${width}`)
        await page.screenshot({path: join(pictures, `${view}-${width}-${colorScheme}.png`), fullPage: true})
      }
      wrong.push(...own)
      await close()
    }
    return wrong
  },
}

mkdirSync(pictures, {recursive: true})
const browser = await launch(executable)
try {
  for (const [check, look] of Object.entries(checks)) {
    const wrong = await look(browser).catch(err => [`${err.stack ?? err}`])
    console.log(JSON.stringify({check, wrong}))
  }
} finally {
  await browser.close()
}
