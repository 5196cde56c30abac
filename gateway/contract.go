package gateway

import (
	"net/http"
	"strconv"
	"strings"

	"headgate/relay"
	"headgate/wire"
)

// What a client and a pool that re-plans tell each other. A client says with
// Headgate-Context what the sequences of its session may come to, in tokens, prompt and
// output, or with 0 that the session is over; every answer of such a pool says in which
// profile it was made, and which context the session has as long as it lives.
const (
	headerContext = "Headgate-Context"
	headerProfile = "Headgate-Profile"
)

// maxContextAsked is beyond every engine.
const maxContextAsked = 1 << 30

// contextOf reads what a request says of its session's context: 0 is nothing, below 0 the
// session's end.
func contextOf(h http.Header) (int64, *wire.Error) {
	values := h.Values(headerContext)
	if len(values) == 0 {
		return 0, nil
	}
	text := strings.Join(values, ", ") // several lines are one list, which is no number
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > maxContextAsked {
		e := wire.NewError(wire.CodeInvalidField, "%s is %.40q, must be a number of tokens, 1 to %d, or 0 to end the session", headerContext, text, maxContextAsked)
		e.Param = headerContext
		return 0, e
	}
	if n == 0 {
		return -1, nil
	}
	return int64(n), nil
}

// contract tells a client of the profile and of its session's context.
func (w *response) contract(d *relay.Decision) {
	if d.Profile == "" {
		return
	}
	w.header.Set(headerProfile, d.Profile)
	w.header.Set(headerContext, strconv.FormatInt(d.Context, 10))
}

// profilesJSON is what /v1/models adds for a model of a pool that re-plans. max_model_len
// beside it is what every profile gives.
type profilesJSON struct {
	// Profile is the one that the engine is in, and MaxModelLenNow what that gives. Both
	// may change; a session that is promised more keeps what it has.
	Profile        string        `json:"profile"`
	MaxModelLenNow int           `json:"max_model_len_now"`
	Profiles       []profileJSON `json:"profiles"`
}

type profileJSON struct {
	Name        string `json:"name"`
	MaxModelLen int    `json:"max_model_len"`
	Slots       int    `json:"slots"`
}

func profilesView(m *relay.Model) *profilesJSON {
	if m.Profile == "" {
		return nil
	}
	v := &profilesJSON{Profile: m.Profile}
	for _, q := range m.Profiles {
		v.Profiles = append(v.Profiles, profileJSON{q.Name, q.MaxContext, q.Slots})
		if q.Name == m.Profile {
			v.MaxModelLenNow = q.MaxContext
		}
	}
	return v
}
