// Command fleetdemo runs a whole fleet on this machine: three members of etcd, a
// simulated engine, three replicas in front of it, and some load. It says where
// everything is and what to try, and ends all of it at Ctrl-C.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.headgate, "headgate", "bin/headgate", "the binary")
	flag.StringVar(&o.etcdmember, "etcdmember", "bin/etcdmember", "the binary of an etcd member")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, "fleetdemo:", err)
		os.Exit(1)
	}
}

type options struct{ headgate, etcdmember string }

// size of the fleet.
const size = 3

const config = `log: {format: text}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
control:
  store: etcd
  endpoints: [%s]
  replica: %s
  replicas: 3
pools:
  - name: demo
    engines: [{name: sim, kind: vllm, url: "%s", slots: 6, observe_every: 100ms}]
    classes:
      - {name: interactive, floor: {slots: 4}, unlent: {slots: 1}}
      - {name: batch, floor: {slots: 1}, reclaim: reclaim, queue: {depth: 1000, wait: 10m}}
`

// demo is what runs.
type demo struct {
	options
	dir string
	out io.Writer

	mu        sync.Mutex // of what is written to out
	processes []*process // in the order in which they were started
}

// process is one, whose output goes to a file.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

// replica is one that serves.
type replica struct {
	*process
	name, url, admin string
}

// member is one of etcd.
type member struct {
	*process
	name, url string
}

func run(ctx context.Context, out io.Writer, o options) (err error) {
	d := &demo{options: o, out: out}
	if d.dir, err = os.MkdirTemp("", "headgate-fleet-"); err != nil {
		return err
	}
	defer func() {
		d.end()
		err = errors.Join(err, os.RemoveAll(d.dir))
	}()
	fmt.Fprintln(out, "starting three members of etcd, an engine and three replicas")
	etcd, err := d.startEtcd(ctx)
	if err != nil {
		return stopped(ctx, err)
	}
	engine, model, err := d.startEngine(ctx)
	if err != nil {
		return stopped(ctx, err)
	}
	var replicas []replica
	for i := range size {
		r, err := d.startReplica(ctx, fmt.Sprintf("r%d", i+1), etcd, engine)
		if err != nil {
			return stopped(ctx, err)
		}
		replicas = append(replicas, r)
	}
	for _, r := range replicas {
		if err := awaitReady(ctx, r.admin); err != nil {
			return stopped(ctx, fmt.Errorf("%s: %w", r.name, err))
		}
	}
	d.tell(etcd, engine, model, replicas)
	d.load(ctx, model, replicas)
	fmt.Fprintln(out, "stopping")
	return nil
}

