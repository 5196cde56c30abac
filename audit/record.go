// Package audit is the record of decisions: who asked for what, what was decided and why,
// and what came of it, one line a request and one for each thing that an operator did.
//
// It is not a second journal. The journal says when each step happened, for whoever
// computes from it; audit says what became of a request as a whole, for whoever has to
// answer for it. A line is a projection of the request's events (journal.Account) and of
// what only a server knows: the credential, the address, the class that was asked for, and
// requests that never came as far as admission.
//
// # Order and gaps
//
// Records are numbered in the order in which their requests ended. Each line has the hash
// of the one before it, so that a line that was changed, moved or removed shows (Verify).
// What that does not show is that the end of the file is missing, or that somebody who may
// write the file has made all hashes anew: keep a head, which every file's end and every
// stop tells the log, in another place.
//
// # Nothing waits
//
// A request leaves its record in memory. One goroutine writes; while the sink fails or is
// slow it tries again for as long as it takes, records wait, and what finds no room is
// lost, counted at once, and told by a gap record with the numbers that are missing, in its
// place. So a sink that is away costs nobody an answer, and no loss is silent: it is a
// metric, a line in the log, a line of /readyz, and a record.
//
// Alternatives: writing before the answer, as a database commits, makes the sink's latency
// everybody's and its failure everybody's outage; a record for each event would be the
// journal again, with a hash.
package audit

import (
	"fmt"
	"time"
)

// Kind says what a record is of.
type Kind string

const (
	Request Kind = "request" // of a client, answered or refused, or an item of a batch
	Admin   Kind = "admin"   // something that was done through the admin listener, or tried
	Config  Kind = "config"  // a configuration file that was taken over or refused
	Gap     Kind = "gap"     // Count records that end with this one's number are lost
	Started Kind = "started" // the process began to write
	Stopped Kind = "stopped" // it stopped in an orderly way
)

var kinds = map[Kind]bool{Request: true, Admin: true, Config: true, Gap: true, Started: true, Stopped: true}

// UnmarshalText refuses a kind that this version does not know.
func (k *Kind) UnmarshalText(b []byte) error {
	if !kinds[Kind(b)] {
		return fmt.Errorf("record kind %.40q is not known to this version", b)
	}
	*k = Kind(b)
	return nil
}

// The credentials by which a caller was known.
const (
	CredentialNone        = "none" // it was refused, or the route asks for none
	CredentialAnonymous   = "anonymous"
	CredentialKey         = "key"
	CredentialToken       = "token"
	CredentialCertificate = "certificate"
	CredentialInside      = "inside" // an item of a batch, whose batch was asked for with one
)

// The outcomes of a request.
const (
	OutcomeAnswered  = "answered"
	OutcomeFailed    = "failed"    // an error of the engine's or ours
	OutcomeRefused   = "refused"   // it never ran: see Code
	OutcomeLeft      = "left"      // its client did
	OutcomeForwarded = "forwarded" // another replica, Peer, served it, and has its record
)

// Record is one line. A field that does not belong to its kind is zero and absent. It has
// no text of a prompt or of an answer, and no key.
type Record struct {
	// Seq counts the records of a source, lost ones too, from 1.
	Seq  uint64    `json:"seq"`
	TS   time.Time `json:"ts"` // of its end
	Kind Kind      `json:"kind"`

	// Who.
	Principal  string `json:"principal,omitempty"`
	Tenant     string `json:"tenant,omitempty"`
	Credential string `json:"credential,omitempty"`
	Remote     string `json:"remote,omitempty"` // the address of the connection
	Actor      string `json:"actor,omitempty"`  // of an admin action, by what he or a proxy says

	// What.
	ID         string `json:"id,omitempty"`     // Headgate-Request-Id
	Method     string `json:"method,omitempty"` // as it was asked for
	Route      string `json:"route,omitempty"`  // none: see Path
	Path       string `json:"path,omitempty"`   // of no route, or of an admin action
	Model      string `json:"model,omitempty"`  // as it was asked for
	ClassAsked string `json:"class_asked,omitempty"`
	Class      string `json:"class,omitempty"`
	Stream     bool   `json:"stream,omitempty"`

	// What was decided, and by what right.
	Decision string `json:"decision,omitempty"` // admitted, queued, observed, rejected
	Pool     string `json:"pool,omitempty"`
	Engine   string `json:"engine,omitempty"` // the last one
	Grant    string `json:"grant,omitempty"`
	Revision uint64 `json:"revision,omitempty"` // of the class table
	Loans    int    `json:"loans,omitempty"`
	Reclaims int    `json:"reclaims,omitempty"`
	From     string `json:"from,omitempty"` // the replica that has sent it here
	Peer     string `json:"peer,omitempty"` // the one that it was sent on to

	// What came of it.
	Outcome      string `json:"outcome,omitempty"`
	Status       int    `json:"status,omitempty"` // that the client got
	Code         string `json:"code,omitempty"`   // of an error, as docs/errors.md has it
	Cause        string `json:"cause,omitempty"`  // as admission has it
	PromptTokens int64  `json:"prompt_tokens,omitempty"`
	CachedTokens int64  `json:"cached_tokens,omitempty"`
	OutputTokens int64  `json:"output_tokens,omitempty"`
	QueueMS      int64  `json:"queue_ms,omitempty"`
	DurationMS   int64  `json:"duration_ms,omitempty"`

	Detail string `json:"detail,omitempty"` // of an admin action or configuration

	Count   uint64 `json:"count,omitempty"`   // of a gap
	Version string `json:"version,omitempty"` // of a started record: the process's
	Source  string `json:"source,omitempty"`  // of a started record: who writes

	// Prev is the SHA-256 of the line before, without its line end; absent in the first.
	Prev string `json:"prev,omitempty"`
}
