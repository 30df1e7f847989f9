package clusters_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// merges are a cluster's runtime_env, a job's, what becomes of both, and a word of each note.
var merges = []struct {
	name, cluster, job, want string
	notes                    []string
}{
	{"nothing and nothing", ``, `{}`, ``, nil},
	{"nothing in many words", `{"pip": [], "env_vars": {}, "working_dir": null}`, `null`, ``, nil},
	{"the cluster's alone", `{"pip": ["numpy"]}`, ``, `{"pip":["numpy"]}`, nil},
	{"the job's alone", ``, `{"pip": ["numpy>=1"], "config": {"eager_install": false}}`, `{"config":{"eager_install":false},"pip":["numpy>=1"]}`, nil},
	{
		"env_vars: the job's over the cluster's, as strings", `{"env_vars": ["A=1", "B=x=y", "C="]}`, `{"env_vars": {"B": 2, "D": true, "E": 1.50}}`,
		`{"env_vars":{"A":"1","B":"2","C":"","D":"true","E":"1.50"}}`, nil,
	},
	{"maps are merged deeply", `{"config": {"a": {"x": 1, "y": 2}, "b": [1]}}`, `{"config": {"a": {"y": 3}, "b": [1, 2]}}`, `{"config":{"a":{"x":1,"y":3},"b":[1,2]}}`, nil},
	{
		"pip: in order, each once, the job's requirement for a name", `{"pip": ["numpy==1.0", "Torch_Vision[gpu] >= 2", "pandas", "-r /x.txt", "git+https://h/r#egg=mine"]}`,
		`{"pip": ["pandas", "torch-vision==3", "numpy; python_version<'3.12'", "numpy>=2", "mine"]}`,
		`{"pip":["pandas","-r /x.txt","torch-vision==3","numpy; python_version<'3.12'","numpy>=2","mine"]}`, nil,
	},
	{
		"pip: addresses and files are compared as they stand", `{"pip": ["https://h/a-1.whl", "./b", "--index-url https://i", "c @ https://h/c.whl"]}`, `{"pip": ["c", "./b"]}`,
		`{"pip":["https://h/a-1.whl","./b","--index-url https://i","c"]}`, nil,
	},
	{
		"pip: options with a list", `{"pip": {"packages": ["a"], "pip_check": true, "pip_version": "==23"}}`, `{"pip": ["b"]}`,
		`{"pip":{"packages":["a","b"],"pip_check":true,"pip_version":"==23"}}`, nil,
	},
	{"pip: options of both", `{"pip": {"packages": ["a"], "pip_check": true}}`, `{"pip": {"packages": [], "pip_check": false}}`, `{"pip":{"packages":["a"],"pip_check":true}}`, nil},
	{"pip: a file alone stays as it is", `{"pip": "/etc/r.txt"}`, ``, `{"pip":"/etc/r.txt"}`, nil},
	{"pip: a file and a list", `{"pip": "/etc/r.txt"}`, `{"pip": ["a"]}`, `{"pip":["-r /etc/r.txt","a"]}`, nil},
	{"uv is as pip is", `{"uv": ["a==1", "b"]}`, `{"uv": {"packages": ["a==2"], "uv_check": true}}`, `{"uv":{"packages":["b","a==2"],"uv_check":true}}`, nil},
	{"uv over pip", `{"pip": {"packages": ["a", "b"], "pip_check": true}}`, `{"uv": ["b>1"]}`, `{"uv":["a","b>1"]}`, []string{"under pip were added to the job's under uv"}},
	{"pip over uv", `{"uv": ["a"]}`, `{"pip": ["b"]}`, `{"pip":["a","b"]}`, []string{"under uv were added to the job's under pip"}},
	{
		"the sample's own pair", `{"pip": ["torch", "torchvision"], "conda": {"dependencies": ["cudatoolkit=11.7"]}}`, ``,
		`{"conda":{"dependencies":["cudatoolkit=11.7",{"pip":["torch","torchvision"]}]}}`, []string{"pip was folded into conda's dependencies"},
	},
	{
		"the sample's job on the sample's cluster", `{"pip": ["torch", "torchvision"], "conda": {"dependencies": ["cudatoolkit=11.7"]}}`,
		`{"pip": ["numpy>=1.21.0", "pandas>=1.3.0"], "conda": {"dependencies": ["python=3.9"]}, "env_vars": {"OMP_NUM_THREADS": "1"}}`,
		`{"conda":{"dependencies":["cudatoolkit=11.7","python=3.9",{"pip":["torch","torchvision","numpy>=1.21.0","pandas>=1.3.0"]}]},"env_vars":{"OMP_NUM_THREADS":"1"}}`,
		[]string{"pip was folded into conda's dependencies"},
	},
	{
		"the job's pip on a conda cluster", `{"conda": {"channels": ["a", "b"], "dependencies": ["x", "python=3.8", {"pip": ["torch==1", "y"]}]}}`, `{"pip": ["torch==2"]}`,
		`{"conda":{"channels":["a","b"],"dependencies":["x","python=3.8",{"pip":["y","torch==2"]}]}}`, []string{"pip was folded"},
	},
	{
		"the cluster's pip under the job's conda", `{"pip": {"packages": ["torch==1", "y"], "pip_check": true}}`, `{"conda": {"channels": ["b"], "dependencies": ["pip", {"pip": ["torch==2"]}]}}`,
		`{"conda":{"channels":["b"],"dependencies":["pip",{"pip":["y","torch==2"]}]}}`, []string{"pip was folded", "other options under pip were left out"},
	},
	{
		"conda and conda: names replace, channels of the job first", `{"conda": {"name": "n", "channels": ["a", "b"], "dependencies": ["conda-forge::python=3.8", "z>1"]}}`,
		`{"conda": {"channels": ["b", "c"], "dependencies": ["python 3.11", "q"]}}`,
		`{"conda":{"channels":["b","c","a"],"dependencies":["z>1","python 3.11","q"],"name":"n"}}`, nil,
	},
	{"uv with conda", `{"conda": {"dependencies": ["x"]}}`, `{"uv": ["a"]}`, `{"conda":{"dependencies":["x",{"pip":["a"]}]}}`, []string{"uv was folded"}},
	{"pip of a file with conda", `{"conda": {}}`, `{"pip": "/r.txt"}`, `{"conda":{"dependencies":[{"pip":["-r /r.txt"]}]}}`, []string{"pip was folded"}},
	{"a conda name of the job's over the cluster's pip", `{"pip": ["a"], "env_vars": {"X": "1"}}`, `{"conda": "base"}`, `{"conda":"base","env_vars":{"X":"1"}}`, []string{"the cluster's pip was left out"}},
	{"a conda name over a description", `{"conda": {"dependencies": ["x"]}}`, `{"conda": "base"}`, `{"conda":"base"}`, []string{"the cluster's conda was left out"}},
	{"a description over a conda name", `{"conda": "base"}`, `{"conda": {"dependencies": ["x"]}, "pip": ["a"]}`, `{"conda":{"dependencies":["x",{"pip":["a"]}]}}`, []string{"pip was folded", "the cluster's conda was left out"}},
	{"the same conda name", `{"conda": "base"}`, `{"conda": "base"}`, `{"conda":"base"}`, nil},
	{
		"working_dir of the job's, modules of the job's first, excludes dropped", `{"working_dir": "s3://b/a.zip", "py_modules": ["s3://b/m.zip", "gcs://_ray_pkg_1.zip"]}`,
		`{"working_dir": "gcs://_ray_pkg_2.zip", "py_modules": ["gcs://_ray_pkg_1.zip", "gcs://_ray_pkg_3.zip"], "excludes": ["*.log"]}`,
		`{"py_modules":["gcs://_ray_pkg_1.zip","gcs://_ray_pkg_3.zip","s3://b/m.zip"],"working_dir":"gcs://_ray_pkg_2.zip"}`, []string{"excludes was left out"},
	},
	{"an image of the job's", `{"pip": ["a"], "working_dir": "s3://b/a.zip", "env_vars": {"A": "1"}}`, `{"image_uri": "i"}`, `{"env_vars":{"A":"1"},"image_uri":"i"}`, []string{"the cluster's pip was left out", "the cluster's working_dir was left out"}},
	{"an image of the cluster's", `{"image_uri": "i"}`, `{"env_vars": {"A": "1"}, "config": {"setup_timeout_seconds": 9}}`, `{"config":{"setup_timeout_seconds":9},"env_vars":{"A":"1"},"image_uri":"i"}`, nil},
	{"what plugins want is left to them", `{"plugin": {"a": [1, {"b": null}]}}`, `{"plugin": {"a": [{"b": null}, 2]}, "other": 1.0}`, `{"other":1.0,"plugin":{"a":[1,{"b":null},2]}}`, nil},
}

