package monitoring

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Rule is a series that is worked out ahead, since several panels and alerts ask for it.
type Rule struct {
	Record, Expr string
}

// Severity is how soon somebody has to look.
type Severity string

// The severities.
const (
	Critical Severity = "critical" // now: requests are lost, or a promise is broken
	Warning  Severity = "warning"  // today
	Info     Severity = "info"     // when there is time
)

// Alert is a condition that somebody has to do something about.
type Alert struct {
	Name     string
	Expr     string
	For      string // how long it has to hold; "" is at once
	Severity Severity
	// Summary is one line, with the labels of the series in it.
	Summary string
	// Means says what is wrong, Do what to do about it: the page of the alerts has both.
	Means, Do string

	// Example are series for which it fires at the time At, with the labels Fires.
	Example []Series
	At      string
	Fires   map[string]string
}

// Series is one with its samples, a minute apart, as Prometheus's tests of rules have them.
type Series struct{ Name, Samples string }

// What was refused for want of room, and what failed at an engine. What its client left, and
// what no engine could ever hold, is neither.
const (
	refusedHere   = `outcome=~"rejected_(queue_full|tenant_queue_full|queue_wait|forecast|unavailable)"`
	failedOutcome = `outcome=~"failed|timeout|unreachable"`
)

// Rules are the series that are worked out ahead.
var Rules = []Rule{
	{"pool_class_limit:headgate_objectives_on_time:ratio_rate5m",
		`sum by (pool, class, limit) (rate(headgate_objectives_total{outcome="on_time"}[5m])) / sum by (pool, class, limit) (rate(headgate_objectives_total[5m]))`},
	{"pool_class:headgate_requests_refused:ratio_rate5m",
		`sum by (pool, class) (rate(headgate_requests_total{` + refusedHere + `}[5m])) / sum by (pool, class) (rate(headgate_requests_total[5m]))`},
	{"pool_class:headgate_requests_failed:ratio_rate5m",
		`sum by (pool, class) (rate(headgate_requests_total{` + failedOutcome + `}[5m])) / sum by (pool, class) (rate(headgate_requests_total[5m]))`},
	{"pool_class_event:headgate_recall_seconds:p95_rate30m",
		`histogram_quantile(0.95, sum by (pool, class, event, le) (rate(headgate_recall_seconds_bucket[30m])))`},
	{"pool:headgate_recall_waste:ratio_rate30m",
		`sum by (pool) (rate(headgate_recall_waste_tokens_total[30m])) / sum by (pool) (rate(headgate_kv_tokens_total{account="consumed"}[30m]))`},
}

