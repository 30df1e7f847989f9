package sched

import (
	"cmp"
	"slices"
)

// This file is the readable specification of which tasks and agents may be
// taken, and in which order: it looks at everything. An index may replace it,
// if its answers are the same.

// Candidates returns the tasks the newcomer could preempt, resources aside,
// best first: score ↓, priority ↑, start ↓ (least work lost), task name. A
// limit of 0 or less means all. Tasks are judged by the pool they name.
func (c *Core) Candidates(in Incoming, now Time, limit int) []Candidate {
	n := c.newcomer(in, now)
	if limit > 0 {
		if x := c.ready(); x != nil {
			return x.candidates(n, limit)
		}
	}
	return c.scan(n, limit)
}

// scan is Candidates by looking at every task.
func (c *Core) scan(n *newcomer, limit int) []Candidate {
	var out []Candidate
	for _, t := range c.tasks {
		if v, safe := c.judge(n, t, t.Pool); safe == "" {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b Candidate) int { return a.compare(&b) })
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	for i := range out {
		out[i].AgentName = c.agentName(out[i].Agent)
	}
	return out
}

func (c *Core) agentName(id ID) string {
	if a, ok := c.agents[id]; ok {
		return a.Name
	}
	return ""
}

// seat is an agent that may be taken with everything that runs on it.
type seat struct {
	agent *Agent
	least Candidate // of its tasks: what taking the agent is worth
}

// seats returns the agents the newcomer may take in order to run in cluster,
// best first, and counts why all other tasks are safe. One safe task keeps its
// agent, and so whatever else runs there.
func (c *Core) seats(n *newcomer, cluster string) ([]seat, Tally) {
	var out []seat
	var tally Tally
	for id := range c.on {
		if s, ok := c.seat(n, id, cluster, &tally); ok {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b seat) int { return a.least.compare(&b.least) })
	return out, tally
}

// seat judges what runs on one agent; false when something there is safe.
func (c *Core) seat(n *newcomer, id ID, cluster string, tally *Tally) (seat, bool) {
	a, tasks := c.agents[id], c.on[id]
	var least Candidate
	eligible := 0
	for _, t := range tasks {
		v, safe := c.judgeOnAgent(n, t, a, cluster)
		tally.count(&v, safe)
		if safe != "" {
			continue
		}
		if eligible == 0 || v.compare(&least) > 0 {
			least = v
		}
		eligible++
	}
	if eligible < len(tasks) {
		tally.SharesAgent += eligible
		return seat{}, false
	}
	tally.Eligible += eligible
	return seat{a, least}, true
}

// judgeOnAgent is judge for when resources matter: the agent gives them up, so
// its pool is the one that loses, and must be able to give to the newcomer's.
func (c *Core) judgeOnAgent(n *newcomer, t *Task, a *Agent, cluster string) (Candidate, Safe) {
	if t.ID == n.ID {
		return c.judge(n, t, t.Pool)
	}
	if a == nil || a.Gives.IsZero() {
		v, safe := c.judge(n, t, t.Pool)
		return v, cmp.Or(safe, SafeUnmanaged)
	}
	pool, known := c.pools[a.Pool]
	v, safe := c.judge(n, t, a.Pool)
	switch {
	case safe != "":
	case !known:
		safe = SafeUnmanaged
	case pool.Cluster != cluster:
		safe = SafeOtherCluster
	case !a.Settled || n.taken[a.ID]:
		safe = SafeUnsettled
	}
	return v, safe
}
