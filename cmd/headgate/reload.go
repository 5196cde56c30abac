package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/audit"
	"headgate/config"
	"headgate/gateway"
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

// look reads what is watched.
type look func() ([]byte, error)

// readFiles reads files as one; those without a name are none.
func readFiles(names ...string) (all []byte, err error) {
	for _, name := range names {
		if name == "" {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, b...)
	}
	return all, nil
}

// watch has the configuration reread on SIGHUP and when its files change, until ctx
// ends. read is nil where only the signal counts.
//
// Alternatives: the system's notifications come at once, and are of files, where a
// mounted configuration is a chain of links that are replaced; a second is soon enough
// for what a person does.
func watch(ctx context.Context, read look, reread func()) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGHUP)
	defer signal.Stop(asked)
	var changed <-chan time.Time
	if read != nil {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		changed = tick.C
	}
	if read == nil {
		read = func() ([]byte, error) { return nil, nil }
	}
	taken, _ := read()
	last := taken
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
			taken, _ = read()
			last = taken
		case <-changed:
			now, err := read()
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
		reread()
	}
}

// loader reads a configuration file.
type loader func() (*config.Config, []config.Problem, error)

// reread reads the file and takes it over, or says why not.
func (s *server) reread() {
	s.certs.reload()
	s.reloads.reread(s.log, s.load, s.reconfigure, s.audit)
	if s.behind {
		s.reloads.refused.Set(1)
	}
}

// reread reads a file, has take take it over, and says what became of it.
func (r *reloads) reread(log *slog.Logger, load loader, take func(*config.Config) ([]config.Change, error), to *audit.Writer) {
	cfg, problems, err := load()
	for _, p := range problems {
		log.Warn("configuration", "problem", p.String())
	}
	if err == nil && cfg == nil {
		err = fmt.Errorf("%d problems", config.Errors(problems))
	}
	var changes []config.Change
	if err == nil {
		changes, err = take(cfg)
	}
	outcome := "taken"
	switch {
	case err != nil:
		outcome = "refused"
		log.Error("the configuration file is refused; what was in force goes on", "err", err)
	case len(changes) == 0:
		outcome = "unchanged"
	}
	auditReload(to, outcome, changes, err)
	r.total.WithLabelValues(outcome).Inc()
	r.refused.Set(0)
	if err != nil {
		r.refused.Set(1)
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
	if err := underControl(cfg); err != nil {
		return nil, err
	}
	if cfg.Limits.BalanceFile == "" && slices.ContainsFunc(cfg.Limits.Tenants, func(t config.TenantLimits) bool { return t.Balance != nil }) {
		return nil, errors.New("limits.tenants: a balance needs limits.balance_file, which is taken with a restart")
	}
	if err := s.comesBack(cfg); err != nil {
		return nil, err
	}
	if err := cfg.Admin.Exposed(cfg.Admin.Listen); err != nil {
		return nil, err
	}
	auth, err := s.callers(cfg)
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
		if rc, err = newPoolConfig(cfg, i, &s.shared); err != nil {
			return nil, err
		}
		p, err := buildPool(rc)
		if err != nil {
			return nil, err
		}
		added, next = append(added, p), append(next, p)
	}

	for _, p := range added {
		s.follow(p)
		if s.fleet != nil {
			s.fleet.agent.Add(p)
		}
	}
	var failed error
	s.behind = false
	s.gateway.Reconfigure(func() gateway.Config {
		for _, c := range ready {
			failed = errors.Join(failed, c.Commit())
		}
		s.pools.Store(&next)
		limits := cfg.Limits.Quota()
		s.shared.limits.Apply(&limits)
		s.calling.Store(auth)
		return gatewayConfig(cfg, auth.auth, next)
	})
	s.level.Set(cfg.Log.Severity())
	if failed != nil {
		cfg.Pools = old.Pools // so that the next look at the file tries them again
	}
	s.config.Store(cfg)
	if s.fleet != nil {
		s.fleet.changed(cfg)
	}
	for _, p := range before {
		if !slices.Contains(next, p) {
			s.remove(p)
		}
	}
	tellChanges(s.log, changes)
	if failed != nil {
		// An engine has become another in the very moment.
		s.behind = true
		s.log.Error("a pool keeps its old configuration until the file is read again", "err", failed)
	}
	return changes, nil
}

func tellChanges(log *slog.Logger, changes []config.Change) {
	for _, c := range changes {
		if c.Restart {
			log.Warn("this change needs a restart", "setting", c.Path, "in_force", c.Old, "configured", c.New)
		} else {
			log.Info("configuration changed", "setting", c.Path, "was", c.Old, "is", c.New)
		}
	}
}

// underControl tells what is wrong with a configuration that has the control that is in
// force and not its file's.
func underControl(cfg *config.Config) error {
	if cfg.Control == nil {
		return nil
	}
	for _, p := range cfg.Check() {
		if !p.Warning {
			return fmt.Errorf("with the control that is in force: %v", p)
		}
	}
	return nil
}

// comesBack refuses a pool that was removed: it is another than the one that still
// drains, and the fleet could not tell the two apart.
func (s *server) comesBack(cfg *config.Config) error {
	for _, p := range s.leaving {
		if cfg.Control != nil && slices.ContainsFunc(cfg.Pools, func(c config.Pool) bool { return c.Name == p.Name() }) {
			return fmt.Errorf("pool %s was removed since the process started: in a fleet it comes back with a restart", p.Name())
		}
	}
	return nil
}

// keepUnchangeable puts what needs a restart back to what is in force, so that the
// next file is compared with that.
func keepUnchangeable(old, cfg *config.Config) {
	cfg.Listen, cfg.Journal, cfg.Log.Format = old.Listen, old.Journal, old.Log.Format
	cfg.Admin.Listen, cfg.Admin.OTLPTraces, cfg.Admin.TLS = old.Admin.Listen, old.Admin.OTLPTraces, old.Admin.TLS
	cfg.OTLP, cfg.Estimates, cfg.Control, cfg.Batch = old.OTLP, old.Estimates, old.Control, old.Batch
	cfg.TLS, cfg.Audit = old.TLS, old.Audit
	for i := range cfg.Pools {
		if k := slices.IndexFunc(old.Pools, func(p config.Pool) bool { return p.Name == cfg.Pools[i].Name }); k >= 0 {
			cfg.Pools[i].Replan = old.Pools[k].Replan
		}
	}
	cfg.Limits.HeaderBytes, cfg.Limits.HeaderTimeout, cfg.Limits.MaxConnections = old.Limits.HeaderBytes, old.Limits.HeaderTimeout, old.Limits.MaxConnections
	cfg.Limits.MaxTenants, cfg.Limits.BalanceFile = old.Limits.MaxTenants, old.Limits.BalanceFile
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
		if s.fleet != nil {
			s.fleet.agent.Remove(p.Name())
		}
		stop()
		s.log.Info("pool removed", "pool", p.Name())
	})
}
