package quota

import "time"

// Accounts of tenants without rules of their own are forgotten when their buckets are
// empty and nothing is held. When that will be is known of each but for what is still to
// come, so they are in a heap by that: who is due and has come again goes back into it.
// The first that is not due says that nobody is.

const (
	// glance is how many due accounts are looked at for each that is opened. With more than
	// one they are forgotten faster than they come.
	glance = 4
	// lookAgain is after what time an account is looked at in which something is held.
	lookAgain = Time(100 * time.Millisecond)
)

// glance looks at the account that is due, forgets it if it says nothing, and tells
// whether there was one.
func (l *Ledger) glance() bool {
	if len(l.looks) == 0 || l.accounts[l.looks[0]].look > l.now {
		return false
	}
	i := l.looks[0]
	a := &l.accounts[i]
	full := max(a.buckets[Requests].tat, a.buckets[Tokens].tat)
	if a.open > 0 {
		full = max(full, l.now+lookAgain)
	}
	if full > l.now {
		a.look = full
		l.down(0)
		return true
	}
	last := len(l.looks) - 1
	l.looks[0] = l.looks[last]
	if l.looks = l.looks[:last]; last > 0 {
		l.down(0)
	}
	l.others--
	delete(l.index, a.tenant)
	*a = account{}
	l.vacant = append(l.vacant, i)
	return true
}

// watch puts an account into the heap, to be looked at from now on.
func (l *Ledger) watch(i int32) {
	l.accounts[i].look = l.now
	l.looks = append(l.looks, i)
	for at := len(l.looks) - 1; at > 0; {
		parent := (at - 1) / 2
		if l.accounts[l.looks[parent]].look <= l.accounts[l.looks[at]].look {
			return
		}
		l.looks[parent], l.looks[at] = l.looks[at], l.looks[parent]
		at = parent
	}
}

// down brings an account of the heap to its place.
func (l *Ledger) down(at int) {
	for {
		least := at
		for child := 2*at + 1; child <= 2*at+2 && child < len(l.looks); child++ {
			if l.accounts[l.looks[child]].look < l.accounts[l.looks[least]].look {
				least = child
			}
		}
		if least == at {
			return
		}
		l.looks[least], l.looks[at] = l.looks[at], l.looks[least]
		at = least
	}
}
