package sched

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The three resources every pool talks about; any other name is a custom one.
const (
	nameCPU    = "cpu"
	nameGPU    = "gpu"
	nameMemory = "memory"
)

// Resources is a vector of amounts: a request, a capacity, what is missing.
// It is a value: no method changes its receiver, and two vectors may share Other.
type Resources struct {
	CPU    int64 // thousandths of a core
	GPU    int64 // thousandths of a card
	Memory int64 // MiB
	// Other holds custom resources in thousandths: sorted by name, no zero
	// amounts, nil when there are none. Never change it in place.
	Other []Amount
}

// Amount is one custom resource.
type Amount struct {
	Name  string
	Value int64 // thousandths
}

// Get returns one amount; 0 for a resource that is not there.
func (r Resources) Get(name string) int64 {
	switch name {
	case nameCPU:
		return r.CPU
	case nameGPU:
		return r.GPU
	case nameMemory:
		return r.Memory
	}
	if i, ok := r.find(name); ok {
		return r.Other[i].Value
	}
	return 0
}

// With returns a copy in which one amount is v.
func (r Resources) With(name string, v int64) Resources {
	switch name {
	case nameCPU:
		r.CPU = v
		return r
	case nameGPU:
		r.GPU = v
		return r
	case nameMemory:
		r.Memory = v
		return r
	}
	i, ok := r.find(name)
	switch {
	case ok && v == 0:
		r.Other = slices.Concat(r.Other[:i], r.Other[i+1:])
	case ok:
		r.Other = slices.Clone(r.Other)
		r.Other[i].Value = v
	case v != 0:
		r.Other = slices.Concat(r.Other[:i], []Amount{{name, v}}, r.Other[i:])
	}
	return r
}

func (r Resources) find(name string) (int, bool) {
	return slices.BinarySearchFunc(r.Other, name, func(a Amount, name string) int {
		return strings.Compare(a.Name, name)
	})
}

// Add returns r + o.
func (r Resources) Add(o Resources) Resources {
	return zip(r, o, func(x, y int64) int64 { return x + y })
}

// Sub returns r − o, which may be negative.
func (r Resources) Sub(o Resources) Resources {
	return zip(r, o, func(x, y int64) int64 { return x - y })
}

// Min returns the smaller amount of each resource.
func (r Resources) Min(o Resources) Resources {
	return zip(r, o, func(x, y int64) int64 { return min(x, y) })
}

// Max returns the larger amount of each resource.
func (r Resources) Max(o Resources) Resources {
	return zip(r, o, func(x, y int64) int64 { return max(x, y) })
}

// Positive returns r with negative amounts replaced by nothing.
func (r Resources) Positive() Resources { return r.Max(Resources{}) }

// Neg returns −r.
func (r Resources) Neg() Resources { return Resources{}.Sub(r) }

// Lacking returns what must be added to r so that it covers o: only resources
// that o asks for can be lacking, however negative r is in others.
func (r Resources) Lacking(o Resources) Resources {
	return zip(r, o, func(have, want int64) int64 {
		if want <= 0 {
			return 0
		}
		return max(want-have, 0)
	})
}

// Covers reports whether r has at least what o asks for. What o does not ask
// for (zero or negative) never matters.
func (r Resources) Covers(o Resources) bool {
	if o.CPU > 0 && r.CPU < o.CPU || o.GPU > 0 && r.GPU < o.GPU || o.Memory > 0 && r.Memory < o.Memory {
		return false
	}
	for _, a := range o.Other {
		if a.Value > 0 && r.Get(a.Name) < a.Value {
			return false
		}
	}
	return true
}

// Intersects reports whether some resource is positive in both.
func (r Resources) Intersects(o Resources) bool {
	if r.CPU > 0 && o.CPU > 0 || r.GPU > 0 && o.GPU > 0 || r.Memory > 0 && o.Memory > 0 {
		return true
	}
	for _, a := range o.Other {
		if a.Value > 0 && r.Get(a.Name) > 0 {
			return true
		}
	}
	return false
}

// IsZero reports whether every amount is zero.
func (r Resources) IsZero() bool {
	return r.CPU == 0 && r.GPU == 0 && r.Memory == 0 && len(r.Other) == 0
}

// Equal reports whether both hold the same amounts.
func (r Resources) Equal(o Resources) bool {
	return r.CPU == o.CPU && r.GPU == o.GPU && r.Memory == o.Memory && slices.Equal(r.Other, o.Other)
}

// Each calls f for every amount that is not zero: cpu, gpu, memory, then the
// others by name.
func (r Resources) Each(f func(name string, v int64)) {
	if r.CPU != 0 {
		f(nameCPU, r.CPU)
	}
	if r.GPU != 0 {
		f(nameGPU, r.GPU)
	}
	if r.Memory != 0 {
		f(nameMemory, r.Memory)
	}
	for _, a := range r.Other {
		f(a.Name, a.Value)
	}
}

