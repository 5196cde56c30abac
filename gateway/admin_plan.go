package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"headgate/relay"
)

// plans answers with what the planner of each pool that re-plans is at.
func (g *Gateway) plans(w http.ResponseWriter, _ *http.Request) {
	views := []relay.PlanView{}
	for _, p := range g.live().Pools {
		if v := p.Plan(); v != nil {
			views = append(views, *v)
		}
	}
	writeJSON(w, views)
}

// maxWish is how long an operator's wish may last.
const maxWish = 30 * 24 * time.Hour

// setPlan has an engine go to a profile, or leaves it to the planner again.
func (g *Gateway) setPlan(w http.ResponseWriter, r *http.Request) {
	if !ownJSON(w, r) {
		return
	}
	fail := func(status int, format string, args ...any) { http.Error(w, fmt.Sprintf(format, args...), status) }
	var in struct {
		Pool    string `json:"pool"`
		Profile string `json:"profile"`
		For     string `json:"for"`
		Reason  string `json:"reason"`
	}
	if err := object(http.MaxBytesReader(w, r.Body, maxSwitchBody), &in); err != nil {
		fail(http.StatusBadRequest, "%v", err)
		return
	}
	lasts := time.Duration(0)
	if in.For != "" {
		var err error
		if lasts, err = time.ParseDuration(in.For); err != nil || lasts < 0 || lasts > maxWish {
			fail(http.StatusBadRequest, `"for" is %.40q, must be a duration such as 1h, at most %s; 0s is until it is set again`, in.For, maxWish)
			return
		}
	}
	switch {
	case in.Profile == "":
		fail(http.StatusBadRequest, `the body must have "profile", the name of one, or auto to leave it to the planner`)
		return
	case len(in.Reason) > maxReason:
		fail(http.StatusBadRequest, "reason has %d bytes, must be at most %d", len(in.Reason), maxReason)
		return
	}
	var planned []*relay.Pool
	for _, p := range g.live().Pools {
		if p.Plan() != nil && (in.Pool == "" || p.Name() == in.Pool) {
			planned = append(planned, p)
		}
	}
	switch {
	case len(planned) == 0 && in.Pool != "":
		fail(http.StatusNotFound, "pool %.60q does not re-plan, or its engine has not said yet what it is, or there is none of that name", in.Pool)
		return
	case len(planned) == 0:
		fail(http.StatusConflict, "no pool re-plans")
		return
	case len(planned) > 1:
		fail(http.StatusBadRequest, `several pools re-plan: name one by "pool"`)
		return
	}
	p := planned[0]
	profile := in.Profile
	if profile == "auto" {
		profile = ""
	}
	_, err := p.Wish(profile, lasts, relay.SwitchState{Actor: actor(r), Remote: r.RemoteAddr, Reason: clean(in.Reason, maxReason)})
	switch {
	case errors.Is(err, relay.ErrNoProfile):
		var names []string
		for _, q := range p.Plan().Profiles {
			names = append(names, q.Name)
		}
		fail(http.StatusBadRequest, "profile %.60q: allowed are auto, %s", in.Profile, strings.Join(names, ", "))
		return
	case err != nil:
		fail(http.StatusConflict, "%v", err)
		return
	}
	g.plans(w, r)
}
