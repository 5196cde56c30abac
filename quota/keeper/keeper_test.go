package keeper

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/quota"
)

func table() quota.Table {
	rate := quota.Rate{N: 100, Burst: 100, Window: time.Minute}
	return quota.Table{
		Tenants: []quota.Named{{Tenant: "acme", Rules: quota.Rules{Tokens: rate, Input: 1, Output: 1, Prepaid: true}}},
		Others:  quota.Rules{Requests: rate}, Together: quota.Rules{Requests: rate},
	}
}

// TestBalancesOutlive: what was refilled is in the file before Refill returns, what was
// settled within a second, and what is held is not taken; a file that can't be read is no
// fresh beginning.
func TestBalancesOutlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "balances.json")
		begin := func() *Keeper {
			k, err := New(Config{Table: table(), Most: 10, File: file})
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		left := func(when string, want int64) {
			t.Helper()
			if got := begin().Account("acme").Balance.Left; got != want {
				t.Errorf("%s: the next life has %d, want %d", when, got, want)
			}
		}
		k := begin()
		if _, err := k.Refill("acme", 1000); err != nil {
			t.Fatal(err)
		}
		left("refilled", 1000)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); k.Run(ctx) }()
		held, _ := k.Reserve("acme", quota.Ask{Prompt: 40})
		running, _ := k.Reserve("acme", quota.Ask{Prompt: 40})
		held.Settle(quota.Use{Began: true, Prompt: 30})
		held.Settle(quota.Use{Began: true, Prompt: 30})
		time.Sleep(saveEvery + time.Millisecond)
		synctest.Wait()
		left("a second later", 970)
		running.Settle(quota.Use{Began: true, Prompt: 5})
		stop()
		<-over
		left("at the end", 965)
		if err := os.WriteFile(file, []byte(`{"version":1,"bal`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{Table: table(), Most: 10, File: file}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("half a file: %v, want an error that names it", err)
		}
	})
}

// TestLabelsAreBounded: however many tenants come, metrics name those of the configuration.
func TestLabelsAreBounded(t *testing.T) {
	k, err := New(Config{Table: table(), Most: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		h, _ := k.Reserve(fmt.Sprint("tenant-", i), quota.Ask{Prompt: 1})
		h.Settle(quota.Use{Began: true, Prompt: 1})
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(k)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	refused := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if tenant, ok := labels["tenant"]; ok && tenant != "acme" && tenant != other {
				t.Errorf("%s names the tenant %q", f.GetName(), tenant)
			}
			if labels["tenant"] == other && labels["outcome"] == "refused" && labels["limit"] == "requests" {
				refused = m.GetCounter().GetValue()
			}
		}
	}
	if refused != 100 {
		t.Errorf("%g of 200 requests were refused, want 100", refused)
	}
}
