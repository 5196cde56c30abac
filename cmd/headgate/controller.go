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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"headgate/config"
	"headgate/identity"
	"headgate/relay"
	"headgate/telemetry"
)

func controllerCommand() *cobra.Command {
	var file, admin string
	var look bool
	cmd := &cobra.Command{
		Use: "controller -c FILE", Short: "Lead a fleet without serving clients", Args: cobra.NoArgs,
		Long: `Campaign for the lead of a fleet and, while leading, hand out the grants of its
replicas, by the configuration file that they have. Replicas with campaign: true
do the same beside serving, so that most fleets need none; of several that campaign
one leads and the others wait. It serves no clients and asks no engine.
What it takes over of a file that changes are pools and admin.keys.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			cfg, err := loadConfig(cmd, file)
			if err != nil {
				return err
			}
			if admin != "" {
				cfg.Admin.Listen = admin
			}
			c, err := newController(cfg, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			c.load = func() (*config.Config, []config.Problem, error) { return config.Load(file) }
			if look {
				c.look = func() ([]byte, error) { return readFiles(file) }
			}
			return c.run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "configuration file")
	f.BoolVar(&look, "watch", true, "take over a configuration file that has changed; SIGHUP has it read in any case")
	f.StringVar(&admin, "admin-listen", "", "address for operators, instead of the configuration's")
	_ = cmd.MarkFlagRequired("config") // the flag is there
	return cmd
}

// controller leads a fleet from outside of it.
type controller struct {
	load    loader
	look    look // at what is watched; nil: nothing is
	log     *slog.Logger
	level   slog.LevelVar
	config  atomic.Pointer[config.Config]
	admins  atomic.Pointer[identity.Operators] // nil: nobody is asked who he is
	reloads *reloads
	fleet   *fleet
	admin   net.Listener
	certs   *certificates
	web     *http.Server
}

func newController(cfg *config.Config, logTo io.Writer) (*controller, error) {
	switch {
	case cfg.Control == nil:
		return nil, errors.New("the configuration has no control: there is no fleet to lead")
	case cfg.Control.Store == config.StoreMemory:
		return nil, errors.New("control.store is memory, which no replica sees from outside: a controller needs etcd")
	}
	if err := cfg.Admin.Exposed(cfg.Admin.Listen); err != nil {
		return nil, err
	}
	c := &controller{}
	c.config.Store(cfg)
	var err error
	if c.log, err = telemetry.NewLogger(logTo, cfg.Log, &c.level); err != nil {
		return nil, err
	}
	reg := telemetry.NewRegistry(telemetry.ReadBuild())
	c.reloads = newReloads(reg)
	if c.fleet, err = newFleet(cfg.Control, reg, c.log); err != nil {
		return nil, err
	}
	c.admins.Store(identity.NewOperators(cfg.Admin.Keys))
	c.fleet.lead("controller "+c.fleet.id.Replica, c.config.Load)
	view := c.fleet.view(&shared{start: time.Now()}, func() []*relay.Pool { return nil })
	c.web = adminServer(view.Admin(reg, c.admins.Load), cfg, c.log)
	only := *cfg
	only.TLS = nil // it has no clients
	if c.certs, err = openCertificates(&only, c.log, reg); err != nil {
		return nil, errors.Join(err, c.fleet.close())
	}
	if c.admin, err = net.Listen("tcp", cfg.Admin.Listen); err != nil {
		return nil, errors.Join(listenHint(fmt.Errorf("admin.listen: %w", err), "admin.listen", "--admin-listen"), c.fleet.close())
	}
	c.admin = adminListener(c.admin, c.certs)
	return c, nil
}

// run campaigns and leads until ctx ends.
func (c *controller) run(ctx context.Context) error {
	c.log.Info("campaigning", "admin", c.admin.Addr().String(), "version", telemetry.ReadBuild().Version, "pid", os.Getpid())
	failed := make(chan error, 1)
	go func() {
		if err := c.web.Serve(c.admin); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("admin listener: %w", err)
		}
	}()
	c.fleet.start(context.WithoutCancel(ctx))
	watching, unwatch := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watch(watching, c.look, func() {
			c.certs.reload()
			c.reloads.reread(c.log, c.load, c.take, nil)
		})
	}()
	go c.certs.watch(watching)
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	unwatch()
	<-watched
	c.fleet.resign()
	c.log.Info("stopped")
	return errors.Join(err, c.web.Close(), c.fleet.close())
}

// take puts the pools of a configuration into force.
func (c *controller) take(cfg *config.Config) ([]config.Change, error) {
	old := c.config.Load()
	cfg.Admin.Listen = old.Admin.Listen // which a flag may have set
	changes := config.Changes(old, cfg)
	if len(changes) == 0 {
		return nil, nil
	}
	keepUnchangeable(old, cfg)
	if err := underControl(cfg); err != nil {
		return nil, err
	}
	if err := cfg.Admin.Exposed(cfg.Admin.Listen); err != nil {
		return nil, err
	}
	c.level.Set(cfg.Log.Severity())
	c.config.Store(cfg)
	c.admins.Store(identity.NewOperators(cfg.Admin.Keys))
	c.fleet.changed(cfg)
	tellChanges(c.log, changes)
	return changes, nil
}
