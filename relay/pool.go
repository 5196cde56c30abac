package relay

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
	"headgate/wire"
)

// Pool is a running pool.
type Pool struct {
	cfg      Config // of which live has what can change
	settings atomic.Pointer[settings]

	// kill ends whatever is still running when a drain has taken too long.
	killCtx context.Context
	kill    context.CancelCauseFunc
	tasks   sync.WaitGroup // confirmations in the background

	following context.Context // of who reads the engines' load; nil: the pool does not run
	followers sync.WaitGroup

	mu      sync.Mutex
	core    *mind   // that requests are offered to; nil until there is a table
	minds   []*mind // and others, while they have something
	why     error   // why there is none, or none with the engines as they are
	table   *admission.Table
	fx      []admission.Effect
	records []*record
	gens    []uint32
	free    []uint32
	tenants map[string]admission.Tenant
	timer   *time.Timer
	armed   admission.Time
	engines []engineState
	listed  map[string]bool // models that the engines list, and have listed as long as not all are known
	price   *wire.Estimator
	drain   bool
	active  int           // calls inside Serve
	idle    chan struct{} // closed when active falls to 0 while draining
	recalls []recall      // the last of each class

	switches map[Switch]SwitchState
	fleet    *fleet // nil: the pool has its engines to itself
	ledger   journal.Recalls
	timings  timings
	marks    marks
	numbers  numbers
	trouble  string    // what Problems said last
	plan     *planning // nil: the engines stay as they are

	objectives [admission.MaxClasses]objectives // by class; not guarded
}

// recall is what the pool remembers of a class's recall.
type recall struct {
	seq     uint64
	request string // that it was opened for
}

// engineState is what the pool knows of an engine.
type engineState struct {
	known bool // its capabilities have been read
	taken bool // the table has them
	caps  engine.Capabilities
	last  engine.Observation
	state admission.State
	since time.Time // of the first of a row of samples that did not come in time
	told  bool      // its first state has been logged
	turn  int       // how often it was removed; who follows it stops at the next
	stop  func()    // ends who follows it
	// missed answers in a row, without what a continuation takes, or a continuation that was refused. Until there are
	// several the engine is believed: an attempt of which it turns out not to be so is
	// not ended any more.
	missed map[resumption]int

	epoch    uint32   // counts the times that it has come back, perhaps with an empty cache
	prefills prefills // where it does not tell when it begins
	misread  int      // prompts in a row that it made other ids of than it had said
}

// record is one request's place in the pool.
type record struct {
	id      admission.ID
	mind    *mind // that it was offered to
	class   admission.Class
	call    *Call
	wake    chan struct{}
	prompt  int32
	arrived admission.Time
	// resumable: what is kept of an attempt is continued by the next. whole: the
	// core was told that nothing can be taken back of what the client has seen.
	resumable, whole bool
	model            string          // by which the engines know the model, if resumable
	from             from            // what it is continued from, if resumable
	lost             int             // tokens that the core takes for kept and that are not
	kept             *wire.Stitch    // of earlier attempts; nil: the next one begins anew
	collected        *wire.Assembler // of the same, where the client gets one document
	warm             warmth
	trail            []uint64            // of its prompt, see affinity.go; nil: there is one engine
	barred           uint64              // engines that the core does not give it to
	objective        admission.Objective // that it was offered with
	first            time.Time           // of the first token of the answer that its client gets; its goroutine's alone
	plan             planned
	meter            *meter // of what its tenant may use; nil: that has no limits

	// Guarded by the pool's mutex.
	stage     stage
	admit     admission.Effect
	grant     Provenance       // of the admission
	end       admission.Effect // the Reject or Done
	waited    bool
	ran       bool // it has been admitted before
	reclaimed bool
	reclaim   string // the request that it was for
	recalled  uint64 // and the recall
	cancel    context.CancelCauseFunc
	recall    uint64
	stop      context.CancelCauseFunc // ends the attempt whatever it is at; nil: there is none
	overdue   bool                    // it has to be ended

	attempts int // that are in the request's trace; its goroutine's alone
	spent    spent
}

type stage uint8

