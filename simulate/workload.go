package simulate

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
)

// Workload says what arrives, and where. examples/workload.yaml explains every field.
type Workload struct {
	Tasks    int      `yaml:"tasks"`
	Pools    Pools    `yaml:"pools"`
	Arrivals Arrivals `yaml:"arrivals"`
	Kinds    []Kind   `yaml:"kinds"`
	Latency  struct {
		Cancel Duration `yaml:"cancel"`
		Save   Duration `yaml:"save"`
		Launch Duration `yaml:"launch"`
	} `yaml:"latency"`
	PriorityClasses []float64      `yaml:"priority_classes"`
	Policy          map[string]any `yaml:"policy"`
}

// Pools are all alike, or named one by one.
type Pools struct {
	Count    int       `yaml:"count"`
	Capacity Amounts   `yaml:"capacity"` // of each
	Clusters int       `yaml:"clusters"` // Ray clusters over which they are spread
	Skew     float64   `yaml:"skew"`     // the k-th pool gets 1/k^skew of the tasks; 0: all get the same
	Nodes    Nodes     `yaml:"nodes"`    // of each cluster; none: quota alone decides
	Named    []OnePool `yaml:"named"`
}

// OnePool is a pool by name; what it leaves out is as for all.
type OnePool struct {
	Name     string  `yaml:"name"`
	Cluster  string  `yaml:"cluster"`
	Capacity Amounts `yaml:"capacity"`
}

// Nodes are the machines of each cluster.
type Nodes struct {
	Count    int     `yaml:"count"`
	Capacity Amounts `yaml:"capacity"`
}

// Arrivals say when tasks come.
type Arrivals struct {
	Process string  `yaml:"process"` // poisson, even
	Rate    float64 `yaml:"rate"`    // a second; 0: what Load comes to
	Load    float64 `yaml:"load"`    // mean demand as a share of all capacity, of the resource asked for most
	Burst   Burst   `yaml:"burst"`
}

// Burst multiplies the rate again and again for a while; the mean stays.
type Burst struct {
	Every Duration `yaml:"every"`
	For   Duration `yaml:"for"`
	Times float64  `yaml:"times"`
}

// Kind is a sort of task.
type Kind struct {
	Name           string            `yaml:"name"`
	Share          float64           `yaml:"share"` // of all tasks, relative to other kinds
	Priority       Range             `yaml:"priority"`
	Labels         map[string]Choice `yaml:"labels"`
	Request        Requests          `yaml:"request"`
	Duration       DurationSpec      `yaml:"duration"`
	Estimate       Estimate          `yaml:"estimate"`
	OnInsufficient string            `yaml:"on_insufficient"`
	OnPreempted    string            `yaml:"on_preempted"`
	QueueTimeout   Duration          `yaml:"queue_timeout"`
	Checkpoint     Duration          `yaml:"checkpoint"`
}

//go:embed default.yaml
var defaultWorkload []byte

// DefaultWorkload is used when none is given.
func DefaultWorkload() Workload {
	w, err := ParseWorkload(bytes.NewReader(defaultWorkload))
	if err != nil {
		panic(err)
	}
	return w
}

