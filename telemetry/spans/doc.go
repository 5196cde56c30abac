// Package spans receives what an engine exports about its requests: OTLP over
// HTTP, POST /v1/traces, in protobuf or JSON. vLLM sends a span for every request
// that it has finished, with how long it waited in the engine's queue; that is
// the one thing which can't be seen from outside, and the span comes seconds
// after the request is over.
//
// Of a span three attributes are read: gen_ai.request.id,
// gen_ai.latency.time_in_queue and gen_ai.latency.time_in_model_prefill, both in
// seconds. Times of day are not: the engine's clock is another machine's.
// Nothing else is kept, and nothing is passed on.
//
// Whoever reaches the listener can send spans, so that a body has a bound as it
// comes and as it unpacks, and so have the spans that are taken out of it. For
// the same reason protobuf is walked and not unmarshalled: an empty span is two
// bytes there and some 200 as a Go value.
//
// Alternatives: a collector's receiver, which brings gRPC and a pipeline for
// three attributes.
package spans
