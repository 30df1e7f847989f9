package sched

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// UnmarshalJSON reads a whole policy strictly; fields left out have their defaults.
func (p *Policy) UnmarshalJSON(data []byte) error {
	fresh, err := DefaultPolicy().replace(data, nil)
	if err != nil {
		return err
	}
	*p = fresh
	return nil
}

// ParsePolicy reads a whole policy as a person sends it: as Patch does, with
// the defaults for what is left out.
func ParsePolicy(data []byte) (Policy, []string, error) { return DefaultPolicy().Patch(data) }

// Patch returns the policy with the given fields replaced, each as a whole. It
// also takes preemption_aggressiveness, which sets two thresholds unless they
// are given themselves; an unknown word changes nothing and is a warning. The
// result is valid, or the error is FieldErrors naming every field at fault.
func (p Policy) Patch(data []byte) (Policy, []string, error) {
	var warnings []string
	next, err := p.replace(data, &warnings)
	return next, warnings, err
}

// replace does the work of Patch; with warnings nil only fields of the policy
// itself are taken.
func (p Policy) replace(data []byte, warnings *[]string) (Policy, error) {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(data, &given); err != nil || given == nil {
		return p, FieldErrors{{"policy", "must be a JSON object"}}
	}
	next, errs := p, FieldErrors{}
	if word, ok := given["preemption_aggressiveness"]; ok && warnings != nil {
		delete(given, "preemption_aggressiveness")
		if warning := next.setAggressiveness(word); warning != "" {
			*warnings = append(*warnings, warning)
		}
	}
	for _, f := range milliFields {
		if raw, ok := take(given, f.name); ok {
			*f.at(&next) = readMilli(raw, f.name, &errs)
		}
	}
	for _, f := range countFields {
		if raw, ok := take(given, f.name); ok {
			*f.at(&next) = readCount(raw, f.name, &errs)
		}
	}
	for _, f := range boolFields {
		if raw, ok := take(given, f.name); ok {
			read(raw, f.name, "true or false", f.at(&next), &errs)
		}
	}
	if raw, ok := take(given, "protected_pools"); ok {
		next.ProtectedPools = []string{}
		read(raw, "protected_pools", "a list of pool names", &next.ProtectedPools, &errs)
	}
	if raw, ok := take(given, "label_preemption_rules"); ok {
		next.LabelPreemptionRules = map[string]map[string][]string{}
		read(raw, "label_preemption_rules", `an object like {"tier": {"premium": ["standard"]}}`, &next.LabelPreemptionRules, &errs)
	}
	if raw, ok := take(given, "victim_coverage"); ok {
		read(raw, "victim_coverage", `"deficit" or "request"`, &next.VictimCoverage, &errs)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		errs.add(name, "is not a field of a policy")
	}
	if len(errs) == 0 {
		errs = next.Validate()
	}
	if len(errs) > 0 {
		return p, errs
	}
	return next, nil
}

func take(given map[string]json.RawMessage, name string) (json.RawMessage, bool) {
	raw, ok := given[name]
	delete(given, name)
	return raw, ok
}

// read decodes one field. null is refused: it would silently mean "unchanged".
func read[T any](raw json.RawMessage, field, want string, into *T, errs *FieldErrors) bool {
	if string(raw) != "null" && json.Unmarshal(raw, into) == nil {
		return true
	}
	errs.add(field, "must be %s, not %.80s; leave it out to keep what it is", want, raw)
	return false
}

func readMilli(raw json.RawMessage, field string, errs *FieldErrors) Milli {
	var f float64
	if !read(raw, field, "a number", &f, errs) {
		return 0
	}
	m, err := MilliFromFloat(f)
	switch {
	case err != nil:
		errs.add(field, "is far too large: %s", raw)
	case m.Float() != f:
		// Rounding 0.0004 to 0 would switch a weight off without a word.
		errs.add(field, "must be in thousandths; %s lies between two of them, %v is the nearest", raw, m.Float())
	}
	return m
}

func readCount(raw json.RawMessage, field string, errs *FieldErrors) int {
	var f float64
	if !read(raw, field, "a whole number", &f, errs) {
		return 0
	}
	if f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		errs.add(field, "must be a whole number, not %s", raw)
		return 0
	}
	return int(f)
}

// setAggressiveness sets the thresholds a word stands for.
func (p *Policy) setAggressiveness(raw json.RawMessage) (warning string) {
	var word string
	if json.Unmarshal(raw, &word) != nil {
		word = string(raw)
	}
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "high", "urgent", "critical", "prod":
		p.LabelPriorityThreshold, p.SamePoolPriorityThreshold = 100, 500
	case "medium", "default", "normal":
		p.LabelPriorityThreshold, p.SamePoolPriorityThreshold = 500, 1_000
	case "low", "background", "batch":
		p.LabelPriorityThreshold, p.SamePoolPriorityThreshold = 1_000, 3_000
	case "":
		return "preemption_aggressiveness is empty: no threshold was changed"
	default:
		return fmt.Sprintf("preemption_aggressiveness %.80q is none of high, medium, low or their aliases: no threshold was changed", word)
	}
	return ""
}
