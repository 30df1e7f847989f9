package sched

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Gang answers whether several incoming tasks run, all of them or none.
type Gang struct {
	// Outcome is Admit when all fit as things are, Preempt when they do once the
	// victims are gone, and Refuse when they never do together.
	Outcome Outcome
	// Members are the decisions on the newcomers, in the order given; nil when
	// refused. A member whose Outcome is Admit waits for nobody. A victim may be
	// in several members' Victims: each has its own Takes there, and all of them
	// together are never more than what it Gives.
	Members []Decision
	// Victims are the agents that make way, best first, each of them once.
	Victims []GangVictim
	// Refused is which newcomer found no place, counted from 0, and Refusal why;
	// only for Refuse.
	Refused int
	Refusal Refusal
}

// GangVictim is an agent that makes way for a gang.
type GangVictim struct {
	// Victim is as judged for the first of Members. Takes is what all of them
	// take together; Loan means that some of it is lent by another pool.
	Victim
	Members []int // who waits for it: indexes of newcomers, ascending
}

// DecideGang says whether all newcomers fit together, each on a node of its own
// pool's cluster, and which agents make way if they do not. They may ask for
// different pools. A member only takes from agents it may preempt, and if any
// victim were spared, the gang would not fit.
//
// Members that are alike, in all but name and id, are placed whenever there is a
// way. For mixed ones a way is always found in a small namespace (some hundred
// agents, eight members); in a large one members are placed one after the other
// in several orders, which may miss a way that only a cleverer packing finds.
func (c *Core) DecideGang(in []Incoming, now Time) Gang {
	g := c.gang(in, now)
	for i, n := range g.members {
		if _, known := c.pools[n.Pool]; !known {
			return Gang{Outcome: Refuse, Refused: i, Refusal: unknownPool(n)}
		}
	}
	var refused Gang
	for i, order := range g.orders() {
		taken, nodes, failed, refusal := g.inTurn(order)
		if failed < 0 {
			if done, ok := g.settle(taken, nodes); ok {
				return done
			}
		} else if i == 0 {
			refused = Gang{Outcome: Refuse, Refused: failed, Refusal: refusal}
		}
	}
	if !g.alike && len(c.on) <= gangAgents && len(in) <= gangMembers {
		if done, ok := g.settle(g.everyone(), nil); ok {
			return done
		}
	}
	if refused.Outcome == "" { // each found a place, but took what only another may take
		last := len(g.members) - 1
		refused = Gang{Outcome: Refuse, Refused: last, Refusal: Refusal{Code: VictimsInsufficient,
			Message: "the members of the gang may not share what their victims give: each of them only takes from agents it may preempt itself",
			Short:   g.members[last].Request}}
	}
	return refused
}

const (
	gangAgents  = 500    // up to so many agents everyone who may be taken is tried
	gangMembers = 8      // … for so many members
	gangSteps   = 20_000 // how many placements of members on nodes are tried at most
)

// gang is a question about several newcomers. Those that may preempt the same
// are of one kind.
type gang struct {
	c       *Core
	members []*newcomer
	kind    []int // by member
	kinds   []*newcomer
	asks    []Resources          // unlike requests
	in      map[string][]int     // members by pool
	asked   map[string]Resources // by them together
	alike   bool                 // one kind, one request
}

func (c *Core) gang(in []Incoming, now Time) *gang {
	g := &gang{c: c, kind: make([]int, len(in)), in: map[string][]int{}, asked: map[string]Resources{}}
	for i := range in {
		n := c.newcomer(in[i], now)
		k := slices.IndexFunc(g.kinds, func(o *newcomer) bool {
			// One that is live already may not preempt itself; no other is like it.
			return c.tasks[n.ID] == nil && c.tasks[o.ID] == nil && n.Pool == o.Pool && n.Priority == o.Priority && maps.Equal(n.Labels, o.Labels) && maps.Equal(n.blocked, o.blocked)
		})
		if k < 0 {
			k = len(g.kinds)
			g.kinds = append(g.kinds, n)
		}
		g.members, g.kind[i] = append(g.members, n), k
		g.in[n.Pool] = append(g.in[n.Pool], i)
		g.asked[n.Pool] = g.asked[n.Pool].Add(n.Request)
		if !slices.ContainsFunc(g.asks, n.Request.Equal) {
			g.asks = append(g.asks, n.Request)
		}
	}
	g.alike = len(g.kinds) <= 1 && len(g.asks) <= 1
	return g
}

// orders are the turns in which members are tried: the weak first, because the
// strong can still take what is not free; the large first, because they fit in
// fewer places; and as given.
func (g *gang) orders() [][]int {
	given := make([]int, len(g.members))
	for i := range given {
		given[i] = i
	}
	if g.alike {
		return [][]int{given}
	}
	large := slices.Clone(given)
	slices.SortStableFunc(large, func(a, b int) int { return cmp.Compare(g.size(b), g.size(a)) })
	weak := slices.Clone(large)
	slices.SortStableFunc(weak, func(a, b int) int { return cmp.Compare(g.members[a].Priority, g.members[b].Priority) })
	return [][]int{weak, large, given}
}

