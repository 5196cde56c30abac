// Package stats is the statistics of paired benchmarks: what can be said of two
// arms that replayed the same traces, and what cannot.
//
// # The unit is a pair
//
// Requests of one run wait for each other, so a thousand of them are not a
// thousand observations. The unit of replication is one paired replay: the same
// trace through both arms. A run gives one number, two runs give a [Pair], and n
// pairs give [Effects], which everything else here works on: [Ratios] for what is
// compared in percent, [Differences] for what has a unit or may be zero.
//
// # What is computed
//
//   - [Effects.Estimate] (Hodges-Lehmann), [Effects.Interval] and
//     [Effects.Bound] (Walsh averages by the exact signed-rank distribution) and
//     [Effects.Flip] (sign-flip on the mean). They assume that differences are
//     symmetric around their centre, no more; show the dots.
//   - [NoHarm], [Gain] and [Gatekeep] make verdicts of them, in words. What could
//     not be told says how large an effect would have been found ([MDE]).
//   - [Percentile], [Studentised], [BCa] and [TwoLevel] are bootstraps, refused
//     below [BootstrapPairs] pairs, where their intervals are too short.
//   - [NoiseFloor] judges a rig by a run of one arm against itself.
//   - [EProcess] may be looked at after every pair; fixed-n p-values must not be.
//   - [Sample] has quantiles of one run's requests; [Shift] compares them between
//     arms. [Overdue], [WorstWindow] and [Per10k] are the totals beside them.
//
// # Infinity and zero
//
// A request that was refused, aborted or timed out has the value +Inf: it came
// later than all others. It is never left out, and so a run's quantile may be +Inf.
// What becomes of such a pair is decided once, in [Ratios] and [Differences]:
//
//	baseline, treatment     effect
//	one is +Inf             +Inf or -Inf: more than every finite effect
//	one is 0                the same for a ratio; nothing special for a difference
//	both are 0              0: they are equal
//	both are +Inf           not known
//
// Ranks take infinite effects as they are. The sign-flip test takes them as larger
// than all finite effects together. An effect that is not known says nothing of the
// direction, so it counts as 0 in the estimate and the test, but every interval and
// bound holds whatever it had been: as -Inf for the lower end, as +Inf for the
// upper. What needs a mean or a standard deviation is refused ([NotFiniteError])
// or +Inf.
//
// # Sources
//
// Hodges and Lehmann 1963 (estimate); Hollander, Wolfe and Chicken, Nonparametric
// Statistical Methods, 3.1 to 3.3 (interval); Phipson and Smyth 2010 (the +1 of drawn
// permutations); Holm 1979; Efron and Tibshirani 1993 (bootstraps); Krichevsky and
// Trofimov 1981, Ramdas and others 2023 (e-process); Mann 1945 (trend).
//
// The package is pure: the same input gives the same output. What draws takes a seed.
package stats