const (
	stageWaiting stage = iota
	stageAdmitted
	stageOver
)

// maxModels bounds what is learned about prompts by model name. Only names that
// the pool serves get there.
const maxModels = 64

// New makes a pool. It asks its engines nothing; Run does.
func New(cfg Config) *Pool {
	p := &Pool{
		cfg: cfg, tenants: map[string]admission.Tenant{}, armed: admission.Never,
		engines: make([]engineState, len(cfg.Engines)), price: wire.NewEstimator(maxModels), recalls: make([]recall, len(cfg.Classes)),
		why: errNoEngine, idle: make(chan struct{}), listed: map[string]bool{}, switches: map[Switch]SwitchState{}, fleet: newFleet(&cfg),
		plan: newPlanning(cfg.Replan),
	}
	if cfg.Replan != nil {
		for i := range cfg.Replan.Profiles {
			cfg.Metrics.plans(cfg.Name, cfg.Replan.Profiles[i].Name)
		}
	}
	p.killCtx, p.kill = context.WithCancelCause(context.Background())
	p.settings.Store(newSettings(cfg))
	p.records = make([]*record, cfg.Capacity)
	p.gens = make([]uint32, cfg.Capacity)
	for i := range p.engines {
		p.engines[i].state = admission.Down
	}
	for slot := cfg.Capacity - 1; slot >= 0; slot-- {
		p.free = append(p.free, uint32(slot))
	}
	p.timer = time.AfterFunc(time.Hour, p.tick)
	p.timer.Stop()
	if p.fleet != nil {
		p.fleet.due = time.AfterFunc(time.Hour, p.overdue)
		p.fleet.due.Stop()
	}
	return p
}

// Name returns the pool's configured name.
func (p *Pool) Name() string { return p.cfg.Name }

// Classes returns the names of the pool's classes, by rank.
func (p *Pool) Classes() []string {
	live := p.live()
	names := make([]string, len(live.rank))
	for k, i := range live.rank {
		names[k] = live.Classes[i]
	}
	return names
}

// HasClass tells whether the pool serves a class of that name.
func (p *Pool) HasClass(name string) bool { _, ok := p.live().index[name]; return ok }

func (p *Pool) now() admission.Time { return admission.Time(time.Since(p.cfg.Start)) }

func (p *Pool) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = admission.Never
	p.allLocked(&admission.Event{Kind: admission.Tick})
}

func (p *Pool) step(m *mind, ev *admission.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stepLocked(m, ev)
}

// stepLocked applies one event and delivers what comes of it.
func (p *Pool) stepLocked(m *mind, ev *admission.Event) {
	now := p.now()
	p.fx = m.Step(now, ev, p.fx[:0])
	for i := range p.fx {
		p.deliverLocked(m, now, &p.fx[i])
	}
	// A timer that fires early is harmless, so it is only ever moved forward.
	if at, ok := m.Next(); ok && at < p.armed {
		p.armed = at
		p.timer.Reset(max(time.Duration(at-now), 1))
	}
}

