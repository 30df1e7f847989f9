package sched

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Coverage says what victims must free together.
type Coverage string

const (
	// CoverDeficit asks for what is missing: request − free.
	CoverDeficit Coverage = "deficit"
	// CoverRequest asks for the whole request once anything is missing.
	CoverRequest Coverage = "request"
)

// Policy decides who may preempt whom. Treat it as immutable: Patch makes a
// new one. Numbers travel as plain JSON numbers and are thousandths inside.
type Policy struct {
	// SamePoolPriorityThreshold is the least priority difference within a pool.
	SamePoolPriorityThreshold Milli `json:"same_pool_priority_threshold"`
	// CrossPoolPriorityThreshold is the least priority difference between pools.
	CrossPoolPriorityThreshold Milli `json:"cross_pool_priority_threshold"`
	// RemainingTimeWeight is κ: score per second a victim still has to run.
	RemainingTimeWeight Milli `json:"remaining_time_weight"`
	// MinPreemptScore is the least score of a victim.
	MinPreemptScore Milli `json:"min_preempt_score"`
	// EnableCrossPoolPreemption switches rule 3, and loans made by it.
	EnableCrossPoolPreemption bool `json:"enable_cross_pool_preemption"`
	// ProtectedPools lose nothing to other pools.
	ProtectedPools []string `json:"protected_pools"`
	// LabelPreemptionRules is key → value → the values it may preempt. Only
	// what is written counts: premium > standard and standard > batch do not
	// make premium > batch.
	LabelPreemptionRules map[string]map[string][]string `json:"label_preemption_rules"`
	// LabelPriorityThreshold is the least score base of a victim by label.
	LabelPriorityThreshold Milli `json:"label_priority_threshold"`
	// EnableLabelPreemption switches label rules, and the rank they give.
	EnableLabelPreemption bool `json:"enable_label_preemption"`
	// CancelTimeout is how long a victim may take to stop, in seconds.
	CancelTimeout Milli `json:"cancel_timeout"`
	// SaveTimeout is how long a victim may take to save its state, in seconds.
	SaveTimeout Milli `json:"save_timeout"`
	// VictimCoverage is what victims must free together.
	VictimCoverage Coverage `json:"victim_coverage"`
	// MinRuntimeSeconds is how long a task is safe after it started.
	MinRuntimeSeconds Milli `json:"min_runtime_seconds"`
	// MaxPreemptionsPerMinute makes a pool safe once it lost that many tasks
	// within a minute; 0 = no limit. It is asked when a decision begins: one
	// decision is never cut in half.
	MaxPreemptionsPerMinute int `json:"max_preemptions_per_minute"`
	// MaxPreemptionsPerTask makes a task safe once it was preempted that often;
	// 0 = no limit.
	MaxPreemptionsPerTask int `json:"max_preemptions_per_task"`
	// AgeingWeight is reserved for the order of queued tasks.
	AgeingWeight Milli `json:"ageing_weight"`
}

// DefaultPolicy is what a new namespace starts with.
func DefaultPolicy() Policy {
	return Policy{
		SamePoolPriorityThreshold:  1_000,
		CrossPoolPriorityThreshold: 5_000,
		RemainingTimeWeight:        100,
		MinPreemptScore:            500,
		EnableCrossPoolPreemption:  true,
		ProtectedPools:             []string{},
		LabelPreemptionRules:       map[string]map[string][]string{},
		LabelPriorityThreshold:     500,
		EnableLabelPreemption:      true,
		CancelTimeout:              5_000,
		SaveTimeout:                60_000,
		VictimCoverage:             CoverDeficit,
	}
}

// The fields by type, so that reading, validating and comparing are each said
// once. Names are the JSON names above; a test keeps the two in step.
var (
	milliFields = []struct {
		name string
		at   func(*Policy) *Milli
		max  Milli
	}{
		{"same_pool_priority_threshold", func(p *Policy) *Milli { return &p.SamePoolPriorityThreshold }, maxThreshold},
		{"cross_pool_priority_threshold", func(p *Policy) *Milli { return &p.CrossPoolPriorityThreshold }, maxThreshold},
		{"remaining_time_weight", func(p *Policy) *Milli { return &p.RemainingTimeWeight }, maxWeight},
		{"min_preempt_score", func(p *Policy) *Milli { return &p.MinPreemptScore }, maxThreshold},
		{"label_priority_threshold", func(p *Policy) *Milli { return &p.LabelPriorityThreshold }, maxThreshold},
		{"cancel_timeout", func(p *Policy) *Milli { return &p.CancelTimeout }, maxTimeout},
		{"save_timeout", func(p *Policy) *Milli { return &p.SaveTimeout }, maxTimeout},
		{"min_runtime_seconds", func(p *Policy) *Milli { return &p.MinRuntimeSeconds }, maxMinRuntime},
		{"ageing_weight", func(p *Policy) *Milli { return &p.AgeingWeight }, maxWeight},
	}
	boolFields = []struct {
		name string
		at   func(*Policy) *bool
	}{
		{"enable_cross_pool_preemption", func(p *Policy) *bool { return &p.EnableCrossPoolPreemption }},
		{"enable_label_preemption", func(p *Policy) *bool { return &p.EnableLabelPreemption }},
	}
	countFields = []struct {
		name string
		at   func(*Policy) *int
	}{
		{"max_preemptions_per_minute", func(p *Policy) *int { return &p.MaxPreemptionsPerMinute }},
		{"max_preemptions_per_task", func(p *Policy) *int { return &p.MaxPreemptionsPerTask }},
	}
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
