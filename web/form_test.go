package web

import (
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLengthsOfTimeAreReadAsPeopleWriteThem(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"90": 90 * time.Second, "90 s": 90 * time.Second, "15 min": 15 * time.Minute, "15m": 15 * time.Minute, "1h30m": 90 * time.Minute, "1 h 30 min": 90 * time.Minute,
		"2 hours": 2 * time.Hour, "0.5 h": 30 * time.Minute, "250 ms": 250 * time.Millisecond, "2 d 4 h": 52 * time.Hour, "-5": -5 * time.Second, "1 second": time.Second,
	} {
		if got, ok := ParseLength(s); !ok || got != want {
			t.Errorf("%q: %v %v, want %v", s, got, ok, want)
		}
	}
	for _, s := range []string{"", " ", "soon", "1 fortnight", "5 min later", "1e9 h", "999999999 d", "-"} {
		if got, ok := ParseLength(s); ok {
			t.Errorf("%q is %v", s, got)
		}
	}
	for _, d := range []time.Duration{90 * time.Second, 15 * time.Minute, 90 * time.Minute, 52 * time.Hour} {
		if got, ok := ParseLength(TypedLength(d)); !ok || got != d {
			t.Errorf("%v is written %q and read %v", d, TypedLength(d), got)
		}
	}
}

func TestResourcesAreConvertedRoundingUp(t *testing.T) {
	e := Errors{}
	got := resources(e, "0.0001", "8", "1.0005 GiB", "tpu=4, fast_disk = 0.5")
	want := Resources{"cpu": 1, "gpu": 8000, "memory": 1025, "tpu": 4000, "fast_disk": 500}
	if len(e) > 0 || !maps.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, e, want)
	}
	for s, want := range map[string]int64{"4096": 4096, "4096 MiB": 4096, "16 gib": 16384, "1 TiB": 1 << 20, "1 GB": 954, "1,024": 1024, "100 KiB": 1} {
		if e := (Errors{}); mebibytes(e, "memory", s) != want || len(e) > 0 {
			t.Errorf("%q: %d %v, want %d", s, mebibytes(e, "memory", s), e, want)
		}
	}
	for field, f := range map[string]PoolForm{
		"cpu": {CPU: "-1"}, "gpu": {GPU: "NaN"}, "memory": {Memory: "1e400"}, "resources": {OtherResources: "tpu"},
	} {
		f.Name = "p"
		if _, e := f.Parse(); e[field] == "" {
			t.Errorf("%+v: %v", f, e)
		}
	}
	for _, s := range []string{"Inf", "1e3", "0x10", "999999999999999999999", "999999999999999999", "1/3", "１"} {
		e := Errors{}
		if n := thousandths(e, "cpu", s); len(e) == 0 {
			t.Errorf("%q is taken as %d", s, n)
		}
	}
}

func TestAPoolsFormSaysWhatThePoolIs(t *testing.T) {
	want := Resources{"cpu": 640500, "gpu": 64000, "memory": 5<<20 + 1, "tpu": 1500}
	f := NewPoolForm()
	f.Name = "p"
	f.SetResources(want)
	f.Labels = TypedLabels([]Label{{"tier", "premium"}, {"odd", `a,"b"`}})
	spec, e := f.Parse()
	if len(e) > 0 || !maps.Equal(spec.Capacity, want) || spec.Labels["odd"] != `a,"b"` || spec.Labels["tier"] != "premium" {
		t.Errorf("%+v %v from %+v", spec, e, f)
	}
}

