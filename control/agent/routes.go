package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"headgate/control"
	"headgate/control/store"
)

// Routes keeps a replica's Router up to date by the store.
type Routes struct {
	store store.Store
	log   *slog.Logger
	start time.Time

	mu     sync.Mutex
	router *control.Router
}

// NewRoutes makes the routes of a replica. Until Run has heard of others there are
// none.
func NewRoutes(s store.Store, id control.ID, log *slog.Logger) *Routes {
	return &Routes{store: s, log: log, start: time.Now(), router: control.NewRouter(id)}
}

// Run follows the members and what is published, until ctx is over.
func (r *Routes) Run(ctx context.Context) {
	members, statuses := r.store.Members(ctx), r.store.Statuses(ctx)
	for members != nil || statuses != nil {
		select {
		case all, ok := <-members:
			if !ok {
				members = nil
				continue
			}
			r.mu.Lock()
			r.router.Members(all)
			r.mu.Unlock()
		case p, ok := <-statuses:
			if !ok {
				statuses = nil
				continue
			}
			s := new(control.Status)
			if err := json.Unmarshal(p.Status, s); err != nil || s.Pool != p.Pool {
				r.log.Warn("what was published of a pool can't be read", "pool", p.Pool, "of", s.Pool, "err", err)
				continue
			}
			r.mu.Lock()
			r.router.Status(r.now(), s)
			r.mu.Unlock()
		}
	}
}

func (r *Routes) now() control.Time { return control.Time(time.Since(r.start)) + 1 }

// Route returns the replica that a request of a pool that would have to wait here is to
// be sent to; ok is false if it stays here.
func (r *Routes) Route(pool, request string, need *control.Need) (to control.Member, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.router.Route(r.now(), pool, request, need)
}

// Unreached notes that a replica could not be connected to.
func (r *Routes) Unreached(replica string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.router.Unreached(r.now(), replica)
}
