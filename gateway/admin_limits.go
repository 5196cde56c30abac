package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"headgate/identity"
	"headgate/journal"
	"headgate/quota"
	"headgate/quota/keeper"
)

// LimitView is one tenant on /api/limits.
type LimitView struct {
	Tenant string `json:"tenant"`
	// Own: it has limits of its own. Together: it stands for all that have none. Shared: it
	// stands for all for which there was no room.
	Own      bool         `json:"own"`
	Together bool         `json:"together,omitempty"`
	Shared   bool         `json:"shared,omitempty"`
	Open     int          `json:"requests_open"`
	Requests *RateView    `json:"requests,omitempty"`
	Tokens   *RateView    `json:"tokens,omitempty"`
	Balance  *BalanceView `json:"balance,omitempty"`
}

// RateView is a limit in a window at a moment. Used has not come back yet, Reserved is
// held by requests that wait or run, and Left may be used at once.
type RateView struct {
	Limit    int64   `json:"limit"`
	WindowS  float64 `json:"window_s"`
	Burst    int64   `json:"burst"`
	Used     int64   `json:"used"`
	Reserved int64   `json:"reserved"`
	Left     int64   `json:"left"`
	ResetS   float64 `json:"reset_s"` // until all that was used has come back
	DryRun   bool    `json:"dry_run,omitempty"`
}

// BalanceView is a balance at a moment. Left is what nobody has reserved.
type BalanceView struct {
	Left     int64 `json:"left"`
	Reserved int64 `json:"reserved"`
	DryRun   bool  `json:"dry_run,omitempty"`
}

// LimitsView is /api/limits.
type LimitsView struct {
	Tenants []LimitView `json:"tenants"`
}

// mostOthers is how many tenants without limits of their own are listed at most.
const mostOthers = 10_000

// limits answers with the tenants that have limits of their own, and the first n of the
// others that have used something; or with one tenant.
func (g *Gateway) limits(w http.ResponseWriter, r *http.Request) {
	q, n := r.URL.Query(), 100
	if q.Has("n") {
		var err error
		if n, err = strconv.Atoi(q.Get("n")); err != nil || n < 0 || n > mostOthers {
			http.Error(w, fmt.Sprintf("n is %.40q, must be a whole number from 0 to %d", q.Get("n"), mostOthers), http.StatusBadRequest)
			return
		}
	}
	var all []quota.Account
	if tenant := q.Get("tenant"); tenant != "" {
		all = []quota.Account{g.cfg.Tenants.Account(tenant)}
	} else {
		all = g.cfg.Tenants.Accounts(n)
	}
	v := LimitsView{Tenants: []LimitView{}}
	for i := range all {
		v.Tenants = append(v.Tenants, limitView(&all[i]))
	}
	writeJSON(w, v)
}

func limitView(a *quota.Account) LimitView {
	v := LimitView{Tenant: a.Tenant, Own: a.Own, Together: a.Together, Shared: a.Shared, Open: a.Open, Requests: rateView(&a.Requests), Tokens: rateView(&a.Tokens)}
	if b := a.Balance; b.Prepaid {
		v.Balance = &BalanceView{b.Left, b.Held, b.DryRun}
	}
	return v
}

func rateView(s *quota.State) *RateView {
	if s.Limit == 0 {
		return nil
	}
	return &RateView{s.Limit, s.Window.Seconds(), s.Burst, s.Used, s.Held, s.Left, s.Reset.Seconds(), s.DryRun}
}

// mostRefill bounds what is put into a balance at once, in tokens.
const mostRefill = 1_000_000_000_000_000

// refill puts tokens into a tenant's balance, or takes some out.
func (g *Gateway) refill(w http.ResponseWriter, r *http.Request) {
	if !ownJSON(w, r) {
		return
	}
	fail := func(status int, format string, args ...any) { http.Error(w, fmt.Sprintf(format, args...), status) }
	var in struct {
		Tenant string `json:"tenant"`
		Tokens int64  `json:"tokens"`
		Reason string `json:"reason"`
	}
	err := object(http.MaxBytesReader(w, r.Body, maxSwitchBody), &in)
	switch {
	case err != nil:
	case !identity.ValidName(in.Tenant):
		err = fmt.Errorf(`"tenant" is %.60q, must be a tenant's name`, in.Tenant)
	case in.Tokens == 0 || in.Tokens < -mostRefill || in.Tokens > mostRefill:
		err = fmt.Errorf(`"tokens" is %d, must be a whole number from %d to %d and not 0`, in.Tokens, int64(-mostRefill), int64(mostRefill))
	case len(in.Reason) > maxReason:
		err = fmt.Errorf("reason has %d bytes, must be at most %d", len(in.Reason), maxReason)
	}
	if err != nil {
		fail(http.StatusBadRequest, "%v", err)
		return
	}
	left, err := g.cfg.Tenants.Refill(in.Tenant, in.Tokens)
	if errors.Is(err, keeper.ErrNoBalance) {
		fail(http.StatusNotFound, "tenant %s has no balance by the configuration: set balance in limits.tenants", in.Tenant)
		return
	}
	use := journal.Switch{
		Name: "refill " + in.Tenant, From: strconv.FormatInt(left-in.Tokens, 10), To: strconv.FormatInt(left, 10),
		Actor: actor(r), Remote: r.RemoteAddr, Reason: clean(in.Reason, maxReason),
	}
	g.cfg.Log.Warn("an operator has changed a balance", "tenant", in.Tenant, "tokens", in.Tokens, "left", left, "actor", use.Actor, "remote", use.Remote, "reason", use.Reason)
	if g.cfg.Journal != nil {
		g.cfg.Journal.Append(&journal.Event{Kind: journal.Switched, Mono: int64(time.Since(g.cfg.Start)), Tenant: in.Tenant, Switch: &use})
	}
	if err != nil {
		fail(http.StatusInternalServerError, "the balance of %s was changed to %d, but not written: %v", in.Tenant, left, err)
		return
	}
	a := g.cfg.Tenants.Account(in.Tenant)
	writeJSON(w, limitView(&a))
}
