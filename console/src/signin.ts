import {h} from './dom'

/** signIn asks for a key of admin.keys. why is what was wrong with the last one. */
export function signIn(why: string, done: (key: string) => void): HTMLElement {
  const input = h('input', {id: 'key', type: 'password', autocomplete: 'off', spellcheck: 'false', required: true, 'aria-describedby': 'key-hint'})
  const form = h('form', {class: 'card sign-in', onsubmit: e => {
    e.preventDefault()
    const key = input.value.trim()
    if (key) done(key)
  }},
  why ? h('p', {role: 'alert', class: 'wrong'}, why) : null,
  h('label', {for: 'key'}, 'Admin key'),
  input,
  h('p', {id: 'key-hint', class: 'hint'}, 'A key of admin.keys, hg_ and what follows. It is kept until this tab is closed, and sent to this listener alone.'),
  h('button', {type: 'submit'}, 'Sign in'))
  queueMicrotask(() => input.focus())
  return form
}
