import {loading} from '../states'
import type {View} from '../view'

const view: View = {
  name: 'recalls',
  title: 'Recalls',
  about: 'What became of each recall: granted, settled, scheduled.',
  available: s => s.parts.includes('pools'),
  show(root) {
    root.append(loading())
    return () => {}
  },
}

export default view
