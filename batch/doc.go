// Package batch runs files of requests on capacity that is lent: OpenAI's Batch API,
// durable.
//
// # The idea
//
// A batch is a row, and so is each of its items. What becomes of an item is written in
// the transaction that makes it done, under the fence of the claim it was done under;
// so an item has exactly one line, whoever crashed meanwhile, and a worker that was
// thought dead and comes back writes nothing. Bodies stay in the input file, of which
// an item has the place. Lines of the output are rows until the last item is done; then
// they become a file, by steps of which each may be repeated.
//
// # Shape
//
// [Store] is what is durable; sqlite and postgres are two, and batchtest is what each of
// them promises. [Files] is where contents are. [Ingest] reads an input file into
// items, a line at a time. [Scheduler] is pure: of the batches that have work it says
// what to claim next. [Worker] claims, has requests carried by a [Runner] (the relay, as
// any live request), and writes down what became of them. [Service] is what the API
// calls.
//
// Tenants are told apart in every call of a Store: a name that another tenant has is a
// name that nobody has.
package batch
