// Package telemetry sets up what the process says about itself: the log, the
// metric registry and what build this is. What is measured is defined where it
// happens, in each package's own metrics; here is only what they share.
//
// Metric labels are bounded: a label value is a configured name, or "other".
// Nothing from the wire becomes one, for a series once created stays in every
// scraper's memory, and a caller could create as many as it can send names.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Config says how the process logs.
type Config struct {
	// Level is the least severe level that is logged: debug, info, warn or error. Debug logs every request.
	Level string `yaml:"level"`
	// Format of the lines on standard error: json, or text for reading by eye.
	Format string `yaml:"format"`
}

// SetDefaults logs JSON from level info.
func (c *Config) SetDefaults() { *c = Config{Level: "info", Format: "json"} }

// Validate calls bad for every value that isn't allowed.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	if _, ok := levels[c.Level]; !ok {
		bad("level", c.Level, "debug, info, warn or error")
	}
	if c.Format != "json" && c.Format != "text" {
		bad("format", c.Format, "json or text")
	}
}

var levels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

// Severity is the least severe level that is logged.
func (c Config) Severity() slog.Level { return levels[c.Level] }

// NewLogger returns a logger that writes to w as c says, at a level that can be
// changed; the error is that c isn't valid. Secrets stay out of it by their type, identity.Secret, which
// prints as redacted.
func NewLogger(w io.Writer, c Config, level *slog.LevelVar) (*slog.Logger, error) {
	var err error
	c.Validate(func(path string, value any, allowed string) {
		err = fmt.Errorf("log.%s: value %v: allowed %s", path, value, allowed)
	})
	if err != nil {
		return nil, err
	}
	level.Set(c.Severity())
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "text" {
		return slog.New(slog.NewTextHandler(w, o)), nil
	}
	return slog.New(slog.NewJSONHandler(w, o)), nil
}

// NewRegistry returns a registry that holds the process's own metrics, the Go
// runtime's, and headgate_build_info.
func NewRegistry(b Build) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "headgate_build_info",
		Help:        "Always 1; the labels say which build this is. Moves only with a new binary.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "go": b.Go},
	})
	info.Set(1)
	r.MustRegister(
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(),
		info,
	)
	return r
}
