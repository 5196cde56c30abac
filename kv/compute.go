package kv

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Question is what Compute answers. What is 0 or empty is not asked or not given.
type Question struct {
	Model  *Model
	Engine *Engine
	Budget int64  // bytes for KV on one card
	Said   string // the budget as it was written

	Sessions int64 // at once
	Context  int64 // tokens of each
	Prefix   int64 // tokens that all of them begin with

	// As the engine's flags, for who names no engine.
	CacheType string
	TP, PP    int64
	Block     int64
}

// Report is the answer. Sizes are bytes on the card that fills first.
type Report struct {
	Architecture string `json:"architecture"`
	Layers       int    `json:"layers"`
	MaxContext   int64  `json:"max_context,omitempty"` // of a session, by the flags or else the model

	BytesPerToken    int64   `json:"bytes_per_token"`              // of a token that all growing layers keep
	SlidingPerToken  int64   `json:"sliding_bytes_per_token"`      // and of one that is still in the windows
	BytesPerSequence int64   `json:"state_bytes_per_sequence"`     // whatever its length
	Groups           []Group `json:"groups"`                       // of the stage that fills first
	Stage            string  `json:"pipeline_stage,omitempty"`     // which one that is
	Sharing          Sharing `json:"sharing"`                      // whether sessions share the KV
	Why              string  `json:"sharing_because"`              // and how that is known
	Engine           string  `json:"engine,omitempty"`             //
	Slots            int64   `json:"slots,omitempty"`              // sequences that run at once
	SlotTokens       int64   `json:"tokens_per_session,omitempty"` // the most that one session may hold

	Budget    int64 `json:"budget_bytes,omitempty"`
	Pool      *Pool `json:"pool,omitempty"` // what the budget holds
	Block     int64 `json:"block_size"`
	Allocated int64 `json:"allocated_bytes,omitempty"` // what the engine takes at its start, if its flags fix that
	Fits      *bool `json:"fits,omitempty"`            // what was asked for, in the budget and the slots

	Asked *Session `json:"asked,omitempty"` // sessions x context

	MaxSessions *Limit  `json:"max_sessions,omitempty"` // of the context that was asked
	MaxLength   *Limit  `json:"max_length,omitempty"`   // of the sessions that were asked
	Share       []Share `json:"share,omitempty"`        // how sessions share the budget
	Prefix      *Shared `json:"prefix,omitempty"`

	Findings []Finding `json:"findings"`
}

// Pool is a budget in the engine's units.
type Pool struct {
	Tokens int64 `json:"tokens"`
	Blocks int64 `json:"blocks,omitempty"`
}

// Group is the layers that cache alike.
type Group struct {
	Kind        Kind  `json:"kind"`
	Layers      int   `json:"layers"`
	Window      int64 `json:"window,omitempty"`
	PerToken    int64 `json:"bytes_per_token,omitempty"`
	PerSequence int64 `json:"bytes_per_sequence,omitempty"`
}

// Session is what sessions of one length hold.
type Session struct {
	Sessions int64 `json:"sessions"`
	Context  int64 `json:"context"`
	Each     int64 `json:"bytes_each"` // one alone
	All      int64 `json:"bytes_all"`
}

// Limit is a largest number and what sets it.
type Limit struct {
	N  int64  `json:"n"`
	By string `json:"by"` // kv, slot, slots, state, context (the model's or a flag's), or none
}

// Share is the longest context of so many sessions.
type Share struct {
	Sessions int64 `json:"sessions"`
	Context  int64 `json:"context"`
}

// Shared is what a prefix costs and saves.
type Shared struct {
	Tokens       int64   `json:"tokens"`
	Kept         int64   `json:"kept_tokens"` // whole blocks, which are all that is shared
	Once         int64   `json:"bytes_once"`
	Saved        int64   `json:"bytes_saved"`             // by the sessions that were asked
	PoolShare    float64 `json:"pool_share"`              // of the budget, while no session runs
	MaxSessions  *Limit  `json:"max_sessions,omitempty"`  // with the prefix shared
	WithoutCache *Limit  `json:"without_cache,omitempty"` // each with its own
	Why          string  `json:"because"`
}

