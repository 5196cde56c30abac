package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"headgate/bench"
	"headgate/stats"
)

const figureWidth = 720

// figures are all pictures of a report.
func (a *Analysis) figures() []figure {
	var all []figure
	seen := map[string]bool{}
	for i := range a.Report.Decisions {
		e := &a.Report.Decisions[i]
		if len(e.Values) == 0 {
			continue
		}
		all = append(all, a.strip(e))
		if !seen[e.Metric] {
			seen[e.Metric] = true
			all = append(all, a.seeds(e))
		}
		if f := a.overlay(e); f != nil {
			all = append(all, *f)
		}
	}
	for _, f := range []*figure{a.ecdf(), a.shiftFigure()} {
		if f != nil {
			all = append(all, *f)
		}
	}
	return append(all, a.timelines()...)
}

func (e *Effect) direction() string {
	if e.Better == "higher" {
		return "better is to the right"
	}
	return "better is to the left"
}

func effectValues(values []PairValue) []float64 {
	var all []float64
	for i := range values {
		if v := values[i].Effect; v.known() {
			all = append(all, float64(v))
		}
	}
	return all
}

// strip is a criterion: each pair's effect, the estimate with its interval, and the
// margin.
func (a *Analysis) strip(e *Effect) figure {
	title := roleWords[e.Role] + ": " + e.Metric
	return figure{
		name: "criteria", w: figureWidth, h: 140,
		caption: fmt.Sprintf("%s: %s. Each dot is one pair, stacked where they meet. %s %s, interval %s, margin %s; %s.",
			title, a.Report.Plan.Treatment+" against "+a.Report.Plan.Baseline, "Estimate", e.change(e.Estimate), e.span(), e.marginWords(), e.direction()),
		draw: func(c draw.Canvas) {
			c = key(c, entry{words: "a pair", glyph: treatmentGlyph}, entry{words: "estimate and 95 % interval", glyph: diamondGlyph, line: line(ink, 1.6)},
				entry{words: "margin " + e.marginWords(), line: line(orange, 1.4, vg.Points(4), vg.Points(3))}, entry{words: "no difference", line: line(faint, 1)})
			rows := []stripRow{{"", effectValues(e.Values), treatmentGlyph}}
			drawStrip(c, e, rows, 0)
		},
	}
}

type stripRow struct {
	name   string
	values []float64
	glyph  draw.GlyphStyle
}

// drawStrip draws rows of effects over one axis, the first at the top with its estimate;
// floor is half the width of the band in which the rig's noise is, 0 for none.
func drawStrip(c draw.Canvas, e *Effect, rows []stripRow, floor float64) {
	also := []float64{0, -floor, floor, float64(e.Interval.Low), float64(e.Interval.High)}
	if e.Margin != nil {
		also = append(also, float64(*e.Margin))
	}
	var values []float64
	for _, r := range rows {
		values = append(values, r.values...)
	}
	s := spaceFor(values, also...)
	p := newPlot(fmt.Sprintf("%s: effect of the treatment, %s (%s)", e.Metric, e.axisUnit(), e.direction()), "")
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = s.bottom, s.top, 0, float64(len(rows))
	p.X.Tick.Marker = e.effectTicks(&s, 10)
	p.Y.Tick.Label.Font.Size = vg.Points(9.5)
	p.Y.Tick.Length = 0
	var names plot.ConstantTicks
	for i, r := range rows {
		names = append(names, plot.Tick{Value: float64(len(rows)-i) - 0.5, Label: r.name})
	}
	p.Y.Tick.Marker = names
	p.Y.LineStyle.Width = 0
	p.Add(painted(func(c draw.Canvas, x, y func(float64) vg.Length) {
		full := func(sty draw.LineStyle, v float64) {
			c.StrokeLine2(sty, x(v), c.Min.Y, x(v), c.Max.Y)
		}
		if floor > 0 {
			c.FillPolygon(band, []vg.Point{{X: x(-floor), Y: c.Min.Y}, {X: x(floor), Y: c.Min.Y}, {X: x(floor), Y: c.Max.Y}, {X: x(-floor), Y: c.Max.Y}})
		}
		for _, t := range p.X.Tick.Marker.Ticks(0, 0) {
			full(line(grid, 0.5), t.Value)
		}
		full(line(faint, 1), 0)
		if e.Margin != nil {
			full(line(orange, 1.4, vg.Points(4), vg.Points(3)), float64(*e.Margin))
		}
		for i, r := range rows {
			top := float64(len(rows) - i)
			middle := y(top - 0.62)
			stack(c, r.values, func(v float64) vg.Length { return x(s.at(v)) }, middle, y(top)-middle, r.glyph)
		}
		estimate := y(float64(len(rows)) - 0.88)
		c.StrokeLine2(line(ink, 1.6), x(s.at(float64(e.Interval.Low))), estimate, x(s.at(float64(e.Interval.High))), estimate)
		if e.Estimate.known() {
			c.DrawGlyph(diamondGlyph, vg.Point{X: x(s.at(float64(e.Estimate))), Y: estimate})
		}
	}))
	p.Draw(draw.Crop(c, vg.Points(6), -vg.Points(14), 0, 0))
}

