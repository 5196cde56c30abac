package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"headgate/config"
	"headgate/gateway"
	"headgate/identity"
	"headgate/journal"
	"headgate/telemetry"
	"headgate/telemetry/otlp"
	"headgate/telemetry/spans"
	"headgate/telemetry/tracing"
)

func serveCommand() *cobra.Command {
	var file, listen, admin string
	var demo, load bool
	cmd := &cobra.Command{
		Use: "serve (-c FILE | --demo)", Short: "Serve clients", Args: cobra.NoArgs,
		Long: `Serve clients by a configuration file, or with --demo a simulated engine and two
classes without any file. SIGTERM and SIGINT drain: what comes and what waits is
refused, what runs finishes within limits.drain_timeout; a second signal ends it
at once.`,
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
			if listen != "" {
				cfg.Listen = listen
			}
			if admin != "" {
				cfg.Admin.Listen = admin
			}
			s, err := newServer(cfg, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if demo {
				printDemo(cmd.OutOrStdout(), s)
			}
			if load {
				go sampleLoad(ctx, cmd.OutOrStdout(), "http://"+s.clients.Addr().String())
			}
			return s.run(ctx, stop)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "configuration file")
	f.BoolVar(&demo, "demo", false, "no file: a simulated engine, two classes, no keys")
	f.BoolVar(&load, "sample-load", false, "with --demo: keep batch work coming and send an interactive request now and then")
	f.StringVar(&listen, "listen", "", "address for clients, instead of the configuration's")
	f.StringVar(&admin, "admin-listen", "", "address for operators, instead of the configuration's")
	return cmd
}

// server is a gateway with everything it runs on.
type server struct {
	cfg     *config.Config
	log     *slog.Logger
	journal *journal.Writer // nil: none
	gateway *gateway.Gateway
	clients net.Listener
	admin   net.Listener
	web     *http.Server // of the admin listener
	follow  []func(context.Context)
	export  *otlp.Exporter // nil: none
}

// newServer provisions everything and listens; nothing is served yet.
func newServer(cfg *config.Config, logTo io.Writer) (*server, error) {
	start := time.Now()
	s := &server{cfg: cfg}
	var err error
	if s.log, err = telemetry.NewLogger(logTo, cfg.Log); err != nil {
		return nil, err
	}
	auth, err := identity.New(cfg.Identity)
	if err != nil {
		return nil, err
	}
	build := telemetry.ReadBuild()
	reg := telemetry.NewRegistry(build)
	if s.export, err = buildExporter(&cfg.OTLP, reg, build.Version, start, s.log); err != nil {
		return nil, err
	}
	if s.export != nil && cfg.OTLP.Logs {
		s.log = slog.New(s.export.Handler(s.log.Handler()))
	}
	if cfg.Journal.File != "" {
		s.journal, err = journal.Open(cfg.Journal.File, journal.Options{Buffer: cfg.Journal.Buffer, Start: start, Version: build.Version})
		if err != nil {
			return nil, err
		}
		reg.MustRegister(s.journal)
	}
	pools, err := buildPools(cfg, reg, s.log, s.journal, start)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	for _, p := range pools {
		s.follow = append(s.follow, p.Run)
	}
	if cfg.Estimates.File != "" {
		e := &estimates{file: cfg.Estimates.File, pools: pools, log: s.log}
		e.restore()
		s.follow = append(s.follow, e.run)
	}
	l := cfg.Limits
	gc := gateway.Config{
		Limits: gateway.Limits{
			BodyBytes: int64(l.BodyBytes), HeaderBytes: int(l.HeaderBytes), HeaderTimeout: l.HeaderTimeout, BodyTimeout: l.BodyTimeout,
			ClientStall: l.ClientStallTimeout, Connections: l.MaxConnections,
		},
		Auth: auth, Pools: pools, Log: s.log, Metrics: reg,
	}
	if s.export != nil && cfg.OTLP.Traces {
		gc.Tracer = &tracing.Tracer{Share: cfg.OTLP.Sample.Fraction(), Follow: cfg.OTLP.FollowParent, Export: s.export.Span}
	}
	if cfg.Admin.OTLPTraces {
		gc.Spans = spans.New(takeSpans(pools), reg)
	}
	s.gateway = gateway.New(gc)
	s.web = &http.Server{Handler: s.gateway.Admin(reg), ReadHeaderTimeout: l.HeaderTimeout, MaxHeaderBytes: int(l.HeaderBytes)}
	if s.clients, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), s.close())
	}
	if s.admin, err = net.Listen("tcp", cfg.Admin.Listen); err != nil {
		return nil, errors.Join(fmt.Errorf("admin.listen: %w", err), s.clients.Close(), s.close())
	}
	return s, nil
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
	var following sync.WaitGroup
	for _, run := range s.follow {
		following.Go(func() { run(background) })
	}
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		release()
		s.log.Info("draining", "timeout", s.cfg.Limits.DrainTimeout)
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Limits.DrainTimeout)
	defer cancel()
	ended := s.gateway.Drain(drain)
	stop()
	following.Wait()
	s.log.Info("stopped", "calls_ended_by_force", ended)
	return errors.Join(err, s.web.Close(), s.close())
}

func (s *server) close() error {
	if s.journal == nil {
		return nil
	}
	return s.journal.Close()
}
