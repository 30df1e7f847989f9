package sched_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/schedulemesh/schedulemesh/sched"
)

func TestDefaultPolicyIsTheDocumentedOne(t *testing.T) {
	got, err := json.Marshal(DefaultPolicy())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"same_pool_priority_threshold":1,"cross_pool_priority_threshold":5,"remaining_time_weight":0.1,` +
		`"min_preempt_score":0.5,"enable_cross_pool_preemption":true,"protected_pools":[],"label_preemption_rules":{},` +
		`"label_priority_threshold":0.5,"enable_label_preemption":true,"cancel_timeout":5,"save_timeout":60,` +
		`"victim_coverage":"deficit","min_runtime_seconds":0,"max_preemptions_per_minute":0,"max_preemptions_per_task":0,"ageing_weight":0}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if errs := DefaultPolicy().Validate(); errs != nil {
		t.Error(errs)
	}
}

func TestEveryFieldCanBePatchedAndShowsInTheDiff(t *testing.T) {
	values := map[string]string{
		"protected_pools": `["a"]`, "label_preemption_rules": `{"tier":{"a":["b"]}}`, "victim_coverage": `"request"`,
		"enable_cross_pool_preemption": "false", "enable_label_preemption": "false",
		"max_preemptions_per_minute": "3.0", "max_preemptions_per_task": "7",
	}
	fields := reflect.TypeFor[Policy]()
	for i := range fields.NumField() {
		name := fields.Field(i).Tag.Get("json")
		value := values[name]
		if value == "" {
			value = "0.25"
		}
		p, warnings, err := DefaultPolicy().Patch([]byte(`{"` + name + `":` + value + `}`))
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, %q", name, err, warnings)
			continue
		}
		changes := Diff(DefaultPolicy(), p)
		if len(changes) != 1 || !strings.HasPrefix(changes[0].Field, name) {
			t.Errorf("%s: the diff is %v", name, changes)
		}
		data, _ := json.Marshal(p)
		var back Policy
		if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(back, p) {
			t.Errorf("%s: %s comes back as %+v, %v", name, data, back, err)
		}
	}
}

func TestPatchReplacesOnlyWhatIsGiven(t *testing.T) {
	p := patched(t, `{"protected_pools":["prod"],"same_pool_priority_threshold":2}`)
	next, _, err := p.Patch([]byte(`{"label_preemption_rules":{"tier":{"a":["b"]}}}`))
	if err != nil || next.SamePoolPriorityThreshold != 2000 || !slices.Equal(next.ProtectedPools, []string{"prod"}) {
		t.Fatalf("%+v, %v", next, err)
	}
	last, _, _ := next.Patch([]byte(`{"label_preemption_rules":{},"protected_pools":[]}`))
	if len(last.LabelPreemptionRules) != 0 || len(last.ProtectedPools) != 0 || len(next.ProtectedPools) != 1 {
		t.Fatalf("%+v, and before %+v", last, next)
	}
}

func TestAggressivenessSetsTwoThresholds(t *testing.T) {
	for words, want := range map[string][2]Milli{
		"high Urgent CRITICAL prod":    {100, 500},
		"medium default normal Medium": {500, 1000},
		"low background batch BATCH":   {1000, 3000},
	} {
		for _, word := range strings.Fields(words) {
			start := patched(t, `{"same_pool_priority_threshold":9,"label_priority_threshold":9}`)
			p, warnings, err := start.Patch([]byte(`{"preemption_aggressiveness":"` + word + `"}`))
			if err != nil || len(warnings) > 0 || p.LabelPriorityThreshold != want[0] || p.SamePoolPriorityThreshold != want[1] {
				t.Errorf("%s: label %v, same %v, %q, %v", word, p.LabelPriorityThreshold, p.SamePoolPriorityThreshold, warnings, err)
			}
		}
	}
}

func TestExplicitThresholdsWinOverAggressiveness(t *testing.T) {
	p := patched(t, `{"same_pool_priority_threshold":4,"preemption_aggressiveness":"high"}`)
	if p.SamePoolPriorityThreshold != 4000 || p.LabelPriorityThreshold != 100 {
		t.Errorf("same %v, label %v", p.SamePoolPriorityThreshold, p.LabelPriorityThreshold)
	}
}

func TestUnknownAggressivenessIsAWarningAndNoChange(t *testing.T) {
	for _, word := range []string{`"hihg"`, `""`, `null`, `3`, `"env:LEVEL"`} {
		p, warnings, err := DefaultPolicy().Patch([]byte(`{"preemption_aggressiveness":` + word + `}`))
		if err != nil || len(warnings) != 1 || len(Diff(p, DefaultPolicy())) != 0 {
			t.Errorf("%s: %q, %v", word, warnings, err)
		}
	}
}