// stack draws dots side by side, those that would lie on each other one above the other.
func stack(c draw.Canvas, values []float64, x func(float64) vg.Length, base, height vg.Length, g draw.GlyphStyle) {
	sorted := slices.Sorted(slices.Values(values))
	width := 2*g.Radius + vg.Points(0.6)
	var columns []int // how many dots have each place
	var places []vg.Length
	for _, v := range sorted {
		at := x(v)
		k := len(places) - 1
		if k < 0 || at-places[k] >= width {
			places, columns = append(places, at), append(columns, 0)
			k++
		}
		columns[k]++
	}
	most := vg.Length(1)
	for _, n := range columns {
		most = max(most, vg.Length(n))
	}
	step := min(width, (height-2*g.Radius)/most)
	for k, n := range columns {
		if step < g.Radius && vg.Length(n)*step > height/2 { // a heap in which nobody could count
			c.DrawGlyph(g, vg.Point{X: places[k], Y: base})
			words, sty := fmt.Sprintf("%d pairs", n), letters(9, ink, draw.XRight, draw.YCenter)
			at := places[k] - 2*g.Radius - (wide(sty, words) - sty.Width(words))
			if at-sty.Width(words) < c.Min.X {
				sty.XAlign, at = draw.XLeft, places[k]+2*g.Radius
			}
			c.FillText(sty, vg.Point{X: at, Y: base}, words)
			continue
		}
		for i := range n {
			c.DrawGlyph(g, vg.Point{X: places[k], Y: base + vg.Length(i)*step})
		}
	}
}

// overlay is a criterion beside what the rig sees where there is nothing to be seen.
func (a *Analysis) overlay(e *Effect) *figure {
	n := a.Report.Floor.of(e.Metric, e.Scale)
	if n == nil || len(n.Values) == 0 {
		return nil
	}
	floor := 0.0
	if e.FloorMDE != nil && !math.IsInf(float64(*e.FloorMDE), 0) {
		floor = float64(*e.FloorMDE)
	}
	return &figure{
		name: "floor", w: figureWidth, h: 190,
		caption: fmt.Sprintf("%s: the comparison above, one arm against itself below. Grey: the rig's own noise, %s, in which nothing is claimed.", e.Metric, e.distance(e.FloorMDE)),
		draw: func(c draw.Canvas) {
			plain := glyph(faint, 2.8, draw.CircleGlyph{})
			c = key(c, entry{words: "a pair of the comparison", glyph: treatmentGlyph}, entry{words: "a pair of the A/A run", glyph: plain},
				entry{words: "estimate and 95 % interval", glyph: diamondGlyph, line: line(ink, 1.6)},
				entry{words: "margin " + e.marginWords(), line: line(orange, 1.4, vg.Points(4), vg.Points(3))}, entry{words: "the rig's own noise", fill: band})
			drawStrip(c, e, []stripRow{{"A/B", effectValues(e.Values), treatmentGlyph}, {"A/A", effectValues(n.Values), plain}}, floor)
		},
	}
}

// valueTicks are those of a metric's own axis.
func valueTicks(s *space, unit string, about int) plot.ConstantTicks {
	if unit == "share" {
		return s.ticks("", "never", even(s.low, s.high, 100, about, " %"))
	}
	return s.ticks("", "never", even(s.low, s.high, 1, about, ""))
}

