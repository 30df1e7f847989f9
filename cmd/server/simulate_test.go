package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSimulatePrintsATableAndWritesJSONAndAPlot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	workload, policy, doc, plot := filepath.Join(dir, "w.yaml"), filepath.Join(dir, "p.json"), filepath.Join(dir, "out.json"), filepath.Join(dir, "out.svg")
	write(t, workload, "tasks: 9\npools: {count: 9, capacity: {cpu: 2}}\nkinds: [{share: 1, priority: {uniform: [1, 9]}, request: {cpu: 1}, duration: 1m, on_insufficient: queue}]\n")
	write(t, policy, `{"same_pool_priority_threshold": 3}`)
	code, out, errs := call(t, nil, "simulate", "--workload", workload, "--policy", policy, "--tasks", "500", "--pools", "2", "--seed", "3", "--json", doc, "--svg", plot)
	if code != 0 || !strings.Contains(out, "500 tasks through 2 pools") || !strings.Contains(out, "Preemptions") || !strings.Contains(errs, "500 of 500 tasks") {
		t.Fatalf("%d\n%s\n%s", code, out, errs)
	}
	var report struct {
		Seed, Tasks, Pools int
		Policy             struct {
			Same float64 `json:"same_pool_priority_threshold"`
		}
	}
	text, err := os.ReadFile(doc)
	if err != nil || json.Unmarshal(text, &report) != nil || report.Seed != 3 || report.Tasks != 500 || report.Pools != 2 || report.Policy.Same != 3 {
		t.Errorf("%v, %+v", err, report)
	}
	if svg, err := os.ReadFile(plot); err != nil || !strings.HasPrefix(string(svg), "<svg") {
		t.Errorf("%v, %.40s", err, svg)
	}
}

func TestSimulateSaysWhatIsWrongBeforeItBegins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad, named, trace := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "named.yaml"), filepath.Join(dir, "trace.csv")
	write(t, bad, "tasks: 5\npools: {count: 1, capacity: {cpu: 1}}\nkinds: [{share: 1, priority: 1, request: {cpu: 1}, duration: never}]\n")
	write(t, named, "pools: {named: [{name: a, capacity: {cpu: 1}}]}\nkinds: [{share: 1, priority: 1, request: {cpu: 1}, duration: 1m}]\n")
	write(t, trace, "arrival,pool,duration\n0,a,1\nlater,a,1\n")
	for want, args := range map[string][]string{
		"no such file":               {"--workload", filepath.Join(dir, "nothing.yaml")},
		"bad.yaml: ":                 {"--workload", bad},
		"tasks: there are none":      {"--workload", named},
		"names its pools one by one": {"--workload", named, "--pools", "4"},
		"trace.csv: line 3: arrival": {"--trace", trace},
		"the trace says which tasks": {"--trace", trace, "--tasks", "4"},
		"policy: policy must be a":   {"--policy", trace},
		"not a whole number":         {"--tasks", "-4"},
		"nowhere/out.json":           {"--json", filepath.Join(dir, "nowhere", "out.json")},
		"Usage: server simulate":     {"fast"},
	} {
		if code, _, errs := call(t, nil, append([]string{"simulate"}, args...)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%q: %d, %q does not say %q", args, code, errs, want)
		}
	}
}

func TestSimulateStopsWhenItIsTold(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var out, errs strings.Builder
	if code := run(ctx, stdio{&out, &errs}, []string{"simulate"}, func(string) string { return "" }); code != 130 {
		t.Errorf("code %d: %s", code, errs.String())
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
