// Package report says what came of a plan's runs: from a directory of evidence, and
// from nothing else, to figures, effects, a verdict with its reasons, and pages that
// show them.
//
// # From runs to a verdict
//
// Analyse reads one run's requests at a time and keeps of each run what its figures are
// made of. A source's runs of baseline and treatment are a pair. A pair is out if a
// gate makes either run invalid, whatever came of it; it is out of one metric if either
// run has no value of that. What is left goes through package stats: the criteria of
// the plan as a chain, no harm first and the gain last, the plan's secondary metrics
// with Holm's adjustment, and all others described and not tested.
//
// Three things keep a claim from being made though its statistics would carry it. A
// plan with a fixed number of pairs is not judged before all of them have run. A rig that
// an A/A run has rejected shows nothing. And an effect that is no further from its
// margin than the rig's own noise could bring it is not claimed: the rig's noise is the
// A/A run's standard deviation, and how far is MDE of that and of as many pairs.
//
// A plan that may stop early has no p-values or bounds that hold, so its criteria are
// judged by e-processes: of the signs of the pairs' effects less the margin.
//
// # Pages
//
// A Report is written as JSON (its types are the schema), as Markdown, and as one HTML
// page with its pictures in it. Pages hold no figure that the JSON does not.
//
// The package reads no clock and draws nothing at random: the same directory gives the
// same bytes.
package report
