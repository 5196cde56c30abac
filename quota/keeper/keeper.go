// Package keeper is the shell around quota's ledger: it owns the clock, the lock, the
// metrics, and the file in which balances outlive the process. It decides nothing.
//
// One lock guards the ledger. It is taken for a moment by each request when it is
// offered, every few tokens and at its end, also under a pool's lock; nothing is called
// under it that takes another.
//
// # Balances
//
// The file has what is left of each balance, without what is held. It is written within a
// second of a change and at the end, and before a refill is said to be done. So a process that is
// killed forgets what was settled in its last second and what was running, both to the
// good of the tenants. A file that can't be written is said in the log and by a metric;
// requests go on.
package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/quota"
)

// Config of a Keeper.
type Config struct {
	Table quota.Table // valid
	// Most is for how many tenants without rules of their own there is room.
	Most int
	// File has the balances; "": they end with the process.
	File string
	Log  *slog.Logger // nil: none
}

// Keeper keeps the books of a process's tenants. Its methods are safe for concurrent use.
type Keeper struct {
	cfg   Config
	start time.Time
	some  atomic.Bool // there are limits

	mu     sync.Mutex
	ledger *quota.Ledger

	saving sync.Mutex // who writes the file
	saved  []byte     // as it was read or written
	failed atomic.Uint64
}

// New makes a keeper, with the balances of its file if there is one.
func New(cfg Config) (*Keeper, error) {
	k := &Keeper{cfg: cfg, start: time.Now(), ledger: quota.New(&cfg.Table, cfg.Most)}
	if k.cfg.Log == nil {
		k.cfg.Log = slog.New(slog.DiscardHandler)
	}
	k.some.Store(limits(&cfg.Table))
	if cfg.File == "" {
		return k, nil
	}
	if err := k.restore(); err != nil {
		return nil, fmt.Errorf("balances of tenants: %s: %w", cfg.File, err)
	}
	return k, nil
}

func limits(t *quota.Table) bool {
	return len(t.Tenants) > 0 || t.Others != quota.Rules{} || t.Together != quota.Rules{}
}

func (k *Keeper) now() quota.Time { return quota.Time(time.Since(k.start)) }

// Apply replaces the rules by those of a valid table.
func (k *Keeper) Apply(t *quota.Table) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ledger.Apply(k.now(), t)
	k.some.Store(limits(t))
}

// Share gives this replica parts of a million of every tenant's limits, and of some others.
func (k *Keeper) Share(base int64, parts []quota.Part) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ledger.Share(k.now(), base, parts)
}

// Demand returns what was asked for since the last call, of the n tenants that asked for most.
func (k *Keeper) Demand(n int) []quota.Demand {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ledger.Demand(k.now(), n)
}

// Hold is what a request has reserved. Its methods are nil-safe: one that reserves nothing has
// none.
type Hold struct {
	keeper *Keeper
	id     quota.ID
}

// Reserve asks for what a request is expected to cost. The hold is nil if it was refused,
// or its tenant has no limits.
func (k *Keeper) Reserve(tenant string, ask quota.Ask) (*Hold, quota.Answer) {
	if k == nil || !k.some.Load() {
		return nil, quota.Answer{}
	}
	k.mu.Lock()
	answer := k.ledger.Reserve(k.now(), tenant, ask)
	k.mu.Unlock()
	if answer.ID == 0 {
		return nil, answer
	}
	return &Hold{k, answer.ID}, answer
}

// Progress says what the request has used so far, in tokens.
func (h *Hold) Progress(prompt, output int64) {
	if h == nil {
		return
	}
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	h.keeper.ledger.Progress(h.keeper.now(), h.id, prompt, output)
}

// Settle ends the hold. Only the first call counts.
func (h *Hold) Settle(use quota.Use) {
	if h == nil {
		return
	}
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	h.keeper.ledger.Settle(h.keeper.now(), h.id, use)
}

// Accounts returns those of tenants with rules of their own, and up to so many others.
func (k *Keeper) Accounts(others int) []quota.Account {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ledger.All(k.now(), others)
}

// Account returns one tenant's.
func (k *Keeper) Account(tenant string) quota.Account {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ledger.Look(k.now(), tenant)
}

// ErrNoBalance is that a tenant has no balance by the rules.
var ErrNoBalance = errors.New("the tenant has no balance")

// Refill adds to a tenant's balance, or takes from it what is below 0, and returns what
// is left then. When it returns without an error that outlives the process.
func (k *Keeper) Refill(tenant string, tokens int64) (left int64, err error) {
	k.mu.Lock()
	left, ok := k.ledger.Refill(k.now(), tenant, tokens)
	k.mu.Unlock()
	if !ok {
		return 0, ErrNoBalance
	}
	if err := k.save(); err != nil {
		return left, fmt.Errorf("it counts, and is forgotten if the process ends before it can be written: %w", err)
	}
	return left, nil
}

// saveEvery is after what time a change is written at the latest.
const saveEvery = time.Second

// Run writes balances that change, until ctx is over, and then once more.
func (k *Keeper) Run(ctx context.Context) {
	if k.cfg.File == "" {
		return
	}
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			over = true
		}
		if err := k.save(); err != nil {
			k.cfg.Log.Error("balances were not saved", "file", k.cfg.File, "err", err)
		}
	}
}

// state is the file.
type state struct {
	Version  int     `json:"version"`
	Balances []purse `json:"balances"`
}

