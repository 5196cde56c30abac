// Package batchtest holds every store to what batch.Store says: stories of one rule
// each, and random changes beside an oracle, with the storage closed and opened again at
// any point.
package batchtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/batch"
)

// Storage is what outlives a store. Open may be called again once the store that it
// opened before is closed. Empty makes it as it was at first, where that is cheaper than a fresh
// one; nil: it isn't.
type Storage struct {
	Open  func() (batch.Store, error)
	Empty func() error
}

// Run tells the stories, each to a storage of its own, which fresh makes.
func Run(t *testing.T, fresh func(t *testing.T) Storage) {
	for _, s := range []struct {
		name string
		tell func(t *testing.T, s *store)
	}{
		{"files are a tenant's", filesOfTenants},
		{"batches are a tenant's", batchesOfTenants},
		{"lists come in pages", pages},
		{"a tenant has no more than it may", bounds},
		{"the last room is given once", lastRoom},
		{"a file that is read stays", readFileStays},
		{"contents without a row are told", strays},
		{"ingestion can be repeated", ingestAgain},
		{"a batch that fails has no items", failed},
		{"equal prefixes come together", prefixes},
		{"what is written is fenced", fences},
		{"a dead worker's items are taken over", takeover},
		{"a lease that is renewed holds", renewed},
		{"a lease that is over is not renewed", overIsOver},
		{"attempts wait for their time", retries},
		{"what was kept comes with the next claim", checkpoints},
		{"an item has one line", oneLine},
		{"nothing is claimed behind the deadline", deadline},
		{"what is cancelled lapses", cancelled},
		{"a batch is cancelled while it is read", cancelledValidating},
		{"results are seen while it runs", results},
		{"a batch ends once", finish},
		{"an end that is interrupted is whole or not at all", finishInterrupted},
		{"names are held by one", holds},
		{"batches are forgotten", forget},
		{"workers claim side by side", sideBySide},
		{"changes come side by side", changesSideBySide},
	} {
		t.Run(s.name, func(t *testing.T) {
			s.tell(t, open(t, fresh(t)))
		})
	}
	t.Run("an oracle agrees", func(t *testing.T) { agree(t, fresh) })
}

// store is a store under test, with the words that stories are told in.
type store struct {
	batch.Store
	t       *testing.T
	storage Storage
}

func open(t *testing.T, storage Storage) *store {
	s := &store{t: t, storage: storage}
	s.reopen()
	t.Cleanup(func() { s.Close() })
	return s
}

// reopen closes the store, and goes on with another one over the same storage.
func (s *store) reopen() {
	s.t.Helper()
	if s.Store != nil {
		s.must(s.Close())
	}
	var err error
	s.Store, err = s.storage.Open()
	s.must(err)
}

func (s *store) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) is(what string, err, want error) {
	s.t.Helper()
	if !errors.Is(err, want) {
		s.t.Fatalf("%s: %v; want %v", what, err, want)
	}
}

func (s *store) same(what string, have, want any) {
	s.t.Helper()
	if d := cmp.Diff(want, have); d != "" {
		s.t.Fatalf("%s (-want +have):\n%s", what, d)
	}
}

var background = context.Background()

// at is a time so many seconds into the story.
func at(seconds float64) time.Time {
	return time.Unix(1_800_000_000, 0).UTC().Add(time.Duration(seconds * float64(time.Second)))
}

func (s *store) file(tenant, id string) *batch.File {
	s.t.Helper()
	f := &batch.File{ID: id, Tenant: tenant, Purpose: "batch", Name: id + ".jsonl", Bytes: 100, Created: at(0)}
	s.must(s.CreateFile(background, f, batch.Holdings{}))
	return f
}

// create makes a batch with a file of its own; its window is a thousand seconds.
func (s *store) create(tenant, id string) {
	s.t.Helper()
	s.file(tenant, "of-"+id)
	s.must(s.CreateBatch(background, newBatch(tenant, id, "of-"+id), batch.Holdings{}))
}

func newBatch(tenant, id, input string) *batch.Batch {
	return &batch.Batch{ID: id, Tenant: tenant, Key: "key-" + tenant, Class: "batch", Endpoint: "/v1/chat/completions", Window: 1000 * time.Second, KeepOutput: 2 * time.Hour,
		Metadata: map[string]string{"of": tenant}, Input: input, Created: at(0), Expires: at(1000)}
}

func items(prefixes ...uint64) []batch.Item {
	var all []batch.Item
	for i, p := range prefixes {
		all = append(all, batch.Item{Line: int64(i) + 1, CustomID: fmt.Sprintf("c%d", i+1), Offset: int64(i) * 10, Length: 9, Prefix: p, Tokens: 7})
	}
	return all
}

// running makes a batch that runs with items of such prefixes.
func (s *store) running(tenant, id string, prefixes ...uint64) {
	s.t.Helper()
	s.create(tenant, id)
	s.must2(s.AddItems(background, id, items(prefixes...)))
	s.must(s.Start(background, id, at(1)))
}

func (s *store) must2(_ any, err error) {
	s.t.Helper()
	s.must(err)
}

func (s *store) claim(id, worker string, n int, after uint64, now, until float64) []batch.Claim {
	s.t.Helper()
	claims, err := s.Claim(background, id, worker, n, after, at(now), at(until))
	s.must(err)
	return claims
}

// lines tells what was claimed: lines, and fences where they are not the first.
func lines(claims []batch.Claim) string {
	var b strings.Builder
	for _, c := range claims {
		fmt.Fprintf(&b, " %d", c.Line)
		if c.Fence != 1 {
			fmt.Fprintf(&b, "^%d", c.Fence)
		}
	}
	return strings.TrimSpace(b.String())
}

