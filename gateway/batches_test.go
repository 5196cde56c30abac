package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/batch"
	"headgate/batch/batchtest"
	"headgate/identity"
)

// kept is what files and batches are kept in.
type kept struct {
	store    *batchtest.Memory
	contents *batchtest.Contents
}

// names lists the contents that there are.
func (k *kept) names(t *testing.T) (all []string) {
	t.Helper()
	if err := k.contents.Each(t.Context(), func(id string, _ time.Time) error { all = append(all, id); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

const mostFile = 256 << 10

func withBatches(s setup) (setup, *kept) {
	k := &kept{batchtest.NewMemory(), batchtest.NewContents()}
	s.batches = batch.NewService(batch.ServiceConfig{
		Store: k.store, Files: k.contents, Wake: func() {}, Log: slog.New(slog.DiscardHandler),
		MaxFile: mostFile, KeepInput: 30 * 24 * time.Hour, MinWindow: time.Minute, MaxWindow: 48 * time.Hour, Class: "batch",
	})
	return s, k
}

// field is one of a form; name says which file it is, if any.
type field struct{ key, value, name string }

func formOf(t *testing.T, fields ...field) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, f := range fields {
		create := func() (io.Writer, error) { return w.CreateFormField(f.key) }
		if f.name != "" {
			create = func() (io.Writer, error) { return w.CreateFormFile(f.key, f.name) }
		}
		part, err := create()
		if err == nil {
			_, err = io.WriteString(part, f.value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.String()
}

func (r *rig) form(fields ...field) answer {
	r.t.Helper()
	contentType, body := formOf(r.t.(*testing.T), fields...)
	return r.send("POST", "/v1/files", body, "Content-Type", contentType)
}

func (r *rig) uploaded(text string) string {
	r.t.Helper()
	a := r.form(field{"purpose", "batch", ""}, field{"file", text, "requests.jsonl"})
	if a.status != 200 {
		r.t.Fatalf("%d %s", a.status, a.body)
	}
	return gjson.Get(a.body, "id").Str
}

// TestNoBatches: a gateway without them has no such routes.
func TestNoBatches(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		for _, path := range []string{"/v1/files", "/v1/files/file-x", "/v1/files/file-x/content", "/v1/batches", "/v1/batches/batch_x", "/v1/batches/batch_x/cancel", "/v1/batches/batch_x/output"} {
			if a := r.send("GET", path, ""); a.status != 404 || *documented(t, a.status, a.body).Error.Code != "route_not_found" {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
	})
}

// TestFiles: a file as OpenAI's clients see it, whichever way round its form is.
func TestFiles(t *testing.T) {
	s, k := withBatches(setup{})
	bubble(t, s, func(t *testing.T, r *rig) {
		text := "{\"custom_id\":\"a\"}\r\n" + strings.Repeat("x", 100_000)
		purpose, file := field{"purpose", "batch", ""}, field{"file", text, "a/b \"ü\".jsonl"}
		var ids []string
		for _, fields := range [][]field{{purpose, file}, {file, purpose}, {{"expires_after[anchor]", "created_at", ""}, file, {"expires_after[seconds]", "3600", ""}, purpose}} {
			a := r.form(fields...)
			id := gjson.Get(a.body, "id").Str
			expires := time.Now().Add(30 * 24 * time.Hour)
			if len(fields) > 2 {
				expires = time.Now().Add(time.Hour)
			}
			want := fmt.Sprintf(`{"id":%q,"object":"file","bytes":%d,"created_at":%d,"expires_at":%d,"filename":"b \"ü\".jsonl","purpose":"batch","status":"processed","status_details":null}`,
				id, len(text), time.Now().Unix(), expires.Unix())
			if a.status != 200 || a.body != want || !strings.HasPrefix(id, "file-") {
				t.Errorf("%d\ngot  %s\nwant %s", a.status, a.body, want)
			}
			if got := r.send("GET", "/v1/files/"+id, ""); got.status != 200 || got.body != want {
				t.Errorf("looked up: %d %s", got.status, got.body)
			}
			if got := r.send("GET", "/v1/files/"+id+"/content", ""); got.body != text || got.header.Get("Content-Type") != "application/octet-stream" ||
				got.header.Get("Content-Length") != fmt.Sprint(len(text)) || !strings.Contains(got.header.Get("Content-Disposition"), "attachment") {
				t.Errorf("content: %d bytes, %v", len(got.body), got.header)
			}
			ids = append(ids, id)
		}
		page := r.send("GET", "/v1/files?limit=2&order=asc", "")
		if d := cmp.Diff([]any{"list", ids[0], ids[1], true, ids[0], ids[1]}, values(page.body, "object", "data.0.id", "data.1.id", "has_more", "first_id", "last_id")); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		if rest := r.send("GET", "/v1/files?after="+ids[1]+"&order=asc", ""); gjson.Get(rest.body, "data.#").Int() != 1 || gjson.Get(rest.body, "has_more").Bool() {
			t.Errorf("the rest: %s", rest.body)
		}
		if none := r.send("GET", "/v1/files?purpose=batch_output", ""); none.body != `{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}` {
			t.Error(none.body)
		}
		if a := r.send("DELETE", "/v1/files/"+ids[0], ""); a.status != 200 || a.body != `{"id":"`+ids[0]+`","object":"file","deleted":true}` {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a := r.send("GET", "/v1/files/"+ids[0]+"/content", ""); a.status != 404 {
			t.Errorf("deleted: %d %s", a.status, a.body)
		}
		if names := k.names(t); len(names) != 2 || slices.Contains(names, ids[0]) {
			t.Errorf("left: %v", names)
		}
	})
}

func values(body string, paths ...string) []any {
	var all []any
	for _, p := range paths {
		all = append(all, gjson.Get(body, p).Value())
	}
	return all
}

// TestFileRanges: a download that broke off goes on where it was.
func TestFileRanges(t *testing.T) {
	s, _ := withBatches(setup{})
	bubble(t, s, func(t *testing.T, r *rig) {
		id := r.uploaded("0123456789")
		path := "/v1/files/" + id + "/content"
		whole := r.send("GET", path, "")
		tag := whole.header.Get("Etag")
		for _, c := range []struct {
			header []string
			status int
			body   string
			about  string
		}{
			{[]string{"Range", "bytes=4-"}, 206, "456789", "bytes 4-9/10"},
			{[]string{"Range", "bytes=2-3"}, 206, "23", "bytes 2-3/10"},
			{[]string{"Range", "bytes=-1"}, 206, "9", "bytes 9-9/10"},
			{[]string{"Range", "bytes=4-", "If-Range", tag}, 206, "456789", "bytes 4-9/10"},
			{[]string{"Range", "bytes=4-", "If-Range", `"another"`}, 200, "0123456789", ""},
			{[]string{"If-None-Match", tag}, 304, "", ""},
		} {
			a := r.send("GET", path, "", c.header...)
			if a.status != c.status || a.body != c.body || a.header.Get("Content-Range") != c.about {
				t.Errorf("%v: %d %q %q", c.header, a.status, a.body, a.header.Get("Content-Range"))
			}
		}
		// Many parts may each be a read of object storage: the whole is one.
		long := strings.Repeat("0123456789", 10)
		if a := r.send("GET", "/v1/files/"+r.uploaded(long)+"/content", "", "Range", "bytes=0-0"+strings.Repeat(",1-1", 16)); a.status != 200 || a.body != long {
			t.Errorf("17 parts: %d %q", a.status, a.body)
		}
		for _, wrong := range []string{"bytes=10-", "bytes=x", "lines=1-2"} {
			a := r.send("GET", path, "", "Range", wrong)
			if a.status != 416 || *documented(t, a.status, a.body).Error.Code != "range_not_satisfiable" || a.header.Get("Content-Type") != "application/json" || a.header.Get("Etag") != "" {
				t.Errorf("%s: %d %v %s", wrong, a.status, a.header, a.body)
			}
		}
		if a := r.send("HEAD", path, ""); a.status != 200 || a.body != "" || a.header.Get("Content-Length") != "10" {
			t.Errorf("HEAD: %d %q %v", a.status, a.body, a.header)
		}
	})
}

// TestBadUploads: what is wrong with a form is said, and nothing of it stays.
func TestBadUploads(t *testing.T) {
	s, k := withBatches(setup{})
	bubble(t, s, func(t *testing.T, r *rig) {
		purpose, file := field{"purpose", "batch", ""}, field{"file", "x", "f.jsonl"}
		for _, c := range []struct {
			want   string
			fields []field
		}{
			{"400 missing_field file", []field{purpose}},
			{"400 missing_field purpose", []field{file}},
			{"400 invalid_field purpose", []field{{"purpose", "profit", ""}, file}},
			{"400 invalid_field purpose", []field{purpose, purpose, file}},
			{"400 invalid_field file", []field{purpose, file, file}},
			{"400 invalid_field the form's field", []field{purpose, file, {"user", "x", ""}}},
			{"400 invalid_field purpose", []field{{"purpose", strings.Repeat("x", 2000), ""}, file}},
			{"400 missing_field expires_after.anchor", []field{purpose, file, {"expires_after[seconds]", "3600", ""}}},
			{"400 missing_field expires_after.seconds", []field{purpose, file, {"expires_after[anchor]", "created_at", ""}}},
			{"400 invalid_field expires_after.anchor", []field{purpose, file, {"expires_after[anchor]", "now", ""}, {"expires_after[seconds]", "3600", ""}}},
			{"400 invalid_field expires_after.seconds", []field{purpose, file, {"expires_after[anchor]", "created_at", ""}, {"expires_after[seconds]", "soon", ""}}},
			{"400 invalid_field expires_after.seconds", []field{purpose, file, {"expires_after[anchor]", "created_at", ""}, {"expires_after[seconds]", "1", ""}}},
			{"413 body_too_large ", []field{purpose, {"file", strings.Repeat("x", mostFile+1), "f.jsonl"}}},
			{"413 body_too_large ", []field{purpose, {"file", strings.Repeat("x", 2*mostFile), "f.jsonl"}}},
		} {
			a := r.form(c.fields...)
			if got := short(t, a); got != c.want {
				t.Errorf("got %q, want %q: %s", got, c.want, a.body)
			}
		}
		contentType, body := formOf(t, purpose, file)
		for _, c := range []struct{ want, contentType, body string }{
			{"400 invalid_field Content-Type", "application/json", "{}"},
			{"400 invalid_field Content-Type", "multipart/form-data", body},
			{"400 invalid_field ", contentType, body[:len(body)-10]},
			{"400 invalid_field ", contentType, "what is this"},
		} {
			a := r.send("POST", "/v1/files", c.body, "Content-Type", c.contentType)
			if got := short(t, a); got != c.want {
				t.Errorf("got %q, want %q: %s", got, c.want, a.body)
			}
		}
		if names := k.names(t); len(names) > 0 {
			t.Errorf("left: %v", names)
		}
	})
}

func short(t *testing.T, a answer) string {
	t.Helper()
	e := documented(t, a.status, a.body).Error
	param := ""
	if e.Param != nil {
		param = *e.Param
	}
	return fmt.Sprintf("%d %s %s", a.status, *e.Code, param)
}

// TestSlowUpload: a large file may take long, as long as it comes; who only trickles is
// cut.
func TestSlowUpload(t *testing.T) {
	for _, c := range []struct {
		name  string
		piece int
		every time.Duration
		want  int
	}{
		{"steady", 8 << 10, 5 * time.Second, 200}, // 64 KiB in 40 s, 160 s in all
		{"trickle", 1 << 10, 5 * time.Second, 400},
		{"silent", 1 << 10, time.Hour, 400},
	} {
		s, k := withBatches(setup{})
		bubble(t, s, func(t *testing.T, r *rig) {
			contentType, body := formOf(t, field{"purpose", "batch", ""}, field{"file", strings.Repeat("x", mostFile), "f.jsonl"})
			in, out := io.Pipe()
			req := r.request("POST", "/v1/files", "", "Content-Type", contentType)
			req.Body, req.ContentLength = in, int64(len(body))
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				for piece := range slices.Chunk([]byte(body), c.piece) {
					if _, err := out.Write(piece); err != nil {
						return
					}
					time.Sleep(c.every)
				}
				_ = out.Close()
			}()
			res, err := r.client.Do(req)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			a := r.whole(res)
			_ = in.Close()
			<-sent
			if a.status != c.want || c.want == 400 && short(t, a) != "400 body_too_slow " {
				t.Errorf("%s: %d %s", c.name, a.status, a.body)
			}
			if left := len(k.names(t)); (left == 1) != (c.want == 200) {
				t.Errorf("%s: %d files", c.name, left)
			}
		})
	}
}

// TestUploadBreaksOff: a client that leaves has made nothing.
func TestUploadBreaksOff(t *testing.T) {
	s, k := withBatches(setup{})
	bubble(t, s, func(t *testing.T, r *rig) {
		contentType, body := formOf(t, field{"purpose", "batch", ""}, field{"file", strings.Repeat("x", mostFile), "f.jsonl"})
		in, out := io.Pipe()
		req := r.request("POST", "/v1/files", "", "Content-Type", contentType)
		req.Body, req.ContentLength = in, int64(len(body))
		go func() {
			_, _ = io.WriteString(out, body[:1000])
			_ = out.CloseWithError(io.ErrClosedPipe)
		}()
		if res, err := r.client.Do(req); err == nil {
			t.Errorf("answered %d", res.StatusCode)
		}
		time.Sleep(time.Second)
		if names := k.names(t); len(names) > 0 {
			t.Errorf("left: %v", names)
		}
	})
}

func newBatchBody(file string, more string) string {
	return fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"%s}`, file, more)
}

// TestBatches: a batch as OpenAI's clients see it, from its making to its end.
func TestBatches(t *testing.T) {
	s, k := withBatches(setup{})
	bubble(t, s, func(t *testing.T, r *rig) {
		file := r.uploaded("{}\n")
		made := r.send("POST", "/v1/batches", newBatchBody(file, `,"metadata":{"k":"v"},"output_expires_after":{"anchor":"created_at","seconds":3600}`))
		id := gjson.Get(made.body, "id").Str
		now := time.Now()
		want := fmt.Sprintf(`{"id":%q,"object":"batch","endpoint":"/v1/chat/completions","errors":null,"input_file_id":%q,"completion_window":"24h","status":"validating",`+
			`"output_file_id":null,"error_file_id":null,"created_at":%d,"in_progress_at":null,"expires_at":%d,"finalizing_at":null,"completed_at":null,"failed_at":null,`+
			`"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":0,"completed":0,"failed":0},`+
			`"usage":{"input_tokens":0,"input_tokens_details":{"cached_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0},"metadata":{"k":"v"}}`,
			id, file, now.Unix(), now.Add(24*time.Hour).Unix())
		if made.status != 200 || made.body != want || !strings.HasPrefix(id, "batch_") {
			t.Errorf("%d\ngot  %s\nwant %s", made.status, made.body, want)
		}
		if got := r.send("GET", "/v1/batches/"+id, ""); got.body != want {
			t.Errorf("looked up: %d %s", got.status, got.body)
		}
		if b, _ := k.store.Batch(t.Context(), "team-a", id); b.Class != "batch" || b.Key != "alice" {
			t.Errorf("%+v", b)
		}
		second := gjson.Get(r.send("POST", "/v1/batches", newBatchBody(file, `,"metadata":null`), "Headgate-Class", "interactive").body, "id").Str
		if b, _ := k.store.Batch(t.Context(), "team-a", second); b == nil || b.Class != "interactive" {
			t.Errorf("%+v", b)
		}
		page := r.send("GET", "/v1/batches?limit=1", "")
		if d := cmp.Diff([]any{"list", second, true, second, nil}, values(page.body, "object", "data.0.id", "has_more", "last_id", "data.0.metadata")); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		if rest := r.send("GET", "/v1/batches?after="+second, ""); gjson.Get(rest.body, "data.0.id").Str != id || gjson.Get(rest.body, "has_more").Bool() {
			t.Errorf("the rest: %s", rest.body)
		}
		// A file that is being read stays.
		if a := r.send("DELETE", "/v1/files/"+file, ""); short(t, a) != "409 wrong_state " || a.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%d %s %v", a.status, a.body, a.header)
		}
		if a := r.send("POST", "/v1/batches/"+second+"/cancel", ""); a.status != 200 || gjson.Get(a.body, "status").Str != "cancelling" || gjson.Get(a.body, "cancelling_at").Int() != time.Now().Unix() {
			t.Errorf("%d %s", a.status, a.body)
		}

		// Run by hand: one item succeeds, one fails.
		items := []batch.Item{{Batch: id, Line: 1, CustomID: "a"}, {Batch: id, Line: 2, CustomID: "b"}}
		if _, err := k.store.AddItems(t.Context(), id, items); err != nil {
			t.Fatal(err)
		}
		if err := k.store.Start(t.Context(), id, now); err != nil {
			t.Fatal(err)
		}
		claims, err := k.store.Claim(t.Context(), id, "w", 2, 0, now, now.Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if a := r.send("GET", "/v1/batches/"+id+"/output", ""); a.status != 200 || a.body != "" {
			t.Errorf("nothing yet: %d %s", a.status, a.body)
		}
		for i, c := range claims {
			o := batch.Outcome{Batch: id, Line: c.Line, Fence: c.Fence, Failed: i == 1, Result: json.RawMessage(`{"custom_id":"` + c.CustomID + `"}`), Prompt: 5, Output: 7}
			if _, err := k.store.Save(t.Context(), nil, nil, []batch.Outcome{o}, now); err != nil {
				t.Fatal(err)
			}
		}
		got := r.send("GET", "/v1/batches/"+id, "")
		if d := cmp.Diff([]any{"in_progress", `{"total":2,"completed":1,"failed":1}`, 10.0, 14.0, 24.0},
			[]any{gjson.Get(got.body, "status").Str, gjson.Get(got.body, "request_counts").Raw, gjson.Get(got.body, "usage.input_tokens").Num, gjson.Get(got.body, "usage.output_tokens").Num, gjson.Get(got.body, "usage.total_tokens").Num}); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		for path, line := range map[string]string{"/output": `{"custom_id":"a"}`, "/errors": `{"custom_id":"b"}`} {
			res := r.do(r.request("GET", "/v1/batches/"+id+path, ""))
			a := r.whole(res)
			next := res.Trailer.Get("Headgate-Next")
			if a.status != 200 || a.body != line+"\n" || next == "" {
				t.Errorf("%s: %d %q, next %q", path, a.status, a.body, next)
			}
			if a := r.send("GET", "/v1/batches/"+id+path+"?after="+next, ""); a.status != 200 || a.body != "" {
				t.Errorf("%s behind it: %d %q", path, a.status, a.body)
			}
		}
		if a := r.send("GET", "/v1/batches/"+id+"/output?after=-1", ""); short(t, a) != "400 invalid_field after" {
			t.Errorf("%d %s", a.status, a.body)
		}
		output := &batch.File{ID: "file-out", Tenant: "team-a", Purpose: batch.PurposeOutput, Name: "out.jsonl", Created: now}
		if err := k.store.Finalize(t.Context(), id, now); err != nil {
			t.Fatal(err)
		}
		if err := k.store.Finish(t.Context(), id, output, nil, now); err != nil {
			t.Fatal(err)
		}
		got = r.send("GET", "/v1/batches/"+id, "")
		if d := cmp.Diff([]any{"completed", "file-out", nil, float64(now.Unix())}, values(got.body, "status", "output_file_id", "error_file_id", "completed_at")); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		if a := r.send("GET", "/v1/batches/"+id+"/output", ""); short(t, a) != "409 wrong_state " || !strings.Contains(a.body, "file-out") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a := r.send("POST", "/v1/batches/"+id+"/cancel", ""); short(t, a) != "409 wrong_state " {
			t.Errorf("%d %s", a.status, a.body)
		}

		// What is wrong with a file is told by line.
		bad := gjson.Get(r.send("POST", "/v1/batches", newBatchBody(file, "")).body, "id").Str
		why := []batch.LineError{{Code: "invalid_json_line", Message: "no JSON", Line: 2}, {Code: "empty_file", Message: "it is empty", Param: "input_file_id"}}
		if err := k.store.Fail(t.Context(), bad, why, now); err != nil {
			t.Fatal(err)
		}
		got = r.send("GET", "/v1/batches/"+bad, "")
		if d := cmp.Diff(`{"object":"list","data":[{"code":"invalid_json_line","message":"no JSON","param":null,"line":2},{"code":"empty_file","message":"it is empty","param":"input_file_id","line":null}]}`,
			gjson.Get(got.body, "errors").Raw); d != "" || gjson.Get(got.body, "status").Str != "failed" || gjson.Get(got.body, "failed_at").Int() != now.Unix() {
			t.Errorf("%s (-want +got)\n%s", got.body, d)
		}
	})
}

// TestBadBatches: what a batch can't be made of is said.
func TestBadBatches(t *testing.T) {
	s, _ := withBatches(setup{})
	bubble(t, s, func(t *testing.T, r *rig) {
		file := r.uploaded("{}\n")
		for _, c := range []struct{ body, want string }{
			{`{`, "400 invalid_json "},
			{`null`, "400 invalid_json "},
			{`[]`, "400 invalid_json "},
			{`{}`, "400 missing_field input_file_id"},
			{newBatchBody("file-x", ""), "404 file_not_found input_file_id"},
			{newBatchBody(file, `,"model":"m"`), "400 invalid_field the body's field"},
			{newBatchBody(file, `,"metadata":{"k":1}`), "400 invalid_field metadata"},
			{newBatchBody(file, `,"metadata":"k"`), "400 invalid_field metadata"},
			{newBatchBody(file, `,"output_expires_after":7`), "400 invalid_field output_expires_after"},
			{newBatchBody(file, `,"output_expires_after":{"seconds":3600}`), "400 missing_field output_expires_after.anchor"},
			{newBatchBody(file, `,"output_expires_after":{"anchor":1,"seconds":3600}`), "400 invalid_field output_expires_after.anchor"},
			{newBatchBody(file, `,"output_expires_after":{"anchor":"created_at","seconds":"1h"}`), "400 invalid_field output_expires_after.seconds"},
			{newBatchBody(file, `,"output_expires_after":{"anchor":"created_at","seconds":60}`), "400 invalid_field output_expires_after.seconds"},
			{strings.Replace(newBatchBody(file, ""), `"24h"`, `24`, 1), "400 invalid_field completion_window"},
			{strings.Replace(newBatchBody(file, ""), `"24h"`, `"1s"`, 1), "400 invalid_field completion_window"},
			{strings.Replace(newBatchBody(file, ""), `chat/completions`, `messages`, 1), "400 invalid_field endpoint"},
		} {
			a := r.send("POST", "/v1/batches", c.body)
			if got := short(t, a); got != c.want {
				t.Errorf("%s\ngot %q, want %q: %s", c.body, got, c.want, a.body)
			}
		}
		for path, want := range map[string]string{
			"/v1/batches?limit=101": "400 invalid_field limit", "/v1/batches?after=batch_x": "404 batch_not_found after", "/v1/batches/batch_x": "404 batch_not_found ",
			"/v1/files?order=up": "400 invalid_field order", "/v1/files/file-x": "404 file_not_found id", "/v1/files/file-x/content": "404 file_not_found id",
			"/v1/batches/batch_x/errors": "404 batch_not_found ",
			"/v1/files/":                 "404 route_not_found ", "/v1/files/a/b": "404 route_not_found ", "/v1/files/a/b/content": "404 route_not_found ", "/v1/files/%66ile/content": "404 route_not_found ",
			"/v1/batches//cancel": "404 route_not_found ", "/v1/batches/x/y": "404 route_not_found ", "/v1/files/..%2fx": "404 route_not_found ",
		} {
			if got := short(t, r.send("GET", path, "")); got != want && !(strings.HasSuffix(path, "cancel") && strings.HasPrefix(got, "405")) {
				t.Errorf("%s: got %q, want %q", path, got, want)
			}
		}
		for path, allow := range map[string]string{"/v1/files": "GET, HEAD, POST", "/v1/batches": "GET, HEAD, POST", "/v1/files/x": "GET, HEAD, DELETE", "/v1/files/x/content": "GET, HEAD", "/v1/batches/x": "GET, HEAD", "/v1/batches/x/cancel": "POST", "/v1/batches/x/output": "GET"} {
			a := r.send("PUT", path, "{}")
			if a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != allow {
				t.Errorf("%s: %d, allow %q", path, a.status, a.header.Get("Allow"))
			}
		}
		if a := r.send("GET", "/v1/files", "", "Authorization", "Bearer nobody"); a.status != 401 {
			t.Errorf("a stranger: %d", a.status)
		}
	})
}

// TestAdminBatches: an operator sees what each tenant has.
func TestAdminBatches(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	out := httptest.NewRecorder()
	batchTenants(func() []batch.TenantStatus {
		return []batch.TenantStatus{{Tenant: "a", Backlog: 7, Running: 2, Oldest: made, Done: 5, Failed: 1, OnLoans: 4, Output: 90, OutputOnLoans: 80, Wasted: 3}, {Tenant: "b"}}
	})(out, nil)
	var got bytes.Buffer
	if err := json.Compact(&got, out.Body.Bytes()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(`[{"tenant":"a","backlog":7,"running":2,"oldest":"2026-01-02T03:04:05Z","done":5,"done_on_loans":4,"failed":1,"output_tokens":90,"output_tokens_on_loans":80,"wasted_tokens":3},`+
		`{"tenant":"b","backlog":0,"running":0,"oldest":null,"done":0,"done_on_loans":0,"failed":0,"output_tokens":0,"output_tokens_on_loans":0,"wasted_tokens":0}]`, got.String()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestTenantFull: a tenant that has as much as it may is told so, and that trying again is in
// vain.
func TestTenantFull(t *testing.T) {
	s, _ := withBatches(setup{})
	s.batches = batch.NewService(batch.ServiceConfig{Store: batchtest.NewMemory(), Files: batchtest.NewContents(), Wake: func() {}, Log: slog.New(slog.DiscardHandler),
		MaxFile: mostFile, Most: batch.Holdings{Files: 1, Batches: 1}, MinWindow: time.Minute, MaxWindow: 48 * time.Hour, Class: "batch"})
	bubble(t, s, func(t *testing.T, r *rig) {
		file := r.uploaded("{}\n")
		refused := func(what, want string, a answer) {
			t.Helper()
			if got := short(t, a); got != want || a.header.Get("X-Should-Retry") != "false" || a.header.Get("Retry-After") != "" {
				t.Errorf("%s: %s, %v", what, got, a.header)
			}
			documented(t, a.status, a.body)
		}
		contentType, form := formOf(t, field{"purpose", "batch", ""}, field{"file", "{}", "x.jsonl"})
		refused("a second file", "429 tenant_storage_full ", r.send("POST", filesPath, form, "Content-Type", contentType))
		if a := r.send("POST", "/v1/batches", newBatchBody(file, "")); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		refused("a second batch", "429 tenant_batches_full ", r.send("POST", "/v1/batches", newBatchBody(file, "")))
	})
}

// TestBatchTenants: another tenant's key finds nothing.
func TestBatchTenants(t *testing.T) {
	s, _ := withBatches(setup{})
	bubble(t, s, func(t *testing.T, r *rig) {
		file := r.uploaded("{}\n")
		id := gjson.Get(r.send("POST", "/v1/batches", newBatchBody(file, "")).body, "id").Str
		bob := []string{"Authorization", "Bearer " + bobKey}
		for _, c := range []struct{ method, path, body string }{
			{"GET", "/v1/files/" + file, ""}, {"GET", "/v1/files/" + file + "/content", ""}, {"DELETE", "/v1/files/" + file, ""}, {"POST", "/v1/batches", newBatchBody(file, "")},
			{"GET", "/v1/batches/" + id, ""}, {"GET", "/v1/batches/" + id + "/output", ""}, {"POST", "/v1/batches/" + id + "/cancel", ""},
		} {
			if a := r.send(c.method, c.path, c.body, bob...); a.status != 404 {
				t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.body)
			}
		}
		for _, path := range []string{"/v1/files", "/v1/batches"} {
			if a := r.send("GET", path, "", bob...); gjson.Get(a.body, "data.#").Int() != 0 {
				t.Errorf("%s: %s", path, a.body)
			}
		}
	})
}

// FuzzNewBatch: whatever is sent, a batch is asked for or an error of the table says why
// not.
func FuzzNewBatch(f *testing.F) {
	for _, seed := range []string{newBatchBody("file-x", `,"metadata":{"k":"v"},"output_expires_after":{"anchor":"created_at","seconds":3600}`), `{"metadata":null}`, `{"input_file_id":"\ud800"}`, `{"a":{"a":1}}`, `[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := parseBatch(body)
		if err != nil {
			documented(t, err.Status, string(err.JSON()))
			return
		}
		if !json.Valid(body) || n.KeepOutput < 0 {
			t.Errorf("%q is %+v", body, n)
		}
	})
}

// FuzzUploadForm: whatever is sent as a form, it is a file or an error of the table says
// why not, and what is refused leaves nothing.
func FuzzUploadForm(f *testing.F) {
	const boundary = "b"
	form := func(parts ...string) []byte {
		return []byte("--b\r\nContent-Disposition: form-data; name=" + strings.Join(parts, "\r\n--b\r\nContent-Disposition: form-data; name=") + "\r\n--b--\r\n")
	}
	f.Add(form("purpose\r\n\r\nbatch", "file; filename=f\r\n\r\n{}"))
	f.Add(form("file; filename=\"../x\"\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n=41", "purpose\r\n\r\nuser_data", "expires_after[anchor]\r\n\r\ncreated_at", "expires_after[seconds]\r\n\r\n3600"))
	f.Add(form("file\r\n\r\nx", "file\r\n\r\ny"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, k := withBatches(setup{})
		g := &Gateway{cfg: Config{Batches: s.batches}}
		r := httptest.NewRequest("POST", filesPath, bytes.NewReader(body))
		r.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
		out := httptest.NewRecorder()
		w := newResponse(out, r, &g.cfg)
		if err := g.upload(w, r, &identity.Principal{Tenant: "a"}); err != nil {
			documented(t, err.Status, string(err.JSON()))
			if names := k.names(t); len(names) > 0 {
				t.Errorf("%s left %v", err, names)
			}
			return
		}
		if name := gjson.Get(out.Body.String(), "filename").Str; name == "" || strings.ContainsAny(name, "\x00\n") || len(k.names(t)) != 1 {
			t.Errorf("%s: %v", out.Body, k.names(t))
		}
	})
}