// stage is the layers of one pipeline stage.
type stage struct {
	from, to int // layers, to excluded
	groups   []Group
	grow     int64 // bytes per token of full, latent and index layers
	state    int64 // bytes per sequence
}

// sliding is the stage's sliding bytes per token.
func (s *stage) sliding() (sum int64) {
	for _, g := range s.groups {
		if g.Kind == Sliding {
			sum = add(sum, g.PerToken)
		}
	}
	return sum
}

// Compute answers a question. The error says which value is wrong and what is
// allowed.
func Compute(q Question) (*Report, error) {
	c := &computer{q: q, m: q.Model, e: q.Engine}
	c.findings = append(append([]Finding{}, c.m.Findings...), c.e.Findings...)
	if err := c.settle(); err != nil {
		return nil, err
	}
	if err := c.split(); err != nil {
		return nil, err
	}
	r := &Report{
		Architecture: c.m.Architecture, Layers: c.m.Layers, MaxContext: c.maxContext, Sharing: c.e.Sharing, Why: c.e.Why,
		Engine: c.e.Name, Slots: c.e.Slots, Budget: q.Budget, Block: c.block,
	}
	if err := c.layout(r); err != nil {
		return nil, err
	}
	top := c.fullest()
	s := &c.stages[top]
	r.BytesPerToken, r.SlidingPerToken, r.BytesPerSequence, r.Groups = s.grow, s.sliding(), s.state, s.groups
	if len(c.stages) > 1 {
		r.Stage = fmt.Sprintf("layers %d to %d of %d", s.from, s.to-1, c.m.Layers)
	}
	c.answer(r, top)
	r.Findings = c.findings
	return r, nil
}

// computer is a question while it is answered.
type computer struct {
	q          Question
	m          *Model
	e          *Engine
	store      storage
	block      int64
	pp         int64
	maxContext int64
	stages     []stage
	pools      [][]pool // by stage
	sessions   int64    // the most that slots hold; 0: as many as fit
	slot       int64    // the most tokens of one; 0: as many as fit
	findings   []Finding
}

// found adds a finding, which several stages may have.
func (c *computer) found(what, value, how string) {
	if f := (Finding{what, value, how}); !slices.Contains(c.findings, f) {
		c.findings = append(c.findings, f)
	}
}

// either is a number that two places may say, if they agree.
func either(what string, asked, flag int64) (int64, error) {
	if asked != 0 && flag != 0 && asked != flag {
		return 0, fmt.Errorf("%s is %d and, by the engine's flags, %d: allowed is one of them", what, asked, flag)
	}
	return max(asked, flag), nil
}

// settle decides what the flags and the model leave open.
func (c *computer) settle() (err error) {
	q, e := &c.q, c.e
	for _, f := range []struct {
		what        string
		value, most int64
	}{{"sessions", q.Sessions, 1 << 20}, {"context", q.Context, maxTokens}, {"prefix", q.Prefix, maxTokens}, {"tensor parallel size", q.TP, 1 << 12}, {"pipeline parallel size", q.PP, maxLayers}, {"block size", q.Block, 1 << 20}} {
		if f.value < 0 || f.value > f.most {
			return fmt.Errorf("%s is %d: allowed are 1 to %d", f.what, f.value, f.most)
		}
	}
	if q.Prefix > 0 && q.Context > 0 && q.Prefix > q.Context {
		return fmt.Errorf("prefix is %d: allowed are at most the context's tokens, %d", q.Prefix, q.Context)
	}
	tp, err := either("tensor parallel size", q.TP, e.TP)
	if err != nil {
		return err
	}
	if c.pp, err = either("pipeline parallel size", q.PP, e.PP); err != nil {
		return err
	}
	if c.block, err = either("block size", q.Block, e.Block); err != nil {
		return err
	}
	if c.block == 0 && e.UsualBlock > 0 {
		c.block = e.UsualBlock
		c.found("block size", fmt.Sprint(c.block), "the default of "+e.Name+" for most attention backends")
	}
	c.store.tp, c.pp, c.block = max(1, tp), max(1, c.pp), max(1, c.block)
	if e.Name == LlamaServer {
		if c.store.tp > 1 || c.pp > 1 || q.Block > 1 {
			return fmt.Errorf("engine llama-server has no tensor or pipeline parallel size and no blocks: over several cards it divides layers by --split-mode, which is not computed here")
		}
	}
	if int64(c.m.Layers) < c.pp {
		return fmt.Errorf("pipeline parallel size is %d: allowed are at most the model's layers, %d", c.pp, c.m.Layers)
	}
	if c.maxContext = e.MaxContext; c.maxContext == 0 {
		c.maxContext = c.m.MaxContext
	}
	if q.Context > 0 && e.MaxContext > 0 && q.Context > e.MaxContext {
		return fmt.Errorf("context is %d: the engine's flags allow at most %d", q.Context, e.MaxContext)
	}
	if q.Context > 0 && c.m.MaxContext > 0 && q.Context > c.m.MaxContext {
		c.found("context", fmt.Sprint(q.Context), fmt.Sprintf("above the model's own %d", c.m.MaxContext))
	}
	if e.Sharing == SharedPool && e.Slots > 0 && q.Sessions > e.Slots {
		c.found("sessions", fmt.Sprint(q.Sessions), fmt.Sprintf("more than the %d that run at once: the others wait, and hold only what a prefix cache keeps of them", e.Slots))
	}
	if number, unit, ok := strings.Cut(q.Said, "B"); ok && unit == "" && len(number) > 0 && strings.Contains("MGT", number[len(number)-1:]) {
		if other, err := ParseBytes(number + "iB"); err == nil {
			c.found("budget", q.Said, fmt.Sprintf("read as a power of 1000; engines' logs mean %siB, which would be %.2f GiB", number, float64(other)/(1<<30)))
		}
	}
	return c.types()
}

