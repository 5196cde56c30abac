package occupancy

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
)

// WriteSVG draws the distribution, and below it the mean number in flight by hour.
// It is written by hand: two rows of bars need no library.
func (r *Report) WriteSVG(w io.Writer) error {
	const width, row, left, room, most = 720, 22, 90, 520.0, 40
	levels, rest := r.Levels, Level{}
	if len(levels) > most {
		for _, l := range levels[most-1:] {
			rest.BusyShare += l.BusyShare
		}
		levels = levels[:most-1]
	}
	var b strings.Builder
	y := 30
	text := func(x, y int, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="%s">`, x, y, anchor)
		_ = xml.EscapeText(&b, []byte(s)) // into memory
		b.WriteString("</text>\n")
	}
	bar := func(label string, share float64) {
		text(left-8, y+15, "end", label)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="#3b6ea5"/>`+"\n", left, y+2, room*share, row-4)
		text(left+8+int(room*share), y+15, "start", percent(share))
		y += row
	}
	text(left, 18, "start", fmt.Sprintf("busy time by requests in flight: %d spans, utilisation %s", r.Paired+r.Capped, percent(r.Utilisation)))
	for _, l := range levels {
		bar(fmt.Sprint(l.InFlight), l.BusyShare)
	}
	if rest.BusyShare > 0 {
		bar(fmt.Sprintf("%d to %d", most, r.Peak), rest.BusyShare)
	}
	if n := len(r.Hours); n > 0 {
		const height = 120
		first := r.Hours[0].at
		hours := int(r.Hours[n-1].at.Sub(first)/time.Hour) + 1
		top := 0.0
		for _, h := range r.Hours {
			top = max(top, h.InFlight)
		}
		y += 40
		text(left, y-8, "start", fmt.Sprintf("mean in flight by hour, at most %.3g", top))
		var path strings.Builder
		fmt.Fprintf(&path, "M%d %d", left, y+height)
		at := func(hour, value float64) {
			fmt.Fprintf(&path, " L%.1f %.1f", left+(room+70)*hour/float64(hours), float64(y+height)-height*value/top)
		}
		for i, h := range r.Hours {
			x := float64(h.at.Sub(first) / time.Hour)
			if i > 0 && !r.Hours[i-1].at.Add(time.Hour).Equal(h.at) {
				at(x, 0)
			}
			at(x, h.InFlight)
			at(x+1, h.InFlight)
			if i+1 == n || !h.at.Add(time.Hour).Equal(r.Hours[i+1].at) {
				at(x+1, 0)
			}
		}
		fmt.Fprintf(&b, `<path d="%s" fill="#a9c4de" stroke="#3b6ea5"/>`+"\n", path.String())
		y += height + 16
		text(left, y, "start", r.Hours[0].Start)
		text(left+int(room)+70, y, "end", r.Hours[n-1].at.Add(time.Hour).Format(time.RFC3339))
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n"+
		`<rect width="100%%" height="100%%" fill="white"/>`+"\n%s</svg>\n", width, y+20, b.String())
	return err
}
