// Package etcdtest runs clusters of etcd for tests: real processes that can be
// killed and stopped, and links between them, and to them, that can be cut.
//
// Members bind their ports themselves and end with the test process, even one that
// is killed. What they write is in the test's own folder.
package etcdtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"headgate/proctest"
)

// patience bounds every wait. It is no measure of speed: only a broken process
// needs as long.
const patience = 60 * time.Second

// Options say how a cluster is started. The zero value is one member that does not
// wait for the disk.
type Options struct {
	Members int // 1
	// Fsync waits for the disk, as etcd does in production.
	Fsync bool
	// TLS makes members demand a certificate, and show one: see Cluster.Certs.
	TLS bool
	// TokenTTL is for how many seconds a login is good that is not used, 300.
	TokenTTL int
	// Direct leaves out the links between members, for benchmarks. Their ports are
	// chosen beforehand then, and may be taken.
	Direct bool
}

// Cluster is a running cluster.
type Cluster struct {
	Certs   Certs // with Options.TLS
	t       testing.TB
	options Options
	members []*Member
}

// Member is one process.
type Member struct {
	c      *Cluster
	name   string
	args   []string
	peers  *peers // the links to it, nil with Options.Direct
	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	client string // host:port
	said   *output
}

// Start runs a cluster until the test ends, and returns when it serves.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	o.Members = max(1, o.Members)
	binary := Binary(t)
	dir := t.TempDir()
	c := &Cluster{t: t, options: o}
	var cluster []string
	for i := range o.Members {
		m := &Member{c: c, name: fmt.Sprintf("m%d", i+1)}
		// Logins at production's cost would be most of a test's time.
		m.args = []string{binary, "-name", m.name, "-dir", filepath.Join(dir, m.name), "-bcrypt-cost", "4"}
		url := ""
		if o.Direct {
			url = "http://" + free(t)
			m.args = append(m.args, "-peer", url)
		} else {
			m.peers = newPeers(t)
			url = "http://" + m.peers.address
			m.args = append(m.args, "-advertise-peer", url)
		}
		cluster = append(cluster, m.name+"="+url)
		if !o.Fsync {
			m.args = append(m.args, "-unsafe-no-fsync")
		}
		if o.TokenTTL > 0 {
			m.args = append(m.args, "-token-ttl", strconv.Itoa(o.TokenTTL))
		}
		c.members = append(c.members, m)
	}
	if o.TLS {
		c.Certs = newCerts(t, dir)
		for _, m := range c.members {
			m.args = append(m.args, "-client", "https://127.0.0.1:0", "-cert", c.Certs.ServerCert, "-key", c.Certs.ServerKey, "-ca", c.Certs.CA)
		}
	}
	for _, m := range c.members {
		m.args = append(m.args, "-cluster", strings.Join(cluster, ","))
		m.start(t)
		t.Cleanup(func() {
			m.Kill()
			if t.Failed() {
				t.Logf("etcd's member %s said:\n%s", m.name, m.said)
			}
		})
	}
	for _, m := range c.members {
		m.await(t, "ready")
	}
	return c
}

// Member returns one of the members, from 0.
func (c *Cluster) Member(i int) *Member { return c.members[i] }

// Endpoints are the members' own client URLs, beside all links. A member that was
// started again has another.
func (c *Cluster) Endpoints() (urls []string) {
	for _, m := range c.members {
		urls = append(urls, c.scheme()+"://"+m.address())
	}
	return urls
}

func (c *Cluster) scheme() string {
	if c.options.TLS {
		return "https"
	}
	return "http"
}

