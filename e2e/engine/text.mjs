// From output tokens to output text.

// TextStream turns a growing list of tokens into pieces of text. It holds back
// what is not certain yet: a character whose bytes are not all there, and the
// beginning of what may become a stop string.
export class TextStream {
  #detokenize
  #stops
  #before // the last tokens whose text is out
  #pending = [] // tokens whose bytes end inside a character
  #held = '' // text that may turn out to begin a stop string
  stopped = false

  // promptIds are what the output follows: a first word keeps the space before it.
  constructor(detokenize, promptIds, stops) {
    this.#detokenize = detokenize
    this.#before = promptIds.slice(-3)
    this.#stops = stops
  }

  // push takes one token and returns the text that has become certain. It sets
  // stopped once a stop string is complete; the string itself never comes out.
  push(token) {
    this.#pending.push(token)
    const text = this.#detokenize(this.#pending, this.#before)
    if (text.endsWith('\ufffd') && this.#pending.length < 4) return ''
    this.#advance()
    return this.#cut(this.#held + text)
  }

  // end returns what was held back, when no more tokens come.
  end() {
    if (this.stopped) return ''
    const rest = this.#held + this.#detokenize(this.#pending, this.#before)
    this.#held = ''
    this.#advance()
    return rest
  }

  #advance() {
    this.#before = [...this.#before, ...this.#pending].slice(-3)
    this.#pending = []
  }

  #cut(text) {
    const found = this.#stops.map(s => text.indexOf(s)).filter(i => i >= 0)
    if (found.length > 0) {
      this.stopped = true
      return text.slice(0, Math.min(...found))
    }
    const keep = Math.max(0, ...this.#stops.map(s => overlap(text, s)))
    this.#held = text.slice(text.length - keep)
    return text.slice(0, text.length - keep)
  }
}

// overlap returns how many characters at text's end are a beginning of stop.
function overlap(text, stop) {
  for (let n = Math.min(text.length, stop.length - 1); n > 0; n--) {
    if (text.endsWith(stop.slice(0, n))) return n
  }
  return 0
}