// Alerts are in the order in which an operator reads them: what clients feel, engines,
// lending, the process, the fleet, batches.
var Alerts = []Alert{
	{
		Name: "HeadgateAbsent", Expr: `absent(headgate_build_info)`, For: "5m", Severity: Critical,
		Summary: "No Headgate is scraped",
		Means:   "Prometheus has no sample of any Headgate: none runs, none is found, or the scraper's key is refused.",
		Do:      "Look at the target's page in Prometheus first. `401` there means that `admin.keys` has no key of role `metrics` that is the scraper's ([identity.md](identity.md#the-admin-listener)). Else ask `/healthz` of the admin listener from the same network, and read the end of the process's log.",
		Example: []Series{{`headgate_config_refused{instance="a"}`, "0x20"}}, At: "6m", Fires: map[string]string{},
	},
	{
		Name: "HeadgateReplicaDown", Expr: `up == 0 and on (job, instance) last_over_time(headgate_build_info[7d])`, For: "2m", Severity: Warning,
		Summary: "{{ $labels.instance }}, which was a Headgate, does not answer",
		Means:   "The process is gone, hangs, or can't be reached on its admin listener. Where there are other replicas they serve its clients, with less of the engines until its lease has run out. The alert ends by itself when the address is no target any more, and after a week.",
		Do:      "Look at its log and why it ended; the place that runs it should have started it again. One that runs: is the admin listener reachable from Prometheus, with the key that it asks for ([identity.md](identity.md))?",
		Example: []Series{
			{`up{job="headgate",instance="b"}`, "1x10 0x60"},
			{`headgate_build_info{job="headgate",instance="b",version="1"}`, "1x10 _x60"},
			{`up{job="node",instance="b"}`, "0x70"},
		},
		At: "30m", Fires: map[string]string{"job": "headgate", "instance": "b"},
	},
	{
		Name: "HeadgatePoolDown", Expr: `max by (pool, instance) (headgate_engine_ready) == 0`, For: "1m", Severity: Critical,
		Summary: "No engine of pool {{ $labels.pool }} takes work from {{ $labels.instance }}",
		Means:   "Every engine of the pool is down, loading, or set aside. Requests wait for `queue.wait` and are then refused with 503 `unavailable`.",
		Do:      "`/debug/engines` of the admin listener says what each engine last answered, `/readyz` why the pool is not ready. If the engines answer by themselves, compare `engines[].url`, its key (`api_key_env`) and its certificate with what the log says. If only one replica sees them down, it is the network of that replica.",
		Example: []Series{{`headgate_engine_ready{pool="main",engine="gpu0",instance="a"}`, "0x20"}, {`headgate_engine_ready{pool="main",engine="gpu1",instance="a"}`, "0x20"}},
		At:      "5m", Fires: map[string]string{"pool": "main", "instance": "a"},
	},
	{
		Name: "HeadgateEngineDown", Expr: `headgate_engine_ready == 0`, For: "5m", Severity: Warning,
		Summary: "Engine {{ $labels.engine }} of pool {{ $labels.pool }} takes no work",
		Means:   "The engine does not answer, still loads, or fails what it is given and was set aside for a time. The pool's envelope is smaller by it.",
		Do:      "`/debug/engines` has its last answer. One that loads for longer than its model takes needs its own log. One that is set aside again and again fails requests: `headgate_requests_total{outcome=\"failed\"}`. Take it out of the configuration if it is to stay away, so that floors are checked against what is left.",
		Example: []Series{{`headgate_engine_ready{pool="main",engine="gpu1",instance="a"}`, "0x20"}},
		At:      "10m", Fires: map[string]string{"pool": "main", "engine": "gpu1", "instance": "a"},
	},
	{
		Name: "HeadgateLate", Expr: `pool_class_limit:headgate_objectives_on_time:ratio_rate5m < 0.9 and on (pool, class, limit) sum by (pool, class, limit) (rate(headgate_objectives_total[5m])) > 0.05`,
		For: "10m", Severity: Warning,
		Summary: "Class {{ $labels.class }} of pool {{ $labels.pool }} keeps its {{ $labels.limit }} for less than 9 of 10 answers",
		Means:   "Answers are later than the objective they were held to, for ten minutes, at more than three a minute.",
		Do:      "`ttft` late with a long `headgate_queue_wait_seconds`: the class waits for admission; raise its floor, or turn `reclaim: reclaim` on for who borrows from it. Late without a wait: the engine is slow; look for long prefills of others (`stall_share`), foreign load (`headgate_engine_foreign`), or an objective that the engine can't keep alone (`headgate probe`). `tpot` late: too many sequences run at once; lower the batch class's ceiling.",
		Example: []Series{
			{`headgate_objectives_total{pool="main",class="interactive",limit="ttft",by="class",outcome="on_time"}`, "0x40"}, // none is in time
			{`headgate_objectives_total{pool="main",class="interactive",limit="ttft",by="class",outcome="late"}`, "0+30x40"},
		},
		At: "30m", Fires: map[string]string{"pool": "main", "class": "interactive", "limit": "ttft"},
	},
	{
		Name: "HeadgateRefusing", Expr: `pool_class:headgate_requests_refused:ratio_rate5m > 0.1 and on (pool, class) sum by (pool, class) (rate(headgate_requests_total[5m])) > 0.05`,
		For: "10m", Severity: Warning,
		Summary: "More than a tenth of class {{ $labels.class }} of pool {{ $labels.pool }} is refused for want of room",
		Means:   "Queues are full or waits too long, for ten minutes. What could never fit and what clients gave up is not counted.",
		Do:      "`headgate_requests_total` by `outcome` tells which bound it is: `rejected_queue_full` and `rejected_tenant_queue_full` (`queue.depth`, `queue.per_tenant`), `rejected_queue_wait` and `rejected_forecast` (`queue.wait`), `rejected_unavailable` (no engine). A batch class that is refused at its peak is well: let it use the [Batch API](batch.md). For an interactive class raise the floor or add engines; `headgate advise` says what other settings would have done.",
		Example: []Series{
			{`headgate_requests_total{pool="main",class="batch",outcome="finished"}`, "0+30x40"},
			{`headgate_requests_total{pool="main",class="batch",outcome="rejected_queue_full"}`, "0+30x40"},
		},
		At: "30m", Fires: map[string]string{"pool": "main", "class": "batch"},
	},
	{
		Name: "HeadgateFailing", Expr: `pool_class:headgate_requests_failed:ratio_rate5m > 0.05 and on (pool, class) sum by (pool, class) (rate(headgate_requests_total[5m])) > 0.05`,
		For: "5m", Severity: Critical,
		Summary: "More than 1 of 20 requests of class {{ $labels.class }} of pool {{ $labels.pool }} fail at an engine",
		Means:   "Engines break answers off, are silent for `limits.idle_timeout`, or can't be reached, and no other engine could take over.",
		Do:      "The log at `debug` and the journal's `ended` lines have the engine and the cause of each. `timeout` with long prompts: `limits.idle_timeout` is below the longest prefill. All of one engine: take it out and read its log.",
		Example: []Series{
			{`headgate_requests_total{pool="main",class="interactive",outcome="finished"}`, "0+30x40"},
			{`headgate_requests_total{pool="main",class="interactive",outcome="failed"}`, "0+30x40"},
		},
		At: "20m", Fires: map[string]string{"pool": "main", "class": "interactive"},
	},
	{
		Name: "HeadgateStuck", Expr: `sum by (pool, class, instance) (headgate_class_queue) > 0 and on (pool, class, instance) sum by (pool, class, instance) (rate(headgate_admitted_total[10m])) == 0`,
		For: "10m", Severity: Critical,
		Summary: "Requests of class {{ $labels.class }} of pool {{ $labels.pool }} wait at {{ $labels.instance }} and none is admitted",
		Means:   "Something waits and nothing of the class was admitted for twenty minutes.",
		Do:      "`/debug/admission` says for each queue's head what it waits for: KV that a long answer holds, a floor that another class keeps, a switch (`lending`, `drain`), an engine that is not there, in a fleet a grant. `headgate_switch` tells of switches, `headgate_ghosts` of holds that the engine has not given back.",
		Example: []Series{
			{`headgate_class_queue{pool="main",class="batch",instance="a"}`, "3x40"},
			{`headgate_admitted_total{pool="main",class="batch",instance="a"}`, "7x40"},
		},
		At: "30m", Fires: map[string]string{"pool": "main", "class": "batch", "instance": "a"},
	},
	{
		Name: "HeadgateSwitchLeftOn", Expr: `headgate_switch == 1`, For: "1h", Severity: Warning,
		Summary: "Switch {{ $labels.switch }} of pool {{ $labels.pool }} has been on for an hour at {{ $labels.instance }}",
		Means:   "An operator has paused lending, drains the pool, or bypasses admission, and has not turned it off.",
		Do:      "`/api/switches` has who turned it on and why. Turn it off there ([operations.md](operations.md#switches)), or silence this alert for as long as it is meant.",
		Example: []Series{{`headgate_switch{pool="main",switch="bypass",instance="a"}`, "1x100"}},
		At:      "70m", Fires: map[string]string{"pool": "main", "switch": "bypass", "instance": "a"},
	},
	{
		Name: "HeadgateRecallSlow", Expr: `pool_class_event:headgate_recall_seconds:p95_rate30m{event="recall_settled"} > 5`, For: "15m", Severity: Warning,
		Summary: "Recalls of class {{ $labels.class }} of pool {{ $labels.pool }} settle in more than 5 s",
		Means:   "What was lent comes back too late for who it is called back for.",
		Do:      "`/api/recalls` has each with its reclaims. No reclaims in them: the borrowing class has `reclaim: attrition`, which waits; set `reclaim`. Reclaims that are sent and confirmed late: the engine does not act on aborts (`headgate_ghosts`, [engines.md](engines.md)). Reclaims that are sent late: `reclaims_per_second`, or the class's `grace`.",
		Example: []Series{
			{`headgate_recall_seconds_bucket{pool="main",class="interactive",event="recall_settled",le="5"}`, "0x80"},
			{`headgate_recall_seconds_bucket{pool="main",class="interactive",event="recall_settled",le="10"}`, "0+1x80"},
			{`headgate_recall_seconds_bucket{pool="main",class="interactive",event="recall_settled",le="+Inf"}`, "0+1x80"},
		},
		At: "60m", Fires: map[string]string{"pool": "main", "class": "interactive", "event": "recall_settled"},
	},
	{
		Name: "HeadgateReclaimWaste", Expr: `pool:headgate_recall_waste:ratio_rate30m > 0.1`, For: "30m", Severity: Warning,
		Summary: "More than a tenth of what the engines of pool {{ $labels.pool }} compute is computed again because of recalls",
		Means:   "Reclaims cost more than they should: long prompts are ended and prefilled again.",
		Do:      "Give the batch class a larger `grace` (work that is nearly done is spared), `pin_after: 1`, or the interactive class some `unlent`, so that fewer recalls are needed. Where the engine caches no prefixes `reopen: settled` lends less often than `idle`. Turn prefix caching of the engine on: then little of a reclaimed prompt is computed again.",
		Example: []Series{
			{`headgate_recall_waste_tokens_total{pool="main",class="interactive"}`, "0+1000x100"},
			{`headgate_kv_tokens_total{pool="main",class="batch",account="consumed"}`, "0+4000x100"},
		},
		At: "80m", Fires: map[string]string{"pool": "main"},
	},
	{
		Name: "HeadgateGhosts", Expr: `headgate_ghosts > 3`, For: "10m", Severity: Warning,
		Summary: "{{ $labels.instance }} waits for pool {{ $labels.pool }} to confirm releases",
		Means:   "More than three holds are over whose capacity the engine has not shown to be free; they stay reserved meanwhile.",
		Do:      "The engine does not end what it is told to abort, or its metrics can't be read. `/debug/engines` has its last sample, [engines.md](engines.md) how each kind confirms.",
		Example: []Series{{`headgate_ghosts{pool="main",instance="a"}`, "5x30"}},
		At:      "20m", Fires: map[string]string{"pool": "main", "instance": "a"},
	},
	{
		Name: "HeadgateForeignLoad", Expr: `headgate_engine_foreign{resource="slots"} > 0`, For: "15m", Severity: Warning,
		Summary: "Engine {{ $labels.engine }} of pool {{ $labels.pool }} runs what Headgate did not send",
		Means:   "Somebody reaches the engine past the gateway. Admission leaves room for it, and can't protect anybody from it. Only a gateway by itself sees it: of engines that a fleet shares it is always 0, since a replica can't tell it from what the others send.",
		Do:      "Close the engine's port to everybody but the gateways (the chart's NetworkPolicy of the engines, or a firewall). Another gateway that was given the same engine is foreign too.",
		Example: []Series{{`headgate_engine_foreign{pool="main",engine="gpu0",resource="slots",instance="a"}`, "2x40"}},
		At:      "20m", Fires: map[string]string{"pool": "main", "engine": "gpu0", "resource": "slots", "instance": "a"},
	},
	{
		Name: "HeadgateReplanFailed", Expr: `sum by (pool, profile) (increase(headgate_replan_switches_total{outcome="failed"}[1h])) > 0`, Severity: Warning,
		Summary: "A switch of pool {{ $labels.pool }} to profile {{ $labels.profile }} has failed",
		Means:   "The engine did not come up in the new profile and was taken back.",
		Do:      "The log has what the hook said; `headgate plan` what is to come next ([replan.md](replan.md)).",
		Example: []Series{{`headgate_replan_switches_total{pool="main",profile="deep",outcome="failed"}`, "0 0 0 1x40"}},
		At:      "20m", Fires: map[string]string{"pool": "main", "profile": "deep"},
	},
	{
		Name: "HeadgateDecisionsSlow", Expr: `histogram_quantile(0.99, sum by (pool, instance, le) (rate(headgate_decision_seconds_bucket[5m]))) > 0.001`, For: "10m", Severity: Warning,
		Summary: "Decisions about pool {{ $labels.pool }} take more than a millisecond at {{ $labels.instance }}",
		Means:   "A decision takes microseconds. The process has too little CPU, or is throttled.",
		Do:      "Compare the container's CPU limit with what it uses (`container_cpu_cfs_throttled_periods_total`); a limit is worse than none here. `/debug/pprof/profile` says where the time goes.",
		Example: []Series{
			{`headgate_decision_seconds_bucket{pool="main",instance="a",le="0.001"}`, "0x40"},
			{`headgate_decision_seconds_bucket{pool="main",instance="a",le="0.002"}`, "0+60x40"},
			{`headgate_decision_seconds_bucket{pool="main",instance="a",le="+Inf"}`, "0+60x40"},
		},
		At: "30m", Fires: map[string]string{"pool": "main", "instance": "a"},
	},
	{
		Name: "HeadgateConfigRefused", Expr: `headgate_config_refused == 1`, For: "2m", Severity: Warning,
		Summary: "{{ $labels.instance }} does not run the configuration file that it has",
		Means:   "The file has a problem, and what was in force goes on. After a restart the process would not start.",
		Do:      "The log names every problem with its line; so does `headgate validate -c FILE` with the same version.",
		Example: []Series{{`headgate_config_refused{instance="a"}`, "1x20"}},
		At:      "5m", Fires: map[string]string{"instance": "a"},
	},
	{
		Name: "HeadgateDescriptors", Expr: `process_open_fds / process_max_fds > 0.8 and on (instance, job) headgate_build_info`, For: "5m", Severity: Warning,
		Summary: "{{ $labels.instance }} has used four fifths of its file descriptors",
		Means:   "Each connection and each running request takes one. When they are used up clients get 500.",
		Do:      "Raise the limit (`LimitNOFILE=` of the unit, `ulimit -n`), or lower `limits.max_connections` below a half of it.",
		Example: []Series{
			{`process_open_fds{instance="a",job="headgate"}`, "900x20"}, {`process_max_fds{instance="a",job="headgate"}`, "1024x20"},
			{`headgate_build_info{instance="a",job="headgate",version="v1",revision="",go="go1.26"}`, "1x20"},
		},
		At: "10m", Fires: map[string]string{"instance": "a", "job": "headgate"},
	},
	{
		Name: "HeadgateJournalLoses", Expr: `sum by (instance) (increase(headgate_journal_dropped_total[10m])) > 0`, Severity: Warning,
		Summary: "{{ $labels.instance }} loses events of its journal",
		Means:   "The disk is full or too slow. Requests go on; `occupancy`, `prove` and `advise` lack what was lost.",
		Do:      "Make room on the disk of `journal.file` and rotate it (it is not rotated by Headgate), or raise `journal.buffer` for a disk that is slow now and then.",
		Example: []Series{{`headgate_journal_dropped_total{instance="a"}`, "0 0 0 50x20"}},
		At:      "8m", Fires: map[string]string{"instance": "a"},
	},
	{
		Name: "HeadgateAuditFailing", Expr: `headgate_audit_failing == 1 or on (instance) sum by (instance) (increase(headgate_audit_records_total{outcome="lost"}[15m])) > 0`, For: "1m", Severity: Critical,
		Summary: "{{ $labels.instance }} can't write its audit records",
		Means:   "The sink does not take records; they wait in memory up to `audit.buffer` and are then lost, which a gap record will say.",
		Do:      "Mend the sink: room on the disk, the PostgreSQL server, or the collector ([audit.md](audit.md)). What waits is written when it is back; do not restart the process before.",
		Example: []Series{{`headgate_audit_failing{instance="a"}`, "1x20"}},
		At:      "5m", Fires: map[string]string{"instance": "a"},
	},
	{
		Name: "HeadgateCertificateExpires", Expr: `headgate_tls_certificate_expiry_timestamp_seconds - time() < 7 * 86400 and headgate_tls_certificate_expiry_timestamp_seconds - time() < (headgate_tls_certificate_expiry_timestamp_seconds - headgate_tls_certificate_start_timestamp_seconds) / 3`, For: "10m", Severity: Warning,
		Summary: "The certificate of {{ $labels.instance }} for {{ $labels.listener }} expires soon",
		Means:   "Less than a week is left of it, and less than a third of what it lives. The files have not been renewed, or the renewed ones were refused.",
		Do:      "Renew them. If they are renewed already, `headgate_tls_reloads_total{outcome=\"refused\"}` has moved and the log says why ([tls.md](tls.md#new-certificates)).",
		Example: []Series{
			{`headgate_tls_certificate_expiry_timestamp_seconds{instance="a",listener="clients"}`, "86400x100"},
			{`headgate_tls_certificate_start_timestamp_seconds{instance="a",listener="clients"}`, "-700000x100"},
			// A day's certificate of which most is left is none to renew.
			{`headgate_tls_certificate_expiry_timestamp_seconds{instance="a",listener="admin"}`, "86400x100"},
			{`headgate_tls_certificate_start_timestamp_seconds{instance="a",listener="admin"}`, "0x100"},
		},
		At: "70m", Fires: map[string]string{"instance": "a", "listener": "clients"},
	},
	{
		Name: "HeadgateCertificateRefused", Expr: `sum by (instance, listener) (increase(headgate_tls_reloads_total{outcome="refused"}[1h])) > 0`, Severity: Warning,
		Summary: "{{ $labels.instance }} refuses the new certificate for {{ $labels.listener }}",
		Means:   "The files have changed and don't fit each other, and the old pair stays in use until it expires.",
		Do:      "The log says what does not fit; most often one of the two files was replaced and the other was not.",
		Example: []Series{{`headgate_tls_reloads_total{instance="a",listener="admin",outcome="refused"}`, "0 0 0 1x40"}},
		At:      "20m", Fires: map[string]string{"instance": "a", "listener": "admin"},
	},
	{
		Name: "HeadgateIssuerUnreachable", Expr: `sum by (instance, issuer) (increase(headgate_issuer_fetches_total{outcome="failed"}[1h])) > 2`, Severity: Warning,
		Summary: "{{ $labels.instance }} can't fetch the keys of issuer {{ $labels.issuer }}",
		Means:   "Keys that are known stay in use; callers with a token that is signed by a new one get 503.",
		Do:      "Reach `jwks_url` from the process's network; check `issuers[].ca`. The log has the error.",
		Example: []Series{{`headgate_issuer_fetches_total{instance="a",issuer="corp",outcome="failed"}`, "0+1x60"}},
		At:      "30m", Fires: map[string]string{"instance": "a", "issuer": "corp"},
	},
	{
		Name: "HeadgateBalancesNotSaved", Expr: `sum by (instance) (increase(headgate_limit_save_failures_total[15m])) > 0`, Severity: Critical,
		Summary: "{{ $labels.instance }} can't write its tenants' balances",
		Means:   "What tenants have used since is lost with the process: they would be billed too little.",
		Do:      "Make room on the disk of `limits.balance_file` and let the process write its folder.",
		Example: []Series{{`headgate_limit_save_failures_total{instance="a"}`, "0 0 0 1x20"}},
		At:      "8m", Fires: map[string]string{"instance": "a"},
	},
	{
		Name: "HeadgateExportFailing", Expr: `sum by (instance, signal) (increase(headgate_otlp_items_total{outcome=~"dropped|failed|rejected"}[15m])) > 0`, For: "15m", Severity: Info,
		Summary: "The collector does not get all {{ $labels.signal }} of {{ $labels.instance }}",
		Means:   "The collector of `otlp.endpoint` is away, too slow, or refuses what it gets. Nothing else is affected.",
		Do:      "`failed`: reach the endpoint. `dropped` while it is well: raise `otlp.queue`, or lower `otlp.sample`. `rejected`: the collector's log says why.",
		Example: []Series{{`headgate_otlp_items_total{instance="a",signal="traces",outcome="failed"}`, "0+10x60"}},
		At:      "40m", Fires: map[string]string{"instance": "a", "signal": "traces"},
	},
	{
		Name: "HeadgateForgedHops", Expr: `sum by (instance) (rate(headgate_forwarded_received_total{proof="invalid"}[5m])) > 0`, For: "10m", Severity: Warning,
		Summary: "{{ $labels.instance }} gets requests that pretend to come from another replica",
		Means:   "A client sends the headers of a hop, or the replicas' secrets or clocks differ. Such requests are served as their client's own.",
		Do:      "Compare `control.forward.secret_env` and the clocks of the replicas. If they are well, somebody tries: the audit records have who.",
		Example: []Series{{`headgate_forwarded_received_total{instance="a",proof="invalid"}`, "0+5x40"}},
		At:      "20m", Fires: map[string]string{"instance": "a"},
	},
	{
		Name: "HeadgateLeaseLost", Expr: `headgate_fleet_lease_margin_seconds <= 0 and on (instance, job) headgate_class_floor`, For: "30s", Severity: Critical,
		Summary: "Replica {{ $labels.instance }} has no lease",
		Means:   "It admits nothing but its survival floor, which is 0 unless it is configured.",
		Do:      "Reach etcd's `endpoints` from the replica. All replicas: etcd has no quorum; mend it first, nothing else helps ([fleet.md](fleet.md#what-happens-when)). One: its network, its login, or another process with the same `control.replica`.",
		Example: []Series{
			{`headgate_fleet_lease_margin_seconds{instance="a",job="headgate"}`, "-1x20"},
			{`headgate_class_floor{instance="a",job="headgate",pool="main",class="interactive",resource="slots"}`, "4x20"},
		},
		At: "5m", Fires: map[string]string{"instance": "a", "job": "headgate"},
	},
	{
		Name: "HeadgateNoLeader", Expr: `max by (namespace) (headgate_fleet_leader_epoch) == 0`, For: "1m", Severity: Critical,
		Summary: "No replica and no controller leads the fleet",
		Means:   "Grants stay as they are: what one replica does not use can't go to another. Of all fleets that one namespace has, this sees only that none has a leader.",
		Do:      "`headgate events` and the logs of who campaigns say why. Nobody campaigns if every file has `campaign: false` and no `headgate controller` runs.",
		Example: []Series{{`headgate_fleet_leader_epoch{instance="a"}`, "0x20"}, {`headgate_fleet_leader_epoch{instance="b"}`, "0x20"}},
		At:      "5m", Fires: map[string]string{},
	},
	{
		Name: "HeadgateStoreFailing", Expr: `sum by (instance) (rate(headgate_fleet_store_errors_total[5m])) > 0.1`, For: "5m", Severity: Warning,
		Summary: "etcd does not do what {{ $labels.instance }} asks of it",
		Means:   "Requests to the store time out or are refused. Leases may be lost next.",
		Do:      "By `operation`: all of them is the network or a member that hangs (raise `control.timeout` only above several round trips with their writes); `campaign` and `write` alone are a login without the right to write. etcd's `etcd_disk_wal_fsync_duration_seconds` says whether its disk is slow.",
		Example: []Series{{`headgate_fleet_store_errors_total{instance="a",operation="report"}`, "0+12x40"}},
		At:      "20m", Fires: map[string]string{"instance": "a"},
	},
	{
		Name: "HeadgateHandoffSlow", Expr: `histogram_quantile(0.95, sum by (pool, le) (rate(headgate_handoff_seconds_bucket{stage="committed"}[15m]))) > 10`, For: "15m", Severity: Warning,
		Summary: "Capacity of pool {{ $labels.pool }} takes more than 10 s from one replica to another",
		Means:   "What a replica lent ends slowly, so that what another wants comes late.",
		Do:      "Compare the stages: long between `applied` and `drained` means that loans end by themselves; set `reclaim: reclaim`. Long before `applied` means that a replica is slow to acknowledge: its CPU, or its way to etcd.",
		Example: []Series{
			{`headgate_handoff_seconds_bucket{pool="main",stage="committed",instance="a",le="10"}`, "0x60"},
			{`headgate_handoff_seconds_bucket{pool="main",stage="committed",instance="a",le="30"}`, "0+5x60"},
			{`headgate_handoff_seconds_bucket{pool="main",stage="committed",instance="a",le="+Inf"}`, "0+5x60"},
		},
		At: "40m", Fires: map[string]string{"pool": "main"},
	},
	{
		Name: "HeadgateBatchOld", Expr: `time() - min by (class) (headgate_batch_oldest_timestamp_seconds) > 20 * 3600`, For: "15m", Severity: Warning,
		Summary: "A batch of class {{ $labels.class }} is older than 20 hours and has items to run",
		Means:   "With the usual `completion_window` of 24 h it will expire, and items that are not done are written to the error file.",
		Do:      "`headgate batch` lists what there is, `/api/batches` by tenant. Give the class a floor (or `guarantee: window`), so that it runs while others are busy, or add engines.",
		Example: []Series{
			{`headgate_batch_oldest_timestamp_seconds{instance="a",class="batch"}`, "-72000x60"},
			{`headgate_batch_oldest_timestamp_seconds{instance="b",class="batch"}`, "0x60"},
		},
		At: "40m", Fires: map[string]string{"class": "batch"},
	},
	{
		Name: "HeadgateBatchFailing", Expr: `sum by (class) (rate(headgate_batch_items_done_total{result="failed"}[15m])) / sum by (class) (rate(headgate_batch_items_done_total[15m])) > 0.1`, For: "15m", Severity: Warning,
		Summary: "More than a tenth of the batch items of class {{ $labels.class }} fail",
		Means:   "Items are given up: the engine refuses them, or they have failed `batch.attempts` times.",
		Do:      "The error files of the batches have the reason of each item. The same reason in all: the client's requests. Failures of engines: HeadgateFailing.",
		Example: []Series{
			{`headgate_batch_items_done_total{instance="a",class="batch",capacity="loan",result="completed"}`, "0+10x60"},
			{`headgate_batch_items_done_total{instance="a",class="batch",capacity="none",result="failed"}`, "0+10x60"},
		},
		At: "45m", Fires: map[string]string{"class": "batch"},
	},
	{
		Name: "HeadgateBatchFenced", Expr: `sum by (instance) (increase(headgate_batch_items_fenced_total[15m])) > 0`, Severity: Info,
		Summary: "{{ $labels.instance }} came too late with results of batch items",
		Means:   "Another worker had taken the items over, since this one did not renew its lease in time. Nothing is written twice; the work was done twice.",
		Do:      "The process stood still (CPU, a suspended machine), or the database answers slowly: raise `batch.lease`.",
		Example: []Series{{`headgate_batch_items_fenced_total{instance="a"}`, "0 0 0 2x20"}},
		At:      "8m", Fires: map[string]string{"instance": "a"},
	},
}

