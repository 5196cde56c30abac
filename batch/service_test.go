package batch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/batch"
	"headgate/batch/batchtest"
	"headgate/identity"
	"headgate/wire"
)

const maxFile = 1 << 20

var (
	alice = &identity.Principal{Name: "alice", Tenant: "a", Classes: []string{"interactive", "batch"}, Default: "interactive", ByHeader: true}
	bob   = &identity.Principal{Name: "bob", Tenant: "b", Classes: []string{"interactive"}, Default: "interactive"}
)

type served struct {
	*batch.Service
	t        *testing.T
	store    batch.Store
	contents *failing
	woken    int
	log      bytes.Buffer
}

// failing are contents whose disk fails at a step: create, write or commit.
type failing struct {
	batch.Files
	at  string
	err error
}

func (f *failing) fail(step string) error {
	if f.at == step {
		return fmt.Errorf("%s /var/batch/x: %w", step, f.err)
	}
	return nil
}

func (f *failing) Create(ctx context.Context, id string) (batch.Upload, error) {
	u, err := f.Files.Create(ctx, id)
	return failingUpload{u, f}, errors.Join(err, f.fail("create"))
}

type failingUpload struct {
	batch.Upload
	f *failing
}

func (u failingUpload) Write(b []byte) (int, error) {
	if err := u.f.fail("write"); err != nil {
		return 0, err
	}
	return u.Upload.Write(b)
}

func (u failingUpload) Commit() error {
	if err := u.f.fail("commit"); err != nil {
		return err
	}
	return u.Upload.Commit()
}

// names lists the contents that there are.
func (f *failing) names(t *testing.T) (all []string) {
	t.Helper()
	if err := f.Each(t.Context(), func(id string, _ time.Time) error { all = append(all, id); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func newServed(t *testing.T, store batch.Store) *served {
	s := &served{t: t, store: store, contents: &failing{Files: batchtest.NewContents()}}
	s.bound(batch.Holdings{})
	return s
}

// bound gives every tenant bounds.
func (s *served) bound(most batch.Holdings) {
	s.Service = batch.NewService(batch.ServiceConfig{
		Store: s.store, Files: s.contents, Wake: func() { s.woken++ }, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		MaxFile: maxFile, Most: most, KeepInput: 30 * 24 * time.Hour, MinWindow: time.Hour, MaxWindow: 48 * time.Hour, Class: "batch",
	})
}

func (s *served) upload(p *identity.Principal, text, purpose string, keep time.Duration) (*batch.File, *wire.Error) {
	s.t.Helper()
	u, failed := s.Upload(s.t.Context(), p)
	if failed != nil {
		return nil, failed
	}
	defer u.Close()
	failed, err := u.Take(s.t.Context(), iotest.OneByteReader(strings.NewReader(text)))
	if err != nil {
		s.t.Fatal(err)
	}
	if failed != nil {
		return nil, failed
	}
	return u.Finish(s.t.Context(), "requests.jsonl", purpose, keep)
}

func (s *served) file(p *identity.Principal) *batch.File {
	s.t.Helper()
	f, failed := s.upload(p, "{}\n", "batch", 0)
	if failed != nil {
		s.t.Fatal(failed)
	}
	return f
}

// batch makes one of a file of one request.
func (s *served) batch(p *identity.Principal) (*batch.File, *batch.Batch) {
	s.t.Helper()
	f := s.file(p)
	b, failed := s.Create(s.t.Context(), p, &batch.NewBatch{Input: f.ID, Endpoint: "/v1/completions", Window: "24h"})
	if failed != nil {
		s.t.Fatal(failed)
	}
	return f, b
}

func said(err *wire.Error) string {
	if err == nil {
		return "ok"
	}
	return fmt.Sprintf("%d %s %s: %s", err.Status, err.Code, err.Param, err.Message)
}

// TestUpload: a file is there, whole, or not at all.
func TestUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServed(t, batchtest.NewMemory())
		f := s.file(alice)
		want := batch.File{ID: f.ID, Tenant: "a", Purpose: "batch", Name: "requests.jsonl", Bytes: 3, Created: time.Now(), Expires: time.Now().Add(30 * 24 * time.Hour)}
		if d := cmp.Diff(want, *f); d != "" || !strings.HasPrefix(f.ID, "file-") || len(f.ID) != 29 {
			t.Errorf("(-want +got)\n%s", d)
		}
		_, c, failed := s.Content(t.Context(), alice, f.ID)
		if failed != nil {
			t.Fatal(failed)
		}
		if b, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size())); err != nil || string(b) != "{}\n" {
			t.Errorf("%q, %v", b, err)
		}
		kept, failed := s.upload(alice, "x", "user_data", 0)
		if failed != nil || !kept.Expires.IsZero() {
			t.Errorf("%v, %s: files of other purposes are kept", kept, said(failed))
		}
		timed, failed := s.upload(alice, "x", "batch", time.Hour)
		if failed != nil || !timed.Expires.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("%v, %s", timed, said(failed))
		}
		time.Sleep(time.Hour)
		if _, failed := s.File(t.Context(), alice, timed.ID); failed == nil || failed.Code != wire.CodeFileNotFound {
			t.Errorf("an expired file: %s", said(failed))
		}
		have := s.contents.names(t)
		for _, refused := range []struct {
			text, purpose string
			keep          time.Duration
			want          string
		}{
			{"x", "", 0, "400 missing_field purpose: purpose is missing; required: one of batch, assistants, fine-tune, vision, user_data, evals"},
			{"x", "batch_output", 0, `400 invalid_field purpose: purpose is "batch_output"; allowed: batch, assistants, fine-tune, vision, user_data, evals`},
			{"x", "batch", time.Minute, "400 invalid_field expires_after.seconds: expires_after.seconds is 60; allowed: 3600 to 2592000"},
			{strings.Repeat("x", maxFile+1), "batch", 0, "413 body_too_large : the file is larger than 1048576 bytes"},
		} {
			_, failed := s.upload(alice, refused.text, refused.purpose, refused.keep)
			if got := said(failed); got != refused.want {
				t.Errorf("got  %s\nwant %s", got, refused.want)
			}
		}
		if got := s.contents.names(t); !slices.Equal(got, have) {
			t.Errorf("refused files left something: %v, then %v", have, got)
		}
		if _, failed := s.upload(alice, strings.Repeat("x", maxFile), "batch", 0); failed != nil {
			t.Errorf("the largest file: %s", said(failed))
		}
	})
}

