package gateway

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"headgate/batch"
	"headgate/identity"
	"headgate/wire"
)

// mostRanges are the parts of a file that are sent in one answer: each may be a request to
// object storage.
const mostRanges = 16

const (
	filesPath  = "/v1/files"
	filePrefix = filesPath + "/"
)

var (
	fileRoute    = route{"file", allowGet + ", " + http.MethodDelete, (*Gateway).file}
	contentRoute = route{"file_content", allowGet, (*Gateway).content}
)

// name is a path's part that names a file or a batch: its only one below the prefix,
// but for an end.
func name(path, prefix, end string) (string, bool) {
	rest, ok := strings.CutPrefix(path, prefix)
	if ok {
		rest, ok = strings.CutSuffix(rest, end)
	}
	return rest, ok && rest != "" && !strings.ContainsAny(rest, "/%")
}

type fileJSON struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Bytes   int64   `json:"bytes"`
	Created int64   `json:"created_at"`
	Expires seconds `json:"expires_at"`
	Name    string  `json:"filename"`
	Purpose string  `json:"purpose"`
	Status  string  `json:"status"`
	Details *string `json:"status_details"`
}

// seconds is a moment as OpenAI tells it; zero: null.
type seconds time.Time

// MarshalJSON implements json.Marshaler.
func (s seconds) MarshalJSON() ([]byte, error) {
	if time.Time(s).IsZero() {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, time.Time(s).Unix(), 10), nil
}

func fileView(f *batch.File) fileJSON {
	return fileJSON{ID: f.ID, Object: "file", Bytes: f.Bytes, Created: f.Created.Unix(), Expires: seconds(f.Expires), Name: f.Name, Purpose: f.Purpose, Status: "processed"}
}

// listJSON is a page of a list.
type listJSON[T any] struct {
	Object string  `json:"object"`
	Data   []T     `json:"data"`
	First  *string `json:"first_id"`
	Last   *string `json:"last_id"`
	More   bool    `json:"has_more"`
}

func listView[E, T any](all []*E, more bool, view func(*E) T, id func(*E) string) listJSON[T] {
	l := listJSON[T]{Object: "list", Data: []T{}, More: more}
	for _, e := range all {
		l.Data = append(l.Data, view(e))
	}
	if n := len(all); n > 0 {
		first, last := id(all[0]), id(all[n-1])
		l.First, l.Last = &first, &last
	}
	return l
}

// pageQuery reads the part of a list that is asked for. Of a value that is given
// several times the first counts.
func pageQuery(r *http.Request) batch.PageQuery {
	q := r.URL.Query()
	return batch.PageQuery{After: q.Get("after"), Limit: q.Get("limit"), Order: q.Get("order"), Purpose: q.Get("purpose")}
}

// files lists files, or takes a new one.
func (g *Gateway) files(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	if r.Method == http.MethodPost {
		return g.upload(w, r, p)
	}
	files, more, err := g.cfg.Batches.Files(r.Context(), p, pageQuery(r))
	if err != nil {
		return err
	}
	return w.json(listView(files, more, fileView, func(f *batch.File) string { return f.ID }))
}

// file tells of a file, or removes it.
func (g *Gateway) file(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	id, _ := name(r.URL.EscapedPath(), filePrefix, "")
	if r.Method != http.MethodDelete {
		f, err := g.cfg.Batches.File(r.Context(), p, id)
		if err != nil {
			return err
		}
		return w.json(fileView(f))
	}
	if err := g.cfg.Batches.Delete(r.Context(), p, id); err != nil {
		return w.refuse(err)
	}
	return w.json(struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{id, "file", true})
}

// refuse tells OpenAI's SDKs not to repeat what stays refused: they take a 409 for a
// lock that will be let go, and a 429 for a rush.
func (w *response) refuse(err *wire.Error) *wire.Error {
	switch err.Code {
	case wire.CodeWrongState, wire.CodeTenantStorageFull, wire.CodeTenantBatchesFull:
		w.header.Set("X-Should-Retry", "false")
	}
	return err
}