// seeds is a metric in both runs of each pair.
func (a *Analysis) seeds(e *Effect) figure {
	plan := &a.Report.Plan
	return figure{
		name: "seeds", w: figureWidth, h: 250,
		caption: fmt.Sprintf("%s of every pair: %s and %s on the same trace.", e.Metric, plan.Baseline, plan.Treatment),
		draw: func(c draw.Canvas) {
			c = key(c, entry{words: plan.Baseline, glyph: baselineGlyph}, entry{words: plan.Treatment, glyph: treatmentGlyph})
			values := []float64{}
			for i := range e.Values {
				values = append(values, float64(e.Values[i].Baseline), float64(e.Values[i].Treatment))
			}
			s := spaceFor(values)
			unit := " in " + e.Unit
			if e.Unit == "share" {
				unit = ""
			}
			p := newPlot("seed or trace", e.Metric+unit)
			horizontal(p)
			n := len(e.Values)
			p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -0.7, float64(n)-0.3, s.bottom, s.top
			p.X.Tick.Marker, p.Y.Tick.Marker = sourceTicks(e.Values), valueTicks(&s, e.Unit, 6)
			p.Add(painted(func(c draw.Canvas, x, y func(float64) vg.Length) {
				for i := range e.Values {
					v := &e.Values[i]
					at, b, t := x(float64(i)), y(s.at(float64(v.Baseline))), y(s.at(float64(v.Treatment)))
					c.StrokeLine2(line(faint, 0.8), at, b, at, t)
					c.DrawGlyph(baselineGlyph, vg.Point{X: at, Y: b})
					c.DrawGlyph(treatmentGlyph, vg.Point{X: at, Y: t})
				}
			}))
			p.Draw(draw.Crop(c, 0, -vg.Points(6), 0, 0))
		},
	}
}

// sourceTicks names pairs, as few of them as there is room for.
func sourceTicks(values []PairValue) plot.ConstantTicks {
	longest := 1
	names := make([]string, len(values))
	for i := range values {
		names[i] = strings.TrimPrefix(values[i].Source, "seed")
		longest = max(longest, len(names[i]))
	}
	step := max(1, int(math.Ceil(float64(len(values)*(longest+2))/120)))
	var all plot.ConstantTicks
	for i := range names {
		t := plot.Tick{Value: float64(i)}
		if i%step == 0 {
			t.Label = names[i]
		}
		all = append(all, t)
	}
	return all
}

// samples are the TTFTs of the arms compared, of all pairs that count.
func (a *Analysis) samples() (baseline, treatment *stats.Sample) {
	var all [2][]float64
	for i := range a.Report.Pairs {
		p := &a.Report.Pairs[i]
		if p.Excluded != "" {
			continue
		}
		for k, d := range []*digest{a.runs[p.Baseline], a.runs[p.Treatment]} {
			all[k] = append(all[k], d.times...)
		}
	}
	if len(all[0]) == 0 || len(all[1]) == 0 {
		return nil, nil
	}
	baseline, _ = stats.NewSample(all[0]) // none is NaN
	treatment, _ = stats.NewSample(all[1])
	return baseline, treatment
}

// ecdf is the share of requests that had their first token by a time.
func (a *Analysis) ecdf() *figure {
	b, t := a.samples()
	if b == nil {
		return nil
	}
	plan := &a.Report.Plan
	objective := plan.OnTime.TTFTMS / 1000
	within := func(s *stats.Sample) string { return plain(100*s.Within(objective), 3) + " %" }
	return &figure{
		name: "ttft", w: figureWidth, h: 270,
		caption: fmt.Sprintf("Time to first token of all requests of the pairs that count. Within the objective of %s s: %s of %s's, %s of %s's. A curve that ends below 100 %% leaves what never came.",
			plain(objective, 4), within(b), plan.Baseline, within(t), plan.Treatment),
		draw: func(c draw.Canvas) {
			dashed := line(orange, 1.8, vg.Points(5), vg.Points(2.5))
			solid := line(blue, 1.8)
			c = key(c, entry{words: plan.Baseline, line: dashed}, entry{words: plan.Treatment, line: solid}, entry{words: "objective " + plain(objective, 4) + " s", line: line(ink, 1, vg.Points(1.5), vg.Points(2))})
			bs, ts := b.Steps(), t.Steps()
			end := objective * 1.2
			for _, steps := range [][]stats.Step{bs, ts} {
				if len(steps) > 0 {
					end = max(end, steps[len(steps)-1].Value)
				}
			}
			p := newPlot("time to first token in s, from the intended send", "requests")
			horizontal(p)
			p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, end*1.03, 0, 1
			p.X.Tick.Marker = plot.ConstantTicks(even(0, end, 1, 10, ""))
			p.Y.Tick.Marker = plot.ConstantTicks(even(0, 1, 100, 5, " %"))
			p.Add(painted(func(c draw.Canvas, x, y func(float64) vg.Length) {
				c.StrokeLine2(line(ink, 1, vg.Points(1.5), vg.Points(2)), x(objective), c.Min.Y, x(objective), c.Max.Y)
				for _, curve := range []struct {
					steps []stats.Step
					sty   draw.LineStyle
				}{{bs, dashed}, {ts, solid}} {
					points := []vg.Point{{X: x(0), Y: y(0)}}
					share := 0.0
					for _, s := range curve.steps {
						points = append(points, vg.Point{X: x(s.Value), Y: y(share)}, vg.Point{X: x(s.Value), Y: y(s.Share)})
						share = s.Share
					}
					c.StrokeLines(curve.sty, append(points, vg.Point{X: x(end * 1.03), Y: y(share)}))
				}
			}))
			p.Draw(draw.Crop(c, 0, -vg.Points(14), 0, 0))
		},
	}
}

