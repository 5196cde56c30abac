package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/e2e/client"
	"headgate/e2e/headgate"
	"headgate/e2e/need"
)

// batchConfig is a gateway with files and batches in a folder, for two tenants, in
// front of a simulated engine.
func batchConfig(k keys, dir, engine string) string {
	return k.yaml + fmt.Sprintf(`batch: {dir: %q, min_window: 1s, lease: 1s, max_file_bytes: 64MiB}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: %q, slots: 4, priority: true, observe_every: 50ms}]
    classes:
      - {name: interactive, floor: {slots: 3}, unlent: {slots: 1}, idle_after: 300ms}
      - {name: batch, floor: {slots: 1}, priority: 10, reclaim: reclaim, queue: {wait: 10m}}
`, dir, engine)
}

// requestLine is a line of a batch's file.
func requestLine(id, url string, body any) string {
	b, err := json.Marshal(object{"custom_id": id, "method": "POST", "url": url, "body": body})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func chatLines(model string, n, tokens int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(requestLine(fmt.Sprintf("request-%d", i), "/v1/chat/completions", object{"model": model, "max_tokens": tokens, "messages": user(fmt.Sprintf("hello %d", i))}) + "\n")
	}
	return b.String()
}

// ended are the statuses of a batch that has ended.
var ended = []string{"completed", "failed", "expired", "cancelled"}

// ids are the custom ids of results, sorted.
func ids(t *testing.T, lines string) []string {
	t.Helper()
	all := []string{}
	for line := range strings.Lines(lines) {
		if !gjson.Valid(line) || !strings.HasSuffix(line, "\n") {
			t.Errorf("no line: %q", line)
		}
		all = append(all, gjson.Get(line, "custom_id").Str)
	}
	slices.Sort(all)
	return all
}

