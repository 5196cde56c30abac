package batchtest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"headgate/batch"
)

// Memory is a store that forgets everything: the oracle that others are held against, in
// the plainest form, and what a worker is tested over.
type Memory struct {
	mu      sync.Mutex
	files   []*batch.File
	batches []*rows
	leases  map[string]time.Time
	holds   map[string]hold
}

type rows struct {
	batch.Batch
	items   map[int64]*item
	results []result
}

type item struct {
	batch.Item
	worker    string // "": nobody has claimed it
	notBefore time.Time
	fence     int64
	attempts  int
	kept      []byte
}

type result struct {
	failed bool
	line   []byte
}

type hold struct {
	worker string
	until  time.Time
}

// NewMemory returns a store with nothing in it.
func NewMemory() *Memory {
	return &Memory{leases: map[string]time.Time{}, holds: map[string]hold{}}
}

func kept(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Truncate(time.Microsecond).UTC()
}

func (m *Memory) Holdings(_ context.Context, tenant string) (batch.Holdings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holdingsLocked(tenant), nil
}

func (m *Memory) holdingsLocked(tenant string) (h batch.Holdings) {
	for _, f := range m.files {
		if f.Tenant == tenant {
			h.Files++
			h.Bytes += f.Bytes
		}
	}
	for _, b := range m.batches {
		if b.Tenant == tenant && !b.Status.Ended() {
			h.Batches++
		}
	}
	return h
}

func (m *Memory) CreateFile(_ context.Context, f *batch.File, most batch.Holdings) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.holdingsLocked(f.Tenant).Check(batch.Holdings{Files: 1, Bytes: f.Bytes}, most); err != nil {
		return err
	}
	if m.fileLocked(f.ID) != nil {
		return fmt.Errorf("file %s: %w: it exists", f.ID, batch.ErrState)
	}
	m.createFileLocked(f)
	return nil
}

func (m *Memory) createFileLocked(f *batch.File) {
	c := *f
	c.Created, c.Expires = kept(c.Created), kept(c.Expires)
	m.files = append(m.files, &c)
}

func (m *Memory) fileLocked(id string) *batch.File {
	for _, f := range m.files {
		if f.ID == id {
			return f
		}
	}
	return nil
}

func (m *Memory) File(_ context.Context, tenant, id string) (*batch.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.fileLocked(id)
	if f == nil || f.Tenant != tenant {
		return nil, batch.ErrNotFound
	}
	c := *f
	return &c, nil
}

// page cuts what p asks for out of what there is, oldest first.
func page[T any](all []T, name func(T) string, p batch.Page) ([]T, bool, error) {
	if !p.Oldest {
		slices.Reverse(all)
	}
	if p.After != "" {
		at := slices.IndexFunc(all, func(v T) bool { return name(v) == p.After })
		if at < 0 {
			return nil, false, batch.ErrNotFound
		}
		all = all[at+1:]
	}
	n := min(p.Limit, len(all))
	return all[:n], n < len(all), nil
}

func (m *Memory) Files(_ context.Context, tenant string, p batch.Page) ([]*batch.File, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*batch.File
	for _, f := range m.files {
		if f.Tenant == tenant && (p.Purpose == "" || f.Purpose == p.Purpose || f.ID == p.After) {
			c := *f
			all = append(all, &c)
		}
	}
	return page(all, func(f *batch.File) string { return f.ID }, p)
}

// readLocked tells whether a batch that has not ended reads a file.
func (m *Memory) readLocked(id string) bool {
	return slices.ContainsFunc(m.batches, func(b *rows) bool { return b.Input == id && !b.Status.Ended() })
}

func (m *Memory) DeleteFile(_ context.Context, tenant, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.fileLocked(id)
	if f == nil || f.Tenant != tenant {
		return batch.ErrNotFound
	}
	if m.readLocked(id) {
		return batch.ErrState
	}
	m.files = slices.DeleteFunc(m.files, func(o *batch.File) bool { return o == f })
	return nil
}

func (m *Memory) ExpiredFiles(_ context.Context, now time.Time, limit int) ([]*batch.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var expired []*batch.File
	for _, f := range m.files {
		if !f.Expires.IsZero() && !f.Expires.After(now) && !m.readLocked(f.ID) && len(expired) < limit {
			c := *f
			expired = append(expired, &c)
		}
	}
	return expired, nil
}

