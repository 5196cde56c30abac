import type {Session} from './types'

/** App is what a view is given of the page around it. */
export interface App {
  session: Session
  /** announce has screen readers say something; the view is not moved for it. */
  announce(message: string): void
}

/**
 * View is one page of the console: views/NAME.ts exports one as its default, main.ts lists
 * it. Its address is #/NAME.
 */
export interface View {
  name: string
  /** title is its word in the navigation and its heading. */
  title: string
  /** about is one sentence below the heading: what the view tells. */
  about: string
  /** available tells whether this process has anything to show there; without it, it has. */
  available?(session: Session): boolean
  /**
   * show fills an empty element and keeps it up to date until what it returns is called, or
   * its end. rest is what comes after #/NAME/ in the address: when that changes move is
   * called, or where there is none the view is shown anew.
   */
  show(root: HTMLElement, app: App, rest: string): (() => void) | Shown
}

/** Shown is a view that is there. */
export interface Shown {
  end(): void
  move(rest: string): void
}
