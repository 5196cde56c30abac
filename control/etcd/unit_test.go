package etcd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"headgate/control"
	"headgate/control/etcd/etcdtest"
	"headgate/control/store"
	"headgate/identity"
)

// TestConfirm: a renewal counts if nobody else was elected before the read that
// followed it. Which moment that is about can't be brought about from outside.
func TestConfirm(t *testing.T) {
	for _, c := range []struct {
		name         string
		ttl          int64
		term, readAt uint64
		lease        int64 // of the key, 0: it is gone
		want         time.Duration
		err          error
	}{
		{"renewed", 5, 3, 3, 7, 5 * time.Second, nil},
		{"the lease is over", 0, 3, 3, 7, 0, store.ErrEnded},
		{"the key is gone", 5, 3, 3, 0, 0, store.ErrEnded},
		{"the key is another lease's", 5, 3, 3, 8, 0, store.ErrEnded},
		{"another was elected", 5, 3, 4, 7, 0, errTerm},
		{"read by a member that is behind", 5, 4, 3, 7, 0, errTerm},
	} {
		there := &clientv3.GetResponse{Header: &pb.ResponseHeader{RaftTerm: c.readAt}}
		if c.lease != 0 {
			there.Kvs = []*keyValue{{Lease: c.lease}}
		}
		got, err := confirm(7, &pb.LeaseKeepAliveResponse{TTL: c.ttl, Header: &pb.ResponseHeader{RaftTerm: c.term}}, there)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, got, err, c.want, c.err)
		}
	}
}

// TestTryThatComesLate: what a try knew when it was made is the condition that it is
// written on, so that one which comes after a later write changes nothing.
func TestTryThatComesLate(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	var config Config
	config.SetDefaults()
	config.Endpoints = c.Endpoints()
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	session, err := s.Join(t.Context(), control.Member{ID: control.ID{Replica: "a", Boot: "1"}}, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	report := func(seq uint64) *control.Report {
		return &control.Report{Pool: "p", ID: control.ID{Replica: "a", Boot: "1"}, Lease: session.Lease(), Seq: seq}
	}
	if err := s.Report(t.Context(), report(1)); err != nil {
		t.Fatal(err)
	}
	s.reports.mu.Lock()
	before := maps.Clone(s.reports.at)
	s.reports.mu.Unlock()
	late := func(seq uint64) {
		t.Helper()
		s.reports.mu.Lock()
		s.reports.at = maps.Clone(before)
		s.reports.mu.Unlock()
		if err := s.Report(t.Context(), report(seq)); err != nil {
			t.Errorf("report %d: %v", seq, err)
		}
	}
	is := func(want uint64) {
		t.Helper()
		state, err := s.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := state.Reports[0].Seq; got != want {
			t.Errorf("report %d is there, want %d", got, want)
		}
	}
	if err := s.Report(t.Context(), report(3)); err != nil {
		t.Fatal(err)
	}
	late(2)
	is(3)
	late(3) // the try whose answer was lost, repeated
	is(3)
	late(4) // the next, which does not know of the one before
	is(4)
}

func TestKeyOfNames(t *testing.T) {
	k := newKeys("/headgate", "f")
	id := control.ID{Replica: "a/b%", Boot: "ü"}
	kind, names := k.parse(k.grant(id, "p q"))
	if kind != grantsOf || !slices.Equal(names, []string{"a/b%", "ü", "p q"}) {
		t.Errorf("%s is read as %s of %q", k.grant(id, "p q"), kind, names)
	}
	for _, key := range []string{"", "/headgate/f", "/headgate/g/members/a", "/headgate/f/members/a/b", "/headgate/f/members/%zz", "/headgate/f/other/a", "/headgate/f/members"} {
		if kind, names := k.parse(key); kind != "" {
			t.Errorf("%s is read as %s of %q", key, kind, names)
		}
	}
	// A leader's watch has members and reports in it, and nothing else.
	r := k.followed()
	for key, want := range map[string]bool{
		k.member("a"): true, k.report(id, "p"): true,
		k.grant(id, "p"): false, k.key(statusOf, "p"): false, k.key(leaderOf, "1"): false,
	} {
		if in := r.from <= key && key < r.to; in != want {
			t.Errorf("%s is followed: %v", key, in)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Config)
		want []string
	}{
		{"as it should be", func(c *Config) {}, nil},
		{"with a login", func(c *Config) { c.Username, c.PasswordEnv = "u", "P" }, nil},
		{"nearby, without TLS", func(c *Config) {
			c.Endpoints = []string{"http://127.0.0.1:2379", "http://[::1]:2379"}
			c.Username, c.PasswordEnv = "u", "P"
		}, nil},
		{"empty", func(c *Config) { *c = Config{} }, []string{"endpoints", "prefix", "fleet", "connect_timeout", "request_timeout"}},
		{"endpoints", func(c *Config) {
			c.Endpoints = []string{"https://a:1", "https://a", "a:1", "https://a:1/v3", "https://u:secret@a:1", "http://a:1"}
		}, []string{"endpoints[1]", "endpoints[2]", "endpoints[3]", "endpoints[4]", "endpoints[5]"}},
		{"a password for all to read", func(c *Config) { c.Endpoints = []string{"http://a:1"}; c.Username, c.PasswordEnv = "u", "P" }, []string{"endpoints[0]"}},
		{"half a login", func(c *Config) { c.PasswordEnv = "P" }, []string{"username"}},
		{"the other half", func(c *Config) { c.Username = "u" }, []string{"password_env"}},
		{"half a certificate", func(c *Config) { c.CertFile = "f" }, []string{"key_file"}},
		{"names", func(c *Config) { c.Prefix, c.Fleet = "headgate/", "a/b" }, []string{"prefix", "fleet"}},
		{"times", func(c *Config) { c.ConnectTimeout, c.RequestTimeout = -1, time.Millisecond }, []string{"connect_timeout", "request_timeout"}},
	} {
		var config Config
		config.SetDefaults()
		config.Endpoints = []string{"https://a:2379", "https://b:2379"}
		c.set(&config)
		var got []string
		config.Validate(func(path string, value any, allowed string) {
			got = append(got, path)
			if strings.Contains(fmt.Sprint(value), "secret") {
				t.Errorf("%s: %s tells the password", c.name, path)
			}
		})
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: refused %q, want %q", c.name, got, c.want)
		}
		if _, err := New(config); (err != nil) != (c.want != nil) && c.name != "with a login" && c.name != "nearby, without TLS" {
			t.Errorf("%s: New: %v", c.name, err)
		}
	}
}