func TestAJobsRuntimeEnvIsLaidOverItsClusters(t *testing.T) {
	t.Parallel()
	for _, test := range merges {
		for range 3 { // the same every time
			got, notes, err := clusters.MergeEnv(json.RawMessage(test.cluster), json.RawMessage(test.job))
			if err != nil || string(got) != test.want {
				t.Errorf("%s:\n got %s, %v\nwant %s", test.name, got, err, test.want)
				break
			}
			if len(notes) != len(test.notes) {
				t.Errorf("%s: notes %q, want %q", test.name, notes, test.notes)
				break
			}
			for i, want := range test.notes {
				if !strings.Contains(notes[i], want) {
					t.Errorf("%s: note %q, want %q", test.name, notes[i], want)
				}
			}
			// Nothing is left to do, and nothing to say, the second time.
			again, notes, err := clusters.MergeEnv(nil, got)
			if err != nil || !reflect.DeepEqual(again, got) || len(notes) > 0 {
				t.Errorf("%s: once more: %s, %q, %v", test.name, again, notes, err)
			}
		}
	}
}

func TestRuntimeEnvsThatCannotBeMergedAreRefusedWithTheFieldAndWhatToDo(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for _, test := range []struct{ cluster, job, field, want string }{
		{``, `[]`, "runtime_env", "must be an object, not a list"},
		{``, `{`, "runtime_env", "is not JSON"},
		{``, `{"x": ` + deep + `}`, "runtime_env", "is not JSON"},
		{``, `{"x": "` + strings.Repeat("x", 1<<20) + `"}`, "runtime_env", "at most 1048576 are taken, so put large data into the working_dir"},
		{`{"x": "` + strings.Repeat("x", 1<<19) + `"}`, `{"y": "` + strings.Repeat("y", 1<<19) + `"}`, "runtime_env", "would have 1048592 bytes; at most"},
		{``, `{"pip": 5}`, "runtime_env.pip", "must be a list, not 5"},
		{``, `{"pip": "numpy"}`, "runtime_env.pip", "to name packages, write a list"},
		{``, `{"pip": "requirements.txt"}`, "runtime_env.pip", "must be absolute"},
		{``, `{"pip": ["a", {}]}`, "runtime_env.pip[1]", "must be text, not a map"},
		{``, `{"pip": [""]}`, "runtime_env.pip[0]", "is empty"},
		{``, `{"pip": {"pip_check": true}}`, "runtime_env.pip.packages", "is missing"},
		{``, `{"pip": {"packages": ["a"], "pip_check": "no"}}`, "runtime_env.pip.pip_check", "must be true or false"},
		{``, `{"uv": {"packages": ["a"], "uv_version": 2}}`, "runtime_env.uv.uv_version", "must be text"},
		{``, `{"pip": ["a"], "uv": ["b"]}`, "runtime_env.uv", "put all packages under one"},
		{``, `{"conda": 5}`, "runtime_env.conda", "must be an object with dependencies"},
		{``, `{"conda": {"dependencies": "x"}}`, "runtime_env.conda.dependencies", "must be a list"},
		{``, `{"conda": {"dependencies": [{"npm": ["x"]}]}}`, "runtime_env.conda.dependencies[0].npm", "is unknown"},
		{``, `{"conda": {"dependencies": [{"pip": "x"}]}}`, "runtime_env.conda.dependencies[0].pip", "must be a list"},
		{``, `{"conda": "base", "pip": ["a"]}`, "runtime_env.pip", "give conda as an object with dependencies"},
		{`{"conda": "base"}`, `{"pip": ["a"]}`, "runtime_env.pip", "this cluster's conda environment \"base\""},
		{`{"image_uri": "i"}`, `{"pip": ["a"]}`, "runtime_env.pip", "whose runtime_env has image_uri"},
		{``, `{"env_vars": "A=1"}`, "runtime_env.env_vars", "a list of NAME=value"},
		{``, `{"env_vars": {"A": null}}`, "runtime_env.env_vars.A", "must be text, not empty"},
		{``, `{"env_vars": {"A=B": "x"}}`, "runtime_env.env_vars.A=B", "has no = in it"},
		{``, `{"env_vars": {"A": "\u0000"}}`, "runtime_env.env_vars.A", "zero byte"},
		{``, `{"a": [{"b\u0000": 1}]}`, "runtime_env.a[0]", "zero byte"},
		{``, `{"working_dir": "/home/user/project"}`, "runtime_env.working_dir", "submit with the Python client or the command line"},
		{``, `{"working_dir": ["s3://x"]}`, "runtime_env.working_dir", "must be text"},
		{``, `{"py_modules": "s3://x"}`, "runtime_env.py_modules", "must be a list"},
		{``, `{"py_modules": ["mod"]}`, "runtime_env.py_modules[0]", "a path that the cluster cannot see"},
		{``, `{"excludes": [1]}`, "runtime_env.excludes[0]", "must be text"},
		{``, `{"config": []}`, "runtime_env.config", "must be an object"},
	} {
		got, _, err := clusters.MergeEnv(json.RawMessage(test.cluster), json.RawMessage(test.job))
		var e *ledger.Error
		if !errors.As(err, &e) || !errors.Is(err, ledger.ErrInvalid) || !strings.Contains(e.Fields[test.field], test.want) || got != nil {
			t.Errorf("%.80s: got %.100s, %v\nwant %s %s", test.job, got, err, test.field, test.want)
		}
		if test.cluster == "" {
			if _, alone := clusters.CheckEnv(json.RawMessage(test.job)); fmt.Sprint(alone) != fmt.Sprint(err) {
				t.Errorf("%.80s: alone %v, merged %v", test.job, alone, err)
			}
		}
	}
}

