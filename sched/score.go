package sched

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Reason is the rule that makes a task a candidate.
type Reason string

// The rules, in the order in which they are asked.
const (
	ByLabel   Reason = "label_based_preemption"
	SamePool  Reason = "same_pool_preemption"
	CrossPool Reason = "cross_pool_preemption"
)

// Safe is why a task may not be taken.
type Safe string

// Reasons that lie in rank and policy come first: they last. The brakes after
// them pass by themselves, and are only named when nothing else protects.
const (
	SafeItself         Safe = "itself"
	SafePreemptedIt    Safe = "preempted_it_before"
	SafeProtected      Safe = "protected_pool"
	SafeOutranks       Safe = "outranks_by_label"
	SafeCrossPoolOff   Safe = "cross_pool_off"
	SafeBelowThreshold Safe = "below_threshold"
	SafeLowScore       Safe = "below_min_score"
	SafeTooOften       Safe = "preempted_too_often"
	SafeTooFresh       Safe = "too_fresh"
	SafePoolRate       Safe = "pool_rate_limited"

	// What follows is about the task's agent and matters only to Decide.

	SafeUnmanaged    Safe = "agent_unmanaged"
	SafeUnsettled    Safe = "agent_not_settled"
	SafeOtherCluster Safe = "other_cluster"
	SafeSharesAgent  Safe = "shares_agent"
)

// Candidate is a task that may be preempted, and how it was judged.
type Candidate struct {
	Task      ID
	TaskName  string
	Agent     ID
	AgentName string // "" when the core does not know the agent
	Pool      string
	Priority  Milli
	Start     Time // now, when it has not begun
	Remaining Time // of its estimate; 0 when overdue or none was given
	Reason    Reason
	Delta     Milli // the newcomer's priority − its own
	Base      Milli // Delta, but by label at least label_priority_threshold
	Score     Micro // Base + κ·Remaining

	// By label: the newcomer's LabelKey=LabelBy may preempt LabelKey=LabelOver.
	LabelKey, LabelBy, LabelOver string
}

// Bounds that no real task reaches; within them a score fits 64 bits:
// 2·10¹⁵·1000 + 10⁵·1.1·10¹³ < 2⁶³.
const (
	maxPriority Milli = maxFixed
	maxStart    Time  = 10_000_000_000_000 // the year 2286
	maxEstimate Time  = 1_000_000_000_000  // 31 years
)

func bounded(priority Milli) Milli { return min(max(priority, -maxPriority), maxPriority) }

// rules is a policy made quick to ask.
type rules struct {
	Policy
	protected  map[string]bool
	labels     []labelRule // by key, so that the same rule is named each time
	leastScore Micro       // of rules 2 and 3; what rule 1 needs, its base alone reaches
}

type labelRule struct {
	key   string
	over  map[string]map[string]bool
	named map[string]bool // all values it speaks of
}

func compile(p Policy) rules {
	r := rules{Policy: p, protected: map[string]bool{}, leastScore: Micro(p.MinPreemptScore) * 1000}
	for _, name := range p.ProtectedPools {
		r.protected[name] = true
	}
	if !p.EnableLabelPreemption {
		return r
	}
	for _, key := range slices.Sorted(maps.Keys(p.LabelPreemptionRules)) {
		rule := labelRule{key, map[string]map[string]bool{}, map[string]bool{}}
		for by, values := range p.LabelPreemptionRules[key] {
			rule.over[by] = map[string]bool{}
			rule.named[by] = true
			for _, v := range values {
				rule.over[by][v] = true
				rule.named[v] = true
			}
		}
		r.labels = append(r.labels, rule)
	}
	return r
}

// outranks returns the first rule by which labels a stand above labels b.
func (r *rules) outranks(a, b Labels) (key, by, over string, ok bool) {
	for _, rule := range r.labels {
		by, has := a[rule.key]
		if !has {
			continue
		}
		if over, has := b[rule.key]; has && rule.over[by][over] {
			return rule.key, by, over, true
		}
	}
	return "", "", "", false
}

// mayOutrank reports whether labels stand above any others at all.
func (r *rules) mayOutrank(l Labels) bool {
	return slices.ContainsFunc(r.labels, func(rule labelRule) bool { return len(rule.over[l[rule.key]]) > 0 })
}

// newcomer is an incoming task with what must be known of it for every judgement.
type newcomer struct {
	Incoming
	core    *Core // which judges
	now     Time
	blocked map[ID]bool // tasks it must never preempt: its preemptors, and theirs
	taken   map[ID]bool // agents that make way already, for others of its gang
}