// Key identifies the shape: equal vectors, and only they, have equal keys.
func (r Resources) Key() string { return string(r.AppendJSON(nil)) }

// String is for people: "2 cpu · 0.5 gpu · 4096 MiB memory".
func (r Resources) String() string {
	if r.IsZero() {
		return "nothing"
	}
	var parts []string
	r.Each(func(name string, v int64) { parts = append(parts, amountString(name, v)) })
	return strings.Join(parts, " · ")
}

// of writes r's amounts of the resources that o asks for, zeros included:
// "0 gpu" where String would say nothing.
func (r Resources) of(o Resources) string {
	var parts []string
	o.Each(func(name string, v int64) {
		if v > 0 {
			parts = append(parts, amountString(name, max(r.Get(name), 0)))
		}
	})
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, " · ")
}

func amountString(name string, v int64) string {
	if name == nameMemory {
		return fmt.Sprintf("%d MiB memory", v)
	}
	return string(appendFixed(nil, v, 1000, 0)) + " " + name
}

// ResourceError says which amount of a request cannot be used, and why.
type ResourceError struct {
	Name   string
	Value  float64 // as given
	Reason string
}

func (e *ResourceError) Error() string {
	return fmt.Sprintf("resource %q: %v %s", e.Name, e.Value, e.Reason)
}

// FromUnits converts amounts as people give them (cores, cards, MiB of memory,
// units of anything else), rounding up to the grid: a task never gets less than
// it asked for. The error is a *ResourceError.
func FromUnits(units map[string]float64) (Resources, error) {
	names := make([]string, 0, len(units))
	for name := range units {
		names = append(names, name)
	}
	slices.Sort(names) // the same input is always refused for the same reason
	var r Resources
	for _, name := range names {
		v, reason := onGrid(name, units[name])
		if reason != "" {
			return Resources{}, &ResourceError{Name: name, Value: units[name], Reason: reason}
		}
		switch name {
		case nameCPU:
			r.CPU = v
		case nameGPU:
			r.GPU = v
		case nameMemory:
			r.Memory = v
		default:
			if v != 0 {
				r.Other = append(r.Other, Amount{name, v})
			}
		}
	}
	return r, nil
}

func onGrid(name string, units float64) (v int64, refusal string) {
	scale := 1000.0
	if name == nameMemory {
		scale = 1
	}
	switch {
	case name == "":
		return 0, "has no resource name"
	case len(name) > 256:
		return 0, "has a resource name longer than 256 bytes"
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return 0, "has a resource name with unprintable characters"
	case math.IsNaN(units) || math.IsInf(units, 0):
		return 0, "is not a number; give an amount of 0 or more"
	case units < 0:
		return 0, "is negative; give an amount of 0 or more"
	case units*scale > maxFixed:
		return 0, fmt.Sprintf("is too large; the most is %v", maxFixed/scale)
	}
	// The test is made in units: 1.1 × 1000 is a hair above 1100 in binary, but
	// 1100 thousandths are exactly what 1.1 names.
	n := math.Round(units * scale)
	if n/scale < units {
		n++
	}
	return int64(n), ""
}

// Units is the inverse of FromUnits; amounts of zero are left out.
func (r Resources) Units() map[string]float64 {
	units := make(map[string]float64, 3+len(r.Other))
	r.Each(func(name string, v int64) {
		if name == nameMemory {
			units[name] = float64(v)
		} else {
			units[name] = float64(v) / 1000
		}
	})
	return units
}

// zip combines two vectors resource by resource; f(0, 0) must be 0.
func zip(r, o Resources, f func(x, y int64) int64) Resources {
	z := Resources{CPU: f(r.CPU, o.CPU), GPU: f(r.GPU, o.GPU), Memory: f(r.Memory, o.Memory)}
	if len(r.Other) > 0 || len(o.Other) > 0 {
		z.Other = zipOther(r.Other, o.Other, f)
	}
	return z
}

// zipOther merges two sorted lists; a name missing on one side is 0 there.
func zipOther(a, b []Amount, f func(x, y int64) int64) []Amount {
	var out []Amount
	for len(a) > 0 || len(b) > 0 {
		var name string
		var x, y int64
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			name, x, a = a[0].Name, a[0].Value, a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			name, y, b = b[0].Name, b[0].Value, b[1:]
		default:
			name, x, y, a, b = a[0].Name, a[0].Value, b[0].Value, a[1:], b[1:]
		}
		if v := f(x, y); v != 0 {
			out = append(out, Amount{name, v})
		}
	}
	return out
}
