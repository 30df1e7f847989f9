package web

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Resources is a vector of whole numbers: memory in MiB, everything else in thousandths.
type Resources map[string]int64

// State is a word of a task's life, as the ledger spells it.
type State string

// The states of a task.
const (
	Queued     State = "queued"
	Reserved   State = "reserved"
	Launching  State = "launching"
	Running    State = "running"
	Stopping   State = "stopping"
	Preempting State = "preempting"
	Preempted  State = "preempted"
	Completed  State = "completed"
	Failed     State = "failed"
	Cancelled  State = "cancelled"
)

// States are all of them in the order of a life.
var States = []State{Queued, Reserved, Launching, Running, Stopping, Preempting, Preempted, Completed, Failed, Cancelled}

// Live says that a task in this state waits, runs or is on its way out.
func (s State) Live() bool { return slices.Contains(States[:6], s) }

// Label is one key=value of a task or pool.
type Label struct{ Key, Value string }

// LabelsOf turns a map into labels sorted by key.
func LabelsOf[M ~map[string]string](m M) []Label {
	out := make([]Label, 0, len(m))
	for k, v := range m {
		out = append(out, Label{k, v})
	}
	slices.SortFunc(out, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

const minus = "−" // the typographic minus, as wide as a figure

// Number writes a whole number with thousands separators: 1284 → "1,284".
func Number[T ~int | ~int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if s[0] == '-' {
		sign, s = minus, s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Count writes a number and its noun: 1 → "1 task", 2 → "2 tasks".
func Count[T ~int | ~int64](n T, noun string) string {
	if n != 1 {
		if strings.HasSuffix(noun, "y") {
			noun = strings.TrimSuffix(noun, "y") + "ies"
		} else {
			noun += "s"
		}
	}
	return Number(n) + " " + noun
}

// Decimal writes a priority, a score or a threshold with one to three decimals: 5 → "5.0", 0.125 → "0.125".
func Decimal(f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return "–"
	}
	s := strconv.FormatFloat(math.Abs(f), 'f', 3, 64)
	s = strings.TrimRight(s, "0")
	if strings.HasSuffix(s, ".") {
		s += "0"
	}
	whole, frac, _ := strings.Cut(s, ".")
	if n, err := strconv.ParseInt(whole, 10, 64); err == nil {
		whole = Number(n)
	}
	s = whole + "." + frac
	if f < 0 && s != "0.0" {
		s = minus + s
	}
	return s
}

// Percent writes a share of one: 0.04 → "4 %". Below one percent it keeps a decimal.
func Percent(share float64) string {
	p := share * 100
	switch {
	case math.IsNaN(p) || math.IsInf(p, 0):
		return "–"
	case p != 0 && math.Abs(p) < 1:
		return signed(strconv.FormatFloat(p, 'f', 1, 64)) + " %"
	}
	return signed(strconv.FormatFloat(p, 'f', 0, 64)) + " %"
}

// Change writes how a figure moved: 73 after 83 → "−12 %"; "" when there is nothing to compare with.
func Change(now, before int) string {
	if before == 0 || now == before {
		return ""
	}
	s := Percent(float64(now-before) / float64(before))
	if now > before {
		s = "+" + s
	}
	return s
}

func signed(s string) string {
	if rest, ok := strings.CutPrefix(s, "-"); ok {
		return minus + rest
	}
	return s
}

// Duration writes a length of time in at most two units: "0.4 ms", "84 ms", "1.2 s", "30 min 31 s", "3 h 5 min", "2 d 4 h".
func Duration(d time.Duration) string {
	if d < 0 {
		return minus + Duration(-d)
	}
	two := func(a int64, unit string, b int64, small string) string {
		if b == 0 {
			return fmt.Sprintf("%d %s", a, unit)
		}
		return fmt.Sprintf("%d %s %d %s", a, unit, b, small)
	}
	switch {
	case d == 0:
		return "0 ms"
	case d < time.Microsecond*100:
		return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 2, 64) + " ms"
	case d < 10*time.Millisecond:
		return strings.TrimSuffix(strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 1, 64), ".0") + " ms"
	case d < time.Second:
		return strconv.FormatInt(d.Round(time.Millisecond).Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strings.TrimSuffix(strconv.FormatFloat(d.Seconds(), 'f', 1, 64), ".0") + " s"
	case d.Round(time.Second) < time.Minute:
		return strconv.FormatInt(int64(d.Round(time.Second)/time.Second), 10) + " s"
	case d.Round(time.Second) < time.Hour:
		s := int64(d.Round(time.Second) / time.Second)
		return two(s/60, "min", s%60, "s")
	case d.Round(time.Minute) < 24*time.Hour:
		m := int64(d.Round(time.Minute) / time.Minute)
		return two(m/60, "h", m%60, "min")
	}
	h := int64(d.Round(time.Hour) / time.Hour)
	return two(h/24, "d", h%24, "h")
}

// Brief writes a length of time in one unit, rounded down: "12 s", "3 h".
func Brief(d time.Duration) string {
	switch {
	case d < 0:
		return minus + Brief(-d)
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d d", d/(24*time.Hour))
}

// Ago writes when something was, seen from now: "just now", "12 s ago", "in 5 min", and a date from a week on.
func Ago(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero():
		return "–"
	case d > 7*24*time.Hour, d < -7*24*time.Hour:
		return t.Format("2 Jan 2006")
	case d < -time.Second:
		return "in " + Brief(-d)
	case d < time.Second:
		return "just now"
	}
	return Brief(d) + " ago"
}

// Clock writes a time of day, with the date when it is not today's.
func Clock(t, now time.Time) string {
	if t.IsZero() {
		return "–"
	}
	t = t.In(now.Location())
	if t.Year() == now.Year() && t.YearDay() == now.YearDay() {
		return t.Format("15:04:05")
	}
	return t.Format("2 Jan 15:04")
}

// Stamp writes a moment in full, with its zone.
func Stamp(t time.Time) string { return t.Format("2 Jan 2006 15:04:05 MST") }

// ISO writes a moment for <time datetime>.
func ISO(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Bytes writes a size: 412000 → "402 KiB".
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		f /= 1024
		if f < 1024 {
			break
		}
	}
	return trimmed(f) + " " + unit
}

// trimmed writes f with one decimal while it is small and that decimal says something.
func trimmed(f float64) string {
	if f >= 100 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
}

// Amount writes one resource without its name: cpu 500 → "0.5", memory 524288 → "512 GiB".
func Amount(resource string, n int64) string {
	if n < 0 {
		return minus + Amount(resource, -n)
	}
	if resource == "memory" {
		switch {
		case n >= 1<<20 && n%(1<<20) == 0:
			return Number(n>>20) + " TiB"
		case n >= 1024:
			f := float64(n) / 1024
			if f >= 1000 {
				return Number(int64(f)) + " GiB"
			}
			return trimmed(f) + " GiB"
		}
		return Number(n) + " MiB"
	}
	whole, frac := n/1000, n%1000
	if frac == 0 {
		return Number(whole)
	}
	return Number(whole) + "." + strings.TrimRight(fmt.Sprintf("%03d", frac), "0")
}

// memoryIn chooses the unit that suits largest, in MiB, and writes amounts in it without its name.
func memoryIn(largest int64) (write func(int64) string, unit string) {
	for _, u := range []struct {
		name string
		mib  int64
	}{{" TiB", 1 << 20}, {" GiB", 1 << 10}} {
		if largest >= u.mib {
			return func(n int64) string {
				f := float64(n) / float64(u.mib)
				if f >= 1000 {
					return Number(int64(f))
				}
				return trimmed(f)
			}, u.name
		}
	}
	return Number[int64], " MiB"
}

// ResourceName writes a resource for a heading: cpu → "CPU".
func ResourceName(resource string) string {
	switch resource {
	case "cpu", "gpu":
		return strings.ToUpper(resource)
	case "memory":
		return "Memory"
	}
	return resource
}

// ResourceNames gives the names in a vector as people list them: gpu, cpu, memory, then by name.
func (r Resources) Names() []string {
	names := make([]string, 0, len(r))
	for n := range r {
		names = append(names, n)
	}
	slices.SortFunc(names, CompareResources)
	return names
}

// CompareResources orders resource names: gpu, cpu, memory, then by name.
func CompareResources(a, b string) int {
	rank := func(s string) int {
		switch s {
		case "gpu":
			return 0
		case "cpu":
			return 1
		case "memory":
			return 2
		}
		return 3
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
}

// String writes a vector: "8 gpu · 64 cpu · 512 GiB". What is zero is left out; an empty vector is "nothing".
func (r Resources) String() string {
	var parts []string
	for _, n := range r.Names() {
		switch {
		case r[n] == 0:
		case n == "memory":
			parts = append(parts, Amount(n, r[n]))
		default:
			parts = append(parts, Amount(n, r[n])+" "+n)
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, " · ")
}

// Short writes a vector without its memory, unless there is nothing else: what a narrow column has room for.
func (r Resources) Short() string {
	if len(r) > 1 && r["memory"] != 0 {
		less := maps.Clone(r)
		delete(less, "memory")
		if s := less.String(); s != "nothing" {
			return s
		}
	}
	return r.String()
}

// Cut shortens text to at most n runes with an ellipsis. It looks at no more of s than it keeps.
func Cut(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "�")
	}
	i, end := 0, 0
	for count := 0; i < len(s); count++ {
		if count == n-1 {
			end = i
		}
		if count == n {
			return strings.ToValidUTF8(s[:end], "�") + "…"
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	return strings.ToValidUTF8(s, "�")
}

// CutBytes shortens text to about n bytes at a rune's edge and says how many bytes were left out.
func CutBytes(s string, n int) (kept string, left int) {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "�"), 0
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.ToValidUTF8(s[:n], "�"), len(s) - n
}