// stopped is no error if somebody wanted it.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// start runs a program and returns the groups of the first line of its output that
// matches.
func (d *demo) start(ctx context.Context, name string, pattern string, args ...string) (*process, []string, error) {
	log, err := os.Create(filepath.Join(d.dir, name+".log"))
	if err != nil {
		return nil, nil, err
	}
	p := &process{cmd: exec.Command(args[0], args[1:]...), log: log.Name(), exited: make(chan struct{})}
	r, w := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	// Ctrl-C is this program's: it ends the others in order. Standard input is what a member
	// of etcd lives by.
	p.cmd.SysProcAttr = apart()
	if _, err := p.cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, err
	}
	d.processes = append(d.processes, p)
	matched := make(chan []string, 1)
	go func() {
		re := regexp.MustCompile(pattern)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			fmt.Fprintln(log, lines.Text())
			if m := re.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case matched <- m:
				default:
				}
			}
		}
		_ = log.Close() // nothing is lost that anybody waits for
	}()
	go func() {
		_ = p.cmd.Wait() // its log says why
		_ = w.Close()
		close(p.exited)
	}()
	select {
	case m := <-matched:
		return p, m, nil
	case <-p.exited:
		b, _ := os.ReadFile(p.log) // what it has said, if anything
		return nil, nil, fmt.Errorf("%s ended: %s", name, b)
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

func (d *demo) startEtcd(ctx context.Context) (members []member, err error) {
	var cluster, peers []string
	for i := range size {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		peers = append(peers, "http://"+l.Addr().String())
		cluster = append(cluster, fmt.Sprintf("etcd%d=%s", i+1, peers[i]))
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	for i := range size {
		name := fmt.Sprintf("etcd%d", i+1)
		p, m, err := d.start(ctx, name, `"client":"([^"]+)"`, d.etcdmember, "-name", name, "-dir", filepath.Join(d.dir, name),
			"-peer", peers[i], "-cluster", strings.Join(cluster, ","))
		if err != nil {
			return nil, err
		}
		members = append(members, member{p, name, m[1]})
	}
	return members, nil
}

func (d *demo) startEngine(ctx context.Context) (url, model string, err error) {
	_, m, err := d.start(ctx, "engine", `^(\S+) on (http://\S+)$`, d.headgate, "engine", "--listen", "127.0.0.1:0", "--max-num-seqs", "6", "--num-gpu-blocks", "3072", "--speed", "0.5")
	if err != nil {
		return "", "", err
	}
	return m[2], m[1], nil
}

func (d *demo) startReplica(ctx context.Context, name string, etcd []member, engine string) (replica, error) {
	file := filepath.Join(d.dir, name+".yaml")
	var endpoints []string
	for _, m := range etcd {
		endpoints = append(endpoints, `"`+m.url+`"`)
	}
	text := fmt.Sprintf(config, strings.Join(endpoints, ", "), name, engine)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return replica{}, err
	}
	p, m, err := d.start(ctx, name, `msg=serving listen=(\S+) admin=(\S+)`, d.headgate, "serve", "-c", file, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	if err != nil {
		return replica{}, err
	}
	return replica{p, name, "http://" + m[1], "http://" + m[2]}, nil
}

func awaitReady(ctx context.Context, admin string) error {
	for {
		res, err := http.Get(admin + "/readyz")
		if err == nil {
			_ = res.Body.Close() // it was only asked
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (d *demo) tell(etcd []member, engine, model string, replicas []replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "\nThree replicas share one engine of six slots: four are interactive's, one is batch's.\n\n")
	for _, r := range replicas {
		fmt.Fprintf(d.out, "  %s  clients %s  operators %s  pid %d  log %s\n", r.name, r.url, r.admin, r.cmd.Process.Pid, r.log)
	}
	for _, m := range etcd {
		fmt.Fprintf(d.out, "  %s  %s  pid %d\n", m.name, m.url, m.cmd.Process.Pid)
	}
	fmt.Fprintf(d.out, "  engine  %s\n", engine)
	fmt.Fprintf(d.out, `
From another terminal, in this folder. Who leads, who has what, who lends to whom, and the last
handoffs; any replica can be asked:

  %[1]s grants --admin %[2]s
  %[1]s events --admin %[2]s --follow

A request, with the grant that allowed it in Headgate-Grant:

  curl -i %[3]s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"%[4]s","max_tokens":16,"messages":[{"role":"user","content":"hello"}]}'

What is in the store, if you have etcd's own client:

  etcdctl --endpoints %[5]s get --prefix /headgate/default/

To try: kill -9 the pid of a replica, the leader above all, or kill -STOP that of a member of etcd,
and look again. What was killed stays away; Ctrl-C ends the rest.

Batch work now runs at r2 and r3, and two interactive requests come to r1 every few seconds. Of each
you see how long it waited for a slot, and the grant by which it was admitted:

`, d.headgate, replicas[0].admin, replicas[0].url, model, etcd[0].url)
}

// load keeps batch work at all replicas but the first, to which interactive requests
// come, until ctx is over.
func (d *demo) load(ctx context.Context, model string, replicas []replica) {
	var tasks sync.WaitGroup
	for i := range 8 {
		to := replicas[1+i%(size-1)]
		tasks.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, _, err := ask(ctx, to.url, model, "batch", fmt.Sprintf("item %d of worker %d", n, i), 256); err != nil {
					pause(ctx, time.Second)
				}
			}
		})
	}
	for pause(ctx, 4*time.Second) {
		for range 2 {
			tasks.Go(func() {
				h, took, err := ask(ctx, replicas[0].url, model, "interactive", "a short question", 16)
				d.mu.Lock()
				defer d.mu.Unlock()
				switch {
				case ctx.Err() != nil:
				case err != nil:
					fmt.Fprintf(d.out, "interactive at r1: %v\n", err)
				default:
					fmt.Fprintf(d.out, "interactive at r1: %s after %s ms by grant %s, done after %d ms\n",
						h.Get("Headgate-Decision"), h.Get("Headgate-Queue-Ms"), h.Get("Headgate-Grant"), took.Milliseconds())
				}
			})
		}
	}
	tasks.Wait()
}

func ask(ctx context.Context, url, model, class, prompt string, tokens int) (http.Header, time.Duration, error) {
	body, err := json.Marshal(map[string]any{"model": model, "max_tokens": tokens, "prompt": prompt})
	if err != nil {
		return nil, 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Headgate-Class", class)
	start := time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return nil, 0, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("answered %s", res.Status)
	}
	return res.Header, time.Since(start), nil
}

// end ends what runs, the last that was started first. Replicas drain; whoever does not
// leave is killed.
func (d *demo) end() {
	for i := len(d.processes) - 1; i >= 0; i-- {
		p := d.processes[i]
		select {
		case <-p.exited:
			continue
		default:
		}
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may have been stopped, to try
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.exited:
		case <-time.After(10 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
	}
}
