package sched_test

import (
	"slices"
	"sort"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// This file says a second time, in the plainest way and sharing no code with
// the package, what may be taken and what is enough. It is slow on purpose.

// specScore is the table of rules: in millionths, and whether it may be taken.
func (w world) specScore(in Incoming, t Task, pool string, now Time) (score int64, reason Reason, ok bool) {
	p := w.policy
	above := func(a, b Labels) bool {
		for key, rule := range p.LabelPreemptionRules {
			if x, has := a[key]; has && p.EnableLabelPreemption {
				if y, has := b[key]; has && slices.Contains(rule[x], y) {
					return true
				}
			}
		}
		return false
	}
	start := int64(t.Start)
	if start == 0 {
		start = int64(now)
	}
	remaining := int64(0)
	if t.Estimate > 0 && start+int64(t.Estimate) > int64(now) {
		remaining = start + int64(t.Estimate) - int64(now)
	}
	delta := int64(in.Priority) - int64(t.Priority)
	base, least := delta, int64(p.MinPreemptScore)
	switch {
	case above(in.Labels, t.Labels):
		reason = ByLabel
		base = max(delta, int64(p.LabelPriorityThreshold))
		least = min(least, int64(p.LabelPriorityThreshold))
	case above(t.Labels, in.Labels):
		return 0, "", false
	case pool == in.Pool:
		reason = SamePool
		ok = delta >= int64(p.SamePoolPriorityThreshold)
	default:
		reason = CrossPool
		ok = p.EnableCrossPoolPreemption && delta >= int64(p.CrossPoolPriorityThreshold)
	}
	score = base*1000 + int64(p.RemainingTimeWeight)*remaining
	switch {
	case reason != ByLabel && !ok,
		score < least*1000,
		t.ID == in.ID,
		pool != in.Pool && slices.Contains(p.ProtectedPools, pool),
		slices.Contains(w.preemptorsOf(in.PreemptedBy, 0), t.ID),
		p.MaxPreemptionsPerTask > 0 && t.Preemptions >= p.MaxPreemptionsPerTask,
		p.MinRuntimeSeconds > 0 && int64(now)-start < int64(p.MinRuntimeSeconds),
		p.MaxPreemptionsPerMinute > 0 && w.poolNamed(pool).Preempted >= p.MaxPreemptionsPerMinute:
		return 0, "", false
	}
	return score, reason, true
}

func (w world) preemptorsOf(ids []ID, depth int) []ID {
	all := slices.Clone(ids)
	if depth > len(w.tasks) {
		return all
	}
	for _, id := range ids {
		for _, t := range w.tasks {
			if t.ID == id {
				all = append(all, w.preemptorsOf(t.PreemptedBy, depth+1)...)
			}
		}
	}
	return all
}

func (w world) poolNamed(name string) Pool {
	for _, p := range w.pools {
		if p.Name == name {
			return p
		}
	}
	return Pool{}
}

// specAgent is an agent that may be taken.
type specAgent struct {
	Agent
	score int64
	worst Task
}

// better is the documented order: score ↓, priority ↑, start ↓, name.
func (a specAgent) better(b specAgent, now Time) bool {
	start := func(t Task) Time {
		if t.Start == 0 {
			return now
		}
		return t.Start
	}
	switch {
	case a.score != b.score:
		return a.score > b.score
	case a.worst.Priority != b.worst.Priority:
		return a.worst.Priority < b.worst.Priority
	case start(a.worst) != start(b.worst):
		return start(a.worst) > start(b.worst)
	}
	return a.worst.Name < b.worst.Name
}

// specAgents returns the agents that may be taken, best first.
func (w world) specAgents(in Incoming, now Time) []specAgent {
	var out []specAgent
	cluster := w.poolNamed(in.Pool).Cluster
agents:
	for _, a := range w.agents {
		if !a.Settled || a.Gives.IsZero() || w.poolNamed(a.Pool).Name == "" || w.poolNamed(a.Pool).Cluster != cluster {
			continue
		}
		s := specAgent{Agent: a}
		for _, t := range w.tasks {
			if t.Agent != a.ID {
				continue
			}
			score, _, ok := w.specScore(in, t, a.Pool, now)
			if !ok {
				continue agents
			}
			next := specAgent{a, score, t}
			if s.worst.Name == "" || s.better(next, now) {
				s = next
			}
		}
		if s.worst.Name != "" {
			out = append(out, s)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].better(out[j], now) })
	return out
}

// specMissing is the quota the pool lacks, resource by resource.
func (w world) specMissing(in Incoming) map[string]int64 {
	missing := map[string]int64{}
	in.Request.Each(func(name string, want int64) {
		if have := w.poolNamed(in.Pool).Free.Get(name); want > have {
			missing[name] = want - have
		}
	})
	return missing
}

// specEnough reports whether the newcomer has quota once these agents are gone,
// and the nodes it then fits on; every node-less cluster has the node "".
func (w world) specEnough(in Incoming, gone []specAgent) (quota bool, fits []NodeID) {
	missing := w.specMissing(in)
	if w.policy.VictimCoverage == CoverRequest && len(missing) > 0 {
		in.Request.Each(func(name string, want int64) { missing[name] = max(missing[name], want) })
	}
	quota = true
	for name, lack := range missing {
		for _, a := range gone {
			lack -= a.Gives.Get(name)
		}
		quota = quota && lack <= 0
	}
	known := false
	for _, n := range w.nodes {
		if n.Cluster != w.poolNamed(in.Pool).Cluster {
			continue
		}
		known = true
		roomy := true
		in.Request.Each(func(name string, want int64) {
			room := n.Room.Get(name)
			for _, a := range gone {
				if a.Node == n.ID {
					room += a.Gives.Get(name)
				}
			}
			roomy = roomy && room >= want
		})
		if roomy {
			fits = append(fits, n.ID)
		}
	}
	if !known {
		fits = []NodeID{""}
	}
	return quota, fits
}

func (w world) specSolves(in Incoming, gone []specAgent) bool {
	quota, fits := w.specEnough(in, gone)
	return quota && len(fits) > 0
}

// specSolvable tries every subset.
func (w world) specSolvable(in Incoming, agents []specAgent) bool {
	for set := range 1 << len(agents) {
		var gone []specAgent
		for i, a := range agents {
			if set>>i&1 == 1 {
				gone = append(gone, a)
			}
		}
		if w.specSolves(in, gone) {
			return true
		}
	}
	return false
}
