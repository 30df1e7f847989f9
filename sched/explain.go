package sched

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Verdict is what the core thinks of one live task when another asks for room.
type Verdict struct {
	// Candidate is complete when the task is eligible. Otherwise it says what
	// the task is, and Reason is the rule that came nearest, if any.
	Candidate
	Eligible bool
	Taken    bool   // Decide would take it now
	Code     Safe   // why it is safe; "" when eligible
	Message  string // the same as a sentence, and what would have to change
}

// Explain judges live tasks: the eligible ones best first, as Candidates or, when
// resources are asked for, as Decide sees them; then the safe ones, lowest
// priority first, those that began last before others. A limit of 0 or less means
// all; with one, only little more is looked at than is returned.
func (c *Core) Explain(in Incoming, now Time, limit int) []Verdict {
	n, taken := c.asking(in, now)
	var out []Verdict
	if x := c.ready(); x != nil && limit > 0 {
		for _, t := range x.best(n, limit) {
			out = append(out, c.verdict(n, t, taken))
		}
	} else {
		out = make([]Verdict, 0, len(c.tasks))
		for _, t := range c.tasks {
			out = append(out, c.verdict(n, t, taken))
		}
	}
	c.sortVerdicts(n, out)
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out
}

// ExplainTasks is Explain for some live tasks; ids of no live task are left out.
func (c *Core) ExplainTasks(in Incoming, tasks []ID, now Time) []Verdict {
	n, taken := c.asking(in, now)
	out := make([]Verdict, 0, len(tasks))
	for _, id := range tasks {
		if t, ok := c.tasks[id]; ok {
			out = append(out, c.verdict(n, t, taken))
		}
	}
	c.sortVerdicts(n, out)
	return out
}

// sortVerdicts puts the eligible first, best first, then the safe, lowest priority
// first. Where resources count, tasks on one agent come together: it is worth what
// the least of them is.
func (c *Core) sortVerdicts(n *newcomer, all []Verdict) {
	least := map[ID]*Candidate{}
	for i := range all {
		if v := &all[i]; v.Eligible && !n.Request.IsZero() && len(c.on[v.Agent]) > 1 && (least[v.Agent] == nil || v.compare(least[v.Agent]) > 0) {
			least[v.Agent] = &v.Candidate
		}
	}
	for agent, v := range least {
		of := *v
		least[agent] = &of
	}
	worth := func(v *Verdict) *Candidate {
		if of := least[v.Agent]; of != nil {
			return of
		}
		return &v.Candidate
	}
	slices.SortFunc(all, func(a, b Verdict) int {
		switch {
		case a.Eligible && b.Eligible:
			return cmp.Or(worth(&a).compare(worth(&b)), a.compare(&b.Candidate))
		case a.Eligible:
			return -1
		case b.Eligible:
			return 1
		}
		return c.tasks[a.Task].compare(c.tasks[b.Task])
	})
}

// compare orders tasks as trees hold them.
func (t *Task) compare(o *Task) int {
	return cmp.Or(cmp.Compare(t.Priority, o.Priority), cmp.Compare(o.Start, t.Start), strings.Compare(t.Name, o.Name), bytes.Compare(t.ID[:], o.ID[:]))
}

// ExplainTask is Explain for one live task; false when there is none of that id.
func (c *Core) ExplainTask(in Incoming, task ID, now Time) (Verdict, bool) {
	t, ok := c.tasks[task]
	if !ok {
		return Verdict{}, false
	}
	n, taken := c.asking(in, now)
	return c.verdict(n, t, taken), true
}

// asking returns the newcomer and the agents Decide would take for it. In a
// pool that is not known it can ask for nothing, only be compared.
func (c *Core) asking(in Incoming, now Time) (*newcomer, map[ID]bool) {
	n := c.newcomer(in, now)
	if _, known := c.pools[in.Pool]; !known {
		n.Request = Resources{}
	}
	if n.Request.IsZero() {
		return n, nil
	}
	taken := map[ID]bool{}
	for _, v := range c.Decide(in, now).Victims {
		taken[v.Agent] = true
	}
	return n, taken
}