// Ray itself has the last word on what may stand together. Files and conda programs are on the cluster, not here.
func TestRayTakesWhatWasMerged(t *testing.T) {
	t.Parallel()
	python := os.Getenv("SCHEDULEMESH_PYTHON")
	if python == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("no Python with Ray: set SCHEDULEMESH_PYTHON; `make test` makes one")
		}
		t.Skip("no Python with Ray: set SCHEDULEMESH_PYTHON; `make test` makes one")
	}
	var envs []string
	for _, test := range merges {
		if test.want != "" && !strings.Contains(test.name, "file alone") && !strings.Contains(test.name, "plugins") {
			envs = append(envs, test.want)
		}
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", "import json, sys\nfrom ray.runtime_env import RuntimeEnv\n[RuntimeEnv(**env) for env in json.load(sys.stdin)]\nprint('taken')")
	cmd.Stdin = strings.NewReader("[" + strings.Join(envs, ",") + "]")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "taken") {
		t.Errorf("%v\n%s", err, out)
	}
}

func FuzzMergeEnvNeverPanicsAndIsStable(f *testing.F) {
	for _, test := range merges {
		f.Add([]byte(test.cluster), []byte(test.job))
	}
	f.Fuzz(func(t *testing.T, cluster, job []byte) {
		got, _, err := clusters.MergeEnv(cluster, job)
		if err != nil {
			if !errors.Is(err, ledger.ErrInvalid) {
				t.Errorf("got %v", err)
			}
			return
		}
		again, notes, err := clusters.MergeEnv(nil, got)
		if err != nil || string(again) != string(got) || len(notes) > 0 {
			t.Errorf("%s\n%s, %q, %v", got, again, notes, err)
		}
	})
}
