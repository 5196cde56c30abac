package batch

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"headgate/identity"
	"headgate/journal"
	"headgate/wire"
)

// Bounds that are OpenAI's. Those of files and windows are the operator's.
const (
	MaxBatches = 100    // of a page of batches
	MaxFiles   = 10_000 // of a page of files

	pageBatches = 20

	maxMetadata = 16
	maxKey      = 64  // characters
	maxValue    = 512 // characters
	maxFilename = 255 // bytes

	leastExpiry = time.Hour
	mostExpiry  = 30 * 24 * time.Hour
)

// The purposes of files that are the service's own; others are only kept.
const (
	PurposeBatch  = "batch"
	PurposeOutput = "batch_output"
)

// uploads are the purposes that a client may give a file.
var uploads = []string{PurposeBatch, "assistants", "fine-tune", "vision", "user_data", "evals"}

// Endpoints are what items may ask for.
var Endpoints = []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"}

// ServiceConfig is what a Service works with. Store, Files, Wake and Log must be set.
type ServiceConfig struct {
	Store Store
	Files Files
	// Wake tells the worker that a batch was created or cancelled.
	Wake   func()
	Log    *slog.Logger
	Events *Events // nil: nobody is told

	// MaxFile is the largest file, in bytes, and Most what one tenant may have of all.
	MaxFile int64
	Most    Holdings
	// KeepInput is how long a file of purpose batch is kept that doesn't say how long; 0: for ever.
	KeepInput time.Duration
	// MinWindow and MaxWindow bound a batch's completion window.
	MinWindow, MaxWindow time.Duration
	// Class is that of batches of whose key it is one, and which name none.
	Class string
}

// Service is files and batches as clients have them: each sees those of its tenant.
// Errors are as they are told to it.
type Service struct {
	cfg ServiceConfig

	mu     sync.Mutex
	coming map[string]Holdings // by tenant, what is being uploaded here
}

// NewService returns a service. It has nothing to be closed.
func NewService(cfg ServiceConfig) *Service {
	return &Service{cfg: cfg, coming: map[string]Holdings{}}
}

// MaxFile is the largest file, in bytes.
func (s *Service) MaxFile() int64 { return s.cfg.MaxFile }

// PageQuery asks for a part of a list as a client writes it; an empty text is the default.
type PageQuery struct{ After, Limit, Order, Purpose string }

// page reads a query, with a number of entries as the default and the most.
func (q *PageQuery) page(usual, most int) (Page, *wire.Error) {
	p := Page{After: q.After, Limit: usual, Purpose: q.Purpose}
	if q.Limit != "" {
		n, err := strconv.Atoi(q.Limit)
		if err != nil || n < 1 || n > most {
			return p, wire.InvalidField("limit", q.Limit, fmt.Sprintf("1 to %d", most))
		}
		p.Limit = n
	}
	switch q.Order {
	case "", "desc":
	case "asc":
		p.Oldest = true
	default:
		return p, wire.InvalidField("order", q.Order, "asc or desc")
	}
	return p, nil
}

// newID returns a name of 120 random bits.
func newID(prefix string) string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// Incoming is a file that is being uploaded. What is written is there once Finish has
// returned a File; Close without it leaves nothing.
type Incoming struct {
	s      *Service
	id     string
	tenant string
	to     Upload
	bytes  int64
	before Holdings // what the tenant had
	closed bool
}

// Upload begins a file. Its purpose is asked for at the end: a form may have it behind
// the content.
func (s *Service) Upload(ctx context.Context, p *identity.Principal) (*Incoming, *wire.Error) {
	u := &Incoming{s: s, id: newID("file-"), tenant: p.Tenant}
	var err error
	if s.cfg.Most != (Holdings{}) {
		// What can't be kept need not come. That it can is decided at the end: others come
		// meanwhile, to other replicas too.
		u.before, err = s.cfg.Store.Holdings(ctx, p.Tenant)
	}
	if err == nil {
		err = u.more(Holdings{Files: 1})
	}
	if err == nil {
		if u.to, err = s.cfg.Files.Create(ctx, u.id); err != nil {
			u.gone()
		}
	}
	if err != nil {
		return nil, s.failed(ctx, "create a file", err)
	}
	return u, nil
}