// ParseWorkload reads YAML. Unknown fields and values out of range are errors that
// name the field.
func ParseWorkload(r io.Reader) (Workload, error) {
	w := Workload{Pools: Pools{Clusters: 1}, Arrivals: Arrivals{Process: "poisson", Load: 0.9}, PriorityClasses: []float64{3, 5, 8}}
	w.Latency.Cancel, w.Latency.Save, w.Latency.Launch = Duration(replay.Usual.Cancel), Duration(replay.Usual.Save), Duration(replay.Usual.Launch)
	if err := yaml.NewDecoder(r, yaml.Strict()).Decode(&w); err != nil && !errors.Is(err, io.EOF) {
		return w, fmt.Errorf("%s", strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	return w, w.check()
}

func (w *Workload) check() error {
	var errs []error
	bad := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
		}
	}
	bad(w.Tasks >= 0, "tasks", "must be 0 or more, not %d", w.Tasks)
	p := &w.Pools
	bad(p.Count >= 0 && p.Count <= 1_000_000, "pools.count", "must be from 0 to 1000000, not %d", p.Count)
	bad(p.Clusters >= 1, "pools.clusters", "must be 1 or more, not %d", p.Clusters)
	bad(p.Skew >= 0 && p.Skew <= 10, "pools.skew", "must be from 0 to 10, not %v", p.Skew)
	bad(p.Count > 0 || len(p.Named) > 0, "pools", "there are none: give count and capacity, or named ones")
	bad(p.Count == 0 || len(p.Named) == 0, "pools", "give a count or named ones, not both")
	bad(p.Count == 0 || len(p.Capacity) > 0, "pools.capacity", "is missing, as in {cpu: 64, memory: 262144}")
	seen := map[string]bool{}
	for i, n := range p.Named {
		field := fmt.Sprintf("pools.named[%d]", i)
		bad(n.Name != "" && !seen[n.Name], field+".name", "%q is missing or there twice", n.Name)
		bad(len(n.Capacity) > 0 || len(p.Capacity) > 0, field+".capacity", "is missing, and there is no pools.capacity either")
		bad(n.Capacity.valid() == nil, field+".capacity", "%v", n.Capacity.valid())
		seen[n.Name] = true
	}
	bad(p.Capacity.valid() == nil, "pools.capacity", "%v", p.Capacity.valid())
	bad(p.Nodes.Count >= 0, "pools.nodes.count", "must be 0 or more, not %d", p.Nodes.Count)
	bad(p.Nodes.Count == 0 || len(p.Nodes.Capacity) > 0, "pools.nodes.capacity", "is missing")
	bad(p.Nodes.Capacity.valid() == nil, "pools.nodes.capacity", "%v", p.Nodes.Capacity.valid())

	a := &w.Arrivals
	bad(a.Process == "poisson" || a.Process == "even", "arrivals.process", `must be poisson or even, not %q`, a.Process)
	bad(a.Rate >= 0 && a.Rate <= 1e9, "arrivals.rate", "must be from 0 to 1e9 tasks a second, not %v", a.Rate)
	bad(a.Load > 0 && a.Load <= 1000 || a.Rate > 0, "arrivals.load", "must be more than 0, such as 0.9, not %v", a.Load)
	b := &a.Burst
	bad(b.Every == 0 && b.For == 0 && b.Times == 0 || b.For > 0 && b.Every > b.For && b.Times >= 1 && b.Times <= 1000,
		"arrivals.burst", "needs every, for (less than every) and times (from 1 to 1000), not every %v, for %v, times %v", b.Every, b.For, b.Times)

	bad(len(w.Kinds) > 0, "kinds", "there are none")
	for i := range w.Kinds {
		k := &w.Kinds[i]
		if !k.Priority.given {
			k.Priority = Range{given: true, least: 5, most: 5} // as in a submission
		}
		field := fmt.Sprintf("kinds[%d].", i)
		bad(k.Share > 0 && k.Share <= 1e9, field+"share", "must be more than 0, not %v", k.Share)
		bad(k.Duration.mean != nil, field+"duration", "is missing, as in 10m or {exponential: 10m}")
		bad(len(k.Request) > 0, field+"request", "is missing, as in {cpu: 1}")
		for _, r := range k.Request {
			bad(r.valid() == nil, field+"request", "%v", r.valid())
		}
		bad(slices.Contains([]string{"", "fail", "queue"}, k.OnInsufficient), field+"on_insufficient", "must be fail or queue, not %q", k.OnInsufficient)
		bad(slices.Contains([]string{"", "stop", "requeue"}, k.OnPreempted), field+"on_preempted", "must be stop or requeue, not %q", k.OnPreempted)
	}
	bad(slices.IsSorted(w.PriorityClasses), "priority_classes", "must ascend, not %v", w.PriorityClasses)
	_, err := w.policy(sched.DefaultPolicy())
	bad(err == nil, "policy", "%v", err)
	return errors.Join(errs...)
}