func outcome(c batch.Claim, failed bool) batch.Outcome {
	return batch.Outcome{Batch: c.Batch, Line: c.Line, Fence: c.Fence, Failed: failed, Result: fmt.Appendf(nil, `{"line":%d}`, c.Line), Prompt: 7, Output: 5, Wasted: 1}
}

func outcomes(claims []batch.Claim) []batch.Outcome {
	var all []batch.Outcome
	for _, c := range claims {
		all = append(all, outcome(c, false))
	}
	return all
}

// save writes, and returns the errors of each.
func (s *store) save(c []batch.Checkpoint, r []batch.Retry, o []batch.Outcome, now float64) []error {
	s.t.Helper()
	errs, err := s.Save(background, c, r, o, at(now))
	s.must(err)
	if n := len(c) + len(r) + len(o); len(errs) != n {
		s.t.Fatalf("%d were saved, %d errors came", n, len(errs))
	}
	return errs
}

// done makes what was claimed done, which must be allowed.
func (s *store) done(claims []batch.Claim, now float64) {
	s.t.Helper()
	for i, err := range s.save(nil, nil, outcomes(claims), now) {
		if err != nil {
			s.t.Fatalf("line %d: %v", claims[i].Line, err)
		}
	}
}

func (s *store) batch(tenant, id string) *batch.Batch {
	s.t.Helper()
	b, err := s.Batch(background, tenant, id)
	s.must(err)
	return b
}

// results reads lines from behind a place on: their places, and the lines.
func (s *store) results(id string, failed bool, after int64) string {
	s.t.Helper()
	var b strings.Builder
	s.must(s.Results(background, id, failed, after, func(place int64, line []byte) error {
		fmt.Fprintf(&b, "%d: %s\n", place, line)
		return nil
	}))
	return b.String()
}

func filesOfTenants(t *testing.T, s *store) {
	f := s.file("alice", "f1")
	f.Expires = at(50)
	have, err := s.File(background, "alice", "f1")
	s.must(err)
	f.Expires = time.Time{}
	s.same("the file", have, f)
	s.is("another tenant's", get(s.File(background, "bob", "f1")), batch.ErrNotFound)
	s.is("of nobody", get(s.File(background, "bob", "f2")), batch.ErrNotFound)
	s.is("to delete another's", s.DeleteFile(background, "bob", "f1"), batch.ErrNotFound)
	s.is("a second of that name", s.CreateFile(background, &batch.File{ID: "f1", Tenant: "bob"}, batch.Holdings{}), batch.ErrState)
	files, more, err := s.Files(background, "bob", batch.Page{Limit: 10})
	s.must(err)
	s.same("bob's", len(files), 0)
	s.same("more", more, false)
	s.must(s.DeleteFile(background, "alice", "f1"))
	s.is("deleted", get(s.File(background, "alice", "f1")), batch.ErrNotFound)
}

// get is the error of a call.
func get[T any](_ T, err error) error { return err }

func batchesOfTenants(t *testing.T, s *store) {
	s.file("alice", "f")
	want := newBatch("alice", "b", "f")
	s.must(s.CreateBatch(background, want, batch.Holdings{}))
	want.Status = batch.Validating
	s.same("the batch", s.batch("alice", "b"), want)
	s.is("of another's file", s.CreateBatch(background, newBatch("bob", "c", "f"), batch.Holdings{}), batch.ErrNotFound)
	s.is("a second of that name", s.CreateBatch(background, want, batch.Holdings{}), batch.ErrState)
	s.is("another tenant's", get(s.Batch(background, "bob", "b")), batch.ErrNotFound)
	s.is("to cancel another's", get(s.Cancel(background, "bob", "b", at(1))), batch.ErrNotFound)
	s.same("still", s.batch("alice", "b").Status, batch.Validating)
	for _, err := range []error{s.Start(background, "c", at(1)), s.Fail(background, "c", nil, at(1)), s.Finalize(background, "c", at(1)),
		s.Finish(background, "c", nil, nil, at(1)), get(s.AddItems(background, "c", items(1))), get(s.Claim(background, "c", "w", 1, 0, at(1), at(2))),
		get(s.Lapse(background, "c", 1, at(1), nil)), s.Results(background, "c", false, 0, nil)} {
		s.is("of nobody", err, batch.ErrNotFound)
	}
}

