package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours are Okabe and Ito's, which people who do not see all colours can tell apart;
// shapes and dashes say the same once more. On a page each is a CSS variable, so that
// it has a lighter one in the dark.
var (
	ink       = color.RGBA{0x22, 0x22, 0x22, 0xff}
	faint     = color.RGBA{0x77, 0x77, 0x77, 0xff}
	grid      = color.RGBA{0xdd, 0xdd, 0xdd, 0xff}
	orange    = color.RGBA{0xd5, 0x5e, 0x00, 0xff} // baseline
	blue      = color.RGBA{0x00, 0x72, 0xb2, 0xff} // treatment
	green     = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	pink      = color.RGBA{0xcc, 0x79, 0xa7, 0xff}
	band      = color.RGBA{0xec, 0xec, 0xec, 0xff}
	lentShade = color.RGBA{0xe8, 0xc8, 0xda, 0xff}
)

var variables = map[color.RGBA]string{
	ink: "ink", faint: "faint", grid: "grid", orange: "orange", blue: "blue", green: "green", pink: "pink", band: "band", lentShade: "lent",
}

// figure is one picture.
type figure struct {
	name    string // of the section that it belongs to
	caption string
	w, h    vg.Length
	draw    func(draw.Canvas)
}

var (
	svgHead  = regexp.MustCompile(`(?s)^.*?<svg [^>]*>`)
	svgFonts = regexp.MustCompile(`font-family:[^;"]*;`)
	svgStyle = regexp.MustCompile(`font-(variant|weight|style|stretch):[^;"]*;`)
)

