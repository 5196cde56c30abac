package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/admission"
	"headgate/config"
)

// parsed is a valid configuration.
func parsed(t *testing.T, text string) *config.Config {
	t.Helper()
	c, problems := config.Parse("test.yaml", []byte(text))
	if c == nil {
		t.Fatal(problems)
	}
	return c
}

// Everything that a file says of a policy is in the table, and what it does not say
// is what it always was.
func TestTable(t *testing.T) {
	c := parsed(t, `
anonymous: {classes: [plain]}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://127.0.0.1:8000", priority: true}]
    stall_share: 12.5%
    reclaims_per_second: 3
    classes:
      - name: plain
        floor: {slots: 100%, kv_tokens: 25%}
      - name: full
        floor: {slots: 1, kv_tokens: 50%}
        ceiling: {slots: 3}
        guarantee: window
        window: 60s
        headroom: {slots: 1}
        idle_after: 3s
        reopen: settled
        reclaim: reclaim
        grace: 500ms
        pin_after: 4
        objective: {ttft: 5s, tpot: 100ms, e2e: 30s}
        keep_warm: 10m
        queue: {depth: 7, per_tenant: 2, wait: 9s}
        default_output: 64
        max_output: 128
      - name: late
        unlent: {slots: 0}
        reclaim: deadline
        deadline: 30s
`)
	engines := []admission.EngineSpec{{Name: "gpu0", Slots: 4, KV: 8000, Block: 16, Ordered: true, Together: true}}
	have, err := table(&c.Pools[0].Policy, func(e config.Envelope) ([]config.Capacity, []config.Problem) { return c.Resolve(0, e) }, engines)
	if err != nil {
		t.Fatal(err)
	}
	want := &admission.Table{
		StallShare: 0.125, ReclaimRate: 3, Engines: engines,
		Classes: []admission.ClassSpec{
			{
				Name: "plain", Floor: admission.Of(4, 2000), Ceiling: admission.Of(4, 8000), IdleAfter: 2 * time.Second,
				Depth: 256, TenantDepth: 64, MaxWait: 30 * time.Second, DefaultOut: 512,
			},
			{
				Name: "full", Floor: admission.Of(1, 4000), Ceiling: admission.Of(3, 8000), Headroom: admission.Of(1, 0), IdleAfter: 3 * time.Second,
				Mode: admission.ReclaimNow, Grace: 500 * time.Millisecond, PinAfter: 4, Reopen: admission.ReopenSettled, Window: time.Minute,
				Objective: admission.Objective{First: 5 * time.Second, Token: 100 * time.Millisecond, Whole: 30 * time.Second}, KeepWarm: 10 * time.Minute,
				Depth: 7, TenantDepth: 2, MaxWait: 9 * time.Second, DefaultOut: 64, MaxOut: 128,
			},
			{
				Name: "late", Ceiling: admission.Of(4, 8000), IdleAfter: 2 * time.Second, Mode: admission.Deadline, LoanLife: 30 * time.Second,
				Depth: 256, TenantDepth: 64, MaxWait: 30 * time.Second, DefaultOut: 512,
			},
		},
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("the table (-want +have):\n%s", d)
	}
}

// What is told of engines that do not fit is why, and no warning before it.
func TestTableTellsTheError(t *testing.T) {
	c := parsed(t, `
anonymous: {classes: [none]}
pools:
  - name: main
    engines: [{name: gpu0, kind: llamacpp, url: "http://127.0.0.1:8000"}]
    classes:
      - {name: none, floor: {slots: 1%}}
      - name: most
        ceiling: {slots: 5}
`)
	engines := []admission.EngineSpec{{Name: "gpu0", Slots: 4, KV: 8000, Block: 1}}
	_, err := table(&c.Pools[0].Policy, func(e config.Envelope) ([]config.Capacity, []config.Problem) { return c.Resolve(0, e) }, engines)
	if err == nil || !strings.Contains(err.Error(), "allowed at most the envelope of 4") {
		t.Errorf("error %v", err)
	}
}
