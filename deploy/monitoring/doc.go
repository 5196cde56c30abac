// Package monitoring is what to watch of Headgate: recording rules, alerts with what to do
// about each, and a dashboard. They are written down once, here, beside the metrics; the
// files that Prometheus, Grafana and the chart take, and the page about the alerts, are made
// of them by
//
//	go test ./deploy/monitoring -rewrite
//
// Queries name series and labels that somebody may rename, and a rule that names one that
// is gone is silent for ever. So cmd/headgate has a test that holds each name against what
// the process registers, and tools/packages has Prometheus's own tests of rules run: every
// alert has an example that it is to fire for, and nothing fires for a fleet that is well.
//
// An alert is for what somebody has to do something about. What has a reason in the traffic
// alone (a queue that is full at noon) is on the dashboard.
package monitoring
