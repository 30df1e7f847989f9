package sched

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Micro is a fixed-point number in millionths: preemption scores.
type Micro int64

// maxFixed bounds every fixed-point amount that comes from outside. Ten
// thousand of them can be added up, and a priority of that size can be turned
// into a score, before an int64 overflows.
const maxFixed = 1_000_000_000_000_000

// MilliFromFloat rounds to the nearest thousandth. It refuses NaN, infinities
// and anything beyond ±10¹².
func MilliFromFloat(f float64) (Milli, error) {
	scaled := math.Round(f * 1000)
	if math.IsNaN(scaled) || math.Abs(scaled) > maxFixed {
		return 0, fmt.Errorf("%v is not a usable number: it must lie between -10^12 and 10^12", f)
	}
	return Milli(scaled), nil
}

// Float returns the number in whole units.
func (m Milli) Float() float64 { return float64(m) / 1000 }

// Duration reads the number as seconds.
func (m Milli) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// String writes the number exactly, with at least one decimal: "5.0", "0.125".
func (m Milli) String() string { return string(appendFixed(nil, int64(m), 1000, 1)) }

// MarshalJSON writes a plain JSON number in whole units: 5, 0.125.
func (m Milli) MarshalJSON() ([]byte, error) { return appendFixed(nil, int64(m), 1000, 0), nil }

// UnmarshalJSON reads a JSON number in whole units, as MilliFromFloat does.
func (m *Milli) UnmarshalJSON(data []byte) error {
	var f float64
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	v, err := MilliFromFloat(f)
	if err != nil {
		return err
	}
	*m = v
	return nil
}

// Float returns the score in whole units.
func (m Micro) Float() float64 { return float64(m) / 1e6 }

// String writes the score exactly, with at least one decimal.
func (m Micro) String() string { return string(appendFixed(nil, int64(m), 1_000_000, 1)) }

// MarshalJSON writes a plain JSON number in whole units.
func (m Micro) MarshalJSON() ([]byte, error) { return appendFixed(nil, int64(m), 1_000_000, 0), nil }

// appendFixed writes v/scale as a decimal without trailing zeros, but with at
// least so many decimals. scale is a power of ten.
func appendFixed(dst []byte, v, scale int64, decimals int) []byte {
	u := uint64(v)
	if v < 0 {
		dst = append(dst, '-')
		u = -u
	}
	s := uint64(scale)
	dst = strconv.AppendUint(dst, u/s, 10)
	rest := u % s
	if rest == 0 && decimals == 0 {
		return dst
	}
	dst = append(dst, '.')
	for n := 0; rest > 0 || n < decimals; n++ {
		s /= 10
		dst = append(dst, byte('0'+rest/s))
		rest %= s
	}
	return dst
}