// broken is a store whose storage fails.
type broken struct {
	batch.Store
	err error
}

func (b *broken) CreateFile(ctx context.Context, f *batch.File, most batch.Holdings) error {
	if b.err != nil {
		return b.err
	}
	return b.Store.CreateFile(ctx, f, most)
}

func (b *broken) Batch(ctx context.Context, tenant, id string) (*batch.Batch, error) {
	if b.err != nil {
		return nil, b.err
	}
	return b.Store.Batch(ctx, tenant, id)
}

// TestStorageFails: of a full disk or a locked database the client is told that it
// may come back, the log what it was, and nothing is half there.
func TestStorageFails(t *testing.T) {
	for _, step := range []string{"create", "write", "commit"} {
		s := newServed(t, batchtest.NewMemory())
		s.contents.at, s.contents.err = step, syscall.ENOSPC
		_, failed := s.upload(alice, "x", "batch", 0)
		if failed == nil || failed.Code != wire.CodeStorageFull || strings.Contains(failed.Message, "/var") || !strings.Contains(s.log.String(), "no space left") {
			t.Errorf("%s: %s; log %s", step, said(failed), &s.log)
		}
		if names := s.contents.names(t); len(names) > 0 {
			t.Errorf("%s: %v is left", step, names)
		}
	}
	b := &broken{Store: batchtest.NewMemory(), err: errors.New("database is locked (5)")}
	s := newServed(t, b)
	_, failed := s.upload(alice, "x", "batch", 0)
	if failed == nil || failed.Status != 503 || failed.Code != wire.CodeStorageUnavailable || !strings.Contains(s.log.String(), "database is locked") {
		t.Errorf("%s; log %s", said(failed), &s.log)
	}
	if _, failed := s.Batch(t.Context(), alice, "batch_x"); failed == nil || failed.Code != wire.CodeStorageUnavailable {
		t.Errorf("%s: nobody knows whether there is one", said(failed))
	}
	b.err = fmt.Errorf("%w, nothing was changed", batch.ErrFull)
	if _, failed := s.upload(alice, "x", "batch", 0); failed == nil || failed.Code != wire.CodeStorageFull {
		t.Errorf("a full database: %s", said(failed))
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, failed := s.Batch(gone, alice, "batch_x"); failed == nil || failed.Code != wire.CodeClientClosed {
		t.Errorf("a client that left: %s", said(failed))
	}
	b.err = nil
	if _, failed := s.upload(alice, "x", "batch", 0); failed != nil {
		t.Errorf("once the storage is back: %s", said(failed))
	}
}

// TestBounds: a tenant that has as much as it may is told so, before what it sends comes if
// that is known, and what it deletes makes room.
func TestBounds(t *testing.T) {
	s := newServed(t, batchtest.NewMemory())
	s.bound(batch.Holdings{Files: 2, Bytes: 10, Batches: 1})
	f := s.file(alice) // of 3 bytes
	if _, failed := s.upload(alice, "12345678", "user_data", 0); said(failed) != "429 tenant_storage_full : your files would be more than the limit of 10 bytes; delete files, or wait until some expire" {
		t.Errorf("eight bytes more: %s", said(failed))
	}
	full := "429 tenant_storage_full : your files would be more than the limit of 2 files; delete files, or wait until some expire"
	// Two come at the same time, and there is room for one.
	first, failed := s.Upload(t.Context(), alice)
	if failed != nil {
		t.Fatal(said(failed))
	}
	if _, failed := s.Upload(t.Context(), alice); said(failed) != full {
		t.Errorf("a second beside it: %s", said(failed))
	}
	first.Close()
	first.Close()
	// The other one comes to another replica.
	var ups [2]*batch.Incoming
	for i := range ups {
		s.bound(batch.Holdings{Files: 2, Bytes: 10, Batches: 1})
		up, failed := s.Upload(t.Context(), alice)
		if failed == nil {
			failed, _ = up.Take(t.Context(), strings.NewReader("1234567"))
		}
		if failed != nil {
			t.Fatal(said(failed))
		}
		ups[i] = up
	}
	for i, want := range []string{"ok", full} {
		if _, failed := ups[i].Finish(t.Context(), "x", "user_data", 0); said(failed) != want {
			t.Errorf("upload %d: %s", i, said(failed))
		}
		ups[i].Close()
	}
	if names := s.contents.names(t); len(names) != 2 {
		t.Errorf("%d contents are there of 2 files: what was refused has the disk", len(names))
	}
	if _, failed := s.Upload(t.Context(), alice); said(failed) != full {
		t.Errorf("before it comes: %s", said(failed))
	}
	// Bytes, too, are counted while they come.
	s.bound(batch.Holdings{Bytes: 20})
	half, failed := s.Upload(t.Context(), alice)
	if failed == nil {
		failed, _ = half.Take(t.Context(), strings.NewReader("1234567"))
	}
	if failed != nil {
		t.Fatal(said(failed))
	}
	for i := range 3 { // what is refused is not held against the one that comes
		more, failed := s.Upload(t.Context(), alice)
		if failed == nil {
			failed, _ = more.Take(t.Context(), strings.NewReader("1234"))
		}
		if failed == nil || !strings.Contains(said(failed), "limit of 20 bytes") {
			t.Errorf("21 bytes of 20 come at the same time: %s", said(failed))
		}
		if failed, _ := half.Take(t.Context(), strings.NewReader(strings.Repeat("8", i%2))); failed != nil {
			t.Errorf("the first one then: %s", said(failed))
		}
		defer more.Close()
	}
	half.Close()
	if _, failed := s.upload(alice, "1234", "user_data", 0); failed != nil {
		t.Errorf("once the other one has been given up: %s", said(failed))
	}
	s.bound(batch.Holdings{Files: 3, Bytes: 20, Batches: 1})
	if _, failed := s.upload(bob, "123", "user_data", 0); failed != nil {
		t.Errorf("another tenant: %s", said(failed))
	}
	ask := &batch.NewBatch{Input: f.ID, Endpoint: "/v1/chat/completions", Window: "24h"}
	for _, want := range []string{"ok", "429 tenant_batches_full : 1 of your batches have not ended, which is the limit; wait for one's end, or cancel one"} {
		if _, failed := s.Create(t.Context(), alice, ask); said(failed) != want {
			t.Errorf("a batch: %s", said(failed))
		}
	}
	if s.log.Len() > 0 {
		t.Errorf("a bound is no fault of the storage: %s", &s.log)
	}
}

// TestCreate: a batch is what was asked for, and everything else is refused.
func TestCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServed(t, batchtest.NewMemory())
		f := s.file(alice)
		ask := func(change func(*batch.NewBatch)) *batch.NewBatch {
			n := &batch.NewBatch{Input: f.ID, Endpoint: "/v1/chat/completions", Window: "24h"}
			change(n)
			return n
		}
		pairs := map[string]string{}
		for i := range 16 {
			pairs[fmt.Sprintf("%d%s", i, strings.Repeat("ü", 62))] = strings.Repeat("ü", 512)
		}
		b, failed := s.Create(t.Context(), alice, ask(func(n *batch.NewBatch) { n.Metadata = pairs }))
		if failed != nil {
			t.Fatal(failed)
		}
		want := batch.Batch{ID: b.ID, Tenant: "a", Key: "alice", Class: "batch", Endpoint: "/v1/chat/completions", Window: 24 * time.Hour, Metadata: pairs,
			Input: f.ID, Status: batch.Validating, Created: time.Now(), Expires: time.Now().Add(24 * time.Hour)}
		if d := cmp.Diff(want, *b); d != "" || s.woken != 1 || !strings.HasPrefix(b.ID, "batch_") {
			t.Errorf("woken %d (-want +got)\n%s", s.woken, d)
		}
		if b, failed := s.Create(t.Context(), alice, ask(func(n *batch.NewBatch) { n.Window = "2d"; n.Class = "interactive" })); failed != nil || b.Window != 48*time.Hour || b.Class != "interactive" {
			t.Errorf("%+v, %s", b, said(failed))
		}
		data, failed := s.upload(alice, "x", "user_data", 0)
		if failed != nil {
			t.Fatal(failed)
		}
		bobs := s.file(bob)
		if b, failed := s.Create(t.Context(), bob, ask(func(n *batch.NewBatch) { n.Input = bobs.ID })); failed != nil || b.Class != "interactive" {
			t.Errorf("%+v, %s: a key that may not use batch has its own default", b, said(failed))
		}
		s.woken = 0
		for _, refused := range []struct {
			what   string
			change func(*batch.NewBatch)
			want   string
		}{
			{"no file", func(n *batch.NewBatch) { n.Input = "" }, "400 missing_field input_file_id: input_file_id is missing; required: the id of a file with purpose batch"},
			{"unknown file", func(n *batch.NewBatch) { n.Input = "file-x" }, "404 file_not_found input_file_id: No such File object: file-x"},
			{"another tenant's file", func(n *batch.NewBatch) { n.Input = bobs.ID }, "404 file_not_found input_file_id: No such File object: " + bobs.ID},
			{"other purpose", func(n *batch.NewBatch) { n.Input = data.ID }, `400 invalid_field input_file_id: input_file_id is a file of purpose "user_data"; allowed: a file of purpose batch`},
			{"no endpoint", func(n *batch.NewBatch) { n.Endpoint = "" }, "400 missing_field endpoint: endpoint is missing; required: one of /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses"},
			{"endpoint", func(n *batch.NewBatch) { n.Endpoint = "/v1/models" }, `400 invalid_field endpoint: endpoint is "/v1/models"; allowed: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses`},
			{"no window", func(n *batch.NewBatch) { n.Window = "" }, "400 missing_field completion_window: completion_window is missing; required: 24h, or another duration from 1h to 48h"},
			{"short window", func(n *batch.NewBatch) { n.Window = "59m" }, `400 invalid_field completion_window: completion_window is "59m"; allowed: 24h, or another duration from 1h to 48h`},
			{"long window", func(n *batch.NewBatch) { n.Window = "3d" }, `400 invalid_field completion_window: completion_window is "3d"; allowed: 24h, or another duration from 1h to 48h`},
			{"window", func(n *batch.NewBatch) { n.Window = "tomorrow" }, `400 invalid_field completion_window: completion_window is "tomorrow"; allowed: 24h, or another duration from 1h to 48h`},
			{"pairs", func(n *batch.NewBatch) { n.Metadata = maps.Clone(pairs); n.Metadata["x"] = "" }, "400 invalid_field metadata: metadata is 17 pairs; allowed: at most 16 pairs"},
			{"key", func(n *batch.NewBatch) { n.Metadata = map[string]string{strings.Repeat("k", 65): ""} }, "400 invalid_field metadata: metadata is with a key of 65 characters; allowed: keys of 1 to 64 characters"},
			{"value", func(n *batch.NewBatch) { n.Metadata = map[string]string{"k": strings.Repeat("v", 513)} }, "400 invalid_field metadata.k: metadata.k is a text of 513 characters; allowed: a text of at most 512 characters"},
			{"expiry", func(n *batch.NewBatch) { n.KeepOutput = time.Second }, "400 invalid_field output_expires_after.seconds: output_expires_after.seconds is 1; allowed: 3600 to 2592000"},
			{"class", func(n *batch.NewBatch) { n.Class = "gold" }, "403 class_not_permitted Headgate-Class: Headgate-Class: gold: this key may not use that class; allowed: interactive, batch"},
		} {
			_, failed := s.Create(t.Context(), alice, ask(refused.change))
			if got := said(failed); got != refused.want {
				t.Errorf("%s:\ngot  %s\nwant %s", refused.what, got, refused.want)
			}
		}
		if all, _, _ := s.Batches(t.Context(), alice, batch.PageQuery{}); len(all) != 2 || s.woken != 0 {
			t.Errorf("%d batches of which 2 were made, woken %d", len(all), s.woken)
		}
	})
}

