package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// batchClient speaks OpenAI's API of files and batches, to whatever server.
type batchClient struct {
	base, key string
	http      *http.Client
	say       io.Writer     // what went wrong and is tried again
	pause     time.Duration // before the first repetition
}

const (
	// batchTries is how often what may be repeated is asked for.
	batchTries  = 10
	batchPause  = 500 * time.Millisecond
	longestWait = 30 * time.Second
	// batchStall is how long a server may send nothing of a file.
	batchStall = time.Minute
)

func newBatchClient(base, key string, say io.Writer) (*batchClient, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--base-url is %q, must be a URL such as http://127.0.0.1:8080/v1", base)
	}
	return &batchClient{
		base: strings.TrimSuffix(base, "/"), key: key, say: say, pause: batchPause,
		http: &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 2 * time.Minute, DisableCompression: true,
		}},
	}, nil
}

// apiError is an error as the server tells it.
type apiError struct {
	status  int
	message string
	after   time.Duration // that the server asks for; 0: it says nothing
}

func (e *apiError) Error() string {
	return fmt.Sprintf("the server answered %d: %s", e.status, e.message)
}

// wayOut is what to do about it; "": the message says it.
func (e *apiError) wayOut() string {
	switch e.status {
	case http.StatusUnauthorized:
		return "give a key that the server knows by --api-key, or in OPENAI_API_KEY"
	case http.StatusForbidden:
		return "use a key that may do this"
	case http.StatusNotFound:
		return "see that --base-url ends with /v1; of a gateway without batch: in its configuration there is nothing there"
	case http.StatusRequestEntityTooLarge:
		return "split the file, or raise the server's limit (batch.max_file_bytes)"
	}
	return ""
}

// passes tells whether asking again may help.
func passes(err error) (after time.Duration, ok bool) {
	var api *apiError
	if errors.As(err, &api) {
		return api.after, api.status == http.StatusTooManyRequests || api.status == http.StatusRequestTimeout || api.status >= http.StatusInternalServerError
	}
	var wrong *url.Error
	return 0, errors.As(err, &wrong) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errStalled)
}

var errStalled = errors.New("the server has stopped sending")

// do sends a request and returns the answer to one that succeeded.
func (c *batchClient) do(ctx context.Context, method, path, contentType string, length int64, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.ContentLength = length
		req.Header.Set("Content-Type", contentType)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode < http.StatusMultipleChoices {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	failed := &apiError{status: res.StatusCode, message: strings.TrimSpace(string(text))}
	var told struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &told) == nil && told.Error.Message != "" {
		failed.message = told.Error.Message
	}
	if ms, err := strconv.Atoi(res.Header.Get("Retry-After-Ms")); err == nil {
		failed.after = time.Duration(ms) * time.Millisecond
	} else if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		failed.after = time.Duration(s) * time.Second
	}
	return nil, hint(failed, failed.wayOut())
}

