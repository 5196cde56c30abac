package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/http/pprof"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"headgate/identity"
	"headgate/telemetry"
)

const (
	roleUpstream  = "upstream"
	roleProxy     = "proxy"
	roleCollector = "collector"

	model = "test-model"

	maxWarnings = 8 // of Headgate's log that are shown
	key         = "hg_ABCDEFGHIJKLMNOPQRSTUVWXYZa"
)

// addresses are what a role prints once it listens.
type addresses struct {
	Listen string `json:"listen"`
	Admin  string `json:"admin,omitempty"`
}

// serveRole serves until its input ends.
func serveRole(role string, args []string, in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	at := addresses{Listen: l.Addr().String()}
	var h http.Handler = newUpstream()
	switch role {
	case roleCollector:
		h = http.HandlerFunc(collect)
	case roleProxy:
		if len(args) != 2 {
			return fmt.Errorf("proxy: wants the upstream's address and how many connections to it there may be, 0 for any number")
		}
		most, err := strconv.Atoi(args[1])
		if err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
		h = bareProxy(args[0], most)
		admin, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		at.Admin = admin.Addr().String()
		go func() { _ = http.Serve(admin, watched()) }()
	}
	go func() { _ = http.Serve(l, h) }()
	if err := json.NewEncoder(out).Encode(at); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// bareProxy is net/http's own, flushing what comes at once, with as many idle
// connections as Headgate keeps. It reads a body before it passes it on: else an
// upstream that answers at once breaks some of its streams, because the server
// closes the body when the answer begins, while the transport still looks for
// its end. most is how many requests the upstream gets at once, the others wait for a
// connection; 0 is any number.
func bareProxy(upstream string, most int) http.Handler {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: upstream})
	p.FlushInterval = -1
	p.Transport = &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256, MaxConnsPerHost: most, DisableCompression: true}
	p.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // clients leave in the end
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		p.ServeHTTP(w, r)
	})
}

// collect takes what is exported to it and keeps nothing.
func collect(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }

// watched answers as Headgate's admin listener does.
func watched() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(telemetry.NewRegistry(telemetry.ReadBuild()), promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	return mux
}

// process is a role that runs.
type process struct {
	addresses
	cmd    *exec.Cmd
	input  io.WriteCloser // its end ends a role
	header string         // that requests to it need
	token  string         // and in the place of the key
	others bool           // it is a peer
}

// startRole runs this program as a role.
func startRole(role string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self, append([]string{role}, args...)...)}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", role, err)
	}
	if err := json.NewDecoder(out).Decode(&p.addresses); err != nil {
		p.stop()
		return nil, fmt.Errorf("%s: no address: %w", role, err)
	}
	return p, nil
}

// keyHash is of the key that all clients have.
var keyHash = func() string {
	hash, err := identity.Hash(identity.NewSecret(key))
	if err != nil {
		panic(err)
	}
	return hash
}()

// startHeadgate runs the released program before the upstream, with a journal
// in the setting's folder, and returns once it would take requests.
func startHeadgate(program string, s setting) (*process, error) {
	config, err := s.write("headgate.yaml")
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, "serve", "-c", config)}
	if s.Issuer != nil {
		p.token = s.Issuer.token
	}
	p.cmd.SysProcAttr = endsWithUs()
	said, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("headgate: %w", err)
	}
	var first []string
	lines := bufio.NewScanner(said)
	for p.Listen == "" && lines.Scan() {
		var line struct {
			Msg string `json:"msg"`
			addresses
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			p.addresses = line.addresses
		}
		first = append(first, lines.Text())
	}
	if p.Listen == "" {
		p.stop()
		return nil, fmt.Errorf("headgate did not serve: %s", strings.Join(first, "; "))
	}
	// It warns of what is wrong with the engine or with itself, which is not to be
	// missed behind a client's error.
	go func() {
		for n := 0; lines.Scan(); {
			if n < maxWarnings && !bytes.Contains(lines.Bytes(), []byte(`"level":"INFO"`)) {
				n++
				fmt.Fprintf(os.Stderr, "headgate: %s\n", lines.Bytes())
			}
		}
	}()
	for range 1000 {
		if _, err = fetch("http://" + p.Admin + "/readyz"); err == nil {
			return p, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.stop()
	return nil, fmt.Errorf("headgate is not ready: %w", err)
}

// target is how clients get to it.
func (p *process) target() target { return target{p.Listen, p.header, p.token} }

func (p *process) stop() {
	if p.input != nil {
		_ = p.input.Close()
	} else if p.others {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		// What holds connections open may take its time over it.
		defer time.AfterFunc(2*time.Second, func() { _ = p.cmd.Process.Kill() }).Stop()
	} else {
		_ = p.cmd.Process.Signal(os.Interrupt)
	}
	_ = p.cmd.Wait()
}

func fetch(address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, bytes.TrimSpace(body))
	}
	return body, err
}

// usage is what a process has used and holds.
type usage struct {
	cpu         time.Duration // user and system
	allocations float64
	inUse       float64 // bytes of heap and stacks
	resident    float64 // bytes
}

// usage reads a process's own metrics. settle collects garbage before: a
// collection halves a stack that is too large, hence several.
func (p *process) usage(settle bool) (u usage, err error) {
	if settle {
		for range 4 {
			if _, err := fetch("http://" + p.Admin + "/debug/pprof/heap?gc=1"); err != nil {
				return u, err
			}
		}
	}
	body, err := fetch("http://" + p.Admin + "/metrics")
	if err != nil {
		return u, err
	}
	found := 0
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		found++
		switch name {
		case "process_cpu_seconds_total":
			u.cpu = time.Duration(v * float64(time.Second))
		case "go_memstats_mallocs_total":
			u.allocations = v
		case "go_memstats_heap_inuse_bytes", "go_memstats_stack_inuse_bytes":
			u.inUse += v
		case "process_resident_memory_bytes":
			u.resident = v
		default:
			found--
		}
	}
	if found != 5 {
		return u, fmt.Errorf("metrics: %d of 5 series", found)
	}
	return u, nil
}
