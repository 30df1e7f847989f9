package clusters

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/schedulemesh/schedulemesh/ledger"
)

// maxEnvBytes bounds a runtime_env, and what two of them are merged to.
const maxEnvBytes = 1 << 20

// CheckEnv checks a runtime_env and gives its normal form: env_vars is a map of strings, nothing is null, keys are
// sorted. It is nil when there is nothing in it. Errors are *ledger.Error, "invalid" with Fields that begin with
// runtime_env.
func CheckEnv(doc json.RawMessage) (json.RawMessage, error) {
	env, bad := readEnv(doc)
	if bad != nil {
		return nil, bad.refusal()
	}
	out, bad := marshalEnv(env)
	if bad != nil {
		return nil, bad.refusal()
	}
	return out, nil
}

// envProblem is what is wrong with a runtime_env, and where in it.
type envProblem struct {
	path []any  // keys and indexes
	why  string // goes on after the name of the field
}

func (p *envProblem) name() string {
	var b strings.Builder
	for _, step := range p.path {
		switch step := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", step)
		default:
			fmt.Fprintf(&b, ".%.100v", step)
		}
	}
	return b.String()
}

func (p *envProblem) refusal() error {
	field := "runtime_env" + p.name()
	return &ledger.Error{Code: ledger.ErrInvalid.Code, Message: field + " " + p.why, Fields: map[string]string{field: p.why}}
}

func wrong(path []any, format string, args ...any) *envProblem {
	return &envProblem{slices.Clone(path), fmt.Sprintf(format, args...)}
}