// again has something done until it succeeds, or fails in a way that stays or too often
// in a row; progress begins the count anew.
func (c *batchClient) again(ctx context.Context, what string, do func() (progress bool, err error)) error {
	for tries, pause := 1, c.pause; ; tries++ {
		progress, err := do()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if progress {
			tries, pause = 1, c.pause
		}
		after, ok := passes(err)
		if !ok || tries == batchTries {
			return fmt.Errorf("%s: %w", what, err)
		}
		wait := min(max(after, pause), longestWait)
		fmt.Fprintf(c.say, "%s: %v; again in %v\n", what, err, wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		pause *= 2
	}
}

// get reads a JSON document.
func (c *batchClient) get(ctx context.Context, what, path string, into any) error {
	return c.again(ctx, what, func() (bool, error) {
		res, err := c.do(ctx, http.MethodGet, path, "", 0, nil)
		if err != nil {
			return false, err
		}
		return false, decoded(res, into)
	})
}

// post sends a JSON document, or nothing, once: nobody knows whether a server that broke off has
// done what it was asked for.
func (c *batchClient) post(ctx context.Context, what, path string, body, into any) error {
	var sent io.Reader
	var length int64
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent, length = bytes.NewReader(b), int64(len(b))
	}
	res, err := c.do(ctx, http.MethodPost, path, "application/json", length, sent)
	if err == nil {
		err = decoded(res, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func decoded(res *http.Response, into any) error {
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return fmt.Errorf("the answer can't be read: %w", err)
	}
	return nil
}

// upload sends a file with its length, as it is on the disk. told is called with how
// many bytes went out.
func (c *batchClient) upload(ctx context.Context, path string, told func(sent, all int64)) (id string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	err = w.WriteField("purpose", "batch")
	if err == nil {
		_, err = w.CreateFormFile("file", filepath.Base(path))
	}
	head := form.Len()
	if err = errors.Join(err, w.Close()); err != nil {
		return "", err
	}
	content := &counted{Reader: f, told: func(n int64) { told(n, info.Size()) }}
	body := io.MultiReader(bytes.NewReader(form.Bytes()[:head]), content, bytes.NewReader(form.Bytes()[head:]))
	var made struct {
		ID string `json:"id"`
	}
	res, err := c.do(ctx, http.MethodPost, "/files", w.FormDataContentType(), int64(form.Len())+info.Size(), body)
	if err == nil {
		err = decoded(res, &made)
	}
	if err != nil {
		return "", fmt.Errorf("upload %s: %w", path, err)
	}
	return made.ID, nil
}

// counted tells how much was read.
type counted struct {
	io.Reader
	n    int64
	told func(int64)
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += int64(n)
	c.told(c.n)
	return n, err
}

// fetch writes a file's content to to, from where it ends on, and goes on from there when
// the server breaks off. A server that knows no ranges sends all of it again.
func (c *batchClient) fetch(ctx context.Context, id string, to *os.File, told func(got, all int64)) error {
	at, err := to.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	return c.again(ctx, "download "+id, func() (progress bool, err error) {
		before := at
		at, err = c.fetchFrom(ctx, id, to, at, told)
		return at > before, err
	})
}

func (c *batchClient) fetchFrom(ctx context.Context, id string, to *os.File, at int64, told func(got, all int64)) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var header []string
	if at > 0 {
		header = []string{"Range", fmt.Sprintf("bytes=%d-", at)}
	}
	res, err := c.do(ctx, http.MethodGet, "/files/"+url.PathEscape(id)+"/content", "", 0, nil, header...)
	var api *apiError
	if errors.As(err, &api) && api.status == http.StatusRequestedRangeNotSatisfiable {
		return at, nil // all of it is there: a file never changes
	}
	if err != nil {
		return at, err
	}
	defer func() { _ = res.Body.Close() }()
	if at > 0 && res.StatusCode != http.StatusPartialContent {
		at = 0
	}
	if err := to.Truncate(at); err != nil {
		return at, err
	}
	if _, err := to.Seek(at, io.SeekStart); err != nil {
		return at, err
	}
	all := int64(-1)
	if res.ContentLength >= 0 {
		all = at + res.ContentLength
	}
	stalled := time.AfterFunc(batchStall, func() { cancel(errStalled) })
	defer stalled.Stop()
	buf := make([]byte, 256<<10)
	for {
		n, err := res.Body.Read(buf)
		stalled.Reset(batchStall)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return at, err
			}
			at += int64(n)
			told(at, all)
		}
		switch {
		case err == io.EOF:
			return at, nil
		case errors.Is(context.Cause(ctx), errStalled):
			return at, errStalled
		case err != nil:
			return at, fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
		}
	}
}

// save has a file's content at a path. What came of it before is beside it, under a name
// that says of which file it is, and is gone on with.
func (c *batchClient) save(ctx context.Context, id, path string, told func(got, all int64)) error {
	part := path + "." + url.PathEscape(id) + ".part"
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	err = c.fetch(ctx, id, f, told)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%w; what has come is in %s, and is gone on with when it is asked for again", err, part)
	}
	return os.Rename(part, path)
}

// copyTo writes a file's content to an output that can't be gone back in.
func (c *batchClient) copyTo(ctx context.Context, id string, out io.Writer) error {
	f, err := os.CreateTemp("", "headgate-batch-")
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintln(c.say, err)
		}
	}()
	if err := c.fetch(ctx, id, f, func(int64, int64) {}); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}
