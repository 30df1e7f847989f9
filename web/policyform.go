package web

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// RuleRow is one row of the label rules: tasks whose label Key is Value may preempt those where it is one of Over.
type RuleRow struct{ Key, Value, Over string }

// PolicyForm is the policy editor as typed.
type PolicyForm struct {
	Values map[string]string // by the field names of PolicyDoc
	Rules  []RuleRow
	Text   string // of the YAML or JSON tab
	IsText bool   // the text is what counts

	Errors   Errors
	Warnings []string
	Pools    []string // to suggest for protection
}

// aggressiveness gives a word two thresholds: label, same pool.
var aggressiveness = []struct {
	Name        string
	Label, Same float64
}{{"high", 0.1, 0.5}, {"medium", 0.5, 1}, {"low", 1, 3}}

// Aggressiveness is the word for a policy's two thresholds, "custom" when there is none.
func (d PolicyDoc) Aggressiveness() string {
	for _, a := range aggressiveness {
		if a.Label == d.LabelPriorityThreshold && a.Same == d.SamePoolPriorityThreshold {
			return a.Name
		}
	}
	return "custom"
}

func plainFloat(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// Form writes a policy into the editor.
func (d PolicyDoc) Form() PolicyForm {
	f := PolicyForm{Values: map[string]string{
		"aggressiveness":                d.Aggressiveness(),
		"same_pool_priority_threshold":  plainFloat(d.SamePoolPriorityThreshold),
		"cross_pool_priority_threshold": plainFloat(d.CrossPoolPriorityThreshold),
		"label_priority_threshold":      plainFloat(d.LabelPriorityThreshold),
		"remaining_time_weight":         plainFloat(d.RemainingTimeWeight),
		"min_preempt_score":             plainFloat(d.MinPreemptScore),
		"cancel_timeout":                plainFloat(d.CancelTimeout),
		"save_timeout":                  plainFloat(d.SaveTimeout),
		"victim_coverage":               d.VictimCoverage,
		"min_runtime_seconds":           plainFloat(d.MinRuntimeSeconds),
		"max_preemptions_per_minute":    strconv.Itoa(d.MaxPreemptionsPerMinute),
		"max_preemptions_per_task":      strconv.Itoa(d.MaxPreemptionsPerTask),
		"ageing_weight":                 plainFloat(d.AgeingWeight),
		"protected_pools":               joined(d.ProtectedPools),
	}}
	if d.EnableCrossPoolPreemption {
		f.Values["enable_cross_pool_preemption"] = "on"
	}
	if d.EnableLabelPreemption {
		f.Values["enable_label_preemption"] = "on"
	}
	for _, key := range slices.Sorted(maps.Keys(d.LabelPreemptionRules)) {
		for _, value := range slices.Sorted(maps.Keys(d.LabelPreemptionRules[key])) {
			f.Rules = append(f.Rules, RuleRow{key, value, joined(d.LabelPreemptionRules[key][value])})
		}
	}
	f.Text = d.YAML()
	return f
}

func joined(items []string) string {
	out := make([]string, len(items))
	for i, s := range items {
		out[i] = quoted(s)
	}
	return strings.Join(out, ", ")
}

// Fields are the names of the editor's fields, as it is open.
func (f PolicyForm) Fields() []string {
	if f.IsText {
		return []string{"text"}
	}
	return append(slices.Collect(maps.Keys(f.Values)), "label_preemption_rules")
}

// ReadPolicyForm takes what was posted.
func ReadPolicyForm(v url.Values) PolicyForm {
	f := PolicyForm{Values: map[string]string{}, Text: v.Get("text"), IsText: v.Get("format") == "text"}
	for k := range DefaultPolicy().Form().Values {
		f.Values[k] = strings.TrimSpace(v.Get(k))
	}
	for i := range min(len(v["rule_key"]), len(v["rule_value"]), len(v["rule_over"]), 1000) {
		row := RuleRow{strings.TrimSpace(v["rule_key"][i]), strings.TrimSpace(v["rule_value"][i]), strings.TrimSpace(v["rule_over"][i])}
		if row != (RuleRow{}) {
			f.Rules = append(f.Rules, row)
		}
	}
	return f
}

// Parse checks and converts the editor's content. A word of aggressiveness sets the thresholds that
// were left as they are in the active policy; those typed over win.
func (f PolicyForm) Parse(active PolicyDoc) (PolicyDoc, Errors) {
	if f.IsText {
		d, problem := ParsePolicy(f.Text)
		if problem != "" {
			return d, Errors{"text": problem}
		}
		return d, d.check()
	}
	e := Errors{}
	num := func(k string) float64 {
		if f.Values[k] == "" {
			e.Add(k, "It is empty; %s is usual.", DefaultPolicy().Form().Values[k])
			return 0
		}
		return decimal(e, k, f.Values[k])
	}
	d := PolicyDoc{
		SamePoolPriorityThreshold:  num("same_pool_priority_threshold"),
		CrossPoolPriorityThreshold: num("cross_pool_priority_threshold"),
		LabelPriorityThreshold:     num("label_priority_threshold"),
		RemainingTimeWeight:        num("remaining_time_weight"),
		MinPreemptScore:            num("min_preempt_score"),
		EnableCrossPoolPreemption:  f.Values["enable_cross_pool_preemption"] != "",
		EnableLabelPreemption:      f.Values["enable_label_preemption"] != "",
		ProtectedPools:             list(e, "protected_pools", f.Values["protected_pools"]),
		CancelTimeout:              num("cancel_timeout"),
		SaveTimeout:                num("save_timeout"),
		VictimCoverage:             f.Values["victim_coverage"],
		MinRuntimeSeconds:          num("min_runtime_seconds"),
		AgeingWeight:               num("ageing_weight"),
		MaxPreemptionsPerMinute:    whole(e, "max_preemptions_per_minute", f.Values["max_preemptions_per_minute"]),
		MaxPreemptionsPerTask:      whole(e, "max_preemptions_per_task", f.Values["max_preemptions_per_task"]),
	}
	for _, a := range aggressiveness {
		if a.Name != f.Values["aggressiveness"] {
			continue
		}
		if d.LabelPriorityThreshold == active.LabelPriorityThreshold {
			d.LabelPriorityThreshold = a.Label
		}
		if d.SamePoolPriorityThreshold == active.SamePoolPriorityThreshold {
			d.SamePoolPriorityThreshold = a.Same
		}
	}
	d.LabelPreemptionRules = map[string]map[string][]string{}
	for i, row := range f.Rules {
		over := list(e, "label_preemption_rules", row.Over)
		switch {
		case row.Key == "" || row.Value == "" || len(over) == 0:
			e.Add("label_preemption_rules", "Rule %d is incomplete: it needs a label, a value and whom that value may preempt.", i+1)
			continue
		case d.LabelPreemptionRules[row.Key] == nil:
			d.LabelPreemptionRules[row.Key] = map[string][]string{}
		case d.LabelPreemptionRules[row.Key][row.Value] != nil:
			e.Add("label_preemption_rules", "%s %s has two rules; put both in one.", Cut(row.Key, 40), Cut(row.Value, 40))
		}
		d.LabelPreemptionRules[row.Key][row.Value] = over
	}
	for field, message := range d.check() {
		e.Add(field, "%s", message)
	}
	return d, e
}

// check finds what is wrong with the values themselves.
func (d PolicyDoc) check() Errors {
	e := Errors{}
	for _, n := range []struct {
		field string
		value float64
		usual string
	}{
		{"same_pool_priority_threshold", d.SamePoolPriorityThreshold, "1.0"},
		{"cross_pool_priority_threshold", d.CrossPoolPriorityThreshold, "5.0"},
		{"label_priority_threshold", d.LabelPriorityThreshold, "0.5"},
		{"remaining_time_weight", d.RemainingTimeWeight, "0.1"},
		{"min_preempt_score", d.MinPreemptScore, "0.5"},
		{"cancel_timeout", d.CancelTimeout, "5"},
		{"save_timeout", d.SaveTimeout, "60"},
		{"min_runtime_seconds", d.MinRuntimeSeconds, "0"},
		{"ageing_weight", d.AgeingWeight, "0"},
		{"max_preemptions_per_minute", float64(d.MaxPreemptionsPerMinute), "0 (no limit)"},
		{"max_preemptions_per_task", float64(d.MaxPreemptionsPerTask), "0 (no limit)"},
	} {
		if n.value < 0 {
			e.Add(n.field, "Must be 0 or more; %s is usual.", n.usual)
		}
	}
	oneOf(e, "victim_coverage", d.VictimCoverage, "deficit", "request")
	for _, key := range slices.Sorted(maps.Keys(d.LabelPreemptionRules)) {
		if loop := cycle(d.LabelPreemptionRules[key]); len(loop) > 0 {
			e.Add("label_preemption_rules", "The rules of %s go round in a circle: %s. Such tasks would evict each other for ever; remove one of them.",
				Cut(key, 40), strings.Join(loop, " ≻ "))
		}
	}
	return e
}

// cycle gives the values along one circle of a label's rules, the first one again at the end; nil when there is none.
func cycle(rules map[string][]string) []string {
	const inWork, done = 1, 2
	mark := map[string]int{}
	var path []string
	var visit func(string) []string
	visit = func(v string) []string {
		mark[v] = inWork
		path = append(path, v)
		for _, next := range slices.Sorted(slices.Values(rules[v])) {
			if mark[next] == inWork {
				return append(slices.Clone(path[slices.Index(path, next):]), next)
			}
			if mark[next] == 0 {
				if loop := visit(next); loop != nil {
					return loop
				}
			}
		}
		mark[v] = done
		path = path[:len(path)-1]
		return nil
	}
	for _, v := range slices.Sorted(maps.Keys(rules)) {
		if mark[v] == 0 {
			if loop := visit(v); loop != nil {
				return loop
			}
		}
	}
	return nil
}

// YAML writes the policy, every field, rules in order.
func (d PolicyDoc) YAML() string {
	if d.ProtectedPools == nil {
		d.ProtectedPools = []string{}
	}
	if d.LabelPreemptionRules == nil {
		d.LabelPreemptionRules = map[string]map[string][]string{}
	}
	b, err := yaml.Marshal(d)
	if err != nil {
		return "# cannot be written as YAML: " + err.Error()
	}
	return string(b)
}

// JSON writes the policy as the REST API does, indented.
func (d PolicyDoc) JSON() string {
	b, _ := json.MarshalIndent(d, "", "  ")
	return string(b)
}

// ParsePolicy reads YAML, or JSON when it begins with a brace. Fields left out have their defaults;
// unknown ones are refused. The problem is a sentence for the author, "" for none.
func ParsePolicy(text string) (d PolicyDoc, problem string) {
	d = DefaultPolicy()
	t := strings.TrimSpace(text)
	switch {
	case len(t) > 1<<20:
		return d, "It is larger than 1 MiB, which no policy needs."
	case t == "":
		return d, "It is empty. To go back to the defaults write {}."
	case t[0] == '{':
		dec := json.NewDecoder(strings.NewReader(t))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&d); err != nil {
			return d, "Not a policy in JSON: " + strings.TrimPrefix(err.Error(), "json: ") + "."
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return d, "There is more text after the closing brace."
		}
		return d, ""
	}
	dec := yaml.NewDecoder(strings.NewReader(text), yaml.Strict())
	if err := dec.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return d, "Not a policy in YAML: " + yaml.FormatError(err, false, true)
	}
	return d, ""
}
