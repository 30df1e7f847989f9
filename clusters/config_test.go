package clusters_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// seed is the sample of the interface's documentation, as it stands there.
const seed = `# clusters.yaml
clusters:
  cpu_cluster:
    head_address: "123.456.789.0:10001"
    runtime_env:
      pip:
        - "numpy"
        - "pandas"
      env_vars:
        - "PYTHONPATH=/opt/code"
    prefer: true
    weight: 1.0
    tags: ["cpu", "stable"]

  gpu_cluster:
    head_address: "123.456.789.1:10002"
    runtime_env:
      pip:
        - "torch"
        - "torchvision"
      conda:
        dependencies: ["cudatoolkit=11.7"]
    prefer: false
    weight: 0.8
    tags: ["gpu", "experimental"]
`

func TestTheSampleConfigurationIsReadAsItStands(t *testing.T) {
	t.Parallel()
	want := []clusters.Spec{
		{
			Name: "cpu_cluster", HeadAddress: "123.456.789.0:10001", Dashboard: "http://123.456.789.0:8265", Prefer: true, Weight: 1,
			Tags: []string{"cpu", "stable"}, RuntimeEnv: json.RawMessage(`{"env_vars":{"PYTHONPATH":"/opt/code"},"pip":["numpy","pandas"]}`),
		},
		{
			Name: "gpu_cluster", HeadAddress: "123.456.789.1:10002", Dashboard: "http://123.456.789.1:8265", Weight: 0.8,
			Tags: []string{"gpu", "experimental"}, RuntimeEnv: json.RawMessage(`{"conda":{"dependencies":["cudatoolkit=11.7"]},"pip":["torch","torchvision"]}`),
		},
	}
	if got := read(t, seed); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// The same as a list, with everything else that may be said.
	got := read(t, `
x-env: &env
  pip: [numpy]
  env_vars: {A: 1, B: 1.10, C: true, D: "x", E: 0x1F}
clusters:
- name: a-1.b_c
  head_address: "[2001:db8::1]:10001"
  runtime_env: {<<: *env, working_dir: "s3://b/code.zip"}
  max_resources: {CPU: 64.5, gpu: 8, memory: 1.5, TPU-v4: 2}
  token: {env: RAY_A_TOKEN}
- name: "2"
  head_address: ray://head.example:10001
  dashboard: https://ray.example/behind/a/proxy/
  runtime_env: *env
  token: {file: /run/secrets/ray}
  tags:
- name: c
  head_address: head_c:1
  dashboard: "10.0.0.9"
- name: d
  head_address: d:1
  dashboard: "[::1]:7000"
`)
	env := `{"env_vars":{"A":"1","B":"1.10","C":"true","D":"x","E":"0x1F"},"pip":["numpy"]`
	want = []clusters.Spec{
		{
			Name: "a-1.b_c", HeadAddress: "[2001:db8::1]:10001", Dashboard: "http://[2001:db8::1]:8265", Weight: 1,
			RuntimeEnv: json.RawMessage(env + `,"working_dir":"s3://b/code.zip"}`), Token: &clusters.Secret{Env: "RAY_A_TOKEN"},
			Most: sched.Resources{CPU: 64500, GPU: 8000, Memory: 1536, Other: []sched.Amount{{Name: "TPU-v4", Value: 2000}}},
		},
		{
			Name: "2", HeadAddress: "head.example:10001", Dashboard: "https://ray.example/behind/a/proxy", Weight: 1,
			RuntimeEnv: json.RawMessage(env + `}`), Token: &clusters.Secret{File: "/run/secrets/ray"},
		},
		{Name: "c", HeadAddress: "head_c:1", Dashboard: "http://10.0.0.9:8265", Weight: 1},
		{Name: "d", HeadAddress: "d:1", Dashboard: "http://[::1]:7000", Weight: 1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := read(t, strings.ReplaceAll("\ufeff"+seed, "\n", "\r\n")); len(got) != 2 || got[1].Tags[1] != "experimental" {
		t.Errorf("as Windows writes it: %+v", got)
	}
	if got := read(t, "clusters: {}"); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestWhatIsWrongInAConfigurationIsSaidWithItsPlaceAndWhatToDo(t *testing.T) {
	t.Parallel()
	c := func(fields string) string { return "clusters:\n  c:\n    head_address: 'h:1'\n    " + fields + "\n" }
	for _, test := range []struct{ text, want string }{
		{"", "1:1: the file is empty; it must begin with clusters:"},
		{"# nothing\n---\n", "1:1: the file is empty"},
		{"name: x\n", "1:1: unknown field \"name\"; the file has clusters:"},
		{"cluster:\n  a: {head_address: 'h:1'}", "1:1: unknown field \"cluster\"; did you mean clusters?"},
		{"x-a: 1\n", "1:1: there is no clusters: in this file"},
		{"clusters:\n", "1:1: clusters: has nothing under it; indent"},
		{"clusters: 5\n", "1:11: clusters: is a number; it must be a map"},
		{"- a\n", "1:1: this is a list; the file must begin with clusters:"},
		{"clusters: {}\n---\nclusters: {}\n", "2:1: a second document begins here"},
		{"clusters:\n  a: {head_address: 'h:1'}\n  a: {head_address: 'h:2'}\n", "3:3: \"a\" is there already, in line 2"},
		{"clusters:\n- {name: a, head_address: 'h:1'}\n- {name: a, head_address: 'h:2'}\n", "3:10: cluster \"a\" is there already, in line 2"},
		{"clusters:\n- {head_address: 'h:1'}\n", "2:3: this cluster has no name; add name:"},
		{"clusters:\n- {name: 5, head_address: 'h:1'}\n", "2:10: name must be text, not 5; put it in quotes"},
		{"clusters:\n- a\n", "2:3: this is text; each cluster of a list is a map"},
		{"clusters:\n  a:\n  b: {head_address: 'h:1'}\n", "2:3: cluster \"a\" is empty; it must be a map"},
		{"clusters:\n  a: h:1\n", "2:6: cluster \"a\" is text; it must be a map with head_address"},
		{"clusters:\n  a/b: {head_address: 'h:1'}\n", "2:3: \"a/b\" cannot be the name of a cluster; use up to 64 of"},
		{"clusters:\n  " + strings.Repeat("a", 65) + ": {head_address: 'h:1'}\n", "2:3: \"aaaa"},
		{"clusters:\n  集群: {head_address: 'h:1'}\n", "2:3: \"集群\" cannot be the name"},
		{"clusters:\n  a: {prefer: true}\n", "2:3: head_address of cluster \"a\" is missing; give"},
		{"clusters:\n  a: {head_address: }\n", "2:7: head_address must be host:port in quotes"},
		{"clusters:\n  a: {head_address: h}\n", "2:21: head_address is \"h\", without a port; write host:port, such as h:10001"},
		{"clusters:\n  a: {head_address: 'h:x'}\n", "2:21: head_address has \"x\" for a port; it must be a number from 1 to 65535"},
		{"clusters:\n  a: {head_address: 'h:70000'}\n", "2:21: head_address has \"70000\" for a port"},
		{"clusters:\n  a: {head_address: '::1:10001'}\n", "2:21: head_address is \"::1:10001\"; an IPv6 address with its port is written as [::1]:10001"},
		{"clusters:\n  a: {head_address: 'http://h:1'}\n", "2:21: head_address is \"http://h:1\"; write host:port without http://"},
		{"clusters:\n  a: {head_address: 'h h:1'}\n", "2:21: head_address has \"h h\" for a host, which is neither a name nor an IP address"},
		{"clusters:\n  a: {head_address: '[fe80::1%eth0]:1'}\n", "2:21: head_address has \"fe80::1%eth0\" for a host"},
		{c("head: x"), "4:5: head is an unknown field; did you mean head_address?"},
		{c("wieght: 1"), "4:5: wieght is an unknown field; did you mean weight?"},
		{c("runtime-env: {}"), "4:5: runtime-env is an unknown field; did you mean runtime_env?"},
		{c("region: eu"), "4:5: region is an unknown field; a cluster has head_address, dashboard"},
		{c("name: d"), "4:11: name is \"d\" here, but the cluster is called \"c\""},
		{c("runtime_env: {env_vars: {\"名字\": \"中文\"}, pip: 5}"), "4:48: runtime_env.pip must be a list"},
		{c("prefer: yes"), "4:13: prefer must be true or false, not \"yes\""},
		{c("weight: heavy"), "4:13: weight must be a number above 0 and at most 1000, not \"heavy\""},
		{c("weight: 0"), "4:13: weight must be a number above 0 and at most 1000, not 0; hold a cluster"},
		{c("weight: -1"), "4:13: weight must be"},
		{c("weight: .nan"), "4:13: weight must be a number above 0 and at most 1000, not .nan"},
		{c("weight: .inf"), "4:13: weight must be"},
		{c("weight: 1001"), "4:13: weight must be"},
		{c("tags: gpu"), "4:11: tags must be a list such as [gpu, stable], not \"gpu\""},
		{c("tags: [a, 5]"), "4:15: tags[1] must be text, not 5; put it in quotes"},
		{c("tags: ['']"), "4:12: tags[0] must have 1 to 128 printable characters"},
		{c("dashboard: ftp://h"), "4:16: dashboard is \"ftp://h\"; it must begin with http:// or https://"},
		{c("dashboard: http://u:pw@h"), "4:16: dashboard has a user or password in it"},
		{c("dashboard: http://h/?token=x"), "4:16: dashboard must end before any ? or #"},
		{c("dashboard: 'h:0'"), "4:16: dashboard has \"0\" for a port"},
		{c("token: s3cr3t"), "4:12: token must not stand here itself, since configurations are kept and shown; write token: {env: NAME}"},
		{c("token: {env: A_TOKEN, file: /x}"), "4:12: token must have one of env and file"},
		{c("token: {}"), "4:12: token must have one of env and file"},
		{c("token: {env: DATABASE_URL}"), "4:18: token.env must be the name of an environment variable with TOKEN in it"},
		{c("token: {file: rel/path}"), "4:19: token.file must be an absolute path"},
		{c("token: {value: x}"), "4:13: token.value is an unknown field; token has env or file"},
		{c("max_resources: 5"), "4:20: max_resources must be a map such as {CPU: 64, GPU: 8, memory: 256}, memory in GiB"},
		{c("max_resources: {CPU: many}"), "4:26: max_resources.CPU must be a number"},
		{c("max_resources: {GPU: -1}"), "4:26: max_resources.GPU is -1, which is negative"},
		{c("max_resources: {CPU: 1, cpu: 2}"), "4:34: max_resources.cpu is given twice"},
		{c("runtime_env: x"), "4:18: runtime_env must be a map, not \"x\""},
		{c("runtime_env: {working_dir: /home/me}"), "4:32: runtime_env.working_dir is \"/home/me\", a path that the cluster cannot see"},
		{c("runtime_env: {py_modules: [s3://a/b.zip, ./m]}"), "4:46: runtime_env.py_modules[1] is \"./m\", a path"},
		{c("runtime_env: {env_vars: [A]}"), "4:30: runtime_env.env_vars[0] must be text such as NAME=value, not \"A\""},
		{c("runtime_env: {env_vars: {A: }}"), "4:30: runtime_env.env_vars.A must be text, not empty; write \"\""},
		{c("runtime_env: {env_vars: {A: [1]}}"), "4:33: runtime_env.env_vars.A must be text, not a list"},
		{c("runtime_env: {pip: numpy}"), "4:24: runtime_env.pip is \"numpy\": a single text is the path of a requirements file"},
		{c("runtime_env: {pip: [5]}"), "4:25: runtime_env.pip[0] must be text, not 5"},
		{c("runtime_env: {pip: {package: [a]}}"), "4:34: runtime_env.pip.package is an unknown field; did you mean packages?"},
		{c("runtime_env: {pip: [a], uv: [b]}"), "4:33: runtime_env.uv and pip are both given"},
		{c("runtime_env: {pip: [a], conda: base}"), "4:24: runtime_env.pip cannot be added to the conda environment \"base\""},
		{c("runtime_env: {config: {x: .inf}}"), "4:31: .inf is not a number that can be sent"},
		{c("runtime_env: {env_vars: {A: \"a\\0b\"}}"), "4:33: runtime_env.env_vars.A has a zero byte"},
		{c("tags: *a"), "4:11: the alias *a has no anchor &a that ends before it"},
		{"a: &a [*a]", "1:8: the alias *a has no anchor"},
		{c("<<: 5"), "4:9: <<: wants a map, or a list of maps, and this is a number"},
		{c("tags: !!binary x"), "4:11: tags that begin with ! are not read here"},
		{c("? tags\n    : []"), "4:5: keys that begin with ? are not read here"},
		{c("tags: [a"), "close the list with ]"},
		{c("tags: 'a"), "4:11: this is not YAML: could not find end character of single-quoted text; close the quotes"},
		{"clusters:\n\ta: {}", "2:1: this is not YAML: found character '\\t' that cannot start any token; indent with spaces"},
		{c("tags: a: b"), "4:11: this is not YAML: mapping value is not allowed in this context; put text with a colon"},
		{"clusters:\n  a: \xff\n", "2:6: there is a byte that is no UTF-8 text"},
		{"clusters:\n  a: \x00\n", "2:6: there is a byte that is no UTF-8 text"},
		{strings.Repeat("#", 1<<20+1), "1:1: the file has 1048577 bytes; at most 1048576 are read"},
	} {
		_, err := clusters.ReadConfig("my.yaml", []byte(test.text))
		var e *clusters.ConfigError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), test.want) || e.Line < 1 || e.Column < 1 || e.File != "my.yaml" {
			t.Errorf("%.200q\n got %v\nwant %s", test.text, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "pw") || err != nil && strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("a secret is repeated: %v", err)
		}
	}
}

func TestAnchorsAndMergeKeysWork(t *testing.T) {
	t.Parallel()
	specs := read(t, `
x-all:
  - &base {weight: 2, tags: [base], prefer: true}
  - &more {weight: 3, max_resources: {CPU: 1}}
clusters:
  a: {<<: *base, head_address: "a:1", weight: 5}
  b:
    head_address: "b:1"
    <<: [*base, *more]
`)
	if a := specs[0]; a.Weight != 5 || !a.Prefer || a.Tags[0] != "base" {
		t.Errorf("got %+v", a)
	}
	if b := specs[1]; b.Weight != 2 || !b.Prefer || b.Most.CPU != 1000 {
		t.Errorf("got %+v", b)
	}
}

// Not parallel: it takes memory while other tests measure theirs.
func TestConfigurationsThatAreMadeToExhaustAreRefusedInTime(t *testing.T) {
	many := func(n int, f func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(f(i))
		}
		return b.String()
	}
	laughs := "x-0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + many(12, func(i int) string {
		return fmt.Sprintf("x-%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	})
	for name, text := range map[string]string{
		"aliases of aliases":     laughs + "clusters: {c: {head_address: 'h:1', runtime_env: {plugin: *a12}}}",
		"a long text many times": "x-a: &a " + strings.Repeat("x", 500_000) + "\nclusters: {c: {head_address: 'h:1', runtime_env: {pip: [" + strings.Repeat("*a,", 100_000) + "]}}}",
		"merges of merges": "x-a: &a {" + many(20_000, func(i int) string { return fmt.Sprintf("k%d: 1,", i) }) + "}\nx-b: [" +
			many(30_000, func(int) string { return "{<<: *a}," }) + "]\nclusters: {}",
		"deep lists":     strings.Repeat("[", 500_000),
		"deep maps":      strings.Repeat("{a: ", 200_000),
		"deep dashes":    strings.Repeat("- ", 500_000),
		"deep indents":   many(1000, func(i int) string { return strings.Repeat(" ", i) + "a:\n" }),
		"many keys":      many(130_000, func(i int) string { return fmt.Sprintf("a%d:\n", i) }),
		"many anchors":   many(100_000, func(i int) string { return fmt.Sprintf("- &a%d x\n", i) }),
		"many documents": strings.Repeat("---\n", 250_000),
	} {
		began := time.Now()
		if _, err := clusters.ReadConfig("f", []byte(text)); err == nil {
			t.Errorf("%s: taken", name)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
	// While what people have is fine.
	ten := "clusters:\n" + many(9000, func(i int) string {
		return fmt.Sprintf("  c%d:\n    head_address: 'h%d:10001'\n    weight: 1.5\n    tags: [a]\n", i, i)
	})
	if got := read(t, ten); len(got) != 9000 {
		t.Errorf("%d clusters", len(got))
	}
}

func FuzzReadConfigNeverPanicsAndSaysWhere(f *testing.F) {
	for _, s := range []string{seed, twoClusters, "clusters: [{name: a, head_address: 'h:1', <<: *x}]", "x-a: &a {b: 1}\nclusters: {c: {<<: *a}}", "a: |\n  x\n? y\n: z", "&a *a", "!!x {", "\"\\u0000\": .nan"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		specs, err := clusters.ReadConfig("f", text)
		var e *clusters.ConfigError
		if err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Column < 1 || e.Message == "") {
			t.Errorf("got %v", err)
		}
		for _, s := range specs {
			if clusters.CheckName(s.Name) != "" || s.Dashboard == "" || s.HeadAddress == "" || !(s.Weight > 0) || !utf8.ValidString(s.Dashboard) {
				t.Errorf("got %+v", s)
			}
			doc, err := json.Marshal(s)
			if err != nil || strings.Contains(string(doc), `\u0000`) {
				t.Errorf("got %s, %v", doc, err)
			}
		}
	})
}

func TestAClusterOfRESTIsCheckedAsAWhole(t *testing.T) {
	t.Parallel()
	s := spec(t, "gpu", `{"head_address": "10.0.0.5:10001", "prefer": null, "runtime_env": {"env_vars": ["A=b"]}, "max_resources": {"CPU": 1e3}}`)
	if s.Name != "gpu" || s.Weight != 1 || s.Most.CPU != 1_000_000 || string(s.RuntimeEnv) != `{"env_vars":{"A":"b"}}` {
		t.Errorf("got %+v", s)
	}
	_, err := clusters.ReadSpec("a b", []byte(`{"head_address": 5, "weight": -1, "wieght": 1, "tags": [7], "token": "x", "runtime_env": {"working_dir": "."}, "max_resources": {"CPU": "x"}}`))
	var e *ledger.Error
	if !errors.As(err, &e) || !errors.Is(err, ledger.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	for _, field := range []string{"cluster", "head_address", "weight", "wieght", "tags[0]", "token", "runtime_env.working_dir", "max_resources.CPU"} {
		if e.Fields[field] == "" {
			t.Errorf("nothing is said of %s: %v", field, e.Fields)
		}
	}
	for _, doc := range []string{"", "[]", "5", "null", `{"head_address": "h:1"} {}`, `{"head_address": "h:1"`, strings.Repeat("[", 100_000), `{"runtime_env": ` + strings.Repeat(" ", 1<<20) + `}`} {
		if _, err := clusters.ReadSpec("a", []byte(doc)); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("%.30q: %v", doc, err)
		}
	}
}

func TestAmountsComeBackAsTheyWereGiven(t *testing.T) {
	t.Parallel()
	given := map[string]float64{"CPU": 1.5, "GPU": 2, "memory": 16, "TPU": 1}
	amounts, name, why := clusters.FromRay(given)
	if why != "" || amounts.Memory != 16*1024 || !reflect.DeepEqual(clusters.ToRay(amounts), given) {
		t.Errorf("got %+v, %s %s, %v", amounts, name, why, clusters.ToRay(amounts))
	}
}

func TestASecretIsReadFromItsPlaceAndNeverRepeated(t *testing.T) {
	t.Setenv("SOME_TOKEN", " tok-1\n")
	t.Setenv("BAD_TOKEN", "two words")
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		write(t, p, text)
		return p
	}
	for _, test := range []struct {
		s          clusters.Secret
		want, fail string
	}{
		{s: clusters.Secret{Env: "SOME_TOKEN"}, want: "tok-1"},
		{s: clusters.Secret{Env: "NO_SUCH_TOKEN"}, fail: "NO_SUCH_TOKEN"},
		{s: clusters.Secret{Env: "BAD_TOKEN"}, fail: "BAD_TOKEN has no token in it"},
		{s: clusters.Secret{File: file("ok", "tok-2\n")}, want: "tok-2"},
		{s: clusters.Secret{File: file("empty", "\n")}, fail: "is empty"},
		{s: clusters.Secret{File: file("lines", "root:secret:1\nuser:words:2\n")}, fail: "has no token in it"},
		{s: clusters.Secret{File: file("large", strings.Repeat("words", 10_000))}, fail: "not a small file"},
		{s: clusters.Secret{File: dir}, fail: "not a small file"},
		{s: clusters.Secret{File: filepath.Join(dir, "none")}, fail: "no such file"},
	} {
		got, err := test.s.Read()
		if got != test.want || (err != nil) != (test.fail != "") || err != nil && (!strings.Contains(err.Error(), test.fail) || strings.Contains(err.Error(), "words")) {
			t.Errorf("%+v: got %q, %v", test.s, got, err)
		}
	}
}