// shiftFigure is the effect on each quantile.
func (a *Analysis) shiftFigure() *figure {
	var shown []int
	for i := range a.Report.Shift {
		if a.Report.Shift[i].Shown {
			shown = append(shown, i)
		}
	}
	if len(shown) == 0 {
		return nil
	}
	return &figure{
		name: "ttft", w: figureWidth, h: 250, caption: "Shift of each quantile of a run's times to first token, with 95 % intervals; each dot is one pair. Below the line is sooner.",
		draw: func(c draw.Canvas) {
			c = key(c, entry{words: "a pair", glyph: treatmentGlyph}, entry{words: "estimate and 95 % interval", glyph: diamondGlyph, line: line(ink, 1.6)})
			also := []float64{0}
			var values []float64
			for _, i := range shown {
				q := &a.Report.Shift[i]
				also = append(also, float64(q.Interval.Low), float64(q.Interval.High))
				values = append(values, a.dots[i]...)
			}
			s := spaceFor(values, also...)
			e := Effect{Scale: LogRatio}
			p := newPlot("quantile of a run's times to first token", "change")
			horizontal(p)
			p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -0.5, float64(len(shown))-0.5, s.bottom, s.top
			p.Y.Tick.Marker = e.effectTicks(&s, 8)
			var names plot.ConstantTicks
			for k, i := range shown {
				names = append(names, plot.Tick{Value: float64(k), Label: "p" + plain(100*a.Report.Shift[i].Quantile, 4)})
			}
			p.X.Tick.Marker = names
			p.Add(painted(func(c draw.Canvas, x, y func(float64) vg.Length) {
				c.StrokeLine2(line(faint, 1), c.Min.X, y(0), c.Max.X, y(0))
				for k, i := range shown {
					q := &a.Report.Shift[i]
					for n, v := range a.dots[i] {
						if math.IsNaN(v) {
							continue
						}
						aside := 0.08 + 0.2*float64(n)/float64(len(a.dots[i]))
						c.DrawGlyph(treatmentGlyph, vg.Point{X: x(float64(k) + aside), Y: y(s.at(v))})
					}
					at := x(float64(k) - 0.06)
					c.StrokeLine2(line(ink, 1.6), at, y(s.at(float64(q.Interval.Low))), at, y(s.at(float64(q.Interval.High))))
					if q.Estimate.known() {
						c.DrawGlyph(diamondGlyph, vg.Point{X: at, Y: y(s.at(float64(q.Estimate)))})
					}
				}
			}))
			p.Draw(draw.Crop(c, 0, -vg.Points(6), 0, 0))
		},
	}
}

// timelines are the two runs of the pair in which the treatment's on-time share was
// lowest, the first of those with the same.
func (a *Analysis) timelines() []figure {
	worst := -1
	for i := range a.Report.Pairs {
		p := &a.Report.Pairs[i]
		if t := &a.runs[p.Treatment].OnTime; p.Excluded == "" && t.Offered > 0 && len(a.runs[p.Treatment].result.Timeline) > 0 &&
			(worst < 0 || t.share() < a.runs[a.Report.Pairs[worst].Treatment].OnTime.share()) {
			worst = i
		}
	}
	if worst < 0 {
		return nil
	}
	p := &a.Report.Pairs[worst]
	runs := []*digest{a.runs[p.Treatment], a.runs[p.Baseline]}
	end := 0.0
	for _, d := range runs {
		for _, t := range d.result.Timeline {
			end = max(end, t.AtMS/1000)
		}
	}
	var all []figure
	for i, d := range runs {
		if len(d.result.Timeline) == 0 {
			continue
		}
		words := "the treatment's worst run"
		if i == 1 {
			words = "the baseline on the same trace"
		}
		all = append(all, a.timeline(d, words, end))
	}
	return all
}

