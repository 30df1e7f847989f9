package web

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Errors are what is wrong with a form, by field name; "" is about the whole of it.
type Errors map[string]string

// Add keeps the first message of a field.
func (e Errors) Add(field, format string, args ...any) {
	if _, ok := e[field]; !ok {
		e[field] = fmt.Sprintf(format, args...)
	}
}

// limits of what a form takes before the ledger looks at it.
const (
	maxAmount = int64(1) << 50 // of a resource, in its unit
	maxJSON   = 8 << 20
)

// SubmitForm is the form for a new task as typed.
type SubmitForm struct {
	TaskID, Pool, ActorClass, Args, Kwargs string
	EntryMethod, EntryArgs, EntryKwargs    string
	CPU, GPU, Memory, OtherResources       string
	Priority, Labels                       string
	Estimate, MaxRuntime                   string
	OnInsufficient, OnPreempted, OnFailure string
	MaxAttempts, RuntimeEnv                string
	QueueTimeout, RetryBackoff             string
	PlacementGroup                         string // "", yes, or quota: as yes, but nobody makes way for quota

	Errors  Errors
	Pools   []string // to choose from
	Classes []string // import paths seen lately, to suggest
}

// NewTask is a submission with its units converted: what SubmitForm says once it parses.
type NewTask struct {
	TaskID, Pool, ActorClass               string
	Args, Kwargs                           json.RawMessage // array, object; nil when empty
	EntryMethod                            string
	EntryArgs, EntryKwargs                 json.RawMessage
	Request                                Resources
	Priority                               float64
	Labels                                 map[string]string
	Estimate, MaxRuntime                   time.Duration
	OnInsufficient, OnPreempted, OnFailure string
	MaxAttempts                            int
	PlacementGroup, KeepQuota              bool           // in one; nobody makes way for quota alone
	QueueTimeout                           time.Duration  // 0: waits for ever
	RetryBackoff                           *time.Duration // nil: as usual
	RuntimeEnv                             json.RawMessage
}

// SubmitFields are the names of SubmitForm's fields.
var SubmitFields = []string{
	"task_id", "pool", "actor_class", "actor_args", "actor_kwargs", "entry_method", "entry_args", "entry_kwargs", "cpu", "gpu", "memory", "resources",
	"priority", "labels", "estimated_duration", "max_runtime", "on_insufficient", "on_preempted", "on_failure", "max_attempts", "runtime_env", "queue_timeout", "retry_backoff", "placement_group",
}

// PoolFields are the names of PoolForm's fields.
var PoolFields = []string{"name", "cluster", "cpu", "gpu", "memory", "resources", "labels", "target_agents", "max_runtime", "placement_strategy", "pg_pool_config"}

// NewSubmitForm is the form before anything was typed.
func NewSubmitForm() SubmitForm {
	return SubmitForm{CPU: "1", Priority: "5.0", OnInsufficient: "queue", OnPreempted: "stop", OnFailure: "stop"}
}

// ReadSubmitForm takes what was posted.
func ReadSubmitForm(v url.Values) SubmitForm {
	g := func(k string) string { return strings.TrimSpace(v.Get(k)) }
	return SubmitForm{
		TaskID: g("task_id"), Pool: g("pool"), ActorClass: g("actor_class"), Args: g("actor_args"), Kwargs: g("actor_kwargs"),
		EntryMethod: g("entry_method"), EntryArgs: g("entry_args"), EntryKwargs: g("entry_kwargs"),
		CPU: g("cpu"), GPU: g("gpu"), Memory: g("memory"), OtherResources: g("resources"),
		Priority: g("priority"), Labels: g("labels"), Estimate: g("estimated_duration"), MaxRuntime: g("max_runtime"),
		OnInsufficient: g("on_insufficient"), OnPreempted: g("on_preempted"), OnFailure: g("on_failure"),
		MaxAttempts: g("max_attempts"), RuntimeEnv: g("runtime_env"), QueueTimeout: g("queue_timeout"), RetryBackoff: g("retry_backoff"), PlacementGroup: g("placement_group"),
	}
}

