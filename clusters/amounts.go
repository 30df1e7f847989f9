package clusters

import (
	"fmt"
	"math"
	"strings"

	"github.com/schedulemesh/schedulemesh/sched"
)

func (r *specReader) resources(v *value) sched.Resources {
	if v.kind != isObject {
		r.bad(v, "max_resources", "must be a map such as {CPU: 64, GPU: 8, memory: 256}, memory in GiB, not %s", v.say())
		return sched.Resources{}
	}
	given := make(map[string]float64, len(v.pairs))
	for _, p := range v.pairs {
		f, err := p.value.number.Float64()
		if p.value.kind != isNumber || err != nil {
			r.bad(p.value, "max_resources."+p.key, "must be a number of 0 or more, not %s", p.value.say())
			return sched.Resources{}
		}
		if !p.value.finite {
			f = math.NaN()
		}
		given[p.key] = f
	}
	most, field, why := FromRay(given)
	if why != "" {
		r.bad(v.find([]any{field}), "max_resources."+field, "%s", why)
	}
	return most
}

// FromRay converts amounts as users of Ray give them, CPU, GPU, memory in GiB and custom names. What is wrong is
// the name and a sentence that goes on after it.
func FromRay(given map[string]float64) (amounts sched.Resources, name, why string) {
	units, said := make(map[string]float64, len(given)), make(map[string]string, len(given))
	for _, name := range sortedKeys(given) {
		ours, v := name, given[name]
		switch lower := strings.ToLower(name); lower {
		case "cpu", "gpu", "memory":
			ours = lower
		}
		if ours == "memory" {
			v *= 1024
		}
		if _, twice := units[ours]; twice {
			return sched.Resources{}, name, "is given twice, in capitals and not; leave one out"
		}
		units[ours], said[ours] = v, name
	}
	amounts, err := sched.FromUnits(units)
	if bad, ok := err.(*sched.ResourceError); ok {
		return sched.Resources{}, said[bad.Name], fmt.Sprintf("is %v, which %s", given[said[bad.Name]], bad.Reason)
	}
	return amounts, "", ""
}

// ToRay is the inverse of FromRay.
func ToRay(amounts sched.Resources) map[string]float64 {
	out := map[string]float64{}
	for name, v := range amounts.Units() {
		switch name {
		case "cpu", "gpu":
			out[strings.ToUpper(name)] = v
		case "memory":
			out[name] = v / 1024
		default:
			out[name] = v
		}
	}
	return out
}