// timeline is one run: what was admitted, waited and was lent, and its recalls.
func (a *Analysis) timeline(d *digest, words string, end float64) figure {
	recalls := d.result.Recalls
	f := figure{
		name: "timeline", w: figureWidth, h: 330,
		caption: fmt.Sprintf("%s on %s, %s: %d of %d requests on time, %d recalls.", d.Arm, d.Source, words, d.OnTime.Met, d.OnTime.Offered, len(recalls)),
	}
	if len(recalls) == 0 {
		f.h = 240
	}
	classes := map[string]bool{}
	lends := false
	for _, t := range d.result.Timeline {
		for _, by := range []map[string]int{t.Running, t.Waiting} {
			for c := range by {
				classes[c] = true
			}
		}
		lends = lends || t.Lent > 0
	}
	names := slices.Sorted(maps.Keys(classes))
	slices.SortStableFunc(names, func(x, y string) int { return order(x == a.plan.OnTime.Class, y == a.plan.OnTime.Class) })
	f.draw = func(c draw.Canvas) {
		styles := map[string]draw.LineStyle{}
		var entries []entry
		for i, name := range names {
			styles[name] = []draw.LineStyle{line(green, 1.8), line(pink, 1.8, vg.Points(5), vg.Points(2)), line(blue, 1.5, vg.Points(2), vg.Points(2)), line(faint, 1.5)}[min(i, 3)]
			entries = append(entries, entry{words: name, line: styles[name]})
		}
		reclaim := glyph(orange, 4, draw.CrossGlyph{})
		if lends {
			entries = append(entries, entry{words: "lent", fill: lentShade}, entry{words: "loans ended by force", glyph: reclaim})
		}
		c = key(c, entries...)
		high := c.Max.Y - c.Min.Y
		parts := []float64{0.56, 0.44}
		if len(recalls) > 0 {
			parts = []float64{0.4, 0.26, 0.34}
		}
		var panels []*plot.Plot
		running := panel("at the engine", end)
		if lends {
			running.Add(lent(d.result.Timeline))
		}
		steps(running, d.result.Timeline, names, styles, func(t *bench.Point) map[string]int { return t.Running })
		running.Add(reclaims(d.result.Timeline, reclaim))
		waiting := panel("waiting", end)
		steps(waiting, d.result.Timeline, names, styles, func(t *bench.Point) map[string]int { return t.Waiting })
		panels = append(panels, running, waiting)
		if len(recalls) > 0 {
			panels = append(panels, recallPanel(recalls, end))
		}
		for i, p := range panels {
			if i < len(panels)-1 {
				p.X.Tick.Marker = unnamed(even(0, end, 1, 12, ""))
			}
		}
		panels[len(panels)-1].X.Label.Text = "time since the trace's start in s"
		var cells []draw.Canvas
		top := c.Max.Y
		for i := range panels {
			h := high * vg.Length(parts[i])
			cells = append(cells, draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: c.Min.X, Y: top - h + vg.Points(3)}, Max: vg.Point{X: c.Max.X - vg.Points(12), Y: top}}})
			top -= h
		}
		// All panels have the same times above each other.
		left := vg.Length(0)
		for i, p := range panels {
			left = max(left, p.DataCanvas(cells[i]).Min.X)
		}
		for i, p := range panels {
			p.Draw(draw.Crop(cells[i], left-p.DataCanvas(cells[i]).Min.X, 0, 0, 0))
		}
	}
	return f
}