func readEnv(doc json.RawMessage) (map[string]any, *envProblem) {
	if len(doc) > maxEnvBytes {
		return nil, wrong(nil, "has %d bytes; at most %d are taken, so put large data into the working_dir", len(doc), maxEnvBytes)
	}
	if len(bytes.TrimSpace(doc)) == 0 {
		return map[string]any{}, nil
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var x any
	if err := d.Decode(&x); err != nil {
		return nil, wrong(nil, "is not JSON (%v)", err)
	}
	env, ok := x.(map[string]any)
	if x != nil && !ok {
		return nil, wrong(nil, "must be an object, not %s", jsonValue(x).say())
	}
	if env == nil {
		env = map[string]any{}
	}
	if bad := normalEnv(env); bad != nil {
		return nil, bad
	}
	return env, nil
}

// marshalEnv writes an env; nil when it is empty.
func marshalEnv(env map[string]any) (json.RawMessage, *envProblem) {
	if len(env) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // pip's >= stays readable
	if err := e.Encode(env); err != nil {
		return nil, wrong(nil, "cannot be written as JSON (%v)", err)
	}
	if b.Len() > maxEnvBytes {
		return nil, wrong(nil, "would have %d bytes; at most %d can be sent", b.Len(), maxEnvBytes)
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// normalEnv checks an env and brings it into its normal form, in place. What it does not know, such as plugins of
// the cluster, stays as it is.
func normalEnv(env map[string]any) *envProblem {
	if bad := noZeros(nil, env); bad != nil {
		return bad
	}
	maps.DeleteFunc(env, func(_ string, v any) bool { return v == nil }) // as Ray takes it
	for _, key := range sortedKeys(env) {
		v, at := env[key], []any{key}
		var bad *envProblem
		switch key {
		case "env_vars":
			env[key], bad = envVars(at, v)
		case "pip", "uv":
			bad = packages(key, v)
		case "conda":
			bad = conda(v)
		case "working_dir":
			bad = packageURI(at, v)
		case "py_modules":
			bad = each(at, v, packageURI)
		case "excludes":
			bad = each(at, v, isString)
		case "config":
			if _, ok := v.(map[string]any); !ok {
				bad = wrong(at, "must be an object, not %s", jsonValue(v).say())
			}
		}
		if bad != nil {
			return bad
		}
	}
	for _, key := range []string{"env_vars", "pip", "uv", "py_modules", "excludes"} {
		if nothing(env[key]) {
			delete(env, key) // as Ray takes it
		}
	}
	if env["pip"] != nil && env["uv"] != nil {
		return wrong([]any{"uv"}, "and pip are both given; Ray takes one of them, so put all packages under one")
	}
	if name, ok := env["conda"].(string); ok {
		if tool := cmp.Or(given(env, "pip"), given(env, "uv")); tool != "" {
			return wrong([]any{tool}, "cannot be added to the conda environment %.100q, which is made already; give conda as an object with dependencies, or leave one of both out", name)
		}
	}
	return nil
}

// nothing reports whether a field that was checked says nothing.
func nothing(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		list, alone := v["packages"].([]any)
		return len(v) == 0 || alone && len(list) == 0
	}
	return v == nil
}

func given(env map[string]any, key string) string {
	if env[key] == nil {
		return ""
	}
	return key
}

// noZeros refuses text that the database cannot keep.
func noZeros(at []any, v any) *envProblem {
	switch v := v.(type) {
	case string:
		if strings.ContainsRune(v, 0) {
			return wrong(at, "has a zero byte in it, which cannot be part of text; remove it")
		}
	case []any:
		for i, item := range v {
			if bad := noZeros(append(at, i), item); bad != nil {
				return bad
			}
		}
	case map[string]any:
		for _, key := range sortedKeys(v) {
			if strings.ContainsRune(key, 0) {
				return wrong(at, "has a key with a zero byte in it; remove that")
			}
			if bad := noZeros(append(at, key), v[key]); bad != nil {
				return bad
			}
		}
	}
	return nil
}

// each checks the items of a list.
func each(at []any, v any, check func([]any, any) *envProblem) *envProblem {
	list, ok := v.([]any)
	if !ok {
		return wrong(at, "must be a list, not %s", jsonValue(v).say())
	}
	for i, item := range list {
		if bad := check(append(at, i), item); bad != nil {
			return bad
		}
	}
	return nil
}

func isString(at []any, v any) *envProblem {
	s, ok := v.(string)
	if !ok {
		return wrong(at, "must be text, not %s", jsonValue(v).say())
	}
	if s == "" {
		return wrong(at, "is empty; leave it out")
	}
	return nil
}

// envVars reads a map, or a list of K=V, into a map of strings.
func envVars(at []any, v any) (any, *envProblem) {
	out := map[string]any{}
	set := func(at []any, key string, v any) *envProblem {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			return wrong(at, "has the name %.100q; a name is not empty and has no = in it", key)
		}
		switch v := v.(type) {
		case string:
			out[key] = v
		case json.Number:
			out[key] = v.String()
		case bool:
			out[key] = fmt.Sprint(v)
		default:
			return wrong(at, "must be text, not %s; write \"\" for an empty one", jsonValue(v).say())
		}
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		for _, key := range sortedKeys(v) {
			if bad := set(append(at, key), key, v[key]); bad != nil {
				return nil, bad
			}
		}
	case []any:
		for i, item := range v {
			line, _ := item.(string)
			key, value, ok := strings.Cut(line, "=")
			if !ok {
				return nil, wrong(append(at, i), "must be text such as NAME=value, not %s", jsonValue(item).say())
			}
			if bad := set(append(at, i), strings.TrimSpace(key), value); bad != nil {
				return nil, bad
			}
		}
	default:
		return nil, wrong(at, "must be an object of names and values, or a list of NAME=value, not %s", jsonValue(v).say())
	}
	return out, nil
}

// toolOptions are what an object under pip or uv may have.
var toolOptions = map[string][]string{
	"pip": {"packages", "pip_check", "pip_version", "pip_install_options"},
	"uv":  {"packages", "uv_check", "uv_version", "uv_pip_install_options"},
}

// packages checks what is under pip or uv: a list, an object with packages, or the path of a requirements file.
func packages(tool string, v any) *envProblem {
	at := []any{tool}
	if options, ok := v.(map[string]any); ok {
		for _, key := range sortedKeys(options) {
			if !slices.Contains(toolOptions[tool], key) {
				return wrong(append(at, key), "is an unknown field%s", near(key, toolOptions[tool], tool+" has "+strings.Join(toolOptions[tool], ", ")))
			}
		}
		for key, item := range options {
			if _, isBool := item.(bool); strings.HasSuffix(key, "_check") && !isBool {
				return wrong(append(at, key), "must be true or false, not %s", jsonValue(item).say())
			} else if strings.HasSuffix(key, "_version") {
				if bad := isString(append(at, key), item); bad != nil {
					return bad
				}
			} else if strings.HasSuffix(key, "_options") {
				if bad := each(append(at, key), item, isString); bad != nil {
					return bad
				}
			}
		}
		at = append(at, "packages")
		if v = options["packages"]; v == nil {
			return wrong(at, "is missing; list the packages under it")
		}
	}
	if file, ok := v.(string); ok {
		if !path.IsAbs(file) {
			return wrong(at, "is %.200q: a single text is the path of a requirements file on the cluster, which must be absolute; to name packages, write a list", file)
		}
		return nil
	}
	return each(at, v, isString)
}

// conda checks an environment's name, or path on the cluster, or its description.
func conda(v any) *envProblem {
	at := []any{"conda"}
	spec, ok := v.(map[string]any)
	if !ok {
		if s, _ := v.(string); s == "" {
			return wrong(at, "must be an object with dependencies, or the name of an environment on the cluster, not %s", jsonValue(v).say())
		}
		return nil
	}
	for _, key := range []string{"dependencies", "channels"} {
		if spec[key] == nil {
			delete(spec, key)
			continue
		}
		bad := each(append(at, key), spec[key], func(at []any, item any) *envProblem {
			part, ok := item.(map[string]any)
			if !ok || key != "dependencies" {
				return isString(at, item)
			}
			for _, name := range sortedKeys(part) {
				if name != "pip" {
					return wrong(append(at, name), "is unknown; besides packages, conda's dependencies have {pip: [...]} at most")
				}
				if bad := each(append(at, name), part[name], isString); bad != nil {
					return bad
				}
			}
			return nil
		})
		if bad != nil {
			return bad
		}
	}
	return nil
}

var uri = regexp.MustCompile(`^([a-z][a-z0-9+.-]*)://.`)

// schemes are what Ray fetches packages by.
var schemes = []string{"gcs", "http", "https", "s3", "gs", "azure", "abfss", "file", "local"}

// packageURI checks a working_dir or a module. Directories are packed and uploaded before they come here.
func packageURI(at []any, v any) *envProblem {
	if bad := isString(at, v); bad != nil {
		return bad
	}
	s := v.(string)
	parts := uri.FindStringSubmatch(s)
	if parts == nil {
		return wrong(at, "is %.200q, a path that the cluster cannot see; submit with the Python client or the command line, which upload directories, or give a URI such as gcs://, s3:// or https://", s)
	}
	if !slices.Contains(schemes, parts[1]) {
		return wrong(at, "is %.200q, which Ray cannot fetch; it knows %s", s, strings.Join(schemes, ", "))
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
