import {loading} from '../states'
import type {View} from '../view'

const view: View = {
  name: 'traffic',
  title: 'Traffic',
  about: 'What requests met over the last minutes.',
  available: s => s.parts.includes('pools'),
  show(root) {
    root.append(loading())
    return () => {}
  },
}

export default view