func (m *Memory) Strays(_ context.Context, ids []string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var strays []string
	for _, id := range ids {
		if m.fileLocked(id) == nil {
			strays = append(strays, id)
		}
	}
	return strays, nil
}

func (m *Memory) CreateBatch(_ context.Context, b *batch.Batch, most batch.Holdings) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.holdingsLocked(b.Tenant).Check(batch.Holdings{Batches: 1}, most); err != nil {
		return err
	}
	if f := m.fileLocked(b.Input); f == nil || f.Tenant != b.Tenant {
		return fmt.Errorf("file %s: %w", b.Input, batch.ErrNotFound)
	}
	if m.batchLocked(b.ID) != nil {
		return fmt.Errorf("batch %s: %w: it exists", b.ID, batch.ErrState)
	}
	c := &rows{Batch: *b, items: map[int64]*item{}}
	c.Status, c.Created, c.Expires = batch.Validating, kept(c.Created), kept(c.Expires)
	m.batches = append(m.batches, c)
	return nil
}

func (m *Memory) batchLocked(id string) *rows {
	for _, b := range m.batches {
		if b.ID == id {
			return b
		}
	}
	return nil
}

func (b *rows) copy() *batch.Batch {
	c := b.Batch
	c.Metadata, c.Errors = maps.Clone(c.Metadata), slices.Clone(c.Errors)
	return &c
}

func (m *Memory) Batch(_ context.Context, tenant, id string) (*batch.Batch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.batchLocked(id)
	if b == nil || b.Tenant != tenant {
		return nil, batch.ErrNotFound
	}
	return b.copy(), nil
}

func (m *Memory) Batches(_ context.Context, tenant string, p batch.Page) ([]*batch.Batch, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*batch.Batch
	for _, b := range m.batches {
		if b.Tenant == tenant {
			all = append(all, b.copy())
		}
	}
	return page(all, func(b *batch.Batch) string { return b.ID }, p)
}

func (m *Memory) AllBatches(_ context.Context, p batch.Page) ([]*batch.Batch, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*batch.Batch
	for _, b := range m.batches {
		if p.Open && b.Status.Ended() && b.ID != p.After {
			continue
		}
		c := b.copy()
		c.Metadata = nil
		all = append(all, c)
	}
	return page(all, func(b *batch.Batch) string { return b.ID }, p)
}

func (m *Memory) Unfinished(context.Context) ([]*batch.Batch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*batch.Batch
	for _, b := range m.batches {
		if !b.Status.Ended() {
			c := b.copy()
			c.Metadata = nil
			all = append(all, c)
		}
	}
	return all, nil
}

// inLocked returns a batch that is in one of some states.
func (m *Memory) inLocked(id string, states ...batch.Status) (*rows, error) {
	b := m.batchLocked(id)
	switch {
	case b == nil:
		return nil, batch.ErrNotFound
	case !slices.Contains(states, b.Status):
		return nil, fmt.Errorf("batch %s is %s: %w", id, b.Status, batch.ErrState)
	}
	return b, nil
}

func (m *Memory) AddItems(_ context.Context, id string, items []batch.Item) ([]batch.Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.inLocked(id, batch.Validating)
	if err != nil {
		return nil, err
	}
	var duplicate []batch.Item
	names := map[string]bool{}
	for _, it := range b.items {
		names[it.CustomID] = true
	}
	for _, it := range items {
		if b.items[it.Line] != nil {
			continue
		}
		it.Batch = id
		if names[it.CustomID] {
			duplicate = append(duplicate, it)
			continue
		}
		names[it.CustomID] = true
		b.items[it.Line] = &item{Item: it}
		b.Counts.Total++
	}
	return duplicate, nil
}

func (m *Memory) Start(_ context.Context, id string, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.inLocked(id, batch.Validating)
	if err != nil {
		return err
	}
	b.Status, b.Started = batch.InProgress, kept(now)
	return nil
}

func (b *rows) drop() {
	clear(b.items)
	b.results = nil
}

func (m *Memory) Fail(_ context.Context, id string, why []batch.LineError, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.inLocked(id, batch.Validating)
	if err != nil {
		return err
	}
	b.Status, b.FailedAt, b.Errors, b.Counts = batch.Failed, kept(now), slices.Clone(why), batch.Counts{}
	b.drop()
	return nil
}

