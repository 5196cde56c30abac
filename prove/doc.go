// Package prove answers an operator's first question, before anything is changed: how
// much of my engine's capacity could be lent, and what would it cost my users? It
// needs a journal of the present service and nothing else.
//
// # The idea
//
// A journal says when each request came, of which class, and how many tokens it turned
// out to have; observing is enough for that. These arrivals ([Record]) are replayed by the
// simulator, which runs the gateway's own admission, under the present way of serving
// and under the proposed policy, each with and without a batch client that always has
// work. What that client gets is what can be lent; what the recorded requests lose is
// what it costs ([Run]).
//
// # Why one should believe it
//
// A replay is a model. Three things keep it honest. The present is replayed too, and held
// against what the journal really saw, request by request: if that is off, the page says
// first that it is not to be trusted ([Check]). Step times that nobody gave are fitted to
// the journal ([FitModel]), to one half of it, and the check is made on the other. And
// every figure that was assumed and not measured is listed, with what would show it
// to be wrong.
//
// # Intervals
//
// The day is cut into blocks of equal length, and a block under one policy is paired with
// the same block under the other. The intervals are of the mean block, by bootstrap over
// blocks: they say how far another day of such blocks would be off. They don't hold
// the model's error. The centre that signed ranks have is not used, though it needs fewer
// blocks: harm that is in the few busiest blocks alone moves no median.
package prove