// more counts what comes, if the tenant may have it, as far as is known, beside what else
// it is uploading here. What it may not have is not held against the others.
func (u *Incoming) more(n Holdings) error {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	all := u.s.coming[u.tenant]
	all.Files, all.Bytes = all.Files+n.Files, all.Bytes+n.Bytes
	if err := u.before.Check(Holdings{Files: all.Files, Bytes: max(all.Bytes, 1)}, u.s.cfg.Most); err != nil {
		return err
	}
	u.s.coming[u.tenant] = all
	u.bytes += n.Bytes
	return nil
}

// gone takes back what more has counted.
func (u *Incoming) gone() {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if u.closed {
		return
	}
	u.closed = true
	all := u.s.coming[u.tenant]
	all.Files, all.Bytes = all.Files-1, all.Bytes-u.bytes
	if u.s.coming[u.tenant] = all; all == (Holdings{}) {
		delete(u.s.coming, u.tenant)
	}
}

// Take takes the content, up to the largest that is allowed. An error of in's is
// returned as it is.
func (u *Incoming) Take(ctx context.Context, in io.Reader) (failed *wire.Error, broken error) {
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if u.bytes+int64(n) > u.s.cfg.MaxFile {
			return wire.NewError(wire.CodeBodyTooLarge, "the file is larger than %d bytes", u.s.cfg.MaxFile), nil
		}
		if n > 0 {
			err := u.more(Holdings{Bytes: int64(n)})
			if err == nil {
				_, err = u.to.Write(buf[:n])
			}
			if err != nil {
				return u.s.failed(ctx, "write a file", err), nil
			}
		}
		switch {
		case err == io.EOF:
			return nil, nil
		case err != nil:
			return nil, err
		}
	}
}

// Finish makes the file one of the tenant's. keep is how long after now it expires; 0:
// as files of its purpose do.
func (u *Incoming) Finish(ctx context.Context, name, purpose string, keep time.Duration) (*File, *wire.Error) {
	if err := checkPurpose(purpose); err != nil {
		return nil, err
	}
	if keep != 0 && (keep < leastExpiry || keep > mostExpiry) {
		return nil, invalidExpiry("expires_after", keep)
	}
	if keep == 0 && purpose == PurposeBatch {
		keep = u.s.cfg.KeepInput
	}
	now := time.Now()
	f := &File{ID: u.id, Tenant: u.tenant, Purpose: purpose, Name: filename(name), Bytes: u.bytes, Created: now}
	if keep > 0 {
		f.Expires = now.Add(keep)
	}
	// The content first: a row without one would be a file that can't be read, a content
	// without a row is swept up.
	if err := u.to.Commit(); err != nil {
		return nil, u.s.failed(ctx, "write a file", err)
	}
	u.gone() // it is among what the tenant has now
	if err := u.s.cfg.Store.CreateFile(ctx, f, u.s.cfg.Most); err != nil {
		if full := (*FullError)(nil); errors.As(err, &full) {
			// Left to be swept up, a tenant's refused uploads would have the disk for a day. Of
			// other errors nobody knows whether the row is there.
			if err := u.s.cfg.Files.Remove(ctx, f.ID); err != nil {
				u.s.cfg.Log.Warn("the content of a refused file is left", "file", f.ID, "err", err)
			}
		}
		return nil, u.s.failed(ctx, "record a file", err)
	}
	return f, nil
}

// Close ends the upload, however it went.
func (u *Incoming) Close() {
	u.gone()
	if err := u.to.Close(); err != nil {
		u.s.cfg.Log.Warn("a file's upload was not cleaned up", "file", u.id, "err", err)
	}
}

func invalidExpiry(at string, keep time.Duration) *wire.Error {
	return wire.InvalidField(at+".seconds", strconv.FormatInt(int64(keep/time.Second), 10),
		fmt.Sprintf("%d to %d", leastExpiry/time.Second, mostExpiry/time.Second))
}

