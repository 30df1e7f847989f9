package sched

import (
	"math"
	"slices"
)

// flows spreads what sources have over kinds of members that need it, one
// resource after the other. Not every kind may take from every source; sources
// of an earlier stage are used up first.
type flows struct {
	g      *gang
	claims []Resources   // by member
	demand []Resources   // by kind
	have   []Resources   // by source
	may    [][]int       // by source and kind: the stage, or never
	out    [][]Resources // by source and kind: who gets what
}

const never = math.MaxInt

func (g *gang) flows() *flows {
	return &flows{g: g, claims: make([]Resources, len(g.members)), demand: make([]Resources, len(g.kinds))}
}

// claim says that members need what they ask for, of one pool or node. What that
// owes already, the first who asks for such has to bring as well.
func (f *flows) claim(members []int, have Resources) {
	debt := have.Min(Resources{}).Neg()
	for _, m := range members {
		ask := f.g.members[m].Request
		f.claims[m] = ask
		debt.Each(func(name string, v int64) {
			if ask.Get(name) > 0 {
				f.claims[m] = f.claims[m].Add(Resources{}.With(name, v))
				debt = debt.With(name, 0)
			}
		})
		k := f.g.kind[m]
		f.demand[k] = f.demand[k].Add(f.claims[m])
	}
}

// stages asks for each kind.
func (g *gang) stages(of func(kind int) int) []int {
	out := make([]int, len(g.kinds))
	for k := range out {
		out[k] = of(k)
	}
	return out
}

func pick(yes bool, then, otherwise int) int {
	if yes {
		return then
	}
	return otherwise
}

func (f *flows) add(have Resources, may []int) {
	f.have, f.may = append(f.have, have), append(f.may, may)
}

// run reports whether every demand is met.
func (f *flows) run() bool {
	f.out = make([][]Resources, len(f.have))
	for s := range f.out {
		f.out[s] = make([]Resources, len(f.demand))
	}
	all := Resources{}
	for _, d := range f.demand {
		all = all.Add(d)
	}
	met := true
	all.Each(func(name string, _ int64) { met = met && f.spread(name) })
	return met
}

func (f *flows) spread(name string) bool {
	left, unmet := make([]int64, len(f.have)), make([]int64, len(f.demand))
	given := make([][]int64, len(f.have))
	last := 0
	for s, have := range f.have {
		left[s], given[s] = have.Get(name), make([]int64, len(f.demand))
		for _, stage := range f.may[s] {
			if stage != never {
				last = max(last, stage)
			}
		}
	}
	for k, d := range f.demand {
		unmet[k] = d.Get(name)
	}
	for stage := 0; stage <= last; stage++ {
		for s := range f.have {
			for left[s] > 0 && f.augment(s, stage, left, unmet, given) {
			}
		}
	}
	for s := range given {
		for k, v := range given[s] {
			if v != 0 {
				f.out[s][k] = f.out[s][k].With(name, v)
			}
		}
	}
	return !slices.ContainsFunc(unmet, func(v int64) bool { return v > 0 })
}

