package gateway

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"headgate/admission"
	"headgate/journal"
	"headgate/relay"
	"headgate/telemetry/tracing"
	"headgate/wire"
	"headgate/wire/sse"
)

// response is one answer to a client. It is the relay's Sink.
type response struct {
	out     http.ResponseWriter
	control *http.ResponseController
	header  http.Header
	cfg     *Config // in force when the request came; it is judged by no other
	id      string
	from    string // the replica that has sent the request here, proven; "" is the client
	hopped  bool   // it says that one has: it goes no further
	arrived time.Time
	span    *tracing.Span // nil: the request is not traced

	class     string
	session   string // that the client names
	stream    bool
	keeps     bool // a record is written of it
	asks      bool // for limits of its own
	own       bool // and has some: its key permits it
	dialect   dialect
	anthropic bool // the path is one of Anthropic's
	started   bool
	unread    bool // there may be a body, or a rest of one
	scratch   []byte
	hold      bool      // what is written need not be flushed
	renew     time.Time // until then the deadline of writes is not set anew
	body      []byte    // as it came, while the request may be sent on
	status    int       // of an answer of another replica; 0: it is this one's
	audited   audited
}

// account is what a call is to tell of itself; nil: nobody writes it down.
func (w *response) account() *journal.Account {
	if !w.keeps {
		return nil
	}
	return &w.audited.account
}

const (
	// linger is how long a client whose body is not wanted gets to notice the
	// answer before its connection is closed.
	linger = 500 * time.Millisecond
	// writePiece is written at a time, so that a client that reads a large
	// answer slowly but steadily is not taken for one that does not read.
	writePiece = 64 << 10
)

// dialect is how an API tells an error.
type dialect struct {
	write       func(w http.ResponseWriter, err *wire.Error, id string)
	appendEvent func(dst []byte, err *wire.Error, id string) []byte
}

var openAI = dialect{
	func(w http.ResponseWriter, err *wire.Error, _ string) { err.Write(w) },
	func(dst []byte, err *wire.Error, _ string) []byte { return err.AppendEvent(dst) },
}

// headerSession is where a client may name the session that a request is of.
const headerSession = "Headgate-Session"

// Headers that every answer has, as far as they are known.
const (
	headerID       = "Headgate-Request-Id"
	headerClass    = "Headgate-Class"
	headerDecision = "Headgate-Decision"
	headerQueue    = "Headgate-Queue-Ms"
	headerLoan     = "Headgate-Loan"
	headerGrant    = "Headgate-Grant" // in a fleet
)

// headerObjective tells a request that asked for limits of its own which it has.
const headerObjective = "Headgate-Objective"

func newResponse(out http.ResponseWriter, r *http.Request, cfg *Config) *response {
	w := &response{
		out: out, control: http.NewResponseController(out), header: out.Header(), cfg: cfg, id: newID(), arrived: time.Now(),
		unread: r.ContentLength != 0, keeps: cfg.Audit != nil,
	}
	w.identify(w.id)
	// net/http takes a body in chunks though a length is said too, and takes none of
	// either from HTTP/1.0, without telling. What a proxy in front has read otherwise must
	// not be the next request, so such a connection has none. Nor has one that was to be a
	// tunnel.
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) || r.Method == http.MethodConnect {
		w.header.Set("Connection", "close")
	}
	return w
}

// identify gives the request an id.
func (w *response) identify(id string) {
	w.id = id
	w.header.Set(headerID, id)
	// The name that OpenAI's SDKs show.
	w.header.Set("X-Request-Id", id)
}

// Admitted implements relay.Sink.
func (w *response) Admitted(d relay.Decision) {
	decision := "admitted"
	if d.Queued {
		decision = "queued"
	}
	if d.Observed {
		decision = "observed"
	}
	w.decided(decision, d.Wait, d.Loan)
	if g := d.Grant.String(); g != "" {
		w.header.Set(headerGrant, g)
	}
	w.contract(&d)
	if w.asks {
		w.header.Set(headerObjective, w.objective(d.Objective))
	}
}

