package occupancy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/journal"
)

// kinds names them in tests.
var kinds = map[Kind]string{Other: "-", Wait: "wait", Start: "start", Done: "done", Whole: "whole", Gone: "gone", Restart: "restart"}

// told is a Line in short.
func told(l *Line) string {
	s := fmt.Sprintf("%s %s %s", kinds[l.Kind], time.Unix(0, l.At).UTC().Format("2006-01-02T15:04:05.999999999"), l.ID)
	if l.Kind == Whole {
		s += fmt.Sprintf(" for %v", time.Duration(l.At-l.Start))
	}
	if l.Queue > 0 {
		s += fmt.Sprintf(" queue %v", time.Duration(l.Queue))
	}
	for _, f := range []struct {
		name string
		v    []byte
	}{{"model", l.Model}, {"class", l.Class}, {"principal", l.Principal}, {"tag", l.Tag}, {"source", l.Source}, {"process", l.Process}} {
		if len(f.v) > 0 {
			s += fmt.Sprintf(" %s=%s", f.name, f.v)
		}
	}
	return s
}

// TestPresets reads lines as the engines and gateways wrote them; where they are
// from is in Preset's Source. Long insides are cut.
func TestPresets(t *testing.T) {
	for _, test := range []struct {
		preset, wrapper, line, want string
	}{
		{"vllm", "", `INFO 01-30 18:37:14 logger.py:37] Received request chatcmpl-4f06117407644dad8c33815f9701b389: prompt: None, params: SamplingParams(n=1), lora_request: None.`, "start 2026-01-30T18:37:14 chatcmpl-4f06117407644dad8c33815f9701b389"},
		{"vllm", "", `INFO 01-30 18:37:14 async_llm_engine.py:177] Finished request chatcmpl-4f06117407644dad8c33815f9701b389.`, "done 2026-01-30T18:37:14 chatcmpl-4f06117407644dad8c33815f9701b389"},
		{"vllm", "", `INFO 01-17 03:11:25 async_llm_engine.py:134] Aborted request 0e89f1d2d94c4a039f868222c100cc8a.`, "done 2026-01-17T03:11:25 0e89f1d2d94c4a039f868222c100cc8a"},
		{"vllm", "", `INFO 04-10 03:35:45 [async_llm.py:204] Added request chatcmpl-b654b653c8714431a1096a3be88f1662.`, ""},
		{"vllm", "", `(APIServer pid=66) INFO 09-02 08:46:16 [entrypoints/logger.py:92] Generated response chatcmpl-ba7c746153081a9d (streaming delta): output: 'x', output_token_ids: [1], finish_reason: None`, ""},
		{"vllm", "", `(APIServer pid=66) INFO 09-02 08:46:16 [entrypoints/logger.py:92] Generated response chatcmpl-ba7c746153081a9d (streaming complete): output: 'x', output_token_ids: None, finish_reason: streaming_complete`, "done 2026-09-02T08:46:16 chatcmpl-ba7c746153081a9d process=66"},
		{"vllm", "", `INFO 08-24 10:23:47 [request_logger.py:98] Generated response chatcmpl-8e66f5c2: output: '...', finish_reason: stop`, "done 2026-08-24T10:23:47 chatcmpl-8e66f5c2"},
		{"vllm", "", `INFO 04-10 03:35:27 [loggers.py:80] Avg prompt throughput: 13.0 tokens/s, Running: 0 reqs`, ""},
		{"sglang", "", `[2025-03-03 17:53:04] Receive: obj=GenerateReqInput(text=None, input_ids=[151646, 198], sampling_params={'n': 1}, rid='ced00776101841e180bf04c8dbdc4ec2', return_logprob=False)`, "start 2025-03-03T17:53:04 ced00776101841e180bf04c8dbdc4ec2"},
		{"sglang", "", `[2025-12-24 21:05:35] Finish: obj=GenerateReqInput(validation_time=2.386048436164856e-05, received_time=1766581510.102859, rid='request_id-test', http_worker_ipc=None)`, "done 2025-12-24T21:05:35 request_id-test"},
		{"sglang-json", "", `{"timestamp": "2026-08-22T10:00:01.500000", "event": "request.finished", "rid": "a1", "obj": {"rid": "a1"}, "out": {"meta_info": {"queue_time": 0.25, "e2e_latency": 1.5}}}`, "done 2026-08-22T10:00:01.5 a1 queue 250ms"},
		{"llama-server", "", `0.03.339.143 I slot launch_slot_: id  0 | task 0 | processing task, is_child = 0`, "start 1970-01-01T00:00:03.339143 0 source=f"},
		{"llama-server", "", "\x1b[34m0.15.021.617\x1b[0m \x1b[32mI \x1b[0mslot      release: id  1 | task 2 | stop processing: n_tokens = 29, truncated = 0", "done 1970-01-01T00:00:15.021617 2 source=f"},
		{"llama-server", "", `0.00.050.931 I srv  llama_server: initializing ...`, "restart 1970-01-01T00:00:00.050931  source=f"},
		{"llama-server", "", `0.08.125.383 I slot launch_slot_: id  0 | task -1 | sampler chain: logits -> logit-bias`, ""},
		{"llama-server", "", `[51429] 0.19.834.943 I slot      release: id  1 | task 0 | stop processing: n_tokens = 1618, truncated = 0`, "done 1970-01-01T00:00:19.834943 0 source=f process=51429"},
		{"llama-server", "journald-short", `May 23 00:30:27 corrm-pc start_llama_server.sh[385247]: 48.36.669.415 I slot      release: id  0 | task 22416 | stop processing: n_tokens = 8192, truncated = 0`, "done 2026-05-23T00:30:27 22416 source=corrm-pc start_llama_server.sh process=385247"},
		{"llama-server", "journald-short", `2026-07-28T20:08:37.397883-04:00 t0 llama-server[1686919]: slot launch_slot_: id  0 | task 7 | processing task`, "start 2026-07-29T00:08:37.397883 7 source=t0 llama-server process=1686919"},
		{"llama-server-jsonl", "", `{"type":"log","time":9768018,"level":"info","msg":"slot      release: id  0 | task 1 | stop processing: n_tokens = 69, truncated = 0\n"}`, "done 1970-01-01T00:00:09.768018 1 source=f"},
		{"ollama", "", `[GIN] 2025/02/18 - 12:24:58 | 200 |  2.458931806s |  10.248.155.225 | POST     "/api/chat"`, "whole 2025-02-18T12:24:58  for 2.458931806s"},
		{"ollama", "journald-short", `Dec 11 09:58:58 quorra ollama[1543654]: [GIN] 2024/12/11 - 09:58:58 | 500 |        29m59s |      10.0.0.123 | POST     "/api/chat"`, "whole 2026-12-11T09:58:58  for 29m59s source=quorra ollama process=1543654"},
		{"ollama", "", `[GIN] 2026/01/20 - 23:15:46 | 200 |    1.193025ms |       127.0.0.1 | GET      "/api/ps"`, ""},
		{"llama-swap", "", `[llama-swap] 192.168.16.7 [2025-01-30 18:37:14] "POST /v1/chat/completions HTTP/1.1" 200 2927 "Python/3.11 aiohttp/3.11.8" 520.776271ms`, "whole 2025-01-30T18:37:14  for 520.776271ms"},
		{"llama-swap", "docker-json", `{"log":"[INFO] Request 172.28.0.1 \"POST /v1/chat/completions HTTP/1.1\" 200 781 \"Python/3.11 aiohttp/3.12.15\" 17.092465058s\n","stream":"stdout","time":"2026-05-01T10:00:00.5Z"}`, "whole 2026-05-01T10:00:00.5  for 17.092465058s"},
		{"tgi", "", `2025-08-09T19:36:02.798333Z  INFO openai_embed{total_time="1.207716998s" tokenization_time="11.232786ms" queue_time="686.203µs" inference_time="1.195713965s"}: text_embeddings_router::http::server: router/src/http/server.rs:1290: Success`, "whole 2025-08-09T19:36:02.798333  for 1.207716998s queue 686.203µs"},
		{"litellm", "", `{"id":"chatcmpl-1","call_type":"acompletion","startTime":1766581510.25,"endTime":1766581512.75,"model_group":"qwen","request_tags":["bench","x"],"metadata":{"user_api_key_alias":"team-a"}}`, `whole 2025-12-24T13:05:12.75 chatcmpl-1 for 2.5s model=qwen principal=team-a tag=["bench","x"]`},
		{"nginx", "", `"29/Aug/2025:10:47:20 +0800" client=10.0.0.1 method=POST request="POST /v1/chat/completions HTTP/1.1" request_length=812 status=200 bytes_sent=512 user_agent="x" upstream_addr=127.0.0.1:8000 request_time=2.345 upstream_response_time=2.344`, "whole 2025-08-29T02:47:20  for 2.345s"},
		{"nginx", "", `10.0.0.1 - - [29/Aug/2025:10:47:20 +0000] "POST /v1/completions HTTP/1.1" 200 512 "-" "curl/8" rt=0.640`, "whole 2025-08-29T10:47:20  for 640ms"},
		{"nginx", "", `10.0.0.1 - - [29/Aug/2025:10:47:20 +0000] "GET /v1/models HTTP/1.1" 200 512 "-" "curl/8" rt=0.640`, ""},
		{"envoy", "", `[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"`, "whole 2016-04-15T20:17:00.536  for 226ms"},
		{"journal", "", `{"seq":5,"ts":"2026-11-30T06:46:27.271560311Z","mono_ns":2485838985,"kind":"dispatched","pool":"demo","engine":"simulated","class":"batch","tenant":"anonymous","principal":"anonymous","model":"m1","request":"req_s","hold":4294967296}`, "start 2026-11-30T06:46:27.271560311 req_s model=m1 class=batch principal=anonymous source=f"},
		{"ollama", "journald-short", "-- Boot 0123456789abcdef0123456789abcdef --", ""},
		{"journal", "journald-json", `{"__REALTIME_TIMESTAMP":"1766581510102859","_HOSTNAME":"h","_SYSTEMD_UNIT":"u.service","_PID":"7","MESSAGE":[27,91,51,49,109,120]}`, ""},
		{"ollama", "journald-json", `{"__REALTIME_TIMESTAMP":"1766581510102859","_HOSTNAME":"h","_SYSTEMD_UNIT":"ollama.service","_PID":"7","MESSAGE":"[GIN] 2025/02/18 - 12:24:58 | 200 |  2s |  10.248.155.225 | POST     \"/v1/chat/completions\""}`, "whole 2025-12-24T13:05:10.102859  for 2s source=h ollama.service process=7"},
	} {
		f := Preset(test.preset)
		if test.wrapper != "" {
			f.Wrapper = test.wrapper
		}
		p, err := NewParser(f, Options{Year: 2026}, "f")
		if err != nil {
			t.Fatal(err)
		}
		var l Line
		used, err := p.Parse([]byte(test.line+"\n"), &l)
		got := ""
		if used && l.Kind != Other {
			got = told(&l)
		}
		if err != nil || got != test.want {
			t.Errorf("%s: %v\n%s\ngot  %s\nwant %s", test.preset, err, test.line, got, test.want)
		}
	}
}

