package relayed

import (
	"testing"
	"time"

	"headgate/batch"
	"headgate/wire"
)

// TestLimitsOfTenants: an item that its tenant's limits refuse waits, for the hint or until
// somebody may have refilled the balance, and is no failure; one that never comes in is.
func TestLimitsOfTenants(t *testing.T) {
	for _, c := range []struct {
		err   *wire.Error
		waits batch.Refusal
		hint  time.Duration
	}{
		{wire.RateLimited("the tenant's", "tokens", 10, time.Minute, 5, 1, 7*time.Second), batch.RefusedTenant, 7 * time.Second},
		{wire.RateLimited("the tenant's", "tokens", 10, time.Minute, 5, 1, 0), batch.RefusedTenant, 0},
		{wire.BalanceExhausted(5, 1), batch.RefusedTenant, operatorLook},
		{wire.NewError(wire.CodeIdentityUnavailable, ""), batch.RefusedBatch, operatorLook},
		{wire.TenantQueueFull("batch", 1, 1, 0), batch.RefusedTenant, 0},
		{wire.ExceedsLimit(50, 10), batch.NotRefused, 0},
	} {
		a := failed(item{}, &sink{}, c.err)
		if a.Retry != (c.waits != batch.NotRefused) || a.Refused != c.waits || a.RetryAfter != c.hint {
			t.Errorf("%s: %+v, want one that is refused: %d, %v", c.err.Code, a, c.waits, c.hint)
		}
	}
}
