package clusters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/schedulemesh/schedulemesh/ledger"
)

// Bounds on one cluster's configuration.
const (
	maxWeight   = 1000
	maxTags     = 64
	maxTagBytes = 128
)

// specFields are what may be said of a cluster.
var specFields = []string{"name", "head_address", "dashboard", "runtime_env", "prefer", "weight", "tags", "token", "max_resources"}

// meant are names of fields that people try.
var meant = map[string]string{
	"address": "head_address", "head": "head_address", "host": "head_address", "ray_address": "head_address",
	"dashboard_url": "dashboard", "dashboard_address": "dashboard", "env": "runtime_env", "environment": "runtime_env",
	"preferred": "prefer", "labels": "tags", "auth": "token", "auth_token": "token", "resources": "max_resources",
	"capacity": "max_resources", "resource_limits": "max_resources", "cluster": "clusters",
}

// ReadSpec reads one cluster from REST's JSON, an object with the fields that clusters.yaml has. An error is a
// *ledger.Error, "invalid" with all that is wrong in Fields.
func ReadSpec(name string, doc []byte) (Spec, error) {
	r := &specReader{}
	var s Spec
	if len(doc) > maxConfigBytes {
		r.bad(&value{}, "", "the cluster has %d bytes; at most %d are taken", len(doc), maxConfigBytes)
		return s, r.refusal()
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var x any
	if err := d.Decode(&x); err != nil || d.More() {
		r.bad(&value{}, "", "the cluster must be one JSON object%s", because(err))
		return s, r.refusal()
	}
	v := jsonValue(x)
	s = r.spec(name, v, v)
	if len(r.problems) > 0 {
		return Spec{}, r.refusal()
	}
	return s, nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return " (" + err.Error() + ")"
}

// specReader reads Specs and collects what is wrong with them.
type specReader struct{ problems []problem }

type problem struct {
	at    *value
	field string // "": of the whole
	why   string
}

func (p problem) sentence() string {
	if p.field == "" {
		return p.why
	}
	return p.field + " " + p.why
}

// bad notes a problem: why goes on after the field's name.
func (r *specReader) bad(at *value, field, format string, args ...any) {
	r.problems = append(r.problems, problem{at, field, fmt.Sprintf(format, args...)})
}

func (r *specReader) refusal() error {
	e := &ledger.Error{Code: ledger.ErrInvalid.Code, Fields: map[string]string{}}
	for _, p := range r.problems {
		field := p.field
		if field == "" {
			field = "cluster"
		}
		if e.Fields[field] == "" {
			e.Fields[field] = p.why
		}
		if e.Message == "" {
			e.Message = p.sentence()
		}
	}
	return e
}

func (r *specReader) spec(name string, at, v *value) Spec {
	s := Spec{Name: name, Weight: 1}
	if why := CheckName(name); why != "" {
		r.bad(at, "", "%s", why)
	}
	if v.kind != isObject {
		where := v
		if v.kind == isNull {
			where = at
		}
		r.bad(where, "", "cluster %q is %s; it must be a map with head_address at least", name, v.kind)
		return s
	}
	var head, dashboard *value
	for _, p := range v.pairs {
		if p.value.kind == isNull && slices.Contains(specFields, p.key) && p.key != "head_address" {
			continue // as if it were not there
		}
		switch p.key {
		case "name":
			if given := r.text(p.value, "name"); p.value.kind == isText && given != name {
				r.bad(p.value, "name", "is %q here, but the cluster is called %q; leave it out", given, name)
			}
		case "head_address":
			head = p.value
		case "dashboard":
			dashboard = p.value
		case "runtime_env":
			s.RuntimeEnv = r.env(p.value)
		case "prefer":
			if p.value.kind != isBool {
				r.bad(p.value, "prefer", "must be true or false, not %s", p.value.say())
			}
			s.Prefer = p.value.truth
		case "weight":
			s.Weight = r.weight(p.value)
		case "tags":
			s.Tags = r.tags(p.value)
		case "token":
			s.Token = r.token(p.value)
		case "max_resources":
			s.Most = r.resources(p.value)
		default:
			r.bad(p.at, p.key, "is an unknown field%s", near(p.key, specFields, "a cluster has "+strings.Join(specFields[1:], ", ")))
		}
	}
	if head == nil {
		r.bad(at, "head_address", "of cluster %q is missing; give the address of its head, such as 10.0.0.5:10001", name)
		return s
	}
	s.HeadAddress = r.head(head)
	if dashboard != nil {
		s.Dashboard = r.dashboard(dashboard)
	} else if host, _, err := net.SplitHostPort(s.HeadAddress); err == nil {
		s.Dashboard = "http://" + net.JoinHostPort(host, dashboardPort)
	}
	return s
}

var clusterName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckName says what is wrong with the name of a cluster, "" when nothing is.
func CheckName(name string) string {
	if clusterName.MatchString(name) {
		return ""
	}
	return fmt.Sprintf("%.100q cannot be the name of a cluster; use up to 64 of a-z A-Z 0-9 . _ - and begin with a letter or digit", name)
}

// say shows a value in a message.
func (v *value) say() string {
	switch v.kind {
	case isText:
		return fmt.Sprintf("%.100q", v.text)
	case isNumber, isBool:
		return v.text
	}
	return string(v.kind)
}

func (r *specReader) text(v *value, field string) string {
	if v.kind != isText {
		r.bad(v, field, "must be text, not %s; put it in quotes", v.say())
	}
	return v.text
}

func (r *specReader) weight(v *value) float64 {
	f, err := v.number.Float64()
	if v.kind != isNumber || !v.finite || err != nil || f <= 0 || f > maxWeight {
		r.bad(v, "weight", "must be a number above 0 and at most %d, not %s; hold a cluster that is to get no jobs", maxWeight, v.say())
		return 1
	}
	return f
}

func (r *specReader) tags(v *value) []string {
	if v.kind != isList {
		r.bad(v, "tags", "must be a list such as [gpu, stable], not %s", v.say())
		return nil
	}
	if len(v.items) > maxTags {
		r.bad(v, "tags", "has %d entries; at most %d are kept", len(v.items), maxTags)
		return nil
	}
	var tags []string
	for i, item := range v.items {
		field := fmt.Sprintf("tags[%d]", i)
		tag := r.text(item, field)
		switch {
		case item.kind != isText:
		case tag == "" || len(tag) > maxTagBytes || strings.ContainsFunc(tag, unprintable):
			r.bad(item, field, "must have 1 to %d printable characters", maxTagBytes)
		case !slices.Contains(tags, tag):
			tags = append(tags, tag)
		}
	}
	return tags
}

func unprintable(c rune) bool { return !unicode.IsPrint(c) || c == utf8.RuneError }

// env reads runtime_env, with every value of env_vars as it was written.
func (r *specReader) env(v *value) json.RawMessage {
	if v.kind != isObject {
		r.bad(v, "runtime_env", "must be a map, not %s", v.say())
		return nil
	}
	left := maxEnvBytes
	x, at, why := v.plain(&left)
	if why != "" {
		r.bad(at, "", "%s", why)
		return nil
	}
	env := x.(map[string]any)
	if vars := v.get("env_vars"); vars != nil && vars.kind == isObject {
		given := env["env_vars"].(map[string]any)
		for _, p := range vars.pairs {
			if p.value.kind == isNumber || p.value.kind == isBool {
				given[p.key] = p.value.text
			}
		}
	}
	if bad := normalEnv(env); bad != nil {
		r.bad(v.find(bad.path), "runtime_env"+bad.name(), "%s", bad.why)
		return nil
	}
	doc, bad := marshalEnv(env)
	if bad != nil {
		r.bad(v, "runtime_env", "%s", bad.why)
	}
	return doc
}

// find follows a path of keys and indexes as far as it goes.
func (v *value) find(path []any) *value {
	for _, step := range path {
		next := v
		switch step := step.(type) {
		case string:
			for _, p := range v.pairs {
				if p.key == step {
					next = p.value
				}
			}
		case int:
			if step < len(v.items) {
				next = v.items[step]
			}
		}
		if next == v {
			break
		}
		v = next
	}
	return v
}

// near names the field that somebody probably meant, else all there are.
func near(field string, known []string, all string) string {
	lower := strings.ReplaceAll(strings.ToLower(field), "-", "_")
	best, distance := meant[lower], 0
	if best == "" || !slices.Contains(known, best) {
		best, distance = "", 3
		for _, k := range known {
			if d := editDistance(lower, k); d < distance {
				best, distance = k, d
			}
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %s?", best)
	}
	return "; " + all
}

// editDistance counts insertions, removals and replacements; of long words only the length counts.
func editDistance(a, b string) int {
	if len(a) > 40 || len(b) > 40 {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			corner, row[j+1] = row[j+1], min(corner+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