// TestTenants: what another tenant has is what nobody has, to every call.
func TestTenants(t *testing.T) {
	s := newServed(t, batchtest.NewMemory())
	f, b := s.batch(alice)
	ask := func(p *identity.Principal, file, id string) (answers []string) {
		add := func(failed *wire.Error) { answers = append(answers, said(failed)) }
		_, failed := s.File(t.Context(), p, file)
		add(failed)
		_, _, failed = s.Content(t.Context(), p, file)
		add(failed)
		_, _, failed = s.Files(t.Context(), p, batch.PageQuery{After: file})
		add(failed)
		_, failed = s.Create(t.Context(), p, &batch.NewBatch{Input: file, Endpoint: "/v1/completions", Window: "24h"})
		add(failed)
		_, failed = s.Batch(t.Context(), p, id)
		add(failed)
		_, _, failed = s.Batches(t.Context(), p, batch.PageQuery{After: id})
		add(failed)
		_, _, failed = s.Results(t.Context(), p, id, false, 0)
		add(failed)
		_, failed = s.Cancel(t.Context(), p, id)
		add(failed)
		add(s.Delete(t.Context(), p, file))
		return answers
	}
	for i, got := range ask(bob, f.ID, b.ID) {
		nobodys := ask(bob, "file-none", "batch_none")[i]
		nobodys = strings.NewReplacer("file-none", f.ID, "batch_none", b.ID).Replace(nobodys)
		if got != nobodys || !strings.HasPrefix(got, "404") {
			t.Errorf("call %d: another tenant's is\n%s\none that nobody has\n%s", i, got, nobodys)
		}
	}
	if files, _, _ := s.Files(t.Context(), bob, batch.PageQuery{}); len(files) > 0 {
		t.Errorf("bob sees %v", files)
	}
	if files, _, _ := s.Files(t.Context(), alice, batch.PageQuery{}); len(files) != 1 {
		t.Errorf("alice sees %v", files)
	}
}

