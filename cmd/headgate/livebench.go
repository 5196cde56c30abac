package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"headgate/config"
	"headgate/gateway"
	"headgate/simengine/vllmapi"
)

// What the live benchmarks have in common: a simulated engine and a whole gateway
// in this process, over HTTP, and the record of what happened.

// startBenchEngine serves a simulated engine until its close is called. The engine
// outlives ctx: the gateway would else wait for it. around may change what it serves.
func startBenchEngine(ctx context.Context, cfg vllmapi.Config, around func(http.Handler) http.Handler) (server *vllmapi.Server, at net.Addr, closeEngine func(), err error) {
	if server, err = vllmapi.New(cfg); err != nil {
		return nil, nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, fmt.Errorf("engine: %w", err)
	}
	h := server.Handler()
	if around != nil {
		h = around(h)
	}
	web := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{}, 2)
	go func() { server.Run(ctx); stopped <- struct{}{} }()
	go func() { _ = web.Serve(l); stopped <- struct{}{} }()
	return server, l.Addr(), func() {
		cancel()
		_ = web.Close() // ends what is left of the streams
		<-stopped
		<-stopped
	}, nil
}

// benchGateway is a gateway that serves.
type benchGateway struct {
	clients, admin string // base URLs
	stop           func() error
}

// startBenchGateway serves by a built-in configuration and returns once the
// engine is known. It runs until its stop is called.
func startBenchGateway(ctx context.Context, name, yaml string) (*benchGateway, error) {
	cfg, problems := config.Parse(name+".yaml", []byte(yaml))
	if cfg == nil {
		return nil, fmt.Errorf("the built-in configuration is broken: %v", problems)
	}
	s, err := newServer(cfg, io.Discard)
	if err != nil {
		return nil, err
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- s.run(serving, func() {}) }()
	g := &benchGateway{
		clients: "http://" + s.clients.Addr().String(), admin: "http://" + s.admin.Addr().String(),
		stop: func() error { stopServing(); return <-served },
	}
	for s.gateway.Ready() != nil {
		if !pause(ctx, 10*time.Millisecond) {
			return nil, errors.Join(ctx.Err(), g.stop())
		}
	}
	return g, nil
}

// recalls returns the record of the gateway's recalls, newest first.
func (g *benchGateway) recalls(ctx context.Context) (all []gateway.RecallView, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.admin+"/api/recalls", nil)
	if err != nil {
		return nil, err
	}
	body, err := fetch(req)
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(body, &all)
}

// completion is a request for a prompt of so many token ids and an answer of so
// many tokens. Ids are priced exactly: a gateway that has run for a while has
// learned what text comes to, a new one has not.
func completion(ctx context.Context, base, class string, prompt, output int, stream bool) (*http.Request, error) {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":%t,"prompt":[%s7]}`, demoModel, output, stream, strings.Repeat("7,", prompt-1))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Headgate-Class", class)
	return req, nil
}

func fetch(req *http.Request) ([]byte, error) {
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered %s: %s", res.Status, answer)
	}
	return answer, err
}

func microseconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

// percentile is the smallest value that at least p of a hundred do not exceed,
// nil if there is none or it never came. It sorts what it is given.
func percentile(values []float64, p int) *float64 {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	v := values[(p*len(values)+99)/100-1]
	if math.IsInf(v, 1) {
		return nil
	}
	v = math.Round(v*1e6) / 1e6
	return &v
}

// shown is a figure in a table; what never came is a dash.
func shown(t *float64) string {
	if t == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *t)
}