// objective is an objective as a list of its limits, behind who gave it: class where
// the request has no limit of its own, because its key permits none.
func (w *response) objective(o admission.Objective) string {
	text := "class"
	if w.own {
		text = "request"
	}
	for _, l := range []struct {
		name string
		d    time.Duration
	}{{"ttft", o.First}, {"tpot", o.Token}, {"e2e", o.Whole}} {
		if l.d > 0 {
			text += "; " + l.name + "-ms=" + strconv.FormatFloat(float64(l.d)/float64(time.Millisecond), 'f', -1, 64)
		}
	}
	return text
}

func (w *response) decided(decision string, wait time.Duration, loan bool) {
	w.header.Set(headerDecision, decision)
	if w.class == "" {
		return // refused before it had any
	}
	w.header.Set(headerClass, w.class)
	w.header.Set(headerQueue, strconv.FormatInt(wait.Milliseconds(), 10))
	w.header.Set(headerLoan, strconv.FormatBool(loan))
}

// letGo is called before a header is sent. A body that was not read (the
// caller is unknown, it is too large) makes the server read up to 256 KiB of it,
// before it sends the answer, for as long as the client likes; unless the
// connection is to be closed, and then it still reads afterwards.
func (w *response) letGo() {
	if w.unread {
		w.header.Set("Connection", "close")
		_ = w.control.SetReadDeadline(time.Now().Add(linger))
	}
}

// begin sends the header of a stream.
func (w *response) begin() {
	if w.started {
		return
	}
	w.started = true
	w.header.Set("Content-Type", "text/event-stream; charset=utf-8")
	w.header.Set("Cache-Control", "no-cache")
	// nginx and others collect a response into blocks unless told not to.
	w.header.Set("X-Accel-Buffering", "no")
	w.out.WriteHeader(http.StatusOK)
}

// Event implements relay.Sink.
func (w *response) Event(raw []byte) error {
	w.begin()
	return w.write(raw)
}

// KeepAlive implements relay.Sink.
func (w *response) KeepAlive() error {
	w.begin()
	w.scratch = sse.AppendComment(w.scratch[:0], "keep-alive")
	return w.write(w.scratch)
}

// write sends bytes and flushes them; a client that does not take them in time
// is as good as gone.
func (w *response) write(b []byte) error {
	for piece := range slices.Chunk(b, writePiece) {
		w.deadline()
		if _, err := w.out.Write(piece); err != nil {
			return err
		}
	}
	if w.hold {
		return nil
	}
	return w.control.Flush()
}

// Hold implements relay.Holder.
func (w *response) Hold(on bool) { w.hold = on }

// Flush implements relay.Holder.
func (w *response) Flush() error {
	w.hold = false
	return w.control.Flush()
}

// deadline gives the client its time for what is written next, and a sixteenth of it more,
// for which it is not given anew: it would be a twentieth of what an event costs. A writer
// that can't set deadlines (a test's recorder) writes without one.
func (w *response) deadline() {
	now, stall := time.Now(), w.cfg.Limits.ClientStall
	if now.Before(w.renew) {
		return
	}
	w.renew = now.Add(stall / 16)
	_ = w.control.SetWriteDeadline(now.Add(stall + stall/16))
}

// Answer implements relay.Sink.
func (w *response) Answer(body []byte) error {
	w.started = true
	w.letGo()
	w.header.Set("Content-Type", "application/json")
	w.header.Set("Content-Length", strconv.Itoa(len(body)))
	return w.write(body)
}

// Started implements relay.Sink.
func (w *response) Started() bool { return w.started }

// fail tells the client an error: in the place of an answer if nothing has been
// sent, else as the stream's last event. A whole answer that has begun can only
// be cut.
func (w *response) fail(err *wire.Error) {
	if !w.started {
		if w.header.Get(headerDecision) == "" {
			w.decided("rejected", time.Since(w.arrived), false)
		}
		w.letGo()
		w.deadline()
		w.dialect.write(w.out, err, w.id)
		_ = w.control.Flush()
		return
	}
	if w.stream && err.Code != wire.CodeClientClosed {
		_ = w.write(w.dialect.appendEvent(nil, err, w.id)) // nobody is left to tell
	}
}