// TestLifeOfFilesAndBatches: what can't be done any more, or not yet, says so.
func TestLifeOfFilesAndBatches(t *testing.T) {
	s := newServed(t, batchtest.NewMemory())
	f, b := s.batch(alice)
	if failed := s.Delete(t.Context(), alice, f.ID); failed == nil || failed.Code != wire.CodeWrongState {
		t.Errorf("a file that is being read: %s", said(failed))
	}
	s.woken = 0
	for range 2 { // asked again it is the same
		if got, failed := s.Cancel(t.Context(), alice, b.ID); failed != nil || got.Status != batch.Cancelling {
			t.Errorf("%+v, %s", got, said(failed))
		}
	}
	if s.woken == 0 {
		t.Error("the worker was not told")
	}
	now := time.Now()
	if err := errors.Join(s.store.Finalize(t.Context(), b.ID, now), s.store.Finish(t.Context(), b.ID, nil, nil, now)); err != nil {
		t.Fatal(err)
	}
	if _, failed := s.Cancel(t.Context(), alice, b.ID); said(failed) != "409 wrong_state : Cannot cancel a batch with status 'cancelled'." {
		t.Error(said(failed))
	}
	if failed := s.Delete(t.Context(), alice, f.ID); failed != nil || len(s.contents.names(t)) > 0 {
		t.Errorf("%s, left %v", said(failed), s.contents.names(t))
	}
	if failed := s.Delete(t.Context(), alice, f.ID); failed == nil || failed.Code != wire.CodeFileNotFound {
		t.Errorf("again: %s", said(failed))
	}
}