// TestSDKBatch: OpenAI's SDK runs files and batches, from the upload to the last line.
func TestSDKBatch(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	e := headgate.StartEngine(t, "--speed", "0.1")
	g := headgate.Start(t, batchConfig(k, t.TempDir(), e.URL)).AwaitReady()
	chat := func(id, model string, tokens int) string {
		return requestLine(id, "/v1/chat/completions", object{"model": model, "max_tokens": tokens, "messages": user("hello")})
	}
	requests := strings.Join([]string{chat("first", e.Model, 8), chat("unknown model", "nobody", 8), chat("wrong", e.Model, -1), chat("last", e.Model, 4)}, "\n")
	create := func(file any, endpoint string) client.Step {
		return client.Do("batches.create", object{"input_file_id": file, "endpoint": endpoint, "completion_window": "24h", "metadata": object{"team": "research"},
			"output_expires_after": object{"anchor": "created_at", "seconds": 3600}})
	}
	r := client.Steps(t, sdk, g.URL+"/v1", k.jobs,
		client.Do("upload", requests, "requests.jsonl", "batch", object{"expires_after": object{"anchor": "created_at", "seconds": 7200}}), // 0
		create(client.Of("0.id"), "/v1/chat/completions"),                        // 1
		client.Do("until", client.Of("1.id"), ended),                             // 2
		client.Do("files.content", client.Of("2.output_file_id")),                // 3
		client.Do("files.content", client.Of("2.error_file_id")),                 // 4
		client.Do("all", "files.list", object{"limit": 1, "order": "asc"}),       // 5
		client.Do("all", "files.list", object{"purpose": "batch_output"}),        // 6
		client.Do("upload", chatLines(e.Model, 500, 400), "many.jsonl", "batch"), // 7
		create(client.Of("7.id"), "/v1/chat/completions"),                        // 8
		client.Do("until", client.Of("8.id"), []string{"in_progress"}),           // 9
		client.Do("batches.cancel", client.Of("8.id")),                           // 10
		client.Do("until", client.Of("8.id"), ended),                             // 11
		client.Do("batches.cancel", client.Of("8.id")),                           // 12
		client.Do("all", "batches.list", object{"limit": 1}),                     // 13
		create("file-none", "/v1/chat/completions"),                              // 14
		create(client.Of("0.id"), "/v1/images/generations"),                      // 15
		client.Do("batches.retrieve", "batch_none"),                              // 16
		client.Do("upload", "x", "x.jsonl", "profit"),                            // 17
		client.Do("files.delete", client.Of("0.id")),                             // 18
		client.Do("files.retrieve", client.Of("0.id")),                           // 19
		create(client.Of("0.id"), "/v1/chat/completions"),                        // 20
	)
	value := func(i int, path string) gjson.Result { return gjson.GetBytes(r[i].Value, path) }
	failed := func(i int) string {
		if r[i].Error == nil {
			return "none"
		}
		return fmt.Sprintf("%s %d %s %s", r[i].Error.Class, r[i].Error.Status, r[i].Error.Code, r[i].Error.Param)
	}
	for i, step := range r[:14] {
		if step.Error != nil && i != 12 {
			t.Fatalf("step %d: %+v", i, step.Error)
		}
	}
	if f := r[0].Value; value(0, "object").Str != "file" || value(0, "bytes").Int() != int64(len(requests)) || value(0, "purpose").Str != "batch" || value(0, "expires_at").Int()-value(0, "created_at").Int() != 7200 {
		t.Errorf("file %s", f)
	}
	if b := r[1].Value; value(1, "status").Str != "validating" || value(1, "metadata.team").Str != "research" || value(1, "expires_at").Int()-value(1, "created_at").Int() != 24*3600 {
		t.Errorf("batch %s", b)
	}
	if b := r[2].Value; value(2, "status").Str != "completed" || value(2, "request_counts").Raw != `{"total":4,"completed":2,"failed":2}` || value(2, "usage.output_tokens").Int() != 12 ||
		value(2, "completed_at").Int() < value(2, "in_progress_at").Int() {
		t.Errorf("batch %s", b)
	}
	var output, errs string
	_ = json.Unmarshal(r[3].Value, &output)
	_ = json.Unmarshal(r[4].Value, &errs)
	if d := cmp.Diff([][]string{{"first", "last"}, {"unknown model", "wrong"}}, [][]string{ids(t, output), ids(t, errs)}); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	for line := range strings.Lines(output) {
		if gjson.Get(line, "response.status_code").Int() != 200 || gjson.Get(line, "response.body.object").Str != "chat.completion" || gjson.Get(line, "error").Raw != "null" || gjson.Get(line, "response.request_id").Str == "" {
			t.Errorf("line %s", line)
		}
	}
	for line := range strings.Lines(errs) {
		want := map[string]int64{"unknown model": 404, "wrong": 400}[gjson.Get(line, "custom_id").Str]
		if gjson.Get(line, "response.status_code").Int() != want || gjson.Get(line, "response.body.error.message").Str == "" {
			t.Errorf("line %s", line)
		}
	}
	if n := value(5, "#").Int(); n != 3 || value(5, "0.id").Str != value(0, "id").Str {
		t.Errorf("%d files, %s", n, r[5].Value)
	}
	if n := value(6, "#").Int(); n != 2 || value(6, "0.expires_at").Int()-value(6, "0.created_at").Int() != 3600 {
		t.Errorf("outputs %s", r[6].Value)
	}
	if value(10, "status").Str != "cancelling" || value(11, "status").Str != "cancelled" || value(11, "cancelled_at").Int() < value(11, "cancelling_at").Int() || value(11, "cancelling_at").Int() == 0 {
		t.Errorf("cancelled: %s, %s", r[10].Value, r[11].Value)
	}
	if c := value(11, "request_counts"); c.Get("completed").Int()+c.Get("failed").Int() != 500 || c.Get("failed").Int() == 0 {
		t.Errorf("cancelled: %s", c)
	}
	if value(13, "#").Int() != 2 || value(13, "0.id").Str != value(8, "id").Str {
		t.Errorf("batches %s", r[13].Value)
	}
	for i, want := range map[int]string{
		12: "ConflictError 409 wrong_state ", 14: "NotFoundError 404 file_not_found input_file_id", 15: "BadRequestError 400 invalid_field endpoint", 16: "NotFoundError 404 batch_not_found ",
		17: "BadRequestError 400 invalid_field purpose", 19: "NotFoundError 404 file_not_found id", 20: "NotFoundError 404 file_not_found input_file_id",
	} {
		if got := failed(i); got != want {
			t.Errorf("step %d: %q, want %q", i, got, want)
		}
	}
	if !value(18, "deleted").Bool() {
		t.Errorf("deleted: %s", r[18].Value)
	}

	if tenants := gjson.Parse(admin(t, g, "/api/batches")); tenants.Get("#").Int() != 1 || tenants.Get("0.tenant").Str != "research" || tenants.Get("0.done").Int() < 4 || tenants.Get("0.output_tokens").Int() < 12 {
		t.Errorf("an operator sees %s", tenants)
	}
	// An operator can follow it in the journal, too.
	var followed []string
	for _, e := range g.Events() {
		if e.Batch == nil || e.Batch.ID != value(1, "id").Str {
			continue
		}
		if what := string(e.Kind) + e.State; e.Batch.Line == 0 || e.Batch.Line == 1 {
			followed = append(followed, what)
		}
	}
	if d := cmp.Diff([]string{"batch_created", "batch_started", "item_started", "item_ended", "batch_finalizing", "batch_endedcompleted"}, followed); d != "" {
		t.Errorf("the journal (-want +got)\n%s", d)
	}
	if metrics := admin(t, g, "/metrics"); !regexp.MustCompile(`headgate_batch_items_done_total\{capacity="\w+",class="batch",result="\w+"\} \d`).MatchString(metrics) {
		t.Error("no item is counted")
	}

	// The other tenant's key sees none of it.
	others := client.Steps(t, sdk, g.URL+"/v1", k.app,
		client.Do("files.content", value(2, "output_file_id").Str), client.Do("batches.retrieve", value(1, "id").Str), client.Do("batches.cancel", value(1, "id").Str),
		client.Do("files.delete", value(7, "id").Str), client.Do("all", "files.list"), client.Do("all", "batches.list"))
	for i, o := range others {
		if i < 4 && (o.Error == nil || o.Error.Status != 404) || i >= 4 && string(o.Value) != "[]" {
			t.Errorf("another tenant's step %d: %s, %+v", i, o.Value, o.Error)
		}
	}
	g.AwaitPool("nothing is held", idle)
}