// content sends a file, or a range of it.
func (g *Gateway) content(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	id, _ := name(r.URL.EscapedPath(), filePrefix, "/content")
	f, c, err := g.cfg.Batches.Content(r.Context(), p, id)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // it was only read
	w.header.Set("Content-Type", "application/octet-stream")
	w.header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": f.Name}))
	// What a file has never changes, so its name tells versions apart.
	w.header.Set("Etag", strconv.Quote(id))
	if strings.Count(r.Header.Get("Range"), ",") >= mostRanges {
		r.Header.Del("Range") // who may ask for parts may be sent the whole
	}
	w.letGo()
	out := &download{response: w}
	in := &noted{ReadSeeker: io.NewSectionReader(c, 0, c.Size())}
	http.ServeContent(out, r, "", f.Created, in)
	if in.err != nil {
		// The client has less than it was promised; nobody else would be told.
		g.cfg.Log.Error("a file's content could not be read", "request", w.id, "file", id, "err", in.err)
		return wire.StorageUnavailable()
	}
	if out.outside {
		for _, h := range []string{"Content-Disposition", "Etag", "Last-Modified", "X-Content-Type-Options"} {
			w.header.Del(h)
		}
		return wire.BadRange(r.Header.Get("Range"), c.Size())
	}
	if out.gone {
		return wire.ClientClosed()
	}
	return nil
}

func clipped(text string) string { return text[:min(len(text), maxPath)] }

// noted keeps the error of a content, which http.ServeContent does not tell.
type noted struct {
	io.ReadSeeker
	err error
}

// Read implements io.Reader.
func (n *noted) Read(b []byte) (int, error) {
	k, err := n.ReadSeeker.Read(b)
	if err != nil && err != io.EOF {
		n.err = err
	}
	return k, err
}

// download is a response whose client is given time for each piece, and not for the
// whole.
type download struct {
	*response
	outside bool // the range is none of the file: the API's own error says so
	gone    bool // the client does not read
}

// Header implements http.ResponseWriter.
func (d *download) Header() http.Header { return d.header }

// WriteHeader implements http.ResponseWriter.
func (d *download) WriteHeader(status int) {
	if d.outside = status == http.StatusRequestedRangeNotSatisfiable; d.outside {
		return
	}
	d.started, d.status = true, status
	d.deadline()
	d.out.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (d *download) Write(b []byte) (int, error) {
	if d.outside {
		return len(b), nil
	}
	d.deadline()
	n, err := d.out.Write(b)
	d.gone = d.gone || err != nil
	return n, err
}

// Bounds of a form beside its file.
const (
	mostFields = 16
	mostField  = 1 << 10 // bytes
	// formOverhead is what a form may have beside its file, in bytes.
	formOverhead = 64 << 10
	// leastPiece is what has to come of an upload within the time that a whole body has:
	// a large file takes as long as it takes, a client that only trickles is cut.
	leastPiece = 64 << 10
)

// paced is an upload's body: its time is renewed as it comes.
type paced struct {
	w    *response
	body io.Reader
	left int // of the piece
}

// Read implements io.Reader.
func (p *paced) Read(b []byte) (int, error) {
	if p.left <= 0 {
		p.left = leastPiece
		// A server that can't set deadlines (a test's recorder) reads without one.
		_ = p.w.control.SetReadDeadline(time.Now().Add(p.w.cfg.Limits.BodyTimeout))
	}
	n, err := p.body.Read(b)
	p.left -= n
	return n, err
}

// upload takes a form with a file, as it comes: the file goes to the disk and not
// through memory, wherever in the form it is.
func (g *Gateway) upload(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	most := g.cfg.Batches.MaxFile()
	if r.ContentLength > most+formOverhead {
		return wire.NewError(wire.CodeBodyTooLarge, "the file is larger than %d bytes", most)
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{&paced{w: w, body: http.MaxBytesReader(w.out, r.Body, most+formOverhead)}, r.Body}
	parts, err := r.MultipartReader()
	if err != nil {
		failed := wire.NewError(wire.CodeInvalidField, "Content-Type is %s; allowed: multipart/form-data with a boundary", strconv.Quote(clipped(r.Header.Get("Content-Type"))))
		failed.Param = "Content-Type"
		return failed
	}
	form := &form{g: g, w: w, p: p, fields: map[string]string{}}
	defer form.close()
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return w.badForm(err, most)
		}
		if failed := form.take(r, part); failed != nil {
			return failed
		}
	}
	// What a client sends behind the form's end is read here, within its time, and not by
	// the server, which has none.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return w.badForm(err, most)
	}
	w.unread = false
	_ = w.control.SetReadDeadline(time.Time{})
	return form.finish(r)
}