func pages(t *testing.T, s *store) {
	defer func() {
		open, err := s.Unfinished(background)
		s.must(err)
		for _, b := range open {
			s.same("metadata of what is asked for all the time", len(b.Metadata), 0)
		}
	}()
	for _, odd := range []string{"\x00", "\xff"} { // what a client may write, and no column has
		s.is("a file", get(s.File(background, "alice", odd)), batch.ErrNotFound)
		_, _, err := s.Files(background, "alice", batch.Page{Limit: 1, After: odd})
		s.is("files", err, batch.ErrNotFound)
		_, _, err = s.Batches(background, "alice", batch.Page{Limit: 1, After: odd})
		s.is("batches", err, batch.ErrNotFound)
		_, _, err = s.Files(background, "alice", batch.Page{Limit: 1, Purpose: odd})
		s.is("files of a purpose", err, nil)
	}
	for i := range 5 {
		f := s.file("alice", fmt.Sprintf("f%d", i))
		s.must(s.CreateBatch(background, newBatch("alice", fmt.Sprintf("b%d", i), f.ID), batch.Holdings{}))
	}
	s.file("bob", "other")
	s.must(s.CreateFile(background, &batch.File{ID: "g", Tenant: "alice", Purpose: "user_data"}, batch.Holdings{}))
	for _, c := range []struct {
		page batch.Page
		want string
	}{
		{batch.Page{Limit: 10}, "g f4 f3 f2 f1 f0"},
		{batch.Page{Limit: 6}, "g f4 f3 f2 f1 f0"},
		{batch.Page{Limit: 2}, "g f4 +"},
		{batch.Page{Limit: 3, After: "f4"}, "f3 f2 f1 +"},
		{batch.Page{Limit: 3, After: "f2"}, "f1 f0"},
		{batch.Page{Limit: 3, After: "f0"}, ""},
		{batch.Page{Limit: 2, Oldest: true}, "f0 f1 +"},
		{batch.Page{Limit: 9, Oldest: true, After: "f3"}, "f4 g"},
		{batch.Page{Limit: 2, Purpose: "batch"}, "f4 f3 +"},
		{batch.Page{Limit: 9, Purpose: "user_data"}, "g"},
		{batch.Page{Limit: 9, Purpose: "vision"}, ""},
	} {
		files, more, err := s.Files(background, "alice", c.page)
		s.must(err)
		s.same(fmt.Sprintf("%+v", c.page), listed(files, more, func(f *batch.File) string { return f.ID }), c.want)
	}
	for _, c := range []struct {
		page batch.Page
		want string
	}{
		{batch.Page{Limit: 2}, "b4 b3 +"},
		{batch.Page{Limit: 2, After: "b3"}, "b2 b1 +"},
		{batch.Page{Limit: 2, After: "b1"}, "b0"},
		{batch.Page{Limit: 5, Oldest: true}, "b0 b1 b2 b3 b4"},
	} {
		batches, more, err := s.Batches(background, "alice", c.page)
		s.must(err)
		s.same(fmt.Sprintf("%+v", c.page), listed(batches, more, func(b *batch.Batch) string { return b.ID }), c.want)
	}
	_, _, err := s.Files(background, "bob", batch.Page{Limit: 1, After: "f1"})
	s.is("behind another's file", err, batch.ErrNotFound)
	_, _, err = s.Batches(background, "bob", batch.Page{Limit: 1, After: "b1"})
	s.is("behind another's batch", err, batch.ErrNotFound)

	// All tenants' together, of which those that have ended can be left out.
	other := newBatch("bob", "o", "other")
	other.Metadata = map[string]string{"k": "v"}
	s.must(s.CreateBatch(background, other, batch.Holdings{}))
	s.must(s.Fail(background, "b3", nil, at(1)))
	for _, c := range []struct {
		page batch.Page
		want string
	}{
		{batch.Page{Limit: 3}, "o b4 b3 +"},
		{batch.Page{Limit: 3, After: "b3"}, "b2 b1 b0"},
		{batch.Page{Limit: 2, Open: true}, "o b4 +"},
		{batch.Page{Limit: 2, Open: true, After: "b3"}, "b2 b1 +"},
		{batch.Page{Limit: 9, Open: true, Oldest: true, After: "b3"}, "b4 o"},
	} {
		batches, more, err := s.AllBatches(background, c.page)
		s.must(err)
		s.same(fmt.Sprintf("all tenants' %+v", c.page), listed(batches, more, func(b *batch.Batch) string { return b.ID }), c.want)
		for _, b := range batches {
			s.same("metadata of another's", len(b.Metadata), 0)
		}
	}
	_, _, err = s.AllBatches(background, batch.Page{Limit: 1, After: "nowhere"})
	s.is("behind nothing", err, batch.ErrNotFound)
}

func listed[T any](all []T, more bool, name func(T) string) string {
	var names []string
	for _, v := range all {
		names = append(names, name(v))
	}
	if more {
		names = append(names, "+")
	}
	return strings.Join(names, " ")
}

func readFileStays(t *testing.T, s *store) {
	s.must(s.CreateFile(background, &batch.File{ID: "f", Tenant: "alice", Purpose: "batch", Created: at(0), Expires: at(10)}, batch.Holdings{}))
	s.must(s.CreateFile(background, &batch.File{ID: "g", Tenant: "bob", Purpose: "batch", Created: at(0), Expires: at(20)}, batch.Holdings{}))
	s.must(s.CreateFile(background, &batch.File{ID: "h", Tenant: "bob", Purpose: "batch", Created: at(0)}, batch.Holdings{}))
	s.must(s.CreateBatch(background, newBatch("alice", "b", "f"), batch.Holdings{}))
	expired := func(now float64, limit int) string {
		files, err := s.ExpiredFiles(background, at(now), limit)
		s.must(err)
		return listed(files, false, func(f *batch.File) string { return f.ID })
	}
	s.is("while it is read", s.DeleteFile(background, "alice", "f"), batch.ErrState)
	s.same("before their time", expired(9, 10), "")
	s.same("past their time", expired(30, 10), "g")
	s.must(s.Fail(background, "b", nil, at(1)))
	s.same("read no more", expired(10, 10), "f")
	s.same("all of them", expired(30, 10), "f g")
	s.same("some of them", expired(30, 1), "f")
	s.must(s.DeleteFile(background, "alice", "f"))
}

func strays(t *testing.T, s *store) {
	s.file("alice", "f1")
	s.file("bob", "f2")
	have, err := s.Strays(background, []string{"f2", "x", "f1", `y"`})
	s.must(err)
	s.same("strays", have, []string{"x", `y"`})
	have, err = s.Strays(background, nil)
	s.must(err)
	s.same("of none", len(have), 0)
}

