package occupancy

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Named time formats. Any other name is a layout of package time.
const (
	Auto      = "auto"       // ISO 8601, or a number whose size tells the unit
	RFC3339   = "rfc3339"    // with T or a space, and with or without a zone
	Unix      = "unix"       // seconds, also with decimals
	UnixMs    = "unix_ms"    // milliseconds
	UnixUs    = "unix_us"    // microseconds
	UnixNs    = "unix_ns"    // nanoseconds
	Elapsed   = "elapsed"    // minutes.seconds.milliseconds.microseconds since the process began
	ElapsedUs = "elapsed_us" // microseconds since then
)

// clock reads times of one format.
type clock struct {
	format string
	unit   int64 // of a number, in nanoseconds; 0: its size tells
	loc    *time.Location
	year   int // of a layout without one
	month  time.Month
	dated  bool // the layout has a year
}

func newClock(format string, loc *time.Location, year int) (*clock, error) {
	c := &clock{format: format, loc: loc, year: year}
	switch format {
	case Auto, RFC3339, Elapsed:
	case Unix:
		c.unit = 1e9
	case UnixMs:
		c.unit = 1e6
	case UnixUs, ElapsedUs:
		c.unit = 1e3
	case UnixNs:
		c.unit = 1
	default:
		// A layout's own reference time has to come back from it.
		ref := time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC)
		got, err := time.Parse(format, ref.Format(format))
		if err != nil || !strings.Contains(format, "05") {
			return nil, fmt.Errorf("time format is %q: allowed are auto, rfc3339, unix, unix_ms, unix_us, unix_ns, elapsed, elapsed_us and a layout of Go's time package down to the second", format)
		}
		c.dated = got.Year() == 2006
	}
	return c, nil
}

// relative tells whether 0 is the start of a process.
func (c *clock) relative() bool { return c.format == Elapsed || c.format == ElapsedUs }

// parse returns nanoseconds since 1970.
func (c *clock) parse(b []byte) (ns int64, ok bool) {
	switch c.format {
	case Auto:
		if len(b) >= 19 && (b[4] == '-' || b[4] == '/') {
			return iso(b, c.loc)
		}
		return number(b, 0)
	case RFC3339:
		return iso(b, c.loc)
	case Elapsed:
		return elapsed(b)
	case Unix, UnixMs, UnixUs, UnixNs, ElapsedUs:
		return number(b, c.unit)
	}
	t, err := time.ParseInLocation(c.format, string(b), c.loc)
	if err != nil {
		return 0, false
	}
	if !c.dated {
		// December and then January is the next year; a line of the old year that comes
		// late is not.
		if c.month == time.December && t.Month() == time.January {
			c.year++
		}
		year := c.year
		if c.month == time.January && t.Month() == time.December {
			year--
		} else {
			c.month = t.Month()
		}
		t = time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), c.loc)
	}
	return nanos(t)
}

// nanos refuses what does not fit: years before 1678 and after 2261.
func nanos(t time.Time) (int64, bool) {
	if y := t.Year(); y < 1678 || y > 2261 {
		return 0, false
	}
	return t.UnixNano(), true
}

// number reads a decimal number of units, of 0 by its size: below 1e11 seconds
// (the year 5138), below 1e14 milliseconds, below 1e17 microseconds.
func number(b []byte, unit int64) (int64, bool) {
	whole, frac, _ := bytes.Cut(b, []byte{'.'})
	neg := len(whole) > 0 && whole[0] == '-'
	if neg {
		whole = whole[1:]
	}
	n, ok := digits(whole)
	if !ok {
		return exponent(b, unit)
	}
	if unit == 0 {
		unit = unitOf(float64(n))
	}
	if n > math.MaxInt64/unit-1 {
		return 0, false
	}
	n *= unit
	for scale := unit / 10; len(frac) > 0; frac, scale = frac[1:], scale/10 {
		d := frac[0] - '0'
		if d > 9 {
			return exponent(b, unit)
		}
		n += int64(d) * scale
	}
	if neg {
		n = -n
	}
	return n, true
}

