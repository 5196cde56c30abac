package batchtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/batch"
)

// agree makes random changes to a store and to the oracle, which must answer alike and
// show the same after every step.
func agree(t *testing.T, fresh func(t *testing.T) Storage) {
	var storage Storage
	rapid.Check(t, func(r *rapid.T) {
		if storage.Empty == nil {
			storage = fresh(t)
		} else if err := storage.Empty(); err != nil {
			r.Fatal(err)
		}
		p := &pair{r: r, oracle: NewMemory(), now: 10}
		var err error
		if p.store, err = storage.Open(); err != nil {
			r.Fatal(err)
		}
		defer func() { p.store.Close() }()
		p.change("files", func(s batch.Store) (any, error) {
			for i := range 4 {
				if err := s.CreateFile(background, &batch.File{ID: fmt.Sprint("f", i), Tenant: tenants[i%2], Purpose: "batch", Created: at(0), Expires: at(float64(i) * 30)}, batch.Holdings{}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
		r.Repeat(map[string]func(*rapid.T){
			"":         func(*rapid.T) { p.compare() },
			"create":   p.create,
			"ingest":   p.ingest,
			"start":    p.start,
			"claim":    p.claim,
			"claim ":   p.claim, // twice as often
			"save":     p.save,
			"save ":    p.save,
			"renew":    p.renew,
			"lapse":    p.lapse,
			"finalize": p.finalize,
			"cancel":   p.cancel,
			"remove":   p.remove,
			"later":    func(r *rapid.T) { p.now += rapid.IntRange(1, 40).Draw(r, "seconds") },
			"reopen": func(r *rapid.T) {
				if err := p.store.Close(); err != nil {
					r.Fatal(err)
				}
				if p.store, err = storage.Open(); err != nil {
					r.Fatal(err)
				}
			},
			"vacuum": func(r *rapid.T) {
				if _, err := p.store.Vacuum(background); err != nil {
					r.Fatal(err)
				}
			},
		})
	})
}

var tenants = []string{"alice", "bob"}

type pair struct {
	r      *rapid.T
	store  batch.Store
	oracle *Memory
	now    int
	claims []batch.Claim // ever made
}

// change makes it to both, which must answer alike.
func (p *pair) change(what string, do func(batch.Store) (any, error)) (any, error) {
	want, wantErr := do(p.oracle)
	have, haveErr := do(p.store)
	if a, b := kind(wantErr), kind(haveErr); a != b {
		p.r.Fatalf("%s: %s (%v); the oracle: %s (%v)", what, b, haveErr, a, wantErr)
	}
	if d := cmp.Diff(want, have); d != "" {
		p.r.Fatalf("%s (-oracle +store):\n%s", what, d)
	}
	return have, haveErr
}

func kind(err error) string {
	for _, k := range []error{batch.ErrNotFound, batch.ErrState, batch.ErrFenced} {
		if errors.Is(err, k) {
			return k.Error()
		}
	}
	if err != nil {
		return "an error"
	}
	return "no error"
}

func (p *pair) id(r *rapid.T) string { return fmt.Sprint("b", rapid.IntRange(0, 3).Draw(r, "batch")) }

func (p *pair) later(r *rapid.T) int { return p.now + rapid.IntRange(0, 60).Draw(r, "for") }

func (p *pair) create(r *rapid.T) {
	id, file := p.id(r), rapid.IntRange(0, 3).Draw(r, "file")
	b := newBatch(rapid.SampledFrom(tenants).Draw(r, "tenant"), id, fmt.Sprint("f", file))
	b.Created, b.Expires = at(float64(p.now)), at(float64(p.now+rapid.IntRange(50, 500).Draw(r, "window")))
	p.change("create", func(s batch.Store) (any, error) { return nil, s.CreateBatch(background, b, batch.Holdings{}) })
}

func (p *pair) ingest(r *rapid.T) {
	id := p.id(r)
	var all []batch.Item
	for range rapid.IntRange(0, 5).Draw(r, "items") {
		all = append(all, batch.Item{Line: int64(rapid.IntRange(1, 9).Draw(r, "line")), CustomID: fmt.Sprint("c", rapid.IntRange(1, 12).Draw(r, "custom_id")),
			Prefix: rapid.SampledFrom([]uint64{0, 1, 2, 1 << 62, 1 << 63, 1<<64 - 1}).Draw(r, "prefix"), Tokens: 3})
	}
	p.change("ingest", func(s batch.Store) (any, error) { return s.AddItems(background, id, all) })
}

func (p *pair) start(r *rapid.T) {
	id, fail := p.id(r), rapid.IntRange(0, 5).Draw(r, "fail") == 0
	p.change("start", func(s batch.Store) (any, error) {
		if fail {
			return nil, s.Fail(background, id, []batch.LineError{{Code: "c", Line: 3}}, at(float64(p.now)))
		}
		return nil, s.Start(background, id, at(float64(p.now)))
	})
}

var workers = rapid.SampledFrom([]string{"w1", "w2"})

func (p *pair) claim(r *rapid.T) {
	id, worker, n, after, until := p.id(r), workers.Draw(r, "worker"), rapid.IntRange(0, 5).Draw(r, "n"), rapid.Uint64().Draw(r, "after"), p.later(r)
	have, err := p.change("claim", func(s batch.Store) (any, error) {
		return s.Claim(background, id, worker, n, after, at(float64(p.now)), at(float64(until)))
	})
	if err == nil {
		p.claims = append(p.claims, have.([]batch.Claim)...)
	}
}

func (p *pair) save(r *rapid.T) {
	if len(p.claims) == 0 {
		r.Skip("nothing was ever claimed")
	}
	var cs []batch.Checkpoint
	var rs []batch.Retry
	var os []batch.Outcome
	for range rapid.IntRange(1, 4).Draw(r, "writes") {
		// Recent ones are likelier to be valid.
		c := p.claims[len(p.claims)-1-rapid.IntRange(0, len(p.claims)-1).Draw(r, "claim")]
		switch rapid.IntRange(0, 3).Draw(r, "what") {
		case 0:
			cs = append(cs, batch.Checkpoint{Batch: c.Batch, Line: c.Line, Fence: c.Fence, Kept: fmt.Appendf(nil, "%d", rapid.IntRange(1, 99).Draw(r, "kept"))})
		case 1:
			again := batch.Retry{Batch: c.Batch, Line: c.Line, Fence: c.Fence, Failed: rapid.Bool().Draw(r, "failed")}
			if rapid.Bool().Draw(r, "waits") {
				again.NotBefore = at(float64(p.later(r)))
			}
			rs = append(rs, again)
		default:
			os = append(os, outcome(c, rapid.Bool().Draw(r, "failed")))
		}
	}
	p.change("save", func(s batch.Store) (any, error) {
		errs, err := s.Save(background, cs, rs, os, at(float64(p.now)))
		var kinds []string
		for _, err := range errs {
			kinds = append(kinds, kind(err))
		}
		return kinds, err
	})
}

func (p *pair) renew(r *rapid.T) {
	worker, until := workers.Draw(r, "worker"), p.later(r)
	p.change("renew", func(s batch.Store) (any, error) {
		return nil, s.Renew(background, worker, at(float64(p.now)), at(float64(until)))
	})
}

func (p *pair) lapse(r *rapid.T) {
	id, limit := p.id(r), rapid.IntRange(1, 4).Draw(r, "limit")
	p.change("lapse", func(s batch.Store) (any, error) {
		return s.Lapse(background, id, limit, at(float64(p.now)), func(it batch.Item) batch.Outcome {
			return batch.Outcome{Failed: true, Result: fmt.Appendf(nil, "%d", it.Line)}
		})
	})
}

func (p *pair) finalize(r *rapid.T) {
	id, finish := p.id(r), rapid.Bool().Draw(r, "finish")
	p.change("finalize", func(s batch.Store) (any, error) {
		err := s.Finalize(background, id, at(float64(p.now)))
		if err == nil && finish {
			err = s.Finish(background, id, &batch.File{ID: "out" + id, Tenant: "alice"}, nil, at(float64(p.now)))
		}
		return nil, err
	})
}

func (p *pair) cancel(r *rapid.T) {
	id, tenant := p.id(r), rapid.SampledFrom(tenants).Draw(r, "tenant")
	p.change("cancel", func(s batch.Store) (any, error) { return s.Cancel(background, tenant, id, at(float64(p.now))) })
}

func (p *pair) remove(r *rapid.T) {
	file, tenant, before := fmt.Sprint("f", rapid.IntRange(0, 3).Draw(r, "file")), rapid.SampledFrom(tenants).Draw(r, "tenant"), p.now-rapid.IntRange(0, 100).Draw(r, "before")
	p.change("remove", func(s batch.Store) (any, error) { return nil, s.DeleteFile(background, tenant, file) })
	p.change("forget", func(s batch.Store) (any, error) { return s.Forget(background, at(float64(before)), 2) })
}

// compare shows all that either of them shows.
func (p *pair) compare() {
	p.change("what is shown", func(s batch.Store) (any, error) { return show(s, p.now) })
}

func show(s batch.Store, now int) (string, error) {
	var b strings.Builder
	var errs []error
	note := func(what string, v any, err error) {
		fmt.Fprintf(&b, "%s: %v\n", what, v)
		errs = append(errs, err)
	}
	for _, tenant := range tenants {
		files, _, err := s.Files(background, tenant, batch.Page{Limit: 100})
		note(tenant, listed(files, false, func(f *batch.File) string { return fmt.Sprintf("%+v", *f) }), err)
		batches, _, err := s.Batches(background, tenant, batch.Page{Limit: 100})
		note(tenant, listed(batches, false, func(b *batch.Batch) string { return fmt.Sprintf("%+v", *b) }), err)
		for _, c := range batches {
			for _, failed := range []bool{false, true} {
				errs = append(errs, s.Results(background, c.ID, failed, 0, func(place int64, line []byte) error {
					fmt.Fprintf(&b, "%s %v %d: %s\n", c.ID, failed, place, line)
					return nil
				}))
			}
		}
	}
	open, err := s.Unfinished(background)
	note("unfinished", listed(open, false, func(b *batch.Batch) string { return b.ID }), err)
	waiting, err := s.Waiting(background, at(float64(now)))
	note("waiting", fmt.Sprintf("%+v", waiting), err)
	expired, err := s.ExpiredFiles(background, at(float64(now)), 100)
	note("expired", listed(expired, false, func(f *batch.File) string { return f.ID }), err)
	return b.String(), errors.Join(errs...)
}
