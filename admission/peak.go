package admission

// peakBuckets is how finely a window of peaks slides: a window of length w is
// kept to within w/(peakBuckets-1), always on the long side, so that a peak is
// never forgotten early.
const peakBuckets = 16

// peak keeps the largest value of a piecewise constant amount over a sliding
// window, in constant space.
//
// Alternatives: a monotonic deque is exact, but a class that admits a thousand
// requests a second in a window of a minute would need 60,000 entries; an
// exponential decay has no moment at which a peak is known to be over, and the
// core must know when time alone changes something.
type peak struct {
	width Time // of one bucket; 0: only the present value counts
	start Time // of the newest bucket
	cur   Amount
	top   Amount // the largest in the window
	ring  [peakBuckets]Amount
	head  int
}

func (p *peak) init(window, now Time) {
	// A new window starts with what the old one still knew: longer on the side
	// of caution than to forget.
	*p = peak{width: (window + peakBuckets - 2) / (peakBuckets - 1), start: now, cur: p.cur, top: p.max()}
	for i := range p.ring {
		p.ring[i] = p.top
	}
}

// advance moves the window to now.
func (p *peak) advance(now Time) {
	if p.width == 0 || now < p.start+p.width {
		return
	}
	n := (now - p.start) / p.width
	p.start += n * p.width
	for range min(n, peakBuckets) {
		p.head = (p.head + 1) % peakBuckets
		p.ring[p.head] = p.cur
	}
	p.top = p.cur
	for _, v := range p.ring {
		p.top = p.top.max(v)
	}
}

// set records a new value at now.
func (p *peak) set(now Time, v Amount) {
	p.advance(now)
	p.cur = v
	p.ring[p.head] = p.ring[p.head].max(v)
	p.top = p.top.max(v)
}

// note records that v was wanted at now, and not had.
func (p *peak) note(now Time, v Amount) {
	p.advance(now)
	p.ring[p.head] = p.ring[p.head].max(v)
	p.top = p.top.max(v)
}

// max returns the largest value since the start of the window, which must have
// been advanced.
func (p *peak) max() Amount {
	if p.width == 0 {
		return p.cur
	}
	return p.top
}

// since returns the largest value at or after from, as far back as the window
// reaches.
func (p *peak) since(from Time) Amount {
	m := p.cur
	if p.width == 0 {
		return m
	}
	for i, end := 0, Never; i < peakBuckets; i++ {
		if end <= from {
			break
		}
		m = m.max(p.ring[(p.head-i+peakBuckets)%peakBuckets])
		end = p.start - Time(i)*p.width
	}
	return m
}

// falls returns when the maximum may next be lower than it is, Never if it is
// the present value.
func (p *peak) falls() Time {
	if p.width == 0 || p.max() == p.cur {
		return Never
	}
	return p.start + p.width
}