func ingestAgain(t *testing.T, s *store) {
	s.create("alice", "b")
	all := items(1, 2, 3)
	dup, err := s.AddItems(background, "b", all[:2])
	s.must(err)
	s.same("duplicates", len(dup), 0)
	s.same("counted", s.batch("alice", "b").Counts.Total, int64(2))
	all = append(all, batch.Item{Line: 4, CustomID: "c1"}, batch.Item{Line: 5, CustomID: "c5"}, batch.Item{Line: 6, CustomID: "c5"})
	s.reopen()
	dup, err = s.AddItems(background, "b", all)
	s.must(err)
	s.same("duplicates", dup, []batch.Item{{Batch: "b", Line: 4, CustomID: "c1"}, {Batch: "b", Line: 6, CustomID: "c5"}})
	s.same("counted", s.batch("alice", "b").Counts.Total, int64(4))
	s.create("alice", "b2")
	dup, err = s.AddItems(background, "b2", all[:1])
	s.must(err)
	s.same("another batch's name", len(dup), 0)
	s.must(s.Start(background, "b", at(5)))
	b := s.batch("alice", "b")
	s.same("it runs", b.Status, batch.InProgress)
	s.same("since", b.Started, at(5))
	s.is("items of one that runs", get(s.AddItems(background, "b", all)), batch.ErrState)
	s.is("to start it again", s.Start(background, "b", at(6)), batch.ErrState)
	claims := s.claim("b", "w", 10, 0, 6, 60)
	s.same("the first", claims[1], batch.Claim{Item: batch.Item{Batch: "b", Line: 1, CustomID: "c1", Length: 9, Prefix: 1, Tokens: 7}, Tenant: "alice",
		Key: "key-alice", Class: "batch", Endpoint: "/v1/chat/completions", Input: "of-b", Deadline: at(1000), Fence: 1})
}

func failed(t *testing.T, s *store) {
	s.create("alice", "b")
	s.must2(s.AddItems(background, "b", items(1, 2)))
	why := []batch.LineError{{Code: "invalid_json_line", Message: "it is torn", Line: 3}, {Code: "empty_file", Message: "x", Param: "y"}}
	s.must(s.Fail(background, "b", why, at(3)))
	b := s.batch("alice", "b")
	s.same("status", b.Status, batch.Failed)
	s.same("why", b.Errors, why)
	s.same("when", b.FailedAt, at(3))
	s.same("counts", b.Counts, batch.Counts{})
	s.is("again", s.Fail(background, "b", why, at(4)), batch.ErrState)
	s.is("to start it", s.Start(background, "b", at(4)), batch.ErrState)
	s.is("to cancel it", get(s.Cancel(background, "alice", "b", at(4))), batch.ErrState)
	s.same("claims", lines(s.claim("b", "w", 10, 0, 5, 6)), "")
	open, err := s.Unfinished(background)
	s.must(err)
	s.same("unfinished", len(open), 0)
}

func prefixes(t *testing.T, s *store) {
	const high = 1 << 63
	s.running("alice", "b", 5, high+1, 9, 5, 9, high+1, 5)
	s.same("from 6 on", lines(s.claim("b", "w", 3, 6, 2, 60)), "3 5 2")
	s.same("goes on with the same", lines(s.claim("b", "w", 2, high+1, 2, 60)), "6 1")
	s.same("and around", lines(s.claim("b", "w", 9, 5, 2, 60)), "4 7")
	s.same("no more", lines(s.claim("b", "w", 9, 5, 2, 60)), "")
}

func fences(t *testing.T, s *store) {
	s.running("alice", "b", 1, 2)
	old := s.claim("b", "dead", 1, 0, 2, 10)
	s.same("claimed", lines(old), "1")
	young := s.claim("b", "w", 1, 0, 11, 60)
	s.same("anew", lines(young), "1^2")
	for _, err := range s.save(
		[]batch.Checkpoint{{Batch: "b", Line: 1, Fence: old[0].Fence, Kept: []byte(`"old"`)}},
		[]batch.Retry{{Batch: "b", Line: 1, Fence: old[0].Fence}},
		outcomes(old), 12) {
		s.is("under the old fence", err, batch.ErrFenced)
	}
	for _, o := range []batch.Outcome{{Batch: "b", Line: 7, Fence: 1}, {Batch: "c", Line: 1, Fence: 1}, {Batch: "b", Line: 2, Fence: 1}} {
		s.is("of what was not claimed", s.save(nil, nil, []batch.Outcome{o}, 12)[0], batch.ErrFenced)
	}
	s.same("nothing is done", s.batch("alice", "b").Counts, batch.Counts{Total: 2})
	errs := s.save([]batch.Checkpoint{{Batch: "b", Line: 1, Fence: 1, Kept: []byte(`"old"`)}, {Batch: "b", Line: 1, Fence: 2, Kept: []byte(`"new"`)}}, nil, nil, 12)
	s.is("one of two", errs[0], batch.ErrFenced)
	s.must(errs[1])
	s.done(young, 13)
	s.is("a second time", s.save(nil, nil, outcomes(young), 13)[0], batch.ErrFenced)
	s.same("results", s.results("b", false, 0), "1: {\"line\":1}\n")
}

func takeover(t *testing.T, s *store) {
	s.running("alice", "b", 1, 1, 1)
	s.claim("b", "dead", 2, 0, 2, 32)
	s.same("to nobody else", lines(s.claim("b", "w", 9, 0, 31, 90)), "3")
	s.same("once the lease is over", lines(s.claim("b", "w", 9, 0, 32, 90)), "1^2 2^2")
	s.running("alice", "late", 1)
	slow := s.claim("late", "slow", 1, 0, 2, 32)
	s.must2(s.Waiting(background, at(40)))
	s.done(slow, 41) // nobody was faster
}

