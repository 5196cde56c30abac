package etcd

import (
	"net/url"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"headgate/control"
)

type keyValue = mvccpb.KeyValue

// keys is where things are. The kinds' order is the keys' order: what a leader
// watches lies side by side.
type keys struct{ root string }

// kind of a key.
type kind string

const (
	grantsOf  kind = "grants"
	leaderOf  kind = "leader"
	membersOf kind = "members"
	reportsOf kind = "reports"
	statusOf  kind = "status"
	toldOf    kind = "told"
)

// keyRange is the keys from one on and before another.
type keyRange struct{ from, to string }

func prefix(p string) keyRange { return keyRange{p, clientv3.GetPrefixRangeEnd(p)} }

func newKeys(root, fleet string) keys { return keys{root + "/" + url.PathEscape(fleet) + "/"} }

func (k keys) key(of kind, names ...string) string {
	path := k.root + string(of)
	for _, n := range names {
		path += "/" + url.PathEscape(n)
	}
	return path
}

func (k keys) member(replica string) string { return k.key(membersOf, replica) }

func (k keys) grant(id control.ID, pool string) string {
	return k.key(grantsOf, id.Replica, id.Boot, pool)
}

func (k keys) report(id control.ID, pool string) string {
	return k.key(reportsOf, id.Replica, id.Boot, pool)
}

func (k keys) all() keyRange { return prefix(k.root) }

// under is the range of all keys of a kind that begin with the names.
func (k keys) under(of kind, names ...string) keyRange { return prefix(k.key(of, names...) + "/") }

// followed is what a leader watches: members and reports.
func (k keys) followed() keyRange {
	return keyRange{k.under(membersOf).from, k.under(reportsOf).to}
}

// parse takes a key apart. The kind is empty if it is none of the store's.
func (k keys) parse(key string) (of kind, names []string) {
	rest, ok := strings.CutPrefix(key, k.root)
	if !ok {
		return "", nil
	}
	parts := strings.Split(rest, "/")
	of = kind(parts[0])
	if want, ok := map[kind]int{grantsOf: 3, leaderOf: 1, membersOf: 1, reportsOf: 3, statusOf: 1, toldOf: 1}[of]; !ok || len(parts) != want+1 {
		return "", nil
	}
	for _, p := range parts[1:] {
		name, err := url.PathUnescape(p)
		if err != nil {
			return "", nil
		}
		names = append(names, name)
	}
	return of, names
}