func (p *Pool) deliverLocked(m *mind, now admission.Time, e *admission.Effect) {
	if e.Op == admission.Stage {
		p.stageLocked(m, now, e)
		return
	}
	if e.Op == admission.Demand {
		p.fleet.want(time.Duration(e.Retry))
		return
	}
	if e.Op == admission.Drained {
		p.cfg.Log.Info("pool drained", "pool", p.cfg.Name)
		return
	}
	r := p.records[e.ID.Slot()]
	line := journal.Event{Mono: int64(now), Request: r.call.ID, Revision: e.Rev, Shadow: m.shadow != nil}
	switch e.Op {
	case admission.Queued:
		r.stage, r.waited, r.reclaimed, r.reclaim, r.recalled, r.overdue = stageWaiting, true, false, "", 0, false
		line.Kind = journal.Queued
		// A request that was just offered is told by its own goroutine's look at
		// the record; one that runs again too.
	case admission.Admit:
		r.stage, r.admit, r.grant = stageAdmitted, *e, p.provenanceLocked()
		line.Grant = r.grant.String()
		line.Kind, line.Engine, line.Hold, line.Loan = journal.Admitted, p.live().Engines[e.Engine].Name, uint64(e.Hold), e.Loan
		line.ReservedTokens, line.MaxTokens, line.QueueNS = e.Tokens, e.Limit, int64(now-r.arrived)
		if !r.ran {
			r.ran = true
			p.beginsLocked(r, e.Limit)
			p.cfg.Metrics.waited(p.cfg.Name, r.call.Class, now-r.arrived)
		}
	case admission.Warm:
		r.stage, r.admit, r.grant = stageAdmitted, *e, p.provenanceLocked()
		line.Grant = r.grant.String()
		line.Kind, line.Engine, line.Hold, line.Loan = journal.Warming, p.live().Engines[e.Engine].Name, uint64(e.Hold), e.Loan
		line.PieceTokens = e.Tokens
	case admission.Reclaim:
		r.reclaimed, r.reclaim = true, p.requestLocked(e.For)
		if f := p.records[e.For.Slot()]; r.reclaim != "" {
			r.recalled = p.recalls[f.class].seq
		}
		if r.cancel != nil {
			r.cancel(errReclaimed)
		}
		return
	case admission.Reject, admission.Done:
		r.stage, r.end = stageOver, *e
		p.records[e.ID.Slot()] = nil
		p.free = append(p.free, e.ID.Slot())
		if r.plan.back {
			p.outLocked(r)
			return
		}
		if e.Op == admission.Done {
			r.signal()
			return
		}
		line.Kind, line.Cause, line.QueueNS = journal.Rejected, e.Cause.String(), int64(now-r.arrived)
	}
	p.logLocked(r, &line)
	r.signal()
}

func (r *record) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// requestLocked is the name of a request, "" of one that is gone.
func (p *Pool) requestLocked(id admission.ID) string {
	if r := p.records[id.Slot()]; r != nil && r.id == id {
		return r.call.ID
	}
	return ""
}

var recallKinds = map[admission.Cause]journal.Kind{
	admission.CauseRecallOpened:  journal.RecallOpened,
	admission.CauseRecallGranted: journal.RecallGranted,
	admission.CauseRecallServed:  journal.RecallServed,
	admission.CauseRecallSettled: journal.RecallSettled,
	admission.CauseRecallClosed:  journal.RecallClosed,
}

// stageLocked writes down what became of recalls, lending and ghosts.
func (p *Pool) stageLocked(m *mind, now admission.Time, e *admission.Effect) {
	switch e.Cause {
	case admission.CauseAside:
		p.cfg.Log.Warn("the engine fails what it is given, or asks to be left alone; others get its work", "pool", p.cfg.Name, "engine", p.live().Engines[e.Engine].Name, "for", time.Duration(e.Retry))
		return
	case admission.CauseBack:
		p.cfg.Log.Info("the engine is tried again", "pool", p.cfg.Name, "engine", p.live().Engines[e.Engine].Name)
		return
	case admission.CauseDemoted:
		p.cfg.Log.Warn("the engine does not end what it is asked to; nothing is reclaimed from it any more", "pool", p.cfg.Name, "engine", p.live().Engines[e.Engine].Name)
		return
	}
	line := journal.Event{Mono: int64(now), Pool: p.cfg.Name, Class: p.live().Classes[e.Class], Revision: e.Rev}
	kind, ofRecall := recallKinds[e.Cause]
	if line.Shadow = m.shadow != nil && e.Cause != admission.CauseGhost; line.Shadow && ofRecall {
		// It would have been one: no record is made of it.
		line.Kind, line.Recall, line.For = kind, e.Seq, p.requestLocked(e.For)
		if p.cfg.Journal != nil {
			p.cfg.Journal.Append(&line)
		}
		return
	}
	switch e.Cause {
	case admission.CauseRecallOpened:
		p.recalls[e.Class] = recall{seq: e.Seq, request: p.requestLocked(e.For)}
		if r := p.records[e.For.Slot()]; r != nil && r.id == e.For {
			r.recall = e.Seq
		}
	case admission.CauseLendingClosed:
		line.Kind = journal.LendingClosed
	case admission.CauseLendingOpened:
		line.Kind = journal.LendingOpened
	case admission.CauseGhost:
		line.Kind, line.Hold, line.Engine = journal.Ghost, uint64(e.Hold), p.live().Engines[e.Engine].Name
		p.cfg.Log.Warn("the engine never confirmed a release", "pool", p.cfg.Name, "engine", line.Engine, "class", line.Class, "kv_tokens", e.Tokens)
	}
	if ofRecall {
		// The request may have left long before the last loan does.
		rc := &p.recalls[e.Class]
		line.Kind, line.Recall, line.For = kind, e.Seq, rc.request
	}
	p.journal(&line)
}