// augment sends more from a source to a kind in need, if must be by way of kinds
// that then get theirs from elsewhere; a shortest augmenting path.
func (f *flows) augment(source, stage int, left, unmet []int64, given [][]int64) bool {
	type hop struct{ from, by int } // the kind before, −1 for the source, and the source that moves
	via := make([]*hop, len(unmet))
	var queue []int
	for k := range unmet {
		if f.may[source][k] <= stage {
			via[k] = &hop{-1, source}
			queue = append(queue, k)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		k := queue[0]
		if unmet[k] > 0 {
			amount := min(left[source], unmet[k])
			for at := k; via[at].from >= 0; at = via[at].from {
				amount = min(amount, given[via[at].by][via[at].from])
			}
			unmet[k] -= amount
			left[source] -= amount
			for at := k; ; at = via[at].from {
				given[via[at].by][at] += amount
				if via[at].from < 0 {
					return true
				}
				given[via[at].by][via[at].from] -= amount
			}
		}
		for s := range given {
			if given[s][k] == 0 {
				continue
			}
			for o := range unmet {
				if via[o] == nil && f.may[s][o] <= stage {
					via[o] = &hop{k, s}
					queue = append(queue, o)
				}
			}
		}
	}
	return false
}

// book says who gets what.
func (g *gang) book(seats []gangSeat, nodes []NodeID) Gang {
	out := Gang{Outcome: Admit, Members: make([]Decision, len(g.members))}
	for i, node := range nodes {
		out.Members[i] = Decision{Outcome: Admit, Node: node}
	}
	if len(seats) == 0 {
		return out
	}
	out.Outcome = Preempt
	takes, rooms := make([][]Resources, len(seats)), make([][]Resources, len(seats)) // by seat and member
	for i := range seats {
		takes[i], rooms[i] = make([]Resources, len(g.members)), make([]Resources, len(g.members))
	}
	g.share(g.quotaFlows(seats, true), len(g.kinds), g.all(), takes)
	on := map[NodeID][]int{}
	for i, node := range nodes {
		if node != "" {
			on[node] = append(on[node], i)
		}
	}
	p := &placing{gang: g, seats: seats}
	for node, members := range on {
		g.share(p.roomFlows(node, members), 1, members, rooms)
	}
	for i := range seats {
		s := &seats[i]
		v := GangVictim{}
		for m := range g.members {
			if !takes[i][m].IsZero() || !rooms[i][m].IsZero() {
				v.Members = append(v.Members, m)
			}
		}
		if v.Members == nil { // the policy asks for more than is missing: the first that may
			v.Members = []int{slices.IndexFunc(g.kind, func(k int) bool { return s.by[k] })}
		}
		for _, m := range v.Members {
			n := g.members[m]
			as, _ := g.c.seat(n, s.agent.ID, g.c.pools[n.Pool].Cluster, &Tally{})
			part := Victim{
				Agent: s.agent.ID, AgentName: s.agent.Name, Pool: s.agent.Pool, Node: s.agent.Node, Gives: s.agent.Gives,
				Takes: takes[i][m], Loan: s.agent.Pool != n.Pool && !takes[i][m].IsZero(),
				Score: as.least.Score, Tasks: g.c.tasksOn(n, s.agent),
			}
			d := &out.Members[m]
			d.Outcome = Preempt
			d.Victims = append(d.Victims, part)
			d.Deficit = d.Deficit.Add(part.Takes)
			d.RoomDeficit = d.RoomDeficit.Add(rooms[i][m])
			if v.Agent == (ID{}) {
				v.Victim = part
			} else {
				v.Takes, v.Loan = v.Takes.Add(part.Takes), v.Loan || part.Loan
			}
		}
		out.Victims = append(out.Victims, v)
	}
	slices.SortFunc(out.Victims, func(a, b GangVictim) int { return a.Tasks[0].compare(&b.Tasks[0]) })
	for i := range out.Members {
		slices.SortFunc(out.Members[i].Victims, func(a, b Victim) int { return a.Tasks[0].compare(&b.Tasks[0]) })
	}
	return out
}

func (g *gang) all() []int {
	out := make([]int, len(g.members))
	for i := range out {
		out[i] = i
	}
	return out
}

// share splits what each kind got among its members, in order; the sources
// before the first seat come first and serve the first members.
func (g *gang) share(f *flows, first int, members []int, into [][]Resources) {
	rest := slices.Clone(f.claims)
	for s := range f.out {
		for k, amount := range f.out[s] {
			for _, m := range members {
				if amount.IsZero() {
					break
				}
				if g.kind[m] != k {
					continue
				}
				part := amount.Min(rest[m])
				amount, rest[m] = amount.Sub(part), rest[m].Sub(part)
				if s >= first {
					into[s-first][m] = into[s-first][m].Add(part)
				}
			}
		}
	}
}