// Page is the page of the alerts, from whose headings come the anchors.
const Page = "docs/alerts.md"

// Runbook is where the page says what to do about an alert.
func (a *Alert) Runbook() string { return Page + "#" + strings.ToLower(a.Name) }

// annotations are an alert's, of a series with these labels.
func (a *Alert) annotations(labels map[string]string) map[string]string {
	summary := a.Summary
	for name, value := range labels {
		summary = strings.ReplaceAll(summary, "{{ $labels."+name+" }}", value)
	}
	return map[string]string{"summary": summary, "description": plain(a.Means), "runbook": a.Runbook()}
}

// plain is a text of the page without its marks.
func plain(text string) string { return strings.ReplaceAll(text, "`", "") }

// RulesFile is what Prometheus reads as a file of rules, and a PrometheusRule has as its
// spec.
func RulesFile() string {
	var b strings.Builder
	b.WriteString(generated)
	b.WriteString("groups:\n- name: headgate.rules\n  rules:\n")
	for _, r := range Rules {
		fmt.Fprintf(&b, "  - record: %s\n    expr: %s\n", r.Record, quoted(r.Expr))
	}
	b.WriteString("- name: headgate.alerts\n  rules:\n")
	for i := range Alerts {
		a := &Alerts[i]
		fmt.Fprintf(&b, "  - alert: %s\n    expr: %s\n", a.Name, quoted(a.Expr))
		if a.For != "" {
			fmt.Fprintf(&b, "    for: %s\n", a.For)
		}
		fmt.Fprintf(&b, "    labels:\n      severity: %s\n    annotations:\n", a.Severity)
		mapping(&b, "      ", a.annotations(nil))
	}
	return b.String()
}

