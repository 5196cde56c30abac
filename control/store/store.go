// Package store is where a fleet's grants, demand and members are kept, as the
// shells see it: control/etcd keeps them in etcd, Memory in this process.
package store

import (
	"context"
	"errors"
	"time"

	"headgate/control"
)

// ErrFenced: the writer is not the leader any more, or the lease is over.
var ErrFenced = errors.New("fenced: another leader, or a lease that is over")

// Store is the fleet's store. Its methods are safe for concurrent use.
type Store interface {
	// Join registers a life of a replica under a lease of ttl and renews that until
	// ctx is over or the lease is lost; after ctx the lease runs out by itself. A name
	// that another life holds is refused, with ErrTaken, until that life's lease is
	// over. The same life may join again: its earlier lease ends with that.
	Join(ctx context.Context, m control.Member, ttl time.Duration) (Session, error)
	// Announce replaces what a life's member says beside its lease, if it still has that;
	// else ErrFenced. It is nothing to a leader.
	Announce(ctx context.Context, m control.Member) error
	// Report writes what a replica says of a pool, if its lease is still there; else
	// ErrFenced. A later report, by its Seq, replaces an earlier. It is kept when the
	// lease is over.
	Report(ctx context.Context, r *control.Report) error
	// Grants delivers the grants of one life, of all pools: those that are there, and
	// each that is written until ctx is over, when the channel is closed. It survives
	// the loss of a connection, and may leave out what a later grant has replaced.
	Grants(ctx context.Context, id control.ID) <-chan *control.Grant
	// News delivers what replicas are told of each other: the last of each pool that is
	// there, and what is written until ctx is over, when the channel is closed. It
	// survives the loss of a connection, and may leave out what was replaced.
	News(ctx context.Context) <-chan *control.News
	// Members delivers the whole list of replicas that have a lease, at first and
	// whenever it changes, by the replicas' names, until ctx is over, when the channel is
	// closed. A reader that is slow misses lists, never the last.
	Members(ctx context.Context) <-chan []control.Member
	// Statuses delivers what leaders publish of the pools: the last of each that is
	// there, and what is published until ctx is over, when the channel is closed. It
	// may leave out what was replaced, and repeat the last when a watch is begun anew.
	Statuses(ctx context.Context) <-chan PoolStatus
	// Campaign waits until this process leads or ctx is over. The term is renewed until
	// ctx is over or it is lost or resigned.
	Campaign(ctx context.Context, who string, ttl time.Duration) (Leadership, error)
	// State reads what is there now, for people.
	State(ctx context.Context) (*State, error)
	Close() error
}

// ErrTaken: another life of the replica still has its lease.
var ErrTaken = errors.New("the replica's name is in use")

// PoolStatus is what a leader has published of a pool, see Leadership.Publish.
type PoolStatus struct {
	Pool   string
	Status []byte
}

// Session is a life's lease.
type Session interface {
	Lease() int64
	// Renewed delivers each success, beginning with the first: until Sent + TTL, by
	// this process's clock, the lease is surely there. It is closed when the lease is
	// lost or given back, or ctx is over. A reader that is slow gets the last.
	Renewed() <-chan Renewal
	// Leave gives the lease back. After an error it may be repeated.
	Leave(ctx context.Context) error
}

// Renewal of a lease.
type Renewal struct {
	Sent time.Time // before the request was sent
	TTL  time.Duration
}

// Leadership is one term of a leader.
type Leadership interface {
	// Epoch is greater than every earlier leader's.
	Epoch() uint64
	// Lost is closed when the term may be over.
	Lost() <-chan struct{}
	// Follow delivers everything that is in the store, read after the term began: the
	// grants, the members and the reports; then Synced; and then every change, in order
	// for each replica, until ctx is over, when the channel is closed. A watch that is
	// lost (a cut, compaction) is begun anew by reading everything: what is gone
	// meanwhile is told as gone. A reader that is slow misses what was replaced, never
	// the last report of a pool, nor that a life it was told of is gone.
	Follow(ctx context.Context) <-chan Change
	// Write a grant, and Remove a life's grant and report, if the term is not over; else
	// ErrFenced. After any other error it may have been done or not, and may be repeated:
	// an earlier try that comes late does not replace a later grant.
	Write(ctx context.Context, g *control.Grant) error
	Remove(ctx context.Context, pool string, id control.ID) error
	// Tell the replicas of a pool of each other, if the term is not over; else ErrFenced. The
	// last replaces all before, of whatever leader; an earlier try that comes late does
	// not replace a later one.
	Tell(ctx context.Context, n *control.News) error
	// Publish what the leader tells people about a pool; nil: nothing any more.
	Publish(ctx context.Context, pool string, status []byte) error
	// Resign ends the term, so that another may lead at once. After an error it may be
	// repeated.
	Resign(ctx context.Context) error
}

// Change of what is in the store. One field is set.
type Change struct {
	Joined *control.Member
	Gone   *control.Member
	Grant  *control.Grant // only before Synced: the leader knows its own
	Report *control.Report
	Synced bool
}

// State is all that is in the store.
type State struct {
	Leader  string
	Epoch   uint64
	Members []control.Member
	Grants  []control.Grant
	Reports []control.Report
	Status  map[string][]byte // by pool, see Publish
	News    []control.News    // by pool
}