func renewed(t *testing.T, s *store) {
	s.running("alice", "b", 1, 1)
	s.running("alice", "b2", 1)
	s.claim("b", "w", 1, 0, 2, 32)
	s.claim("b2", "w", 1, 0, 3, 33)
	s.must(s.Renew(background, "w", at(30), at(60)))
	s.same("the other item only", lines(s.claim("b", "v", 9, 0, 59, 90)), "2")
	s.same("nothing", lines(s.claim("b2", "v", 9, 0, 59, 90)), "")
	s.same("both are over", lines(s.claim("b", "v", 9, 0, 60, 90))+" "+lines(s.claim("b2", "v", 9, 0, 60, 90)), "1^2 1^2")
}

func overIsOver(t *testing.T, s *store) {
	s.running("alice", "b", 1, 1)
	s.is("without a lease", s.Renew(background, "w", at(2), at(30)), batch.ErrFenced)
	s.claim("b", "w", 1, 0, 2, 32)
	s.is("too late", s.Renew(background, "w", at(32), at(60)), batch.ErrFenced)
	// A claim of the same name is a lease of its own: it doesn't bring back the old one.
	s.same("the first again", lines(s.claim("b", "w", 1, 0, 33, 90)), "1^2")
	s.running("alice", "b2", 1)
	s.claim("b2", "x", 1, 0, 2, 32)
	s.same("the other", lines(s.claim("b", "x", 1, 0, 40, 90)), "2")
	s.same("it is free", lines(s.claim("b2", "y", 1, 0, 41, 90)), "1^2")
}

func retries(t *testing.T, s *store) {
	s.running("alice", "b", 1, 2)
	c := s.claim("b", "w", 2, 0, 2, 90)
	s.must(s.save(nil, []batch.Retry{{Batch: "b", Line: 1, Fence: c[0].Fence, NotBefore: at(20), Failed: true, Why: "torn", Wasted: 4}}, nil, 3)[0])
	s.must(s.save(nil, []batch.Retry{{Batch: "b", Line: 2, Fence: c[1].Fence}}, nil, 3)[0])
	s.is("it is given back", s.save(nil, nil, outcomes(c[1:]), 3)[0], batch.ErrFenced)
	s.same("wasted", s.batch("alice", "b").Counts, batch.Counts{Total: 2, Wasted: 4})
	w, err := s.Waiting(background, at(4))
	s.must(err)
	s.same("waiting", w, []batch.Waiting{{Batch: "b", Tenant: "alice", Class: "batch", Created: at(0), Deadline: at(1000), Ready: 1, Total: 2, Next: at(20)}})
	again := s.claim("b", "w", 2, 0, 19, 90)
	s.same("the one given back", lines(again), "2^3")
	s.same("no attempt", again[0].Attempts, 0)
	w, err = s.Waiting(background, at(20))
	s.must(err)
	s.same("its time has come", w[0], batch.Waiting{Batch: "b", Tenant: "alice", Class: "batch", Created: at(0), Deadline: at(1000), Ready: 1, Running: 1, Total: 2})
	again = s.claim("b", "w", 2, 0, 20, 90)
	s.same("the other one", lines(again), "1^3")
	s.same("an attempt", again[0].Attempts, 1)
}

func checkpoints(t *testing.T, s *store) {
	s.running("alice", "b", 1)
	c := s.claim("b", "w", 1, 0, 2, 30)
	s.same("at first", string(c[0].Kept), "")
	for _, text := range []string{`"a"`, `"ab"`} {
		s.must(s.save([]batch.Checkpoint{{Batch: "b", Line: 1, Fence: c[0].Fence, Kept: []byte(text), Output: 1}}, nil, nil, 3)[0])
	}
	s.reopen()
	c = s.claim("b", "v", 1, 0, 31, 60)
	s.same("the last", string(c[0].Kept), `"ab"`)
	s.must(s.save(nil, []batch.Retry{{Batch: "b", Line: 1, Fence: c[0].Fence, Failed: true}}, nil, 32)[0])
	c = s.claim("b", "v", 1, 0, 33, 60)
	s.same("after a failure", string(c[0].Kept), `"ab"`)
	s.done(c, 34)
}

func oneLine(t *testing.T, s *store) {
	s.running("alice", "b", 1, 2, 3)
	c := s.claim("b", "w", 3, 0, 2, 30)
	errs := s.save([]batch.Checkpoint{{Batch: "b", Line: 1, Fence: 1, Kept: []byte(`1`)}}, []batch.Retry{{Batch: "b", Line: 2, Fence: 1}},
		[]batch.Outcome{outcome(c[0], true), outcome(c[0], false), outcome(c[1], false), outcome(c[2], false)}, 3)
	for i, want := range []error{nil, nil, nil, batch.ErrFenced, batch.ErrFenced, nil} {
		if !errors.Is(errs[i], want) {
			t.Errorf("%d: %v; want %v", i, errs[i], want)
		}
	}
	s.same("counts", s.batch("alice", "b").Counts, batch.Counts{Total: 3, Completed: 1, Failed: 1, Prompt: 14, Output: 10, Wasted: 2})
	s.reopen()
	s.is("it is not finished", s.Finalize(background, "b", at(4)), batch.ErrState)
	s.done(s.claim("b", "w", 3, 0, 4, 30), 5)
	s.same("nothing is left", lines(s.claim("b", "w", 3, 0, 100, 130)), "")
	s.must(s.Finalize(background, "b", at(6)))
}

