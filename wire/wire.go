// Package wire knows the client-facing APIs: it reads of a request what
// admission must know, writes into it only the fields the gateway owns, and
// reads what an engine streams back.
//
// The idea is projection. A body stays the bytes the client sent; Parse looks
// at it without building a tree, and Project sets single fields in place, so
// that everything Headgate does not know about (a new sampling parameter, an
// engine's extension) reaches the engine untouched, to the byte.
//
// Nothing in this package does I/O, reads a clock or keeps state between
// requests.
package wire

// API is one route of the engines.
type API uint8

const (
	Chat        API = 1 + iota // POST /v1/chat/completions
	Completions                // POST /v1/completions
	Embeddings                 // POST /v1/embeddings
)

// Path returns the route's path, which is the same on the client's side and on
// every engine's.
func (a API) Path() string {
	switch a {
	case Chat:
		return "/v1/chat/completions"
	case Completions:
		return "/v1/completions"
	case Embeddings:
		return "/v1/embeddings"
	}
	return ""
}

// Generates tells whether an answer is made token by token. Another one has no
// output: it comes as one document, is never streamed, and can't be continued, only
// made again.
func (a API) Generates() bool { return a != Embeddings }

func (a API) String() string {
	switch a {
	case Chat:
		return "chat"
	case Completions:
		return "completions"
	case Embeddings:
		return "embeddings"
	}
	return "unknown"
}

// Request is what the gateway must know about a client's request. Body is the
// client's own bytes and is never changed. Only Parse makes one that can be
// projected.
type Request struct {
	API          API
	Body         []byte
	Model        string
	Stream       bool // the client wants server-sent events
	IncludeUsage bool // the client asked for the usage chunk itself
	// MaxTokens is the declared output limit of one choice, in tokens: the
	// smallest of max_completion_tokens, max_tokens and n_predict that is given.
	// Declared tells whether there was one; 0 is a legal declared value, and that of
	// every request without output.
	MaxTokens int
	Declared  bool
	// N is the number of sequences the engine runs for this request: the largest
	// of n, best_of and n_cmpl, times the number of prompts (completions). It is 1
	// for embeddings: how many of their inputs an engine runs at once is its own
	// doing.
	N int
	// Prompts is how many prompts Content sums up: 1 but for completions and
	// embeddings that give several.
	Prompts     int
	ServiceTier string
	// CacheKey is prompt_cache_key: by which the client says that prompts begin alike.
	CacheKey string
	// Constrained: a grammar, a JSON schema, a response_format other than text, a
	// forced tool call, or beam search; such an answer can't be continued from
	// its middle.
	Constrained bool
	Content     Content

	spans [numFields]span // of the fields the gateway owns, in Body
	close int             // where Body's closing brace is
	fixed bool            // it has a field that can't be carried over a cut, see carryOf
	begun bool            // the client has begun the answer itself, or says how it begins

	textPrompt bool // the prompt is one text

	stops       []string
	includeStop bool // an answer ends with its stop string, not before it
	minTokens   int  // of output, before which no stop string counts
}

// Resumable tells whether the answer, once interrupted, can be continued as if
// nothing had been, from its token ids at least: all that the request asks for means
// the same for the rest of an answer as for the whole.
func (r *Request) Resumable() bool { return !r.fixed }

// Minds tells whether the request has min_tokens or include_stop_str_in_output, which
// not every engine knows.
func (r *Request) Minds() bool { return r.minTokens > 0 || r.includeStop }

// Prompt is the prompt as it stands in the body, JSON: what an engine's cache goes
// by, in its order. It must not be changed.
func (r *Request) Prompt() []byte {
	sp := r.spans[fieldMessages]
	switch r.API {
	case Completions:
		sp = r.spans[fieldPrompt]
	case Embeddings:
		sp = r.spans[fieldInput]
	}
	return r.Body[sp.from:sp.to]
}

// Content is the measured prompt, from which its token count is estimated.
type Content struct {
	Bytes    [NumKinds]int // bytes of text by kind
	TokenIDs int           // tokens given as ids: exact
	Media    int           // images, audio, files: parts priced flat, never by their base64 length
	Messages int           // chat messages, each of which costs a few template tokens
}

// Kind is a kind of text with its own bytes-per-token ratio
// (the measured table is in the documentation of Estimate).
type Kind uint8

const (
	Prose Kind = iota // letters, spaces and ordinary punctuation of alphabetic scripts
	Dense             // digits, hex, base64, heaps of symbols: close to a token a byte
	Wide              // CJK and other scripts of three bytes and more a letter
	NumKinds
)

// Usage is an engine's own account of one request, in tokens.
type Usage struct {
	Prompt, Completion, Cached int
}

// Projection is what the gateway owns in a body sent upstream. The zero value
// of a field leaves the client's bytes as they are.
type Projection struct {
	Model       string // upstream model name, where an alias was used
	Stream      bool   // force stream:true with stream_options.include_usage:true
	MaxTokens   int    // > 0: the clamped limit; a limit of the client's is lowered to it, never raised
	Priority    int    // written as "priority" when HasPriority; otherwise a client's own is removed
	HasPriority bool
	TokenIDs    bool // have the engine return token ids; for a Stitch, and of a resumable request only
	// FinalMessage: the engine has to be told to go on with a chat's last message.
	// For Stitch.Continue, of what is continued from its text.
	FinalMessage bool
}

// Chunk is what one streamed event says. The text itself stays in the event's
// bytes: admission only needs counts.
type Chunk struct {
	Tokens    int // output tokens carried: token_ids where present, else 1 for an event with content, else 0
	Content   bool
	Finish    string // finish_reason of the last choice that ended here, "" if none did
	Finished  int    // choices that ended in this event
	Usage     Usage
	HasUsage  bool
	UsageOnly bool // the trailing usage chunk: choices is empty
	Done      bool // the terminator, [DONE]
	Err       *Error
}