// TestPages: a list is read to its end, in either order, a page at a time.
func TestPages(t *testing.T) {
	s := newServed(t, batchtest.NewMemory())
	var made []string
	for range 7 {
		made = append(made, s.file(alice).ID)
	}
	for _, order := range []string{"", "asc"} {
		var got []string
		for after := ""; ; {
			files, more, failed := s.Files(t.Context(), alice, batch.PageQuery{After: after, Limit: "3", Order: order, Purpose: "batch"})
			if failed != nil {
				t.Fatal(failed)
			}
			for _, f := range files {
				got = append(got, f.ID)
			}
			if !more {
				break
			}
			after = got[len(got)-1]
		}
		if order == "" {
			slices.Reverse(got)
		}
		if !slices.Equal(got, made) {
			t.Errorf("order %q: %v, made %v", order, got, made)
		}
	}
	if files, _, _ := s.Files(t.Context(), alice, batch.PageQuery{Purpose: "batch_output"}); len(files) > 0 {
		t.Errorf("%v has another purpose", files)
	}
	for _, refused := range []struct {
		q    batch.PageQuery
		want string
	}{
		{batch.PageQuery{Limit: "0"}, "400 invalid_field limit: limit is 0; allowed: 1 to 100"},
		{batch.PageQuery{Limit: "101"}, "400 invalid_field limit: limit is 101; allowed: 1 to 100"},
		{batch.PageQuery{Limit: "many"}, "400 invalid_field limit: limit is many; allowed: 1 to 100"},
		{batch.PageQuery{Order: "up"}, "400 invalid_field order: order is up; allowed: asc or desc"},
	} {
		if _, _, failed := s.Batches(t.Context(), alice, refused.q); said(failed) != refused.want {
			t.Errorf("got  %s\nwant %s", said(failed), refused.want)
		}
	}
}

