package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/console/now"
	"headgate/control"
	"headgate/control/agent"
	"headgate/control/store"
	"headgate/identity"
	"headgate/journal"
	"headgate/relay"
)

// Fleet is what an admin listener tells of the fleet that its process is a part of.
type Fleet struct {
	Name    string
	Replica string // "" of a controller, which serves nobody
	// State reads what is in the store.
	State   func(context.Context) (*store.State, error)
	Timeout time.Duration // of State
	Pools   func() []*relay.Pool
	// Forget has the leader let go of what survives of a replica; false: this process does
	// not lead.
	Forget  func(replica string) bool
	Log     *slog.Logger
	Journal *journal.Writer // nil: none
	Start   time.Time       // from which the journal counts
}

// Admin returns the handler of the admin listener of a process that serves nobody: a
// controller, for those operators that there are at the time. It is ready while it can
// read the store.
func (f *Fleet) Admin(metrics prometheus.Gatherer, operators func() *identity.Operators) http.Handler {
	ready := func() error {
		_, err := f.read(context.Background())
		return err
	}
	mux := common(metrics, ready, func() []string { return nil })
	mux.HandleFunc("GET /api/session", session(operators, "", []string{now.PartFleet}))
	f.routes(mux)
	return guard(mux, operators)
}

func (f *Fleet) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/grants", f.grants)
	mux.HandleFunc("GET /api/events", f.events)
	mux.HandleFunc("POST /api/fleet/forget", f.forget)
}

// errNoStore is why nothing can be said of the fleet.
var errNoStore = errors.New("the fleet's store can't be read")

func (f *Fleet) read(ctx context.Context) (*store.State, error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	s, err := f.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoStore, err)
	}
	return s, nil
}

// GrantsView is /api/grants.
type GrantsView struct {
	Fleet   string `json:"fleet"`
	Replica string `json:"replica,omitempty"` // that was asked
	// Held is what that replica has, by pool. It needs no store.
	Held []HeldView `json:"held"`
	// The rest is what the store has; StoreError is why nothing.
	StoreError string           `json:"store_error,omitempty"`
	Leader     string           `json:"leader"`
	Epoch      uint64           `json:"epoch"`
	Members    []control.Member `json:"members"`
	// Pools is what the leader says of each pool, an agent.Published.
	Pools map[string]json.RawMessage `json:"pools"`
}

// HeldView is what a replica has of a pool.
type HeldView struct {
	Pool  string `json:"pool"`
	Lease int64  `json:"lease"`
	// LeaseLeftS is for how long what is granted is in force at least, in seconds.
	LeaseLeftS float64        `json:"lease_left_s"`
	InForce    bool           `json:"in_force"`
	AgeS       float64        `json:"grant_age_s"`
	Grant      *control.Grant `json:"grant"`
	NotReady   string         `json:"not_ready,omitempty"`
}

func held(p *relay.Pool) (v HeldView, ok bool) {
	h, ok := p.Held()
	v = HeldView{Pool: p.Name(), Lease: h.Lease, InForce: h.InForce, Grant: h.Grant}
	seconds := func(d time.Duration) float64 { return math.Round(d.Seconds()*1e3) / 1e3 }
	if h.Lease != 0 {
		v.LeaseLeftS = seconds(time.Until(h.Until))
	}
	if h.Grant != nil {
		v.AgeS = seconds(time.Since(h.Taken))
	}
	if err := p.Ready(); err != nil {
		v.NotReady = err.Error()
	}
	return v, ok
}

// grants answers with what this replica has, and with the whole fleet as its leader
// sees it.
func (f *Fleet) grants(w http.ResponseWriter, r *http.Request) {
	v := GrantsView{Fleet: f.Name, Replica: f.Replica, Held: []HeldView{}, Members: []control.Member{}, Pools: map[string]json.RawMessage{}}
	for _, p := range f.Pools() {
		if h, ok := held(p); ok {
			v.Held = append(v.Held, h)
		}
	}
	s, err := f.read(r.Context())
	if err != nil {
		v.StoreError = err.Error()
		writeJSON(w, v)
		return
	}
	v.Leader, v.Epoch = s.Leader, s.Epoch
	v.Members = append(v.Members, s.Members...)
	for pool, status := range s.Status {
		v.Pools[pool] = status
	}
	writeJSON(w, v)
}