// admin is what the gateway tells operators.
func admin(t *testing.T, g *headgate.Gateway, path string) string {
	t.Helper()
	res, err := http.Get(g.Admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%s: %d, %v", path, res.StatusCode, err)
	}
	return string(text)
}

// TestSDKBatchEndpoints: every endpoint that batches may have.
func TestSDKBatchEndpoints(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	e := headgate.StartEngine(t, "--speed", "0.1")
	g := headgate.Start(t, batchConfig(k, t.TempDir(), e.URL)).AwaitReady()
	for _, c := range []struct {
		endpoint string
		body     object
		object   string
	}{
		{"/v1/completions", object{"model": e.Model, "prompt": "the river", "max_tokens": 5}, "text_completion"},
		{"/v1/responses", object{"model": e.Model, "input": "hello", "max_output_tokens": 5}, "response"},
		{"/v1/embeddings", object{"model": e.Model, "input": "hello"}, "list"},
	} {
		r := client.Steps(t, sdk, g.URL+"/v1", k.jobs,
			client.Do("upload", requestLine("one", c.endpoint, c.body), "one.jsonl", "batch"),
			client.Do("batches.create", object{"input_file_id": client.Of("0.id"), "endpoint": c.endpoint, "completion_window": "1h"}),
			client.Do("until", client.Of("1.id"), ended),
			client.Do("files.content", client.Of("2.output_file_id")))
		var line string
		_ = json.Unmarshal(r[3].Value, &line)
		if gjson.Get(line, "response.body.object").Str != c.object || gjson.Get(line, "custom_id").Str != "one" {
			t.Errorf("%s: %s, %+v, %s", c.endpoint, r[2].Value, r[3].Error, line)
		}
	}
}

