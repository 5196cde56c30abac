// Package etcd keeps a fleet's grants, reports and members in etcd.
//
// # Keys
//
// All are below the prefix and the fleet's name, /headgate/default if nothing else
// is configured, so that one cluster may serve several fleets. Values are JSON. To
// look at a fleet:
//
//	etcdctl get --prefix /headgate/default/
//
//	members/<replica>                  control.Member. It is bound to the life's lease. The replica writes it again when its tenants ask for more, or less.
//	grants/<replica>/<boot>/<pool>     control.Grant. The leader writes it.
//	reports/<replica>/<boot>/<pool>    control.Report. The replica writes it, and its lease's end leaves it.
//	status/<pool>                      What the leader tells people and replicas about a pool.
//	told/<pool>                        control.News, the last. The leader tells all replicas what the others do.
//	leader/<lease>                     {"leader": name}. Candidates, the oldest of them leads.
//
// What stands in a name for itself, a slash for one, is escaped as in a URL's path.
// A replica watches members, its own grants and what all are told, the leader members and reports: none
// is sent what it does not need. A user who may read and write below the fleet's
// name may do all that a fleet does.
//
// # Leases
//
// A lease is there until Sent + TTL, by the replica's clock, where Sent was taken
// before the request went out: etcd counts from later, for every leader that it may
// have in between. It has one gap. A member that led, was paused, and does not know
// yet that another was elected, renews in its own memory, and nobody else knows. So a
// renewal counts only when a linearizable read after it was answered in the same
// term. The same read tells whether the member's key is still there, which an
// operator may have deleted.
//
// # Fences
//
// A report is a transaction on the condition that the member's key is bound to the
// lease it was written under. What a leader writes is one on the condition that its
// key below leader/ is still the one that it won with; the epoch is the revision
// that this was made at, and grows with every term. Grants and reports are written on
// the further condition that nobody wrote in between, so that a try that timed out
// and comes late changes nothing.
//
// # Failures
//
// Requests and watches go to one member until it fails, and then to the next. Every
// request has a bound, and is tried at three members within it: one that is stopped
// keeps its connections and answers nothing. A watch asks for a sign of life all the
// time. It is begun anew at another member, by reading all there is, if there is none,
// if the connection is lost, if the member has no leader, and if it has compacted what
// the watch has missed.
//
// # Alternatives
//
// etcd's own concurrency.Election has the same keys and rules, and etcdctl elect
// --listen reads ours. Its code is not used: Campaign goes on waiting when the lease
// is over, and then believes that it leads; it waits for ever at a member that is
// stopped; and it and Resign, when their context is over, may wait for ever, or
// forget the key that they did not delete. Nor is one client used for all members:
// it takes turns among those that it is connected to, so that one that is stopped
// gets a third of everything until, after ten seconds, gRPC takes note. KeepAliveOnce opens a stream for each
// renewal, and with a password each stream is a login: a tenth of a second of bcrypt
// and a write.
package etcd
