package occupancy

import "time"

// Presets are the formats of the usual engines and gateways. Each was made from
// lines as they were logged; Source says by which version, or where they are shown.
var Presets = []Format{
	{
		Name:   "journal",
		About:  "Headgate's own journal: in flight from dispatched to ended, waiting from arrived or queued",
		Needs:  "journal.file in serve's configuration; one file of each replica",
		Source: "this version",
		JSON:   true, Time: "ts", ID: "request", Event: "kind", Model: "model", Class: "class", Principal: "principal", Count: "count",
		Waits: []string{"arrived", "queued"}, Starts: []string{"dispatched"}, Dones: []string{"ended"},
		Gones: []string{"finished", "rejected", "forwarded"}, Restarts: []string{"started"}, Lost: []string{"dropped"},
		TimeFormat: RFC3339, Separate: true,
	},
	{
		Name:   "vllm",
		About:  "vLLM's request lines: received to the whole response, aborted or failed; waiting inside the engine counts as in flight",
		Needs:  "--enable-log-requests and, from V1 on, --enable-log-outputs, without which only aborts have an end; times are whole seconds without a year",
		Source: "vllm issues 16361, 2484 and 5116 of LibreChat, mostlygeek/llama-swap issue 35 (0.6 to 0.10); the words of v1/engine/async_llm.py of 2026-08",
		Patterns: []string{
			vllmHead + `Received request (?P<id>[^ :]+)(?P<start>:)`,
			vllmHead + `Generated response (?P<id>[^ :]+)(?: \(streaming complete\))?(?P<done>: output)`,
			vllmHead + `(?P<done>Finished) request (?P<id>[^ ]+)\.`,
			vllmHead + `(?P<done>Aborted) request (?P<id>[^ ]+)\.`,
			vllmHead + `Request (?P<id>[^ ]+) (?P<done>aborted)\.`,
			vllmHead + `Request (?P<id>[^ ]+) (?P<done>failed) `,
			vllmHead + `vLLM API server (?P<restart>version)`,
		},
		TimeFormat: "01-02 15:04:05",
	},
	{
		Name:   "sglang",
		About:  "SGLang's request lines: Receive to Finish; waiting inside the engine counts as in flight",
		Needs:  "--log-requests; times are whole seconds",
		Source: "sgl-project/sglang issue 4045 (0.4.3) and pull request 15759 (2025-12)",
		Patterns: []string{
			`^\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] (?P<start>Receive): obj=.*?\brid='(?P<id>[^']+)'`,
			`^\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] (?P<done>Finish): obj=.*?\brid='(?P<id>[^']+)'`,
		},
	},
	{
		Name:   "sglang-json",
		About:  "SGLang's request log as JSON, with its queue time",
		Needs:  "--log-requests --log-requests-format json; local times without a zone",
		Source: "python/sglang/srt/utils/request_logger.py of 2026-08",
		JSON:   true, Time: "timestamp", ID: "rid", Event: "event", Queue: "out.meta_info.queue_time",
		Starts: []string{"request.received"}, Dones: []string{"request.finished"}, TimeFormat: RFC3339,
	},
	{
		Name:   "llama-server",
		About:  "llama-server's slots: launch_slot_ to release; the wait for a slot is not in the log",
		Needs:  "nothing from b11669 on; older ones log no time of their own: give journald's. Times are since the process began (--epoch), and a file has one server",
		Source: "b11669, run; ggml-org/llama.cpp issues 14829 and 17071, pull requests 22929 and 24566; anomalyco/opencode issue 38801",
		Patterns: []string{
			llamaHead + `slot +launch_slot_: id +\d+ \| task (?P<id>\d+) \| (?P<start>processing task)`,
			llamaHead + `slot +release: id +\d+ \| task (?P<id>\d+) \| (?P<done>stop processing)`,
			llamaHead + `srv +llama_server: (?P<restart>initializing)`,
		},
		TimeFormat: Elapsed, Separate: true,
	},
	{
		Name:   "llama-server-jsonl",
		About:  "the same with --log-jsonl",
		Needs:  "--log-jsonl",
		Source: "b11669, run",
		Patterns: []string{
			`slot +launch_slot_: id +\d+ \| task (?P<id>\d+) \| (?P<start>processing task)`,
			`slot +release: id +\d+ \| task (?P<id>\d+) \| (?P<done>stop processing)`,
			`srv +llama_server: (?P<restart>initializing)`,
		},
		TimeFormat: Elapsed, Wrapper: "llama-jsonl", Separate: true,
	},
	{
		Name:   "ollama",
		About:  "Ollama's access lines: a request with its duration; waiting and loading count as in flight",
		Needs:  "nothing; times are whole seconds, local",
		Source: "ollama/ollama issues 9192, 8348 and 13805",
		Patterns: []string{
			`\[GIN\] (?P<time>\d{4}/\d\d/\d\d - \d\d:\d\d:\d\d) \| +\d+ \| +(?P<duration>[0-9a-zµ.]+) \| +[^|]+\| POST +"/(?:api/(?:chat|generate|embed|embeddings)|v1/[a-z/]+)"`,
		},
		TimeFormat: "2006/01/02 - 15:04:05",
	},
	{
		Name:   "llama-swap",
		About:  "llama-swap's access lines: a request with its duration; loading a model counts as in flight",
		Needs:  "newer ones log no time: give docker's or journald's",
		Source: "mostlygeek/llama-swap issues 35 and 602, anomalyco/opencode issue 3754",
		Patterns: []string{
			`(?:\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] )?"POST [^"]*" \d{3} \d+ "[^"]*" (?P<duration>[0-9a-zµ.]+)$`,
		},
	},
	{
		Name:   "tgi",
		About:  "Text Generation Inference and Text Embeddings Inference: a request with its total and queue time",
		Needs:  "nothing",
		Source: "huggingface/text-embeddings-inference issue 305",
		Patterns: []string{
			`^(?P<time>\d{4}-\d\d-\d\dT[0-9:.]+Z) .*\btotal_time="(?P<duration>[^"]+)".*\bqueue_time="(?P<queue>[^"]+)"`,
		},
		TimeFormat: RFC3339,
	},
	{
		Name:   "litellm",
		About:  "LiteLLM's standard logging payload, one object a line: the call with both ends, its model group, key and tags",
		Needs:  "a logging callback that writes standard_logging_object",
		Source: "docs.litellm.ai/docs/proxy/logging_spec",
		JSON:   true, Time: "startTime", End: "endTime", ID: "id", Model: "model_group", Principal: "metadata.user_api_key_alias", Tag: "request_tags",
	},
	{
		Name:   "nginx",
		About:  "nginx's access log with the request's time: POST requests",
		Needs:  "a log_format with $time_local, \"$request\" and request_time=$request_time or rt=$request_time",
		Source: "blog.nginx.org/blog/using-nginx-logging-for-application-performance-monitoring, the format apm",
		Patterns: []string{
			`["\[](?P<time>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})["\]].*"POST .*\b(?:request_time|rt)="?(?P<duration>\d+\.\d+)`,
		},
		TimeFormat: "02/Jan/2006:15:04:05 -0700",
	},
	{
		Name:   "envoy",
		About:  "Envoy's default access log: POST requests with their duration",
		Needs:  "the default format string",
		Source: "envoyproxy.io/docs, access log usage, the example of the default format",
		Patterns: []string{
			`^\[(?P<time>[0-9T:.Z-]+)\] "POST [^"]*" \d+ \S+ \d+ \d+ (?P<duration>\d+) `,
		},
		TimeFormat: RFC3339, TimeIsStart: true, DurationUnit: time.Millisecond,
	},
}

// Heads of lines. A router of llama-server puts the port of the server before what
// that says, and each counts its tasks for itself.
const (
	vllmHead  = `(?:\(APIServer pid=(?P<process>\d+)\) )?INFO (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[?[^ ]+:\d+\] `
	llamaHead = `(?:\[(?P<process>\d+)\] )?(?:(?P<time>\d+\.\d\d\.\d{3}\.\d{3}) [A-Z] )?`
)

// Preset returns a copy of the one with a name, nil if there is none.
func Preset(name string) *Format {
	for _, f := range Presets {
		if f.Name == name {
			return &f
		}
	}
	return nil
}
