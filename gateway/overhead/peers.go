package main

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"
)

// The arms beside direct, proxy and headgate: what an operator may have instead.
const (
	nginx   = "nginx"
	haproxy = "haproxy"
	vmauth  = "vmauth"
	portkey = "portkey"
)

// configurations are the peers' and Headgate's, as templates of a setting.
//
//go:embed peers/headgate.yaml peers/nginx.conf peers/haproxy.cfg peers/vmauth.yml
var configurations embed.FS

// setting is what an arm is started with.
type setting struct {
	Dir       string // of its own: configuration, logs, journal
	Upstream  string
	Collector string // Headgate exports to it and has everything on; "" does neither
	Issuer    *issuer
	Slots     int // requests that the upstream gets at once
	Depth     int // that may wait in Headgate

	Listen string // not of Headgate and the proxy, which say it themselves
}

// SSO is the issuer's address.
func (s setting) SSO() string { return s.Issuer.at }

func (setting) Key() string   { return key }
func (setting) Model() string { return model }
func (setting) Threads() int  { return runtime.NumCPU() }

// Engine is the engine's slots: with a class of its own for batch there is one more.
func (s setting) Engine() int {
	if s.Collector == "" {
		return s.Slots + 1
	}
	return s.Slots
}

// Files is how many a process may have open.
func (setting) Files() uint64 {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return 1024
	}
	return min(uint64(files.Max), 1<<20)
}

// Connections is how many clients' a process has room for: each takes one to the engine.
func (s setting) Connections() uint64 { return s.Files()/2 - 100 }

// User is whom nginx's workers run as: whoever runs this, who has made the folder.
func (setting) User() string {
	if name := os.Getenv("USER"); name != "" && os.Getuid() != 0 {
		return name
	}
	return "root"
}

// write fills a template into the setting's folder and returns the file.
func (s setting) write(name string) (string, error) {
	t, err := template.ParseFS(configurations, "peers/"+name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, struct {
		setting
		Hash string
	}{s, keyHash}); err != nil {
		return "", err
	}
	file := filepath.Join(s.Dir, name)
	return file, os.WriteFile(file, []byte(b.String()), 0o600)
}

// peer is a program of others.
type peer struct {
	name   string
	queues bool // it can let requests wait until the upstream has a place
	parses bool // it reads bodies, as Headgate does
	// find returns the command, without arguments, or why there is none.
	find func(dir string) ([]string, error)
	// args completes the command.
	args func(s setting) ([]string, error)
	// version's arguments; nil: it is a package's.
	version []string
	header  func(s setting) string
}

func inPath(name string, alternatives ...string) ([]string, error) {
	for _, path := range append(alternatives, name, "/usr/sbin/"+name) {
		if found, err := exec.LookPath(path); err == nil {
			return []string{found}, nil
		}
	}
	return nil, fmt.Errorf("%s is not installed", name)
}

// peers are the programs compared with.
var peers = []peer{
	{
		name: nginx, version: []string{"-v"},
		find: func(string) ([]string, error) { return inPath("nginx") },
		args: func(s setting) ([]string, error) {
			file, err := s.write("nginx.conf")
			return []string{"-p", s.Dir, "-e", filepath.Join(s.Dir, "nginx-error.log"), "-c", file}, err
		},
	},
	{
		name: haproxy, queues: true, version: []string{"-v"},
		find: func(string) ([]string, error) { return inPath("haproxy") },
		args: func(s setting) ([]string, error) {
			file, err := s.write("haproxy.cfg")
			return []string{"-db", "-f", file}, err
		},
	},
	{
		name: vmauth, queues: true, version: []string{"-version"},
		find: func(dir string) ([]string, error) { return inPath("vmauth", filepath.Join(dir, "vmauth")) },
		args: func(s setting) ([]string, error) {
			file, err := s.write("vmauth.yml")
			return []string{
				"-auth.config=" + file, "-httpListenAddr=" + s.Listen, "-loggerLevel=ERROR", "-maxIdleConnsPerBackend=256",
				"-maxConcurrentRequests=100000", "-maxQueueDuration=10m", "-responseTimeout=10m", "-http.connTimeout=10m",
			}, err
		},
	},
	{
		name: portkey, parses: true,
		find: func(dir string) ([]string, error) {
			start := filepath.Join(dir, "node_modules/@portkey-ai/gateway/build/start-server.js")
			if _, err := os.Stat(start); err != nil {
				return nil, errors.New("@portkey-ai/gateway is not installed")
			}
			node, err := inPath("node")
			return append(node, start), err
		},
		args: func(s setting) ([]string, error) {
			_, port, err := net.SplitHostPort(s.Listen)
			return []string{"--headless", "--port=" + port}, err
		},
		header: func(s setting) string {
			return "x-portkey-provider: openai\r\nx-portkey-custom-host: http://" + s.Upstream + "/v1\r\n"
		},
	},
}