// TestWindows: a window is told as OpenAI does, and read as it is told.
func TestWindows(t *testing.T) {
	for text, want := range map[string]string{"24h": "24h", "1d": "24h", "7d": "168h", "90m": "1h30m", "45m": "45m", "30s": "30s", "1h0m30s": "1h0m30s"} {
		d, err := batch.ParseWindow(text)
		if got := batch.FormatWindow(d); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
		if again, err := batch.ParseWindow(batch.FormatWindow(d)); err != nil || again != d {
			t.Errorf("%s is told as %s, which is %v", text, batch.FormatWindow(d), again)
		}
	}
}

// TestResults: what is done of a batch is read in pieces, each going on behind the one
// before.
func TestResults(t *testing.T) {
	store := batchtest.NewMemory()
	s := newServed(t, store)
	_, b := s.batch(alice)
	const n = 50
	var items []batch.Item
	for i := range n {
		items = append(items, batch.Item{Batch: b.ID, Line: int64(i + 1), CustomID: fmt.Sprint(i)})
	}
	now := time.Now()
	_, err := store.AddItems(t.Context(), b.ID, items)
	err = errors.Join(err, store.Start(t.Context(), b.ID, now))
	claims, err2 := store.Claim(t.Context(), b.ID, "w", n, 0, now, now.Add(time.Minute))
	if err := errors.Join(err, err2); err != nil || len(claims) != n {
		t.Fatal(len(claims), err)
	}
	var want [2]string
	for i, c := range claims {
		line := fmt.Sprintf(`{"custom_id":%q,"text":%q}`, c.CustomID, strings.Repeat("x", 20_000))
		kind := i % 2
		want[kind] += line + "\n"
		if _, err := store.Save(t.Context(), nil, nil, []batch.Outcome{{Batch: b.ID, Line: c.Line, Fence: c.Fence, Failed: kind == 1, Result: []byte(line)}}, now); err != nil {
			t.Fatal(err)
		}
	}
	for kind := range 2 {
		var got string
		pieces := 0
		for after := int64(0); ; pieces++ {
			lines, next, failed := s.Results(t.Context(), alice, b.ID, kind == 1, after)
			if failed != nil {
				t.Fatal(failed)
			}
			if len(lines) == 0 {
				break
			}
			got, after = got+string(lines), next
		}
		if got != want[kind] || pieces < 2 {
			t.Errorf("kind %d: %d bytes in %d pieces, want %d", kind, len(got), pieces, len(want[kind]))
		}
	}
}

