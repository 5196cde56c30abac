package gateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"headgate/admission"
	"headgate/relay"
)

// SwitchView is one pool on /api/switches.
type SwitchView struct {
	Pool     string                             `json:"pool"`
	Switches map[relay.Switch]relay.SwitchState `json:"switches"`
}

func (g *Gateway) switches(w http.ResponseWriter, _ *http.Request) {
	views := []SwitchView{}
	for _, p := range g.live().Pools {
		views = append(views, SwitchView{p.Name(), p.Switches()})
	}
	writeJSON(w, views)
}

// observed answers with what enforcing would have done in a pool that observes.
func (g *Gateway) observed(w http.ResponseWriter, r *http.Request) {
	for _, p := range g.live().Pools {
		if p.Name() != r.PathValue("pool") {
			continue
		}
		report := p.Observed()
		switch {
		case report == nil:
			http.Error(w, noReport, http.StatusConflict)
		case r.URL.Query().Get("format") == "text":
			fmt.Fprint(w, report)
		default:
			writeJSON(w, report)
		}
		return
	}
	http.Error(w, noPool(r.PathValue("pool"), g.live().Pools), http.StatusNotFound)
}

// noPool says that a pool is none of those that there are.
func noPool(name string, pools []*relay.Pool) string {
	var there []string
	for _, p := range pools {
		there = append(there, p.Name())
	}
	return fmt.Sprintf("no pool %.60q: there are %s", name, strings.Join(there, ", "))
}

const noReport = "the pool enforces, or no engine has answered yet: there is no report"

// ObserveView is one pool on /api/observe; without a report None says why.
type ObserveView struct {
	Pool   string            `json:"pool"`
	Report *admission.Report `json:"report"`
	None   string            `json:"none,omitempty"`
}

// observedAll answers with the reports of all pools, in their order.
func (g *Gateway) observedAll(w http.ResponseWriter, r *http.Request) {
	views := []ObserveView{}
	for _, p := range g.live().Pools {
		v := ObserveView{Pool: p.Name(), Report: p.Observed()}
		if v.Report == nil {
			v.None = noReport
		}
		views = append(views, v)
	}
	if r.URL.Query().Get("format") != "text" {
		writeJSON(w, views)
		return
	}
	for i, v := range views {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "pool %s\n", v.Pool)
		if v.Report == nil {
			fmt.Fprintln(w, v.None)
		} else {
			fmt.Fprint(w, v.Report)
		}
	}
}

// What a use of a switch may say, in bytes.
const (
	maxSwitchBody = 4 << 10
	maxReason     = 500
	maxActor      = 100
	switchTime    = 10 * time.Second
)

// Headers that name who uses a switch, the first that is there: a client's own, and
// that of a proxy that has authenticated him. They are written down and decide
// nothing.
const (
	headerActor = "Headgate-Actor"
	headerUser  = "X-Forwarded-User"
)

// ownJSON refuses what a page of another origin might have a browser send: JSON takes a
// permission that is never given, and what browsers say of where a request comes from
// is looked at too.
//
// A body that is allowed has some seconds to come.
func ownJSON(w http.ResponseWriter, r *http.Request) bool {
	// A server that can't set deadlines (a test's recorder) reads without one.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(switchTime))
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		http.Error(w, "a request of another origin", http.StatusForbidden)
		return false
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "Content-Type must be application/json", http.StatusUnsupportedMediaType)
		return false
	}
	return true
}

// actor is who asks for a change: by the name of his key, and behind it by what he or a
// proxy says.
func actor(r *http.Request) string {
	said := clean(cmp.Or(r.Header.Get(headerActor), r.Header.Get(headerUser)), maxActor)
	name, ok := r.Context().Value(operator{}).(string)
	switch {
	case !ok:
		return said
	case said == "":
		return name
	}
	return name + " for " + said
}

// object reads a body that is one JSON object of known fields.
func object(body io.Reader, to any) error {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("the body must be one JSON object: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body must be one JSON object, and there is more")
	}
	return nil
}

// setSwitch turns a switch of a pool.
func (g *Gateway) setSwitch(w http.ResponseWriter, r *http.Request, which relay.Switch) {
	if !ownJSON(w, r) {
		return
	}
	fail := func(status int, format string, args ...any) { http.Error(w, fmt.Sprintf(format, args...), status) }
	pools := g.live().Pools
	i := slices.IndexFunc(pools, func(p *relay.Pool) bool { return p.Name() == r.PathValue("pool") })
	if i < 0 {
		fail(http.StatusNotFound, "%s", noPool(r.PathValue("pool"), pools))
		return
	}
	next, err := readSwitch(http.MaxBytesReader(w, r.Body, maxSwitchBody), which)
	if err != nil {
		fail(http.StatusBadRequest, "%v", err)
		return
	}
	next.Remote = r.RemoteAddr
	next.Actor = actor(r)
	pools[i].Set(which, next)
	writeJSON(w, SwitchView{pools[i].Name(), pools[i].Switches()})
}

// readSwitch reads what a switch is to be. Lending is paused, the others are on.
func readSwitch(body io.Reader, which relay.Switch) (next relay.SwitchState, err error) {
	var in struct {
		On     *bool  `json:"on"`
		Paused *bool  `json:"paused"`
		Recall bool   `json:"recall"`
		Reason string `json:"reason"`
	}
	if err := object(body, &in); err != nil {
		return next, err
	}
	name, on, other := "on", in.On, in.Paused
	if which == relay.SwitchLending {
		name, on, other = "paused", in.Paused, in.On
	}
	switch {
	case on == nil || other != nil:
		return next, fmt.Errorf("the body must have %q, true or false, and no other switch", name)
	case in.Recall && (which != relay.SwitchLending || !*on):
		return next, errors.New(`"recall" goes with {"paused": true} of lending only`)
	case len(in.Reason) > maxReason:
		return next, fmt.Errorf("reason has %d bytes, must be at most %d", len(in.Reason), maxReason)
	}
	next.On, next.Recall, next.Reason = *on, in.Recall, clean(in.Reason, maxReason)
	return next, nil
}

// clean makes text that comes from outside fit for one line of a log: what can't be
// printed is a question mark, and what is beyond a bound in bytes is cut off.
func clean(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}
