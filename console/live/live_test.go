package live

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"headgate/console/now"
	"headgate/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch is a feed of no pools, which counts its looks.
func watch(t *testing.T) (f *Feed, looks *atomic.Int64, open func(may func() bool) (w *httptest.ResponseRecorder, leave func())) {
	looks = new(atomic.Int64)
	f = New(Config{
		Pools: func() []*relay.Pool { return nil }, Tenants: func() []string { return nil }, Problems: func() []string { return nil },
		Ready: func() error { looks.Add(1); return nil },
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return f, looks, func(may func() bool) (*httptest.ResponseRecorder, func()) {
		ctx, leave := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		running.Go(func() { f.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/api/live", nil), may) })
		synctest.Wait()
		return w, leave
	}
}

func always() bool { return true }

// Nothing is made while nobody looks, and one document for all who do.
func TestOneLookForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, looks, open := watch(t)
		time.Sleep(time.Minute)
		if n := looks.Load(); n != 0 {
			t.Errorf("%d looks while nobody has come", n)
		}
		var all []*httptest.ResponseRecorder
		var leaves []func()
		for range 5 {
			w, leave := open(always)
			all, leaves = append(all, w), append(leaves, leave)
		}
		looks.Store(0)
		time.Sleep(10*time.Second + 10*time.Millisecond)
		if n := looks.Load(); n != 40 {
			t.Errorf("%d looks in ten seconds for five, want 40", n)
		}
		for _, leave := range leaves {
			leave()
		}
		synctest.Wait()
		for i, w := range all {
			if n := strings.Count(w.Body.String(), "event: now\n"); n < 41 {
				t.Errorf("console %d was told %d times", i, n)
			}
		}
		time.Sleep(time.Second)
		looks.Store(0)
		time.Sleep(time.Minute)
		if n := looks.Load(); n != 0 {
			t.Errorf("%d looks when all have gone", n)
		}
	})
}

// A key that is taken back ends the stream that it has opened.
func TestWhoMayNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, open := watch(t)
		var taken atomic.Bool
		open(func() bool { return !taken.Load() })
		time.Sleep(time.Minute)
		taken.Store(true)
		time.Sleep(lookAgain + every)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.watchers) != 0 {
			t.Error("it still looks")
		}
	})
}

func TestMostWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, open := watch(t)
		var first func()
		for i := range mostWatchers {
			_, leave := open(always)
			if i == 0 {
				first = leave
			}
		}
		if w, _ := open(always); w.Code != 503 || !strings.Contains(w.Body.String(), "64 consoles are open already: close one") {
			t.Errorf("one too many: %d %s", w.Code, w.Body)
		}
		first()
		synctest.Wait()
		if w, _ := open(always); w.Code != 200 {
			t.Errorf("in the place of one that has left: %d", w.Code)
		}
	})
}

// Who reads slowly gets of each recall its last state, and of the rest the newest.
func TestLatest(t *testing.T) {
	f := New(Config{})
	me, _ := f.join()
	for i := range uint64(mostChanges + 10) {
		f.changes = append(f.changes, recallOf(i%3))
	}
	f.changes, f.dropped = f.changes[10:], 10
	events, _ := f.news(me)
	if len(events) != 1 || strings.Count(string(events[0]), `"seq"`) != 3 {
		t.Errorf("%s", events)
	}
	if events, _ = f.news(me); len(events) != 0 {
		t.Errorf("again: %s", events)
	}
}

func TestQuantile(t *testing.T) {
	bounds := relay.Bounds()
	h := func(upTo map[float64]uint64) relay.Histogram {
		out, n := relay.Histogram{}, uint64(0)
		for _, b := range append(bounds[:len(bounds):len(bounds)], -1) {
			n += upTo[b]
			out = append(out, n)
		}
		return out
	}
	for name, c := range map[string]struct {
		was, is relay.Histogram
		q       float64
		want    float64 // -1: none
	}{
		"nothing has come":           {nil, nil, 0.5, -1},
		"nothing more":               {h(map[float64]uint64{.1: 4}), h(map[float64]uint64{.1: 4}), 0.5, -1},
		"in the middle of a bucket":  {nil, h(map[float64]uint64{.1: 10}), 0.5, 0.075},
		"of what has come since":     {h(map[float64]uint64{.001: 1000}), h(map[float64]uint64{.001: 1000, 1: 4}), 0.5, 0.75},
		"between two buckets":        {nil, h(map[float64]uint64{.1: 5, 10: 5}), 0.5, 0.1},
		"beyond empty ones":          {nil, h(map[float64]uint64{.1: 5, 10: 5}), 0.95, 9.5},
		"longer than the last bound": {nil, h(map[float64]uint64{-1: 1}), 0.5, 600},
	} {
		got := -1.0
		if v := quantile(c.was, c.is, c.q); v != nil {
			got = *v
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func recallOf(seq uint64) now.Recall { return now.Recall{Pool: "main", Seq: seq} }