func checkPurpose(purpose string) *wire.Error {
	allowed := strings.Join(uploads, ", ")
	switch {
	case purpose == "":
		return wire.MissingField("purpose", "one of "+allowed)
	case !slices.Contains(uploads, purpose):
		return wire.InvalidField("purpose", strconv.Quote(purpose), allowed)
	}
	return nil
}

// filename is what a client calls a file, as far as it can be told back.
func filename(name string) string {
	name = strings.ToValidUTF8(name, "_")
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, name)
	for len(name) > maxFilename {
		_, last := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-last]
	}
	if name == "" {
		return "file"
	}
	return name
}

// File returns one of the tenant's files.
func (s *Service) File(ctx context.Context, p *identity.Principal, id string) (*File, *wire.Error) {
	f, err := s.cfg.Store.File(ctx, p.Tenant, id)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && f.expired(time.Now()):
		return nil, wire.FileNotFound(id, "id")
	case err != nil:
		return nil, s.failed(ctx, "look up a file", err)
	}
	return f, nil
}

// expired tells that a file's time is over, and that it is gone or will be once no batch
// reads it.
func (f *File) expired(now time.Time) bool { return !f.Expires.IsZero() && !now.Before(f.Expires) }

// Files lists the tenant's files.
func (s *Service) Files(ctx context.Context, p *identity.Principal, q PageQuery) (files []*File, more bool, failed *wire.Error) {
	page, failed := q.page(MaxFiles, MaxFiles)
	if failed != nil {
		return nil, false, failed
	}
	files, more, err := s.cfg.Store.Files(ctx, p.Tenant, page)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, false, wire.FileNotFound(q.After, "after")
	case err != nil:
		return nil, false, s.failed(ctx, "list files", err)
	}
	return files, more, nil
}

// Content opens a file to be read, by a caller who closes it.
func (s *Service) Content(ctx context.Context, p *identity.Principal, id string) (*File, Content, *wire.Error) {
	f, failed := s.File(ctx, p, id)
	if failed != nil {
		return nil, nil, failed
	}
	c, err := s.cfg.Files.Open(ctx, id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// It was deleted meanwhile, or somebody took it from the disk.
		s.cfg.Log.Warn("a file has no content", "file", id)
		return nil, nil, wire.FileNotFound(id, "id")
	case err != nil:
		return nil, nil, s.failed(ctx, "open a file", err)
	}
	return f, c, nil
}

// Delete removes a file that no batch reads which has not ended.
func (s *Service) Delete(ctx context.Context, p *identity.Principal, id string) *wire.Error {
	switch err := s.cfg.Store.DeleteFile(ctx, p.Tenant, id); {
	case errors.Is(err, ErrNotFound):
		return wire.FileNotFound(id, "id")
	case errors.Is(err, ErrState):
		return wire.WrongState("file %s is read by a batch that has not ended: cancel the batch, or wait for its end", id)
	case err != nil:
		return s.failed(ctx, "delete a file", err)
	}
	if err := s.cfg.Files.Remove(ctx, id); err != nil {
		s.cfg.Log.Warn("the content of a deleted file is left", "file", id, "err", err) // until it is swept up
	}
	return nil
}

// NewBatch is what a batch is asked for with.
type NewBatch struct {
	Input    string // name of the file
	Endpoint string
	Window   string // such as 24h
	Metadata map[string]string
	Class    string // that the client names; "" is none
	// KeepOutput is how long its output and error files are kept; 0: as the operator says.
	KeepOutput time.Duration
}