// TestsFile is what promtool test rules reads: each alert with its example.
func TestsFile() string {
	var b strings.Builder
	b.WriteString(generated)
	b.WriteString("rule_files: [headgate.yaml]\nevaluation_interval: 1m\ntests:\n")
	for i := range Alerts {
		a := &Alerts[i]
		example(&b, a.Name, a.Example)
		fmt.Fprintf(&b, "  alert_rule_test:\n  - eval_time: %s\n    alertname: %s\n    exp_alerts:\n    - exp_labels:\n", a.At, a.Name)
		labels := maps.Clone(a.Fires)
		labels["severity"] = string(a.Severity)
		mapping(&b, "        ", labels)
		b.WriteString("      exp_annotations:\n")
		mapping(&b, "        ", a.annotations(a.Fires))
	}
	example(&b, "nothing fires for a fleet that is well", Well)
	b.WriteString("  alert_rule_test:\n")
	for _, at := range []string{"30m", "100m"} {
		for i := range Alerts {
			fmt.Fprintf(&b, "  - eval_time: %s\n    alertname: %s\n", at, Alerts[i].Name)
		}
	}
	return b.String()
}

func example(b *strings.Builder, name string, series []Series) {
	fmt.Fprintf(b, "- name: %s\n  interval: 1m\n  input_series:\n", name)
	for _, s := range series {
		fmt.Fprintf(b, "  - series: %s\n    values: %s\n", quoted(s.Name), quoted(s.Samples))
	}
}

