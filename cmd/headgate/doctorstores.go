package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/audit/postgres"
	"headgate/batch/objects"
	batchpostgres "headgate/batch/postgres"
	"headgate/batch/rows"
	"headgate/batch/sqlite"
	"headgate/certs"
	"headgate/config"
	"headgate/control/etcd"
	"headgate/control/store"
	"headgate/doctor"
	"headgate/telemetry"
	"headgate/telemetry/otlp"
)

// control adds checks of a fleet: its store, this replica's name, and the other replicas.
func (d *checkup) control() {
	c := d.cfg.Control
	own, err := replicaName(c)
	if err != nil {
		d.add(finding("control.replica", func(r *doctor.Reporter) {
			r.Found(doctor.FleetName, err.Error(), "write control.replica, a name of its own for each replica")
		}))
	}
	if c.Store != config.StoreEtcd {
		return
	}
	if t := c.TLS; t != nil {
		d.add(doctor.Client("control.tls", &certs.Client{CA: t.CA, Cert: t.Cert, Key: t.Key}))
	}
	if c.PasswordEnv != "" && os.Getenv(c.PasswordEnv) == "" {
		return // which is told
	}
	d.add(doctor.Check{Of: "control", Run: func(ctx context.Context, r *doctor.Reporter) { d.store(ctx, r, own) }})
}

// nearlyFull is the part of its quota from which a store is.
const nearlyFull = 0.8

// store looks at etcd, and by what is in it at the other replicas.
func (d *checkup) store(ctx context.Context, r *doctor.Reporter, own string) {
	e := d.cfg.Control.Etcd()
	e.RequestTimeout = min(e.RequestTimeout, d.timeout*2/3)
	s, err := etcd.New(e)
	if err != nil {
		r.Found(doctor.StoreAway, err.Error(), "name files in PEM that this user may read, in control.tls")
		return
	}
	defer func() { _ = s.Close() }() // nothing was written
	read := make(chan error, 1)
	var state *store.State
	go func() {
		var err error
		state, err = s.State(ctx)
		read <- err
	}()
	members := s.Health(ctx)
	err = <-read
	well := 0
	for i := range members {
		m := &members[i]
		of := "control " + m.Endpoint
		if !m.Date.IsZero() { // which is cut to the second
			r.Clock(doctor.StoreClock, of, m.Date.Add(time.Second/2), m.Sent, m.Answered, time.Second/2)
		}
		switch {
		case m.Err != nil && err == nil:
			r.FoundOf(of, doctor.StoreMember, m.Err.Error(), "see that the member runs, or take it out of control.endpoints")
			continue
		case m.Err != nil:
			continue // told of together
		case !m.Leads:
			r.FoundOf(of, doctor.StoreLeader, "the member knows no leader", "see that most of etcd's members run and reach each other")
		case len(m.Alarms) > 0:
			r.FoundOf(of, doctor.StoreAlarm, strings.Join(m.Alarms, ", "), "compact and defragment it, and then: etcdctl alarm disarm")
		case m.Quota > 0 && float64(m.Size) > nearlyFull*float64(m.Quota):
			r.FoundOf(of, doctor.StoreFull, fmt.Sprintf("%d MiB of %d MiB", m.Size>>20, m.Quota>>20), "compact and defragment it, or raise etcd's --quota-backend-bytes")
		}
		well++
	}
	switch {
	case err == nil:
	case etcd.Refused(err):
		r.Found(doctor.StoreRefused, err.Error(), fmt.Sprintf("see control.username and the variable of control.password_env, and give the user's role the keys below %s/%s/", e.Prefix, e.Fleet))
	case well == 0:
		r.Found(doctor.StoreAway, fmt.Sprintf("%v: %v", err, members[0].Err), "start etcd, or write its members' addresses in control.endpoints; with https see control.tls")
	default:
		r.Found(doctor.StoreAway, err.Error(), "see etcd's log")
	}
	if err == nil {
		d.replicas(ctx, r, state, own)
	}
}

// replicas looks at the clocks of the fleet's other members.
func (d *checkup) replicas(ctx context.Context, r *doctor.Reporter, state *store.State, own string) {
	f := d.cfg.Control.Forward
	if f == nil {
		return
	}
	t := &http.Transport{DialContext: (&net.Dialer{Timeout: d.timeout / 2}).DialContext, DisableKeepAlives: true}
	if f.CA != "" {
		secure, err := (&certs.Client{CA: f.CA}).Config()
		if err != nil {
			r.FoundOf("control.forward.ca", doctor.CertUnusable, err.Error(), "name a file in PEM that this user may read")
			return
		}
		t.TLSClientConfig = secure
	}
	var checks []doctor.Check
	for _, m := range state.Members {
		if m.Replica != own && m.Address != "" {
			checks = append(checks, doctor.Replica(m.Replica, m.Address, httpClient(t)))
		}
	}
	deadline, _ := ctx.Deadline()
	for _, f := range doctor.Run(ctx, checks, time.Until(deadline)*3/4).Findings {
		r.Add(f)
	}
}