// size is a request as a share of all the nodes in its cluster; without nodes it
// does not matter.
func (g *gang) size(member int) int64 {
	n := g.members[member]
	for _, node := range g.c.nodes.byCluster[g.c.pools[n.Pool].Cluster] {
		return thousandths(n.Request, node.Total)
	}
	return 0
}

// inTurn places one member after the other, as if those before had been
// admitted already, and returns the agents that would make way and the node of
// each member; or else which member found no place. What a victim gives beyond
// need serves those who come later.
func (g *gang) inTurn(order []int) (taken []ID, nodes []NodeID, failed int, refusal Refusal) {
	c := g.c
	nodes = make([]NodeID, len(g.members))
	pools, rooms, coverage := map[string]Pool{}, map[NodeID]Resources{}, c.policy.VictimCoverage
	defer func() {
		c.policy.VictimCoverage = coverage
		maps.Copy(c.pools, pools)
		for id, room := range rooms {
			c.nodes.byID[id].Room = room
		}
	}()
	give := func(id NodeID, amount Resources) {
		if node := c.nodes.byID[id]; node != nil {
			if _, kept := rooms[id]; !kept {
				rooms[id] = node.Room
			}
			node.Room = node.Room.Add(amount)
		}
	}
	// Where victims must give all that is asked, nothing is free to begin with.
	c.policy.VictimCoverage = CoverDeficit
	for name, asked := range g.asked {
		if pool := c.pools[name]; coverage == CoverRequest && !pool.Free.Covers(asked) {
			pools[name] = pool
			pool.Free = pool.Free.Min(Resources{})
			c.pools[name] = pool
		}
	}
	gone := map[ID]bool{}
	for at, i := range order {
		n := *g.members[i]
		n.taken = gone
		d := c.decide(&n)
		if d.Outcome == Refuse {
			if at > 0 {
				d.Refusal.Message = fmt.Sprintf("with %d others of its gang in place: %s", at, d.Refusal.Message)
			}
			return nil, nil, i, d.Refusal
		}
		pool := c.pools[n.Pool]
		if _, kept := pools[n.Pool]; !kept {
			pools[n.Pool] = pool
		}
		for _, v := range d.Victims {
			gone[v.Agent] = true
			taken = append(taken, v.Agent)
			pool.Free = pool.Free.Add(v.Gives)
			give(v.Node, v.Gives)
		}
		pool.Free = pool.Free.Sub(n.Request)
		c.pools[n.Pool] = pool
		give(d.Node, n.Request.Neg())
		nodes[i] = d.Node
	}
	return taken, nodes, -1, Refusal{}
}

// everyone are all agents that any member may take.
func (g *gang) everyone() (out []ID) {
	for id := range g.c.on {
		for _, n := range g.kinds {
			if _, ok := g.c.seat(n, id, g.c.pools[n.Pool].Cluster, &Tally{}); ok {
				out = append(out, id)
				break
			}
		}
	}
	return out
}

// gangSeat is an agent that some kind of member may take.
type gangSeat struct {
	seat
	by []bool // which kinds
}

// settle spares whom the gang does not need and says who gets what; false when
// the agents are not enough.
func (g *gang) settle(taken []ID, nodes []NodeID) (Gang, bool) {
	seats := g.judge(taken)
	nodes = g.place(seats, nodes)
	if nodes == nil || g.quotaFlows(seats, false) == nil {
		return Gang{}, false
	}
	for i := len(seats) - 1; i >= 0; i-- {
		fewer := slices.Delete(slices.Clone(seats), i, i+1)
		if g.quotaFlows(fewer, false) != nil {
			if other := g.place(fewer, nodes); other != nil {
				seats, nodes = fewer, other
			}
		}
	}
	return g.book(seats, nodes), true
}

// judge says by whom agents may be taken, best first.
func (g *gang) judge(taken []ID) []gangSeat {
	var out []gangSeat
	for _, id := range taken {
		s := gangSeat{by: make([]bool, len(g.kinds))}
		for k := len(g.kinds) - 1; k >= 0; k-- {
			if as, ok := g.c.seat(g.kinds[k], id, g.c.pools[g.kinds[k].Pool].Cluster, &Tally{}); ok {
				s.seat, s.by[k] = as, true
			}
		}
		if s.agent != nil {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b gangSeat) int { return a.least.compare(&b.least) })
	return out
}

