package sched

import (
	"container/heap"
	"math"
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
	if !some {
		short = p.short(nil)
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

// several is problem.gather without looking at every agent. What is missing of the
// quota is the same for all nodes at any time, and what is missing on a node does
// not depend on quota: so each is found by itself. It returns nil and what is short,
// at least, when there are not enough, and whether there are any.
func (x *index) several(n *newcomer, cluster string, p *problem) (chosen []seat, short Resources, some bool) {
	quota := p.need
	if !quota.IsZero() {
		s := x.begin(n, true, cluster, want{wantSome, quota})
		if short := s.most(quota).Lacking(quota); !short.IsZero() {
			return nil, short, len(s.sources) > 0 && s.some()
		}
		for !quota.IsZero() {
			a, v, more := s.next()
			if !more {
				return nil, quota, some
			}
			some = true
			if a.Gives.Intersects(quota) {
				chosen = append(chosen, seat{a, v})
				quota = a.Gives.Lacking(quota)
				s.narrow(quota)
			}
		}
	}
	if p.fitsNow {
		return chosen, Resources{}, some
	}
	room, short, any := x.room(n, cluster, p, chosen)
	if room == nil {
		return nil, short, some || any
	}
	return union(chosen, room), Resources{}, true
}

// union merges two lists that are best first.
func union(a, b []seat) []seat {
	out := make([]seat, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].least.compare(&b[0].least) < 0:
			out, a = append(out, a[0]), a[1:]
		case len(a) == 0 || a[0].agent != b[0].agent:
			out, b = append(out, b[0]), b[1:]
		default:
			out, a, b = append(out, a[0]), a[1:], b[1:]
		}
	}
	return out
}

// room finds the agents that make room on one node: on the first that has enough
// when agents are walked best first, or else, of those that have enough by the
// time the quota is there, on the first by id.
func (x *index) room(n *newcomer, cluster string, p *problem, quota []seat) (best []seat, short Resources, some bool) {
	var until *Candidate // the last that is needed for the quota
	if len(quota) > 0 {
		until = &quota[len(quota)-1].least
	}
	best, lacks, done := x.walk(n, cluster, p, until)
	if best != nil {
		return best, Resources{}, true
	}
	var nodes nearest
	if done {
		for i := range p.spots {
			lack := p.spots[i].lack
			if rest, walked := lacks[i]; walked {
				lack = rest
			}
			nodes.consider(lack, p.request)
		}
		return nil, nodes.lack, len(lacks) > 0
	}
	var last *Candidate // of best
	s := x.prepare(n, true, cluster, want{})
	for i := range p.spots {
		spot := &p.spots[i]
		f := x.nodes[spot.node.ID]
		if f == nil {
			nodes.consider(spot.lack, p.request)
			continue
		}
		s.want, s.floor = want{wantSome, spot.lack}, math.MinInt64
		s.whole()
		if last != nil { // it needs to have enough that is better
			s.floor = last.Score
		}
		if !f.more && len(spot.lack.Other) == 0 {
			var sum [len(shape{})]int64
			if _, ok := s.judge(0, &f.sum); ok {
				f.sum.addTo(&sum)
			}
			if short := (Resources{CPU: sum[0], GPU: sum[1], Memory: sum[2]}).Lacking(spot.lack); !short.IsZero() {
				nodes.consider(short, p.request)
				continue
			}
		}
		s.addNode(f)
		if short := s.most(spot.lack).Lacking(spot.lack); !short.IsZero() {
			nodes.consider(short, p.request)
			continue
		}
		s.open()
		lack := spot.lack
		var taken []seat
		for !lack.IsZero() {
			a, v, more := s.next()
			if !more || last != nil && v.compare(last) >= 0 {
				break
			}
			if a.Gives.Intersects(lack) {
				taken = append(taken, seat{a, v})
				lack = a.Gives.Lacking(lack)
			}
		}
		if !lack.IsZero() {
			nodes.consider(lack, p.request)
			continue
		}
		best, last = taken, &taken[len(taken)-1].least
		if until != nil && last.compare(until) <= 0 {
			break // it has enough by then, and those before it do not
		}
	}
	return best, nodes.lack, false
}

// walk is room for when few agents have to go, or there are few: it walks them all
// best first, for a while. Without an answer it returns what nodes still lack then,
// and whether that was all.
func (x *index) walk(n *newcomer, cluster string, p *problem, until *Candidate) (best []seat, lacks map[int]Resources, done bool) {
	wanted := Resources{}
	for i := range p.spots {
		wanted = wanted.Max(p.spots[i].lack)
	}
	lacks = map[int]Resources{}
	var steps []seat
	var spots []int
	taken := func(at int) []seat {
		var out []seat
		for i := range steps {
			if spots[i] == at {
				out = append(out, steps[i])
			}
		}
		return out
	}
	ready := -1
	s := x.begin(n, true, cluster, want{wantSome, wanted})
	for range n.core.sizes.walk {
		a, v, more := s.next()
		if ready >= 0 && (!more || v.compare(until) > 0) {
			return taken(ready), nil, true
		}
		if !more {
			return nil, lacks, true
		}
		at, here := p.spotOf(a.Node)
		if !here {
			continue
		}
		lack, walked := lacks[at]
		if !walked {
			lack = p.spots[at].lack
		}
		if !a.Gives.Intersects(lack) {
			continue
		}
		steps, spots = append(steps, seat{a, v}), append(spots, at)
		lack = a.Gives.Lacking(lack)
		if lacks[at] = lack; !lack.IsZero() {
			continue
		}
		if until == nil || v.compare(until) > 0 {
			return taken(at), nil, true
		}
		if ready < 0 || at < ready { // in time for the quota: the first by id
			ready = at
		}
	}
	return nil, lacks, false
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
