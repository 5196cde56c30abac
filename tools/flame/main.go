// Command flame draws a CPU profile as a flame graph, a picture that any browser and any
// page of documentation shows:
//
//	go run ./flame -title "a long stream" profile.pprof > stream.svg
//
// Width is processor time, callers are below what they call, and each box says its share when it is
// pointed at. Functions of the project, of net/http, of the kernel's calls and of the
// runtime have a colour each.
package main

import (
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

const (
	width  = 1200.0
	row    = 17.0
	margin = 28.0
	least  = 0.01 // of all time: a narrower box says nothing
	letter = 6.6  // of the font at 11 px
)

func main() {
	title := flag.String("title", "", "what was measured")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "flame: wants one profile, as /debug/pprof/profile gives it")
		os.Exit(2)
	}
	if err := run(*title, flag.Arg(0), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "flame:", err)
		os.Exit(1)
	}
}

func run(title, file string, out io.Writer) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	root := fold(p)
	if root.value == 0 {
		return fmt.Errorf("%s: no samples", file)
	}
	_, err = io.WriteString(out, draw(title, root))
	return err
}

// frame is a function as it was called from its callers.
type frame struct {
	name  string
	value int64 // of it and of what it called
	calls []*frame
}

// fold makes one tree of a profile's samples, by its last value, which is time.
func fold(p *profile.Profile) *frame {
	root := &frame{name: "all"}
	for _, s := range p.Sample {
		v := s.Value[len(s.Value)-1]
		root.value += v
		at := root
		for _, l := range slices.Backward(s.Location) {
			for _, line := range slices.Backward(l.Line) {
				at = at.call(line.Function.Name)
				at.value += v
			}
		}
	}
	root.sort()
	return root
}

func (f *frame) call(name string) *frame {
	if i := slices.IndexFunc(f.calls, func(c *frame) bool { return c.name == name }); i >= 0 {
		return f.calls[i]
	}
	c := &frame{name: name}
	f.calls = append(f.calls, c)
	return c
}

func (f *frame) sort() {
	slices.SortFunc(f.calls, func(a, b *frame) int { return strings.Compare(a.name, b.name) })
	for _, c := range f.calls {
		c.sort()
	}
}

func (f *frame) depth(all int64) int {
	d := 0
	for _, c := range f.calls {
		if float64(c.value) >= least*float64(all) {
			d = max(d, c.depth(all))
		}
	}
	return d + 1
}

// colour is by whose function it is.
func colour(name string) string {
	switch {
	case strings.HasPrefix(name, "headgate/"):
		return "#f2a65a"
	case strings.Contains(name, "yscall") || strings.HasPrefix(name, "internal/poll."):
		return "#9db4c0"
	case strings.HasPrefix(name, "net/http") || strings.HasPrefix(name, "net.") || strings.HasPrefix(name, "bufio."):
		return "#c2d3a8"
	case strings.HasPrefix(name, "runtime."):
		return "#d8c7e0"
	}
	return "#e6e0d4"
}

func draw(title string, root *frame) string {
	height := margin + row*float64(root.depth(root.value)) + 6
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="monospace" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#ffffff"/><text x="6" y="18" font-size="14">%s</text>`+"\n", html.EscapeString(title))
	var put func(f *frame, x float64, level int)
	put = func(f *frame, x float64, level int) {
		share := float64(f.value) / float64(root.value)
		w, y := share*width, height-6-row*float64(level+1)
		short := f.name[strings.LastIndexByte(f.name, '/')+1:]
		if most := int((w - 4) / letter); most < len(short) {
			short = short[:max(most, 0)]
		}
		fmt.Fprintf(&b, `<g><title>%s, %.1f %%</title><rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="%s" stroke="#ffffff" stroke-width="0.5"/>`,
			html.EscapeString(f.name), 100*share, x, y, w, row-1, colour(f.name))
		if len(short) > 2 {
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%s</text>`, x+2, y+12, html.EscapeString(short))
		}
		b.WriteString("</g>\n")
		for _, c := range f.calls {
			if float64(c.value) >= least*float64(root.value) {
				put(c, x, level+1)
			}
			x += float64(c.value) / float64(root.value) * width
		}
	}
	put(root, 0, 0)
	b.WriteString("</svg>\n")
	return b.String()
}
