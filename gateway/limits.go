package gateway

import (
	"strconv"
	"strings"
	"time"

	"headgate/quota"
	"headgate/relay"
)

// headerBalance and headerDryRun tell a client of its tenant's balance, and of limits in
// dry run that would have refused its request.
const (
	headerBalance = "Headgate-Balance"
	headerDryRun  = "Headgate-Limit-Dry-Run"
)

var _ relay.LimitSink = (*response)(nil)

// Limits implements relay.LimitSink. The names are those of the API that was called:
// OpenAI's, or Anthropic's below /v1/messages.
func (w *response) Limits(l relay.Limited) {
	for k, s := range []quota.State{l.Requests, l.Tokens} {
		if s.Limit == 0 {
			continue
		}
		of := quota.Kind(k).String()
		limit, left := strconv.FormatInt(s.Limit, 10), strconv.FormatInt(s.Left, 10)
		if w.anthropic {
			w.header.Set("Anthropic-Ratelimit-"+of+"-Limit", limit)
			w.header.Set("Anthropic-Ratelimit-"+of+"-Remaining", left)
			// Whole seconds, rounded up, so that nobody comes too early.
			w.header.Set("Anthropic-Ratelimit-"+of+"-Reset", time.Now().Add(s.Reset+time.Second-1).UTC().Truncate(time.Second).Format(time.RFC3339))
			continue
		}
		w.header.Set("X-Ratelimit-Limit-"+of, limit)
		w.header.Set("X-Ratelimit-Remaining-"+of, left)
		w.header.Set("X-Ratelimit-Reset-"+of, reset(s.Reset))
	}
	if l.Balance.Prepaid {
		w.header.Set(headerBalance, strconv.FormatInt(l.Balance.Left, 10))
	}
	var dry []string
	for k := quota.Requests; k <= quota.Balance; k++ {
		if l.Dry&(1<<k) != 0 {
			dry = append(dry, k.String())
		}
	}
	if len(dry) > 0 {
		w.header.Set(headerDryRun, strings.Join(dry, ", "))
	}
}

// reset is a time as OpenAI tells one, such as 1m2.5s, in ms rounded up.
func reset(d time.Duration) string {
	return ((d + time.Millisecond - 1) / time.Millisecond * time.Millisecond).String()
}
