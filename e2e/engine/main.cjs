// Starts the engine with a single native worker thread.
//
// node-llama-cpp samples each sequence of a batch in a worker of its own, and
// llama.cpp puts a batch's logits into their final order when the first of them
// is read: two workers that read at once can get each other's row. It happens
// when requests with prompts of different lengths meet in a batch, and shows as
// two answers that swap one token each. One worker is one reader at a time; the
// evaluation itself has threads of its own (--threads).
//
// The number is read when the first worker starts, so it is set before anything
// else is loaded, which an ES module cannot do.
process.env.UV_THREADPOOL_SIZE = '1'
import('./engine.mjs')