// MaxEvents bounds what is asked for; the store keeps fewer of each pool.
const MaxEvents = 1000

// events answers with the last stages of handoffs of all pools, newest first.
func (f *Fleet) events(w http.ResponseWriter, r *http.Request) {
	n := 50
	if q := r.URL.Query(); q.Has("n") {
		var err error
		if n, err = strconv.Atoi(q.Get("n")); err != nil || n < 1 || n > MaxEvents {
			http.Error(w, fmt.Sprintf("n is %.40q, must be a whole number from 1 to %d", q.Get("n"), MaxEvents), http.StatusBadRequest)
			return
		}
	}
	s, err := f.read(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	all := []agent.Event{}
	for pool, status := range s.Status {
		var p agent.Published
		if err := json.Unmarshal(status, &p); err != nil {
			http.Error(w, fmt.Sprintf("what the leader says of pool %s is not understood: %v", pool, err), http.StatusBadGateway)
			return
		}
		all = append(all, p.Handoffs...)
	}
	slices.SortStableFunc(all, func(a, b agent.Event) int { return b.Time.Compare(a.Time) })
	writeJSON(w, all[:min(n, len(all))])
}

// forget lets go of what survives of a replica that will not come back.
func (f *Fleet) forget(w http.ResponseWriter, r *http.Request) {
	if !ownJSON(w, r) {
		return
	}
	fail := func(status int, format string, args ...any) { http.Error(w, fmt.Sprintf(format, args...), status) }
	var in struct {
		Replica string `json:"replica"`
		Reason  string `json:"reason"`
	}
	err := object(http.MaxBytesReader(w, r.Body, maxSwitchBody), &in)
	switch {
	case err != nil:
	case !identity.ValidName(in.Replica):
		err = fmt.Errorf(`"replica" is %.60q, must be a replica's name`, in.Replica)
	case len(in.Reason) > maxReason:
		err = fmt.Errorf("reason has %d bytes, must be at most %d", len(in.Reason), maxReason)
	}
	if err != nil {
		fail(http.StatusBadRequest, "%v", err)
		return
	}
	s, err := f.read(r.Context())
	switch {
	case err != nil:
		fail(http.StatusServiceUnavailable, "%v", err)
		return
	case slices.ContainsFunc(s.Members, func(m control.Member) bool { return m.Replica == in.Replica }):
		fail(http.StatusConflict, "replica %s has a lease: only one that is gone can be forgotten", in.Replica)
		return
	case !slices.ContainsFunc(s.Grants, func(g control.Grant) bool { return g.Replica == in.Replica }):
		fail(http.StatusNotFound, "nothing is kept for a replica %s", in.Replica)
		return
	case !f.Forget(in.Replica):
		if s.Leader == "" {
			fail(http.StatusConflict, "nobody leads the fleet: try again")
			return
		}
		fail(http.StatusConflict, "%s leads the fleet, and only the leader can forget: ask its admin listener", s.Leader)
		return
	}
	use := journal.Switch{Name: "forget", To: in.Replica, Actor: actor(r), Remote: r.RemoteAddr, Reason: clean(in.Reason, maxReason)}
	f.Log.Warn("an operator has a replica forgotten", "replica", in.Replica, "actor", use.Actor, "remote", use.Remote, "reason", use.Reason)
	if f.Journal != nil {
		f.Journal.Append(&journal.Event{Kind: journal.Switched, Mono: int64(time.Since(f.Start)), Switch: &use})
	}
	writeJSON(w, map[string]string{"forgotten": in.Replica})
}
