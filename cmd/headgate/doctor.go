package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"headgate/admission"
	"headgate/certs"
	"headgate/config"
	"headgate/doctor"
	"headgate/engine"
	"headgate/identity"
	"headgate/identity/token"
	"headgate/probe"
	"headgate/telemetry"
)

func doctorCommand() *cobra.Command {
	var admin adminClient
	var file string
	var timeout time.Duration
	var asJSON bool
	var ignored []string
	cmd := &cobra.Command{
		Use: "doctor [-c FILE] [--admin URL]", Short: "Look for what is wrong with a set-up, and say what to do", Args: cobra.NoArgs,
		Long: `Look for what is wrong with a set-up: the configuration, its engines and what they
say of themselves against what is configured, stores, certificates, key files, disks,
limits of the system, clocks, the collector, addresses, and the gateway itself where
one runs, by its admin listener. Each finding says what is wrong, the value that
shows it, and what to do. docs/doctor.md lists all that can be found.

Without --admin the gateway is looked for where the configuration has its admin
listener, and its absence is no finding. Nothing is changed anywhere, and no request
is sent to a model. Run it as the user that runs the gateway, in its environment.

The exit status is 0 if nothing was found, 1 if there are warnings alone, and 2 if
there is an error.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return withStatus(2, fmt.Errorf("--timeout is %v, must be above 0s, such as 5s", timeout))
			}
			if err := doctor.Known(ignored); err != nil {
				return withStatus(2, fmt.Errorf("--ignore: %w", err))
			}
			d := &checkup{cmd: cmd, admin: &admin, named: cmd.Flags().Changed("admin"), timeout: timeout}
			if file != "" {
				d.read(file)
			}
			checks, err := d.all()
			if err != nil {
				return withStatus(2, err)
			}
			report := doctor.Run(cmd.Context(), checks, timeout)
			report.Ignore(ignored)
			write := report.WriteText
			if asJSON {
				write = report.WriteJSON
			}
			if err := write(cmd.OutOrStdout()); err != nil {
				return withStatus(2, err)
			}
			if code := report.Status(); code != 0 {
				return &status{code: code}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "configuration file")
	f.DurationVar(&timeout, "timeout", 5*time.Second, "time for each check; they run beside each other")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVar(&ignored, "ignore", nil, "ids of findings that are known and accepted, such as engine_prefix: they are named in the last line and are nothing to the exit status")
	admin.flags(f, "URL of the gateway's admin listener")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return withStatus(2, err) })
	return cmd
}

// checkup is one run of doctor.
type checkup struct {
	cmd     *cobra.Command
	admin   *adminClient
	named   bool // the admin listener is, by its flag
	timeout time.Duration

	cfg    *config.Config // nil: there is none, or none that can be used
	checks []doctor.Check
}

func (d *checkup) add(all ...doctor.Check) { d.checks = append(d.checks, all...) }

// finding is a check whose findings are known.
func finding(of string, tell func(r *doctor.Reporter)) doctor.Check {
	return doctor.Check{Of: of, Run: func(_ context.Context, r *doctor.Reporter) { tell(r) }}
}

// read takes the configuration, with what validate says of it.
func (d *checkup) read(file string) {
	cfg, problems, err := config.Load(file)
	d.cfg = cfg
	d.add(finding(file, func(r *doctor.Reporter) {
		if err != nil {
			r.Found(doctor.ConfigUnreadable, err.Error(), "name a file that is there, and that this user may read")
		}
		for _, p := range problems {
			k, do := doctor.ConfigProblem, "correct it; headgate validate -c "+file+" says whether it is good"
			if p.Warning {
				k, do = doctor.ConfigWarning, "see docs/configuration.md for what it means"
			}
			r.Found(k, p.String(), do)
		}
		if cfg == nil {
			return
		}
		for _, p := range cfg.Unset(os.Getenv) {
			r.Found(doctor.ConfigUnset, p.String(), "set it where the gateway is started, and run doctor in the same environment")
		}
	}), doctor.Unwritten(file, file))
}

// all are the checks of what there is.
func (d *checkup) all() ([]doctor.Check, error) {
	admin := *d.admin
	if c := d.cfg; c != nil && !d.named {
		admin.url = adminURL(&c.Admin)
	}
	client, err := admin.client()
	if err != nil {
		return nil, err
	}
	running := &doctor.Running{
		URL: strings.TrimRight(admin.url, "/"), Client: client, Header: admin.header(), Version: telemetry.ReadBuild().Version, Told: d.named,
	}
	if d.cfg != nil {
		if !d.named {
			for i := range d.cfg.Pools {
				for _, e := range d.cfg.Pools[i].Engines {
					running.Engines = append(running.Engines, d.cfg.Pools[i].Name+"/"+e.Name)
				}
			}
		}
		d.configured(running)
	} else if !d.named && len(d.checks) == 0 {
		d.add(doctor.Check{Of: "set-up", Run: func(ctx context.Context, r *doctor.Reporter) {
			if !running.There(ctx) {
				r.Found(doctor.NothingToCheck, "no --config, and nothing answers at "+running.URL, "name the configuration by -c FILE, or the admin listener of a gateway that runs by --admin URL")
			}
		}})
	}
	d.add(running.Check())
	return d.checks, nil
}

// adminURL is where the admin listener of a configuration is called from this machine.
func adminURL(a *config.Admin) string {
	scheme := "http://"
	if a.TLS != nil {
		scheme = "https://"
	}
	host, port, _ := net.SplitHostPort(a.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + net.JoinHostPort(host, port)
}

// configured adds checks of all that a configuration names.
func (d *checkup) configured(running *doctor.Running) {
	c := d.cfg
	for i := range c.Pools {
		p := d.pool(i)
		d.add(p.Check())
		for k := range c.Pools[i].Engines {
			if e := &c.Pools[i].Engines[k]; e.TLS != nil {
				d.add(doctor.Client(fmt.Sprintf("pools[%d].engines[%d].tls", i, k), e.TLS))
			}
		}
	}
	d.keys()
	d.certificates()
	if c.Control != nil {
		d.control()
	}
	d.stores()
	d.places()
	d.add(doctor.Check{Of: "limits", Run: func(ctx context.Context, r *doctor.Reporter) {
		doctor.Limits(doctor.Load{Connections: c.Limits.MaxConnections, Tenants: c.Limits.MaxTenants, Files: running.Files(ctx)}).Run(ctx, r)
	}})
	if c.OTLP.Endpoint != "" {
		d.add(d.collector())
	}
	for _, l := range []doctor.Address{{Key: "listen", At: c.Listen}, {Key: "admin.listen", At: c.Admin.Listen}} {
		d.add(doctor.Check{Of: l.Key, Run: func(ctx context.Context, r *doctor.Reporter) {
			l.Ours = func() bool { return running.There(ctx) }
			l.Check().Run(ctx, r)
		}})
	}
	d.add(doctor.Exposure{
		Listen: c.Listen, Admin: c.Admin.Listen, AdminOpen: len(c.Admin.Keys) == 0, AdminTLS: c.Admin.TLS != nil, Anonymous: c.Identity.Anonymous != nil,
	}.Check())
}

// pool is a pool as doctor looks at it: by the adapters, profiles and rules of serve.
func (d *checkup) pool(i int) *doctor.Pool {
	c := &d.cfg.Pools[i]
	p := &doctor.Pool{Name: c.Name, Models: c.Models}
	for _, a := range c.Aliases {
		p.Aliases = append(p.Aliases, doctor.Alias(a))
	}
	for k := range c.Engines {
		e := &c.Engines[k]
		de := doctor.Engine{Name: e.Name, Config: adapterConfig(e), Said: override(e), Every: e.ObserveEvery, Planned: c.Replan != nil}
		de.Config.ScrapeTimeout = min(de.Config.ScrapeTimeout, d.timeout)
		if e.Profile != "" {
			de.Complete = func(caps engine.Capabilities, amiss func(string)) engine.Capabilities {
				known := &knownEngine{pool: c.Name, config: e, log: slog.New(&heard{amiss})}
				known.profile, known.err = probe.Load(e.Profile)
				return known.found(caps)
			}
		}
		p.Engines = append(p.Engines, de)
	}
	if c.Replan == nil { // what fits is judged for each profile, by validate
		p.Fits = func(engines []admission.EngineSpec) error {
			_, err := table(&c.Policy, func(e config.Envelope) ([]config.Capacity, []config.Problem) { return d.cfg.Resolve(i, e) }, engines)
			if err == nil && d.cfg.Control != nil {
				_, err = fitting(d.cfg, i, sizes(engines))
			}
			return err
		}
	}
	return p
}

// heard is a log of which each line is a finding.
type heard struct{ amiss func(string) }

func (h *heard) Enabled(context.Context, slog.Level) bool { return true }
func (h *heard) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *heard) WithGroup(string) slog.Handler            { return h }

func (h *heard) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "pool" && a.Key != "engine" {
			text += fmt.Sprintf(", %s: %v", a.Key, a.Value)
		}
		return true
	})
	h.amiss(text)
	return nil
}

// keys looks at files of keys, which keys are over, and the issuers of tokens.
func (d *checkup) keys() {
	id := &d.cfg.Identity
	if id.KeysFile != "" {
		d.add(doctor.Unwritten("keys_file", id.KeysFile))
	}
	var all []doctor.KeyLife
	callers := d.cfg.Callers()
	for _, k := range callers.Keys {
		all = append(all, doctor.KeyLife{Name: k.Name, Expires: k.Expires})
	}
	d.add(doctor.Keys("keys", all, callers.Anonymous == nil && len(id.Issuers) == 0 && len(id.Rules) == 0))
	var operators []doctor.KeyLife
	for _, k := range d.cfg.Admin.Keys {
		operators = append(operators, doctor.KeyLife{Name: k.Name, Expires: k.Expires})
	}
	d.add(doctor.Keys("admin.keys", operators, true))
	for _, issuer := range id.Issuers {
		issuer.FetchTimeout = min(issuer.FetchTimeout, d.timeout)
		d.add(finding("issuer "+issuer.Name, func(r *doctor.Reporter) {
			failed, err := token.Try([]identity.Issuer{issuer})
			if err == nil {
				err = failed[issuer.Name]
			}
			if err != nil {
				r.Found(doctor.IssuerAway, err.Error(), "see that this machine reaches the issuer, and that issuer, or jwks_url, is to the letter what it says itself")
			}
		}))
	}
}

// certificates looks at those of the listeners.
func (d *checkup) certificates() {
	c := d.cfg
	for _, l := range []doctor.Listener{{Key: "tls", At: c.Listen}, {Key: "admin.tls", At: c.Admin.Listen}} {
		files := map[string]*certs.Config{"tls": c.TLS, "admin.tls": c.Admin.TLS}[l.Key]
		if files == nil {
			continue
		}
		l.TLS = *files
		d.add(l.Check(), doctor.Unread(l.Key+".key", files.Key))
	}
}
