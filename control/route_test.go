package control

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestRoute asks replica a's router for ways, by script.
//
//	members b c ...         who has a lease; "c-" can't be reached
//	status N [epoch=E] [engines=e,f]  and a line for each replica:
//	  b [gone] [unacknowledged] e=granted/used ... class=used,kept,floor[,waiting] ... [of:class=granted/used]
//	route ID class e=slots/kv ...
//	unreached b
//	wait 1s
func TestRoute(t *testing.T) {
	datadriven.Walk(t, "testdata/route", func(t *testing.T, path string) {
		r := NewRouter(ID{Replica: "a", Boot: "1"})
		now := Time(1e9)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			lines := strings.Split(d.Input, "\n")
			for i := 0; i < len(lines); i++ {
				f := strings.Fields(lines[i])
				if len(f) == 0 {
					continue
				}
				switch f[0] {
				case "members":
					var all []Member
					for n, name := range append([]string{"a"}, f[1:]...) {
						name, deaf := strings.CutSuffix(name, "-")
						m := Member{ID: ID{Replica: name, Boot: "1"}, Lease: int64(n + 1), Address: "http://" + name}
						if deaf {
							m.Address = ""
						}
						all = append(all, m)
					}
					r.Members(all)
				case "status":
					var of []string
					for i+1 < len(lines) && strings.HasPrefix(lines[i+1], " ") {
						i++
						of = append(of, lines[i])
					}
					r.Status(now, routeStatus(t, f[1:], of))
				case "route":
					need := &Need{Class: f[2]}
					for _, v := range f[3:] {
						k, w, _ := strings.Cut(v, "=")
						need.Engines = append(need.Engines, EngineNeed{Engine: k, Amount: amount(t, w)})
					}
					to, ok := r.Route(now, "main", f[1], need)
					if !ok {
						to.Replica = "here"
					}
					fmt.Fprintf(&out, "%s %s\n", f[1], to.Replica)
				case "unreached":
					r.Unreached(now, f[1])
				case "wait":
					by, err := time.ParseDuration(f[1])
					if err != nil {
						t.Fatal(err)
					}
					now += Time(by)
				default:
					t.Fatalf("%s: %q", d.Pos, lines[i])
				}
			}
			return out.String()
		})
	})
}

// routeStatus is a status of engine e, or those named.
func routeStatus(t *testing.T, head, replicas []string) *Status {
	s := &Status{Pool: "main", Epoch: 1}
	s.Published, _ = strconv.ParseUint(head[0], 10, 64)
	engines := []string{"e"}
	for _, v := range head[1:] {
		switch k, w, _ := strings.Cut(v, "="); k {
		case "epoch":
			s.Epoch, _ = strconv.ParseUint(w, 10, 64)
		case "engines":
			engines = strings.Split(w, ",")
		case "ceiling":
			s.Accounts = append(s.Accounts, AccountStatus{Class: w})
		}
	}
	for _, e := range engines {
		s.Accounts = append(s.Accounts, AccountStatus{Engine: e})
	}
	for _, line := range replicas {
		f := strings.Fields(line)
		v := ReplicaStatus{ID: ID{Replica: f[0], Boot: "1"}, Lease: int64(f[0][0]-'a') + 1, Live: true, Revision: 7, Acknowledged: 7, Accounts: make([]ShareStatus, len(s.Accounts))}
		for _, word := range f[1:] {
			k, w, _ := strings.Cut(word, "=")
			parts := strings.Split(w, ",")
			account := -1
			for i, a := range s.Accounts {
				if a.Engine == k || "of:"+a.Class == k {
					account = i
				}
			}
			switch {
			case k == "gone":
				v.Live = false
			case k == "unacknowledged":
				v.Acknowledged = 6
			case k == "another":
				v.Boot = "2"
			case account >= 0:
				v.Accounts[account] = ShareStatus{Granted: amount(t, parts[0]), Used: amount(t, parts[1])}
			default:
				c := ClassStatus{Class: k, Used: amount(t, parts[0]), Kept: amount(t, parts[1]), Floor: amount(t, parts[2])}
				if len(parts) > 3 {
					c.Waiting, _ = strconv.Atoi(parts[3])
				}
				v.Classes = append(v.Classes, c)
			}
		}
		s.Replicas = append(s.Replicas, v)
	}
	return s
}

// Equal replicas share what comes, whoever sends it, and one that is full gets nothing.
func TestRouteSpreads(t *testing.T) {
	status := &Status{Pool: "main", Epoch: 1, Published: 1, Accounts: []AccountStatus{{Engine: "e"}}}
	var members []Member
	for i, name := range []string{"b", "c", "d", "e", "f"} {
		m := Member{ID: ID{Replica: name, Boot: "1"}, Lease: int64(i + 1), Address: "http://" + name}
		members = append(members, m)
		granted := Amount{1000, 1e6}
		if name == "f" {
			granted = Amount{}
		}
		status.Replicas = append(status.Replicas, ReplicaStatus{
			ID: m.ID, Lease: m.Lease, Live: true, Accounts: []ShareStatus{{Granted: granted}}, Classes: []ClassStatus{{Class: "x"}},
		})
	}
	const each = 250
	got := map[string]int{}
	for sender := range 4 {
		r := NewRouter(ID{Replica: "a" + strconv.Itoa(sender), Boot: "1"})
		r.Members(members)
		r.Status(1, status)
		next := *status
		next.Published = 2
		r.Status(2, &next)
		for i := range each {
			to, _ := r.Route(3, "main", fmt.Sprintf("req_%d_%d", sender, i), &Need{Class: "x", Engines: []EngineNeed{{Engine: "e", Amount: Amount{1, 100}}}})
			got[to.Replica]++
		}
	}
	for _, name := range []string{"b", "c", "d", "e"} {
		if got[name] < each*8/10 || got[name] > each*12/10 {
			t.Errorf("%s got %d of %d: %v", name, got[name], 4*each, got)
		}
	}
	if len(got) != 4 {
		t.Errorf("got %v", got)
	}
}