// journal writes an event down, and what it is to a recall.
func (p *Pool) journal(e *journal.Event) {
	if step, after := p.ledger.Note(e); step != "" && !p.laterLocked(e, after) {
		p.cfg.Metrics.recall(p.cfg.Name, e.Class, string(step), after)
	}
	if p.cfg.Journal != nil {
		p.cfg.Journal.Append(e)
	}
}

// logLocked completes a line about a request.
func (p *Pool) logLocked(r *record, e *journal.Event) {
	if p.cfg.Journal == nil && e.Recall == 0 && r.recall == 0 && r.call.Account == nil {
		return // nobody reads it
	}
	p.describe(r, e)
	if r.call.Account != nil {
		r.call.Account.Note(e)
	}
	p.journal(e)
}

// describe adds to a line whose request it is about.
func (p *Pool) describe(r *record, e *journal.Event) {
	if e.Recall == 0 {
		e.Recall = r.recall
	}
	e.Pool, e.Class, e.Tenant, e.Principal = p.cfg.Name, r.call.Class, r.call.Tenant, r.call.Principal
	e.Request, e.API, e.Stream = r.call.ID, r.call.Request.API.String(), r.call.Request.Stream
	if e.PromptTokens == 0 {
		e.PromptTokens = int64(r.prompt)
	}
}

// Recalls returns the newest n records of recalls, newest first.
func (p *Pool) Recalls(n int) []journal.Recall {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ledger.Last(n)
}

// Start is the moment from which the times of records count.
func (p *Pool) Start() time.Time { return p.cfg.Start }

// Snapshot returns the core's state, nil while there is none.
func (p *Pool) Snapshot() *admission.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core == nil {
		return nil
	}
	s := p.core.Snapshot()
	s.Name(p.requestLocked)
	return s
}

// troublesLocked lists what keeps each engine from being ready, as far as it is
// known.
func (p *Pool) troublesLocked() string {
	text := ""
	for i := range p.engines {
		// One that is gone has no error.
		if err := p.engines[i].last.Err; err != nil && p.engines[i].state != admission.Ready {
			text += fmt.Sprintf("; engine %s: %v", p.live().Engines[i].Name, err)
		}
	}
	return text
}

// Ready returns nil if the pool can take a request now or soon, and why not
// otherwise.
func (p *Pool) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.drain:
		return fmt.Errorf("pool %s: draining", p.cfg.Name)
	case p.core == nil:
		return fmt.Errorf("pool %s: %w%s", p.cfg.Name, p.why, p.troublesLocked())
	}
	if err := p.grantedLocked(); err != nil {
		return fmt.Errorf("pool %s: %w", p.cfg.Name, err)
	}
	for i := range p.engines {
		if p.engines[i].state == admission.Ready || p.plan.switching() {
			return nil
		}
	}
	if p.why != nil {
		return fmt.Errorf("pool %s: no engine is ready: %w", p.cfg.Name, p.why)
	}
	return fmt.Errorf("pool %s: no engine is ready%s", p.cfg.Name, p.troublesLocked())
}

// from is what an interrupted answer is continued from.
type from uint8

const (
	fromNothing from = iota
	fromIDs
	fromText
)

func (f from) String() string { return [...]string{"nothing", "token ids", "text"}[f] }

// of tells whether an engine says that it continues from that.
func (f from) of(caps *engine.Capabilities, api wire.API) bool {
	return f == fromIDs && caps.Continues(api) || f == fromText && caps.ContinuesText(api)
}

