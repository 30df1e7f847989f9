package clusters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// dashboardPort is where Ray's dashboard listens unless told otherwise.
const dashboardPort = "8265"

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

// hostName is any name that may be resolved; numbers that are no IP address are names too.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?$`)

// hostPort reads host:port, [IPv6]:port, or, where a port is known without being said, the host alone.
func hostPort(text, usual string) (host, port string, why string) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		bare := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
		switch _, ip := netip.ParseAddr(bare); {
		case strings.Count(text, ":") > 1 && !strings.HasPrefix(text, "["):
			return "", "", fmt.Sprintf("is %.200q; an IPv6 address with its port is written as [::1]:10001", text)
		case usual != "" && (ip == nil || !strings.Contains(text, ":")):
			host, port = bare, usual
		default:
			return "", "", fmt.Sprintf("is %.200q, without a port; write host:port, such as %s:10001", text, text)
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", fmt.Sprintf("has %.100q for a port; it must be a number from 1 to 65535", port)
	}
	addr, err := netip.ParseAddr(host)
	if err == nil && addr.Zone() == "" || hostName.MatchString(host) {
		return host, port, ""
	}
	return "", "", fmt.Sprintf("has %.200q for a host, which is neither a name nor an IP address", host)
}

func (r *specReader) head(v *value) string {
	if v.kind != isText || v.text == "" {
		r.bad(v, "head_address", "must be host:port in quotes, such as \"10.0.0.5:10001\", not %s", v.say())
		return ""
	}
	host, port, why := hostPort(strings.TrimPrefix(v.text, "ray://"), "")
	if strings.Contains(v.text, "://") && !strings.HasPrefix(v.text, "ray://") {
		why = fmt.Sprintf("is %.200q; write host:port without http://, and the dashboard's address as dashboard", v.text)
	}
	if why != "" {
		r.bad(v, "head_address", "%s", why)
		return ""
	}
	return net.JoinHostPort(host, port)
}

