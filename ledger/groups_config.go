package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// GroupConfig says which placement groups a pool keeps; the JSON is what people write.
type GroupConfig struct {
	Enable    bool
	Reserved  []GroupSpec // kept for tasks of at least Threshold
	Dynamic   bool        // groups may be made for a task
	Most      int         // dynamic ones at once
	Reuse     bool        // a group stays when its agent goes, for the next one
	Threshold sched.Milli // the least priority that may sit in a reserved group
	Timeout   time.Duration
	Idle      time.Duration // after which an idle dynamic group is removed
}

// GroupSpec is one placement group: what each bundle reserves, and Ray's strategy.
type GroupSpec struct {
	Bundles  []sched.Resources
	Strategy string
}

// What a configuration that leaves it out means.
const (
	defaultMostGroups = 10
	maxGroups         = 1000
	defaultThreshold  = sched.Milli(8000)
	defaultGroupTime  = 30 * time.Second
	defaultGroupIdle  = time.Minute
)

var groupStrategies = []string{"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}

// ParseGroups reads a pool's pg_pool_config. The error is an Error with the fields at fault.
func ParseGroups(doc []byte) (GroupConfig, error) {
	c := GroupConfig{Dynamic: true, Most: defaultMostGroups, Reuse: true, Threshold: defaultThreshold, Timeout: defaultGroupTime, Idle: defaultGroupIdle}
	if doc = bytes.TrimSpace(doc); len(doc) == 0 || bytes.Equal(doc, []byte("null")) {
		return c, nil
	}
	var in struct {
		Enable    *bool             `json:"enable"`
		Reserved  []json.RawMessage `json:"high_priority_pg_specs"`
		Dynamic   *bool             `json:"enable_dynamic_pgs"`
		Most      *int              `json:"max_dynamic_pgs"`
		Reuse     *bool             `json:"enable_pg_reuse"`
		Threshold *float64          `json:"high_priority_threshold"`
		Timeout   *float64          `json:"creation_timeout"`
		Idle      *float64          `json:"idle_timeout"`
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return c, invalid("pg_pool_config", "cannot be read: %v; it has enable, high_priority_pg_specs, enable_dynamic_pgs, max_dynamic_pgs, enable_pg_reuse, high_priority_threshold, creation_timeout and idle_timeout", err)
	}
	set := func(to *bool, from *bool) {
		if from != nil {
			*to = *from
		}
	}
	set(&c.Enable, in.Enable)
	set(&c.Dynamic, in.Dynamic)
	set(&c.Reuse, in.Reuse)
	if in.Most != nil {
		if c.Most = *in.Most; c.Most < 0 || c.Most > maxGroups {
			return c, invalid("pg_pool_config.max_dynamic_pgs", "is %d: must be 0 to %d", c.Most, maxGroups)
		}
	}
	if in.Threshold != nil {
		var err error
		if c.Threshold, err = sched.MilliFromFloat(*in.Threshold); err != nil {
			return c, invalid("pg_pool_config.high_priority_threshold", "%v", err)
		}
	}
	seconds := func(to *time.Duration, name string, v *float64, least float64) error {
		if v == nil {
			return nil
		}
		if !(*v >= least && *v <= 86400) {
			return invalid("pg_pool_config."+name, "is %v: must be %g to 86400 seconds", *v, least)
		}
		*to = time.Duration(*v * float64(time.Second))
		return nil
	}
	if err := seconds(&c.Timeout, "creation_timeout", in.Timeout, 0.1); err != nil {
		return c, err
	}
	if err := seconds(&c.Idle, "idle_timeout", in.Idle, 0); err != nil {
		return c, err
	}
	if len(in.Reserved) > maxGroups {
		return c, invalid("pg_pool_config.high_priority_pg_specs", "has %d groups; at most %d are possible", len(in.Reserved), maxGroups)
	}
	for i, raw := range in.Reserved {
		s, err := parseGroupSpec(raw, fmt.Sprintf("pg_pool_config.high_priority_pg_specs[%d]", i))
		if err != nil {
			return c, err
		}
		c.Reserved = append(c.Reserved, s)
	}
	return c, nil
}

// parseGroupSpec reads {"cpu": 2, …} or {"bundles": [{…}, …], "strategy": "SPREAD"}.
func parseGroupSpec(raw json.RawMessage, field string) (GroupSpec, error) {
	var long struct {
		Bundles  []map[string]float64 `json:"bundles"`
		Strategy string               `json:"strategy"`
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return GroupSpec{}, invalid(field, "must be an object such as {\"cpu\": 2, \"memory\": 2048}")
	}
	if keys["bundles"] != nil || keys["strategy"] != nil {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&long); err != nil {
			return GroupSpec{}, invalid(field, "must have bundles and perhaps a strategy: %v", err)
		}
	} else {
		long.Bundles = make([]map[string]float64, 1)
		if err := json.Unmarshal(raw, &long.Bundles[0]); err != nil {
			return GroupSpec{}, invalid(field, "must have amounts, such as {\"cpu\": 2, \"memory\": 2048}: %v", err)
		}
	}
	if long.Strategy != "" && !slices.Contains(groupStrategies, long.Strategy) {
		return GroupSpec{}, invalid(field+".strategy", "is %q: must be one of %v", long.Strategy, groupStrategies)
	}
	s := GroupSpec{Strategy: long.Strategy}
	for _, units := range long.Bundles {
		r, err := sched.FromUnits(units)
		if err != nil {
			return s, invalid(field, "%v", err)
		}
		if r.IsZero() {
			return s, invalid(field, "reserves nothing: give at least one amount above 0")
		}
		s.Bundles = append(s.Bundles, r)
	}
	if len(s.Bundles) == 0 {
		return s, invalid(field+".bundles", "is empty: a group has at least one bundle")
	}
	return s, nil
}

// sum is what a group reserves altogether.
func (s GroupSpec) sum() sched.Resources {
	var all sched.Resources
	for _, b := range s.Bundles {
		all = all.Add(b)
	}
	return all
}

// fits refuses groups that the pool could never fill.
func (c GroupConfig) fits(capacity sched.Resources) error {
	for i, s := range c.Reserved {
		if sum := s.sum(); !capacity.Covers(sum) {
			return invalid(fmt.Sprintf("pg_pool_config.high_priority_pg_specs[%d]", i), "reserves %s, more than the pool has (%s)", sum, capacity)
		}
	}
	return nil
}

func (s GroupSpec) json() []byte {
	out := []byte{'['}
	for i, b := range s.Bundles {
		if i > 0 {
			out = append(out, ',')
		}
		out = b.AppendJSON(out)
	}
	return append(out, ']')
}

func bundlesOf(doc []byte) (out []sched.Resources) {
	var raw []json.RawMessage
	_ = json.Unmarshal(doc, &raw)
	for _, r := range raw {
		var b sched.Resources
		_ = b.UnmarshalJSON(r)
		out = append(out, b)
	}
	return out
}