func deadline(t *testing.T, s *store) {
	s.running("alice", "b", 1, 2, 3, 4)
	c := s.claim("b", "w", 2, 0, 2, 2000)
	s.is("before it", get(s.Lapse(background, "b", 10, at(999), nil)), batch.ErrState)
	s.same("nothing is claimed", lines(s.claim("b", "w", 9, 0, 1000, 2000)), "")
	w, err := s.Waiting(background, at(1000))
	s.must(err)
	s.same("nor waited for", len(w), 0)
	s.done(c[:1], 1000) // it came in time for its line
	lapse := func(it batch.Item) batch.Outcome {
		return batch.Outcome{Failed: true, Result: fmt.Appendf(nil, `{"lapsed":%q}`, it.CustomID)}
	}
	left, err := s.Lapse(background, "b", 2, at(1001), lapse)
	s.must(err)
	s.same("left", left, int64(1))
	s.is("the claim is over", s.save(nil, nil, outcomes(c[1:]), 1002)[0], batch.ErrFenced)
	s.is("to cancel it", get(s.Cancel(background, "alice", "b", at(1002))), batch.ErrState)
	s.reopen()
	left, err = s.Lapse(background, "b", 2, at(1003), lapse)
	s.must(err)
	s.same("left", left, int64(0))
	s.same("its lines", s.results("b", true, 0), "2: {\"lapsed\":\"c2\"}\n3: {\"lapsed\":\"c3\"}\n4: {\"lapsed\":\"c4\"}\n")
	s.must(s.Finalize(background, "b", at(1004)))
	s.must(s.Finish(background, "b", nil, nil, at(1005)))
	b := s.batch("alice", "b")
	s.same("its end", b.Status, batch.Expired)
	s.same("since", b.ExpiredAt, at(1001))
	s.same("counts", b.Counts, batch.Counts{Total: 4, Completed: 1, Failed: 3, Prompt: 7, Output: 5, Wasted: 1})
}

func cancelled(t *testing.T, s *store) {
	s.running("alice", "b", 1, 2, 3)
	c := s.claim("b", "w", 1, 0, 2, 30)
	dead := s.claim("b", "dead", 1, 0, 2, 10)
	b, err := s.Cancel(background, "alice", "b", at(11))
	s.must(err)
	s.same("status", b.Status, batch.Cancelling)
	s.same("since", b.CancellingAt, at(11))
	b, err = s.Cancel(background, "alice", "b", at(12))
	s.must(err)
	s.same("again, still", b.CancellingAt, at(11))
	s.same("nothing is claimed", lines(s.claim("b", "w", 9, 0, 12, 30)), "")
	lapse := func(it batch.Item) batch.Outcome {
		return batch.Outcome{Failed: true, Result: fmt.Appendf(nil, `{"cancelled":%d}`, it.Line)}
	}
	left, err := s.Lapse(background, "b", 10, at(13), lapse)
	s.must(err)
	s.same("what runs is left", left, int64(1))
	s.is("of the dead", s.save(nil, nil, outcomes(dead), 13)[0], batch.ErrFenced)
	s.is("not yet", s.Finalize(background, "b", at(14)), batch.ErrState)
	s.must(s.save(nil, []batch.Retry{{Batch: "b", Line: c[0].Line, Fence: c[0].Fence}}, nil, 14)[0])
	left, err = s.Lapse(background, "b", 10, at(15), lapse)
	s.must(err)
	s.same("given back", left, int64(0))
	s.must(s.Finalize(background, "b", at(16)))
	s.must(s.Finalize(background, "b", at(17)))
	b = s.batch("alice", "b")
	s.same("status", b.Status, batch.Cancelling)
	s.same("since", b.FinalizingAt, at(16))
	s.must(s.Finish(background, "b", nil, nil, at(18)))
	b = s.batch("alice", "b")
	s.same("its end", b.Status, batch.Cancelled)
	s.same("since", b.CancelledAt, at(18))
	s.same("counts", b.Counts, batch.Counts{Total: 3, Failed: 3})
}

func cancelledValidating(t *testing.T, s *store) {
	s.create("alice", "b")
	s.must2(s.AddItems(background, "b", items(1, 2)))
	b, err := s.Cancel(background, "alice", "b", at(2))
	s.must(err)
	s.same("counts", b.Counts, batch.Counts{})
	s.is("more items", get(s.AddItems(background, "b", items(1, 2))), batch.ErrState)
	s.is("to start it", s.Start(background, "b", at(3)), batch.ErrState)
	s.is("to fail it", s.Fail(background, "b", nil, at(3)), batch.ErrState)
	left, err := s.Lapse(background, "b", 10, at(3), func(batch.Item) batch.Outcome {
		t.Error("an item lapses that was never promised")
		return batch.Outcome{}
	})
	s.must(err)
	s.same("left", left, int64(0))
	s.must(s.Finalize(background, "b", at(4)))
	s.must(s.Finish(background, "b", nil, nil, at(5)))
	s.same("its end", s.batch("alice", "b").Status, batch.Cancelled)
}

func results(t *testing.T, s *store) {
	s.running("alice", "b", 1, 2, 3, 4)
	s.running("bob", "b2", 1)
	c := s.claim("b", "w", 4, 0, 2, 30)
	s.done(s.claim("b2", "w", 4, 0, 2, 30), 3)
	for _, i := range []int{2, 0} {
		s.done(c[i:i+1], 3)
	}
	s.must(s.save(nil, nil, []batch.Outcome{outcome(c[3], true)}, 3)[0])
	s.done(c[1:2], 3)
	s.same("in order", s.results("b", false, 0), "1: {\"line\":3}\n2: {\"line\":1}\n4: {\"line\":2}\n")
	s.same("failed", s.results("b", true, 0), "3: {\"line\":4}\n")
	s.same("from a place on", s.results("b", false, 2), "4: {\"line\":2}\n")
	stop := errors.New("stop")
	s.is("an error ends it", s.Results(background, "b", false, 0, func(int64, []byte) error { return stop }), stop)
}