func TestConfigFiles(t *testing.T) {
	empty := t.TempDir() + "/empty"
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NO_PASSWORD", "")
	for _, c := range []struct {
		set  func(*Config)
		want string
	}{
		{func(c *Config) { c.Username, c.PasswordEnv = "u", "NO_PASSWORD" }, `password_env "NO_PASSWORD"`},
		{func(c *Config) { c.CAFile = empty + "not" }, "ca_file: open "},
		{func(c *Config) { c.CAFile = empty }, "there is no certificate in it"},
		{func(c *Config) { c.CertFile, c.KeyFile = empty, empty }, "cert_file and key_file: "},
	} {
		var config Config
		config.SetDefaults()
		config.Endpoints = []string{"https://a:2379"}
		c.set(&config)
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New: %v, want %q", err, c.want)
		}
	}
	config := Config{Password: identity.NewSecret("hidden")}
	if said := fmt.Sprintf("%v %+v", config, &config); strings.Contains(said, "hidden") {
		t.Errorf("the configuration tells its password: %s", said)
	}
}

// TestErrorNamesEndpoints: who is told that etcd can't be reached is told where.
func TestErrorNamesEndpoints(t *testing.T) {
	var config Config
	config.SetDefaults()
	config.Endpoints = []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}
	config.RequestTimeout, config.ConnectTimeout = 300*time.Millisecond, 100*time.Millisecond
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.State(t.Context())
	for _, e := range config.Endpoints {
		if err == nil || !strings.Contains(err.Error(), e) {
			t.Errorf("%v does not name %s", err, e)
		}
	}
	_, err = s.Join(t.Context(), control.Member{ID: control.ID{Replica: "a", Boot: "b"}}, 2*time.Second)
	if err == nil || !strings.Contains(err.Error(), "http://127.0.0.1:") {
		t.Errorf("%v names nobody", err)
	}
}
