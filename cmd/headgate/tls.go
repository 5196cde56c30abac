package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/certs"
	"headgate/config"
)

// certificatesEvery is how often the files of certificates are looked at. They are renewed
// days before they have to be.
const certificatesEvery = 10 * time.Second

// certificates are those of the listeners.
type certificates struct {
	clients, admin *certs.Files // nil: the listener speaks http
	log            *slog.Logger
	reloads        *prometheus.CounterVec
}

// openCertificates reads them.
func openCertificates(cfg *config.Config, log *slog.Logger, reg prometheus.Registerer) (*certificates, error) {
	c := &certificates{log: log, reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_tls_reloads_total", Help: "Files of certificates that were other than before: taken, or refused because they don't fit, so that the old ones stay.",
	}, []string{"listener", "outcome"})}
	times := []prometheus.Collector{}
	for _, l := range []struct {
		name  string
		cfg   *certs.Config
		files **certs.Files
	}{{"clients", cfg.TLS, &c.clients}, {"admin", cfg.Admin.TLS, &c.admin}} {
		if l.cfg == nil {
			continue
		}
		f, err := certs.Open(*l.cfg)
		if err != nil {
			return nil, fmt.Errorf("tls of the listener for %s: %w", l.name, err)
		}
		*l.files = f
		for _, outcome := range []string{"taken", "refused"} {
			c.reloads.WithLabelValues(l.name, outcome) // from 0: what begins at 1 has not increased
		}
		times = append(times, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "headgate_tls_certificate_expiry_timestamp_seconds", Help: "When the certificate that a listener has in use expires.", ConstLabels: prometheus.Labels{"listener": l.name},
		}, func() float64 { return float64(f.Expires().Unix()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "headgate_tls_certificate_start_timestamp_seconds", Help: "From when on the certificate that a listener has in use is valid.", ConstLabels: prometheus.Labels{"listener": l.name},
		}, func() float64 { return float64(f.Chain()[0].NotBefore.Unix()) }))
	}
	if len(times) > 0 {
		reg.MustRegister(append(times, c.reloads)...)
	}
	return c, nil
}

func (c *certificates) each(do func(name string, f *certs.Files)) {
	if c.clients != nil {
		do("clients", c.clients)
	}
	if c.admin != nil {
		do("admin", c.admin)
	}
}

// reload takes what has changed.
func (c *certificates) reload() {
	c.each(func(name string, f *certs.Files) {
		switch changed, err := f.Reload(); {
		case err != nil:
			c.reloads.WithLabelValues(name, "refused").Inc()
			c.log.Error("files of a certificate are refused; what was in use stays", "listener", name, "err", err)
		case changed:
			c.reloads.WithLabelValues(name, "taken").Inc()
			c.log.Info("a new certificate is in use", "listener", name, "expires", f.Expires())
		}
	})
}

// watch takes what changes, until ctx ends.
func (c *certificates) watch(ctx context.Context) {
	if c.clients == nil && c.admin == nil {
		return
	}
	tick := time.NewTicker(certificatesEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.reload()
		}
	}
}

// speak is what a listener speaks with these files; nil: http.
func speak(f *certs.Files) *tls.Config {
	if f == nil {
		return nil
	}
	return f.Server()
}
