package monitoring

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// A row of the dashboard is a heading with panels below it.
type row struct {
	title  string
	panels []panel
}

type panel struct {
	title, help string
	unit        string // Grafana's name of it
	kind        string // "" is a time series, else stat
	width       int    // of 24
	stack       bool
	queries     []query
}

type query struct{ expr, legend string }

// where are the series that the variables of the dashboard choose.
const (
	where      = `pool=~"$pool"`
	whereClass = `pool=~"$pool",class=~"$class"`
)

// quantiles are those of a histogram, by labels.
func quantiles(metric, selector, by, legend string, of ...string) []query {
	var all []query
	for _, q := range of {
		all = append(all, query{
			`histogram_quantile(` + q + `, sum by (` + by + `, le) (rate(` + metric + `_bucket{` + selector + `}[$__rate_interval])))`,
			legend + " p" + strconv.Itoa(percent(q)),
		})
	}
	return all
}

func percent(quantile string) int {
	q, err := strconv.ParseFloat(quantile, 64)
	if err != nil { // they are written in this file
		panic(err)
	}
	return int(q*100 + 0.5)
}

var rows = []row{
	{"What clients feel", []panel{
		{title: "On time", help: "The share of answers that kept the limit they were held to.", unit: "percentunit", kind: "stat", width: 6,
			queries: []query{{`sum by (class, limit) (rate(headgate_objectives_total{` + whereClass + `,outcome="on_time"}[$__rate_interval])) / sum by (class, limit) (rate(headgate_objectives_total{` + whereClass + `}[$__rate_interval]))`, "{{class}} {{limit}}"}}},
		{title: "Time to first token", unit: "s", width: 9, help: "From a request's arrival to the engine's first token.",
			queries: quantiles("headgate_time_to_first_token_seconds", whereClass, "class", "{{class}}", "0.5", "0.95", "0.99")},
		{title: "Wait for admission", unit: "s", width: 9, help: "The part of it that is admission's.",
			queries: quantiles("headgate_queue_wait_seconds", whereClass, "class", "{{class}}", "0.5", "0.95", "0.99")},
		{title: "Requests by how they ended", unit: "reqps", width: 12, stack: true,
			queries: []query{{`sum by (class, outcome) (rate(headgate_requests_total{` + whereClass + `}[$__rate_interval]))`, "{{class}} {{outcome}}"}}},
		{title: "Answers by status", unit: "reqps", width: 12, stack: true, help: "499 is a client that left before.",
			queries: []query{{`sum by (route, status) (rate(headgate_http_responses_total[$__rate_interval]))`, "{{route}} {{status}}"}}},
	}},
	{"Capacity: who has it, who keeps it, who borrows", []panel{
		{title: "Slots in use by class", help: "Reserved sequences, stacked, and what the engines hold together.", width: 12, stack: true,
			queries: []query{
				{`sum by (pool, class) (headgate_class_used{` + whereClass + `,resource="slots"})`, "{{pool}} {{class}}"},
				{`max by (pool) (headgate_envelope{` + where + `,resource="slots"})`, "{{pool}} envelope"},
			}},
		{title: "KV tokens in use by class", help: "KV is one pool of tokens that all slots share: slots bound how many run, KV what fits.", unit: "short", width: 12, stack: true,
			queries: []query{
				{`sum by (pool, class) (headgate_class_used{` + whereClass + `,resource="kv_tokens"})`, "{{pool}} {{class}}"},
				{`max by (pool) (headgate_envelope{` + where + `,resource="kv_tokens"})`, "{{pool}} envelope"},
			}},
		{title: "Floors and what is kept of them", help: "What a class keeps out of the others' reach: its floor while lending is closed, less while it lends.", width: 8,
			queries: []query{
				{`sum by (pool, class) (headgate_class_floor{` + whereClass + `,resource="slots"})`, "{{pool}} {{class}} floor"},
				{`sum by (pool, class) (headgate_class_hold{` + whereClass + `,resource="slots"})`, "{{pool}} {{class}} kept"},
			}},
		{title: "Loans", help: "Holds that are loans now, and whether a class lends (1).", width: 8,
			queries: []query{
				{`sum by (pool, class) (headgate_class_loans{` + whereClass + `})`, "{{pool}} {{class}} loans"},
				{`min by (pool, class) (headgate_class_lending_open{` + whereClass + `})`, "{{pool}} {{class}} lends"},
			}},
		{title: "Requests that wait", width: 8,
			queries: []query{{`sum by (pool, class) (headgate_class_queue{` + whereClass + `})`, "{{pool}} {{class}}"}}},
		{title: "Admissions and loans", unit: "reqps", width: 12,
			queries: []query{
				{`sum by (pool, class) (rate(headgate_admitted_total{` + whereClass + `}[$__rate_interval]))`, "{{pool}} {{class}} admitted"},
				{`sum by (pool, class) (rate(headgate_loans_total{` + whereClass + `}[$__rate_interval]))`, "{{pool}} {{class}} of them loans"},
			}},
		{title: "KV tokens by account", unit: "short", width: 12, help: "Reserved at admission; consumed, refunded and overrun when they ended.",
			queries: []query{{`sum by (account) (rate(headgate_kv_tokens_total{` + whereClass + `}[$__rate_interval]))`, "{{account}}"}}},
	}},
	{"Recalls: the three events", []panel{
		{title: "Recalls and reclaims", unit: "ops", width: 8,
			queries: []query{
				{`sum by (pool, class) (rate(headgate_recalls_total{` + whereClass + `}[$__rate_interval]))`, "{{pool}} {{class}} recalls"},
				{`sum by (pool, class) (rate(headgate_reclaims_total{` + whereClass + `}[$__rate_interval]))`, "{{pool}} {{class}} ended by force"},
			}},
		{title: "Granted, settled, scheduled (p95)", unit: "s", width: 8, help: "From the opening of a recall: admission may let it in, what was ended for it is out, the engine runs it.",
			queries: quantiles("headgate_recall_seconds", whereClass+`,event=~"recall_granted|recall_settled|scheduled"`, "class, event", "{{class}} {{event}}", "0.95")},
		{title: "What recalls cost", unit: "percentunit", width: 8, help: "Tokens that are computed again, of all that are.",
			queries: []query{{`pool:headgate_recall_waste:ratio_rate30m{` + where + `}`, "{{pool}}"}}},
	}},
	{"Engines", []panel{
		{title: "Engines that take work", width: 8, queries: []query{{`headgate_engine_ready{` + where + `}`, "{{pool}} {{engine}} at {{instance}}"}}},
		{title: "Load that did not come from here", width: 8, help: "Slots in use of the engine's that Headgate did not send.",
			queries: []query{{`max by (pool, engine) (headgate_engine_foreign{` + where + `,resource="slots"})`, "{{pool}} {{engine}}"}}},
		{title: "Releases that are not confirmed", width: 8, queries: []query{{`sum by (pool) (headgate_ghosts{` + where + `})`, "{{pool}}"}}},
		{title: "Pieces of long prompts", unit: "ops", width: 12,
			queries: []query{{`sum by (pool, class, outcome) (rate(headgate_pieces_total{` + whereClass + `}[$__rate_interval]))`, "{{pool}} {{class}} {{outcome}}"}}},
		{title: "Switches that are on", width: 12, queries: []query{{`max by (pool, switch) (headgate_switch{` + where + `})`, "{{pool}} {{switch}}"}}},
	}},
	{"Batches", []panel{
		{title: "Items to run", width: 8, stack: true, help: "What there is to do is the store's: all replicas show the same of it.",
			queries: []query{{`max by (class, state) (headgate_batch_items{class=~"$class"})`, "{{class}} {{state}}"}}},
		{title: "Age of the oldest batch", unit: "s", width: 8,
			queries: []query{{`time() - min by (class) (headgate_batch_oldest_timestamp_seconds{class=~"$class"})`, "{{class}}"}}},
		{title: "Tokens by what they ran on", unit: "short", width: 8, stack: true, help: "Loan: idle capacity of others that would have been wasted.",
			queries: []query{
				{`sum by (capacity) (rate(headgate_batch_output_tokens_total{class=~"$class"}[$__rate_interval]))`, "{{capacity}}"},
				{`sum (rate(headgate_batch_wasted_tokens_total{class=~"$class"}[$__rate_interval]))`, "wasted"},
			}},
	}},
	{"Fleet", []panel{
		{title: "Lease margin", unit: "s", width: 6, help: "For how long what is granted is in force if nothing is heard of the store.",
			queries: []query{{`headgate_fleet_lease_margin_seconds`, "{{instance}}"}}},
		{title: "Who leads", width: 6, help: "The epoch of the one that leads; the others are at 0.",
			queries: []query{{`headgate_fleet_leader_epoch`, "{{instance}}"}}},
		{title: "Handoffs (p95)", unit: "s", width: 6,
			queries: quantiles("headgate_handoff_seconds", where, "pool, stage", "{{pool}} {{stage}}", "0.95")},
		{title: "Errors of the store", unit: "ops", width: 6,
			queries: []query{{`sum by (instance, operation) (rate(headgate_fleet_store_errors_total[$__rate_interval]))`, "{{instance}} {{operation}}"}}},
		{title: "Requests to other replicas", unit: "reqps", width: 12,
			queries: []query{{`sum by (pool, outcome) (rate(headgate_forwards_total{` + where + `}[$__rate_interval]))`, "{{pool}} {{outcome}}"}}},
		{title: "Tenants' limits", unit: "reqps", width: 12, help: "Refused, or what a limit in dry run would refuse.",
			queries: []query{{`sum by (tenant, outcome, limit) (rate(headgate_limit_requests_total{outcome=~"refused|would_refuse"}[$__rate_interval]))`, "{{tenant}} {{outcome}} {{limit}}"}}},
	}},
	{"Process", []panel{
		{title: "Time of a decision", unit: "s", width: 6, queries: quantiles("headgate_decision_seconds", where, "pool", "{{pool}}", "0.5", "0.99")},
		{title: "CPU", unit: "percentunit", width: 6, queries: []query{{`rate(process_cpu_seconds_total[$__rate_interval]) and on (instance, job) headgate_build_info`, "{{instance}}"}}},
		{title: "Memory", unit: "bytes", width: 6, queries: []query{{`process_resident_memory_bytes and on (instance, job) headgate_build_info`, "{{instance}}"}}},
		{title: "What was lost", unit: "short", width: 6, help: "Events of the journal, audit records, items for the collector.",
			queries: []query{
				{`sum by (instance) (increase(headgate_journal_dropped_total[$__rate_interval]))`, "{{instance}} journal"},
				{`sum by (instance) (increase(headgate_audit_records_total{outcome="lost"}[$__rate_interval]))`, "{{instance}} audit"},
				{`sum by (instance) (increase(headgate_otlp_items_total{outcome=~"dropped|failed|rejected"}[$__rate_interval]))`, "{{instance}} collector"},
			}},
	}},
}