// badForm is why a form can't be read.
func (w *response) badForm(err error, most int64) *wire.Error {
	var large *http.MaxBytesError
	var broken net.Error
	switch {
	case errors.As(err, &large):
		return wire.NewError(wire.CodeBodyTooLarge, "the file is larger than %d bytes", most)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return wire.NewError(wire.CodeBodyTooSlow, "less than %d bytes of the body came within %v", leastPiece, w.cfg.Limits.BodyTimeout)
	case errors.As(err, &broken), errors.Is(err, net.ErrClosed):
		return wire.ClientClosed()
	}
	// A client that left and a form that ends too early look the same.
	return wire.NewError(wire.CodeInvalidField, "the body is no whole form of multipart/form-data")
}

// form is a form that is being read.
type form struct {
	g      *Gateway
	w      *response
	p      *identity.Principal
	fields map[string]string
	file   *batch.Incoming
	name   string
}

const fieldFile = "file"

var formFields = map[string]bool{fieldFile: true, "purpose": true, "expires_after[anchor]": true, "expires_after[seconds]": true}

func (f *form) take(r *http.Request, part *multipart.Part) *wire.Error {
	name := part.FormName()
	_, twice := f.fields[name]
	switch {
	case !formFields[name]:
		return wire.InvalidField("the form's field", strconv.Quote(name), "file, purpose, expires_after[anchor] and expires_after[seconds]")
	case twice || name == fieldFile && f.file != nil:
		failed := wire.NewError(wire.CodeInvalidField, "%s is given twice; allowed: once", name)
		failed.Param = name
		return failed
	}
	most := f.g.cfg.Batches.MaxFile()
	if name != fieldFile {
		value, err := io.ReadAll(io.LimitReader(part, mostField+1))
		if err != nil {
			return f.w.badForm(err, most)
		}
		if len(value) > mostField {
			return wire.InvalidField(name, "longer", "at most "+strconv.Itoa(mostField)+" bytes")
		}
		f.fields[name] = string(value)
		return nil
	}
	f.name = part.FileName()
	var failed *wire.Error
	if f.file, failed = f.g.cfg.Batches.Upload(r.Context(), f.p); failed != nil {
		return f.w.refuse(failed)
	}
	failed, err := f.file.Take(r.Context(), part)
	if err != nil {
		return f.w.badForm(err, most)
	}
	if failed != nil {
		return f.w.refuse(failed)
	}
	return nil
}

func (f *form) close() {
	if f.file != nil {
		f.file.Close()
	}
}

// finish makes the file one.
func (f *form) finish(r *http.Request) *wire.Error {
	if f.file == nil {
		return wire.MissingField(fieldFile, "the content, as a file of the form")
	}
	anchor, anchored := f.fields["expires_after[anchor]"]
	text, timed := f.fields["expires_after[seconds]"]
	keep, failed := expiry("expires_after", anchored, anchor, timed, text)
	if failed != nil {
		return failed
	}
	made, failed := f.file.Finish(r.Context(), f.name, f.fields["purpose"], keep)
	if failed != nil {
		return f.w.refuse(failed)
	}
	return f.w.json(fileView(made))
}

// expiry reads when a file is to expire: both fields or none. seconds is checked to be
// a number; which ones are allowed is the service's.
func expiry(at string, anchored bool, anchor string, timed bool, seconds string) (time.Duration, *wire.Error) {
	switch {
	case !anchored && !timed:
		return 0, nil
	case !anchored:
		return 0, wire.MissingField(at+".anchor", "created_at")
	case anchor != "created_at":
		return 0, wire.InvalidField(at+".anchor", strconv.Quote(anchor), "created_at")
	case !timed:
		return 0, wire.MissingField(at+".seconds", "a number of seconds")
	}
	n, err := strconv.ParseInt(seconds, 10, 32)
	if err != nil || n <= 0 {
		return 0, wire.InvalidField(at+".seconds", seconds, "a number of seconds above 0")
	}
	return time.Duration(n) * time.Second, nil
}
