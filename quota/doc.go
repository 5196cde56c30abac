// Package quota keeps the books of what tenants may use: requests and tokens in a
// window, and a balance of prepaid tokens. It is a pure, clocked state machine like
// admission: no lock, clock or I/O. Every call takes now, and times that go back are
// taken for the latest that was seen.
//
// # Reserve, progress, settle
//
// Before a request is offered to admission it reserves what it is expected to cost:
// one request, and the tokens of its prompt and of the output that it may come to. What
// is reserved is held: it stands in the way of others of the tenant, and it costs
// nothing yet. As the request runs, Progress turns what was used from held into charged,
// and Settle does so with the rest and lets go of what was not used. A request that is
// refused or leaves before it began settles with nothing. Who settles twice, or something
// that is gone, changes nothing.
//
// # Windows
//
// A limit of N in a window W is a leaky bucket in the form of the generic cell rate
// algorithm (GCRA, ITU-T I.371, annex A, virtual scheduling): one moment, the theoretical
// arrival time (tat), says how full the bucket is. Each unit charged moves it by W/N, and
// the passing time drains it. With span(x) = x units times W/N, rounded up, a
// reservation of c units is taken iff
//
//	max(tat - now, 0) + span(held + c) <= span(burst)
//
// and so, but for what runs over its reservation, in any stretch of time of length t no
// more is charged than burst + N t/W. What is held does not drain: only what was charged
// does. So it makes no difference in which order requests settle at a moment, nothing
// that is given back can be spent twice, and a long answer is charged as it is made.
//
// An answer that runs over what was reserved is charged in full, and the bucket is then
// fuller than its burst: the next requests wait for that. It may be over by what runs
// over expectation at a time, and by no more.
//
// What a request reserves beyond the burst is cut to the burst where only its expected
// output makes it so large: else a client that declares a large limit and uses little of it could never
// be served. A prompt that is larger than the burst can never be.
//
// # Dry run
//
// A limit in dry run refuses nothing. What it would have refused is counted and costs it
// nothing, so that it goes on to say what enforcing would do.
//
// # Several ledgers
//
// What is shared by several ledgers is told in share.go.
//
// # Memory
//
// An account whose buckets are empty and of which nothing is held says no more than one
// that is not there, and is forgotten. So as many are kept as there are tenants that have
// used something within a window. Beyond a bound all further ones share one account:
// together they get what each would have had, and never more.
//
// # Alternatives
//
// Fixed windows let twice the limit through around their border; a log of all requests in
// a sliding window takes memory for each. Token buckets are the same as GCRA with a count
// and a moment in place of one moment. To charge a reservation at once and give back what
// was not used is simpler, until one asks what may be given back of what has drained
// already: with overlapping requests there is no cheap answer that is both exact and safe.
package quota
