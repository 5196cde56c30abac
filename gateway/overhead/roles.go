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
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"headgate/identity"
	"headgate/telemetry"
)

const (
	roleUpstream = "upstream"
	roleProxy    = "proxy"

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
	var h http.Handler = http.HandlerFunc(answer)
	if role == roleProxy {
		if len(args) != 1 {
			return fmt.Errorf("proxy: wants the upstream's address")
		}
		h = bareProxy(args[0])
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
// its end.
func bareProxy(upstream string) http.Handler {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: upstream})
	p.FlushInterval = -1
	p.Transport = &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256, DisableCompression: true}
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

// watched answers as Headgate's admin listener does.
func watched() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(telemetry.NewRegistry(telemetry.ReadBuild()), promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	return mux
}

// answer is the upstream: an engine that sends as many events as the prompt asks
// for ("events N pace D "), each when it is due.
func answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"`+model+`","object":"model"}]}`)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var events int
	var pace string
	if _, ask, ok := bytes.Cut(body, []byte("events ")); !ok {
		http.Error(w, "the prompt asks for no events", http.StatusBadRequest)
		return
	} else if _, err := fmt.Sscanf(string(ask[:min(len(ask), 64)]), "%d pace %s", &events, &pace); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	every, err := time.ParseDuration(pace)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	control := http.NewResponseController(w)
	var b []byte
	timer := time.NewTimer(0)
	defer timer.Stop()
	start := time.Now()
	for i := range events {
		if wait := time.Until(start.Add(time.Duration(i) * every)); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-r.Context().Done():
				return
			}
		}
		finish := "null"
		if i == events-1 {
			finish = `"stop"`
		}
		b = append(b[:0], `data: {"id":"chatcmpl-9f2c41d07b3e4a58","object":"chat.completion.chunk","created":1760000000,"model":"`+model+
			`","choices":[{"index":0,"delta":{"content":"at `...)
		b = strconv.AppendInt(b, time.Now().UnixNano(), 10)
		b = append(append(append(b, ` "},"logprobs":null,"finish_reason":`...), finish...), "}]}\n\n"...)
		if i == events-1 {
			b = append(b, "data: [DONE]\n\n"...)
		}
		if _, err := w.Write(b); err != nil {
			return
		}
		if control.Flush() != nil {
			return
		}
	}
}

// process is a role that runs.
type process struct {
	addresses
	cmd   *exec.Cmd
	input io.WriteCloser // its end ends a role
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

// startHeadgate runs the released program before the upstream, with a journal
// in dir, and returns once it would take requests.
func startHeadgate(program, dir, upstream string, slots, depth int) (*process, error) {
	hash, err := identity.Hash(identity.NewSecret(key))
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "headgate.yaml")
	text := fmt.Sprintf(`listen: 127.0.0.1:0
admin: {listen: "127.0.0.1:0"}
limits: {max_connections: 65536, drain_timeout: 1s}
journal: {file: %q}
keys:
  - {name: bench, tenant: bench, hash: %q, classes: [interactive, batch]}
pools:
  - name: main
    models: [%s]
    engines:
      - {name: gpu0, kind: openai, url: "http://%s", slots: %d, kv_tokens: 500000000}
    classes:
      - {name: interactive, floor: {slots: %d}, queue: {depth: %d, per_tenant: 0, wait: 0s}}
      - {name: batch, floor: {slots: 1}, unlent: {slots: 1}}
`, filepath.Join(dir, "journal.jsonl"), hash, model, upstream, slots+1, slots, depth)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, "serve", "-c", config)}
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

func (p *process) stop() {
	if p.input != nil {
		_ = p.input.Close()
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