func TestTheConfigurationIsLookedForWhereItWasSaidAndThenWhereItUsuallyIs(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	env := map[string]string{}
	find := func(flag string) string {
		path, ok := clusters.FindConfig(flag, func(name string) string { return env[name] })
		if ok != (path != "") {
			t.Errorf("got %q, %v", path, ok)
		}
		rel, _ := filepath.Rel(dir, path)
		if path == "" {
			return ""
		}
		return rel
	}
	put := func(path string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, seed)
	}
	for _, step := range []struct {
		do         func()
		flag, want string
	}{
		{do: func() {}, want: ""},
		{do: func() { env["HOME"] = dir; put(".config/schedulemesh/clusters.yaml") }, want: ".config/schedulemesh/clusters.yaml"},
		{do: func() { env["XDG_CONFIG_HOME"] = filepath.Join(dir, "xdg"); put("xdg/schedulemesh/clusters.yaml") }, want: "xdg/schedulemesh/clusters.yaml"},
		{do: func() { put("clusters.yaml") }, want: "clusters.yaml"},
		{do: func() { env["SCHEDULEMESH_CLUSTERS"] = "not-there.yaml" }, want: "not-there.yaml"},
		{do: func() {}, flag: "/said.yaml", want: "../"},
	} {
		step.do()
		if got := find(step.flag); got != step.want && !(step.flag != "" && strings.HasSuffix(got, "said.yaml")) {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
}

func TestEveryExampleOfTheDocumentIsTaken(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/clusters.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := strings.Split(string(doc), "```yaml\n")[1:]
	if len(examples) < 3 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, e := range examples {
		text, _, _ := strings.Cut(e, "```")
		if specs := read(t, text); len(specs) != 2 {
			t.Errorf("%s\n%+v", text, specs)
		}
	}
	for _, field := range []string{"head_address", "dashboard", "runtime_env", "prefer", "weight", "tags", "token", "max_resources"} {
		if !strings.Contains(string(doc), "| `"+field+"` |") {
			t.Errorf("%s is not explained", field)
		}
	}
}