// Queries are those of the dashboard's panels, and those by which its variables are filled.
func Queries() []string {
	all := []string{`headgate_envelope`, `headgate_class_floor{` + where + `}`}
	for _, r := range rows {
		for _, p := range r.panels {
			for _, q := range p.queries {
				all = append(all, q.expr)
			}
		}
	}
	return all
}

type object = map[string]any

const panelHeight = 8

// DashboardFile is a dashboard that Grafana 10 and later imports or is provisioned with.
func DashboardFile() (string, error) {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var panels []object
	id, y := 0, 0
	add := func(p object) { id++; p["id"] = id; panels = append(panels, p) }
	for _, r := range rows {
		add(object{"type": "row", "title": r.title, "collapsed": false, "panels": []object{}, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		x := 0
		for _, p := range r.panels {
			if x+p.width > 24 {
				x, y = 0, y+panelHeight
			}
			add(p.object(source, x, y))
			x += p.width
		}
		y += panelHeight
	}
	variable := func(name, text, of string) object {
		return object{
			"type": "query", "name": name, "label": text, "datasource": source, "refresh": 2, "sort": 1, "multi": true, "includeAll": true,
			"definition": of, "query": object{"query": of, "refId": name}, "current": object{"text": "All", "value": "$__all"},
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(object{
		"uid": "headgate", "title": "Headgate", "description": "Written by go test ./deploy/monitoring -rewrite.",
		"tags": []string{"headgate"}, "schemaVersion": 39, "editable": true, "graphTooltip": 1, "refresh": "30s",
		"time": object{"from": "now-1h", "to": "now"}, "timezone": "browser", "annotations": object{"list": []object{}}, "links": []object{},
		"templating": object{"list": []object{
			{"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "current": object{}, "refresh": 1},
			variable("pool", "Pool", `label_values(headgate_envelope, pool)`),
			variable("class", "Class", `label_values(headgate_class_floor{`+where+`}, class)`),
		}},
		"panels": panels,
	})
	return b.String(), err
}

func (p panel) object(source object, x, y int) object {
	var targets []object
	for i, q := range p.queries {
		targets = append(targets, object{"datasource": source, "refId": string(rune('A' + i)), "expr": q.expr, "legendFormat": q.legend})
	}
	kind, stacking := "timeseries", "none"
	if p.kind != "" {
		kind = p.kind
	}
	fill := 0
	if p.stack {
		stacking, fill = "normal", 20
	}
	defaults := object{"unit": p.unit, "min": 0}
	o := object{
		"type": kind, "title": p.title, "description": p.help, "datasource": source, "targets": targets,
		"gridPos": object{"x": x, "y": y, "w": p.width, "h": panelHeight},
	}
	if kind == "timeseries" {
		defaults["custom"] = object{"fillOpacity": fill, "lineWidth": 1, "showPoints": "never", "stacking": object{"mode": stacking, "group": "A"}}
		o["options"] = object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}}
		// What the engines hold is not one more part of the stack.
		o["fieldConfig"] = object{"defaults": defaults, "overrides": []object{{
			"matcher": object{"id": "byRegexp", "options": ".* envelope"},
			"properties": []object{
				{"id": "custom.stacking", "value": object{"mode": "none"}},
				{"id": "custom.fillOpacity", "value": 0},
				{"id": "custom.lineStyle", "value": object{"fill": "dash", "dash": []int{8, 8}}},
			},
		}}}
	} else {
		o["fieldConfig"] = object{"defaults": defaults, "overrides": []object{}}
		o["options"] = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}}, "textMode": "value_and_name", "colorMode": "value", "graphMode": "area"}
	}
	return o
}