// ended brings a batch of two lines to where it is finalized.
func (s *store) ended(tenant, id string) (output, problems *batch.File) {
	s.running(tenant, id, 1, 2)
	c := s.claim(id, "w", 2, 0, 2, 30)
	s.done(c[:1], 3)
	s.must(s.save(nil, nil, []batch.Outcome{outcome(c[1], true)}, 3)[0])
	return &batch.File{ID: "out-" + id, Tenant: tenant, Purpose: "batch_output", Name: "o", Bytes: 11, Created: at(5), Expires: at(100)},
		&batch.File{ID: "err-" + id, Tenant: tenant, Purpose: "batch_output", Name: "e", Bytes: 12, Created: at(5)}
}

func finish(t *testing.T, s *store) {
	o, e := s.ended("alice", "b")
	s.is("before it is finalized", s.Finish(background, "b", o, e, at(5)), batch.ErrState)
	s.is("no file of it", get(s.File(background, "alice", "out-b")), batch.ErrNotFound)
	s.must(s.Finalize(background, "b", at(4)))
	b := s.batch("alice", "b")
	s.same("status", b.Status, batch.Finalizing)
	s.is("to cancel it", get(s.Cancel(background, "alice", "b", at(4))), batch.ErrState)
	s.same("lines are there", s.results("b", true, 0), "2: {\"line\":2}\n")
	s.must(s.Finish(background, "b", o, e, at(5)))
	b = s.batch("alice", "b")
	s.same("status", b.Status, batch.Completed)
	s.same("times", []time.Time{b.FinalizingAt, b.CompletedAt}, []time.Time{at(4), at(5)})
	s.same("files", []string{b.Output, b.Error}, []string{"out-b", "err-b"})
	for _, f := range []*batch.File{o, e} {
		have, err := s.File(background, "alice", f.ID)
		s.must(err)
		s.same("its file", have, f)
	}
	s.is("again", s.Finish(background, "b", o, e, at(6)), batch.ErrState)
	s.is("finalized again", s.Finalize(background, "b", at(6)), batch.ErrState)
	s.same("its lines are in its files", s.results("b", false, 0), "")
	s.must(s.DeleteFile(background, "alice", "of-b"))

	// A file without lines is none.
	_, _ = s.ended("bob", "b2")
	s.must(s.Finalize(background, "b2", at(4)))
	s.must(s.Finish(background, "b2", nil, &batch.File{ID: "only", Tenant: "bob"}, at(5)))
	b = s.batch("bob", "b2")
	s.same("files", []string{b.Output, b.Error}, []string{"", "only"})
}

// finishInterrupted ends a batch under a context that ends at any moment, and closes the
// storage between the batch's end and the removal of its rows.
func finishInterrupted(t *testing.T, s *store) {
	o, e := s.ended("alice", "b")
	s.must(s.Finalize(background, "b", at(4)))
	whole := s.results("b", false, 0)
	ctx, cancel := context.WithCancel(background)
	cancel()
	if err := s.Finish(ctx, "b", o, e, at(5)); err != nil {
		s.reopen()
		b := s.batch("alice", "b")
		s.same("it is as it was", []string{string(b.Status), b.Output, b.Error}, []string{"finalizing", "", ""})
		s.same("its lines are there", s.results("b", false, 0), whole)
		s.is("no file of it", get(s.File(background, "alice", "out-b")), batch.ErrNotFound)
		s.must(s.Finish(background, "b", o, e, at(6)))
	}
	s.reopen()
	b := s.batch("alice", "b")
	s.same("it has ended", []string{string(b.Status), b.Output, b.Error}, []string{"completed", "out-b", "err-b"})
	s.same("no line is left", s.results("b", false, 0)+s.results("b", true, 0), "")
	s.vacuum()
	s.same("it is the same", s.batch("alice", "b"), b)
	// A batch beside it keeps its rows.
	s.running("bob", "other", 1, 2, 3)
	s.done(s.claim("other", "w", 1, 0, 7, 30), 8)
	s.vacuum()
	s.same("lines", s.results("other", false, 0), "1: {\"line\":1}\n")
	s.same("items", lines(s.claim("other", "w", 9, 0, 7, 30)), "2 3")
}

func (s *store) vacuum() {
	s.t.Helper()
	for {
		more, err := s.Vacuum(background)
		s.must(err)
		if !more {
			return
		}
	}
}

func holds(t *testing.T, s *store) {
	s.must(s.Hold(background, "read b", "w", at(1), at(10)))
	s.is("another", s.Hold(background, "read b", "v", at(9), at(20)), batch.ErrFenced)
	s.must(s.Hold(background, "read c", "v", at(9), at(20)))
	s.must(s.Hold(background, "read b", "w", at(9), at(20)))
	s.is("it was kept", s.Hold(background, "read b", "v", at(19), at(30)), batch.ErrFenced)
	s.must(s.Hold(background, "read b", "v", at(20), at(30)))
	s.is("it was lost", s.Hold(background, "read b", "w", at(21), at(30)), batch.ErrFenced)
	s.must(s.Hold(background, "read b", "v", at(22), at(22)))
	s.must(s.Hold(background, "read b", "w", at(22), at(30)))
}

func forget(t *testing.T, s *store) {
	for _, id := range []string{"b1", "b2", "b3"} {
		s.ended("alice", id)
		s.must(s.Finalize(background, id, at(4)))
	}
	s.must(s.Finish(background, "b1", nil, nil, at(10)))
	s.must(s.Finish(background, "b2", nil, nil, at(20)))
	n, err := s.Forget(background, at(10), 10)
	s.must(err)
	s.same("too young", n, 0)
	n, err = s.Forget(background, at(1e6), 1)
	s.must(err)
	s.same("one at a time", n, 1)
	s.is("the first", get(s.Batch(background, "alice", "b1")), batch.ErrNotFound)
	n, err = s.Forget(background, at(1e6), 10)
	s.must(err)
	s.same("the next, and none that has not ended", n, 1)
	s.vacuum()
	s.same("its lines are there", s.results("b3", false, 0), "1: {\"line\":1}\n")
	// A batch of the same number must not inherit rows.
	s.running("alice", "b4", 1, 2)
	s.same("items", lines(s.claim("b4", "w", 9, 0, 7, 30)), "1 2")
}

