// The only file that knows node-llama-cpp. It turns it into what a scheduler
// needs: sequences that can be advanced by tokens, and a tokenizer.

import {getLlama, LlamaLogLevel, TokenBias} from 'node-llama-cpp'

const never = -1e9 // the logit bias of what must not be sampled

export async function openModel(path, {slots, ctx, batch, threads}) {
  const llama = await getLlama({
    gpu: false,
    build: 'never',
    skipDownload: true,
    progressLogs: false,
    maxThreads: threads,
    logLevel: LlamaLogLevel.warn,
    logger: (level, message) => process.stderr.write(`${level}: ${message.trimEnd()}\n`),
  })
  const model = await llama.loadModel({modelPath: path, defaultContextFlashAttention: false})
  const context = await model.createContext({sequences: slots, contextSize: ctx, batchSize: batch, threads, failedCreationRemedy: false})
  const anything = new TokenBias(model.tokenizer)
  const noEnd = new TokenBias(model.tokenizer)
  // set() ignores tokens that end the text, so the entry is made beneath it.
  for (const t of [model.tokens.eos, model.tokens.eot]) {
    if (t != null) noEnd._biases.set(t, never)
  }

  return {
    name: model.fileInfo.metadata.general?.name ?? 'random-llama',
    vocabulary: model.fileInfo.metadata.tokenizer.ggml.tokens.length,
    sequences: Array.from({length: slots}, () => new Sequence(context.getSequence(), {anything, noEnd})),
    isEnd: t => model.isEogToken(t),
    // tokenize returns ids, with the begin-of-text token that every prompt starts with.
    tokenize(text, begin = true) {
      const ids = model.tokenize(text)
      return begin && model.tokens.bos != null ? [model.tokens.bos, ...ids] : ids
    },
    // detokenize returns text; before are the ids in front of it, which decide about a leading space.
    detokenize: (ids, before = []) => model.detokenize(ids, false, before),
  }
}

// Sequence is one slot's context in the shared batch. It keeps the tokens it has
// seen, which makes it a prefix cache of one entry.
class Sequence {
  #seq
  #bias

  constructor(seq, bias) {
    this.#seq = seq
    this.#bias = bias
  }

  // common returns how many leading tokens of ids this sequence holds.
  common(ids) {
    return Math.min(this.#seq.compareContextTokens(ids).firstDifferentIndex, ids.length)
  }

  // held returns how many tokens the sequence holds.
  get held() {
    return this.#seq.nextTokenIndex
  }

  // truncate forgets all but the first n tokens.
  async truncate(n) {
    if (n < this.held) await this.#seq.eraseContextTokenRanges([{start: n, end: this.held}])
  }

  // feed evaluates ids without sampling.
  async feed(ids) {
    await this.#seq.evaluateWithoutGeneratingNewTokens(ids)
  }

  // generate evaluates ids and then yields one sampled token after the other, the
  // end-of-text token included. mayEnd is asked before each whether that one is allowed.
  generate(ids, {temperature, topK, topP, minP, seed}, mayEnd) {
    return this.#seq.evaluate(ids, {
      temperature, topK, topP, minP, seed,
      yieldEogToken: true,
      tokenBias: () => mayEnd() ? this.#bias.anything : this.#bias.noEnd,
    })
  }
}
