package quota

import (
	"fmt"
	"strings"
)

// Account is a tenant's account as it is at a moment.
type Account struct {
	Tenant string
	Own    bool // it has rules of its own
	Shared bool // by tenants for which there was no room
	// Together: it stands for all tenants without rules of their own.
	Together bool
	Open     int // reservations
	Told
}

// Look returns a tenant's account. One that was never used, or is forgotten, is as one
// that is new.
func (l *Ledger) Look(now Time, tenant string) Account {
	l.tick(now)
	a := account{tenant: tenant, rules: l.rulesOf(tenant), share: l.shareOf(tenant)}
	if i, ok := l.index[tenant]; ok {
		a = l.accounts[i]
	}
	return l.view(&a)
}

// All returns the accounts of tenants with rules of their own, in the order of the rules,
// then the one of all others together, if that is limited, and then up to so many others
// that have used something.
func (l *Ledger) All(now Time, others int) []Account {
	l.tick(now)
	var all []Account
	for i := range l.table.Tenants {
		all = append(all, l.Look(now, l.table.Tenants[i].Tenant))
	}
	if !l.table.Together.none() {
		all = append(all, l.Look(now, together))
	}
	for i := range l.accounts {
		if a := &l.accounts[i]; a.there && l.forgets(a) && others > 0 {
			others--
			all = append(all, l.view(a))
		}
	}
	return all
}

// Counts returns what was counted for each tenant with rules of its own, in their order,
// and last for all others.
func (l *Ledger) Counts() []Counts { return l.counts }

// Tenants returns the rules of tenants with rules of their own. They are not to be changed.
func (l *Ledger) Tenants() []Named { return l.table.Tenants }

// Size is how many accounts of tenants without rules of their own there are, and for how
// many there is room.
func (l *Ledger) Size() (accounts, most int) { return l.others, l.most }

func (l *Ledger) view(a *account) Account {
	v := Account{
		Tenant: a.tenant, Own: int(a.rules) < len(l.table.Tenants), Shared: a.tenant == crowd, Together: a.tenant == together,
		Open: int(a.open), Told: l.told(a.tenant, a),
	}
	if v.Shared || v.Together {
		v.Tenant = ""
	}
	return v
}

// told is a tenant's limits as they are now.
func (l *Ledger) told(tenant string, a *account) (t Told) {
	t.Requests, t.Tokens = l.state(a, Requests), l.state(a, Tokens)
	if rules := rulesAt(&l.table, a.rules); rules.Prepaid {
		p := l.purses[tenant]
		t.Balance = BalanceState{Prepaid: true, Left: p.left - p.held, Held: p.held, DryRun: rules.PrepaidDryRun}
	}
	return t
}

func (l *Ledger) state(a *account, k Kind) State {
	rate, b := l.rate(a, k), &a.buckets[k]
	if rate.N == 0 {
		return State{}
	}
	whole := rateOf(&l.table, a.rules, k)
	return State{
		Limit: whole.N, Window: whole.Window, Burst: whole.Burst, DryRun: whole.DryRun,
		Left: l.left(&rate, b), Held: b.held, Used: rate.used(l.full(b)), Reset: wait(l.full(b)),
	}
}

// String prints everything, for goldens and debugging.
func (l *Ledger) String() string {
	var s strings.Builder
	open := 0
	for i := range l.holds {
		if l.holds[i].open {
			open++
		}
	}
	fmt.Fprintf(&s, "now=%s share=%d others=%d/%d open=%d\n", wait(int64(l.now)), l.share, l.others, l.most, open)
	for i := range l.accounts {
		a := &l.accounts[i]
		if !a.there {
			continue
		}
		v := l.view(a)
		if v.Together && l.table.Together.none() {
			continue
		}
		fmt.Fprintf(&s, "%q open=%d", strings.Trim(a.tenant, "\x00"), v.Open)
		for k, st := range []State{v.Requests, v.Tokens} {
			if st.Limit > 0 {
				fmt.Fprintf(&s, " %s[used=%d held=%d left=%d reset=%s]", Kind(k), st.Used, st.Held, st.Left, st.Reset)
			}
		}
		if v.Balance.Prepaid {
			fmt.Fprintf(&s, " balance[left=%d held=%d]", v.Balance.Left, v.Balance.Held)
		}
		s.WriteByte('\n')
	}
	for i := range l.counts {
		name := "others"
		if i < len(l.table.Tenants) {
			name = l.table.Tenants[i].Tenant
		}
		if c := &l.counts[i]; *c != (Counts{}) {
			fmt.Fprintf(&s, "counts %s: reserved=%d refused=%v would=%v began=%d prompt=%d output=%d billed=%d crowded=%d\n",
				name, c.Reserved, c.Refused, c.Would, c.Began, c.Prompt, c.Output, c.Billed, c.Crowded)
		}
	}
	return s.String()
}