// policy is base with the workload's fields.
func (w *Workload) policy(base sched.Policy) (sched.Policy, error) {
	if len(w.Policy) == 0 {
		return base, nil
	}
	doc, err := yaml.MarshalWithOptions(w.Policy, yaml.JSON())
	if err != nil {
		return base, err
	}
	p, warnings, err := base.Patch(doc)
	if err == nil && len(warnings) > 0 {
		err = errors.New(strings.Join(warnings, "; "))
	}
	return p, err
}

// Duration is milliseconds, written as 1h30m or as a number of seconds.
type Duration sched.Time

// UnmarshalYAML reads either.
func (d *Duration) UnmarshalYAML(read func(any) error) error {
	var v any
	if err := read(&v); err != nil {
		return err
	}
	ms, err := milliseconds(v)
	*d = Duration(ms)
	return err
}

func (d Duration) String() string { return (time.Duration(d) * time.Millisecond).String() }

func milliseconds(v any) (sched.Time, error) {
	s := 0.0
	switch v := v.(type) {
	case string:
		d, err := time.ParseDuration(v)
		if err != nil {
			return 0, fmt.Errorf("%q is not a duration like 90s, 10m or 1h30m", v)
		}
		s = d.Seconds()
	case uint64:
		s = float64(v)
	case int64:
		s = float64(v)
	case float64:
		s = v
	default:
		return 0, fmt.Errorf("%v is not a duration like 90s, 10m or 1h30m", v)
	}
	if !(s >= 0 && s <= 1e9) {
		return 0, fmt.Errorf("%v is out of range: durations are 0 to 1000000000 s", v)
	}
	return sched.Time(math.Round(s * 1000)), nil
}

// Amounts are resources in people's units: cores, cards, MiB.
type Amounts map[string]float64

func (a Amounts) valid() error {
	_, err := sched.FromUnits(a)
	return err
}

func (a Amounts) resources() sched.Resources {
	r, _ := sched.FromUnits(a)
	return r
}

// Requests are one request, or several that are equally likely.
type Requests []Amounts

// UnmarshalYAML reads either.
func (r *Requests) UnmarshalYAML(read func(any) error) error {
	var one Amounts
	if err := read(&one); err == nil {
		*r = Requests{one}
		return nil
	}
	var many []Amounts
	if err := read(&many); err != nil {
		return errors.New("request must be amounts like {cpu: 1, memory: 2048}, or a list of such")
	}
	*r = many
	return nil
}

const mostPriority = 1_000_000

// Range is a number, or {uniform: [least, most]}.
type Range struct {
	given       bool
	least, most float64
}

// UnmarshalYAML reads either.
func (r *Range) UnmarshalYAML(read func(any) error) error {
	r.given = true
	var v map[string][]float64
	switch err := read(&r.least); {
	case err == nil:
		r.most = r.least
	case read(&v) != nil || len(v) != 1 || len(v["uniform"]) != 2:
		return errors.New("must be a number, or {uniform: [least, most]}")
	default:
		r.least, r.most = v["uniform"][0], v["uniform"][1]
	}
	if !(r.least <= r.most && r.least >= -mostPriority && r.most <= mostPriority) {
		return fmt.Errorf("must go up and lie between -%d and %d, not %v to %v", mostPriority, mostPriority, r.least, r.most)
	}
	return nil
}

// Choice is a value, or values with weights.
type Choice struct {
	values []string
	upTo   []float64 // of the sum of weights
}

// UnmarshalYAML reads either.
func (c *Choice) UnmarshalYAML(read func(any) error) error {
	var weights map[string]float64
	if err := read(&weights); err != nil {
		var one string
		if err := read(&one); err != nil {
			return errors.New("a label's value must be text, or weights like {premium: 1, standard: 3}")
		}
		weights = map[string]float64{one: 1}
	}
	sum := 0.0
	for _, v := range slices.Sorted(maps.Keys(weights)) {
		if !(weights[v] >= 0) || math.IsInf(weights[v], 0) {
			return fmt.Errorf("weight %v of %q must be 0 or more", weights[v], v)
		}
		sum += weights[v]
		c.values, c.upTo = append(c.values, v), append(c.upTo, sum)
	}
	if !(sum > 0) {
		return errors.New("some weight must be more than 0")
	}
	return nil
}