// types decides how numbers are stored.
func (c *computer) types() error {
	key, value := c.e.KeyType, c.e.ValueType
	for _, t := range []*string{&key, &value} {
		if *t == "auto" {
			*t = ""
		}
		if c.q.CacheType != "" && c.q.CacheType != "auto" {
			if *t != "" && *t != c.q.CacheType {
				return fmt.Errorf("cache type is %q and, by the engine's flags, %q: allowed is one of them", c.q.CacheType, *t)
			}
			*t = c.q.CacheType
		}
	}
	model, known := elements[c.m.DType]
	how := fmt.Sprintf("the model's dtype %s: no cache type was said", c.m.DType)
	if c.e.Name == LlamaServer {
		model, known, how = elements["f16"], true, "the default of llama-server: --cache-type-k, --cache-type-v"
	}
	needed := false
	for i := range c.m.Caches {
		needed = needed || c.m.Caches[i].Kind != State
	}
	set := func(what, t string) (element, error) {
		if t != "" {
			e, ok := elements[t]
			if !ok {
				return e, fmt.Errorf("cache type %q is not known: allowed are auto, %s", t, CacheTypes)
			}
			c.found(what, e.name, "as the flags say")
			return e, nil
		}
		switch {
		case !needed:
			return element{"none", 1, 0}, nil
		case c.m.KVDType != "" && c.e.Name != LlamaServer:
			return model, fmt.Errorf("cache type is auto, and the checkpoint has a wish of its own (%s): say the cache type", c.m.KVDType)
		case !known:
			return model, fmt.Errorf("cache type is auto, and the model's dtype is %q: say the cache type, one of %s", c.m.DType, CacheTypes)
		case model.name == "f32" && c.e.Name != LlamaServer:
			return model, fmt.Errorf("cache type is auto, and the model's dtype is float32, which engines do not serve in: say the cache type")
		}
		c.found(what, model.name, how)
		return model, nil
	}
	var err error
	if c.store.key, err = set("key cache type", key); err != nil {
		return err
	}
	if c.store.value, err = set("value cache type", value); err != nil {
		return err
	}
	return c.stateTypes(model, known)
}