func order(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

// panel is a plot over a run's time.
func panel(label string, end float64) *plot.Plot {
	p := newPlot("", label)
	p.X.Min, p.X.Max = 0, end
	p.X.Tick.Marker = plot.ConstantTicks(even(0, end, 1, 12, ""))
	return p
}

// unnamed are ticks of a panel that has the same ones named below it.
func unnamed(ticks []plot.Tick) plot.ConstantTicks {
	for i := range ticks {
		ticks[i].Label = ""
	}
	return ticks
}

// steps draws counts by class.
func steps(p *plot.Plot, points []bench.Point, names []string, styles map[string]draw.LineStyle, of func(*bench.Point) map[string]int) {
	horizontal(p)
	most := 1
	for i := range points {
		for _, n := range of(&points[i]) {
			most = max(most, n)
		}
	}
	p.Y.Min, p.Y.Max = 0, float64(most)*1.15
	p.Y.Tick.Marker = plot.ConstantTicks(even(0, float64(most), 1, min(most, 4), ""))
	for _, name := range names {
		var at plotter.XYs
		for i := range points {
			at = append(at, plotter.XY{X: points[i].AtMS / 1000, Y: float64(of(&points[i])[name])})
		}
		p.Add(&plotter.Line{XYs: at, StepStyle: plotter.PostStep, LineStyle: styles[name]})
	}
}

// lent fills what was lent.
func lent(points []bench.Point) plot.Plotter {
	return painted(func(c draw.Canvas, x, y func(float64) vg.Length) {
		for i := 0; i < len(points); {
			n := points[i].Lent
			from := points[i].AtMS / 1000
			for i < len(points) && points[i].Lent == n {
				i++
			}
			if n == 0 {
				continue
			}
			to := points[i-1].AtMS/1000 + bench.TimelineEvery.Seconds()
			top := y(float64(n))
			c.FillPolygon(lentShade, []vg.Point{{X: x(from), Y: y(0)}, {X: x(to), Y: y(0)}, {X: x(to), Y: top}, {X: x(from), Y: top}})
		}
	})
}

// reclaims marks the loans that were ended by force.
func reclaims(points []bench.Point, g draw.GlyphStyle) plot.Plotter {
	return painted(func(c draw.Canvas, x, _ func(float64) vg.Length) {
		for i := 1; i < len(points); i++ {
			if points[i].Reclaimed > points[i-1].Reclaimed {
				c.DrawGlyph(g, vg.Point{X: x(points[i].AtMS / 1000), Y: c.Max.Y - g.Radius - vg.Points(1)})
			}
		}
	})
}

// recallPanel draws each recall as a line from its opening to the last of its events.
func recallPanel(recalls []bench.Recall, end float64) *plot.Plot {
	p := panel("recalls", end)
	n := len(recalls)
	p.Y.Min, p.Y.Max = -0.6, float64(n)+0.9
	p.Y.Tick.Marker = plot.ConstantTicks{}
	p.Y.Tick.Length = 0
	events := []struct {
		name  string
		glyph draw.GlyphStyle
		of    func(*bench.Recall) *float64
	}{
		{"granted", glyph(ink, 3, draw.PlusGlyph{}), func(r *bench.Recall) *float64 { return r.GrantedMS }},
		{"scheduled", glyph(blue, 3.2, draw.PyramidGlyph{}), func(r *bench.Recall) *float64 { return r.ScheduledMS }},
		{"settled", glyph(green, 2.6, draw.BoxGlyph{}), func(r *bench.Recall) *float64 { return r.SettledMS }},
	}
	p.Add(painted(func(c draw.Canvas, x, y func(float64) vg.Length) {
		sty := letters(9, ink, draw.XLeft, draw.YCenter)
		at := c.Min.X + vg.Points(6)
		for _, e := range events {
			c.DrawGlyph(e.glyph, vg.Point{X: at, Y: c.Max.Y - vg.Points(6)})
			c.FillText(sty, vg.Point{X: at + vg.Points(6), Y: c.Max.Y - vg.Points(6)}, e.name)
			at += vg.Points(16) + wide(sty, e.name)
		}
		for i := range recalls {
			r := &recalls[i]
			row := y(float64(n - 1 - i))
			last := 0.0
			for _, e := range events {
				if v := e.of(r); v != nil {
					last = max(last, *v)
				}
			}
			c.StrokeLine2(line(faint, 1), x(r.OpenedMS/1000), row, x(min((r.OpenedMS+last)/1000, end)), row)
			for _, e := range events {
				if v := e.of(r); v != nil {
					c.DrawGlyph(e.glyph, vg.Point{X: x((r.OpenedMS + *v) / 1000), Y: row})
				}
			}
		}
	}))
	return p
}
