package relayed

import (
	"testing"
	"time"

	"headgate/wire"
)

// TestLimitsOfTenants: an item that its tenant's limits refuse waits, for the hint or until
// somebody may have refilled the balance, and is no failure; one that never comes in is.
func TestLimitsOfTenants(t *testing.T) {
	for _, c := range []struct {
		err   *wire.Error
		waits bool
		hint  time.Duration
	}{
		{wire.RateLimited("the tenant's", "tokens", 10, time.Minute, 5, 1, 7*time.Second), true, 7 * time.Second},
		{wire.RateLimited("the tenant's", "tokens", 10, time.Minute, 5, 1, 0), true, 0},
		{wire.BalanceExhausted(5, 1), true, refillLook},
		{wire.ExceedsLimit(50, 10), false, 0},
	} {
		a := failed(item{}, &sink{}, c.err)
		if a.Retry != c.waits || a.Refused != c.waits || a.OfTenant != c.waits || a.RetryAfter != c.hint {
			t.Errorf("%s: %+v, want one that waits: %t, %v", c.err.Code, a, c.waits, c.hint)
		}
	}
}