// startPeer runs a peer before the upstream and returns once it passes requests on.
func startPeer(p *peer, installed string, s setting) (_ *process, err error) {
	argv, err := p.find(installed)
	if err != nil {
		return nil, err
	}
	if s.Listen, err = freeAddress(); err != nil {
		return nil, err
	}
	if s.Dir, err = os.MkdirTemp(s.Dir, p.name); err != nil {
		return nil, err
	}
	args, err := p.args(s)
	if err != nil {
		return nil, err
	}
	run := &process{cmd: exec.Command(argv[0], append(argv[1:], args...)...), addresses: addresses{Listen: s.Listen}, others: true}
	if p.header != nil {
		run.header = p.header(s)
	}
	said, err := os.Create(filepath.Join(s.Dir, "output"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = said.Close() }()
	run.cmd.Dir, run.cmd.Stdout, run.cmd.Stderr = s.Dir, said, said
	run.cmd.SysProcAttr, run.cmd.Env = endsWithUs(), append(os.Environ(), "NODE_ENV=production")
	if err := run.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	var last error
	for range 300 {
		if last = run.answers(); last == nil {
			return run, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	run.stop()
	text, _ := os.ReadFile(said.Name())
	return nil, fmt.Errorf("%s passes nothing on: %w; it said: %s", p.name, last, text[max(0, len(text)-2000):])
}

// answers sends one request through.
func (p *process) answers() error {
	s, err := p.target().dial()
	if err != nil {
		return err
	}
	defer s.close()
	_ = s.conn.SetDeadline(time.Now().Add(5 * time.Second))
	a := ask{events: 2}
	_, _, err = s.once(a.body(), a)
	return err
}

// freeAddress is one that nobody listens on at this moment.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// versionOf tells which version of a peer is measured.
func versionOf(p *peer, installed string) string {
	argv, err := p.find(installed)
	if err != nil {
		return ""
	}
	if p.version == nil {
		var doc struct{ Version string }
		text, err := os.ReadFile(filepath.Join(filepath.Dir(argv[len(argv)-1]), "../package.json"))
		if err != nil || json.Unmarshal(text, &doc) != nil {
			return "unknown"
		}
		return doc.Version
	}
	said, _ := exec.Command(argv[0], append(slices.Clone(argv[1:]), p.version...)...).CombinedOutput() // some exit with 1 after it
	first, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
	if first == "" {
		// One that was not built by its makers knows only its module's.
		said, _ = exec.Command("go", "version", "-m", argv[0]).Output()
		for line := range strings.Lines(string(said)) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "mod" {
				return f[1] + " " + f[2]
			}
		}
	}
	return first
}

// spent is the processor time of a process and of all that it has started, user and
// system.
func (p *process) spent() (all time.Duration, err error) {
	err = p.each(func(pid int) error {
		d, err := processorTime(pid)
		all += d
		return err
	})
	return all, err
}

// held is the memory of a process and of all that it has started, in bytes: what is
// shared between them counts once.
func (p *process) held() (all float64, err error) {
	err = p.each(func(pid int) error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
				kib, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					return err
				}
				all += kib * 1024
				return nil
			}
		}
		return errors.New("smaps_rollup has no Pss")
	})
	return all, err
}

// each calls f for a process and its descendants.
func (p *process) each(f func(pid int) error) error {
	of := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		// The name, in brackets, may have anything in it.
		if end := strings.LastIndexByte(string(text), ')'); end > 0 {
			fields := strings.Fields(string(text[end+1:]))
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			parent, err2 := strconv.Atoi(fields[1])
			if err == nil && err2 == nil {
				of[parent] = append(of[parent], pid)
			}
		}
	}
	all := []int{p.cmd.Process.Pid}
	for i := 0; i < len(all); i++ {
		all = append(all, of[all[i]]...)
		if err := f(all[i]); err != nil {
			return err
		}
	}
	return nil
}

// cancelTime is how long after a client has closed its connection the upstream's
// request is ended. With silent the engine has not begun to answer. late tells that it
// was not within mostPatient.
func (b *bench) cancelTime(arm, id string, silent bool) (took time.Duration, late bool, err error) {
	// It ends by itself soon after it is waited for no longer.
	a := ask{events: 100, pace: 50 * time.Millisecond, id: id}
	if silent {
		a = ask{events: 1, wait: 2 * mostPatient, id: id}
	}
	s, err := b.target(arm).dial()
	if err != nil {
		return 0, false, err
	}
	defer s.close()
	if err := s.send(a.body()); err != nil {
		return 0, false, err
	}
	if silent {
		// It is with the upstream for certain, and has been there for a moment.
		time.Sleep(30 * time.Millisecond)
	} else {
		_ = s.conn.SetReadDeadline(time.Now().Add(stuck))
		res, err := http.ReadResponse(s.in, nil)
		if err != nil {
			return 0, false, err
		}
		if _, err := res.Body.Read(make([]byte, 64)); err != nil {
			return 0, false, err
		}
		time.Sleep(10 * time.Millisecond) // not in the moment of an event
	}
	now := time.Now()
	s.close()
	text, err := fetch("http://" + b.up.Listen + "/bench/left?id=" + id)
	if err != nil {
		return 0, false, err
	}
	at, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0, false, err
	}
	if at == 0 {
		return mostPatient, true, nil
	}
	return time.Unix(0, at).Sub(now), false, nil
}
