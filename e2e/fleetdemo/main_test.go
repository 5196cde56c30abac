package main

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/control/etcd/etcdtest"
	"headgate/e2e/headgate"
)

// watched is an output that calls stop once it has said all of what is wanted.
type watched struct {
	mu   sync.Mutex
	text strings.Builder
	want []*regexp.Regexp
	stop func()
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	for _, re := range w.want {
		if !re.MatchString(w.text.String()) {
			return len(b), nil
		}
	}
	w.stop()
	return len(b), nil
}

// TestDemo: the fleet comes up, says where it is, serves, and ends without an error.
func TestDemo(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute) // patience, no measure
	defer stop()
	w := &watched{stop: stop, want: []*regexp.Regexp{
		regexp.MustCompile(`(?m)^  r3  clients http://\S+  operators http://\S+  pid \d+`),
		regexp.MustCompile(`(?m)^  etcd3  http://\S+  pid \d+`),
		regexp.MustCompile(`(?m)^  \S+ grants --admin http://`),
		regexp.MustCompile(`(?m)^interactive at r1: (admitted|queued) after \d+ ms by grant \d+\.\d+, done after \d+ ms$`),
	}}
	if err := run(ctx, w, options{headgate.Binary(t), etcdtest.Binary(t)}); err != nil || ctx.Err() != context.Canceled {
		t.Errorf("%v, %v\n%s", err, ctx.Err(), w.text.String())
	}
	if !strings.HasSuffix(w.text.String(), "stopping\n") {
		t.Errorf("it ended with\n%s", w.text.String())
	}
}