// resumption is a way of continuing an answer.
type resumption struct {
	api  wire.API
	from from
}

// resumesLocked tells from what an answer of a class can be continued on every
// engine of the pool, whichever gets it, and by what name they know the model.
// Attempts of a class from which nothing is reclaimed need not, unless checkpoints
// are asked for or given. Token ids go before text, which may be cut into others.
func (p *Pool) resumesLocked(class admission.Class, call *Call) (model string, f from) {
	req := call.Request
	if !req.Resumable() || p.table.Classes[class].Mode == admission.Attrition && call.Checkpoint == nil && call.Kept == nil {
		return "", fromNothing
	}
	for _, f := range []from{fromIDs, fromText} {
		if model, able := p.continuesLocked(req, f); able {
			return model, f
		}
	}
	return "", fromNothing
}

// continuesLocked tells whether every engine that may be given a resumable request
// goes on from that, and by what name they know the model.
func (p *Pool) continuesLocked(req *wire.Request, f from) (model string, able bool) {
	if f == fromText && !req.ContinuesText() {
		return "", false
	}
	able = true
	for i := range p.engines {
		s := &p.engines[i]
		if p.live().gone[i] {
			continue
		}
		name, has := p.upstreamLocked(i, req.Model)
		if model == "" {
			model = name
		}
		if s.known && !has {
			continue // it is not given the request
		}
		_, context := longest(&s.caps, name)
		able = able && s.known && f.of(&s.caps, req.API) && !p.unableLocked(i, req.API, f) && name == model &&
			(!req.Minds() || s.caps.MinTokens) && (req.Declared || f == fromText || context)
	}
	return model, able && model != ""
}

// mostMissed is for how many answers in a row an engine may fail to give what a
// continuation takes. Each of them is bound to its attempt.
const mostMissed = 3

// missedLocked notes that an engine did not give what a continuation takes. After
// several in a row it is not believed any more until it comes back as another.
func (p *Pool) missedLocked(e admission.Engine, api wire.API, f from) {
	p.countMissedLocked(e, resumption{api, f}, 1)
}

// rejectedLocked notes that an engine has refused to continue an answer.
func (p *Pool) rejectedLocked(e admission.Engine, api wire.API, f from) {
	p.countMissedLocked(e, resumption{api, f}, mostMissed)
}

func (p *Pool) countMissedLocked(e admission.Engine, way resumption, n int) {
	s := &p.engines[e]
	if s.missed == nil {
		s.missed = map[resumption]int{}
	}
	before := s.missed[way]
	if s.missed[way] += n; before < mostMissed && s.missed[way] >= mostMissed {
		p.cfg.Log.Warn("the engine's answers can't be continued so", "pool", p.cfg.Name, "engine", p.live().Engines[e].Name,
			"api", way.api.String(), "from", way.from.String())
	}
}

// unableLocked tells whether an engine has been seen not to continue so.
func (p *Pool) unableLocked(i int, api wire.API, f from) bool {
	return p.engines[i].missed[resumption{api, f}] >= mostMissed
}

// Drain refuses what comes and what waits, and lets what runs finish until ctx
// ends; then it ends that too. It returns how many calls had to be ended.
func (p *Pool) Drain(ctx context.Context) int {
	p.mu.Lock()
	p.drain = true
	if p.core != nil {
		t := *p.table
		p.applyLocked(&t)
	}
	if p.plan != nil {
		p.callInLocked()
	}
	if p.active == 0 {
		closeOnce(p.idle)
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
		p.stop()
		return 0
	case <-ctx.Done():
	}
	p.mu.Lock()
	left := p.active
	p.mu.Unlock()
	p.kill(errShutdown)
	<-p.idle
	p.stop()
	return left
}

// stop ends the confirmations that are still awaited; there is nobody left to
// give the capacity to.
func (p *Pool) stop() {
	p.kill(errShutdown)
	p.tasks.Wait()
	p.timer.Stop()
	if p.fleet != nil {
		p.fleet.due.Stop()
	}
	for _, e := range p.live().Engines {
		e.Adapter.Close()
	}
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