// batchAPI is a tenant's use of files and batches, without an SDK.
type batchAPI struct {
	t         *testing.T
	base, key string
}

func (a *batchAPI) send(method, path, contentType string, body io.Reader) (int, string) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.base+path, body)
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+a.key)
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func (a *batchAPI) get(path string) string {
	a.t.Helper()
	status, text := a.send("GET", path, "", nil)
	if status != 200 {
		a.t.Fatalf("%s: %d %s", path, status, text)
	}
	return text
}

// sendFile uploads a file of requests, whatever comes of it.
func (a *batchAPI) sendFile(text string) (status int, answer string) {
	a.t.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	_ = w.WriteField("purpose", "batch")
	part, _ := w.CreateFormFile("file", "requests.jsonl")
	_, _ = io.WriteString(part, text)
	_ = w.Close()
	return a.send("POST", "/v1/files", w.FormDataContentType(), &form)
}

func (a *batchAPI) upload(text string) string {
	a.t.Helper()
	status, answer := a.sendFile(text)
	if status != 200 {
		a.t.Fatalf("upload: %d %s", status, answer)
	}
	return gjson.Get(answer, "id").Str
}

func (a *batchAPI) create(file string) string {
	a.t.Helper()
	status, answer := a.send("POST", "/v1/batches", "application/json",
		strings.NewReader(fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"1h"}`, file)))
	if status != 200 {
		a.t.Fatalf("create: %d %s", status, answer)
	}
	return gjson.Get(answer, "id").Str
}

// until looks at a batch until it is as wanted.
func (a *batchAPI) until(id string, ok func(b gjson.Result) bool) gjson.Result {
	a.t.Helper()
	var b gjson.Result
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if b = gjson.Parse(a.get("/v1/batches/" + id)); ok(b) {
			return b
		}
	}
	a.t.Fatalf("it never became so: %s", b)
	return b
}

func hasEnded(b gjson.Result) bool { return slices.Contains(ended, b.Get("status").Str) }

// TestBatchBadInput: what is wrong with a file is told by line, nothing of it runs, and
// the next batch does.
func TestBatchBadInput(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	e := headgate.StartEngine(t, "--speed", "0.1")
	g := headgate.Start(t, batchConfig(k, t.TempDir(), e.URL)).AwaitReady()
	api := &batchAPI{t, g.URL, k.jobs}
	good := func(id string) string {
		return requestLine(id, "/v1/chat/completions", object{"model": e.Model, "max_tokens": 2, "messages": user("hello")})
	}
	const many = 20_000
	var long strings.Builder
	for i := range many {
		if i == many/2 {
			long.WriteString("{\"custom_id\":\n")
			continue
		}
		long.WriteString(good(fmt.Sprint(i)) + "\n")
	}
	for _, c := range []struct {
		name, file string
		lines      string // of errors
	}{
		{"empty", "", "null"},
		{"blank", "\n\r\n \n", "null"},
		{"no JSON", good("a") + "\nhello\n" + good("b"), "2"},
		{"one of many", long.String(), fmt.Sprint(many/2 + 1)},
		{"twice", good("a") + "\n" + good("b") + "\n" + good("a") + "\n", "3"},
		{"method", strings.Replace(good("a"), "POST", "GET", 1) + "\n", "1"},
		{"url", good("a") + "\n" + strings.Replace(good("b"), "chat/completions", "embeddings", 1), "2"},
		{"no id", strings.Replace(good("a"), `"custom_id":"a",`, "", 1), "1"},
		{"several", "x\n" + good("a") + "\ny\nz", "1 3 4"},
	} {
		b := api.until(api.create(api.upload(c.file)), hasEnded)
		var lines []string
		for _, e := range b.Get("errors.data").Array() {
			lines = append(lines, e.Get("line").Raw)
			if e.Get("code").Str == "" || e.Get("message").Str == "" {
				t.Errorf("%s: %s", c.name, e)
			}
		}
		if b.Get("status").Str != "failed" || strings.Join(lines, " ") != c.lines || b.Get("failed_at").Int() == 0 || b.Get("output_file_id").Str != "" {
			t.Errorf("%s: lines %v, want %s: %s", c.name, lines, c.lines, b)
		}
	}
	// What is only unusual runs: CRLF, blank lines, no final newline.
	b := api.until(api.create(api.upload("\ufeff"+good("a")+"\r\n\r\n"+good("b"))), hasEnded)
	if b.Get("status").Str != "completed" || b.Get("request_counts.completed").Int() != 2 {
		t.Errorf("CRLF: %s", b)
	}
	g.AwaitPool("nothing is held", idle)
}

var (
	crashItems  = flag.Int("crash-items", 24, "items of the batch that TestBatchSurvives runs")
	crashKills  = flag.Int("crash-kills", 3, "how often it kills the gateway")
	crashTokens = flag.Int("crash-tokens", 400, "tokens of each item's answer")
)

// TestBatchSurvives: a gateway that is killed in the middle of a batch goes on with it:
// each request has one line, and what was checkpointed of an answer is not generated
// again. What was done before is seen while it runs.
func TestBatchSurvives(t *testing.T) {
	t.Parallel()
	const slots, checkpoint = 4, 32
	n, kills, tokens := *crashItems, *crashKills, *crashTokens
	k := newKeys(t)
	e := headgate.StartEngine(t, "--speed", "0.05")
	config := strings.Replace(batchConfig(k, t.TempDir(), e.URL), "batch: {", fmt.Sprintf("batch: {checkpoint_tokens: %d, ", checkpoint), 1)
	g := headgate.Start(t, config).AwaitReady()
	api := &batchAPI{t, g.URL, k.jobs}
	id := api.create(api.upload(strings.ReplaceAll(chatLines(e.Model, n, tokens), `"max_tokens"`, fmt.Sprintf(`"min_tokens":%d,"max_tokens"`, tokens))))
	seen := ""
	for life := range kills {
		enough := int64((life + 1) * n / (kills + 1))
		b := api.until(id, func(b gjson.Result) bool { return b.Get("request_counts.completed").Int() >= enough || hasEnded(b) })
		if hasEnded(b) {
			t.Fatalf("life %d: it is done before it is killed: %s", life, b)
		}
		now := api.get("/v1/batches/" + id + "/output")
		if !strings.HasPrefix(now, seen) || len(now) == len(seen) {
			t.Errorf("life %d: %d bytes of results that don't begin with the %d before", life, len(now), len(seen))
		}
		seen = now
		g.Kill()
		g = headgate.Start(t, config).AwaitReady()
		api.base = g.URL
	}
	b := api.until(id, hasEnded)
	output := api.get("/v1/files/" + b.Get("output_file_id").Str + "/content")
	all := ids(t, output)
	if lines := len(all); b.Get("status").Str != "completed" || lines != n || len(slices.Compact(all)) != n || b.Get("error_file_id").Type != gjson.Null {
		t.Errorf("%d lines: %s", lines, b)
	}
	if !strings.HasPrefix(output, seen) {
		t.Error("the file does not begin with what was seen while it ran")
	}
	for line := range strings.Lines(output) {
		if made := gjson.Get(line, "response.body.usage.completion_tokens").Int(); made != int64(tokens) {
			t.Errorf("an answer of %d tokens: %.200s", made, line)
		}
	}
	// Between two checkpoints there are as many tokens as were asked for, those that the relay
	// waits for, and those that come while one is written.
	again := made(t, e.URL) - n*tokens
	if most := kills * slots * 3 * checkpoint; again < 0 || again > most {
		t.Errorf("%d tokens were generated again after %d kills, want at most %d", again, kills, most)
	}
	t.Logf("%d tokens were generated again, of %d", again, n*tokens)
}

// made is how many tokens an engine has generated.
func made(t *testing.T, engine string) int {
	t.Helper()
	res, err := http.Get(engine + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^vllm:generation_tokens_total\{.*\} (\S+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no tokens are counted:\n%s", text)
	}
	n, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// TestBatchStops: a gateway that is told to stop does not wait for a batch, and the next
// one goes on with it.
func TestBatchStops(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	e := headgate.StartEngine(t, "--speed", "0.1")
	dir := t.TempDir()
	g := headgate.Start(t, batchConfig(k, dir, e.URL)).AwaitReady()
	api := &batchAPI{t, g.URL, k.jobs}
	id := api.create(api.upload(chatLines(e.Model, 40, 1000)))
	api.until(id, func(b gjson.Result) bool { return b.Get("status").Str == "in_progress" })
	g.AwaitPool("a batch's request runs", func(s *admission.Snapshot) bool { return s.Used.Slots > 0 })
	g.Terminate()
	g.Wait()
	g = headgate.Start(t, batchConfig(k, dir, e.URL)).AwaitReady()
	api.base = g.URL
	if status, text := api.send("POST", "/v1/batches/"+id+"/cancel", "", nil); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if b := api.until(id, hasEnded); b.Get("status").Str != "cancelled" || b.Get("request_counts.failed").Int()+b.Get("request_counts.completed").Int() != 40 {
		t.Errorf("%s", b)
	}
}

// TestBatchReplicas: several replicas with one database and one folder have the same
// files and batches. One that is killed is taken over from, and each request has one line.
func TestBatchReplicas(t *testing.T) {
	t.Setenv("HEADGATE_E2E_POSTGRES", need.Postgres(t))
	k, dir := newKeys(t), t.TempDir()
	replica := func() *headgate.Gateway {
		e := headgate.StartEngine(t, "--speed", "0.1")
		return headgate.Start(t, strings.Replace(batchConfig(k, dir, e.URL), "batch: {", "batch: {postgres_env: HEADGATE_E2E_POSTGRES, ", 1)).AwaitReady()
	}
	a, b := replica(), replica()
	atA, atB := &batchAPI{t, a.URL, k.jobs}, &batchAPI{t, b.URL, k.jobs}
	const n = 100
	id := atB.create(atA.upload(chatLines("headgate-simulated-m1", n, 40)))
	for _, g := range []*headgate.Gateway{a, b} {
		g.AwaitPool("it runs items", func(s *admission.Snapshot) bool { return s.Used.Slots > 0 })
	}
	atA.until(id, func(b gjson.Result) bool { return b.Get("request_counts.completed").Int() > 10 })
	b.Kill()
	done := atA.until(id, hasEnded)
	all := ids(t, atA.get("/v1/files/"+done.Get("output_file_id").Str+"/content"))
	if lines := len(all); done.Get("status").Str != "completed" || lines != n || len(slices.Compact(all)) != n {
		t.Errorf("%d lines: %s", lines, done)
	}
}

// TestBatchPage: the file and the command of docs/batch.md, as they stand there.
func TestBatchPage(t *testing.T) {
	var shown []string
	for _, b := range blocks(t) {
		if b.page == "docs/batch.md" && b.language == "text" {
			shown = append(shown, b.text)
		}
	}
	if len(shown) != 2 {
		t.Fatalf("%d text blocks", len(shown))
	}
	g := headgate.StartDemo(t).AwaitReady()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "requests.jsonl"), []byte(shown[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	_, args, _ := strings.Cut(strings.TrimSpace(shown[1]), " ")
	cmd := exec.CommandContext(t.Context(), headgate.Binary(t), strings.Fields(strings.ReplaceAll(args, "http://127.0.0.1:8080", g.URL))...)
	cmd.Dir = dir
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || !regexp.MustCompile(`^batch_\w+\n$`).Match(out) {
		t.Fatalf("%v, %q, %s", err, out, &said)
	}
	results, err := os.ReadFile(filepath.Join(dir, "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"one", "two"}, ids(t, string(results))); d != "" {
		t.Errorf("%s(-want +got)\n%s", &said, d)
	}
}
