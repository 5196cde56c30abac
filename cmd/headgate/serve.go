package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"headgate/audit"
	"headgate/batch"
	"headgate/config"
	"headgate/control/agent"
	"headgate/gateway"
	"headgate/identity"
	"headgate/identity/token"
	"headgate/journal"
	"headgate/quota/keeper"
	"headgate/relay"
	"headgate/telemetry"
	"headgate/telemetry/otlp"
	"headgate/telemetry/spans"
	"headgate/telemetry/tracing"
)

func serveCommand() *cobra.Command {
	var file, listen, admin string
	var demo, load, watch bool
	cmd := &cobra.Command{
		Use: "serve (-c FILE | --demo)", Short: "Serve clients", Args: cobra.NoArgs,
		Long: `Serve clients by a configuration file, or with --demo a simulated engine, two
classes, and files and batches in a temporary folder, without any file. A file that changes is taken over while it serves, on
SIGHUP at once; one with a problem is refused whole, and what was in force goes on.
SIGTERM and SIGINT drain: what comes and what waits is
refused, what runs finishes within limits.drain_timeout; a second signal ends it
at once. With control in the file it is a replica of a fleet, and gives back what it
was granted when nothing runs any more.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			var cfg *config.Config
			var err error
			switch {
			case demo == (file != ""):
				return errors.New("serve wants either --config FILE or --demo")
			case load && !demo:
				return errors.New("--sample-load goes with --demo")
			case demo:
				var closeEngine func()
				cfg, closeEngine, err = startDemo(ctx)
				if err == nil {
					defer closeEngine()
				}
			default:
				cfg, err = loadConfig(cmd, file)
			}
			if err != nil {
				return err
			}
			override := func(cfg *config.Config) {
				if listen != "" {
					cfg.Listen = listen
				}
				if admin != "" {
					cfg.Admin.Listen = admin
				}
			}
			override(cfg)
			s, err := newServer(cfg, cmd.ErrOrStderr())
			if err != nil {
				if wayOut(err) == "" && file != "" {
					err = hint(err, "headgate doctor -c "+file+" looks for what is wrong")
				}
				return err
			}
			log.SetFlags(0)
			log.SetOutput(libraryLog{s.log})
			s.override, s.said = override, map[string]bool{"listen": listen != "", "admin.listen": admin != ""}
			maps.DeleteFunc(s.said, func(_ string, said bool) bool { return !said })
			if !demo {
				s.load = func() (*config.Config, []config.Problem, error) {
					cfg, problems, err := config.Load(file)
					if cfg != nil {
						override(cfg)
					}
					return cfg, problems, err
				}
				if watch {
					s.look = func() ([]byte, error) { return readFiles(file, s.config.Load().Identity.KeysFile) }
				}
			}
			if demo {
				key, _, err := identity.NewKey(rand.Reader)
				if err != nil {
					return errors.Join(err, s.close())
				}
				printDemo(cmd.OutOrStdout(), s, key.Reveal())
			}
			if load {
				go sampleLoad(ctx, cmd.OutOrStdout(), "http://"+s.clients.Addr().String())
			}
			return s.run(ctx, stop)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "configuration file")
	f.BoolVar(&watch, "watch", true, "take over a configuration file that has changed; SIGHUP has it read in any case")
	f.BoolVar(&demo, "demo", false, "no file: a simulated engine, two classes, files and batches in a temporary folder, any key")
	f.BoolVar(&load, "sample-load", false, "with --demo: keep batch work coming and send interactive requests now and then, which recall what is lent")
	f.StringVar(&listen, "listen", "", "address for clients, instead of the configuration's")
	f.StringVar(&admin, "admin", "", "address for operators, instead of the configuration's; --admin-listen is the same")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "admin-listen" { // as controller calls it, which has no listener for clients
			name = "admin"
		}
		return pflag.NormalizedName(name)
	})
	return cmd
}

// libraryLog has what libraries say through package log in the process's own log, up to
// where net/http quotes what an engine has sent, which may be an answer.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(b []byte) (int, error) {
	text, _, _ := strings.Cut(string(b), " starting with ")
	l.log.Warn("a library says", "text", strings.TrimSpace(text))
	return len(b), nil
}

// server is a gateway with everything it runs on.
type server struct {
	load loader // of the file; nil: there is none
	look look   // at what is watched; nil: nothing is
	// override puts what the command line says into a configuration, of the paths said; nil: nothing.
	override func(*config.Config)
	said     map[string]bool
	log      *slog.Logger
	level    slog.LevelVar
	shared   shared
	journal  *journal.Writer // nil: none
	audit    *audit.Writer   // nil: none
	certs    *certificates
	gateway  *gateway.Gateway
	clients  net.Listener
	admin    net.Listener
	web      *http.Server // of the admin listener
	reloads  *reloads
	metrics  *prometheus.Registry
	fleet    *fleet   // nil: the process has its pools to itself
	batches  *batches // nil: there are none
	behind   bool     // a pool kept its old configuration at the last reload

	config  atomic.Pointer[config.Config] // in force
	pools   atomic.Pointer[[]*relay.Pool]
	calling atomic.Pointer[callers]
	tokens  *token.Metrics

	running    context.Context         // of the pools
	following  sync.WaitGroup          // who runs them
	leaving    []*relay.Pool           // in no configuration any more; who may touch stops may touch it
	stops      map[*relay.Pool]func()  // ends one; only run and reload, one after the other, touch it
	background []func(context.Context) // what runs beside the pools
	export     *otlp.Exporter          // nil: none
}

// newServer provisions everything and listens; nothing is served yet.
func newServer(cfg *config.Config, logTo io.Writer) (*server, error) {
	s := &server{stops: map[*relay.Pool]func(){}}
	s.config.Store(cfg)
	var err error
	if s.log, err = telemetry.NewLogger(logTo, cfg.Log, &s.level); err != nil {
		return nil, err
	}
	if err := cfg.Admin.Exposed(cfg.Admin.Listen); err != nil {
		return nil, err
	}
	build := telemetry.ReadBuild()
	reg := telemetry.NewRegistry(build)
	s.reloads, s.metrics = newReloads(reg), reg
	s.shared = shared{start: time.Now(), metrics: relay.NewMetrics(reg)}
	if s.export, err = buildExporter(&cfg.OTLP, reg, build.Version, s.shared.start, s.log); err != nil {
		return nil, err
	}
	if s.export != nil && cfg.OTLP.Logs {
		s.log = slog.New(s.export.Handler(s.log.Handler()))
	}
	s.shared.log = s.log
	if cfg.Journal.File != "" {
		s.journal, err = journal.Open(cfg.Journal.File, journal.Options{Buffer: cfg.Journal.Buffer, Start: s.shared.start, Version: build.Version})
		if err != nil {
			return nil, err
		}
		s.shared.journal = s.journal
		reg.MustRegister(s.journal)
	}
	if s.certs, err = openCertificates(cfg, s.log, reg); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.audit, err = openAudit(cfg.Audit, s.export, build.Version, s.log, reg); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.audit != nil {
		s.shared.unasked = gateway.AuditCall(s.audit)
	}
	if cfg.Control != nil {
		if s.fleet, err = newFleet(cfg.Control, reg, s.log); err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.shared.replica = s.fleet.id
	}
	s.shared.limits, err = keeper.New(keeper.Config{Table: cfg.Limits.Quota(), Most: cfg.Limits.MaxTenants, File: cfg.Limits.BalanceFile, Log: s.log})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	reg.MustRegister(s.shared.limits)
	s.background = append(s.background, s.shared.limits.Run)
	s.tokens = token.NewMetrics(reg)
	auth, err := s.callers(cfg)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	var pools []*relay.Pool
	for i := range cfg.Pools {
		rc, err := newPoolConfig(cfg, i, &s.shared)
		var p *relay.Pool
		if err == nil {
			p, err = buildPool(rc)
		}
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		pools = append(pools, p)
	}
	s.pools.Store(&pools)
	reg.MustRegister(relay.NewCollector(s.present))
	s.calling.Store(auth)
	gc := gatewayConfig(cfg, auth.auth, pools)
	gc.Log, gc.Metrics, gc.Audit, gc.TLS = s.log, reg, s.audit, speak(s.certs.clients)
	gc.Relay = s.shared.metrics
	gc.Tenants, gc.Journal, gc.Start = s.shared.limits, s.journal, s.shared.start
	if cfg.Batch != nil {
		var events *batch.Events
		if s.journal != nil {
			events = batch.NewEvents(s.journal, s.shared.start)
		}
		if s.batches, err = openBatches(cfg.Batch, s.present, s.permit, s.shared.unasked, s.named, s.log, reg, events); err != nil {
			return nil, errors.Join(err, s.close())
		}
		gc.Batches, gc.BatchTenants = s.batches.service, s.batches.worker.Tenants
	}
	if s.fleet != nil {
		s.fleet.serve(pools)
		s.background = append(s.background, func(ctx context.Context) {
			agent.Shares(ctx, s.fleet.store, s.fleet.id, cfg.Shared(0, nil).Replicas, s.shared.limits, s.log)
		})
		if cfg.Control.Campaign {
			s.fleet.lead(s.fleet.id.Replica, s.config.Load)
		}
		gc.Fleet = s.fleet.view(&s.shared, s.present)
		if gc.Forward, err = s.fleet.forward(); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	if cfg.Estimates.File != "" {
		e := &estimates{file: cfg.Estimates.File, pools: s.present, log: s.log}
		e.restore()
		s.background = append(s.background, e.run)
	}
	if s.export != nil && cfg.OTLP.Traces {
		gc.Tracer = &tracing.Tracer{Share: cfg.OTLP.Sample.Fraction(), Follow: cfg.OTLP.FollowParent, Export: s.export.Span}
	}
	if cfg.Admin.OTLPTraces {
		gc.Spans = spans.New(takeSpans(s.present), reg)
	}
	gc.Settings, gc.Lab = s.settings(), s.lab()
	s.gateway = gateway.New(gc)
	s.background = append(s.background, s.gateway.Watch)
	s.web = adminServer(s.gateway.Admin(reg), cfg, s.log)
	if s.clients, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, errors.Join(listenHint(fmt.Errorf("listen: %w", err), "listen", "--listen"), s.close())
	}
	if s.admin, err = net.Listen("tcp", cfg.Admin.Listen); err != nil {
		return nil, errors.Join(listenHint(fmt.Errorf("admin.listen: %w", err), "admin.listen", "--admin"), s.clients.Close(), s.close())
	}
	s.admin = adminListener(s.admin, s.certs)
	return s, nil
}

const (
	// adminIdle is how long an operator's connection may be open without a request.
	adminIdle = 2 * time.Minute
	// adminConnections is more than operators, probes and scrapers have open, and fewer than
	// would take the descriptors that clients need.
	adminConnections = 256
)

// adminListener is what operators connect to, by what its configuration speaks.
func adminListener(l net.Listener, c *certificates) net.Listener {
	l = gateway.Limit(l, adminConnections)
	if t := speak(c.admin); t != nil {
		l = tls.NewListener(l, t)
	}
	return l
}

// adminServer has no timeout for answers: some are followed.
func adminServer(h http.Handler, cfg *config.Config, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: cfg.Limits.HeaderTimeout, MaxHeaderBytes: int(cfg.Limits.HeaderBytes), IdleTimeout: adminIdle,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), DisableGeneralOptionsHandler: true,
	}
}

// callers makes what knows who calls by a configuration. Keys of issuers that it has in
// common with the one before are not fetched anew.
func (s *server) callers(cfg *config.Config) (*callers, error) {
	var before *token.Verifiers
	if c := s.calling.Load(); c != nil {
		before = c.verifiers
	}
	v, err := token.New(cfg.Identity.Issuers, before, s.tokens, s.log)
	if err != nil {
		return nil, err
	}
	auth, err := identity.New(cfg.Callers(), v)
	if err != nil {
		return nil, err
	}
	return &callers{auth, v}, nil
}

// callers is what knows who calls.
type callers struct {
	auth      *identity.Authenticator
	verifiers *token.Verifiers
}

// permit tells whether who made a batch may use a model.
func (s *server) permit(key, model string) (may, known bool) {
	return s.calling.Load().auth.MayUse(key, model)
}

// named tells whether the configuration names a tenant. One that claims name it does not.
func (s *server) named(tenant string) bool {
	return slices.ContainsFunc(s.calling.Load().auth.Principals(), func(p *identity.Principal) bool { return p.Tenant == tenant })
}

// present are the pools that there are.
func (s *server) present() []*relay.Pool { return *s.pools.Load() }

// gatewayConfig is what the configuration says of a gateway.
func gatewayConfig(cfg *config.Config, auth *identity.Authenticator, pools []*relay.Pool) gateway.Config {
	l := cfg.Limits
	return gateway.Config{
		Limits: gateway.Limits{
			BodyBytes: int64(l.BodyBytes), HeaderBytes: int(l.HeaderBytes), HeaderTimeout: l.HeaderTimeout, BodyTimeout: l.BodyTimeout,
			ClientStall: l.ClientStallTimeout, Connections: l.MaxConnections,
		},
		Auth: auth, Operators: identity.NewOperators(cfg.Admin.Keys), Pools: pools,
	}
}

// run serves until ctx ends, and drains. release gives signals back their own
// meaning, so that a second one ends the process.
func (s *server) run(ctx context.Context, release func()) error {
	// It ends last, with what the end has to say.
	exporting, stopExport := context.WithCancel(context.WithoutCancel(ctx))
	var exported sync.WaitGroup
	if s.export != nil {
		exported.Go(func() { s.export.Run(exporting) })
	}
	defer exported.Wait()
	defer stopExport()
	s.log.Info("serving", "listen", s.clients.Addr().String(), "admin", s.admin.Addr().String(), "version", telemetry.ReadBuild().Version, "pid", os.Getpid())
	failed := make(chan error, 2)
	go func() { failed <- s.gateway.Serve(s.clients) }()
	go func() {
		if err := s.web.Serve(s.admin); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("admin listener: %w", err)
		}
	}()
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.running = background
	for _, p := range s.present() {
		s.follow(p)
	}
	s.following.Go(func() { s.certs.watch(background) })
	for _, run := range s.background {
		s.following.Go(func() { run(background) })
	}
	if s.fleet != nil {
		s.fleet.start(background)
	}
	if s.batches != nil {
		s.batches.start(background)
	}
	watching, unwatch := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if s.load != nil {
			watch(watching, s.look, s.reread)
		}
	}()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		release()
	}
	unwatch()
	<-watched
	timeout := s.config.Load().Limits.DrainTimeout
	s.log.Info("draining", "timeout", timeout)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if s.fleet != nil {
		s.fleet.resign()
	}
	if s.batches != nil {
		// Items are kept as far as they have come, so they are not waited for.
		s.batches.stop()
	}
	ended := s.gateway.Drain(drain, s.leaving...)
	if s.fleet != nil {
		s.fleet.leave()
	}
	stop()
	s.following.Wait()
	s.log.Info("stopped", "calls_ended_by_force", ended)
	return errors.Join(err, s.web.Close(), s.close())
}

// follow runs a pool.
func (s *server) follow(p *relay.Pool) {
	ctx, stop := context.WithCancel(s.running)
	s.stops[p] = stop
	s.following.Go(func() { p.Run(ctx) })
}

func (s *server) close() error {
	var err error
	if s.fleet != nil {
		err = s.fleet.close()
	}
	if s.batches != nil {
		err = errors.Join(err, s.batches.close())
	}
	if s.journal != nil {
		err = errors.Join(err, s.journal.Close())
	}
	return errors.Join(err, s.audit.Close())
}
