import {loading} from '../states'
import type {View} from '../view'

const view: View = {
  name: 'now',
  title: 'Now',
  about: 'What each pool holds at this moment, and for whom.',
  available: s => s.parts.includes('pools'),
  show(root) {
    root.append(loading())
    return () => {}
  },
}

export default view