var classPath = regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)*[:.][\pL_][\pL\pN_]*$`)

// Parse checks and converts the form. What only the ledger can know (unknown pool, id taken) it leaves to it.
func (f SubmitForm) Parse() (NewTask, Errors) {
	e := Errors{}
	t := NewTask{
		TaskID: f.TaskID, Pool: f.Pool, ActorClass: f.ActorClass, EntryMethod: f.EntryMethod,
		OnInsufficient: oneOf(e, "on_insufficient", f.OnInsufficient, "fail", "queue"),
		OnPreempted:    oneOf(e, "on_preempted", f.OnPreempted, "stop", "requeue"),
		OnFailure:      oneOf(e, "on_failure", f.OnFailure, "stop", "requeue"),
	}
	required(e, "task_id", f.TaskID, "Give the task a name; it is how you find it again.")
	required(e, "pool", f.Pool, "Choose the pool whose quota it uses.")
	required(e, "actor_class", f.ActorClass, "Say which class to run, as module:Class.")
	if f.ActorClass != "" && !classPath.MatchString(f.ActorClass) {
		e.Add("actor_class", "%q is not an import path; write it as module:Class, for example trainers.llama:Trainer.", Cut(f.ActorClass, 60))
	}
	t.Args = jsonOf(e, "actor_args", f.Args, '[')
	t.Kwargs = jsonOf(e, "actor_kwargs", f.Kwargs, '{')
	t.EntryArgs = jsonOf(e, "entry_args", f.EntryArgs, '[')
	t.EntryKwargs = jsonOf(e, "entry_kwargs", f.EntryKwargs, '{')
	if f.EntryMethod == "" && (t.EntryArgs != nil || t.EntryKwargs != nil) {
		e.Add("entry_method", "Arguments are given, so say which method gets them.")
	}
	t.Request = resources(e, f.CPU, f.GPU, f.Memory, f.OtherResources)
	t.Priority = 5
	if f.Priority != "" {
		t.Priority = decimal(e, "priority", f.Priority)
	}
	t.Labels = labels(e, "labels", f.Labels)
	t.Estimate = length(e, "estimated_duration", f.Estimate)
	t.MaxRuntime = length(e, "max_runtime", f.MaxRuntime)
	t.MaxAttempts = whole(e, "max_attempts", f.MaxAttempts)
	if f.PlacementGroup != "" {
		t.PlacementGroup, t.KeepQuota = true, oneOf(e, "placement_group", f.PlacementGroup, "yes", "quota") == "quota"
	}
	t.QueueTimeout = length(e, "queue_timeout", f.QueueTimeout)
	if f.RetryBackoff != "" {
		d := length(e, "retry_backoff", f.RetryBackoff)
		t.RetryBackoff = &d
	}
	t.RuntimeEnv = jsonOf(e, "runtime_env", f.RuntimeEnv, '{')
	return t, e
}

// PoolForm is the form of a pool as typed.
type PoolForm struct {
	Name, Cluster, CPU, GPU, Memory, OtherResources string
	Labels, TargetAgents, MaxRuntime                string
	PlacementStrategy, PGPoolConfig                 string

	Errors   Errors
	Clusters []string // to choose from; empty: only local
}

// PoolSpec is what a PoolForm says once it parses. Every field is meant, also an empty one.
type PoolSpec struct {
	Name, Cluster     string
	Capacity          Resources
	Labels            map[string]string
	TargetAgents      int
	MaxRuntime        time.Duration // of each task; 0: no limit
	PlacementStrategy string
	PGPoolConfig      json.RawMessage // nil for none
}

// NewPoolForm is the form before anything was typed.
func NewPoolForm() PoolForm { return PoolForm{Cluster: "local"} }

// ReadPoolForm takes what was posted.
func ReadPoolForm(v url.Values) PoolForm {
	g := func(k string) string { return strings.TrimSpace(v.Get(k)) }
	return PoolForm{
		Name: g("name"), Cluster: g("cluster"), CPU: g("cpu"), GPU: g("gpu"), Memory: g("memory"), OtherResources: g("resources"),
		Labels: g("labels"), TargetAgents: g("target_agents"), MaxRuntime: g("max_runtime"), PlacementStrategy: g("placement_strategy"), PGPoolConfig: g("pg_pool_config"),
	}
}

// Parse checks and converts the form.
func (f PoolForm) Parse() (PoolSpec, Errors) {
	e := Errors{}
	required(e, "name", f.Name, "Give the pool a name; tasks name it when they are submitted.")
	p := PoolSpec{Name: f.Name, Cluster: f.Cluster, PlacementStrategy: f.PlacementStrategy}
	if p.Cluster == "" {
		p.Cluster = "local"
	}
	p.Capacity = resources(e, f.CPU, f.GPU, f.Memory, f.OtherResources)
	if len(p.Capacity) == 0 && len(e) == 0 {
		e.Add("cpu", "Give the pool some capacity: at least one of CPU, GPU, memory or another resource.")
	}
	p.Labels = labels(e, "labels", f.Labels)
	p.TargetAgents = whole(e, "target_agents", f.TargetAgents)
	p.MaxRuntime = length(e, "max_runtime", f.MaxRuntime)
	p.PGPoolConfig = jsonOf(e, "pg_pool_config", f.PGPoolConfig, '{')
	return p, e
}

// SetResources fills the form's fields from a vector.
func (f *PoolForm) SetResources(r Resources) {
	f.CPU, f.GPU, f.Memory, f.OtherResources = typed(r)
}

// typed writes a vector the way the forms take it.
func typed(r Resources) (cpu, gpu, memory, other string) {
	plain := func(n int64) string { return strings.ReplaceAll(Amount("", n), ",", "") }
	var rest []string
	for _, n := range r.Names() {
		switch n {
		case "cpu":
			cpu = plain(r[n])
		case "gpu":
			gpu = plain(r[n])
		case "memory":
			memory = strconv.FormatInt(r[n], 10) + " MiB"
			if r[n]%1024 == 0 {
				memory = strconv.FormatInt(r[n]/1024, 10) + " GiB"
			}
		default:
			rest = append(rest, n+"="+plain(r[n]))
		}
	}
	return cpu, gpu, memory, strings.Join(rest, ", ")
}

// TypedLabels writes labels the way the forms take them.
func TypedLabels(ls []Label) string {
	out := make([]string, len(ls))
	for i, l := range ls {
		out[i] = quoted(l.Key + "=" + l.Value)
	}
	return strings.Join(out, ", ")
}

func quoted(s string) string {
	if strings.ContainsAny(s, ",\"\n") || strings.TrimSpace(s) != s {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

func required(e Errors, field, value, message string) {
	if value == "" {
		e.Add(field, "%s", message)
	}
	if strings.ContainsRune(value, 0) {
		e.Add(field, "It contains a NUL character, which nothing can store.")
	}
}

func oneOf(e Errors, field, value string, allowed ...string) string {
	if value == "" {
		return allowed[0]
	}
	if !slices.Contains(allowed, value) {
		e.Add(field, "%q is not one of %s.", Cut(value, 40), strings.Join(allowed, ", "))
	}
	return value
}

func decimal(e Errors, field, s string) float64 {
	f, err := strconv.ParseFloat(strings.Replace(s, "−", "-", 1), 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		e.Add(field, "%q is not a number.", Cut(s, 40))
		return 0
	}
	if math.Abs(f) > 1e9 {
		e.Add(field, "%s is too large; a thousand million is the most.", Cut(s, 40))
		return 0
	}
	return f
}

func whole(e Errors, field, s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1_000_000 {
		e.Add(field, "%q is not a whole number from 0 to a million.", Cut(s, 40))
		return 0
	}
	return n
}

// jsonOf takes a JSON array ('[') or object ('{'); nothing typed is nil.
func jsonOf(e Errors, field, s string, kind byte) json.RawMessage {
	if s == "" {
		return nil
	}
	want, example := "a JSON list", `["a", 1]`
	if kind == '{' {
		want, example = "a JSON object", `{"lr": 0.001}`
	}
	if len(s) > maxJSON {
		e.Add(field, "It has %s; the form takes at most %s. Larger ones go through the API.", Bytes(int64(len(s))), Bytes(maxJSON))
		return nil
	}
	var v any
	err := json.Unmarshal([]byte(s), &v)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		line := 1 + strings.Count(s[:min(int(syntax.Offset), len(s))], "\n")
		e.Add(field, "Not JSON, at line %d: %s. It should be %s such as %s.", line, syntax.Error(), want, example)
		return nil
	case err != nil:
		e.Add(field, "Not JSON: %v. It should be %s such as %s.", err, want, example)
		return nil
	case s[0] != kind:
		e.Add(field, "It should be %s such as %s.", want, example)
		return nil
	}
	return json.RawMessage(s)
}

// resources converts what the four fields of a form say, rounding up.
func resources(e Errors, cpu, gpu, memory, other string) Resources {
	r := Resources{}
	put := func(field, name, s string) {
		if s == "" {
			return
		}
		var n int64
		if name == "memory" {
			n = mebibytes(e, field, s)
		} else {
			n = thousandths(e, field, s)
		}
		if n != 0 {
			r[name] = n
		}
	}
	put("cpu", "cpu", cpu)
	put("gpu", "gpu", gpu)
	put("memory", "memory", memory)
	for _, item := range list(e, "resources", other) {
		name, amount, ok := strings.Cut(item, "=")
		name, amount = strings.TrimSpace(name), strings.TrimSpace(amount)
		switch {
		case !ok || name == "" || amount == "":
			e.Add("resources", "%q should be name=amount, for example tpu=4.", Cut(item, 40))
		case name == "cpu" || name == "gpu" || name == "memory":
			e.Add("resources", "%s has a field of its own.", name)
		default:
			put("resources", name, amount)
		}
	}
	return r
}

func thousandths(e Errors, field, s string) int64 {
	return scaled(e, field, s, big.NewRat(1000, 1), "a number such as 4 or 0.5")
}

var memoryUnits = []struct {
	suffix string
	mib    *big.Rat
}{
	{"TiB", big.NewRat(1<<20, 1)}, {"GiB", big.NewRat(1024, 1)}, {"MiB", big.NewRat(1, 1)}, {"KiB", big.NewRat(1, 1024)},
	{"TB", big.NewRat(1e12, 1<<20)}, {"GB", big.NewRat(1e9, 1<<20)}, {"MB", big.NewRat(1e6, 1<<20)},
}

// mebibytes takes "512 GiB", "4096 MiB", or a bare number of MiB.
func mebibytes(e Errors, field, s string) int64 {
	for _, u := range memoryUnits {
		if n := len(s) - len(u.suffix); n > 0 && strings.EqualFold(s[n:], u.suffix) {
			return scaled(e, field, strings.TrimSpace(s[:n]), u.mib, "an amount such as 512 GiB or 4096 MiB")
		}
	}
	return scaled(e, field, s, big.NewRat(1, 1), "an amount such as 512 GiB or 4096 MiB")
}

var plainNumber = regexp.MustCompile(`^-?[0-9]{1,18}(\.[0-9]{1,18})?$`)

// scaled multiplies exactly and rounds up.
func scaled(e Errors, field, s string, factor *big.Rat, want string) int64 {
	s = strings.ReplaceAll(strings.Replace(s, "−", "-", 1), ",", "")
	x, ok := new(big.Rat), plainNumber.MatchString(s)
	if ok {
		_, ok = x.SetString(s)
	}
	if !ok {
		e.Add(field, "%q is not %s.", Cut(s, 40), want)
		return 0
	}
	if x.Sign() < 0 {
		e.Add(field, "%s is negative; it must be 0 or more.", Cut(s, 40))
		return 0
	}
	x.Mul(x, factor)
	n := new(big.Int).Add(x.Num(), new(big.Int).Sub(x.Denom(), big.NewInt(1)))
	n.Quo(n, x.Denom())
	if !n.IsInt64() || n.Int64() > maxAmount {
		e.Add(field, "%s is more than any cluster has.", Cut(s, 40))
		return 0
	}
	return n.Int64()
}

// length takes "90", "90s", "15 min", "1h30m", "2 d": a bare number is seconds. Nothing typed is 0.
func length(e Errors, field, s string) time.Duration {
	if s == "" {
		return 0
	}
	d, ok := ParseLength(s)
	switch {
	case !ok:
		e.Add(field, "%q is not a length of time; write 90 s, 15 min or 2 h.", Cut(s, 40))
	case d < 0:
		e.Add(field, "%s is negative; it must be 0 or more.", Cut(s, 40))
	}
	return d
}

var lengthPart = regexp.MustCompile(`^\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h|days?|d)?`)

// ParseLength reads a length of time as people write it.
func ParseLength(s string) (time.Duration, bool) {
	sign := time.Duration(1)
	if rest, ok := strings.CutPrefix(s, "-"); ok {
		sign, s = -1, rest
	}
	var total time.Duration
	if strings.TrimSpace(s) == "" {
		return 0, false
	}
	for strings.TrimSpace(s) != "" {
		m := lengthPart.FindStringSubmatch(s)
		if m == nil {
			return 0, false
		}
		f, _ := strconv.ParseFloat(m[1], 64)
		unit := time.Second
		switch {
		case m[2] == "ms":
			unit = time.Millisecond
		case strings.HasPrefix(m[2], "m"):
			unit = time.Minute
		case strings.HasPrefix(m[2], "h"):
			unit = time.Hour
		case strings.HasPrefix(m[2], "d"):
			unit = 24 * time.Hour
		}
		if f*float64(unit) > float64(100*365*24*time.Hour) {
			return 0, false
		}
		total += time.Duration(f * float64(unit))
		s = s[len(m[0]):]
	}
	return sign * total, true
}

// TypedLength writes a length of time the way the forms take it.
func TypedLength(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return Duration(d)
}

// labels takes "key=value" pairs, separated by commas or lines; odd ones in double quotes.
func labels(e Errors, field, s string) map[string]string {
	out := map[string]string{}
	for _, item := range list(e, field, s) {
		k, v, ok := strings.Cut(item, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		switch _, twice := out[k]; {
		case !ok || k == "":
			e.Add(field, "%q should be key=value.", Cut(item, 40))
		case twice:
			e.Add(field, "%q is given twice.", Cut(k, 40))
		default:
			out[k] = v
		}
	}
	return out
}

// list splits at commas and lines; double quotes protect both.
func list(e Errors, field, s string) []string {
	r := csv.NewReader(strings.NewReader(s))
	r.TrimLeadingSpace, r.FieldsPerRecord = true, -1
	var out []string
	for {
		rec, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			e.Add(field, "Its quotes do not match; write \"a,b\" for a value with a comma, and \"\" for a quote in it.")
			return out
		}
		for _, item := range rec {
			if item = strings.TrimFunc(item, unicode.IsSpace); item != "" {
				out = append(out, item)
			}
		}
	}
}

// ParseLabels takes what a filter says; what is not key=value is left out.
func ParseLabels(s string) []Label { return LabelsOf(labels(Errors{}, "", s)) }

// Parse checks and converts the form.
func (f Retune) Parse() (float64, Errors) {
	e := Errors{}
	required(e, "priority", f.Priority, "Say the new priority; 5.0 is usual.")
	if len(e) > 0 {
		return 0, e
	}
	return decimal(e, "priority", f.Priority), e
}

// Sorted lists the errors by field, the one about the whole first.
func (e Errors) Sorted() []Label { return LabelsOf(e) }
