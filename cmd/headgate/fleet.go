package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/config"
	"headgate/control"
	"headgate/control/agent"
	"headgate/control/etcd"
	"headgate/control/store"
	"headgate/gateway"
	"headgate/identity"
	"headgate/relay"
)

// reportSettle is for how long changes that nobody waits for are collected before they
// are reported.
const reportSettle = 250 * time.Millisecond

// fleet is this process's part in a fleet: an agent where it serves, a leader where it
// campaigns.
type fleet struct {
	cfg     *config.Control
	id      control.ID
	log     *slog.Logger
	store   store.Store
	metrics *agent.Metrics
	agent   *agent.Agent  // nil: a controller
	leader  *agent.Leader // nil: it does not campaign
	routes  *agent.Routes // nil: nothing is sent on to other replicas

	leading, living sync.WaitGroup
	stopLeader      context.CancelFunc
	stopAgent       context.CancelFunc
}

// replicaName is this process's name in the fleet.
func replicaName(c *config.Control) (string, error) {
	if c.Replica != "" {
		return c.Replica, nil
	}
	name, err := os.Hostname()
	if err == nil && !identity.ValidName(name) {
		err = fmt.Errorf("the host's name %q must be %s", name, identity.NameRule)
	}
	if err != nil {
		return "", fmt.Errorf("control.replica is absent, and %w", err)
	}
	return name, nil
}

// newFleet opens the store. Nothing is written there before start.
func newFleet(c *config.Control, reg prometheus.Registerer, log *slog.Logger) (*fleet, error) {
	f := &fleet{cfg: c, log: log, metrics: agent.NewMetrics(reg)}
	var err error
	if f.id.Replica, err = replicaName(c); err != nil {
		return nil, err
	}
	var boot [8]byte
	_, _ = rand.Read(boot[:]) // never fails
	f.id.Boot = hex.EncodeToString(boot[:])
	if f.store, err = openStore(c, log); err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	return f, nil
}

// serve makes the agent that ties pools to the fleet.
func (f *fleet) serve(pools []*relay.Pool) {
	member := control.Member{ID: f.id}
	if f.cfg.Forward != nil {
		member.Address = f.cfg.Forward.AddressOf(f.id.Replica)
	}
	f.agent = agent.New(agent.Config{
		Store: f.store, Member: member, TTL: f.cfg.TTL, Every: f.cfg.Heartbeat, Settle: reportSettle, Timeout: f.cfg.Timeout,
		Log: f.log, Metrics: f.metrics,
	})
	for _, p := range pools {
		f.agent.Add(p)
	}
}

// lead makes the leader; current is the configuration in force.
func (f *fleet) lead(who string, current func() *config.Config) {
	f.leader = agent.NewLeader(agent.LeaderConfig{
		Store: f.store, Who: who, TTL: f.cfg.TTL, Timeout: f.cfg.Timeout, Judge: judge(f.cfg), Pools: ruled(current()),
		Sized: func(pool string, found map[string]control.Amount) (*control.Pool, error) {
			return sized(current(), pool, found)
		},
		Repeat: control.RepeatStatus, Log: f.log, Metrics: f.metrics,
	})
}

// forward makes what sends requests on to other replicas; nil: nothing does.
func (f *fleet) forward() (*gateway.Forwarding, error) {
	c := f.cfg.Forward
	if c == nil {
		return nil, nil
	}
	v := &gateway.Forwarding{Secret: identity.NewSecret(os.Getenv(c.SecretEnv)), Connect: c.ConnectTimeout}
	if n := len(v.Secret.Reveal()); n < config.LeastSecret {
		return nil, fmt.Errorf("control.forward.secret_env: variable %s holds %d bytes; allowed: %d or more", c.SecretEnv, n, config.LeastSecret)
	}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("control.forward.ca: %w", err)
		}
		if v.Roots = x509.NewCertPool(); !v.Roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("control.forward.ca: %s holds no certificate", c.CA)
		}
	}
	f.routes = agent.NewRoutes(f.store, f.id, f.log)
	v.Router = f.routes
	return v, nil
}

// judge is how demand is judged.
func judge(c *config.Control) control.Config {
	j := control.Config{Starve: c.Starve}
	j.SetDefaults()
	j.Stale = max(j.Stale, 3*c.Heartbeat)
	return j
}

// ruled are the pools as a leader has them before anybody has told what engines hold.
func ruled(cfg *config.Config) []control.Pool {
	var pools []control.Pool
	for i := range cfg.Pools {
		pools = append(pools, *cfg.Shared(i, nil))
	}
	return pools
}

// sized is a pool with what its engines have turned out to hold.
func sized(cfg *config.Config, pool string, found map[string]control.Amount) (*control.Pool, error) {
	i := slices.IndexFunc(cfg.Pools, func(p config.Pool) bool { return p.Name == pool })
	if i < 0 {
		return nil, fmt.Errorf("no pool %s is configured", pool)
	}
	sizes := map[string]config.Envelope{}
	for name, a := range found {
		sizes[name] = config.Envelope{Slots: a[0], KVTokens: a[1]}
	}
	return fitting(cfg, i, sizes)
}

// fitting is the i-th pool, if the engines that were found fit it.
func fitting(cfg *config.Config, i int, sizes map[string]config.Envelope) (*control.Pool, error) {
	s := cfg.Shared(i, sizes)
	for _, p := range cfg.Fits(i, s) {
		if !p.Warning {
			return nil, fmt.Errorf("the engines found do not fit the configuration: %v", p)
		}
	}
	return s, nil
}

// start begins to campaign and to take part, until ctx is over at the latest.
func (f *fleet) start(ctx context.Context) {
	var leading, living context.Context
	leading, f.stopLeader = context.WithCancel(ctx)
	living, f.stopAgent = context.WithCancel(ctx)
	if f.leader != nil {
		f.leading.Go(func() { f.leader.Run(leading) })
	}
	if f.agent != nil {
		f.living.Go(func() { f.agent.Run(living) })
	}
	if f.routes != nil {
		f.living.Go(func() { f.routes.Run(living) })
	}
}

// resign gives the lead back, so that another has it at once.
func (f *fleet) resign() {
	f.stopLeader()
	f.leading.Wait()
}

// leave gives the lease back, once nothing runs under it any more: what is left is
// what its engines have not confirmed, and the leader keeps that reserved.
func (f *fleet) leave() {
	f.stopAgent()
	f.living.Wait()
}

// close lets go of the store.
func (f *fleet) close() error { return f.store.Close() }

// changed tells the leader of another configuration.
func (f *fleet) changed(cfg *config.Config) {
	if f.leader != nil {
		f.leader.Change(ruled(cfg))
	}
}

// view is what the admin listener tells of the fleet; pools are this process's.
func (f *fleet) view(s *shared, pools func() []*relay.Pool) *gateway.Fleet {
	v := &gateway.Fleet{
		Name: f.cfg.Fleet, Timeout: f.cfg.Timeout, Pools: pools, Log: f.log, Journal: s.journal, Start: s.start,
		State: func(ctx context.Context) (*store.State, error) {
			st, err := f.store.State(ctx)
			f.metrics.Store("state", err)
			return st, err
		},
		Forget: func(replica string) bool { return f.leader != nil && f.leader.Forget(replica) },
	}
	if f.agent != nil {
		v.Replica = f.id.Replica
	}
	return v
}

// openStore opens the fleet's store.
func openStore(c *config.Control, log *slog.Logger) (store.Store, error) {
	if c.Store == config.StoreMemory {
		return store.NewMemory(), nil
	}
	e := c.Etcd()
	e.Log = log
	return etcd.New(e)
}
