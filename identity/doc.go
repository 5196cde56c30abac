// Package identity answers who is calling and which service class the call
// may use. Nothing a client sends is believed by itself: a credential is
// looked up, and a class is chosen from what the operator allowed for that
// credential.
//
// # Keys
//
// A key is a random string of at least 131 bits, made by NewKey and shown
// once. The configuration holds only its SHA-256. A plain, fast hash is right
// here and wrong for passwords: a slow, salted hash buys time against guessing
// a secret that people chose, while 2^131 random keys can't be enumerated at
// any speed, and a slow hash on every request would be a way to exhaust the
// gateway's CPU. The argument holds for random keys only, so Hash refuses what
// does not look random.
//
// # Timing
//
// A key is found by using its digest as the key of a map. How long that takes
// may depend on the digest, never on how much of a guess was right: to learn
// from it, a caller would have to choose inputs by their SHA-256 prefix, and
// the digest of a guess that is wrong by one character is unrelated to the
// digest of the right key. Alternatives: comparing with every stored key in
// constant time costs more with each key and hides nothing further.
//
// # Tokens and certificates
//
// A token of an issuer, or a certificate that the listener has verified, says who
// somebody is; what he may do is said by the operator's rules alone, of which the first
// that fits decides and without which there is no access. A rule names whom it believes
// (from), so that no issuer can speak for another's subjects. How a token is verified is
// in package token; what is verified is kept by its digest, in a bounded cache, until it
// expires or its issuer's keys change. Of two credentials neither is preferred: a proxy
// with a certificate would else lend its name to everybody behind it, or lose it.
//
// Names that claims give to tenants are bounded in number and in form, and are in no
// metric. Operators of the admin listener have keys of their own: a client's key that
// leaks opens nothing there.
//
// # Classes
//
// The class of a request is its key's default, unless the key may choose and
// the request does so by a Headgate-Class header or by OpenAI's service_tier.
// A header that asks for something not allowed is refused, never silently
// downgraded: whoever wrote it would believe in a protection that is not
// there. A service_tier that is not allowed is ignored, as OpenAI does: SDKs
// and frameworks send it unasked.
//
// # Limits of a request's own
//
// Where the key permits it, a request says by x-slo-ttft-ms and x-slo-tpot-ms how
// soon it needs its tokens. It gains no rank, no capacity and no place in a queue
// by it (see admission/own.go), and what it may ask for has a least.
//
// Without the permission the headers are ignored, and the answer says that its
// objective is the class's. They are hints that load generators and clients of other
// gateways send to everybody, so a refusal would cost an answer that can be given;
// silence would let their sender believe in a limit that nobody keeps. A permitted
// header whose value isn't allowed is refused, never brought into range.
package identity
