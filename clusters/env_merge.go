package clusters

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// MergeEnv lays a job's runtime_env over its cluster's. Maps are merged and lists united, the cluster's items first;
// a package that the job names replaces the cluster's of that name. Where only one can be, the job's is taken. Ray refuses pip or
// uv beside conda, so they are folded into conda's dependencies. The notes say, for people, what was folded or left
// out. The same input always gives the same bytes; nil when there is nothing in either. Errors are *ledger.Error,
// "invalid" with Fields.
func MergeEnv(cluster, job json.RawMessage) (merged json.RawMessage, notes []string, err error) {
	ofCluster, bad := readEnv(cluster)
	if bad != nil {
		return nil, nil, bad.refusal()
	}
	ofJob, bad := readEnv(job)
	if bad != nil {
		return nil, nil, bad.refusal()
	}
	m := &envMerger{}
	env, bad := m.merge(ofCluster, ofJob)
	if bad == nil {
		merged, bad = marshalEnv(env)
	}
	if bad != nil {
		return nil, nil, bad.refusal()
	}
	return merged, m.notes, nil
}

type envMerger struct{ notes []string }

func (m *envMerger) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(m.notes, n) {
		m.notes = append(m.notes, n)
	}
}

// beside are the fields that an image leaves room for in Ray.
var beside = []string{"config", "env_vars"}

func (m *envMerger) merge(cluster, job map[string]any) (map[string]any, *envProblem) {
	if bad := m.image(cluster, job); bad != nil {
		return nil, bad
	}
	if bad := m.tools(cluster, job); bad != nil {
		return nil, bad
	}
	out := map[string]any{}
	for _, key := range sortedKeys(cluster) {
		out[key] = cluster[key]
	}
	for _, key := range sortedKeys(job) {
		ours, both := cluster[key]
		if !both {
			out[key] = job[key]
			continue
		}
		switch key {
		case "pip", "uv":
			out[key] = m.packages(key, ours, job[key])
		case "conda":
			out[key] = m.conda(ours, job[key])
		case "py_modules": // what comes first is imported first
			out[key] = union(job[key].([]any), ours.([]any))
		default:
			out[key] = deep(ours, job[key])
		}
	}
	if _, there := out["excludes"]; there {
		delete(out, "excludes")
		m.note("excludes was left out: it is for packing directories, and what is sent is packed")
	}
	return out, nil
}

// image keeps apart what Ray refuses together: a container image and nearly everything else.
func (m *envMerger) image(cluster, job map[string]any) *envProblem {
	for _, key := range []string{"image_uri", "container"} {
		fits := append([]string{key}, beside...)
		if job[key] != nil {
			for _, other := range sortedKeys(cluster) {
				if !slices.Contains(fits, other) {
					delete(cluster, other)
					m.note("the cluster's %s was left out: Ray allows it not beside the job's %s", other, key)
				}
			}
		} else if cluster[key] != nil {
			for _, other := range sortedKeys(job) {
				if !slices.Contains(fits, other) && other != "excludes" {
					return wrong([]any{other}, "cannot be used on this cluster, whose runtime_env has %s; give the job an image of its own, or choose another cluster", key)
				}
			}
		}
	}
	return nil
}

// tools makes both sides use one of pip, uv and conda.
func (m *envMerger) tools(cluster, job map[string]any) *envProblem {
	_, named := job["conda"].(string)
	for _, tool := range []string{"pip", "uv"} {
		if named && cluster[tool] != nil {
			delete(cluster, tool)
			m.note("the cluster's %s was left out: the job runs in the conda environment %q, which is made already", tool, job["conda"])
		}
		if name, ok := cluster["conda"].(string); ok && job["conda"] == nil && job[tool] != nil {
			return wrong([]any{tool}, "cannot be added to this cluster's conda environment %.100q, which is made already; give the job a conda of its own, an object with dependencies, or choose another cluster", name)
		}
	}
	_, cond1 := cluster["conda"].(map[string]any)
	_, cond2 := job["conda"].(map[string]any)
	if cond1 || cond2 {
		m.fold(cluster)
		m.fold(job)
		return nil
	}
	for _, pair := range [][2]string{{"pip", "uv"}, {"uv", "pip"}} {
		theirs, ours := pair[0], pair[1]
		if cluster[theirs] != nil && job[ours] != nil {
			cluster[ours] = packageList(cluster[theirs])
			delete(cluster, theirs)
			m.note("the cluster's packages under %s were added to the job's under %s: Ray takes one of them", theirs, ours)
		}
	}
	return nil
}

// fold moves what is under pip or uv into conda's dependencies.
func (m *envMerger) fold(env map[string]any) {
	for _, tool := range []string{"pip", "uv"} {
		if env[tool] == nil {
			continue
		}
		spec, _ := env["conda"].(map[string]any)
		if spec == nil {
			spec = map[string]any{}
		}
		names, inside := condaDependencies(spec)
		spec["dependencies"] = condaList(names, unitePackages(inside, packageList(env[tool]), requirementName))
		env["conda"] = spec
		m.note("%s was folded into conda's dependencies: Ray refuses both together", tool)
		if options, ok := env[tool].(map[string]any); ok && len(options) > 1 {
			m.note("the other options under %s were left out: conda does not know them", tool)
		}
		delete(env, tool)
	}
}