func (m *Memory) Cancel(_ context.Context, tenant, id string, now time.Time) (*batch.Batch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.batchLocked(id)
	if b == nil || b.Tenant != tenant {
		return nil, batch.ErrNotFound
	}
	switch {
	case b.Status == batch.Validating:
		b.drop()
		b.Counts = batch.Counts{}
	case b.Status == batch.InProgress && b.ExpiredAt.IsZero():
	case b.Status == batch.Cancelling:
		return b.copy(), nil
	default:
		return nil, fmt.Errorf("batch %s is %s: %w", id, b.Status, batch.ErrState)
	}
	b.Status, b.CancellingAt = batch.Cancelling, kept(now)
	return b.copy(), nil
}

// liveLocked tells whether an item is under a lease that is not over.
func (m *Memory) liveLocked(it *item, now time.Time) bool {
	return it.worker != "" && m.leases[it.worker].After(now)
}

func (m *Memory) Waiting(_ context.Context, now time.Time) ([]batch.Waiting, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []batch.Waiting
	for _, b := range m.batches {
		if b.Status != batch.InProgress || !b.Expires.After(now) {
			continue
		}
		w := batch.Waiting{Batch: b.ID, Tenant: b.Tenant, Class: b.Class, Created: b.Created, Deadline: b.Expires,
			Total: b.Counts.Total, Done: b.Counts.Done()}
		for _, it := range b.items {
			switch {
			case m.liveLocked(it, now):
				w.Running++
			case it.notBefore.After(now):
				if w.Next.IsZero() || it.notBefore.Before(w.Next) {
					w.Next = it.notBefore
				}
			default:
				w.Ready++
			}
		}
		all = append(all, w)
	}
	return all, nil
}

func (m *Memory) Claim(_ context.Context, id, worker string, n int, after uint64, now, until time.Time) ([]batch.Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.batchLocked(id)
	if b == nil {
		return nil, batch.ErrNotFound
	}
	m.sweepLocked(now)
	if b.Status != batch.InProgress || !b.Expires.After(now) {
		return nil, nil
	}
	var ready []*item
	for _, it := range b.items {
		if it.worker == "" && !it.notBefore.After(now) {
			ready = append(ready, it)
		}
	}
	slices.SortFunc(ready, func(x, y *item) int {
		// The distance behind after, once around.
		return cmp.Or(cmp.Compare(x.Prefix-after, y.Prefix-after), cmp.Compare(x.Line, y.Line))
	})
	var claims []batch.Claim
	for _, it := range ready[:min(n, len(ready))] {
		it.worker, it.notBefore = worker, time.Time{}
		it.fence++
		m.leases[worker] = kept(until)
		claims = append(claims, batch.Claim{Item: it.Item, Tenant: b.Tenant, Key: b.Key, Class: b.Class, Endpoint: b.Endpoint,
			Input: b.Input, Deadline: b.Expires, Fence: it.fence, Attempts: it.attempts, Kept: bytes.Clone(it.kept)})
	}
	return claims, nil
}

// sweepLocked ends leases that are over.
func (m *Memory) sweepLocked(now time.Time) {
	for _, b := range m.batches {
		for _, it := range b.items {
			if it.worker != "" && !m.liveLocked(it, now) {
				it.worker = ""
			}
		}
	}
	maps.DeleteFunc(m.leases, func(_ string, until time.Time) bool { return !until.After(now) })
}

func (m *Memory) Renew(_ context.Context, worker string, now, until time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leases[worker].After(now) {
		return batch.ErrFenced
	}
	m.leases[worker] = kept(until)
	return nil
}

func (m *Memory) Save(_ context.Context, cs []batch.Checkpoint, rs []batch.Retry, os []batch.Outcome, _ time.Time) ([]error, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	save := func(id string, line, fence int64, write func(b *rows, it *item)) {
		if b := m.batchLocked(id); b != nil {
			if it := b.items[line]; it != nil && it.fence == fence {
				write(b, it)
				errs = append(errs, nil)
				return
			}
		}
		errs = append(errs, batch.ErrFenced)
	}
	for _, c := range cs {
		save(c.Batch, c.Line, c.Fence, func(_ *rows, it *item) { it.kept = bytes.Clone(c.Kept) })
	}
	for _, r := range rs {
		save(r.Batch, r.Line, r.Fence, func(b *rows, it *item) {
			b.Counts.Wasted += r.Wasted
			it.worker, it.notBefore = "", kept(r.NotBefore)
			it.fence++
			if r.Failed {
				it.attempts++
			}
		})
	}
	for _, o := range os {
		save(o.Batch, o.Line, o.Fence, func(b *rows, it *item) { b.done(it, o) })
	}
	return errs, nil
}

