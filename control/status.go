package control

import "time"

// Status is a pool as its leader sees it, for people. What changes with time alone is
// not in it, so that it is the same for as long as nothing happens.
type Status struct {
	Pool     string `json:"pool"`
	Epoch    uint64 `json:"epoch"`
	Revision uint64 `json:"revision"`
	// Published numbers what its leader has published of it, so that one that is read
	// again is not taken for news. It is the shell's.
	Published uint64 `json:"published"`
	// Fingerprint is of the leader's configuration of the pool.
	Fingerprint string          `json:"fingerprint,omitempty"`
	Accounts    []AccountStatus `json:"accounts"`
	Replicas    []ReplicaStatus `json:"replicas"`
}

// AccountStatus is an engine, or a class with a ceiling.
type AccountStatus struct {
	Engine  string `json:"engine,omitempty"`
	Class   string `json:"class,omitempty"`
	Total   Amount `json:"total"`
	Foreign Amount `json:"foreign"`
	// Free is what nobody is bound by.
	Free Amount `json:"free"`
}

// ReplicaStatus is one life of a replica.
type ReplicaStatus struct {
	ID
	Lease int64 `json:"lease"`
	// Live: it has its lease. Else what it may have left is reserved as its residual.
	Live bool `json:"live"`
	// Fingerprint of its configuration, "" while it has said none.
	Fingerprint  string        `json:"fingerprint,omitempty"`
	Revision     uint64        `json:"revision"`
	Acknowledged uint64        `json:"acknowledged"`
	Accounts     []ShareStatus `json:"accounts"`
	Classes      []ClassStatus `json:"classes,omitempty"`
	Residual     time.Duration `json:"residual_ns,omitempty"` // at most, from the end of its lease
}

// ShareStatus is what a replica has of an account.
type ShareStatus struct {
	Granted Amount `json:"granted"`
	// Bound is the most that it can have: its grant, or more until a lower one is
	// acknowledged and drained.
	Bound    Amount `json:"bound"`
	Used     Amount `json:"used"`
	Survival Amount `json:"survival"`
}

// ClassStatus is one class at a replica.
type ClassStatus struct {
	Class     string `json:"class"`
	Guarantee Amount `json:"guarantee"` // its part of the floor
	Floor     Amount `json:"floor"`     // what of it it has now
	Kept      Amount `json:"kept"`      // used or not
	Why       string `json:"why"`
	Used      Amount `json:"used"`
	// Lent is what of its guarantee it neither uses nor keeps, Borrowed what it uses beyond
	// its floor.
	Lent     Amount `json:"lent"`
	Borrowed Amount `json:"borrowed"`
	Waiting  int    `json:"waiting,omitempty"`
	Short    bool   `json:"short,omitempty"`
}

// Pool is the pool's name.
func (a *Allocator) Pool() string { return a.pool.Name }

// Status returns the present state. It shares nothing with the allocator.
func (a *Allocator) Status() *Status {
	s := &Status{Pool: a.pool.Name, Epoch: a.epoch, Revision: a.rev, Fingerprint: a.pool.Fingerprint, Accounts: []AccountStatus{}, Replicas: []ReplicaStatus{}}
	for c := range a.accounts {
		acc := &a.accounts[c]
		v := AccountStatus{Total: acc.total, Foreign: acc.foreign, Free: a.free(c)}
		v.Engine, v.Class = a.accountName(c)
		s.Accounts = append(s.Accounts, v)
	}
	live := 0
	for _, l := range a.lives {
		v := ReplicaStatus{ID: l.id, Lease: l.lease, Live: l.live, Fingerprint: l.fingerprint, Revision: l.rev, Acknowledged: l.had, Accounts: []ShareStatus{}}
		if !l.live {
			v.Residual = time.Duration(l.until - l.gone)
		}
		for c := range a.accounts {
			v.Accounts = append(v.Accounts, ShareStatus{Granted: l.granted[c], Bound: l.bound[c], Used: l.used[c], Survival: a.survival(l, c)})
		}
		if l.live {
			if live < len(a.t.lives) {
				a.classStatus(&v, live)
			}
			live++
		}
		s.Replicas = append(s.Replicas, v)
	}
	return s
}

func (a *Allocator) classStatus(v *ReplicaStatus, i int) {
	l, n := a.t.lives[i], int64(len(a.t.lives))
	for k := range a.pool.Classes {
		at := &l.classes[k]
		_, why := a.keep(k, i)
		kept := plus(a.t.protected[i][k], a.keptOf(i, k))
		g := part(a.pool.Classes[k].Floor, n, int64(i))
		v.Classes = append(v.Classes, ClassStatus{
			Class: a.pool.Classes[k].Name, Guarantee: g, Floor: l.floors[k], Kept: kept, Why: why, Used: at.total,
			Lent: over(g, most(kept, at.total)), Borrowed: over(at.total, l.floors[k]), Waiting: at.waiting, Short: at.short,
		})
	}
}

func (a *Allocator) accountName(c int) (engine, class string) {
	if acc := &a.accounts[c]; acc.engine >= 0 {
		return a.pool.Engines[acc.engine].Name, ""
	}
	return "", a.pool.Classes[a.accounts[c].class].Name
}
