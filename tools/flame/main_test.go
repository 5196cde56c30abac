package main

import (
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

func TestDraw(t *testing.T) {
	fn := map[string]*profile.Location{}
	at := func(names ...string) (all []*profile.Location) {
		for _, n := range names {
			if fn[n] == nil {
				fn[n] = &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: n}}}}
			}
			all = append(all, fn[n])
		}
		return all
	}
	p := &profile.Profile{Sample: []*profile.Sample{
		{Location: at("headgate/relay.<read>", "main.serve"), Value: []int64{1, 60}},
		{Location: at("runtime.mallocgc", "headgate/relay.<read>", "main.serve"), Value: []int64{1, 39}},
		{Location: at("main.rare"), Value: []int64{1, 0}},
		{Location: at("main.idle"), Value: []int64{1, 1}},
	}}
	svg := draw("a <test>", fold(p))
	for _, want := range []string{
		"a &lt;test&gt;</text>", "<title>main.serve, 99.0 %</title>", "<title>headgate/relay.&lt;read&gt;, 99.0 %</title>", "<title>runtime.mallocgc, 39.0 %</title>",
		">relay.&lt;read&gt;</text>", "main.idle, 1.0 %",
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("%q is not in\n%s", want, svg)
		}
	}
	if strings.Contains(svg, "main.rare") {
		t.Error("a box without width is drawn")
	}
}