// Create makes a batch. It is validated later, by the worker.
func (s *Service) Create(ctx context.Context, p *identity.Principal, n *NewBatch) (*Batch, *wire.Error) {
	class, failed := s.class(p, n.Class)
	if failed != nil {
		return nil, failed
	}
	switch {
	case n.Input == "":
		return nil, wire.MissingField("input_file_id", "the id of a file with purpose batch")
	case n.Endpoint == "":
		return nil, wire.MissingField("endpoint", "one of "+strings.Join(Endpoints, ", "))
	case !slices.Contains(Endpoints, n.Endpoint):
		return nil, wire.InvalidField("endpoint", strconv.Quote(n.Endpoint), strings.Join(Endpoints, ", "))
	}
	window, failed := s.window(n.Window)
	if failed != nil {
		return nil, failed
	}
	if failed := checkMetadata(n.Metadata); failed != nil {
		return nil, failed
	}
	if n.KeepOutput != 0 && (n.KeepOutput < leastExpiry || n.KeepOutput > mostExpiry) {
		return nil, invalidExpiry("output_expires_after", n.KeepOutput)
	}
	input, failed := s.File(ctx, p, n.Input)
	if failed == nil && input.Purpose != PurposeBatch {
		failed = wire.InvalidField("input_file_id", fmt.Sprintf("a file of purpose %q", input.Purpose), "a file of purpose batch")
	}
	if failed != nil {
		failed.Param = "input_file_id"
		return nil, failed
	}
	now := time.Now()
	b := &Batch{
		ID: newID("batch_"), Tenant: p.Tenant, Key: p.Name, Class: class, Endpoint: n.Endpoint, Window: window, Metadata: n.Metadata, KeepOutput: n.KeepOutput,
		Input: input.ID, Status: Validating, Created: now, Expires: now.Add(window),
	}
	switch err := s.cfg.Store.CreateBatch(ctx, b, s.cfg.Most); {
	case errors.Is(err, ErrNotFound): // it was deleted meanwhile
		return nil, wire.FileNotFound(n.Input, "input_file_id")
	case err != nil:
		return nil, s.failed(ctx, "create a batch", err)
	}
	s.cfg.Events.batch(journal.BatchCreated, b)
	s.cfg.Wake()
	return b, nil
}

// class is that of a batch's items.
func (s *Service) class(p *identity.Principal, asked string) (string, *wire.Error) {
	if asked == "" && slices.Contains(p.Classes, s.cfg.Class) {
		return s.cfg.Class, nil
	}
	return p.Class(asked, "")
}

// window reads a completion window: a duration, of whole days too.
func (s *Service) window(text string) (time.Duration, *wire.Error) {
	allowed := fmt.Sprintf("24h, or another duration from %s to %s", FormatWindow(s.cfg.MinWindow), FormatWindow(s.cfg.MaxWindow))
	if text == "" {
		return 0, wire.MissingField("completion_window", allowed)
	}
	d, err := ParseWindow(text)
	if err != nil || d < s.cfg.MinWindow || d > s.cfg.MaxWindow {
		return 0, wire.InvalidField("completion_window", strconv.Quote(text), allowed)
	}
	return d, nil
}

