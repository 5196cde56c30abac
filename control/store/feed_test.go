package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/control"
)

// drain reads what a feed sends until it has no more.
func drain[T any](t *testing.T, out <-chan T, say func(T) string) string {
	t.Helper()
	var all []string
	for {
		synctest.Wait()
		select {
		case v := <-out:
			all = append(all, say(v))
		default:
			return strings.Join(all, ", ")
		}
	}
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: told\n\t%s\nwant\n\t%s", what, got, want)
	}
}

func life(replica, boot string) control.Member {
	return control.Member{ID: control.ID{Replica: replica, Boot: boot}, Lease: 1}
}

func TestChangesHoldOnlyWhatIsToBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, out := NewChangeFeed(), make(chan Change)
		say := func(c Change) string {
			switch {
			case c.Joined != nil:
				return "+" + c.Joined.Replica + c.Joined.Boot
			case c.Gone != nil:
				return "-" + c.Gone.Replica + c.Gone.Boot
			case c.Report != nil:
				return fmt.Sprintf("%s%s %s%d", c.Report.Replica, c.Report.Boot, c.Report.Pool, c.Report.Seq)
			case c.Grant != nil:
				return "grant"
			}
			return "synced"
		}
		report := func(m control.Member, pool string, seq uint64) {
			f.Reported(&control.Report{Pool: pool, ID: m.ID, Seq: seq})
		}
		a1, a2, b1 := life("a", "1"), life("a", "2"), life("b", "1")
		f.Members([]control.Member{a1, b1})
		f.Gone("b") // before anything was served, so that of b nothing is told
		report(a1, "p", 1)
		go f.Serve(t.Context(), []*control.Grant{{}}, out)
		want(t, "at first", drain(t, out, say), "grant, +a1, a1 p1, synced")

		report(a1, "p", 2) // in the server's hand from here on
		synctest.Wait()
		for seq := range uint64(100) {
			report(a1, "p", 3+seq)
			report(a1, "q", 1+seq)
			report(b1, "p", 1+seq)
			f.Joined(b1)
			f.Gone("b")
			f.Joined(life("a", fmt.Sprint(seq)))
		}
		f.Joined(b1)
		f.Joined(a2)
		report(a2, "p", 1)
		want(t, "slow", drain(t, out, say), "a1 p2, -a1, +a2, a1 p102, a1 q100, a2 p1, +b1, b1 p100")

		report(b1, "p", 101)
		synctest.Wait() // the server has that in its hand, and sees nothing between the next two
		f.Members([]control.Member{b1})
		f.Members([]control.Member{a2, b1})
		want(t, "back before it was told", drain(t, out, say), "b1 p101")
		f.Members([]control.Member{b1})
		f.Members([]control.Member{b1})
		want(t, "gone", drain(t, out, say), "-a2")
		f.Gone("nobody")
		want(t, "nobody", drain(t, out, say), "")
	})
}

func TestGrantsHoldTheLastOfEachPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, out := NewGrantFeed(), make(chan *control.Grant)
		say := func(g *control.Grant) string { return fmt.Sprintf("%s%d.%d", g.Pool, g.Epoch, g.Rev) }
		put := func(pool string, epoch, rev uint64) { f.Put(&control.Grant{Pool: pool, Epoch: epoch, Rev: rev}) }
		go f.Serve(t.Context(), out)
		put("p", 1, 1)
		synctest.Wait()
		for rev := range uint64(100) {
			put("q", 1, 1+rev)
			put("p", 1, 1+rev)
		}
		want(t, "slow", drain(t, out, say), "p1.1, q1.100, p1.100")
		put("p", 1, 100)
		put("p", 1, 99)
		want(t, "again", drain(t, out, say), "")
		put("p", 2, 5) // by the next leader, which goes on from what it has read
		put("p", 1, 101)
		want(t, "the next leader's", drain(t, out, say), "p2.5")
	})
}

func TestMembersHoldTheLastList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, out := NewMemberFeed(), make(chan []control.Member)
		say := func(list []control.Member) string { return fmt.Sprint(len(list)) }
		ctx, cancel := context.WithCancel(t.Context())
		go f.Serve(ctx, out)
		want(t, "before the store was read", drain(t, out, say), "")
		f.Set(nil)
		want(t, "nobody", drain(t, out, say), "0")
		f.Set([]control.Member{life("a", "1")})
		synctest.Wait()
		f.Set([]control.Member{life("b", "1"), life("a", "1")})
		f.Set([]control.Member{life("a", "1"), life("b", "1")})
		want(t, "slow", drain(t, out, say), "2")
		f.Set([]control.Member{life("b", "1"), life("a", "1")})
		want(t, "the same", drain(t, out, say), "")
		cancel()
		if _, ok := <-out; ok {
			t.Error("a list after the end")
		}
	})
}

// TestKeeper tells when a lease of 60 s is renewed, by what becomes of each try.
func TestKeeper(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		tries []error // the last of them again and again; nil is a success
		want  string
	}{
		{"renewed at a third", []error{nil, nil, broken}, "20 40 60 66 72 78 84 90 96 lost at 100"},
		{"retried every tenth", []error{broken, broken, nil, ErrEnded}, "20 26 32 52 lost at 52"},
		{"over when the store says so", []error{fmt.Errorf("renew: %w", ErrEnded)}, "20 lost at 20"},
		// A try without an answer ends after a sixth.
		{"no answer", []error{context.DeadlineExceeded}, "20 36 52 lost at 60"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, n := time.Now(), 0
				var said []string
				k := Keep(t.Context(), start, time.Minute, func(ctx context.Context) (time.Duration, error) {
					said = append(said, fmt.Sprint(time.Since(start).Seconds()))
					err := c.tries[min(n, len(c.tries)-1)]
					n++
					if err == context.DeadlineExceeded {
						<-ctx.Done()
					}
					return time.Minute, err
				})
				<-k.Lost()
				said = append(said, fmt.Sprintf("lost at %v", time.Since(start).Seconds()))
				want(t, c.name, strings.Join(said, " "), c.want)
				var last Renewal
				for r := range k.Renewed() {
					last = r // of those that were not read
				}
				if last.TTL != time.Minute {
					t.Errorf("the last renewal is %+v", last)
				}
			})
		})
	}
}

func TestKeeperStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := Keep(t.Context(), time.Now(), time.Minute, func(context.Context) (time.Duration, error) {
			t.Error("renewed after Stop")
			return 0, ErrEnded
		})
		k.Stop()
		k.Stop()
		if _, ok := <-k.Lost(); ok {
			t.Error("a value on Lost")
		}
	})
}
