// Package simengine models an inference engine: the scheduler of vLLM V1, or
// that of llama-server, with a measured step time. It is what `headgate engine` serves over HTTP in real
// time (package vllmapi) and what the simulator drives in virtual time; there
// is one model and it does not know which of the two it is in.
//
// # The idea
//
// An engine works in steps. A step takes at most MaxBatchedTokens tokens from
// the requests in its batch: one from each request that is generating, as many
// as fit from each that is still being prefilled. How long a step takes depends
// only on what is in it (Model). So everything an outside observer can see of
// an engine, queueing, head-of-line blocking, stalls under a long prefill,
// preemption when the KV pool runs out, follows from two things: who is put in
// the next step (schedule.go) and how long that step is (model.go).
//
// # The scheduler of vLLM
//
// The KV pool is NumBlocks-1 blocks of BlockSize tokens. Each step:
//
//  1. Running requests first, in the order of their admission. One that can't
//     get the blocks for its next tokens preempts: under FCFS the last admitted
//     request, under Priority the one with the largest (priority, arrival),
//     possibly itself. A victim loses its blocks and its computed tokens, keeps
//     its output and goes back to the queue: it will be computed again.
//  2. Only if nothing was preempted, waiting requests: FCFS in order of arrival
//     with preempted ones in front, Priority by (priority, arrival). The head
//     enters if its whole prompt fits the free blocks at this moment
//     (WholePromptGate) and its first chunk does. If it doesn't, nothing behind
//     it is tried. A waiting request never preempts a running one.
//
// The gate is a check and no reservation: later chunks and all output compete
// for what is free then. Watermark, chunk limits and prefix caching are as in
// vLLM; speculative decoding, LoRA, grammars and KV connectors are left out.
//
// # The scheduler of llama-server
//
// There are MaxNumSeqs slots; the request that waits longest takes the slot that
// has been free longest, whatever the KV: nothing is reserved or looked at. A step
// has one token of every slot that is generating and then, in the order of slots,
// as much of the prompts as MaxBatchedTokens leaves. The KV is cells of one token.
// With the context unified, slots can want more cells than there are, and then
// "Context size has been exceeded." ends every request that runs, however small,
// and empties all slots. With a context for each slot that can't happen. There are
// no priorities, no preemption and no context shift: at the end of its slot's
// context a sequence ends by its length.
//
// Simpler than the real one: that tries ever smaller batches first, so that what
// fits of the last step is still computed, and some slots tell one token more
// before all fail; its slots keep the KV of what they ran last for a prompt that
// begins alike, and lose it to whoever needs it.
//
// # Output lag
//
// The engine schedules step k+1 while step k runs, so it learns the tokens of
// step k at the end of step k+1: only then are they visible and only then do
// requests that ended give back their slot and blocks. Where there is no step
// k+1 to run, the tokens of step k are visible at its end. A request that ends
// by its length isn't put in the step after its last one; one that ends by its
// own decision is, for nothing, as on the real engine. OutputLag turns this off.
//
// # Driving it
//
// An Engine has no goroutine, clock or randomness. Submit and Abort say what
// arrives, Next says when something will happen, Advance lets it happen and
// appends what can be seen from outside. The same calls give the same events.
// Arrivals and aborts act at the next boundary between steps.
//
// # Tokens
//
// The text is nonsense, but a checkable one: every generated token is a
// function of all token ids before it, prompt and output alike. A request that
// is continued elsewhere from its first k tokens goes on with token k+1 of the
// undisturbed run, and with anything else if a token was lost, doubled or
// swapped on the way (token.go). The vocabulary maps any bytes to ids and back
// (vocabulary.go).
//
// The rules were read from the engines' sources; the fit of the default step time to a
// published experiment is in testdata/README.md, that of the other built-in
// models, and what they can't tell, in models/README.md.
package simengine
