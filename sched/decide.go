package sched

import "slices"

// Outcome is what becomes of an incoming task.
type Outcome string

const (
	// Admit: it fits as things are.
	Admit Outcome = "admit"
	// Preempt: it fits once the victims are gone.
	Preempt Outcome = "preempt"
	// Refuse: it fits nowhere, and may not make room.
	Refuse Outcome = "refuse"
)

// Decision answers whether an incoming task runs, where, and at whose cost.
type Decision struct {
	Outcome Outcome
	// Node is where there is, or will be, room; "" when the cluster has no
	// known nodes.
	Node NodeID
	// Deficit is the quota its pool lacks for it: request − free.
	Deficit Resources
	// RoomDeficit is what Node lacks for it now, before victims are gone.
	RoomDeficit Resources
	Victims     []Victim // best first; only for Preempt
	Refusal     Refusal  // only for Refuse
}

// Victim is an agent that makes way, with everything that runs on it.
type Victim struct {
	Agent     ID
	AgentName string
	Pool      string
	Node      NodeID
	Gives     Resources // what is freed
	// Takes is what of Gives the newcomer's quota needs. All Takes together are
	// the decision's Deficit, unless only room is missing: then they are zero.
	Takes Resources
	// Loan means that Takes is lent by another pool.
	Loan  bool
	Tasks []Candidate // all tasks on the agent, the least score first
	Score Micro       // that least score
}

// Decide says whether the task fits, and who makes way if it does not. Quota
// must be free in its pool, and room for all of it on one node of the pool's
// cluster; where a cluster has no known nodes, quota alone decides.
func (c *Core) Decide(in Incoming, now Time) Decision {
	if pool, ok := c.pools[in.Pool]; ok {
		if node, fits := c.fits(in.Request.Positive(), &pool, in.Rooms); fits {
			return Decision{Outcome: Admit, Node: node}
		}
	}
	return c.decide(c.newcomer(in, now))
}

func (c *Core) decide(n *newcomer) Decision {
	pool, ok := c.pools[n.Pool]
	if !ok {
		return refuse(unknownPool(n))
	}
	if node, fits := c.fits(n.Request, &pool, n.Rooms); fits {
		return Decision{Outcome: Admit, Node: node}
	}
	p := c.problem(n, pool)
	if x := c.ready(); x != nil {
		return x.decide(n, pool, p)
	}
	seats, tally := c.seats(n, pool.Cluster)
	chosen := p.choose(seats)
	if chosen == nil {
		// Asked only now: a pool that holds loans can run more than its capacity.
		if refusal, never := c.neverFits(n, pool, p); never {
			return refuse(refusal)
		}
		return refuse(c.insufficient(n, pool, p, seats, tally))
	}
	return c.preempt(n, p, chosen)
}

func (c *Core) preempt(n *newcomer, p *problem, chosen []seat) Decision {
	d := Decision{Outcome: Preempt, Node: p.bestNode(chosen), Deficit: p.quota, Victims: c.victims(n, p, chosen)}
	if node, ok := c.nodes.Get(d.Node); ok {
		d.RoomDeficit = node.Room.Lacking(n.Request)
	}
	return d
}

// fits reports whether a request has quota and room as things are, and where it
// would sit: see bestNode, of which this is the usual, quick case.
func (c *Core) fits(request Resources, pool *Pool, rooms string) (best NodeID, fits bool) {
	if !pool.Free.Covers(request) {
		return "", false
	}
	nodes := c.places(pool, rooms)
	var least int64
	for _, node := range nodes {
		if node.Held || !node.Room.Covers(request) {
			continue
		}
		if waste := wasted(node, request); !fits || waste < least {
			best, least, fits = node.ID, waste, true
		}
	}
	return best, fits || len(nodes) == 0 && rooms == ""
}

// places are the nodes on which a task of the pool may sit; see Incoming.Rooms.
func (c *Core) places(pool *Pool, rooms string) []*Node {
	if rooms == "" {
		rooms = pool.Cluster
	}
	return c.nodes.byCluster[rooms]
}

// wasted is thousandths of what the request leaves on the node.
func wasted(node *Node, request Resources) int64 {
	room, total := &node.Room, &node.Total
	sum := share(room.CPU-request.CPU, total.CPU) + share(room.GPU-request.GPU, total.GPU) + share(room.Memory-request.Memory, total.Memory)
	for _, a := range total.Other {
		sum += share(room.Get(a.Name)-request.Get(a.Name), a.Value)
	}
	return sum
}

func refuse(r Refusal) Decision { return Decision{Outcome: Refuse, Refusal: r} }

// victims turns chosen agents into what the ledger books. Agents of the
// newcomer's own pool give first, so that no more is lent than must be.
func (c *Core) victims(n *newcomer, p *problem, chosen []seat) []Victim {
	out := make([]Victim, len(chosen))
	for i, s := range chosen {
		out[i] = Victim{
			Agent: s.agent.ID, AgentName: s.agent.Name, Pool: s.agent.Pool, Node: s.agent.Node,
			Gives: s.agent.Gives, Score: s.least.Score, Tasks: c.tasksOn(n, s.agent),
		}
	}
	missing := p.quota
	for _, own := range []bool{true, false} {
		for i := range out {
			if v := &out[i]; (v.Pool == n.Pool) == own {
				v.Takes = v.Gives.Min(missing)
				v.Loan = !own && !v.Takes.IsZero()
				missing = missing.Sub(v.Takes)
			}
		}
	}
	return out
}

func (c *Core) tasksOn(n *newcomer, a *Agent) []Candidate {
	var out []Candidate
	for _, t := range c.on[a.ID] {
		v, _ := c.judge(n, t, a.Pool)
		v.AgentName = a.Name
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Candidate) int { return b.compare(&a) })
	return out
}
