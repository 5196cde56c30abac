package etcd_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"headgate/control/etcd"
	"headgate/control/etcd/etcdtest"
	"headgate/control/store/storetest"
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
	admin := c.Client(t, "", "")
	storetest.Run(t, func(t *testing.T, story func(t *testing.T, f storetest.Fleet)) {
		t.Parallel() // most of it is waiting for leases to end
		name := fleet()
		story(t, storetest.Fleet{
			TTL:    etcd.MinLease,
			Forget: func(t *testing.T) { compact(t, admin) },
			Dial: func(t *testing.T) storetest.Client {
				l := c.Link(t)
				return storetest.Client{Store: open(t, l.Endpoints(), name), Cut: l.Cut, Heal: l.Heal}
			},
		})
	})
}