// Operators see the sizes of files that there still are.
func TestSummaries(t *testing.T) {
	s := newServed(t, batchtest.NewMemory())
	_, b := s.batch(alice)
	ctx, now := t.Context(), time.Now()
	_, err := s.store.AddItems(ctx, b.ID, []batch.Item{{Batch: b.ID, Line: 1, CustomID: "a"}, {Batch: b.ID, Line: 2, CustomID: "b"}})
	err = errors.Join(err, s.store.Start(ctx, b.ID, now))
	claims, failure := s.store.Claim(ctx, b.ID, "w", 2, 0, now, now.Add(time.Minute))
	if err = errors.Join(err, failure); err != nil || len(claims) != 2 {
		t.Fatal(err, claims)
	}
	var done []batch.Outcome
	for i, c := range claims {
		done = append(done, batch.Outcome{Batch: b.ID, Line: c.Line, Fence: c.Fence, Failed: i == 1, Result: []byte(`{}`)})
	}
	_, err = s.store.Save(ctx, nil, nil, done, now)
	output := &batch.File{ID: "file-o", Tenant: alice.Tenant, Purpose: batch.PurposeOutput, Bytes: 70}
	problems := &batch.File{ID: "file-e", Tenant: alice.Tenant, Purpose: batch.PurposeOutput, Bytes: 7}
	if err = errors.Join(err, s.store.Finalize(ctx, b.ID, now), s.store.Finish(ctx, b.ID, output, problems, now), s.store.DeleteFile(ctx, alice.Tenant, "file-e")); err != nil {
		t.Fatal(err)
	}
	jobs, more, failed := s.Summaries(ctx, batch.PageQuery{}, false)
	if failed != nil || more || len(jobs) != 1 || jobs[0].ID != b.ID || jobs[0].OutputBytes != 70 || jobs[0].ErrorBytes != 0 || jobs[0].Counts.Failed != 1 {
		t.Errorf("%v %+v", failed, jobs)
	}
	if jobs, _, failed := s.Summaries(ctx, batch.PageQuery{}, true); failed != nil || len(jobs) != 0 {
		t.Errorf("of those that have not ended: %v %+v", failed, jobs)
	}
}