// stateTypes decides how state is stored, which no cache type says.
func (c *computer) stateTypes(model element, known bool) error {
	state := false
	for i := range c.m.Caches {
		state = state || c.m.Caches[i].Kind == State
	}
	if !state {
		return nil
	}
	conv, recurrent := c.e.ConvType, c.e.StateType
	how := "flag"
	switch {
	case c.e.Name == LlamaServer:
		conv, recurrent, how = "f32", "f32", "llama-server stores state so, whatever the cache type"
	case recurrent == "" || recurrent == "auto":
		recurrent, how = c.m.StateDType, "the model's mamba_ssm_dtype"
		if recurrent == "" && c.e.Name == SGLang {
			recurrent, how = "f32", "the default of SGLang: --mamba-ssm-dtype"
		}
	}
	if conv == "" || conv == "auto" {
		conv = c.m.DType
	}
	if recurrent == "" {
		recurrent, how = c.m.DType, "the model's dtype: nothing else was said"
	}
	var ok [2]bool
	c.store.conv, ok[0] = elements[conv]
	c.store.recurrent, ok[1] = elements[recurrent]
	if !ok[0] || !ok[1] {
		return fmt.Errorf("the state's types are %q (convolution) and %q (recurrent): allowed are f32, f16 and bf16; name an engine and its flags, or a model with dtype", conv, recurrent)
	}
	if c.store.conv.block > 1 || c.store.recurrent.block > 1 {
		return fmt.Errorf("the state's types are %s and %s: allowed are f32, f16 and bf16", conv, recurrent)
	}
	c.found("state types", c.store.conv.name+" convolution, "+c.store.recurrent.name+" recurrent", how)
	return nil
}

// split divides the layers over pipeline stages as vLLM and SGLang do: evenly,
// where one layer more goes to the stages before the last, from its side.
func (c *computer) split() error {
	each, rest := int64(c.m.Layers)/c.pp, int64(c.m.Layers)%c.pp
	at := int64(0)
	caches := c.m.Caches
	for i := range c.pp {
		n := each
		if fromEnd := c.pp - i; fromEnd >= 2 && fromEnd <= rest+1 {
			n++
		}
		s := stage{from: int(at), to: int(at + n)}
		at += n
		for len(caches) > 0 && caches[0].Layer < s.to {
			if err := s.put(&caches[0], &c.store); err != nil {
				return err
			}
			caches = caches[1:]
		}
		c.stages = append(c.stages, s)
	}
	if c.pp > 1 {
		c.found("pipeline stages", fmt.Sprintf("%d of %d or %d layers", c.pp, each, each+min(1, rest)), "the engine's default partition; figures are of the stage that fills first")
	}
	if c.store.tp > 1 {
		c.found("tensor parallel size", fmt.Sprint(c.store.tp), "heads are split over cards until each has one; latent attention is the same on each")
	}
	return nil
}

// put adds a layer's cache to its group.
func (s *stage) put(c *Cache, store *storage) error {
	b, err := c.bytes(store)
	if err != nil {
		return err
	}
	g := Group{Kind: c.Kind, Window: c.Window, Layers: 1, PerToken: b}
	switch c.Kind {
	case State:
		g.PerToken, g.PerSequence = 0, b
		s.state = add(s.state, b)
	case Sliding:
	default:
		s.grow = add(s.grow, b)
	}
	for i := range s.groups {
		o := &s.groups[i]
		if o.Kind == g.Kind && o.Window == g.Window && o.PerToken == mul(g.PerToken, int64(o.Layers)) && o.PerSequence == mul(g.PerSequence, int64(o.Layers)) {
			o.Layers++
			o.PerToken, o.PerSequence = add(o.PerToken, g.PerToken), add(o.PerSequence, g.PerSequence)
			return nil
		}
	}
	s.groups = append(s.groups, g)
	return nil
}

// pool is something that sessions take from. Its size and what they need are
// counted in units.
type pool struct {
	by   string
	size int64 // MaxInt64: no limit
	unit int64 // bytes
	need func(sessions, context, prefix int64) int64
}

// fits tells whether so many sessions of that length do. If not, by says what they
// lack.
func (c *computer) fits(n, context, prefix int64) (ok bool, by string) {
	if c.slot > 0 && context > c.slot {
		return false, "slot"
	}
	for _, pools := range c.pools {
		for i := range pools {
			if pools[i].need(n, context, prefix) > pools[i].size {
				return false, pools[i].by
			}
		}
	}
	return true, ""
}

// held is the bytes that sessions hold on a stage.
func (c *computer) held(stage int, n, context, prefix int64) (sum int64) {
	for i := range c.pools[stage] {
		p := &c.pools[stage][i]
		sum = add(sum, mul(p.need(n, context, prefix), p.unit))
	}
	return sum
}

