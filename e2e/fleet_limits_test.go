package e2e

import (
	"encoding/json"
	"net/http"
	"testing"

	"headgate/admission"
	"headgate/control/etcd/etcdtest"
	"headgate/e2e/headgate"
	"headgate/gateway"
	"headgate/wire"
)

// hourly is a limit of twelve requests an hour, for all that have no limits of their own.
const hourly = "limits: {other_tenants: {requests: {limit: 12, window: 1h}}}\n"

// limit is what one replica says of anonymous callers' requests.
func limit(t *testing.T, g *headgate.Gateway) *gateway.RateView {
	t.Helper()
	var v gateway.LimitsView
	if err := json.Unmarshal([]byte(g.Shown("/api/limits?tenant=anonymous")), &v); err != nil || len(v.Tenants) != 1 || v.Tenants[0].Requests == nil {
		t.Fatalf("/api/limits: %v: %+v", err, v)
	}
	return v.Tenants[0].Requests
}

// spend asks until it is refused for the limit, and returns how often it was not.
func spend(t *testing.T, g *headgate.Gateway, model string) (served int) {
	t.Helper()
	for range 40 {
		res, err := post(t.Context(), g.URL+chatPath, object{"model": model, "messages": user("hello"), "max_tokens": 1})
		if err != nil {
			t.Fatal(err)
		}
		var doc struct{ Error struct{ Code string } }
		err = json.NewDecoder(res.Body).Decode(&doc)
		_ = res.Body.Close()
		switch {
		case err != nil:
			t.Fatal(err)
		case res.StatusCode == http.StatusOK:
			served++
		case res.StatusCode == http.StatusTooManyRequests && doc.Error.Code == wire.CodeRateLimited:
			return served
		default:
			t.Fatalf("status %d, code %q", res.StatusCode, doc.Error.Code)
		}
	}
	t.Fatal("40 requests were served, of 12 an hour")
	return 0
}

// TestFleetLimits has two replicas share a tenant's limit through etcd: each has its part,
// together they serve what one would and at most one part of the burst more, and the part of
// one that dies falls to the other.
func TestFleetLimits(t *testing.T) {
	etcd := etcdtest.Start(t, etcdtest.Options{})
	e := headgate.StartEngine(t, "--max-num-seqs", "4", "--num-gpu-blocks", "2000", "--speed", "0.05")
	start := func(name string) *headgate.Gateway {
		return headgate.Start(t, hourly+fleetFile(name, e.URL, etcd.Endpoints(), "")).AwaitReady()
	}
	share := func(g *headgate.Gateway, want string, parts int64) {
		g.AwaitPool(want, func(*admission.Snapshot) bool {
			l := limit(t, g)
			return l.Left+l.Used == 12/parts
		})
	}
	a := start("a")
	share(a, "a alone has all of the limit", 1)
	b := start("b")
	share(a, "a has half of it", 2)
	share(b, "b has half of it", 2)
	first := spend(t, a, e.Model)
	then := spend(t, b, e.Model)
	if first < 6 || then < 1 || first+then > 12+6 {
		t.Errorf("a served %d and b %d requests, of 12 an hour", first, then)
	}
	a.Kill()
	share(b, "a is dead, and b has all of the limit", 1)
}