func (c *Core) verdict(n *newcomer, t *Task, taken map[ID]bool) Verdict {
	var v Verdict
	var companion *Task
	if n.Request.IsZero() {
		v.Candidate, v.Code = c.judge(n, t, t.Pool)
	} else {
		v.Candidate, v.Code, companion = c.judgeWithCompanions(n, t)
	}
	v.AgentName = c.agentName(t.Agent)
	v.Eligible = v.Code == ""
	switch {
	case companion != nil:
		why := c.verdict(n, companion, nil)
		v.Message = fmt.Sprintf("its agent also runs %s, which is safe: %s", companion.Name, why.Message)
	case !v.Eligible:
		v.Message = c.whySafe(n, t, &v)
	case taken[t.Agent]:
		v.Taken = true
		v.Message = fmt.Sprintf("%s, score %v: it makes way", rule(&v.Candidate), v.Score)
	case n.Request.IsZero():
		v.Message = fmt.Sprintf("%s, score %v", rule(&v.Candidate), v.Score)
	default:
		v.Message = fmt.Sprintf("%s, score %v: eligible, but not needed or not enough", rule(&v.Candidate), v.Score)
	}
	return v
}

// judgeWithCompanions judges a task as Decide does, and names the safe task on
// the same agent that keeps an eligible one from being taken: the first by name.
func (c *Core) judgeWithCompanions(n *newcomer, t *Task) (Candidate, Safe, *Task) {
	cluster := c.pools[n.Pool].Cluster
	a := c.agents[t.Agent]
	v, safe := c.judgeOnAgent(n, t, a, cluster)
	if safe != "" {
		return v, safe, nil
	}
	var companion *Task
	for _, o := range c.on[t.Agent] {
		if _, s := c.judgeOnAgent(n, o, a, cluster); s != "" && (companion == nil || o.Name < companion.Name) {
			companion = o
		}
	}
	if companion != nil {
		safe = SafeSharesAgent
	}
	return v, safe, companion
}

func rule(v *Candidate) string {
	switch v.Reason {
	case ByLabel:
		return fmt.Sprintf("you outrank it by label %s: %s > %s", v.LabelKey, v.LabelBy, v.LabelOver)
	case SamePool:
		return fmt.Sprintf("same pool, priority difference %v", v.Delta)
	default:
		return fmt.Sprintf("pool %s, priority difference %v", v.Pool, v.Delta)
	}
}

// whySafe says why a task is safe, and where a number would change that, which.
func (c *Core) whySafe(n *newcomer, t *Task, v *Verdict) string {
	p := &c.policy
	switch v.Code {
	case SafeItself:
		return "this is the task itself"
	case SafePreemptedIt:
		if slices.Contains(n.PreemptedBy, t.ID) {
			return "it preempted this task before"
		}
		return "it preempted a task that preempted this one before"
	case SafeProtected:
		return fmt.Sprintf("pool %s is protected", v.Pool)
	case SafeOutranks:
		return fmt.Sprintf("outranks you by label %s: %s > %s", v.LabelKey, v.LabelBy, v.LabelOver)
	case SafeCrossPoolOff:
		return fmt.Sprintf("it is in pool %s, and cross-pool preemption is off", v.Pool)
	case SafeBelowThreshold:
		return fmt.Sprintf("priority difference %v is below %v; it would need priority %v",
			v.Delta, c.rules.threshold(v.Reason), c.priorityNeeded(t, v))
	case SafeLowScore:
		return fmt.Sprintf("score %v is below %v; it would need priority %v", v.Score, p.MinPreemptScore, c.priorityNeeded(t, v))
	case SafeTooOften:
		return fmt.Sprintf("it was preempted %d times already; %d is the most", t.Preemptions, p.MaxPreemptionsPerTask)
	case SafeTooFresh:
		return fmt.Sprintf("running for %s s; safe until %s s", seconds(n.now-v.Start), seconds(Time(p.MinRuntimeSeconds)))
	case SafePoolRate:
		return fmt.Sprintf("pool %s lost %d tasks in the last minute; %d is the most", v.Pool, c.pools[v.Pool].Preempted, p.MaxPreemptionsPerMinute)
	case SafeUnmanaged:
		return "its agent holds no quota here: taking it would free nothing"
	case SafeUnsettled:
		return "its agent is starting or stopping and cannot be taken"
	case SafeOtherCluster:
		return fmt.Sprintf("pool %s is on cluster %s; quota is not lent between clusters", v.Pool, c.pools[v.Pool].Cluster)
	}
	return ""
}

// priorityNeeded is the least priority with which the newcomer could take the
// task by the rule that was asked: enough difference, and enough score.
func (c *Core) priorityNeeded(t *Task, v *Verdict) Milli {
	fromTime := Micro(c.policy.RemainingTimeWeight) * Micro(v.Remaining)
	byScore := Milli(ceilDiv(int64(c.rules.leastScore-fromTime), 1000))
	return t.Priority + max(c.rules.threshold(v.Reason), byScore)
}

func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
