package tracing

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	trace = "0af7651916cd43dd8448eb211c80319c"
	span  = "b7ad6b7169203331"
)

func TestParse(t *testing.T) {
	valid := "00-" + trace + "-" + span + "-"
	for _, c := range []struct {
		name    string
		headers []string
		ok      bool
		sampled bool
	}{
		{"sampled", []string{valid + "01"}, true, true},
		{"not sampled", []string{valid + "00"}, true, false},
		{"other flags", []string{valid + "fe"}, true, false},
		{"none", nil, false, false},
		{"two headers", []string{valid + "01", valid + "01"}, false, false},
		{"empty", []string{""}, false, false},
		{"short", []string{valid + "0"}, false, false},
		{"00 with more", []string{valid + "01-x"}, false, false},
		{"later version", []string{"cc" + valid[2:] + "01"}, true, true},
		{"later version with more", []string{"cc" + valid[2:] + "01-what"}, true, true},
		{"later version run on", []string{"cc" + valid[2:] + "01what"}, false, false},
		{"version ff", []string{"ff" + valid[2:] + "01"}, false, false},
		{"capitals", []string{strings.ToUpper(valid) + "01"}, false, false},
		{"no trace", []string{"00-" + strings.Repeat("0", 32) + "-" + span + "-01"}, false, false},
		{"no span", []string{"00-" + trace + "-" + strings.Repeat("0", 16) + "-01"}, false, false},
		{"not hex", []string{"00-" + trace[:31] + "g-" + span + "-01"}, false, false},
		{"blank at the end", []string{valid + "01 "}, false, false},
	} {
		p, ok := parse(c.headers)
		if ok != c.ok || p.sampled != c.sampled {
			t.Errorf("%s: %v, sampled %v; want %v, %v", c.name, ok, p.sampled, c.ok, c.sampled)
		}
		if ok && (hex.EncodeToString(p.trace[:]) != trace || hex.EncodeToString(p.span[:]) != span) {
			t.Errorf("%s: %x, %x", c.name, p.trace, p.span)
		}
		if !ok && p != (parent{}) {
			t.Errorf("%s: something of what is not valid is kept: %+v", c.name, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("00-" + trace + "-" + span + "-01")
	f.Add("cc-" + trace + "-" + span + "-01-more")
	f.Fuzz(func(t *testing.T, v string) {
		p, ok := parse([]string{v})
		if want := fmt.Sprintf("-%x-%x-", p.trace, p.span); ok && !strings.Contains(v, want) {
			t.Errorf("%q is read as %s", v, want)
		}
	})
}

// What is sent on is what a server reads.
func TestTraceparent(t *testing.T) {
	tr := &Tracer{Share: 1, Export: func(*Span) {}}
	rapid.Check(t, func(t *rapid.T) {
		var headers []string
		if rapid.Bool().Draw(t, "parent") {
			headers = []string{"00-" + trace + "-" + span + "-00"}
		}
		s := tr.Start(headers, "POST /", time.Now())
		c := s.Child(Client, "chat", time.Now())
		p, ok := parse([]string{c.Traceparent()})
		if !ok || !p.sampled || p.trace != s.Trace || p.span != c.ID || c.Parent != s.ID || c.ID == s.ID {
			t.Fatalf("%s of %x in %x", c.Traceparent(), c.ID, s.Trace)
		}
		if headers != nil != (hex.EncodeToString(s.Trace[:]) == trace) || headers != nil != s.Remote {
			t.Fatalf("with parent %v: trace %x, remote %v", headers, s.Trace, s.Remote)
		}
	})
}

// A client's flag decides nothing unless it is followed, and neither does its
// trace id: the same one is sampled at times.
func TestSampling(t *testing.T) {
	sampled, not := []string{"00-" + trace + "-" + span + "-01"}, []string{"00-" + trace + "-" + span + "-00"}
	for _, c := range []struct {
		share    float64
		follow   bool
		headers  []string
		from, to int // of 1000
	}{
		{0, false, sampled, 0, 0},
		{1, false, not, 1000, 1000},
		{0, true, sampled, 1000, 1000},
		{1, true, not, 0, 0},
		{1, true, nil, 1000, 1000},
		{0, true, []string{"nonsense"}, 0, 0},
		{0.5, false, sampled, 350, 650},
		{0.5, false, not, 350, 650},
	} {
		tr, n := &Tracer{Share: c.share, Follow: c.follow}, 0
		for range 1000 {
			if tr.Start(c.headers, "", time.Time{}) != nil {
				n++
			}
		}
		if n < c.from || n > c.to {
			t.Errorf("%+v: %d of 1000 sampled", c, n)
		}
	}
}

// What is not sampled costs nothing.
func TestNil(t *testing.T) {
	var tr *Tracer
	headers := []string{"00-" + trace + "-" + span + "-01"}
	n := testing.AllocsPerRun(100, func() {
		s := tr.Start(headers, "POST /", time.Time{})
		c := s.Child(Client, "chat", time.Time{})
		c.Text("a", "b")
		c.Number("a", 1)
		c.Truth("a", true)
		c.Event("a", time.Time{})
		c.Fail()
		if c.Traceparent() != "" {
			t.Error("a traceparent of nothing")
		}
		c.Over(time.Time{})
		s.Over(time.Time{})
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