// Client returns a client of etcd's own, beside all links, until the test ends.
// user is "" where there is no login.
func (c *Cluster) Client(t testing.TB, user, password string) *clientv3.Client {
	t.Helper()
	var secure *tls.Config
	if c.options.TLS {
		secure = c.Certs.client(t)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints(), TLS: secure, Username: user, Password: password,
		DialTimeout: patience, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatalf("etcd's client: %v", err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Leader returns the member that leads, as another that lives says.
func (c *Cluster) Leader(t testing.TB) int {
	t.Helper()
	client := c.Client(t, "", "")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		for _, url := range client.Endpoints() {
			sctx, stop := context.WithTimeout(ctx, time.Second)
			s, err := client.Status(sctx, url)
			stop()
			if err != nil || s.Leader == 0 {
				continue
			}
			for i, m := range c.members {
				if m.id() == fmt.Sprintf("%x", s.Leader) {
					return i
				}
			}
		}
	}
	t.Fatal("etcd has no leader")
	return 0
}

// Cut cuts the link between two members, in both directions; Heal undoes it.
func (c *Cluster) Cut(i, j int)  { c.cut(i, j, true) }
func (c *Cluster) Heal(i, j int) { c.cut(i, j, false) }

func (c *Cluster) cut(i, j int, cut bool) {
	c.members[i].peers.cut(c.members[j].id(), cut)
	c.members[j].peers.cut(c.members[i].id(), cut)
}

// Isolate cuts a member off from all others; Rejoin undoes it.
func (c *Cluster) Isolate(i int) { c.isolate(i, true) }
func (c *Cluster) Rejoin(i int)  { c.isolate(i, false) }

func (c *Cluster) isolate(i int, cut bool) {
	for j := range c.members {
		if j != i {
			c.cut(i, j, cut)
		}
	}
}

// Kill ends the process without a chance to clean up, and waits for its end.
func (m *Member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.cmd.Process.Kill()
	<-m.exited
}

// Restart starts a process that was killed again, with its data.
func (m *Member) Restart(t testing.TB) {
	t.Helper()
	m.start(t)
	m.await(t, "ready")
}

// Suspend stops the process where it is, with its connections open; Resume lets it
// go on.
func (m *Member) Suspend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = proctest.Suspend(m.cmd.Process)
}

func (m *Member) Resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.cmd.Process.Signal(syscall.SIGCONT)
}

// Watches returns how many watches there are at the member. It can be asked without
// Options.TLS.
func (m *Member) Watches(t testing.TB) int {
	t.Helper()
	resp, err := http.Get("http://" + m.address() + "/metrics")
	if err != nil {
		t.Fatalf("etcd's member %s: %v", m.name, err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if n, ok := strings.CutPrefix(lines.Text(), "etcd_debugging_mvcc_watcher_total "); ok {
			watches, err := strconv.ParseFloat(n, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(watches)
		}
	}
	t.Fatalf("etcd's member %s does not tell its watches", m.name)
	return 0
}

func (m *Member) address() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.client
}

// id is what etcd calls the member, the same in all its lives.
func (m *Member) id() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var l listening
	m.said.nth(0, &l)
	return l.ID
}

// listening is what a member says of itself.
type listening struct {
	ID, Client, Peer string
	Ready            bool
}

func (m *Member) start(t testing.TB) {
	t.Helper()
	m.mu.Lock()
	cmd := exec.Command(m.args[0], m.args[1:]...)
	said, exited := newOutput(), make(chan struct{})
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = said
		cmd.SysProcAttr = proctest.EndsWithParent()
		_, err = cmd.StdinPipe() // its end, with this process, ends the member
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		m.mu.Unlock()
		t.Fatalf("etcd's member %s: %v", m.name, err)
	}
	m.cmd, m.said, m.exited = cmd, said, exited
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			said.line(lines.Bytes())
		}
		_ = cmd.Wait()
		close(exited)
	}()
	m.mu.Unlock()

	l := m.await(t, "listening")
	host := func(url string) string { return url[strings.Index(url, "://")+3:] }
	m.mu.Lock()
	m.client = host(l.Client)
	m.mu.Unlock()
	if m.peers != nil {
		m.peers.target(host(l.Peer))
	}
}

// await waits for one of the two lines that a member says.
func (m *Member) await(t testing.TB, what string) (l listening) {
	t.Helper()
	deadline := time.After(patience)
	for n := map[string]int{"listening": 0, "ready": 1}[what]; ; {
		m.mu.Lock()
		said, exited := m.said, m.exited
		m.mu.Unlock()
		more := said.nth(n, &l)
		if more == nil {
			return l
		}
		select {
		case <-more:
		case <-exited:
			t.Fatalf("etcd's member %s ended before it was %s:\n%s", m.name, what, said)
		case <-deadline:
			t.Fatalf("etcd's member %s is not %s after %v:\n%s", m.name, what, patience, said)
		}
	}
}

// output is what a process says: JSON lines, and the rest.
type output struct {
	mu    sync.Mutex
	lines [][]byte
	more  chan struct{} // closed at the next line
	rest  bytes.Buffer
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func (o *output) line(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, bytes.Clone(b))
	close(o.more)
	o.more = make(chan struct{})
}

// nth reads a line, or returns the channel that is closed at the next one.
func (o *output) nth(n int, to any) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n >= len(o.lines) {
		return o.more
	}
	if err := json.Unmarshal(o.lines[n], to); err != nil {
		panic(fmt.Sprintf("etcdmember said %s: %v", o.lines[n], err))
	}
	return nil
}

// Write takes what goes to standard error.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rest.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(bytes.Join(o.lines, []byte("\n"))) + "\n" + o.rest.String()
}

// free returns an address that nobody listens at now.
func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Binary returns the path of etcdmember.
var Binary = proctest.Program("./e2e/etcdmember")