// TestJournalKinds: the preset speaks of events that the journal has.
func TestJournalKinds(t *testing.T) {
	f := Preset("journal")
	for _, v := range slices.Concat(f.Starts, f.Dones, f.Waits, f.Gones, f.Restarts, f.Lost) {
		var k journal.Kind
		if err := k.UnmarshalText([]byte(v)); err != nil {
			t.Error(err)
		}
	}
}

// TestRestarts: what was open when its process died was in flight until its last
// line, whether the log says so, or its clock, or the process id. A process that
// writes on after another of its source has begun is none that died.
func TestRestarts(t *testing.T) {
	jsonl := foreign()
	jsonl.Restarts, jsonl.Process = []string{"up"}, "pid"
	line := func(second int, event, id, pid string) string {
		return fmt.Sprintf(`{"ts":%d,"event":%q,"req_id":%q,"pid":%q}`+"\n", 1_790_000_000+second, event, id, pid)
	}
	for _, test := range []struct {
		name  string
		f     *Format
		lines []string
		want  string
	}{
		{"an event", jsonl, []string{line(0, "start", "a", ""), line(4, "x", "", ""), line(9, "up", "", ""), line(10, "done", "a", "")}, "4 s, 0 paired, 1 capped, 0+1 unpaired"},
		{"a process id", jsonl, []string{line(0, "start", "a", "1"), line(4, "x", "", "1"), line(9, "start", "b", "2"), line(10, "done", "b", "2")}, "5 s, 1 paired, 1 capped, 0+0 unpaired"},
		{"two workers", jsonl, []string{line(0, "start", "a", "1"), line(1, "start", "a", "2"), line(3, "done", "a", "1"), line(9, "done", "a", "2")}, "9 s, 2 paired, 0 capped, 0+0 unpaired"},
		{"two workers, a lost done", jsonl, []string{line(0, "start", "a", "1"), line(1, "start", "b", "2"), line(3, "x", "", "1"), line(9, "done", "b", "2")}, "8 s, 1 paired, 0 capped, 1+0 unpaired"},
		{"nothing", jsonl, []string{line(0, "start", "a", ""), line(9, "x", "", "")}, "0 s, 0 paired, 0 capped, 1+0 unpaired"},
		{"a clock", Preset("llama-server"), []string{
			"9.00.000.000 I slot launch_slot_: id  0 | task 0 | processing task\n", "9.04.000.000 I slot launch_slot_: id  1 | task 1 | processing task\n",
			"0.01.000.000 I slot launch_slot_: id  0 | task 0 | processing task\n", "0.03.000.000 I slot      release: id  0 | task 0 | stop processing\n"}, "6 s, 1 paired, 2 capped, 0+0 unpaired"},
	} {
		r := mustRun(t, test.f, Options{}, strings.Join(test.lines, ""))
		if got := fmt.Sprintf("%v s, %d paired, %d capped, %d+%d unpaired", r.BusyS, r.Paired, r.Capped, r.UnpairedStarts, r.UnpairedDones); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// TestReuse: a done belongs to the latest start of its id and model, and a lost
// done before it stays lost.
func TestReuse(t *testing.T) {
	line := func(second float64, event, model string) string {
		return fmt.Sprintf(`{"ts":%f,"event":%q,"req_id":"1","model":%q}`+"\n", 1_790_000_000+second, event, model)
	}
	for _, test := range []struct {
		name, lines, want string
	}{
		{"a lost done", line(0, "start", "") + line(100, "start", "") + line(103, "done", ""), "3 s, 1 paired, 1+0, 0 doubles"},
		{"another model", line(0, "start", "a") + line(1, "start", "b") + line(3, "done", "a") + line(9, "done", "b"), "9 s, 2 paired, 0+0, 0 doubles"},
		{"a double with an old start", line(0, "start", "") + line(100, "start", "") + line(103, "done", "") + line(103.2, "done", ""), "3 s, 1 paired, 1+0, 1 doubles"},
		{"two at once", line(0, "start", "") + line(1, "start", "") + line(3, "done", "") + line(9, "done", ""), "9 s, 2 paired, 0+0, 0 doubles"},
		{"a late double", line(0, "start", "") + line(3, "done", "") + line(50, "done", ""), "3 s, 1 paired, 0+0, 1 doubles"},
		{"a done alone", line(0, "start", "") + line(3, "done", "") + line(500, "done", ""), "3 s, 1 paired, 0+1, 0 doubles"},
		{"longer than the longest", line(0, "start", "") + line(8*3600, "done", ""), "0 s, 0 paired, 0+0, 0 doubles"},
	} {
		r := mustRun(t, foreign(), Options{}, test.lines)
		if got := fmt.Sprintf("%v s, %d paired, %d+%d, %d doubles", r.BusyS, r.Paired, r.UnpairedStarts, r.UnpairedDones, r.Duplicates); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// TestOutOfOrder: a line too far behind is counted and changes nothing.
func TestOutOfOrder(t *testing.T) {
	a, err := NewAnalysis(Options{Slack: time.Second}, false)
	if err != nil {
		t.Fatal(err)
	}
	a.pairs.batch, a.pairs.limit = 1, 1
	for _, l := range []Line{{Kind: Start, At: 10e9, ID: []byte("a")}, {Kind: Done, At: 12e9, ID: []byte("a")}, {Kind: Start, At: 5e9, ID: []byte("b")}, {Kind: Done, At: 13e9, ID: []byte("b")}} {
		a.Add(&l)
	}
	if r := a.Report(); r.OutOfOrder != 1 || r.UnpairedDones != 1 || r.BusyS != 2 || len(r.Notes) != 3 {
		t.Errorf("%+v", r)
	}
}

func TestTimes(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		format, text, want string
	}{
		{Auto, "1766581510", "2025-12-24T13:05:10Z"},
		{Auto, "1766581510102", "2025-12-24T13:05:10.102Z"},
		{Auto, "1766581510102859", "2025-12-24T13:05:10.102859Z"},
		{Auto, "1766581510102859001", "2025-12-24T13:05:10.102859001Z"},
		{Auto, "1.76658151e9", "2025-12-24T13:05:10Z"},
		{Auto, "2026-07-01 10:00:00,5", "2026-07-01T08:00:00.5Z"},
		{Auto, "yesterday", ""},
		{Unix, "1766581510.102859001999", "2025-12-24T13:05:10.102859001Z"},
		{UnixMs, "1.5", "1970-01-01T00:00:00.0015Z"},
		{RFC3339, "2026-12-01T10:00:00", "2026-12-01T09:00:00Z"},
		{RFC3339, "2026-02-29T10:00:00Z", ""},
		{RFC3339, "2026-12-01T10:00:00+0530", "2026-12-01T04:30:00Z"},
		{Elapsed, "1.02.003.004", "1970-01-01T00:01:02.003004Z"},
		{Elapsed, "1.02.003", ""},
		{"02/Jan/2006:15:04:05 -0700", "29/Aug/2025:10:47:20 +0800", "2025-08-29T02:47:20Z"},
		{"01-02 15:04:05", "12-31 23:59:59", "2026-12-31T22:59:59Z"},
	} {
		c, err := newClock(test.format, berlin, 2026)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if ns, ok := c.parse([]byte(test.text)); ok {
			got = time.Unix(0, ns).UTC().Format(time.RFC3339Nano)
		}
		if got != test.want {
			t.Errorf("%s of %q is %q, want %q", test.format, test.text, got, test.want)
		}
	}
	c, err := newClock("01-02 15:04:05", time.UTC, 2026)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range [][2]string{{"12-31 23:59:59", "2026"}, {"01-01 00:00:00", "2027"}, {"12-31 23:59:59", "2026"}, {"01-01 00:00:01", "2027"}} {
		if ns, ok := c.parse([]byte(step[0])); !ok || time.Unix(0, ns).UTC().Format("2006") != step[1] {
			t.Errorf("%s is not in %s", step[0], step[1])
		}
	}
	if _, err := newClock("%Y-%m-%d", time.UTC, 2026); err == nil {
		t.Error("a layout of strftime is accepted")
	}
}

func TestFormatErrors(t *testing.T) {
	for _, test := range []struct {
		f    Format
		want string
	}{
		{Format{JSON: true}, "no time"},
		{Format{JSON: true, Time: "t", ID: "i"}, "need an id, an event"},
		{Format{JSON: true, Time: "t", Duration: "d", Starts: []string{"s"}}, "both ends"},
		{Format{JSON: true, Time: "t", Duration: "d", Dones: []string{"s"}, Waits: []string{"s"}}, "two meanings"},
		{Format{}, "no pattern"},
		{Format{Patterns: []string{"("}}, "missing closing"},
		{Format{Patterns: []string{"(?P<who>x)"}}, `group "who"`},
		{Format{Patterns: []string{"(?P<id>x)"}}, "it needs a group duration"},
		{Format{Patterns: []string{"(?P<duration>x)"}, Wrapper: "syslog"}, "wrapper is"},
	} {
		if _, err := test.f.compile(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %s", test.f, err, test.want)
		}
	}
	for name, text := range map[string]string{"empty": "", "other": "hello\n", "gzip": "\x1f\x8b\x08"} {
		if _, err := Run([]Input{{name, strings.NewReader(text)}}, foreign(), Options{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestLongLines: what is longer than a buffer is read whole, what is longer than
// allowed is counted.
func TestLongLines(t *testing.T) {
	pad := strings.Repeat("x", 300<<10)
	text := fmt.Sprintf(`{"pad":%q,"ts":1,"event":"start","req_id":"a"}`+"\n"+`{"pad":%q,"ts":1,"event":"start","req_id":"b"}`+"\n"+`{"ts":3,"event":"done","req_id":"a"}`, pad, strings.Repeat(pad, 4))
	if r := mustRun(t, foreign(), Options{}, text); r.Paired != 1 || r.BadLines != 1 || r.Lines != 3 {
		t.Errorf("%+v", r)
	}
}

func TestWriters(t *testing.T) {
	text := `{"ts":0,"event":"start","req_id":"a\u0000\u001b[31m","model":"<m>"}` + "\n" + `{"ts":7200,"event":"done","req_id":"a\u0000\u001b[31m"}`
	for name, write := range map[string]func(*Report, io.Writer) error{"table": (*Report).WriteTable, "csv": (*Report).WriteCSV, "svg": (*Report).WriteSVG} {
		for _, r := range []*Report{mustRun(t, foreign(), Options{}, text), mustRun(t, foreign(), Options{}, `{"ts":0,"event":"x"}`)} {
			var b bytes.Buffer
			if err := write(r, &b); err != nil || b.Len() == 0 || bytes.ContainsAny(b.Bytes(), "\x00\x1b") || name == "svg" && bytes.Contains(b.Bytes(), []byte("NaN")) {
				t.Errorf("%s: %v\n%s", name, err, b.String())
			}
		}
	}
}

// FuzzParse: no preset and no wrapper panics on any line, and what it says is sane.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"ts":"2026-11-30T06:46:27.2Z","kind":"dispatched","request":"r","count":3}`))
	f.Add([]byte(`[GIN] 2025/02/18 - 12:24:58 | 200 |  2.4s |  10.248.155.225 | POST     "/api/chat"`))
	f.Add([]byte("\x1b]0;t\x07\x1b[1mMay 23 00:30:27 h n[1]: 48.36.669.415 I slot      release: id  0 | task 2 | stop processing"))
	f.Add([]byte(`{"MESSAGE":[120,121],"__REALTIME_TIMESTAMP":"1766581510102859"}`))
	var all []*compiled
	for i := range Presets {
		for _, wrapper := range append([]string{""}, WrapperNames()...) {
			format := Presets[i]
			format.Wrapper = wrapper
			c, err := format.compile()
			if err != nil {
				f.Fatal(err)
			}
			all = append(all, c)
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, c := range all {
			p, err := newParser(c, &Options{Zone: time.UTC, Year: 2026}, "f")
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // a clock has state
				var l Line
				used, err := p.Parse(line, &l)
				if used && err != nil {
					t.Fatal("a line is used and wrong")
				}
				if used && (!bounded(l.At) || l.Queue < 0 || l.Kind == Whole && l.Start > l.At) {
					t.Fatalf("%+v", l)
				}
			}
		}
	})
}

// FuzzMembers: what is JSON is taken apart as encoding/json does it.
func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"a":"b\\\"c","d":[{"e":"]}"},null],"f":{},"g":-1.5e3 , "h" : true}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		got := map[string]string{}
		ok := members(line, func(key, value []byte) { got[string(key)] = string(value) })
		var want map[string]json.RawMessage
		if json.Unmarshal(line, &want) != nil || want == nil {
			return // what is not JSON may pass; its values are checked by who reads them
		}
		if !ok {
			t.Fatal("an object is not taken for one")
		}
		for k, v := range want {
			if raw, there := got[k]; there && !regexp.MustCompile(`[\\\x{fffd}]`).MatchString(k) && raw != string(bytes.TrimSpace(v)) {
				t.Fatalf("%q is %s, want %s", k, raw, v)
			}
		}
	})
}

// FuzzTimes: no time format panics, and ISO times are never read differently from
// package time.
func FuzzTimes(f *testing.F) {
	f.Add([]byte("2026-11-30T06:46:27.278878660843Z"))
	f.Add([]byte("1.5e18"))
	f.Add([]byte("-9223372036.854775808"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, format := range []string{Auto, RFC3339, Unix, UnixMs, UnixUs, UnixNs, Elapsed, time.Stamp} {
			c, err := newClock(format, time.UTC, 2026)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := c.parse(b)
			if format == RFC3339 && ok {
				if want, err := time.Parse(time.RFC3339Nano, string(b)); err == nil && want.UnixNano() != got {
					t.Fatalf("%q is %d, want %d", b, got, want.UnixNano())
				}
			}
		}
		if d, ok := duration(b, 1e9); ok && d < 0 {
			t.Fatalf("%q lasts %d", b, d)
		}
	})
}

// FuzzRun: any sequence of lines gives a report whose shares add up.
func FuzzRun(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 250, 9, 7, 1, 1, 60, 5, 4, 3, 2, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := NewAnalysis(Options{Slack: 3, MaxSpan: 200, Dedupe: 5}, len(b)%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		a.pairs.batch, a.sweep.batch, a.pairs.limit, a.sweep.limit = 2, 2, 1, 1
		at := int64(0)
		for len(b) >= 4 {
			at += int64(int8(b[0])) / 4
			l := Line{Kind: Kind(b[1] % 7), At: at, Start: at - int64(b[2]), Queue: int64(b[2] % 9), ID: b[3:4], Process: b[2:3], Fresh: b[0] == 9, Excluded: b[0] == 8}
			if l.Kind == Whole && len(b)%2 != 0 {
				l.Kind = Start
			}
			if b[1] > 128 {
				l.Process = nil
			}
			a.Add(&l)
			b = b[4:]
		}
		r := a.Report()
		sum := 0.0
		for _, l := range r.Levels {
			sum += l.BusyShare
		}
		if len(r.Levels) > 0 && r.BusyS > 0 && (sum < 1-1e-9 || sum > 1+1e-9) || r.BusyS > r.WindowS+1e-9 || r.Peak != len(r.Levels) {
			t.Fatalf("%v of 1 in levels, busy %v of %v, peak %d of %d", sum, r.BusyS, r.WindowS, r.Peak, len(r.Levels))
		}
		if a.pairs.nopen != 0 || a.sweep.all.n != 0 {
			t.Fatal("something is still in flight")
		}
	})
}
