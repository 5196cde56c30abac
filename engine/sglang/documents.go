package sglang

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/upstream"
)

// load is what the server says of itself, over all its ranks; -1: it does not.
type load struct {
	running, waiting int
	used, total      int // tokens of KV
	pieces           int // tokens of prompts that wait, or of one under way in pieces
	ranks            []rank
}

// rank is one scheduler's part.
type rank struct {
	text string // as it came: it differs when it was written anew
	idle bool   // no request, no token in use
}

// empty: nothing is held.
func (l load) empty() bool { return l.running == 0 && l.waiting == 0 && l.used <= 0 && l.pieces <= 0 }

// held is the number of sequences, -1 if it is not said. Tokens in use belong to
// somebody, be it one who is in no count.
func (l load) held() int {
	if l.running < 0 || l.waiting < 0 {
		return -1
	}
	n := l.running + l.waiting
	if n == 0 && l.used > 0 {
		return 1
	}
	return n
}

// missing tells which part the server left out.
func (l load) missing() error {
	var names []string
	for _, part := range []struct {
		absent bool
		name   string
	}{
		{l.running < 0, "running"}, {l.waiting < 0, "waiting"}, {l.used < 0, "used tokens"}, {l.total <= 0, "total tokens"},
	} {
		if part.absent {
			names = append(names, part.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("the engine's load lacks %s", strings.Join(names, ", "))
}

// sum adds up counts of ranks; one that isn't said makes the sum unknown.
func sum(to *int, n int) {
	if *to < 0 || n < 0 {
		*to = -1
		return
	}
	*to = min(*to+n, math.MaxInt32)
}

// parseLoads reads /v1/loads.
func parseLoads(body []byte) (load, error) {
	loads := gjson.GetBytes(body, "loads")
	if !gjson.ValidBytes(body) || !loads.IsArray() || len(loads.Array()) == 0 {
		return load{}, errors.New("/v1/loads: want an object with an array loads that has an element")
	}
	var l load
	for _, r := range loads.Array() {
		running, waiting := upstream.Number(r.Get("num_running_reqs")), upstream.Number(r.Get("num_waiting_reqs"))
		used, pieces := upstream.Number(r.Get("num_used_tokens")), upstream.Number(r.Get("num_waiting_uncached_tokens"))
		sum(&l.running, running)
		sum(&l.waiting, waiting)
		sum(&l.used, used)
		sum(&l.total, upstream.Number(r.Get("max_total_num_tokens")))
		l.pieces = min(l.pieces+max(0, pieces), math.MaxInt32)
		l.ranks = append(l.ranks, rank{r.Raw, running == 0 && waiting == 0 && used <= 0 && pieces <= 0})
	}
	return l, nil
}

// The gauges of /metrics, where there is no /v1/loads.
const (
	metricRunning = "sglang:num_running_reqs"
	metricQueued  = "sglang:num_queue_reqs"
	metricUsed    = "sglang:num_used_tokens"
	metricTotal   = "sglang:max_total_num_tokens"
)

// parseMetrics reads an exposition. With priorities the queue has a series for
// each beside the one of all.
func parseMetrics(body []byte) (load, error) {
	m, err := upstream.ParseMetrics(body, metricRunning, metricQueued, metricUsed, metricTotal)
	if err != nil {
		return load{}, err
	}
	read := func(name string) int {
		total, found := 0, false
		for _, s := range m[name] {
			if upstream.Label(s, "priority") != "" {
				continue
			}
			found = true
			sum(&total, upstream.Whole(s.GetUntyped().GetValue()))
		}
		if !found {
			return -1
		}
		return total
	}
	l := load{running: read(metricRunning), waiting: read(metricQueued), used: read(metricUsed), total: read(metricTotal)}
	l.ranks = []rank{{text: fmt.Sprint(l.running, l.waiting, l.used, l.total), idle: l.empty()}}
	return l, nil
}

// snapshots tells when the server has written anew.
type snapshots struct {
	last    []rank
	moved   []bool
	asked   time.Time // of the last look
	since   time.Time // all ranks have written after this
	round   time.Time // of the look since which moved counts
	version int       // rounds
}

// take compares a look with the one before. With several ranks, a round is over
// when all have written that are not idle; those that idle have nothing to tell.
func (s *snapshots) take(asked time.Time, ranks []rank) {
	if len(ranks) != len(s.last) {
		s.moved, s.round = make([]bool, len(ranks)), asked
		s.last, s.asked = ranks, asked
		return
	}
	all, any := true, false
	for i, r := range ranks {
		s.moved[i] = s.moved[i] || r.text != s.last[i].text
		any = any || s.moved[i]
		all = all && (s.moved[i] || r.idle)
	}
	if all && any {
		s.version, s.since = s.version+1, s.round
		clear(s.moved)
		s.round = asked
	} else if !any {
		s.round = asked // nothing was written up to here
	}
	s.last, s.asked = ranks, asked
}

// info is what /server_info tells; zero: it does not.
type info struct {
	version             string
	slots, tokens, page int
	context             int
	priority, lowFirst  bool
	prefix              bool
}

// parseInfo reads the server's arguments, its scheduler's numbers and, of each
// rank, the state.
func parseInfo(body []byte) (info, error) {
	d := gjson.ParseBytes(body)
	if !gjson.ValidBytes(body) || !d.IsObject() {
		return info{}, errors.New("server info: want an object")
	}
	count := func(v gjson.Result) int { return max(0, upstream.Number(v)) }
	ranks := max(1, count(d.Get("dp_size")))
	i := info{
		version:  d.Get("version").String(),
		page:     count(d.Get("page_size")),
		context:  count(d.Get("context_length")),
		priority: d.Get("enable_priority_scheduling").Type == gjson.True,
		lowFirst: d.Get("schedule_low_priority_values_first").Type == gjson.True,
		prefix:   d.Get("disable_radix_cache").Type == gjson.False,
	}
	// What a rank really has goes before what was asked for, which may be nothing.
	for _, r := range d.Get("internal_states").Array() {
		i.slots += count(r.Get("effective_max_running_requests_per_dp"))
	}
	if i.slots = min(i.slots, math.MaxInt32); i.slots == 0 {
		i.slots = count(d.Get("max_running_requests"))
	}
	i.tokens = min(count(d.Get("max_total_num_tokens"))*ranks, math.MaxInt32)
	return i, nil
}

// timing reads what an answer's meta_info says, in seconds.
func timing(data []byte) *engine.Timing {
	for _, at := range []string{"meta_info", "choices.0.meta_info"} {
		m := gjson.GetBytes(data, at)
		if !m.IsObject() {
			continue
		}
		t := &engine.Timing{Queue: seconds(m.Get("queue_time")), Prefill: -1}
		began, done := m.Get("forward_entry_time"), m.Get("prefill_finished_time")
		if began.Type == gjson.Number && done.Type == gjson.Number && began.Num > 0 {
			t.Prefill = seconds(gjson.Result{Type: gjson.Number, Num: done.Num - began.Num})
		}
		if t.Queue >= 0 || t.Prefill >= 0 {
			return t
		}
	}
	return nil
}

// seconds is a number of seconds as a duration; -1: it is none.
func seconds(v gjson.Result) time.Duration {
	if v.Type != gjson.Number || !(v.Num >= 0) || v.Num > float64(math.MaxInt64/time.Second) {
		return -1
	}
	return time.Duration(v.Num * float64(time.Second))
}
