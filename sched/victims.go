package sched

import (
	"cmp"
	"slices"
)

// problem is what has to be freed before a newcomer fits: quota, which every
// victim may contribute to, and room, which must come about on one node.
type problem struct {
	request Resources
	quota   Resources // what the pool lacks
	need    Resources // what victims must free for the quota; see Policy.VictimCoverage
	void    bool      // the cluster has no known nodes: room is no condition
	spots   []spot    // the nodes that are large enough, by id
	fitsNow bool      // room is there, or is no condition
}

// spot is a node on which the newcomer could sit.
type spot struct {
	node *Node
	lack Resources // what is not there yet
}

func (c *Core) problem(n *newcomer, pool Pool) *problem {
	p := &problem{request: n.Request, quota: pool.Free.Lacking(n.Request), void: n.Rooms == ""}
	p.need = p.quota
	if c.policy.VictimCoverage == CoverRequest && !p.quota.IsZero() {
		p.need = p.quota.Max(n.Request)
	}
	p.spots = c.spots[:0]
	for _, node := range c.places(&pool, n.Rooms) {
		p.void = false
		if node.Held {
			continue
		}
		if lack := node.Room.Lacking(n.Request); lack.IsZero() || node.Total.Covers(n.Request) {
			p.spots = append(p.spots, spot{node, lack})
			p.fitsNow = p.fitsNow || lack.IsZero()
		}
	}
	c.spots = p.spots
	p.fitsNow = p.fitsNow || p.void
	return p
}

// choose returns the agents to take, best first: the best one that is enough
// by itself, or else a set of which none can be spared. nil if there is none.
func (p *problem) choose(seats []seat) []seat {
	for _, s := range seats {
		if p.solvedByOne(s) {
			return []seat{s}
		}
	}
	return p.spare(p.gather(seats))
}

// solvedByOne is solved for a single agent, without building anything.
func (p *problem) solvedByOne(s seat) bool {
	if !s.agent.Gives.Covers(p.need) {
		return false
	}
	if p.fitsNow {
		return true
	}
	at, here := p.spotOf(s.agent.Node)
	return here && s.agent.Gives.Covers(p.spots[at].lack)
}

func (p *problem) spotOf(id NodeID) (int, bool) {
	return slices.BinarySearchFunc(p.spots, id, func(s spot, id NodeID) int { return cmp.Compare(s.node.ID, id) })
}

// gather walks the agents best first and keeps, for each node by itself, those
// that reduce what is still missing there, until one node has all it needs.
func (p *problem) gather(seats []seat) []seat {
	type attempt struct {
		spot
		quota  Resources // still missing, as is spot.lack
		chosen []seat
	}
	attempts := make([]attempt, 0, len(p.spots)+1)
	for _, s := range p.spots {
		attempts = append(attempts, attempt{spot: s, quota: p.need})
	}
	if p.void {
		attempts = append(attempts, attempt{quota: p.need})
	}
	for _, s := range seats {
		gives := s.agent.Gives
		for i := range attempts {
			a := &attempts[i]
			here := a.node != nil && a.node.ID == s.agent.Node
			if !gives.Intersects(a.quota) && !(here && gives.Intersects(a.lack)) {
				continue
			}
			a.chosen = append(a.chosen, s)
			a.quota = gives.Lacking(a.quota)
			if here {
				a.lack = gives.Lacking(a.lack)
			}
			if a.quota.IsZero() && a.lack.IsZero() {
				return a.chosen
			}
		}
	}
	return nil
}

// spare drops agents that are not needed, least-scored first. What is left
// solves the problem on some node, and on no node with one agent fewer.
func (p *problem) spare(chosen []seat) []seat {
	f := p.freedBy(chosen)
	keep := len(chosen) // the last so many are needed
	for i := len(chosen) - 1; i >= 0; i-- {
		s := chosen[i]
		f.add(s.agent.Node, s.agent.Gives.Neg())
		if !f.solves() {
			f.add(s.agent.Node, s.agent.Gives)
			keep--
			chosen[keep] = s
		}
	}
	return chosen[keep:]
}

// freed is what is there once some agents are gone.
type freed struct {
	p    *problem
	sum  Resources         // given by all of them
	room map[int]Resources // by index into p.spots, where any of them sat
	fits int               // how many of these are room enough
}

func (p *problem) freedBy(taken []seat) *freed {
	f := &freed{p: p, room: map[int]Resources{}}
	for _, s := range taken {
		f.add(s.agent.Node, s.agent.Gives)
	}
	return f
}

func (f *freed) add(node NodeID, gives Resources) {
	f.sum = f.sum.Add(gives)
	at, ok := f.p.spotOf(node)
	if !ok {
		return
	}
	was, touched := f.room[at]
	if touched && was.Covers(f.p.request) {
		f.fits--
	}
	room := f.roomAt(at).Add(gives)
	if f.room[at] = room; room.Covers(f.p.request) {
		f.fits++
	}
}

func (f *freed) roomAt(at int) Resources {
	if room, touched := f.room[at]; touched {
		return room
	}
	return f.p.spots[at].node.Room
}

// solves reports whether it is enough quota, and enough room on some node.
func (f *freed) solves() bool {
	if !f.sum.Covers(f.p.need) {
		return false
	}
	return f.p.fitsNow || f.fits > 0
}

// bestNode returns the node that will be fullest once the agents are gone and
// the newcomer is there, by what stays free of each of its resources as a share
// of its total, added up; then the first by id. So small tasks fill gaps, and a
// task without a gpu stays off nodes with idle ones.
func (p *problem) bestNode(taken []seat) NodeID {
	type place struct {
		id    NodeID
		waste int64
	}
	var fits []place
	f := p.freedBy(taken)
	for at, s := range p.spots {
		if room := f.roomAt(at); room.Covers(p.request) {
			fits = append(fits, place{s.node.ID, thousandths(room.Sub(p.request), s.node.Total)})
		}
	}
	if len(fits) == 0 {
		return ""
	}
	return slices.MinFunc(fits, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.waste, b.waste), cmp.Compare(a.id, b.id))
	}).id
}

// thousandths adds up, over the resources of total, how many thousandths of it are
// free: a simple measure of distance between unlike amounts.
func thousandths(free, total Resources) (sum int64) {
	sum = share(free.CPU, total.CPU) + share(free.GPU, total.GPU) + share(free.Memory, total.Memory)
	for _, a := range total.Other {
		sum += share(free.Get(a.Name), a.Value)
	}
	return sum
}

func share(f, of int64) int64 {
	if f > 0 && of > 0 {
		return 1000 * min(f, of) / of
	}
	return 0
}
