package config

import (
	"fmt"
	"time"

	"headgate/identity"
	"headgate/quota"
)

// TenantLimits are what one tenant may use, in all pools together.
type TenantLimits struct {
	// Name of the tenant, as keys have it; unique.
	Name        string `yaml:"name"`
	TenantRates `yaml:",inline"`
	// Balance makes the tenant prepaid: it may use what an operator has put into its balance by headgate limits refill, and nothing else. Absent: it has none and needs none.
	Balance *TenantBalance `yaml:"balance,omitempty"`
}

// TenantRates are what a tenant may use in a time.
type TenantRates struct {
	// Requests bounds requests in a window; absent: not bounded. One that no engine was given does not count.
	Requests *TenantRate `yaml:"requests,omitempty"`
	// Tokens bounds the tokens of prompts and answers in a window, as they are weighted; absent: not bounded.
	Tokens *TenantRate `yaml:"tokens,omitempty"`
	// InputWeight is what a token of a prompt counts, for tokens and balance, 0 to 1000.
	InputWeight int64 `yaml:"input_weight"`
	// OutputWeight is what a token of an answer counts, 0 to 1000.
	OutputWeight int64 `yaml:"output_weight"`
}

// SetDefaults counts every token once.
func (t *TenantRates) SetDefaults() { t.InputWeight, t.OutputWeight = 1, 1 }

// TenantRate is a limit on what is used in a window.
type TenantRate struct {
	// Limit is how much may be used in each window, 1 to 1000000000000. It has to be given.
	Limit int64 `yaml:"limit"`
	// Window is the time for that, 1s to 744h. What was used comes back steadily, so much as the limit in a window, and not at one moment.
	Window time.Duration `yaml:"window"`
	// Burst is how much may be used at once, after a pause; absent: the limit. It has to hold the longest prompt. Lower it to spread what comes.
	Burst int64 `yaml:"burst,omitempty"`
	// Mode is enforce, or dry_run, which refuses nothing and counts what enforcing would have refused.
	Mode string `yaml:"mode"`
}

// SetDefaults is for each minute.
func (t *TenantRate) SetDefaults() { t.Window, t.Mode = time.Minute, LimitEnforce }

// TenantBalance is a balance of prepaid tokens.
type TenantBalance struct {
	// Mode is enforce, or dry_run, which refuses nothing and counts what enforcing would have refused.
	Mode string `yaml:"mode"`
}

// SetDefaults enforces.
func (t *TenantBalance) SetDefaults() { t.Mode = LimitEnforce }

// The modes of a limit.
const (
	LimitEnforce = "enforce"
	LimitDryRun  = "dry_run"
)

const mostTenants = 10_000

// tenants checks what tenants may use.
func (m *Limits) tenants(bad func(path string, value any, allowed string)) {
	if n := len(m.Tenants); n > mostTenants {
		bad("tenants", n, fmt.Sprintf("at most %d tenants; the others share other_tenants, each for itself", mostTenants))
		return
	}
	for i := range m.Tenants {
		t, at := &m.Tenants[i], fmt.Sprintf("tenants[%d].", i)
		if !identity.ValidName(t.Name) {
			bad(at+"name", t.Name, identity.NameRule)
		} else if t.Name == "other" {
			bad(at+"name", t.Name, "another name: metrics call so all tenants without limits of their own")
		}
		t.modes(at, bad)
		if t.Balance != nil {
			if m.BalanceFile == "" {
				bad(at+"balance", "a mapping", "a balance where limits.balance_file says in which file it is kept")
			}
			mode(at+"balance.mode", t.Balance.Mode, bad)
		}
	}
	if m.OtherTenants != nil {
		m.OtherTenants.modes("other_tenants.", bad)
	}
	if m.OthersTogether != nil {
		m.OthersTogether.modes("others_together.", bad)
	}
	if m.MaxTenants < 100 || m.MaxTenants > 10_000_000 {
		bad("max_tenants", m.MaxTenants, "100 to 10000000")
	}
	t := m.Quota()
	t.Validate(bad)
}

func (t *TenantRates) modes(at string, bad func(path string, value any, allowed string)) {
	for _, r := range []struct {
		path string
		rate *TenantRate
	}{{"requests", t.Requests}, {"tokens", t.Tokens}} {
		if r.rate == nil {
			continue
		}
		if r.rate.Limit == 0 {
			bad(at+r.path+".limit", r.rate.Limit, fmt.Sprintf("1 to %d", int64(quota.MaxUnits)))
		}
		if r.rate.Burst < 0 || r.rate.Burst > quota.MaxUnits {
			bad(at+r.path+".burst", r.rate.Burst, fmt.Sprintf("1 to %d, or 0 for the limit", int64(quota.MaxUnits)))
		}
		mode(at+r.path+".mode", r.rate.Mode, bad)
	}
}

func mode(path, mode string, bad func(path string, value any, allowed string)) {
	if mode != LimitEnforce && mode != LimitDryRun {
		bad(path, mode, "enforce or dry_run")
	}
}

// Quota is what tenants may use, as the ledger knows it.
func (m *Limits) Quota() quota.Table {
	var t quota.Table
	for i := range m.Tenants {
		c := &m.Tenants[i]
		n := quota.Named{Tenant: c.Name, Rules: c.rules()}
		if c.Balance != nil {
			n.Prepaid, n.PrepaidDryRun = true, c.Balance.Mode == LimitDryRun
		}
		t.Tenants = append(t.Tenants, n)
	}
	if m.OtherTenants != nil {
		t.Others = m.OtherTenants.rules()
	}
	if m.OthersTogether != nil {
		t.Together = m.OthersTogether.rules()
	}
	return t
}

func (t *TenantRates) rules() quota.Rules {
	return quota.Rules{Requests: t.Requests.rate(), Tokens: t.Tokens.rate(), Input: t.InputWeight, Output: t.OutputWeight}
}

func (t *TenantRate) rate() quota.Rate {
	if t == nil {
		return quota.Rate{}
	}
	r := quota.Rate{N: t.Limit, Window: t.Window, Burst: t.Burst, DryRun: t.Mode == LimitDryRun}
	if r.Burst == 0 {
		r.Burst = r.N
	}
	return r
}
