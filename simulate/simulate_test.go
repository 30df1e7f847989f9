package simulate

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/sched"
)

func run(t *testing.T, o Options) Report {
	t.Helper()
	if o.Policy.VictimCoverage == "" {
		o.Policy = sched.DefaultPolicy()
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// timeless is a report without what depends on the machine.
func timeless(r Report) Report {
	r.Machine, r.Costs, r.UpkeepSeconds = Machine{}, nil, 0
	return r
}

func TestTheSameSeedGivesTheSameAnswer(t *testing.T) {
	t.Parallel()
	o := Options{Workload: DefaultWorkload(), Seed: 7}
	o.Workload.Tasks, o.Workload.Pools.Count = 6_000, 6
	a, b := run(t, o), run(t, o)
	if !reflect.DeepEqual(timeless(a), timeless(b)) {
		t.Error("two runs with one seed differ")
	}
	if a.Completed+a.TimedOut != 6_000 || a.Preemptions.Total == 0 || a.PeakWaiting == 0 {
		t.Errorf("the default workload shows nothing: %+v", a.Counts)
	}
	o.Seed = 8
	if c := run(t, o); reflect.DeepEqual(timeless(a), timeless(c)) {
		t.Error("another seed makes no difference")
	}
}

func TestTheArrivalRateMakesTheLoadThatWasAskedFor(t *testing.T) {
	t.Parallel()
	for _, burst := range []string{"", ", burst: {every: 1h, for: 10m, times: 2}"} {
		w, err := ParseWorkload(strings.NewReader(`
tasks: 20000
pools: {count: 4, capacity: {cpu: 1000}}
arrivals: {load: 0.5` + burst + `}
kinds: [{share: 1, priority: 5, request: {cpu: 2}, duration: {exponential: 5m}, on_insufficient: queue}]`))
		if err != nil {
			t.Fatal(err)
		}
		r := run(t, Options{Workload: w, Seed: 1})
		use := r.Timeline.Use["cpu"]
		sum := 0.0
		for _, v := range use[len(use)/4 : len(use)*3/4] {
			sum += v
		}
		if mean := sum / float64(len(use)/2); mean < .45 || mean > .55 {
			t.Errorf("%q: half of the time %.3f of the capacity were held, want 0.5", burst, mean)
		}
	}
}

func TestAPolicyGoesOverTheWorkloads(t *testing.T) {
	t.Parallel()
	o := Options{Workload: DefaultWorkload(), Over: []byte(`{"same_pool_priority_threshold": 7}`)}
	o.Workload.Tasks = 10
	if r := run(t, o); r.Policy.SamePoolPriorityThreshold != 7000 || len(r.Policy.LabelPreemptionRules) != 1 {
		t.Errorf("%+v", r.Policy)
	}
	o.Over = []byte(`{"nonsense": 7}`)
	o.Policy = sched.DefaultPolicy()
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "policy: nonsense is not a field") {
		t.Error(err)
	}
}

func TestAWorkloadWithAMistakeIsRefusedByField(t *testing.T) {
	t.Parallel()
	good := `
tasks: 10
pools: {count: 2, capacity: {cpu: 4}}
kinds: [{share: 1, priority: 5, request: {cpu: 1}, duration: 1m}]
`
	if _, err := ParseWorkload(strings.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, with, want string }{
		{"tasks: 10", "taks: 10", "taks"},
		{"tasks: 10", "tasks: many", "tasks"},
		{"tasks: 10", "tasks: -1", "tasks: must be 0 or more"},
		{"count: 2", "count: 0", "pools: there are none"},
		{"count: 2, capacity: {cpu: 4}", "count: 2", "pools.capacity: is missing"},
		{"capacity: {cpu: 4}", "capacity: {cpu: -4}", `pools.capacity: resource "cpu": -4 is negative`},
		{"count: 2", "named: [{name: a}, {name: a}]", "pools.named[1].name"},
		{"kinds:", "arrivals: {process: sometimes}\nkinds:", "arrivals.process: must be poisson or even"},
		{"kinds:", "arrivals: {burst: {every: 1m, for: 2m, times: 2}}\nkinds:", "arrivals.burst: needs every"},
		{"share: 1", "share: 0", "kinds[0].share: must be more than 0"},
		{"priority: 5", "priority: high", "must be a number, or {uniform"},
		{"priority: 5", "priority: {uniform: [9, 1]}", "must go up and lie between"},
		{"priority: 5", "priority: .nan", "must go up and lie between"},
		{"share: 1", "share: .inf", "kinds[0].share"},
		{"count: 2", "count: 2, skew: .nan", "pools.skew"},
		{"request: {cpu: 1}", "request: {cpu: much}", "request must be amounts"},
		{"duration: 1m", "duration: soon", "a duration must be like 10m"},
		{"duration: 1m", "duration: {exponential: 1m, uniform: [1m, 2m]}", "a duration must be like 10m"},
		{"duration: 1m", "duration: {exponential: 1m, least: 2m, most: 1m}", "least 2m0s is more than most 1m0s"},
		{"duration: 1m", "duration: 1m, estimate: {error: 2}", "an estimate must be none, exact"},
		{"duration: 1m", "duration: 1m, labels: {tier: {a: -1}}", "must be 0 or more"},
		{"duration: 1m", "duration: 1m, on_preempted: cry", "kinds[0].on_preempted: must be stop or requeue"},
		{"kinds:", "policy: {min_preempt_score: -1}\nkinds:", "policy: min_preempt_score must be 0 or more"},
		{"kinds:", "priority_classes: [5, 3]\nkinds:", "priority_classes: must ascend"},
	} {
		text := strings.Replace(good, c.old, c.with, 1)
		if _, err := ParseWorkload(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\n does not say %q", c.with, err, c.want)
		}
	}
	if _, err := ParseWorkload(strings.NewReader("")); err == nil {
		t.Error("an empty file is a workload")
	}
}

func TestTheExamplesAreWorkloads(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("../examples/*.yaml")
	if len(files) < 3 {
		t.Fatalf("only %v", files)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseWorkload(file); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		file.Close()
	}
	explained, err := os.ReadFile("../examples/workload.yaml")
	if err != nil || !bytes.Equal(explained, defaultWorkload) {
		t.Errorf("examples/workload.yaml is not simulate/default.yaml, which is used when none is given: copy it (%v)", err)
	}
}

func trace(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestATraceIsReplayedAsItIsWritten(t *testing.T) {
	t.Parallel()
	path := trace(t, `arrival,pool,duration,task_id,priority,cpu,memory,resource:tpu,labels,on_insufficient,on_preempted
2026-03-01T12:00:00Z,a,100,low,1,4,1024,1,tier=batch;team=x,queue,requeue
2026-03-01T12:00:10Z,a,20,high,9,4,,,"tier=premium",queue,stop
2026-03-01T12:00:10Z,b,5,,,1,,,,fail,
`)
	tr, err := OpenTrace(path)
	if err != nil {
		t.Fatal(err)
	}
	w := DefaultWorkload()
	w.Pools.Count, w.Pools.Capacity = 0, nil
	w.Pools.Named = []OnePool{{Name: "a", Capacity: Amounts{"cpu": 4, "memory": 4096, "tpu": 4}}, {Name: "b", Capacity: Amounts{"cpu": 4}}}
	w.Latency.Cancel, w.Latency.Save, w.Latency.Launch = 0, 0, 0
	r := run(t, Options{Workload: w, Trace: tr})
	if r.Tasks != 3 || r.Completed != 3 || r.Preemptions.Total != 1 || r.SimulatedSeconds != 120 || r.Pools != 2 {
		t.Errorf("%+v after %v s", r.Counts, r.SimulatedSeconds)
	}
}

func TestALineThatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	const head = "arrival,pool,duration,cpu,priority,labels,on_insufficient\n1,a,10,1,5,,\n"
	for text, want := range map[string]string{
		"":                                    "is empty",
		"arrival,pool\n":                      `line 1: the column "duration" is missing`,
		"arrival,pool,duration,colour\n":      `line 1: there is no column "colour"`,
		"arrival,pool,duration,pool\n":        `line 1: there are two columns "pool"`,
		"arrival,pool,duration\n":             "has no tasks",
		head + "x,a,10,1,5,,\n":               `line 3: arrival: "x" is neither a number`,
		head + "2,,10,1,5,,\n":                "line 3: pool is empty",
		head + "2,a,-10,1,5,,\n":              "line 3: duration: -10 is out of range",
		head + "2,a,10,one,5,,\n":             `line 3: cpu: "one" is not a number`,
		head + "2,a,10,-1,5,,\n":              `line 3: resource "cpu": -1 is negative`,
		head + "2,a,10,1,NaN,,\n":             "line 3: priority",
		head + "2,a,10,1,5,tier,\n":           `line 3: labels: "tier" is not key=value`,
		head + "2,a,10,1,5,,wait\n":           `line 3: on_insufficient: "wait" is neither`,
		head + "2,a,10,1\n":                   "line 3",
		head + "2,a,10,1,5,,\n0,a,10,1,5,,\n": "line 4: arrival: 0 ms is before",
	} {
		if _, err := OpenTrace(trace(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v does not say %q", text, err, want)
		}
	}
}

func TestTheReportIsATableJSONAndAPlot(t *testing.T) {
	t.Parallel()
	o := Options{Workload: DefaultWorkload(), Seed: 1, Progress: io.Discard}
	o.Workload.Tasks, o.Workload.Pools.Count = 5_000, 10
	r := run(t, o)
	var table bytes.Buffer
	r.WriteTable(&table)
	for _, want := range []string{"5,000 tasks through 10 pools", "What a decision costs", "looks for victims", "8 and above", "across pools", "work lost", "gpu", "fairness"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, table.String())
		}
	}
	doc, err := json.Marshal(r)
	var back Report
	if err != nil || json.Unmarshal(doc, &back) != nil || !reflect.DeepEqual(back.Waits, r.Waits) || back.Tasks != 5_000 {
		t.Errorf("the JSON does not say the same: %v", err)
	}
	// Well-formed, also when there is nothing to show.
	for _, svg := range [][]byte{r.SVG(), (&Report{}).SVG()} {
		texts := 0
		for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in\n%s", err, svg)
			}
			if s, ok := token.(xml.StartElement); ok && s.Name.Local == "text" {
				texts++
			}
		}
		if texts < 6 || bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
			t.Errorf("%d texts in\n%s", texts, svg)
		}
	}
}