// stores adds checks of where batches and audit records are kept.
func (d *checkup) stores() {
	if b := d.cfg.Batch; b != nil {
		d.add(doctor.Check{Of: "batch", Run: d.batch})
		if b.Bucket != "" {
			d.add(doctor.Check{Of: "batch.bucket", Run: func(ctx context.Context, r *doctor.Reporter) {
				o, err := objects.Open(ctx, b.Bucket)
				if err != nil {
					r.Found(doctor.BatchFiles, err.Error(), "make the bucket, write its region and endpoint in batch.bucket, and give credentials that may list, read and write it (AWS_ACCESS_KEY_ID, AWS_PROFILE)")
					return
				}
				_ = o.Close() // nothing was written
			}})
		}
	}
	if a := d.cfg.Audit; a != nil && a.PostgresEnv != "" && os.Getenv(a.PostgresEnv) != "" {
		d.add(doctor.Check{Of: "audit.postgres_env", Run: func(ctx context.Context, r *doctor.Reporter) {
			s, err := postgres.New(os.Getenv(a.PostgresEnv), cmp.Or(a.Source, "doctor"))
			if err == nil {
				err = s.Look(ctx)
				_ = s.Close() // nothing was written
			}
			if err != nil {
				r.Found(doctor.AuditStore, err.Error(), "start PostgreSQL, or correct the URL in variable "+a.PostgresEnv+"; the user has to be allowed to write")
			}
		}})
	}
}

// batch looks at the database of batches.
func (d *checkup) batch(ctx context.Context, r *doctor.Reporter) {
	b := d.cfg.Batch
	var f rows.Form
	var err error
	of, do := "batch.database", "name another file, or move this one away: headgate makes a new one"
	if b.PostgresEnv == "" {
		if f, err = sqlite.Look(ctx, b.Path()); errors.Is(err, fs.ErrNotExist) {
			return // it is made
		}
	} else {
		dsn := os.Getenv(b.PostgresEnv)
		if dsn == "" {
			r.FoundOf("batch.postgres_env", doctor.ConfigUnset, "variable "+b.PostgresEnv+" is not set here", "set it to the URL of a PostgreSQL database")
			return
		}
		of, do = "batch.postgres_env", "start PostgreSQL, make the database and its user, or correct the URL in variable "+b.PostgresEnv
		f, err = batchpostgres.Look(ctx, dsn)
	}
	if !f.Now.IsZero() {
		r.Clock(doctor.StoreClock, of, f.Now, f.Sent, f.Answered, 0)
	}
	switch {
	case err != nil:
		r.FoundOf(of, doctor.BatchStore, err.Error(), do)
	case f.ReadOnly:
		r.FoundOf(of, doctor.BatchReadOnly, f.Why, "name the primary, and a user who may write")
	case f.Have > f.Want:
		r.FoundOf(of, doctor.BatchNewer, fmt.Sprintf("its form is %d, and this version's %d", f.Have, f.Want), "run the version that has made it, or a later one")
	}
}

// What files take.
const (
	journalRoom = 256 << 20
	smallRoom   = 16 << 20
)

// places adds checks of files and folders that are written.
func (d *checkup) places() {
	c := d.cfg
	var all []doctor.Place
	if f := c.Journal.File; f != "" {
		all = append(all, doctor.Place{Key: "journal.file", Path: f, Room: journalRoom, For: "a journal of some days"})
	}
	if f := c.Estimates.File; f != "" {
		all = append(all, doctor.Place{Key: "estimates.file", Path: f, Room: smallRoom, For: "the file"})
	}
	if f := c.Limits.BalanceFile; f != "" {
		all = append(all, doctor.Place{Key: "limits.balance_file", Path: f, Room: smallRoom, For: "the file"})
	}
	if a := c.Audit; a != nil && a.File != "" {
		all = append(all, doctor.Place{Key: "audit.file", Path: a.File, Room: int64(a.RotateBytes), For: "one file of audit.rotate_bytes", Own: true})
	}
	if b := c.Batch; b != nil {
		if b.Dir != "" {
			// A batch needs its input, its output, and that once more while it runs.
			all = append(all, doctor.Place{Key: "batch.dir", Path: b.Dir, Folder: true, Makes: true, Room: 3 * int64(b.MaxFileBytes), For: "one batch of max_file_bytes", Own: true})
		}
		if b.PostgresEnv == "" && filepath.Dir(b.Path()) != filepath.Clean(b.Dir) {
			all = append(all, doctor.Place{Key: "batch.database", Path: b.Path(), Room: int64(b.MaxFileBytes), For: "one batch of max_file_bytes", Own: true})
		}
	}
	for _, p := range all {
		d.add(p.Check())
	}
}

// collector looks whether OTLP is taken, by exports of nothing.
func (d *checkup) collector() doctor.Check {
	return doctor.Check{Of: "otlp.endpoint", Run: func(ctx context.Context, r *doctor.Reporter) {
		c := &d.cfg.OTLP
		if c.HeadersEnv != "" && os.Getenv(c.HeadersEnv) == "" {
			return // which is told
		}
		x, err := buildExporter(c, prometheus.NewRegistry(), telemetry.ReadBuild().Version, time.Now(), slog.New(slog.DiscardHandler))
		if err != nil {
			r.Found(doctor.CollectorRefuses, err.Error(), "write name=value, several with commas between them, values percent-encoded")
			return
		}
		failed := x.Try(ctx)
		var away error
		for _, signal := range slices.Sorted(maps.Keys(failed)) {
			err := failed[signal]
			if !otlp.Refusal(err) {
				away = err
				continue
			}
			r.FoundOf("otlp."+signal, doctor.CollectorRefuses, err.Error(), "have the collector take OTLP over HTTP (port 4318) with this signal, or write otlp."+signal+": false; a key goes into the variable of otlp.headers_env")
		}
		if away != nil {
			r.Found(doctor.CollectorAway, away.Error(), "start the collector, or write the address of its OTLP over HTTP (port 4318) in otlp.endpoint")
		}
	}}
}
