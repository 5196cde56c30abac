// Package occupancy measures from logs how many requests were in flight at once:
// the distribution of busy time by requests in flight, utilisation, the peak and
// what it was made of, by model, class, principal and hour.
//
// A log goes through four stages, each of which keeps only what it must:
//
//	lines  -> Parser    what a line says: a start, a done, both, a wait, a restart
//	       -> pairing   lines are put in order within Options.Slack; a start and
//	                    its done become a span by id, model and process
//	spans  -> sweep     edges in order of time; every nanosecond is counted once,
//	                    at the number of spans that are in flight then
//	levels -> Report    shares, and everything that could not be counted
//
// A span is half-open: one that ends when another starts is not in flight beside
// it. Times are whole nanoseconds, so the distribution is exact for the spans that
// were found; what the log did not tell is counted and never filled in. A start
// without a done is in flight for no time at all, unless its process is known to
// have been replaced: then it was in flight until the last line of that process.
//
// Memory holds the open spans and the edges since the start of the oldest one.
// Both are bounded: by Options.MaxSpan, and by hard limits beyond which the oldest
// open spans are given up and counted.
//
// Alternatives: all spans in memory and one sort is simpler and takes gigabytes
// for a week of a busy gateway; sampling the number in flight every second, as
// scraped gauges do, misses every request that is shorter.
//
// A measurement is not a mechanism: the report says how many requests were in
// flight, and not what limited them.
package occupancy
