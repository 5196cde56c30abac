// Package vllmapi serves a simengine.Engine over HTTP as vLLM's OpenAI server
// would: the same routes, bodies, errors, headers, priorities, abort behaviour
// and metric names, in real time. It is an engine for those who have none: to
// try the gateway, to test a client, to see a KV pool run full on a laptop.
//
// It says what it is. The model is called headgate-simulated-<step-time model>
// unless the operator names it, /version begins with headgate-simengine, and
// the text is words without sense (see simengine on what can be checked in it).
//
// # One owner
//
// The engine model belongs to one goroutine (loop.go). Handlers put commands
// into its inbox, stamped with the time at which they came; it applies them in
// order and sleeps until the model's next event or the next command. What the
// model emits goes into the record of the HTTP request that waits for it, which
// never blocks: a record holds at most the tokens its request may generate. So
// a client that reads slowly slows nobody else, and the model's times are exact
// however late the goroutine wakes.
//
// # What differs from vLLM
//
// Sampling parameters are accepted and mean nothing; n choices are equal, as
// they would be at temperature 0. Output constraints (response_format, tools)
// are accepted and not obeyed. logprobs, echo, images and LoRA are refused.
// vLLM serves either a model that generates or one that embeds; this server does
// both, and its vectors are as much without sense as its words. There is no
// /v1/responses: the gateway asks an engine for a chat. And no vLLM divides its KV among
// slots; this one can (Config.PerSlot), so that what has to tell the two apart can be
// tried.
package vllmapi