// quotaFlows is how much quota each kind gets from each source: the pools first,
// by kind, then the seats; nil when there is not enough. Where the policy says so
// all that a pool's members ask for must come from victims once any is missing;
// the books only say what is.
func (g *gang) quotaFlows(seats []gangSeat, books bool) *flows {
	f := g.flows()
	for k, n := range g.kinds {
		free, may := Resources{}, g.stages(func(o int) int { return pick(g.kinds[o].Pool == n.Pool, 0, never) })
		if slices.IndexFunc(g.kinds, func(o *newcomer) bool { return o.Pool == n.Pool }) == k {
			pool := g.c.pools[n.Pool]
			f.claim(g.in[n.Pool], pool.Free)
			if books || g.c.policy.VictimCoverage != CoverRequest || pool.Free.Covers(g.asked[n.Pool]) {
				free = pool.Free.Positive()
			}
		}
		f.add(free, may)
	}
	for i := range seats {
		s := &seats[i]
		f.add(s.agent.Gives, g.stages(func(k int) int {
			return pick(s.by[k], pick(s.agent.Pool == g.kinds[k].Pool, 1, 2), never)
		}))
	}
	if !f.run() {
		return nil
	}
	return f
}

// place finds a node for every member once the seats are free, trying hint
// first; nil when it finds none. In a cluster without nodes that is "".
func (g *gang) place(seats []gangSeat, hint []NodeID) []NodeID {
	p := &placing{gang: g, seats: seats, at: make([]NodeID, len(g.members)), on: map[NodeID][]int{}, steps: gangSteps}
	if hint != nil && p.holds(hint) {
		return hint
	}
	for i := range g.members {
		p.order = append(p.order, i)
	}
	slices.SortStableFunc(p.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(g.size(b), g.size(a)), cmp.Compare(g.kind[a], g.kind[b]))
	})
	p.nodes = map[string][]*Node{}
	for _, n := range g.members {
		cluster := g.c.pools[n.Pool].Cluster
		if _, seen := p.nodes[cluster]; !seen {
			p.nodes[cluster] = p.useful(cluster)
		}
	}
	if !p.next(0) {
		return nil
	}
	return p.at
}

// placing is a search for places.
type placing struct {
	*gang
	seats []gangSeat
	order []int
	nodes map[string][]*Node // by cluster: those that may hold a member, fullest first
	at    []NodeID           // by member
	on    map[NodeID][]int
	steps int
}

// useful are the nodes that have room for something, or will.
func (p *placing) useful(cluster string) []*Node {
	all := p.c.nodes.byCluster[cluster]
	freed := map[NodeID]bool{}
	for i := range p.seats {
		freed[p.seats[i].agent.Node] = true
	}
	var out []*Node
	for _, node := range all {
		if !node.Held && (freed[node.ID] || slices.ContainsFunc(p.asks, node.Room.Covers)) {
			out = append(out, node)
		}
	}
	free := func(n *Node) int64 { return thousandths(n.Room, n.Total) }
	slices.SortStableFunc(out, func(a, b *Node) int { return cmp.Compare(free(a), free(b)) })
	return out
}

// next places the members from the i-th of the order on.
func (p *placing) next(i int) bool {
	if i == len(p.order) {
		return true
	}
	m := p.order[i]
	cluster := p.c.pools[p.members[m].Pool].Cluster
	if len(p.c.nodes.byCluster[cluster]) == 0 {
		p.at[m] = ""
		return p.next(i + 1)
	}
	from := 0
	if i > 0 {
		if o := p.order[i-1]; p.kind[o] == p.kind[m] && p.members[o].Request.Equal(p.members[m].Request) { // twins: not both ways round
			from = max(slices.IndexFunc(p.nodes[cluster], func(n *Node) bool { return n.ID == p.at[o] }), 0)
		}
	}
	for _, node := range p.nodes[cluster][from:] {
		if p.steps--; p.steps < 0 {
			return false
		}
		p.on[node.ID] = append(p.on[node.ID], m)
		if p.roomFlows(node.ID, p.on[node.ID]) != nil {
			p.at[m] = node.ID
			if p.next(i + 1) {
				return true
			}
		}
		p.on[node.ID] = p.on[node.ID][:len(p.on[node.ID])-1]
	}
	return false
}

// holds reports whether the members have room on these nodes.
func (p *placing) holds(at []NodeID) bool {
	on := map[NodeID][]int{}
	for m, node := range at {
		if node != "" {
			on[node] = append(on[node], m)
		}
	}
	for node, members := range on {
		if p.roomFlows(node, members) == nil {
			return false
		}
	}
	return true
}

// roomFlows is how much room each kind among members gets on a node from what
// is there, the first source, and from the seats on it.
func (p *placing) roomFlows(node NodeID, members []int) *flows {
	f := p.flows()
	room := p.c.nodes.byID[node].Room
	f.claim(members, room)
	f.add(room.Positive(), p.stages(func(int) int { return 0 }))
	for i := range p.seats {
		s := &p.seats[i]
		gives := s.agent.Gives
		if s.agent.Node != node {
			gives = Resources{}
		}
		f.add(gives, p.stages(func(k int) int { return pick(s.by[k], 1, never) }))
	}
	if !f.run() {
		return nil
	}
	return f
}