// svg draws a figure as an element of a page.
func (f *figure) svg() string {
	c := vgsvg.New(f.w, f.h)
	f.draw(draw.New(c))
	var b bytes.Buffer
	_, _ = c.WriteTo(&b) // a buffer takes everything
	s := svgHead.ReplaceAllLiteralString(b.String(), fmt.Sprintf(`<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, f.w.Points(), f.h.Points(), attribute(f.caption)))
	s = svgStyle.ReplaceAllLiteralString(svgFonts.ReplaceAllLiteralString(s, ""), "")
	for c, name := range variables {
		s = strings.ReplaceAll(s, fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B), "var(--"+name+")")
	}
	return s
}

func attribute(s string) string {
	return strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;").Replace(s)
}

func letters(size float64, c color.Color, x draw.XAlignment, y draw.YAlignment) text.Style {
	return text.Style{Color: c, Font: font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, vg.Points(size)), XAlign: x, YAlign: y, Handler: plot.DefaultTextHandler}
}

func line(c color.Color, width float64, dashes ...vg.Length) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: vg.Points(width), Dashes: dashes}
}

// newPlot is a plot with this package's letters and lines.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.Label.TextStyle = letters(10, ink, draw.XCenter, draw.YBottom)
	p.Y.Label.TextStyle = letters(10, ink, draw.XCenter, draw.YBottom) // the axis turns it
	p.X.Label.Padding, p.Y.Label.Padding = vg.Points(3), vg.Points(4)
	p.X.Tick.Label = letters(9, ink, draw.XCenter, draw.YTop)
	p.Y.Tick.Label = letters(9, ink, draw.XRight, draw.YCenter)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle = line(faint, 0.6)
		a.Tick.LineStyle = line(faint, 0.6)
		a.Tick.Length = vg.Points(4)
		a.Padding = vg.Points(3)
	}
	return p
}

// horizontal adds grid lines that help to read values off the y axis.
func horizontal(p *plot.Plot) {
	p.Add(&plotter.Grid{Horizontal: line(grid, 0.5)})
}

// painted is a plotter that is a function.
type painted func(c draw.Canvas, x, y func(float64) vg.Length)

// Plot implements plot.Plotter.
func (f painted) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	f(c, x, y)
}

// entry is one thing of a key.
type entry struct {
	words string
	glyph draw.GlyphStyle
	line  draw.LineStyle
	fill  color.Color
}

// key draws entries from left to right at the top of the canvas, and returns what is left
// of it.
func key(c draw.Canvas, entries ...entry) draw.Canvas {
	const height, sample = 16, 22
	sty := letters(9.5, ink, draw.XLeft, draw.YCenter)
	y := c.Max.Y - vg.Points(height/2)
	at := c.Min.X + vg.Points(4)
	for _, e := range entries {
		from, to := at, at+vg.Points(sample)
		if e.fill != nil {
			h := vg.Points(4)
			c.FillPolygon(e.fill, []vg.Point{{X: from, Y: y - h}, {X: to, Y: y - h}, {X: to, Y: y + h}, {X: from, Y: y + h}})
		}
		if e.line.Width > 0 {
			c.StrokeLine2(e.line, from, y, to, y)
		}
		if e.glyph.Shape != nil {
			c.DrawGlyph(e.glyph, vg.Point{X: (from + to) / 2, Y: y})
		}
		c.FillText(sty, vg.Point{X: to + vg.Points(4), Y: y}, e.words)
		at = to + vg.Points(4) + wide(sty, e.words) + vg.Points(12)
	}
	return draw.Crop(c, 0, 0, 0, -vg.Points(height+4))
}

// wide is the room for words in whatever letters a reader's machine has for them.
func wide(sty text.Style, words string) vg.Length { return sty.Width(words) * 1.2 }

func glyph(c color.Color, radius float64, shape draw.GlyphDrawer) draw.GlyphStyle {
	return draw.GlyphStyle{Color: c, Radius: vg.Points(radius), Shape: shape}
}

var (
	baselineGlyph  = glyph(orange, 2.8, draw.CircleGlyph{})
	treatmentGlyph = glyph(blue, 3.4, draw.PyramidGlyph{})
	diamondGlyph   = glyph(ink, 5, diamond{})
)

// diamond marks an estimate.
type diamond struct{}

// DrawGlyph implements draw.GlyphDrawer.
func (diamond) DrawGlyph(c *draw.Canvas, s draw.GlyphStyle, at vg.Point) {
	c.SetColor(s.Color)
	var p vg.Path
	p.Move(vg.Point{X: at.X, Y: at.Y + s.Radius})
	p.Line(vg.Point{X: at.X + s.Radius*0.7, Y: at.Y})
	p.Line(vg.Point{X: at.X, Y: at.Y - s.Radius})
	p.Line(vg.Point{X: at.X - s.Radius*0.7, Y: at.Y})
	p.Close()
	c.Fill(p)
}

// space is the part of an axis that finite values have, with a place beyond each end
// for infinite ones.
type space struct {
	low, high       float64 // of the finite values
	under, over     bool    // there are infinite ones
	bottom, top     float64 // of the axis
	atUnder, atOver float64 // where infinite ones are drawn
}

// spaceFor fits values, and those that have to be seen in any case.
func spaceFor(values []float64, also ...float64) space {
	s := space{low: math.Inf(1), high: math.Inf(-1)}
	for _, v := range append(slices.Clone(values), also...) {
		switch {
		case math.IsNaN(v):
		case math.IsInf(v, 1):
			s.over = true
		case math.IsInf(v, -1):
			s.under = true
		default:
			s.low, s.high = min(s.low, v), max(s.high, v)
		}
	}
	if s.low > s.high {
		s.low, s.high = 0, 1
	}
	size := s.high - s.low
	if size <= 0 {
		size = max(math.Abs(s.high)*0.2, 1e-3)
		s.low, s.high = s.low-size/2, s.high+size/2
	}
	s.bottom, s.top = s.low-0.04*size, s.high+0.04*size
	s.atUnder, s.atOver = s.low-0.12*size, s.high+0.12*size
	if s.under {
		s.bottom = s.low - 0.17*size
	}
	if s.over {
		s.top = s.high + 0.17*size
	}
	return s
}

// at is where a value is drawn.
func (s *space) at(v float64) float64 {
	switch {
	case math.IsInf(v, 1):
		return s.atOver
	case math.IsInf(v, -1):
		return s.atUnder
	}
	return v
}

// ticks are plain ones, with names for the places of infinite values.
func (s *space) ticks(under, over string, finite []plot.Tick) plot.ConstantTicks {
	var all plot.ConstantTicks
	for _, t := range finite {
		if t.Value >= s.low-1e-9 && t.Value <= s.high+1e-9 {
			all = append(all, t)
		}
	}
	if s.under {
		all = append(all, plot.Tick{Value: s.atUnder, Label: under})
	}
	if s.over {
		all = append(all, plot.Tick{Value: s.atOver, Label: over})
	}
	return all
}

// even are ticks at round values, a scale and unit apart from how they are written.
func even(low, high, scale float64, about int, unit string) []plot.Tick {
	low, high = low*scale, high*scale
	step := math.Pow(10, math.Floor(math.Log10((high-low)/float64(about))))
	for _, f := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*f) <= float64(about) {
			step *= f
			break
		}
	}
	var all []plot.Tick
	for k := math.Ceil(low/step - 1e-9); k*step <= high+1e-9*step; k++ {
		all = append(all, plot.Tick{Value: k * step / scale, Label: plain(k*step, 6) + unit})
	}
	return all
}

// percents are ticks of an axis of log ratios, written as changes in percent. Round
// numbers come first.
func percents(low, high float64, about int) []plot.Tick {
	candidates := []float64{0, 100, -50, 1000, -90, 300, -75, 10000, -99, 30, -30, 10, -10, 50, -20, 20, 200, 500, -80, 5, -5, -40, 3, -3, 2, -2, 1, -1, 0.5, -0.5, 0.3, -0.3, 0.2, -0.2, 0.1, -0.1, 0.05, -0.05, 0.01, -0.01}
	apart := (high - low) / float64(about)
	var all []plot.Tick
	for _, v := range candidates {
		at := math.Log1p(v / 100)
		if at < low || at > high || slices.ContainsFunc(all, func(t plot.Tick) bool { return math.Abs(t.Value-at) < apart }) {
			continue
		}
		all = append(all, plot.Tick{Value: at, Label: signed(v) + " %"})
	}
	return all
}

// effectTicks are those of an effect's axis.
func (e *Effect) effectTicks(s *space, about int) plot.ConstantTicks {
	var finite []plot.Tick
	switch {
	case e.Scale == LogRatio:
		finite = percents(s.low, s.high, about)
	case e.Unit == "share":
		finite = even(s.low, s.high, 100, about, "")
	default:
		finite = even(s.low, s.high, 1, about, "")
	}
	for i := range finite {
		if finite[i].Value > 0 && !strings.HasPrefix(finite[i].Label, "+") {
			finite[i].Label = "+" + finite[i].Label
		}
	}
	return s.ticks("-∞", "+∞", finite)
}

func (e *Effect) axisUnit() string {
	switch {
	case e.Scale == LogRatio:
		return "percent"
	case e.Unit == "share":
		return "percentage points"
	}
	return e.Unit
}