// ParseWindow reads a window such as 24h, 90m or 7d.
func ParseWindow(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// FormatWindow writes a window without parts that are zero: 24h, not 24h0m0s.
func FormatWindow(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func checkMetadata(m map[string]string) *wire.Error {
	if len(m) > maxMetadata {
		return wire.InvalidField("metadata", fmt.Sprintf("%d pairs", len(m)), fmt.Sprintf("at most %d pairs", maxMetadata))
	}
	for k, v := range m {
		if n := utf8.RuneCountInString(k); n == 0 || n > maxKey {
			return wire.InvalidField("metadata", fmt.Sprintf("with a key of %d characters", n), fmt.Sprintf("keys of 1 to %d characters", maxKey))
		}
		if n := utf8.RuneCountInString(v); n > maxValue {
			return wire.InvalidField("metadata."+k, fmt.Sprintf("a text of %d characters", n), fmt.Sprintf("a text of at most %d characters", maxValue))
		}
	}
	return nil
}

// Batch returns one of the tenant's batches.
func (s *Service) Batch(ctx context.Context, p *identity.Principal, id string) (*Batch, *wire.Error) {
	b, err := s.cfg.Store.Batch(ctx, p.Tenant, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, wire.BatchNotFound(id)
	case err != nil:
		return nil, s.failed(ctx, "look up a batch", err)
	}
	return b, nil
}

// Batches lists the tenant's batches.
func (s *Service) Batches(ctx context.Context, p *identity.Principal, q PageQuery) (batches []*Batch, more bool, failed *wire.Error) {
	page, failed := q.page(pageBatches, MaxBatches)
	if failed != nil {
		return nil, false, failed
	}
	batches, more, err := s.cfg.Store.Batches(ctx, p.Tenant, page)
	switch {
	case errors.Is(err, ErrNotFound):
		failed := wire.BatchNotFound(q.After)
		failed.Param = "after"
		return nil, false, failed
	case err != nil:
		return nil, false, s.failed(ctx, "list batches", err)
	}
	return batches, more, nil
}

// Summary is a batch as an operator sees it, with the sizes of its files in bytes, 0 where
// there is none.
type Summary struct {
	*Batch
	OutputBytes, ErrorBytes int64
}

// Summaries lists batches of all tenants, or only those that have not ended. What is in them and
// in their files is their tenants'.
func (s *Service) Summaries(ctx context.Context, q PageQuery, open bool) (all []Summary, more bool, failed *wire.Error) {
	page, failed := q.page(pageBatches, MaxBatches)
	if failed != nil {
		return nil, false, failed
	}
	page.Open = open
	batches, more, err := s.cfg.Store.AllBatches(ctx, page)
	if errors.Is(err, ErrNotFound) {
		failed := wire.BatchNotFound(q.After)
		failed.Param = "after"
		return nil, false, failed
	}
	for _, b := range batches {
		j := Summary{Batch: b}
		for _, f := range []struct {
			id string
			to *int64
		}{{b.Output, &j.OutputBytes}, {b.Error, &j.ErrorBytes}} {
			if f.id == "" || err != nil {
				continue
			}
			file, gone := s.cfg.Store.File(ctx, b.Tenant, f.id)
			switch {
			case gone == nil:
				*f.to = file.Bytes
			case !errors.Is(gone, ErrNotFound): // else it has expired, or was deleted
				err = gone
			}
		}
		all = append(all, j)
	}
	if err != nil {
		return nil, false, s.failed(ctx, "list batches", err)
	}
	return all, more, nil
}

// Cancel begins to end a batch. One that is being cancelled already is returned as it is.
func (s *Service) Cancel(ctx context.Context, p *identity.Principal, id string) (*Batch, *wire.Error) {
	b, err := s.cfg.Store.Cancel(ctx, p.Tenant, id, time.Now())
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, wire.BatchNotFound(id)
	case errors.Is(err, ErrState):
		b, failed := s.Batch(ctx, p, id)
		if failed == nil && b.Status != Cancelling {
			failed = wire.WrongState("Cannot cancel a batch with status '%s'.", b.Status)
		}
		return b, failed
	case err != nil:
		return nil, s.failed(ctx, "cancel a batch", err)
	}
	s.cfg.Events.batch(journal.BatchCancelling, b)
	s.cfg.Wake()
	return b, nil
}

// piece is about how much of a running batch's results is read at a time, in bytes:
// while the storage is read, nobody waits for a client.
const piece = 256 << 10

// errEnough ends the reading of a piece.
var errEnough = errors.New("enough for now")

// Results returns lines of a batch that are there so far, failed ones or others, in the
// order in which they came to be, from behind a place on (0: the first). next is the place
// of the last one. Without lines there are no more yet. There are none of a batch that
// has ended: they are in its files.
func (s *Service) Results(ctx context.Context, p *identity.Principal, id string, errs bool, after int64) (lines []byte, next int64, failed *wire.Error) {
	if _, failed := s.Batch(ctx, p, id); failed != nil {
		return nil, after, failed
	}
	next = after
	err := s.cfg.Store.Results(ctx, id, errs, after, func(place int64, line []byte) error {
		lines, next = append(append(lines, line...), '\n'), place
		if len(lines) >= piece {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, after, s.failed(ctx, "read results", err)
	}
	return lines, next, nil
}

// failed is what a client is told of a fault of the storage, of which the log is told the rest,
// or of a bound.
func (s *Service) failed(ctx context.Context, what string, err error) *wire.Error {
	if ctx.Err() != nil {
		return wire.ClientClosed()
	}
	if full := (*FullError)(nil); errors.As(err, &full) {
		if full.What == "batches" {
			return wire.TenantBatchesFull(full.Most)
		}
		return wire.TenantStorageFull(full.What, full.Most)
	}
	s.cfg.Log.Error("batch storage failed", "to", what, "err", err)
	if errors.Is(err, ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return wire.StorageFull()
	}
	return wire.StorageUnavailable()
}