// exponent reads what some writers make of large numbers: 1.79e9.
func exponent(b []byte, unit int64) (int64, bool) {
	if len(b) == 0 || len(b) > 40 || !bytes.ContainsAny(b, "eE") || len(bytes.Trim(b, "0123456789.eE+-")) > 0 {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if unit == 0 {
		unit = unitOf(f)
	}
	f *= float64(unit)
	if err != nil || !(math.Abs(f) < 1<<62) {
		return 0, false
	}
	return int64(f), true
}

func unitOf(n float64) int64 {
	switch n = math.Abs(n); {
	case n < 1e11:
		return 1e9
	case n < 1e14:
		return 1e6
	case n < 1e17:
		return 1e3
	}
	return 1
}

// digits reads 1 to 18 digits.
func digits(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 && !(len(b) == 19 && b[0] < '9') {
		return 0, false
	}
	n := int64(0)
	for _, c := range b {
		if c -= '0'; c > 9 {
			return 0, false
		}
		n = n*10 + int64(c)
	}
	return n, true
}

// iso reads 2026-11-30T06:40:42.123456Z in its usual variants: a space for the T,
// a slash for the dash, a comma for the point, a zone with or without its colon, or
// none, which is then loc's. It is five times as fast as time.Parse and does not
// allocate.
func iso(b []byte, loc *time.Location) (int64, bool) {
	if len(b) < 19 {
		return 0, false
	}
	two := func(i int) int {
		h, l := b[i]-'0', b[i+1]-'0'
		if h > 9 || l > 9 {
			return -1 << 20
		}
		return int(h)*10 + int(l)
	}
	year, month, day := two(0)*100+two(2), two(5), two(8)
	hour, minute, second := two(11), two(14), two(17)
	if b[4] != b[7] || b[4] != '-' && b[4] != '/' || b[10] != 'T' && b[10] != ' ' && b[10] != 't' || b[13] != ':' || b[16] != ':' ||
		year < 1678 || year > 2261 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) ||
		hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 {
		return 0, false
	}
	rest := b[19:]
	frac := int64(0)
	if len(rest) > 0 && (rest[0] == '.' || rest[0] == ',') {
		i, scale := 1, int64(1e8)
		for ; i < len(rest) && rest[i]-'0' <= 9; i++ {
			frac += int64(rest[i]-'0') * scale
			scale /= 10
		}
		if i == 1 {
			return 0, false
		}
		rest = rest[i:]
	}
	sec := int64(daysSince1970(year, month, day))*86400 + int64(hour*3600+minute*60+second)
	switch {
	case len(rest) == 0:
		if loc == time.UTC {
			break
		}
		return time.Date(year, time.Month(month), day, hour, minute, second, int(frac), loc).UnixNano(), true
	case len(rest) == 1 && (rest[0] == 'Z' || rest[0] == 'z'):
	case (rest[0] == '+' || rest[0] == '-') && (len(rest) == 5 || len(rest) == 6 && rest[3] == ':'):
		b = rest
		h, m := two(1), two(len(rest)-2)
		if h < 0 || h > 23 || m < 0 || m > 59 {
			return 0, false
		}
		offset := int64(h*3600 + m*60)
		if rest[0] == '+' {
			offset = -offset
		}
		sec += offset
	default:
		return 0, false
	}
	return sec*1e9 + frac, true
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// daysSince1970 counts in years that begin in March, so that the leap day is the
// last one.
func daysSince1970(year, month, day int) int {
	if month < 3 {
		year--
		month += 12
	}
	return year*365 + year/4 - year/100 + year/400 + (153*(month-3)+2)/5 + day - 1 - 719468
}

// elapsed reads minutes.seconds.milliseconds.microseconds.
func elapsed(b []byte) (int64, bool) {
	var part [4]int64
	for i := range part {
		p, rest, more := bytes.Cut(b, []byte{'.'})
		n, ok := digits(p)
		if !ok || more != (i < 3) || n > 1e8 || i > 0 && n > 999 {
			return 0, false
		}
		part[i], b = n, rest
	}
	return (part[0]*60+part[1])*1e9 + part[2]*1e6 + part[3]*1e3, true
}

// duration reads a number of units, or a Go duration such as 1m2.5s; both are
// never negative.
func duration(b []byte, unit int64) (int64, bool) {
	if len(b) == 0 || len(b) > 40 {
		return 0, false
	}
	if last := b[len(b)-1]; last == 's' || last == 'm' || last == 'h' {
		d, err := time.ParseDuration(string(b))
		return int64(d), err == nil && d >= 0
	}
	ns, ok := number(b, unit)
	return ns, ok && ns >= 0
}
