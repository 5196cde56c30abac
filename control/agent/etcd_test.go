package agent_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"headgate/admission"
	"headgate/control/etcd/etcdtest"
)

// TestToldByEtcd: what one replica runs reaches the core of another by etcd, and so it
// does from the next leader, whose numbers begin anew.
func TestToldByEtcd(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{Members: 1})
	ctx, stop := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	t.Cleanup(func() { stop(); tasks.Wait() })
	term, resign := context.WithCancel(ctx)
	lead(term, dial(t, c), 2, admission.Of(slots, kv), &tasks)
	a, b := newPool("a", time.Now()), newPool("b", time.Now())
	join(ctx, dial(t, c), a, &tasks)
	join(ctx, dial(t, c), b, &tasks)
	until(t, func() bool { return a.granted() > 0 && b.granted() > 0 })

	runs := func(n int64) func() bool {
		return func() bool {
			v := b.elsewhere()
			return v != nil && v.Classes[0].Used == admission.Of(n, 1000*n)
		}
	}
	a.offer(0)
	until(t, runs(1))
	ofFirst := b.epoch()
	if b.Report().News == 0 {
		t.Error("the report does not say that the core was told")
	}
	resign()
	lead(ctx, dial(t, c), 2, admission.Of(slots, kv), &tasks)
	a.offer(0)
	until(t, runs(2))
	if epoch := b.epoch(); epoch <= ofFirst || b.Report().News == 0 {
		t.Errorf("told in epoch %d, after epoch %d", epoch, ofFirst)
	}
}

// epoch is that of the news that came last.
func (p *pool) epoch() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.news.Epoch
}
