package sched

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Caps keep scores within 64 bits and policies within what a person can read.
const (
	maxThreshold  Milli = 1_000_000_000  // a million
	maxWeight     Milli = 100_000        // 100 per second
	maxTimeout    Milli = 86_400_000     // a day
	maxMinRuntime Milli = 31_536_000_000 // a year
	maxCount            = 1_000_000
	maxPools            = 10_000
	maxRuleValues       = 10_000
	maxNameBytes        = 256
)

// FieldError says what is wrong with one field and what is usual.
type FieldError struct {
	Field   string
	Message string
}

// FieldErrors is a policy's refusal.
type FieldErrors []FieldError

func (e FieldErrors) Error() string {
	parts := make([]string, len(e))
	for i, f := range e {
		parts[i] = f.Field + " " + f.Message
	}
	return strings.Join(parts, "; ")
}

func (e *FieldErrors) add(field, format string, args ...any) {
	*e = append(*e, FieldError{field, fmt.Sprintf(format, args...)})
}

// Validate returns what makes the policy unusable, in a fixed order.
func (p Policy) Validate() []FieldError {
	var errs FieldErrors
	usual := DefaultPolicy()
	for _, f := range milliFields {
		switch v := *f.at(&p); {
		case v < 0:
			errs.add(f.name, "must be 0 or more, not %v; %v is usual", v, *f.at(&usual))
		case v > f.max:
			errs.add(f.name, "must be at most %v, not %v; %v is usual", f.max, v, *f.at(&usual))
		}
	}
	for _, f := range countFields {
		if v := *f.at(&p); v < 0 || v > maxCount {
			errs.add(f.name, "must be between 0 (no limit) and %d, not %d", maxCount, v)
		}
	}
	if p.VictimCoverage != CoverDeficit && p.VictimCoverage != CoverRequest {
		errs.add("victim_coverage", `must be "deficit" (free what is missing) or "request" (free as much as is asked for), not %.80q`, p.VictimCoverage)
	}
	if n := len(p.ProtectedPools); n > maxPools {
		errs.add("protected_pools", "must name at most %d pools, not %d", maxPools, n)
	}
	for _, name := range p.ProtectedPools {
		if why := badName(name); why != "" {
			errs.add("protected_pools", "holds %.80q, which %s", name, why)
		}
	}
	p.validateRules(&errs)
	return errs
}

func (p Policy) validateRules(errs *FieldErrors) {
	const field = "label_preemption_rules"
	values := 0
	for _, key := range slices.Sorted(maps.Keys(p.LabelPreemptionRules)) {
		rule := p.LabelPreemptionRules[key]
		if why := badName(key); why != "" {
			errs.add(field, "has the label key %.80q, which %s", key, why)
		}
		for _, by := range slices.Sorted(maps.Keys(rule)) {
			for _, value := range append([]string{by}, rule[by]...) {
				if values++; badName(value) != "" {
					errs.add(field, "has for %s the value %.80q, which %s", key, value, badName(value))
				}
			}
		}
	}
	if values > maxRuleValues {
		errs.add(field, "must hold at most %d values, not %d", maxRuleValues, values)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(p.LabelPreemptionRules)) {
		switch cycle := findCycle(p.LabelPreemptionRules[key]); len(cycle) {
		case 0:
		case 2:
			errs.add(field, "lets %s %s preempt itself; take it out of its own list", key, cycle[0])
		default:
			errs.add(field, "goes in a circle, so that tasks would evict each other: %s: %s", key, strings.Join(cycle, " → "))
		}
	}
}

func badName(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxNameBytes:
		return fmt.Sprintf("is longer than %d bytes", maxNameBytes)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return "has unprintable characters"
	}
	return ""
}

// findCycle returns a walk that ends where it began, nil when there is none;
// the same one for the same rules.
func findCycle(over map[string][]string) []string {
	const visiting, done = 1, 2
	state := map[string]int{}
	var path []string
	var visit func(string) []string
	visit = func(v string) []string {
		switch state[v] {
		case done:
			return nil
		case visiting:
			return append(slices.Clone(path[slices.Index(path, v):]), v)
		}
		state[v] = visiting
		path = append(path, v)
		for _, w := range over[v] {
			if cycle := visit(w); cycle != nil {
				return cycle
			}
		}
		path = path[:len(path)-1]
		state[v] = done
		return nil
	}
	for _, v := range slices.Sorted(maps.Keys(over)) {
		if cycle := visit(v); cycle != nil {
			return cycle
		}
	}
	return nil
}

// Warnings points at what is allowed but probably not meant: pools and labels
// nobody has, and label keys that can contradict each other. knownLabels is
// key → the values in use. Pass nil for either to leave that check out.
func (p Policy) Warnings(knownPools []string, knownLabels map[string][]string) []string {
	var out []string
	if knownPools != nil {
		for _, name := range p.ProtectedPools {
			if !slices.Contains(knownPools, name) {
				out = append(out, fmt.Sprintf("protected_pools: there is no pool %q", name))
			}
		}
	}
	keys := slices.Sorted(maps.Keys(p.LabelPreemptionRules))
	if knownLabels != nil {
		for _, key := range keys {
			out = append(out, unknownLabels(key, p.LabelPreemptionRules[key], knownLabels)...)
		}
	}
	return append(out, crossingKeys(keys, p.LabelPreemptionRules)...)
}

func unknownLabels(key string, over map[string][]string, known map[string][]string) (out []string) {
	if len(known[key]) == 0 {
		return []string{fmt.Sprintf("label_preemption_rules: no task has the label %q", key)}
	}
	seen := map[string]bool{}
	for by, values := range over {
		seen[by] = true
		for _, v := range values {
			seen[v] = true
		}
	}
	for _, v := range slices.Sorted(maps.Keys(seen)) {
		if !slices.Contains(known[key], v) {
			out = append(out, fmt.Sprintf("label_preemption_rules: no task has the label %s=%s", key, v))
		}
	}
	return out
}

// crossingKeys warns about each pair of neighbouring keys that both rank
// something: one task may be above another by the first and below it by the
// second. All pairs would say the same thing many times.
func crossingKeys(keys []string, rules map[string]map[string][]string) (out []string) {
	type edge struct{ key, by, over string }
	var last *edge
	for _, key := range keys {
		for _, by := range slices.Sorted(maps.Keys(rules[key])) {
			if len(rules[key][by]) == 0 {
				continue
			}
			e := edge{key, by, rules[key][by][0]}
			if last != nil {
				out = append(out, fmt.Sprintf(
					"label_preemption_rules: %s and %s can contradict each other: a task with %s=%s, %s=%s and one with %s=%s, %s=%s may each preempt the other: whichever comes later",
					last.key, key, last.key, last.by, key, e.over, last.key, last.over, key, by))
			}
			last = &e
			break
		}
	}
	return out
}