func (b *rows) done(it *item, o batch.Outcome) {
	delete(b.items, it.Line)
	b.results = append(b.results, result{o.Failed, bytes.Clone(o.Result)})
	if o.Failed {
		b.Counts.Failed++
	} else {
		b.Counts.Completed++
	}
	b.Counts.Prompt += o.Prompt
	b.Counts.Output += o.Output
	b.Counts.Wasted += o.Wasted
}

func (m *Memory) Lapse(_ context.Context, id string, limit int, now time.Time, write func(batch.Item) batch.Outcome) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.inLocked(id, batch.InProgress, batch.Cancelling)
	if err != nil {
		return 0, err
	}
	if b.Status == batch.InProgress {
		if b.Expires.After(now) {
			return 0, fmt.Errorf("batch %s is before its deadline: %w", id, batch.ErrState)
		}
		if b.ExpiredAt.IsZero() {
			b.ExpiredAt = kept(now)
		}
	}
	for _, line := range slices.Sorted(maps.Keys(b.items)) {
		it := b.items[line]
		if limit == 0 {
			break
		}
		if b.Status == batch.Cancelling && m.liveLocked(it, now) {
			continue
		}
		b.done(it, write(it.Item))
		limit--
	}
	return int64(len(b.items)), nil
}

func (m *Memory) Finalize(_ context.Context, id string, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.inLocked(id, batch.InProgress, batch.Cancelling, batch.Finalizing)
	if err != nil {
		return err
	}
	if !b.FinalizingAt.IsZero() {
		return nil
	}
	if len(b.items) > 0 {
		return fmt.Errorf("batch %s has %d items that are not done: %w", id, len(b.items), batch.ErrState)
	}
	b.FinalizingAt = kept(now)
	if b.Status == batch.InProgress {
		b.Status = batch.Finalizing
	}
	return nil
}

func (m *Memory) Results(_ context.Context, id string, failed bool, after int64, each func(int64, []byte) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.batchLocked(id)
	if b == nil {
		return batch.ErrNotFound
	}
	for i, r := range b.results {
		if place := int64(i) + 1; r.failed == failed && place > after {
			if err := each(place, r.line); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Memory) Finish(_ context.Context, id string, output, errors *batch.File, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.inLocked(id, batch.Finalizing, batch.Cancelling)
	if err != nil {
		return err
	}
	if b.FinalizingAt.IsZero() {
		return fmt.Errorf("batch %s: %w", id, batch.ErrState)
	}
	for _, f := range []*batch.File{output, errors} {
		if f != nil && m.fileLocked(f.ID) == nil {
			m.createFileLocked(f)
		}
	}
	if output != nil {
		b.Output = output.ID
	}
	if errors != nil {
		b.Error = errors.ID
	}
	b.Status = b.End()
	switch b.Status {
	case batch.Cancelled:
		b.CancelledAt = kept(now)
	case batch.Completed:
		b.CompletedAt = kept(now)
	}
	b.drop()
	return nil
}

func (m *Memory) Hold(_ context.Context, name, worker string, now, until time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h, ok := m.holds[name]; ok && h.worker != worker && h.until.After(now) {
		return fmt.Errorf("%s is %s's: %w", name, h.worker, batch.ErrFenced)
	}
	m.holds[name] = hold{worker, kept(until)}
	return nil
}

func (m *Memory) Forget(_ context.Context, before time.Time, limit int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	m.batches = slices.DeleteFunc(m.batches, func(b *rows) bool {
		gone := n < limit && b.Status.Ended() && b.Ended().Before(before)
		if gone {
			n++
		}
		return gone
	})
	return n, nil
}

func (m *Memory) Vacuum(context.Context) (bool, error) { return false, nil }
func (m *Memory) Close() error                         { return nil }