// packages unites what is under pip or uv on both sides; options are the job's where it has them.
func (m *envMerger) packages(tool string, cluster, job any) any {
	all := unitePackages(packageList(cluster), packageList(job), requirementName)
	options := map[string]any{}
	for _, side := range []any{cluster, job} {
		if given, ok := side.(map[string]any); ok {
			maps.Copy(options, given)
		}
	}
	if len(options) == 0 {
		return all
	}
	options["packages"] = all
	return options
}

// packageList is the packages under pip or uv as a list; the path of a requirements file becomes an item that names it.
func packageList(v any) []any {
	switch v := v.(type) {
	case map[string]any:
		return packageList(v["packages"])
	case string:
		return []any{"-r " + v}
	case []any:
		return v
	}
	return nil
}

func (m *envMerger) conda(cluster, job any) any {
	ours, ok1 := cluster.(map[string]any)
	theirs, ok2 := job.(map[string]any)
	if !ok1 || !ok2 {
		if !reflect.DeepEqual(cluster, job) {
			m.note("the cluster's conda was left out: a conda environment that is made already cannot be merged with another, so the job's is taken")
		}
		return job
	}
	names1, pip1 := condaDependencies(ours)
	names2, pip2 := condaDependencies(theirs)
	out := deep(ours, theirs).(map[string]any)
	if deps := condaList(unitePackages(names1, names2, condaName), unitePackages(pip1, pip2, requirementName)); len(deps) > 0 {
		out["dependencies"] = deps
	}
	if c1, ok := ours["channels"].([]any); ok {
		if c2, ok := theirs["channels"].([]any); ok {
			out["channels"] = union(c2, c1) // what comes first is searched first
		}
	}
	return out
}

// condaDependencies takes conda's own packages and those of its pip part apart.
func condaDependencies(spec map[string]any) (names, pip []any) {
	list, _ := spec["dependencies"].([]any)
	for _, item := range list {
		if part, ok := item.(map[string]any); ok {
			inside, _ := part["pip"].([]any)
			pip = append(pip, inside...)
		} else {
			names = append(names, item)
		}
	}
	return names, pip
}

func condaList(names, pip []any) []any {
	if len(pip) == 0 {
		return names
	}
	return append(slices.Clip(names), map[string]any{"pip": pip})
}

// unitePackages is the cluster's packages but those that the job names otherwise, then the job's, each once.
func unitePackages(cluster, job []any, nameOf func(string) string) []any {
	named, same := map[string]bool{}, map[string]bool{}
	for _, item := range job {
		same[item.(string)] = true
		if name := nameOf(item.(string)); name != "" {
			named[name] = true
		}
	}
	var kept []any
	for _, item := range cluster {
		if text := item.(string); same[text] || !named[nameOf(text)] {
			kept = append(kept, item)
		}
	}
	return union(kept, job)
}

var (
	requirement = regexp.MustCompile(`^\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(?:$|[<>=!~;@(,#])`)
	eggName     = regexp.MustCompile(`[#&]egg=([A-Za-z0-9._-]+)`)
	dashes      = regexp.MustCompile(`[-_.]+`)
	condaPart   = regexp.MustCompile(`^\s*(?:[^\s:]+::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?:$|[<>=!~\[ ])`)
)

// requirementName is the package that a line of pip names, in the form in which names are compared; "" for
// options, files and addresses.
func requirementName(line string) string {
	name := ""
	if m := requirement.FindStringSubmatch(line); m != nil {
		name = m[1]
	} else if m := eggName.FindStringSubmatch(line); m != nil {
		name = m[1]
	}
	return strings.ToLower(dashes.ReplaceAllString(name, "-"))
}

// condaName is the package that an item of conda's dependencies names.
func condaName(item string) string {
	if m := condaPart.FindStringSubmatch(item); m != nil {
		return strings.ToLower(m[1])
	}
	return ""
}

// union is both lists, each item once.
func union(a, b []any) []any {
	out := make([]any, 0, len(a)+len(b))
	there := make(map[any]bool, len(a)+len(b))
	for _, item := range slices.Concat(a, b) {
		key := item
		switch item.(type) {
		case map[string]any, []any:
			text, _ := json.Marshal(item) // what was decoded can be written
			key = [1]string{string(text)} // no text is equal to this
		}
		if !there[key] {
			there[key] = true
			out = append(out, item)
		}
	}
	return out
}

// deep lays b over a: maps are merged, lists united, else b is taken. Neither is changed.
func deep(a, b any) any {
	switch b := b.(type) {
	case map[string]any:
		if a, ok := a.(map[string]any); ok {
			out := maps.Clone(a)
			for key, v := range b {
				if was, both := a[key]; both {
					v = deep(was, v)
				}
				out[key] = v
			}
			return out
		}
	case []any:
		if a, ok := a.([]any); ok {
			return union(a, b)
		}
	}
	return b
}
