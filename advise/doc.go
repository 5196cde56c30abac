// Package advise tells from a journal whether other settings would have served its
// traffic better, and what has to be true of the engine for that.
//
// # The idea
//
// A measurement is not a mechanism. A public post-mortem measured rightly that an engine
// of eight slots ran one request nine tenths of the time, concluded that the idle slots
// took KV from the one, cut them to two, and had to take it back: the KV was one pool.
// So advice here has four parts, and says first which of them it lacks:
//
//   - what would have become of the recorded requests: they are replayed under both
//     settings and compared by blocks of time, with intervals ([Run]);
//   - the mechanism that the change relies on, and what a probe of the engine says of it.
//     What the probe contradicts is withdrawn, whatever the replay says ([Mechanism]);
//   - whether the traffic was one traffic: where models, routing or sizes changed within the
//     window a mix of both is nobody's, and each part is judged by itself ([Regimes]);
//   - what would show the advice to be wrong, as an observation and a command.
//
// Beside it, what a configuration, the engine and the documentation say is held against
// each other ([Audit], [ScanDocs]).
//
// # Verdicts
//
// A change is better, worse or no different by two figures: the share of requests on time,
// and the tokens of batch that were done. Worse is one of them beyond its margin, better is
// one beyond it without the other being worse, no different is both within, and all
// else can't be told. The margins are compared with the ends of the intervals, so little
// evidence is never "no different".
//
// # Alternatives
//
// A search over all settings was rejected: it finds the best fit to one week's
// noise, and explains nothing. The few candidates here each have a rule and a mechanism.
package advise
