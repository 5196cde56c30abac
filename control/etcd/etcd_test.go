package etcd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"headgate/control"
	"headgate/control/etcd"
	"headgate/control/etcd/etcdtest"
	"headgate/control/store"
	"headgate/control/store/storetest"
	"headgate/identity"
)

// fleets numbers the tests' fleets, so that they may share a cluster.
var fleets struct {
	sync.Mutex
	n int
}

func fleet() string {
	fleets.Lock()
	defer fleets.Unlock()
	fleets.n++
	return fmt.Sprintf("fleet-%d", fleets.n)
}

func open(t testing.TB, endpoints []string, fleet string, set ...func(*etcd.Config)) *etcd.Store {
	t.Helper()
	var c etcd.Config
	c.SetDefaults()
	c.Endpoints, c.Fleet, c.RequestTimeout = endpoints, fleet, time.Second
	for _, s := range set {
		s(&c)
	}
	s, err := etcd.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// compact drops all but the last revision of everything.
func compact(t testing.TB, c *clientv3.Client) {
	t.Helper()
	resp, err := c.Get(t.Context(), "compact")
	if err == nil {
		_, err = c.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err != nil && !strings.Contains(err.Error(), "compacted") { // another test was faster
		t.Fatal(err)
	}
}

func TestStories(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	stories(t, c, c.Client(t, "", ""))
}

func stories(t *testing.T, c *etcdtest.Cluster, admin *clientv3.Client, set ...func(*etcd.Config)) {
	storetest.Run(t, func(t *testing.T, story func(t *testing.T, f storetest.Fleet)) {
		t.Parallel() // most of it is waiting for leases to end
		name := fleet()
		story(t, storetest.Fleet{
			TTL:    etcd.MinLease,
			Forget: func(t *testing.T) { compact(t, admin) },
			Dial: func(t *testing.T) storetest.Client {
				l := c.Link(t)
				return storetest.Client{Store: open(t, l.Endpoints(), name, set...), Cut: l.Cut, Heal: l.Heal}
			},
		})
	})
}

// TestStoriesBehindALogin tells them with certificates, to a user who may do nothing
// outside the fleets, and with logins that are soon forgotten.
func TestStoriesBehindALogin(t *testing.T) {
	c, secure := locked(t)
	stories(t, c, c.Client(t, "root", "root's"), secure)
}

// locked returns a cluster with certificates and users, and how fleets log in.
func locked(t *testing.T) (*etcdtest.Cluster, func(*etcd.Config)) {
	t.Helper()
	c := etcdtest.Start(t, etcdtest.Options{TLS: true, TokenTTL: 1})
	admin := c.Client(t, "", "")
	const root, user = "/headgate/", "fleets"
	for name, password := range map[string]string{"root": "root's", user: "fleets'"} {
		_, err := admin.UserAdd(t.Context(), name, password)
		if err == nil {
			_, err = admin.RoleAdd(t.Context(), name)
		}
		if err == nil {
			_, err = admin.UserGrantRole(t.Context(), name, name)
		}
		if err != nil {
			t.Fatalf("user %s: %v", name, err)
		}
	}
	if _, err := admin.RoleGrantPermission(t.Context(), user, root, clientv3.GetPrefixRangeEnd(root), clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, func(config *etcd.Config) {
		config.Username, config.Password = user, identity.NewSecret("fleets'")
		config.CAFile, config.CertFile, config.KeyFile = c.Certs.CA, c.Certs.ClientCert, c.Certs.ClientKey
	}
}

// TestLoginIsForgotten: a login that was not used for longer than it is good for
// costs a new one, and neither the lease nor a watch.
func TestLoginIsForgotten(t *testing.T) {
	c, secure := locked(t)
	s := open(t, c.Endpoints(), fleet(), secure)
	m := control.Member{ID: control.ID{Replica: "a", Boot: "1"}}
	session, err := s.Join(t.Context(), m, 12*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	lists := s.Members(t.Context())
	<-lists
	<-session.Renewed()
	<-session.Renewed() // four seconds later, of which a login is good for one
	r := control.Report{Pool: "p", ID: m.ID, Lease: session.Lease(), Seq: 1}
	if err := s.Report(t.Context(), &r); err != nil {
		t.Errorf("report: %v", err)
	}
	<-session.Renewed()
	if err := session.Leave(t.Context()); err != nil {
		t.Errorf("leave: %v", err)
	}
	if list := <-lists; len(list) != 0 {
		t.Errorf("members %v, want none", list)
	}
}

func TestNoWayIn(t *testing.T) {
	c, secure := locked(t)
	s := open(t, append(c.Endpoints(), "https://127.0.0.1:1"), fleet(), secure)
	members := s.Health(t.Context())
	for i, m := range members[:len(members)-1] {
		if m.Err != nil || !m.Leads || m.Version == "" || m.Size == 0 || len(m.Alarms) > 0 || m.Date.Sub(m.Sent).Abs() > time.Minute {
			t.Errorf("member %d: %+v", i, m)
		}
	}
	if m := members[len(members)-1]; m.Err == nil || m.Leads {
		t.Errorf("nobody: %+v", m)
	}
	for _, w := range []struct {
		name string
		set  func(*etcd.Config)
		want string
	}{
		{"wrong password", func(c *etcd.Config) { c.Password = identity.NewSecret("guessed") }, "authentication failed"},
		{"no certificate", func(c *etcd.Config) { c.CertFile, c.KeyFile = "", "" }, "deadline exceeded"},
		{"not a fleet of this user's", func(c *etcd.Config) { c.Prefix = "/other" }, "permission denied"},
	} {
		t.Run(w.name, func(t *testing.T) {
			s := open(t, c.Endpoints(), fleet(), secure, w.set)
			_, err := s.State(t.Context())
			if err == nil || !strings.Contains(err.Error(), w.want) || strings.Contains(err.Error(), "guessed") {
				t.Errorf("state: %v, want %q", err, w.want)
			}
			if errors.Is(err, store.ErrFenced) {
				t.Errorf("state: %v is no fence", err)
			}
			if refused := w.name != "no certificate"; etcd.Refused(err) != refused {
				t.Errorf("state: %v: refused %t, want %t", err, !refused, refused)
			}
		})
	}
}

// TestKeys tells what an operator sees, and what becomes of a fleet when an operator
// has a hand in it.
func TestKeys(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	admin := c.Client(t, "", "")
	s := open(t, c.Endpoints(), "f")
	if _, err := admin.Put(t.Context(), "/headgate/f/members/odd", "not a member"); err != nil {
		t.Fatal(err)
	}
	m := control.Member{ID: control.ID{Replica: "a/b", Boot: "1"}, Address: "http://a:1"}
	session, err := s.Join(t.Context(), m, 6*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	m.Lease = session.Lease()
	l, err := s.Campaign(t.Context(), "x", 6*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"report":  s.Report(t.Context(), &control.Report{Pool: "p", ID: m.ID, Lease: m.Lease, Seq: 1}),
		"write":   l.Write(t.Context(), &control.Grant{Pool: "p", ID: m.ID, Lease: m.Lease, Epoch: l.Epoch(), Rev: 1}),
		"publish": l.Publish(t.Context(), "p", []byte(`{}`)),
	} {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	resp, err := admin.Get(t.Context(), "/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, kv := range resp.Kvs {
		bound := ""
		if kv.Lease != 0 {
			bound = " bound"
		}
		key := strings.ReplaceAll(string(kv.Key), fmt.Sprintf("%x", kv.Lease), "LEASE")
		var v struct{ Replica, Boot, Pool, Leader string }
		_ = json.Unmarshal(kv.Value, &v)
		got = append(got, fmt.Sprintf("%s %s%s", key, strings.Join(strings.Fields(v.Replica+" "+v.Boot+" "+v.Pool+" "+v.Leader), " "), bound))
	}
	want := []string{
		"/headgate/f/grants/a%2Fb/1/p a/b 1 p",
		"/headgate/f/leader/LEASE x bound",
		"/headgate/f/members/a%2Fb a/b 1 bound",
		"/headgate/f/members/odd ",
		"/headgate/f/reports/a%2Fb/1/p a/b 1 p",
		"/headgate/f/status/p ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the keys: %s", d)
	}

	changes := l.Follow(t.Context())
	for c := range changes {
		if c.Joined != nil && c.Joined.Replica == "odd" {
			t.Error("what is not a member has joined")
		}
		if c.Synced {
			break
		}
	}
	// An operator who deletes a member's key ends its lease for the fleet.
	if _, err := admin.Delete(t.Context(), "/headgate/f/members/a%2Fb"); err != nil {
		t.Fatal(err)
	}
	if c := <-changes; c.Gone == nil || *c.Gone != m {
		t.Errorf("told %+v, want that %+v is gone", c, m)
	}
	for range session.Renewed() {
	}
	if err := s.Report(t.Context(), &control.Report{Pool: "p", ID: m.ID, Lease: m.Lease, Seq: 2}); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a report without the key: %v, want ErrFenced", err)
	}
	// And one who deletes the leader's ends its term.
	if _, err := admin.Delete(t.Context(), "/headgate/f/leader/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if err := l.Publish(t.Context(), "p", nil); !errors.Is(err, store.ErrFenced) {
		t.Errorf("publish without the key: %v, want ErrFenced", err)
	}
	<-l.Lost()
}
