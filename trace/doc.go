// Package trace is the workload that a run replays: which request of which size
// arrives when.
//
// A comparison of policies is worth what its input is worth. So a trace is made
// before anything runs, is never changed after, and is the same for every
// policy that is compared: all that could differ between two runs, down to the
// jitter of a retry, is drawn beforehand. Its hash names it. Two reports that
// show the same hash replayed the same requests.
//
// A trace comes from one of two places:
//
//   - [Generate] draws a profile's trace for any seed. The rules are those of
//     mofluxhq/moflux-bench (Apache-2.0), so that a seed gives the very trace
//     that was published under it, and its canonical hash.
//   - [Read] takes a file: the published format, or a recorded log as Mooncake
//     JSONL, Azure CSV or BurstGPT CSV, told apart by how the content begins.
//     Logs stream through [Mooncake], [Azure] and [BurstGPT], which hold one
//     line at a time. [Trace.Cut] takes a log's beginning and [Mix] lays logs
//     of different classes over each other.
//
// An entry has two output lengths. MaxTokens is what its client declares and
// admission may use; Output is how long the answer turns out to be, which only
// the engine may know. They are equal in the published profiles, and far apart
// in most logs.
//
// The package reads no clock, opens no file and has no randomness but that of
// the seed.
package trace
