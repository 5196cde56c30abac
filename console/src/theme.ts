// The theme is the system's until somebody chooses; what was chosen is kept.
import {attribute, h, text} from './dom'

const storage = 'headgate-theme'
const themes = ['system', 'light', 'dark'] as const
type Theme = typeof themes[number]

function chosen(): Theme {
  const t = localStorage.getItem(storage)
  return themes.find(x => x === t) ?? 'system'
}

const changed = new Set<() => void>()

/** onTheme calls f when the colours change, for what is drawn by script. It returns what ends that. */
export function onTheme(f: () => void): () => void {
  changed.add(f)
  return () => changed.delete(f)
}

function apply(theme: Theme): void {
  attribute(document.documentElement, 'data-theme', theme === 'system' ? null : theme)
  for (const f of changed) f()
}

/** color is the value of a token of style.css, such as --ink, in the theme in force. */
export function color(token: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(token).trim()
}

/** themeButton goes through the themes. */
export function themeButton(): HTMLElement {
  const label = h('span')
  const button = h('button', {type: 'button', class: 'quiet', onclick: () => {
    const next = themes[(themes.indexOf(chosen()) + 1) % themes.length] ?? 'system'
    localStorage.setItem(storage, next)
    show(next)
  }}, label)
  function show(theme: Theme): void {
    apply(theme)
    text(label, `Theme: ${theme}`)
  }
  show(chosen())
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => apply(chosen()))
  return button
}