// sideBySide has workers claim and finish until all is done: every item is one worker's.
func sideBySide(t *testing.T, s *store) {
	const total = 200
	s.running("alice", "b", make([]uint64, total)...)
	var wg sync.WaitGroup
	var mu sync.Mutex
	by := map[int64]int{}
	for w := range 8 {
		wg.Go(func() {
			for {
				c, err := s.Claim(background, "b", fmt.Sprint("w", w), 3, 0, at(2), at(30))
				if err != nil || len(c) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				errs, err := s.Save(background, nil, nil, outcomes(c), at(3))
				if err = errors.Join(append(errs, err)...); err != nil {
					t.Error(err)
				}
				mu.Lock()
				for _, c := range c {
					by[c.Line]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for line := int64(1); line <= total; line++ {
		if by[line] != 1 {
			t.Errorf("line %d was claimed %d times", line, by[line])
		}
	}
	s.same("counts", s.batch("alice", "b").Counts, batch.Counts{Total: total, Completed: total, Prompt: 7 * total, Output: 5 * total, Wasted: total})
	if n := strings.Count(s.results("b", false, 0), "\n"); n != total {
		t.Errorf("%d lines of %d", n, total)
	}
}

// changesSideBySide has some changes fail beside others that succeed: each is undone alone.
func changesSideBySide(t *testing.T, s *store) {
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			id := fmt.Sprint("f", i/2)
			err := s.CreateFile(background, &batch.File{ID: id, Tenant: "alice", Created: at(0)}, batch.Holdings{})
			if err != nil && !errors.Is(err, batch.ErrState) {
				t.Error(err)
			}
			if err := s.CreateBatch(background, newBatch("bob", id, id), batch.Holdings{}); !errors.Is(err, batch.ErrNotFound) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	files, _, err := s.Files(background, "alice", batch.Page{Limit: 100})
	s.must(err)
	s.same("files", len(files), 25)
}

func bounds(t *testing.T, s *store) {
	full := func(err error) string {
		if f := (*batch.FullError)(nil); errors.As(err, &f) {
			return f.Error()
		}
		return fmt.Sprint(err)
	}
	file := func(tenant, id string, bytes int64, most batch.Holdings) string {
		return full(s.CreateFile(background, &batch.File{ID: id, Tenant: tenant, Bytes: bytes, Created: at(0)}, most))
	}
	have := func(tenant string) batch.Holdings {
		h, err := s.Holdings(background, tenant)
		s.must(err)
		return h
	}
	two := batch.Holdings{Files: 2, Bytes: 100}
	s.same("nothing", have("alice"), batch.Holdings{})
	s.same("more than all", file("alice", "a", 101, two), "the tenant has as many bytes as it may, 100")
	s.same("as many bytes", file("alice", "a", 100, two), "<nil>")
	s.same("one more", file("alice", "b", 1, two), "the tenant has as many bytes as it may, 100")
	s.same("none of them", file("alice", "b", 0, two), "<nil>")
	s.same("a third", file("alice", "c", 0, two), "the tenant has as many files as it may, 2")
	s.same("another's", file("bob", "c", 100, two), "<nil>")
	s.same("without a bound", file("alice", "d", 1000, batch.Holdings{}), "<nil>")
	s.must(s.DeleteFile(background, "alice", "d"))

	one := batch.Holdings{Batches: 1, Bytes: 1} // of bytes a batch brings none
	create := func(id string) string { return full(s.CreateBatch(background, newBatch("alice", id, "a"), one)) }
	s.same("a batch", create("x"), "<nil>")
	s.same("a second", create("y"), "the tenant has as many batches as it may, 1")
	s.same("alice's", have("alice"), batch.Holdings{Files: 2, Bytes: 100, Batches: 1})
	s.must(s.Fail(background, "x", nil, at(1)))
	s.same("once it has ended", create("y"), "<nil>")
	s.must(s.DeleteFile(background, "alice", "b"))
	s.same("once one is deleted", file("alice", "b", 0, two), "<nil>")

	// What a batch writes is written, and counts.
	s.must2(s.AddItems(background, "y", items(1)))
	s.must(s.Start(background, "y", at(1)))
	s.done(s.claim("y", "w", 1, 0, 2, 20), 3)
	s.must(s.Finalize(background, "y", at(4)))
	s.must(s.Finish(background, "y", &batch.File{ID: "out", Tenant: "alice", Bytes: 50, Created: at(4)}, nil, at(5)))
	s.same("with an output", have("alice"), batch.Holdings{Files: 3, Bytes: 150})
}

// lastRoom: of many that come at the same time as many have room as there is.
func lastRoom(t *testing.T, s *store) {
	s.file("alice", "in")
	most := batch.Holdings{Files: 4, Batches: 2}
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	for i := range cap(errs) / 2 {
		id := fmt.Sprint("x", i)
		wg.Go(func() {
			errs <- s.CreateFile(background, &batch.File{ID: id, Tenant: "alice", Created: at(0)}, most)
		})
		wg.Go(func() { errs <- s.CreateBatch(background, newBatch("alice", id, "in"), most) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if f := (*batch.FullError)(nil); err != nil && !errors.As(err, &f) {
			t.Error(err)
		}
	}
	h, err := s.Holdings(background, "alice")
	s.must(err)
	s.same("all", h, batch.Holdings{Files: 4, Bytes: 100, Batches: 2})
}