// Well is a fleet of two in front of one engine, with work to do and nothing wrong.
var Well = []Series{
	{`headgate_build_info{instance="a",job="headgate",version="v1",revision="",go="go1.26"}`, "1x120"},
	{`process_open_fds{instance="a",job="headgate"}`, "100x120"},
	{`process_max_fds{instance="a",job="headgate"}`, "1024x120"},
	{`headgate_config_refused{instance="a"}`, "0x120"},
	{`headgate_engine_ready{pool="main",engine="gpu0",instance="a"}`, "1x120"},
	{`headgate_engine_foreign{pool="main",engine="gpu0",resource="slots",instance="a"}`, "0x120"},
	{`headgate_objectives_total{pool="main",class="interactive",limit="ttft",by="class",outcome="on_time"}`, "0+99x120"},
	{`headgate_objectives_total{pool="main",class="interactive",limit="ttft",by="class",outcome="late"}`, "0+1x120"},
	{`headgate_requests_total{pool="main",class="interactive",outcome="finished"}`, "0+100x120"},
	{`headgate_requests_total{pool="main",class="interactive",outcome="client_gone"}`, "0+50x120"},
	{`headgate_requests_total{pool="main",class="interactive",outcome="rejected_context"}`, "0+50x120"},
	{`headgate_class_queue{pool="main",class="batch",instance="a"}`, "3x120"},
	{`headgate_admitted_total{pool="main",class="batch",instance="a"}`, "0+1x120"},
	{`headgate_class_queue{pool="main",class="interactive",instance="a"}`, "0x120"},
	{`headgate_admitted_total{pool="main",class="interactive",instance="a"}`, "5x120"},
	{`headgate_switch{pool="main",switch="drain",instance="a"}`, "0x120"},
	{`headgate_ghosts{pool="main",instance="a"}`, "1x120"},
	{`headgate_recall_seconds_bucket{pool="main",class="interactive",event="recall_settled",le="0.25"}`, "0+1x120"},
	{`headgate_recall_seconds_bucket{pool="main",class="interactive",event="recall_settled",le="+Inf"}`, "0+1x120"},
	{`headgate_recall_waste_tokens_total{pool="main",class="interactive"}`, "0+100x120"},
	{`headgate_kv_tokens_total{pool="main",class="batch",account="consumed"}`, "0+9000x120"},
	{`headgate_decision_seconds_bucket{pool="main",instance="a",le="0.00001"}`, "0+60x120"},
	{`headgate_decision_seconds_bucket{pool="main",instance="a",le="+Inf"}`, "0+60x120"},
	{`headgate_journal_dropped_total{instance="a"}`, "7x120"},
	{`headgate_audit_failing{instance="a"}`, "0x120"},
	{`headgate_audit_records_total{instance="a",outcome="lost"}`, "3x120"},
	{`headgate_tls_certificate_expiry_timestamp_seconds{instance="a",listener="clients"}`, "2000000x120"},
	{`headgate_tls_certificate_start_timestamp_seconds{instance="a",listener="clients"}`, "0x120"},
	{`headgate_tls_reloads_total{instance="a",listener="clients",outcome="taken"}`, "0+1x120"},
	{`headgate_issuer_fetches_total{instance="a",issuer="corp",outcome="fetched"}`, "0+1x120"},
	{`headgate_limit_save_failures_total{instance="a"}`, "0x120"},
	{`headgate_otlp_items_total{instance="a",signal="traces",outcome="sent"}`, "0+10x120"},
	{`headgate_forwarded_received_total{instance="a",proof="valid"}`, "0+5x120"},
	{`headgate_fleet_lease_margin_seconds{instance="a",job="headgate"}`, "5x120"},
	{`headgate_fleet_lease_margin_seconds{instance="controller",job="headgate"}`, "0x120"}, // it has none
	{`headgate_class_floor{instance="a",job="headgate",pool="main",class="interactive",resource="slots"}`, "4x120"},
	{`headgate_fleet_leader_epoch{instance="a"}`, "0x120"},
	{`headgate_fleet_leader_epoch{instance="b"}`, "7x120"},
	{`headgate_fleet_store_errors_total{instance="a",operation="report"}`, "3x120"},
	{`headgate_handoff_seconds_bucket{pool="main",stage="committed",instance="b",le="0.1"}`, "0+5x120"},
	{`headgate_handoff_seconds_bucket{pool="main",stage="committed",instance="b",le="+Inf"}`, "0+5x120"},
	{`headgate_batch_oldest_timestamp_seconds{instance="a",class="batch"}`, "0x120"},
	{`headgate_batch_items_done_total{instance="a",class="batch",capacity="loan",result="completed"}`, "0+10x120"},
	{`headgate_batch_items_fenced_total{instance="a"}`, "0x120"},
	{`headgate_replan_switches_total{pool="main",profile="deep",outcome="done"}`, "0+1x120"},
}

// AlertsPage is the part of the page that is made of the alerts.
func AlertsPage() string {
	var b strings.Builder
	b.WriteString("\n| alert | severity | when |\n|---|---|---|\n")
	for i := range Alerts {
		a := &Alerts[i]
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s |\n", a.Name, strings.ToLower(a.Name), a.Severity, label.Replace(a.Summary))
	}
	for i := range Alerts {
		a := &Alerts[i]
		held := ""
		if a.For != "" {
			held = " for " + a.For
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n%s\n\n```promql\n%s\n```\n\n%s%s.\n", a.Name, a.Means, a.Do, a.Expr, strings.ToUpper(string(a.Severity[:1]))+string(a.Severity[1:]), held)
	}
	b.WriteString("\n")
	return b.String()
}

// label shows the labels in a summary as the page writes what stands for something.
var label = strings.NewReplacer("{{ $labels.", "`", " }}", "`")

const generated = "# Written by go test ./deploy/monitoring -rewrite; what it says is in rules.go there.\n"

func mapping(b *strings.Builder, indent string, m map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(b, "%s%s: %s\n", indent, key, quoted(m[key]))
	}
}

// quoted is a text in YAML's single quotes.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
