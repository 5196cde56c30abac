package kv

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"
)

// units of bytes. Those of 1000 and of 1024 are 7 % apart at GB, which is what a
// deep session's last tokens are made of, so a unit has to say which it is.
var units = map[string]int64{
	"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

var size = regexp.MustCompile(`^([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)$`)

// ParseBytes reads a number with its unit, such as 4.7GB (10^9) or 4.7GiB (2^30).
// It has to be at least a byte and less than an exbibyte; parts of a byte are
// dropped.
func ParseBytes(s string) (int64, error) {
	m := size.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is no size: allowed are a number and a unit, such as 4.7GB (10^9 bytes) or 4.7GiB (2^30 bytes)", s)
	}
	unit, ok := units[m[2]]
	if !ok {
		said := fmt.Sprintf("unit %q is not known", m[2])
		if m[2] == "" {
			said = "it has no unit"
		} else if c := strings.ToUpper(m[2][:1]); len(m[2]) <= 2 && strings.Contains("KMGT", c) && !strings.HasSuffix(m[2], "b") {
			said = fmt.Sprintf("%s may be %sB (10^%d bytes) or %siB (2^%d bytes): say which", m[2], c, 3*(1+strings.Index("KMGT", c)), c, 10*(1+strings.Index("KMGT", c)))
		}
		return 0, fmt.Errorf("size %q: %s; allowed are B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024)", s, said)
	}
	n, _ := new(big.Rat).SetString(m[1]) // the pattern lets nothing else through
	n.Mul(n, new(big.Rat).SetInt64(unit))
	whole := new(big.Int).Quo(n.Num(), n.Denom())
	if whole.Sign() <= 0 || whole.BitLen() > 60 {
		return 0, fmt.Errorf("size %q: it has to be from 1 byte to less than 1024 PiB", s)
	}
	return whole.Int64(), nil
}

// FormatBytes gives a size in the largest binary unit of which it has one.
func FormatBytes(n int64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		one := int64(1) << (40 - 10*i)
		if n >= one {
			if n%one == 0 {
				return fmt.Sprintf("%d %s", n/one, unit)
			}
			return fmt.Sprintf("%.2f %s", float64(n)/float64(one), unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}