type purse struct {
	Tenant string `json:"tenant"`
	Tokens int64  `json:"tokens"`
}

const version = 1

// mostFile bounds what is read, in bytes.
const mostFile = 64 << 20

func (k *Keeper) restore() error {
	b, err := os.ReadFile(k.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(b) > mostFile {
		return fmt.Errorf("it is larger than %d bytes", mostFile)
	}
	// One that can't be read is no reason to begin with nothing: somebody has paid.
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s.Version != version {
		return fmt.Errorf("its version is %d, must be %d", s.Version, version)
	}
	all := make([]quota.Purse, len(s.Balances))
	for i, p := range s.Balances {
		all[i] = quota.Purse{Tenant: p.Tenant, Left: p.Tokens}
	}
	k.ledger.Restore(all)
	k.saved = b
	return nil
}

// save writes what has changed.
func (k *Keeper) save() error {
	if k.cfg.File == "" {
		return nil
	}
	k.saving.Lock()
	defer k.saving.Unlock()
	k.mu.Lock()
	purses := k.ledger.Purses()
	k.mu.Unlock()
	s := state{Version: version, Balances: make([]purse, len(purses))}
	for i, p := range purses {
		s.Balances[i] = purse{p.Tenant, p.Left}
	}
	b, err := json.Marshal(s)
	if err == nil && (bytes.Equal(b, k.saved) || k.saved == nil && len(purses) == 0) {
		return nil
	}
	if err == nil {
		err = replace(k.cfg.File, b)
	}
	if err != nil {
		k.failed.Add(1)
		return err
	}
	k.saved = b
	return nil
}

// replace writes a file whole or not at all, whenever the machine stops.
func replace(name string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

var (
	descRequests = prometheus.NewDesc("headgate_limit_requests_total",
		"Requests of tenants that have limits, by outcome: reserved (let in), began (an engine was given them), refused and would_refuse (by a limit in dry run) with the limit that did: requests, tokens or balance. tenant is other for all that have no limits of their own.",
		[]string{"tenant", "outcome", "limit"}, nil)
	descTokens = prometheus.NewDesc("headgate_limit_tokens_total",
		"Tokens of tenants that have limits, as they were settled: prompt, output, and billed, the weighted tokens that were taken from a balance.",
		[]string{"tenant", "account"}, nil)
	descLeft = prometheus.NewDesc("headgate_limit_left",
		"What a tenant with limits of its own could use at once: requests, weighted tokens, or tokens of its balance. tenant is other for what all others may use together. Of this replica's share.",
		[]string{"tenant", "limit"}, nil)
	descHeld = prometheus.NewDesc("headgate_limit_held",
		"What requests that wait or run have reserved of a tenant's limits and not used yet.", []string{"tenant", "limit"}, nil)
	descAccounts = prometheus.NewDesc("headgate_limit_accounts", "Tenants without limits of their own that have used something within a window.", nil, nil)
	descCrowded  = prometheus.NewDesc("headgate_limit_crowded_total",
		"Requests of tenants that shared an account, because there were more tenants than there is room for. Moves only while headgate_limit_accounts is at its bound.", nil, nil)
	descUnsaved = prometheus.NewDesc("headgate_limit_save_failures_total", "Times that balances could not be written to their file.", nil, nil)
)

// Describe implements prometheus.Collector.
func (*Keeper) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descRequests, descTokens, descLeft, descHeld, descAccounts, descCrowded, descUnsaved} {
		ch <- d
	}
}

// other stands for all tenants without rules of their own: their names come from outside.
const other = "other"

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	k.mu.Lock()
	counts := append([]quota.Counts(nil), k.ledger.Counts()...)
	accounts := k.ledger.All(k.now(), 0)
	size, _ := k.ledger.Size()
	k.mu.Unlock()
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for i := range counts {
		c, tenant := &counts[i], other
		if i < len(counts)-1 {
			tenant = accounts[i].Tenant
		}
		counter(descRequests, c.Reserved, tenant, "reserved", "")
		counter(descRequests, c.Began, tenant, "began", "")
		for l := range c.Refused {
			limit := quota.Kind(l).String()
			// With ten thousand tenants most series would be of what never happened.
			if c.Refused[l] > 0 {
				counter(descRequests, c.Refused[l], tenant, "refused", limit)
			}
			if c.Would[l] > 0 {
				counter(descRequests, c.Would[l], tenant, "would_refuse", limit)
			}
		}
		counter(descTokens, c.Prompt, tenant, "prompt")
		counter(descTokens, c.Output, tenant, "output")
		counter(descTokens, c.Billed, tenant, "billed")
	}
	for i := range accounts {
		a := &accounts[i]
		if a.Together {
			a.Tenant = other
		}
		for l, s := range []quota.State{a.Requests, a.Tokens} {
			if s.Limit > 0 {
				gauge(descLeft, s.Left, a.Tenant, quota.Kind(l).String())
				gauge(descHeld, s.Held, a.Tenant, quota.Kind(l).String())
			}
		}
		if a.Balance.Prepaid {
			gauge(descLeft, a.Balance.Left, a.Tenant, quota.Balance.String())
			gauge(descHeld, a.Balance.Held, a.Tenant, quota.Balance.String())
		}
	}
	gauge(descAccounts, int64(size))
	counter(descCrowded, counts[len(counts)-1].Crowded)
	counter(descUnsaved, k.failed.Load())
}