func TestUnusablePoliciesAreRefusedFieldByField(t *testing.T) {
	for patch, want := range map[string][]string{
		`{"same_pool_priority_threshold":-1}`: {"same_pool_priority_threshold must be 0 or more, not -1.0; 1.0 is usual"},
		`{"cross_pool_priority_threshold":-0.5,"remaining_time_weight":-2}`: {
			"cross_pool_priority_threshold must be 0 or more, not -0.5; 5.0 is usual",
			"remaining_time_weight must be 0 or more, not -2.0; 0.1 is usual"},
		`{"min_preempt_score":1e300}`:        {"min_preempt_score is far too large: 1e300"},
		`{"min_preempt_score":2000000}`:      {"min_preempt_score must be at most 1000000.0, not 2000000.0; 0.5 is usual"},
		`{"remaining_time_weight":0.0004}`:   {"remaining_time_weight must be in thousandths; 0.0004 lies between two of them, 0 is the nearest"},
		`{"min_preempt_score":"0.5"}`:        {`min_preempt_score must be a number, not "0.5"; leave it out to keep what it is`},
		`{"min_preempt_score":null}`:         {`min_preempt_score must be a number, not null; leave it out to keep what it is`},
		`{"enable_label_preemption":1}`:      {"enable_label_preemption must be true or false, not 1; leave it out to keep what it is"},
		`{"max_preemptions_per_minute":1.5}`: {"max_preemptions_per_minute must be a whole number, not 1.5"},
		`{"max_preemptions_per_task":-1}`:    {"max_preemptions_per_task must be between 0 (no limit) and 1000000, not -1"},
		`{"victim_coverage":"all"}`:          {`victim_coverage must be "deficit" (free what is missing) or "request" (free as much as is asked for), not "all"`},
		`{"protected_pools":[""]}`:           {`protected_pools holds "", which is empty`},
		`{"protected_pools":"prod"}`:         {`protected_pools must be a list of pool names, not "prod"; leave it out to keep what it is`},
		`{"protected_pols":[], "Kappa":1}`:   {"Kappa is not a field of a policy", "protected_pols is not a field of a policy"},
		`{"label_preemption_rules":{"tier":{"a":["b"],"b":["a"]}}}`: {
			"label_preemption_rules goes in a circle, so that tasks would evict each other: tier: a → b → a"},
		`{"label_preemption_rules":{"tier":{"z":["a"],"a":["b"],"b":["c"],"c":["a"]}}}`: {
			"label_preemption_rules goes in a circle, so that tasks would evict each other: tier: a → b → c → a"},
		`{"label_preemption_rules":{"tier":{"a":["b","a"]}}}`: {"label_preemption_rules lets tier a preempt itself; take it out of its own list"},
		`{"label_preemption_rules":{"":{"a":["b"]}}}`:         {`label_preemption_rules has the label key "", which is empty`},
		`{"label_preemption_rules":{"tier":{"a":["b\u0000"]}}}`: {
			`label_preemption_rules has for tier the value "b\x00", which has unprintable characters`},
		`{"label_preemption_rules":{"tier":["a"]}}`: {
			`label_preemption_rules must be an object like {"tier": {"premium": ["standard"]}}, not {"tier":["a"]}; leave it out to keep what it is`},
		`[]`:                        {"policy must be a JSON object"},
		`null`:                      {"policy must be a JSON object"},
		`{"min_preempt_score":NaN}`: {"policy must be a JSON object"},
		`{} {}`:                     {"policy must be a JSON object"},
	} {
		start := patched(t, `{"protected_pools":["kept"]}`)
		p, _, err := start.Patch([]byte(patch))
		var errs FieldErrors
		if !errors.As(err, &errs) {
			t.Errorf("%s: %v", patch, err)
			continue
		}
		var got []string
		for _, e := range errs {
			got = append(got, e.Field+" "+e.Message)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", patch, got, want)
		}
		if !reflect.DeepEqual(p, start) {
			t.Errorf("%s: the policy changed all the same: %v", patch, Diff(start, p))
		}
	}
}

func TestChainsAndSharedValuesAreNoCycle(t *testing.T) {
	patched(t, `{"label_preemption_rules":{"tier":{"a":["b","c","d"],"b":["d"],"c":["d"],"d":[]},"user":{"b":["a"]}}}`)
}

func TestManyWaysThroughAHierarchyAreNotTriedOneByOne(t *testing.T) {
	p := DefaultPolicy()
	over := map[string][]string{}
	for layer := range 60 { // 2⁶⁰ paths
		for _, side := range "ab" {
			over[fmt.Sprint(layer, string(side))] = []string{fmt.Sprint(layer+1, "a"), fmt.Sprint(layer+1, "b")}
		}
	}
	p.LabelPreemptionRules = map[string]map[string][]string{"layer": over}
	if errs := p.Validate(); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestWarningsNamePoolsAndLabelsNobodyHas(t *testing.T) {
	p := patched(t, `{"protected_pools":["prod","gone"],"label_preemption_rules":{"tier":{"premium":["standard"]},"team":{"a":["b"]}}}`)
	got := p.Warnings([]string{"prod"}, map[string][]string{"tier": {"premium", "batch"}})
	want := []string{
		`protected_pools: there is no pool "gone"`,
		`label_preemption_rules: no task has the label "team"`,
		`label_preemption_rules: no task has the label tier=standard`,
		`label_preemption_rules: team and tier can contradict each other: a task with team=a, tier=standard and one with team=b, tier=premium may each preempt the other: whichever comes later`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := DefaultPolicy().Warnings(nil, nil); len(got) > 0 {
		t.Errorf("the default warns: %q", got)
	}
}

func TestDiffIsForPeople(t *testing.T) {
	old := patched(t, `{"protected_pools":["b","a"],"label_preemption_rules":{"tier":{"premium":["standard","batch"]},"gone":{"x":["y"]}}}`)
	next := patched(t, `{"protected_pools":["a","b"],"same_pool_priority_threshold":0.5,"enable_label_preemption":false,
		"max_preemptions_per_task":3,"label_preemption_rules":{"tier":{"premium":["batch","standard"],"standard":["batch"]}}}`)
	want := []Change{
		{"same_pool_priority_threshold", "1.0", "0.5"},
		{"enable_label_preemption", "on", "off"},
		{"max_preemptions_per_task", "no limit", "3"},
		{"label_preemption_rules.gone", "x > y", "none"},
		{"label_preemption_rules.tier", "premium > batch, standard", "premium > batch, standard; standard > batch"},
	}
	if got := Diff(old, next); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
