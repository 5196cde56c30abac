package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/config"
	"headgate/gateway"
	"headgate/identity"
	"headgate/relay"
)

// lookEvery is how often a watched file is read. It is taken over when it has been
// the same twice, so not while somebody still writes to it.
const lookEvery = time.Second

// reloads counts what became of files that were read again.
type reloads struct {
	total   *prometheus.CounterVec
	refused prometheus.Gauge
}

func newReloads(reg prometheus.Registerer) *reloads {
	r := &reloads{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_config_reloads_total", Help: "Configuration files that were read while serving: taken over, refused, or unchanged.",
		}, []string{"outcome"}),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "headgate_config_refused", Help: "1 while the configuration file is not what is in force, because it was refused.",
		}),
	}
	for _, outcome := range []string{"taken", "refused", "unchanged"} {
		r.total.WithLabelValues(outcome)
	}
	reg.MustRegister(r.total, r.refused)
	return r
}

// watch takes over the configuration file on SIGHUP and when it changes, until ctx
// ends.
//
// Alternatives: the system's notifications come at once, and are of files, where a
// mounted configuration is a chain of links that are replaced; a second is soon enough
// for what a person does.
func (s *server) watch(ctx context.Context) {
	if s.load == nil {
		return
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGHUP)
	defer signal.Stop(asked)
	var changed <-chan time.Time
	if s.file != "" {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		changed = tick.C
	}
	taken, _ := os.ReadFile(s.file)
	last := taken
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
			taken, _ = os.ReadFile(s.file)
			last = taken
		case <-changed:
			now, err := os.ReadFile(s.file)
			if err != nil {
				continue // it is being replaced
			}
			same := bytes.Equal(now, last)
			last = now
			if !same || bytes.Equal(now, taken) {
				continue
			}
			taken = now
		}
		s.reread()
	}
}

// reread reads the file and takes it over, or says why not.
func (s *server) reread() {
	cfg, problems, err := s.load()
	for _, p := range problems {
		s.log.Warn("configuration", "problem", p.String())
	}
	if err == nil && cfg == nil {
		err = fmt.Errorf("%d problems", config.Errors(problems))
	}
	var changes []config.Change
	if err == nil {
		changes, err = s.reconfigure(cfg)
	}
	outcome := "taken"
	switch {
	case err != nil:
		outcome = "refused"
		s.log.Error("the configuration file is refused; what was in force goes on", "err", err)
	case len(changes) == 0:
		outcome = "unchanged"
	}
	s.reloads.total.WithLabelValues(outcome).Inc()
	s.reloads.refused.Set(0)
	if err != nil || s.behind {
		s.reloads.refused.Set(1)
	}
}

// reconfigure puts a configuration into force, all of it that does not need a restart
// or, with an error, nothing. It returns what is different.
func (s *server) reconfigure(cfg *config.Config) (_ []config.Change, err error) {
	old := s.config.Load()
	changes := config.Changes(old, cfg)
	if len(changes) == 0 {
		return nil, nil
	}
	keepUnchangeable(old, cfg)
	auth, err := identity.New(cfg.Identity)
	if err != nil {
		return nil, err
	}

	// Everything is made first, then all of it is swapped.
	var ready []*relay.Change
	var added, next []*relay.Pool
	defer func() {
		if err == nil {
			return
		}
		for _, c := range ready {
			c.Discard()
		}
		for _, p := range added {
			p.Drain(context.Background()) // it has nothing: this closes its adapters
		}
	}()
	before := s.present()
	for i := range cfg.Pools {
		rc := poolConfig(cfg, i, &s.shared)
		if k := slices.IndexFunc(before, func(p *relay.Pool) bool { return p.Name() == rc.Name }); k >= 0 {
			c, err := before[k].Prepare(rc)
			if err != nil {
				return nil, fmt.Errorf("pool %s: %w", rc.Name, err)
			}
			ready, next = append(ready, c), append(next, before[k])
			continue
		}
		p, err := buildPool(rc)
		if err != nil {
			return nil, err
		}
		added, next = append(added, p), append(next, p)
	}

	for _, p := range added {
		s.follow(p)
	}
	var failed error
	s.behind = false
	s.gateway.Reconfigure(func() gateway.Config {
		for _, c := range ready {
			failed = errors.Join(failed, c.Commit())
		}
		s.pools.Store(&next)
		return gatewayConfig(cfg, auth, next)
	})
	s.level.Set(cfg.Log.Severity())
	if failed != nil {
		cfg.Pools = old.Pools // so that the next look at the file tries them again
	}
	s.config.Store(cfg)
	for _, p := range before {
		if !slices.Contains(next, p) {
			s.remove(p)
		}
	}
	for _, c := range changes {
		if c.Restart {
			s.log.Warn("this change needs a restart", "setting", c.Path, "in_force", c.Old, "configured", c.New)
		} else {
			s.log.Info("configuration changed", "setting", c.Path, "was", c.Old, "is", c.New)
		}
	}
	if failed != nil {
		// An engine has become another in the very moment.
		s.behind = true
		s.log.Error("a pool keeps its old configuration until the file is read again", "err", failed)
	}
	return changes, nil
}

// keepUnchangeable puts what needs a restart back to what is in force, so that the
// next file is compared with that.
func keepUnchangeable(old, cfg *config.Config) {
	cfg.Listen, cfg.Admin, cfg.Journal, cfg.Log.Format = old.Listen, old.Admin, old.Journal, old.Log.Format
	cfg.OTLP, cfg.Estimates = old.OTLP, old.Estimates
	cfg.Limits.HeaderBytes, cfg.Limits.HeaderTimeout, cfg.Limits.MaxConnections = old.Limits.HeaderBytes, old.Limits.HeaderTimeout, old.Limits.MaxConnections
}

// remove lets a pool that is in no configuration any more finish what it runs, for as
// long as the process serves.
func (s *server) remove(p *relay.Pool) {
	stop := s.stops[p]
	delete(s.stops, p)
	running := s.running
	s.leaving = append(s.leaving, p)
	s.following.Go(func() {
		p.Drain(running)
		stop()
		s.log.Info("pool removed", "pool", p.Name())
	})
}
