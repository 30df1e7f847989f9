package sched

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Change is one field that differs between two policies, as text for people.
type Change struct {
	Field string // label rules are listed by key: label_preemption_rules.tier
	Old   string
	New   string
}

// Diff lists what differs, in the order of the fields.
func Diff(old, new Policy) []Change {
	var out []Change
	note := func(field, o, n string) {
		if o != n {
			out = append(out, Change{field, o, n})
		}
	}
	for _, f := range milliFields {
		note(f.name, f.at(&old).String(), f.at(&new).String())
	}
	for _, f := range boolFields {
		note(f.name, onOff(*f.at(&old)), onOff(*f.at(&new)))
	}
	for _, f := range countFields {
		note(f.name, limit(*f.at(&old)), limit(*f.at(&new)))
	}
	note("victim_coverage", string(old.VictimCoverage), string(new.VictimCoverage))
	note("protected_pools", list(old.ProtectedPools), list(new.ProtectedPools))
	keys := map[string]bool{}
	for _, p := range []Policy{old, new} {
		for key := range p.LabelPreemptionRules {
			keys[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		note("label_preemption_rules."+key, ranking(old.LabelPreemptionRules[key]), ranking(new.LabelPreemptionRules[key]))
	}
	return out
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func limit(n int) string {
	if n == 0 {
		return "no limit"
	}
	return strconv.Itoa(n)
}

// list is independent of order and repetition, which mean nothing here.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), ", ")
}

func ranking(over map[string][]string) string {
	var parts []string
	for _, by := range slices.Sorted(maps.Keys(over)) {
		if len(over[by]) > 0 {
			parts = append(parts, by+" > "+list(over[by]))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, "; ")
}