// fullest is the stage that fills first.
func (c *computer) fullest() (top int) {
	context := c.q.Context
	if context == 0 {
		context = max(1, min(c.maxContext, 1<<17))
	}
	for i := range c.stages {
		if c.held(i, 1, context, 0) > c.held(top, 1, context, 0) {
			top = i
		}
	}
	return top
}

// largest returns the largest n up to most for which ok holds; ok holds from 0 on
// up to some number.
func largest(most int64, ok func(n int64) bool) int64 {
	low, high := int64(0), most
	for low < high {
		mid := low + (high-low+1)/2
		if ok(mid) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// maxSessions is the most sessions that are counted.
const maxSessions = 1 << 20

func (c *computer) limitSessions(context, prefix int64) *Limit {
	most, by := int64(maxSessions), "none"
	if c.sessions > 0 {
		most, by = c.sessions, "slots"
	}
	n := largest(most, func(n int64) bool { ok, _ := c.fits(n, context, prefix); return ok })
	if n < most {
		_, by = c.fits(n+1, context, prefix)
	}
	return &Limit{n, by}
}

func (c *computer) limitContext(n, prefix int64) *Limit {
	most, by := int64(maxTokens), "none"
	if c.maxContext > 0 {
		most, by = c.maxContext, "context"
	}
	if c.sessions > 0 && n > c.sessions {
		return &Limit{0, "slots"}
	}
	t := largest(most, func(t int64) bool { ok, _ := c.fits(n, t, min(prefix, t)); return ok })
	if t < most {
		_, by = c.fits(n, t+1, min(prefix, t+1))
	}
	return &Limit{t, by}
}

// answer fills what was asked.
func (c *computer) answer(r *Report, top int) {
	q := &c.q
	limited := q.Budget > 0 || r.Allocated > 0
	if q.Context > 0 {
		n := max(1, q.Sessions)
		r.Asked = &Session{n, q.Context, c.held(top, 1, q.Context, 0), c.held(top, n, q.Context, q.Prefix)}
	}
	if !limited {
		return
	}
	if q.Context > 0 {
		fits, _ := c.fits(r.Asked.Sessions, q.Context, q.Prefix)
		fits = fits && (c.sessions == 0 || r.Asked.Sessions <= c.sessions) && (r.Allocated <= q.Budget || q.Budget == 0)
		r.Fits = &fits
		r.MaxSessions = c.limitSessions(q.Context, q.Prefix)
	}
	if q.Sessions > 0 {
		r.MaxLength = c.limitContext(q.Sessions, q.Prefix)
	}
	for n := int64(1); n <= 64; n *= 2 {
		if c.sessions > 0 && n > c.sessions {
			break
		}
		l := c.limitContext(n, q.Prefix)
		r.Share = append(r.Share, Share{n, l.N})
		if l.N == 0 {
			break
		}
	}
	if q.Prefix > 0 {
		r.Prefix = c.prefix(r, top)
	}
}

// prefix says what a shared prefix costs and saves.
func (c *computer) prefix(r *Report, top int) *Shared {
	q := &c.q
	kept := q.Prefix / c.block * c.block
	p := &Shared{Tokens: q.Prefix, Kept: kept, Why: "sessions share the prefix's whole blocks in full, latent and index layers; windows and state are each session's own"}
	if !c.e.PrefixCaching && c.e.Sharing != NotSaid {
		p.Kept, p.Why = 0, "prefix caching is off: each session holds its own copy"
		if c.e.Name == LlamaServer {
			p.Why = "llama-server keeps a prefix in the slot that computed it: each slot holds its own copy"
		}
	}
	p.Once = mul(p.Kept, c.stages[top].grow)
	if q.Budget > 0 {
		p.PoolShare = math.Min(1, float64(p.Once)/float64(q.Budget))
	}
	if q.Context > 0 {
		p.Saved = c.held(top, r.Asked.Sessions, q.Context, 0) - c.held(top, r.Asked.Sessions, q.Context, q.Prefix)
		p.MaxSessions, p.WithoutCache = r.MaxSessions, c.limitSessions(q.Context, 0)
	}
	return p
}