func TestLabelsAreReadWithTheirQuotes(t *testing.T) {
	for s, want := range map[string]map[string]string{
		"": {}, "a=b": {"a": "b"}, " a = b ,\n c=d=e": {"a": "b", "c": "d=e"}, `"k=a,b", x=`: {"k": "a,b", "x": ""}, `"q=say ""hi"""`: {"q": `say "hi"`}, "团队=训练": {"团队": "训练"},
	} {
		e := Errors{}
		if got := labels(e, "labels", s); len(e) > 0 || !maps.Equal(got, want) {
			t.Errorf("%q: %v %v, want %v", s, got, e, want)
		}
	}
	for _, s := range []string{"a", "=b", "a=1, a=2", `"a=b`} {
		e := Errors{}
		if labels(e, "labels", s); len(e) == 0 {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestJSONThatIsWrongIsExplained(t *testing.T) {
	for s, want := range map[string]string{"{": "Not JSON", "[1]": "should be a JSON object", "{\n\"a\": 1,\n}": "at line 3", "3": "should be a JSON object", "{} x": "Not JSON"} {
		e := Errors{}
		if got := jsonOf(e, "f", s, '{'); got != nil || !strings.Contains(e["f"], want) {
			t.Errorf("%q: %s %v, want %q", s, got, e, want)
		}
	}
	e := Errors{}
	if got := jsonOf(e, "f", `{"a": 12345678901234567890}`, '{'); string(got) != `{"a": 12345678901234567890}` || len(e) > 0 {
		t.Errorf("%s %v", got, e)
	}
}

func busyPolicy() PolicyDoc {
	d := DefaultPolicy()
	d.ProtectedPools = []string{"train-a100", "odd, name"}
	d.LabelPreemptionRules = map[string]map[string][]string{"stage": {"rlhf": {"sft", "pre,training"}, "sft": {"pre,training"}}}
	d.MaxPreemptionsPerTask, d.AgeingWeight = 3, 0.25
	return d
}

func TestAPolicySurvivesEachOfItsForms(t *testing.T) {
	d := busyPolicy()
	if got, e := d.Form().Parse(d); len(e) > 0 || !reflect.DeepEqual(got, d) {
		t.Errorf("as a form: %+v %v", got, e)
	}
	for name, text := range map[string]string{"YAML": d.YAML(), "JSON": d.JSON()} {
		if got, problem := ParsePolicy(text); problem != "" || !reflect.DeepEqual(got, d) {
			t.Errorf("as %s: %+v %s\n%s", name, got, problem, text)
		}
	}
	posted := url.Values{}
	f := d.Form()
	for k, v := range f.Values {
		posted.Set(k, v)
	}
	posted.Del("enable_label_preemption") // an unticked box is not posted
	for _, r := range append(f.Rules, RuleRow{}) {
		posted.Add("rule_key", r.Key)
		posted.Add("rule_value", r.Value)
		posted.Add("rule_over", r.Over)
	}
	got, e := ReadPolicyForm(posted).Parse(d)
	want := d
	want.EnableLabelPreemption = false
	if len(e) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("posted: %+v %v", got, e)
	}
}

func TestAWordOfAggressivenessYieldsToWhatIsTyped(t *testing.T) {
	active := DefaultPolicy()
	f := active.Form()
	f.Values["aggressiveness"] = "low"
	f.Values["label_priority_threshold"] = "0.7"
	d, e := f.Parse(active)
	if len(e) > 0 || d.SamePoolPriorityThreshold != 3 || d.LabelPriorityThreshold != 0.7 || d.Aggressiveness() != "custom" {
		t.Errorf("%+v %v", d, e)
	}
}

func TestWhatIsWrongWithAPolicyIsSaidAtItsField(t *testing.T) {
	for field, change := range map[string]func(*PolicyForm){
		"cross_pool_priority_threshold": func(f *PolicyForm) { f.Values["cross_pool_priority_threshold"] = "-2" },
		"remaining_time_weight":         func(f *PolicyForm) { f.Values["remaining_time_weight"] = "NaN" },
		"min_preempt_score":             func(f *PolicyForm) { f.Values["min_preempt_score"] = "" },
		"max_preemptions_per_task":      func(f *PolicyForm) { f.Values["max_preemptions_per_task"] = "1.5" },
		"victim_coverage":               func(f *PolicyForm) { f.Values["victim_coverage"] = "half" },
		"label_preemption_rules":        func(f *PolicyForm) { f.Rules = append(f.Rules, RuleRow{"stage", "sft", "rlhf"}) },
	} {
		f := busyPolicy().Form()
		change(&f)
		if _, e := f.Parse(busyPolicy()); e[field] == "" {
			t.Errorf("%s: %v", field, e)
		}
	}
}

func TestCirclesAreFoundAndNamed(t *testing.T) {
	for _, c := range []struct {
		rules map[string][]string
		want  string
	}{
		{map[string][]string{"a": {"b"}, "b": {"c"}}, ""},
		{map[string][]string{"a": {"a"}}, "a a"},
		{map[string][]string{"a": {"b", "c"}, "b": {"c"}, "c": {"b"}}, "b c b"},
		{map[string][]string{"x": {"a"}, "a": {"b"}, "b": {"c"}, "c": {"a"}}, "a b c a"},
	} {
		if got := strings.Join(cycle(c.rules), " "); got != c.want {
			t.Errorf("%v: %q, want %q", c.rules, got, c.want)
		}
	}
}

func TestTheGraphPutsVictimsToTheRightAndNothingOnTopOfAnother(t *testing.T) {
	wide := map[string][]string{}
	for _, v := range "abcdefghij" {
		for _, o := range "klmnop" {
			wide[string(v)] = append(wide[string(v)], string(o))
		}
	}
	for name, rules := range map[string]map[string][]string{
		"mock-up": {"rlhf": {"sft", "pretraining"}, "dpo": {"pretraining"}, "sft": {"pretraining"}},
		"chain":   {"critical": {"high", "normal", "low"}, "high": {"normal", "low"}, "normal": {"low"}},
		"wide":    wide,
		"circle":  {"a": {"b"}, "b": {"c"}, "c": {"a"}},
		"self":    {"a": {"a"}},
		"long":    {strings.Repeat("x", 500): {strings.Repeat("训", 500)}},
		"empty":   {},
	} {
		g := draw(name, rules)
		at := map[string]GraphBox{}
		for i, b := range g.Boxes {
			at[b.Name] = b
			if b.X < 0 || b.Y < 0 || b.X+b.W > g.Width || b.Y+boxHeight > g.Height {
				t.Errorf("%s: %+v is outside %d × %d", name, b, g.Width, g.Height)
			}
			for _, o := range g.Boxes[:i] {
				if b.X < o.X+o.W && o.X < b.X+b.W && b.Y < o.Y+boxHeight && o.Y < b.Y+boxHeight {
					t.Errorf("%s: %s lies on %s", name, b.Name, o.Name)
				}
			}
		}
		arrows, bad := 0, 0
		for v, over := range rules {
			arrows += len(over)
			for _, o := range over {
				if name != "circle" && name != "self" && at[v].X+at[v].W >= at[o].X {
					t.Errorf("%s: %s is not to the left of %s", name, v, o)
				}
			}
		}
		for _, a := range g.Arrows {
			if a.Bad {
				bad++
			}
		}
		if len(g.Arrows) != arrows || (bad > 0) != (name == "circle" || name == "self") {
			t.Errorf("%s: %d arrows, %d bad, for %d rules", name, len(g.Arrows), bad, arrows)
		}
		if again := draw(name, rules); !reflect.DeepEqual(g, again) {
			t.Errorf("%s is drawn differently each time", name)
		}
	}
	big := map[string][]string{}
	for i := range 100 {
		big["v"+itoa(int64(i))] = []string{"w"}
	}
	if g := draw("big", big); g.Width != 0 || !strings.Contains(g.Words, "v7 may preempt w") {
		t.Error("a hundred values must be left to words")
	}
}

func TestErrorsAreListedInOrder(t *testing.T) {
	e := Errors{}
	e.Add("b", "first %d", 1)
	e.Add("b", "second")
	e.Add("", "whole")
	if got := e.Sorted(); !slices.Equal(got, []Label{{"", "whole"}, {"b", "first 1"}}) {
		t.Errorf("%v", got)
	}
}

func TestATaskMayBeAskedIntoAPlacementGroup(t *testing.T) {
	for typed, want := range map[string][2]bool{"": {}, "yes": {true, false}, "quota": {true, true}} {
		f := ReadSubmitForm(url.Values{"task_id": {"t"}, "pool": {"p"}, "actor_class": {"m:C"}, "cpu": {"1"}, "placement_group": {typed}})
		task, errs := f.Parse()
		if len(errs) != 0 || [2]bool{task.PlacementGroup, task.KeepQuota} != want {
			t.Errorf("%q: %v %v, %v", typed, task.PlacementGroup, task.KeepQuota, errs)
		}
	}
	if _, errs := (SubmitForm{PlacementGroup: "maybe"}).Parse(); errs["placement_group"] == "" {
		t.Errorf("%v", errs)
	}
}
