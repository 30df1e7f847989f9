package sched

import (
	"container/heap"
	"slices"
)

// candidates is Candidates by the index, with a limit.
func (x *index) candidates(n *newcomer, limit int) []Candidate {
	var out []Candidate
	s := x.begin(n, false, "", want{})
	s.expect(limit)
	for len(out) < limit {
		_, v, ok := s.next()
		if !ok {
			break
		}
		if out == nil {
			out = make([]Candidate, 0, min(limit, 64))
		}
		v.AgentName = n.core.agentName(v.Agent)
		out = append(out, v)
	}
	return out
}

// best are the tasks that come first in an explanation: so many that may be
// taken, and so many of all that have the lowest priorities.
func (x *index) best(n *newcomer, limit int) []*Task {
	c := n.core
	found := map[ID]bool{}
	var out []*Task
	add := func(t *Task) {
		if !found[t.ID] {
			found[t.ID] = true
			out = append(out, t)
		}
	}
	s := x.begin(n, !n.Request.IsZero(), c.pools[n.Pool].Cluster, want{})
	for len(out) < limit {
		a, v, ok := s.next()
		if !ok {
			break
		}
		if !s.deciding {
			add(c.tasks[v.Task])
			continue
		}
		for _, t := range c.on[a.ID] {
			add(t)
		}
	}
	if len(out) < limit { // all that may be taken are there; the others are safe
		for _, t := range x.lowest(limit + len(out)) {
			add(t)
		}
	}
	return out
}

// decide is Decide by the index, for what does not fit as things are.
func (x *index) decide(n *newcomer, pool Pool, p *problem) Decision {
	c := n.core
	if best, found := x.one(n, pool.Cluster, p); found {
		return c.preempt(n, p, []seat{best})
	}
	chosen, short, some := x.several(n, pool.Cluster, p)
	if chosen != nil {
		return c.preempt(n, p, p.spare(chosen))
	}
	if refusal, never := c.neverFits(n, pool, p); never {
		return refuse(refusal)
	}
	if !some {
		_, _, some = x.begin(n, true, pool.Cluster, want{}).next()
	}
	tally := Tally{Considered: len(c.tasks), Uncounted: true}
	if _, live := c.tasks[n.ID]; live {
		tally.Considered--
	}
	return refuse(c.wanting(n, pool, p, short, some, tally))
}

// one finds the best agent that is enough by itself; see problem.choose.
func (x *index) one(n *newcomer, cluster string, p *problem) (best seat, found bool) {
	var s *search
	if p.fitsNow {
		s = x.begin(n, true, cluster, want{wantAll, p.need})
		s.expect(1)
	} else {
		s = x.beginOn(n, cluster, p.spots, p.need)
	}
	for {
		a, v, more := s.next()
		if !more {
			return seat{}, false
		}
		if best = (seat{a, v}); p.solvedByOne(best) {
			return best, true
		}
	}
}

// several is problem.gather without looking at every agent: what is missing of
// the quota is the same for all nodes at any time, so one walk does for all. It
// returns nil and what is short when there are not enough, and whether there are any.
func (x *index) several(n *newcomer, cluster string, p *problem) (chosen []seat, short Resources, some bool) {
	quota := p.need
	var lacks []Resources // by node, as p.spots; none if there is room anyway
	wanted := quota
	if !p.fitsNow {
		lacks = make([]Resources, len(p.spots))
		for i, s := range p.spots {
			lacks[i] = s.lack
			wanted = wanted.Max(s.lack)
		}
	}
	type step struct {
		seat
		quota bool
		spot  int // where it makes room that is missing; -1: nowhere
	}
	var steps []step
	takenFor := func(spot int) []seat {
		var out []seat
		for i := range steps {
			if steps[i].quota || spot >= 0 && steps[i].spot == spot {
				out = append(out, steps[i].seat)
			}
		}
		return out
	}
	w := x.begin(n, true, cluster, want{wantSome, wanted})
	for {
		a, v, more := w.next()
		if !more {
			break
		}
		some = true
		forQuota, spot := a.Gives.Intersects(quota), -1
		if !p.fitsNow {
			if at, here := p.spotOf(a.Node); here && a.Gives.Intersects(lacks[at]) {
				spot = at
			}
		}
		if !forQuota && spot < 0 {
			continue
		}
		steps = append(steps, step{seat{a, v}, forQuota, spot})
		if forQuota {
			quota = a.Gives.Lacking(quota)
			if p.fitsNow {
				w.narrow(quota)
			}
		}
		if spot >= 0 {
			lacks[spot] = a.Gives.Lacking(lacks[spot])
		}
		switch {
		case !quota.IsZero():
		case p.fitsNow:
			return takenFor(-1), Resources{}, true
		case forQuota: // the last of the quota: the first node that has room by now
			if at := slices.IndexFunc(lacks, Resources.IsZero); at >= 0 {
				return takenFor(at), Resources{}, true
			}
		case lacks[spot].IsZero():
			return takenFor(spot), Resources{}, true
		}
	}
	if !quota.IsZero() || p.fitsNow {
		return nil, quota, some
	}
	var nodes nearest
	for _, lack := range lacks {
		nodes.consider(lack, p.request)
	}
	return nil, nodes.lack, some
}

// lowest are so many tasks of the lowest priorities, in no particular order.
func (x *index) lowest(most int) []*Task {
	var h lowestFirst
	for _, f := range x.pools {
		for _, g := range f.list {
			if !g.seat {
				h = append(h, lowBranch{e: g.top.sum.e, fork: &g.top})
			}
		}
	}
	heap.Init(&h)
	var out []*Task
	for len(h) > 0 && len(out) < most {
		b := heap.Pop(&h).(lowBranch)
		switch {
		case b.fork != nil && b.fork.cell == nil:
			for i := range b.fork.kids {
				heap.Push(&h, lowBranch{e: b.fork.kids[i].sum.e, fork: &b.fork.kids[i]})
			}
		case b.fork != nil:
			heap.Push(&h, lowBranch{e: b.e, sub: b.fork.cell.root.sub})
		case b.sub != nil:
			for i := range b.sub.kids {
				heap.Push(&h, lowBranch{e: b.sub.kids[i].e, sub: b.sub.kids[i].sub})
			}
			for i := range b.sub.items {
				heap.Push(&h, lowBranch{e: b.sub.items[i].e})
			}
		default:
			out = append(out, b.e.task)
		}
	}
	return out
}

// lowBranch is a subtree by its first task, or a task.
type lowBranch struct {
	e    *entry
	fork *fork
	sub  *block
}

type lowestFirst []lowBranch

func (h lowestFirst) Len() int           { return len(h) }
func (h lowestFirst) Less(i, j int) bool { return h[i].e.task.compare(h[j].e.task) < 0 }
func (h lowestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lowestFirst) Push(v any)        { *h = append(*h, v.(lowBranch)) }
func (h *lowestFirst) Pop() any {
	old := *h
	v := old[len(old)-1]
	*h = old[:len(old)-1]
	return v
}