func (c *Core) newcomer(in Incoming, now Time) *newcomer {
	in.Priority = bounded(in.Priority)
	in.Request = in.Request.Positive()
	n := &newcomer{Incoming: in, core: c, now: max(now, 0)}
	if len(in.PreemptedBy) == 0 {
		return n
	}
	n.blocked = map[ID]bool{}
	for queue := slices.Clone(in.PreemptedBy); len(queue) > 0; queue = queue[1:] {
		if id := queue[0]; !n.blocked[id] {
			n.blocked[id] = true
			if t, ok := c.tasks[id]; ok {
				queue = append(queue, t.PreemptedBy...)
			}
		}
	}
	return n
}

// judge says whether the newcomer may preempt a task, by the first rule that
// applies, or why not. pool is the one that would lose it. The candidate is
// filled in either way, as far as it was judged.
func (c *Core) judge(n *newcomer, t *Task, pool string) (Candidate, Safe) {
	r := &c.rules
	v := Candidate{
		Task: t.ID, TaskName: t.Name, Agent: t.Agent, Pool: pool,
		Priority: t.Priority, Start: t.Start, Delta: n.Priority - t.Priority,
	}
	if v.Start == 0 {
		v.Start = n.now
	}
	if t.Estimate > 0 {
		v.Remaining = max(v.Start+t.Estimate-n.now, 0)
	}
	v.Base = v.Delta
	same := pool == n.Pool

	switch {
	case t.ID == n.ID:
		return v, SafeItself
	case n.blocked[t.ID]:
		return v, SafePreemptedIt
	case !same && r.protected[pool]:
		return v, SafeProtected
	}
	if key, by, over, ok := r.outranks(n.Labels, t.Labels); ok {
		v.Reason, v.LabelKey, v.LabelBy, v.LabelOver = ByLabel, key, by, over
		v.Base = max(v.Delta, r.LabelPriorityThreshold)
	} else if safe := c.judgeByPriority(n, t, &v, same); safe != "" {
		return v, safe
	}
	switch v.Score = Micro(v.Base)*1000 + Micro(r.RemainingTimeWeight)*Micro(v.Remaining); {
	case v.Reason != ByLabel && v.Score < r.leastScore:
		return v, SafeLowScore
	case r.MaxPreemptionsPerTask > 0 && t.Preemptions >= r.MaxPreemptionsPerTask:
		return v, SafeTooOften
	case r.MinRuntimeSeconds > 0 && n.now-v.Start < Time(r.MinRuntimeSeconds):
		return v, SafeTooFresh
	case r.MaxPreemptionsPerMinute > 0 && c.pools[pool].Preempted >= r.MaxPreemptionsPerMinute:
		return v, SafePoolRate
	}
	return v, ""
}

// judgeByPriority asks the rules that compare priorities: within a pool, and
// between pools. Neither takes a task that stands above the newcomer by label;
// else the two would evict each other for ever.
func (c *Core) judgeByPriority(n *newcomer, t *Task, v *Candidate, same bool) Safe {
	r := &c.rules
	v.Reason = SamePool
	if !same {
		v.Reason = CrossPool
	}
	if key, by, over, ok := r.outranks(t.Labels, n.Labels); ok {
		v.LabelKey, v.LabelBy, v.LabelOver = key, by, over
		return SafeOutranks
	}
	if !same && !r.EnableCrossPoolPreemption {
		return SafeCrossPoolOff
	}
	if v.Delta < r.threshold(v.Reason) {
		return SafeBelowThreshold
	}
	return ""
}

// threshold is the least priority difference a rule asks for.
func (r *rules) threshold(reason Reason) Milli {
	if reason == SamePool {
		return r.SamePoolPriorityThreshold
	}
	return r.CrossPoolPriorityThreshold
}

// compare orders candidates best first: score ↓, priority ↑, start ↓ (least
// work lost), name, and the id so that the order is total.
func (v *Candidate) compare(o *Candidate) int {
	if v.Score != o.Score {
		return cmp.Compare(o.Score, v.Score)
	}
	if v.Priority != o.Priority {
		return cmp.Compare(v.Priority, o.Priority)
	}
	if v.Start != o.Start {
		return cmp.Compare(o.Start, v.Start)
	}
	if d := strings.Compare(v.TaskName, o.TaskName); d != 0 {
		return d
	}
	return bytes.Compare(v.Task[:], o.Task[:])
}