func (r *specReader) dashboard(v *value) string {
	if v.kind != isText || v.text == "" {
		r.bad(v, "dashboard", "must be a URL or host:port, such as \"http://10.0.0.5:8265\", not %s", v.say())
		return ""
	}
	if !strings.Contains(v.text, "://") {
		host, port, why := hostPort(v.text, dashboardPort)
		if why != "" {
			r.bad(v, "dashboard", "%s", why)
			return ""
		}
		return "http://" + net.JoinHostPort(host, port)
	}
	u, err := url.Parse(v.text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		r.bad(v, "dashboard", "is %.200q; it must begin with http:// or https:// and name a host", redacted(v.text))
		return ""
	case u.User != nil:
		r.bad(v, "dashboard", "has a user or password in it, which would be kept and shown; use token: {env: NAME} or token: {file: PATH}")
		return ""
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		r.bad(v, "dashboard", "must end before any ? or #")
		return ""
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	if _, _, why := hostPort(net.JoinHostPort(u.Hostname(), port), ""); why != "" {
		r.bad(v, "dashboard", "%s", why)
		return ""
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	return u.String()
}

// redacted leaves out what may be a password.
func redacted(text string) string {
	if i := strings.LastIndex(text, "@"); i >= 0 {
		return "…" + text[i:]
	}
	return text
}

// tokenVariable keeps other secrets of the server, such as its database's, from being sent to a cluster.
var tokenVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,199}$`)

func (r *specReader) token(v *value) *Secret {
	if v.kind != isObject {
		r.bad(v, "token", "must not stand here itself, since configurations are kept and shown; write token: {env: NAME} for an environment variable of the server, or token: {file: PATH}")
		return nil
	}
	var s Secret
	for _, p := range v.pairs {
		switch p.key {
		case "env":
			s.Env = r.text(p.value, "token.env")
			if p.value.kind == isText && (!tokenVariable.MatchString(s.Env) || !strings.Contains(strings.ToUpper(s.Env), "TOKEN")) {
				r.bad(p.value, "token.env", "must be the name of an environment variable with TOKEN in it, such as RAY_GPU_TOKEN; no other may be sent to a cluster")
			}
		case "file":
			s.File = r.text(p.value, "token.file")
			if p.value.kind == isText && (!filepath.IsAbs(s.File) && !strings.HasPrefix(s.File, "~/") || strings.ContainsFunc(s.File, unprintable)) {
				r.bad(p.value, "token.file", "must be an absolute path on the server, such as /run/secrets/ray-token")
			}
		default:
			r.bad(p.at, "token."+p.key, "is an unknown field; token has env or file")
		}
	}
	if (s.Env == "") == (s.File == "") && len(r.problems) == 0 {
		r.bad(v, "token", "must have one of env and file")
	}
	return &s
}

// maxTokenBytes bounds what is read as a token.
const maxTokenBytes = 4096

// Read fetches the secret from where it is. Errors say where that is and never what was there.
func (s Secret) Read() (string, error) {
	where, secret := "the environment variable "+s.Env, ""
	if s.Env != "" {
		secret = os.Getenv(s.Env)
	} else {
		where = "the file " + s.File
		text, err := readSecret(s.File)
		if err != nil {
			return "", fmt.Errorf("the token cannot be read: %w", err)
		}
		secret = text
	}
	secret = strings.TrimSpace(secret)
	if secret == "" {
		return "", fmt.Errorf("%s, where the token should be, is empty or not set", where)
	}
	if len(secret) > maxTokenBytes || strings.ContainsFunc(secret, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", fmt.Errorf("%s has no token in it: that is one line without spaces, of at most %d bytes", where, maxTokenBytes)
	}
	return secret, nil
}

func readSecret(path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		path = filepath.Join(home, rest)
	}
	if info, err := os.Stat(path); err != nil {
		return "", err
	} else if !info.Mode().IsRegular() || info.Size() > 2*maxTokenBytes {
		return "", fmt.Errorf("%s is not a small file", path)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

func (r *specReader) resources(v *value) sched.Resources {
	if v.kind != isObject {
		r.bad(v, "max_resources", "must be a map such as {CPU: 64, GPU: 8, memory: 256}, memory in GiB, not %s", v.say())
		return sched.Resources{}
	}
	given := make(map[string]float64, len(v.pairs))
	for _, p := range v.pairs {
		f, err := p.value.number.Float64()
		if p.value.kind != isNumber || err != nil {
			r.bad(p.value, "max_resources."+p.key, "must be a number of 0 or more, not %s", p.value.say())
			return sched.Resources{}
		}
		if !p.value.finite {
			f = math.NaN()
		}
		given[p.key] = f
	}
	most, field, why := FromRay(given)
	if why != "" {
		r.bad(v.find([]any{field}), "max_resources."+field, "%s", why)
	}
	return most
}

// FromRay converts amounts as users of Ray give them, CPU, GPU, memory in GiB and custom names. What is wrong is
// the name and a sentence that goes on after it.
func FromRay(given map[string]float64) (amounts sched.Resources, name, why string) {
	units, said := make(map[string]float64, len(given)), make(map[string]string, len(given))
	for _, name := range sortedKeys(given) {
		ours, v := name, given[name]
		switch lower := strings.ToLower(name); lower {
		case "cpu", "gpu", "memory":
			ours = lower
		}
		if ours == "memory" {
			v *= 1024
		}
		if _, twice := units[ours]; twice {
			return sched.Resources{}, name, "is given twice, in capitals and not; leave one out"
		}
		units[ours], said[ours] = v, name
	}
	amounts, err := sched.FromUnits(units)
	if bad, ok := err.(*sched.ResourceError); ok {
		return sched.Resources{}, said[bad.Name], fmt.Sprintf("is %v, which %s", given[said[bad.Name]], bad.Reason)
	}
	return amounts, "", ""
}

// ToRay is the inverse of FromRay.
func ToRay(amounts sched.Resources) map[string]float64 {
	out := map[string]float64{}
	for name, v := range amounts.Units() {
		switch name {
		case "cpu", "gpu":
			out[strings.ToUpper(name)] = v
		case "memory":
			out[name] = v / 1024
		default:
			out[name] = v
		}
	}
	return out
}

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
