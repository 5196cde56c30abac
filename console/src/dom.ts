// Elements are made and changed by hand: what changes four times a second is a few texts and
// widths, and a framework's difference of trees would cost more than they do.

export type Child = Node | string | number | null | undefined | false
type Attributes = Record<string, string | number | boolean | null | undefined | ((e: Event) => void)>

/** h makes an HTML element: class, text and aria attributes by name, listeners by onNAME. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes?: Attributes | null, ...children: Child[]): HTMLElementTagNameMap[K] {
  const e = document.createElement(tag)
  set(e, attributes)
  append(e, children)
  return e
}

/** svg makes an element of a drawing. */
export function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes?: Attributes | null, ...children: Child[]): SVGElementTagNameMap[K] {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag)
  set(e, attributes)
  append(e, children)
  return e
}

function set(e: Element, attributes?: Attributes | null): void {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === 'function') e.addEventListener(name.slice(2), value)
    else attribute(e, name, value)
  }
}

function append(e: Element, children: Child[]): void {
  for (const c of children) {
    if (c !== null && c !== undefined && c !== false) e.append(typeof c === 'number' ? String(c) : c)
  }
}

/** attribute sets an attribute if it is another than before; null, undefined and false remove it. */
export function attribute(e: Element, name: string, value: string | number | boolean | null | undefined): void {
  if (value === null || value === undefined || value === false) {
    if (e.hasAttribute(name)) e.removeAttribute(name)
    return
  }
  const text = value === true ? '' : String(value)
  if (e.getAttribute(name) !== text) e.setAttribute(name, text)
}

/** text sets an element's text if it is another than before, so that nothing is laid out in vain. */
export function text(e: Node, value: string): void {
  if (e.textContent !== value) e.textContent = value
}

/** style sets a property, a custom one too. It is the one way: the policy allows no style attribute. */
export function style(e: HTMLElement | SVGElement, name: string, value: string): void {
  if (e.style.getPropertyValue(name) !== value) e.style.setProperty(name, value)
}

/** show hides an element or shows it. */
export function show(e: HTMLElement, shown: boolean): void {
  if (e.hidden === shown) e.hidden = !shown
}

/** replace puts children in the place of all that an element has. */
export function replace(e: Element, ...children: Child[]): void {
  e.replaceChildren()
  append(e, children)
}

/** Row is an element of a list that is kept up to date. */
export interface Row<T> {
  element: HTMLElement
  update(item: T): void
}

/**
 * list keeps an element's children as a list of items: each has an element of its own by its
 * key, which stays while the item is there. It returns what is called with the items.
 */
export function list<T>(parent: Element, key: (item: T) => string, make: (item: T) => Row<T>): (items: readonly T[]) => void {
  const rows = new Map<string, Row<T>>()
  return items => {
    const keys = new Set(items.map(key))
    for (const [k, row] of rows) {
      if (!keys.has(k)) {
        row.element.remove()
        rows.delete(k)
      }
    }
    let at = parent.firstElementChild
    for (const item of items) {
      const k = key(item)
      let row = rows.get(k)
      if (!row) {
        row = make(item)
        rows.set(k, row)
      }
      row.update(item)
      if (row.element === at) at = at.nextElementSibling
      else parent.insertBefore(row.element, at)
    }
  }
}
