package identity

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"headgate/wire"
)

// The request headers by which a caller gives limits of its own, in milliseconds.
const (
	TTFTHeader = "X-Slo-Ttft-Ms"
	TPOTHeader = "X-Slo-Tpot-Ms"
)

// MaxSLO bounds what they may say.
const MaxSLO = time.Hour

// SLOMin is how tight the limits of requests may be.
type SLOMin struct {
	// TTFT is the least that x-slo-ttft-ms may ask for; absent: anything.
	TTFT time.Duration `yaml:"ttft,omitempty"`
	// TPOT is the least that x-slo-tpot-ms may ask for; absent: anything.
	TPOT time.Duration `yaml:"tpot,omitempty"`
}

// IsZero tells whether anything may be asked for.
func (m SLOMin) IsZero() bool { return m == SLOMin{} }

func (m SLOMin) validate(at string, permitted bool, bad func(path string, value any, allowed string)) {
	for _, v := range []struct {
		path string
		d    time.Duration
	}{{"ttft", m.TTFT}, {"tpot", m.TPOT}} {
		if v.d < 0 || v.d > MaxSLO {
			bad(at+".slo_min."+v.path, v.d, fmt.Sprintf("0s to %v", MaxSLO))
		}
	}
	if !permitted && !m.IsZero() {
		bad(at+".slo_min", "a limit", "nothing without slo_headers: true")
	}
}

// Limits are those that a request has of its own; 0 is its class's.
type Limits struct {
	TTFT time.Duration // until the first token
	TPOT time.Duration // between two output tokens
}

// Limits reads a request's own limits. asked tells that it has such a header, whether
// or not the principal may use it. A value that isn't allowed is a 400.
func (p *Principal) Limits(h http.Header) (own Limits, asked bool, err *wire.Error) {
	for _, l := range []struct {
		header string
		least  time.Duration
		limit  *time.Duration
	}{{TTFTHeader, p.SLOMin.TTFT, &own.TTFT}, {TPOTHeader, p.SLOMin.TPOT, &own.TPOT}} {
		values := h[l.header]
		if len(values) == 0 {
			continue
		}
		asked = true
		if !p.SLOHeaders {
			continue
		}
		// Several lines of one header are one list, which is no number.
		text := strings.TrimSpace(strings.Join(values, ", "))
		d, ok := milliseconds(text)
		if !ok || d > MaxSLO || d > 0 && d < l.least {
			return Limits{}, true, wire.InvalidField(strings.ToLower(l.header), strconv.Quote(text), allowedLimit(l.least))
		}
		*l.limit = d
	}
	return own, asked, nil
}

func allowedLimit(least time.Duration) string {
	unit := "milliseconds as a number such as 500 or 12.5"
	most := strconv.FormatInt(MaxSLO.Milliseconds(), 10)
	if least == 0 {
		return fmt.Sprintf("0 (the class's own limit) to %s, %s", most, unit)
	}
	return fmt.Sprintf("%s, the least for this key, to %s, %s, or 0 (the class's own limit)",
		strconv.FormatFloat(float64(least)/float64(time.Millisecond), 'f', -1, 64), most, unit)
}

// milliseconds reads digits, and more behind a point. What is not 0 is not rounded
// to it.
func milliseconds(text string) (time.Duration, bool) {
	whole, rest, point := strings.Cut(text, ".")
	if len(text) > 32 || !digits(whole) || point && !digits(rest) {
		return 0, false
	}
	ms, err := strconv.ParseFloat(text, 64)
	if err != nil || ms > float64(math.MaxInt64/time.Millisecond) {
		return 0, false
	}
	return time.Duration(math.Ceil(ms * float64(time.Millisecond))), true
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
