package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// A placement group is a place for agents, as a machine is one: to the core it is a
// node of its own, in a set of nodes that only its pool's tasks are asked about
// (sched.Incoming.Rooms). On the machines it charges what its bundles reserve there;
// an agent in it charges the group and not the machine. Quota knows nothing of
// groups: agents hold it, idle groups do not.

// Tiers of groups: those a pool keeps for what is important, and those made for a task.
const (
	tierReserved = "reserved"
	tierDynamic  = "dynamic"
)

// States of a group.
const (
	groupCreating  = "creating"
	groupIdle      = "idle"
	groupOccupied  = "occupied"
	groupReleasing = "releasing"
	groupRemoved   = "removed" // a reserved one that is made again when it is needed
	groupFailed    = "failed"  // is tried again at retry
)

// group is one placement group of a pool. It is never changed in place.
type group struct {
	uid       sched.ID
	tier      string
	spec      GroupSpec
	state     string
	attempt   int
	nodes     []string
	occupants []sched.ID

	uses, reuses, made, removed int
	leaving                     bool // is removed as soon as nobody sits in it
	code, reason                string
	created                     time.Time
	ready, idleSince, retry     time.Time
	ended                       time.Time
}

const placePrefix = "pg:"

// place is what the core knows the group by.
func (g *group) place() sched.NodeID { return sched.NodeID(placePrefix + uuidString(g.uid)) }

// name is what Ray knows this making of the group by.
func (g *group) name() string { return fmt.Sprintf("sm-%s.%d", uuidString(g.uid), g.attempt) }

// stands reports whether agents may sit in it: Ray has made it, or is about to for
// the task that waits for it.
func (g *group) stands() bool {
	switch g.state {
	case groupIdle, groupOccupied:
		return true
	case groupCreating:
		return len(g.occupants) > 0
	}
	return false
}

// sat reports whether somebody sits in it, or sat since it was made.
func (g *group) sat() bool {
	return g.state == groupOccupied || g.state == groupIdle && g.idleSince.After(g.ready)
}

// node is where it is, when all of it is in one place.
func (g *group) node() sched.NodeID {
	if len(g.nodes) == 0 {
		return ""
	}
	return sched.NodeID(g.nodes[0])
}

// rooms names the set of places of one tier.
func (p *pool) rooms(tier string) string { return fmt.Sprintf("%s%d/%s", placePrefix, p.id, tier) }

// grouped reports whether the pool keeps groups, or still has some.
func (p *pool) grouped() bool { return p.grouping.Enable || len(p.groups) > 0 }

func (p *pool) group(uid sched.ID) *group {
	for _, g := range p.groups {
		if g.uid == uid {
			return g
		}
	}
	return nil
}

// groupOf is the group a row's agent sits in; nil for none.
func (r *row) groupOf() *group {
	if r.pool == nil {
		return nil
	}
	for _, g := range r.pool.groups {
		if slices.Contains(g.occupants, r.uid) {
			return g
		}
	}
	return nil
}

// place is where a row's agent sits, for the core: its group, or else its node.
func (r *row) place() sched.NodeID {
	if r.pool != nil && len(r.pool.groups) > 0 {
		if g := r.groupOf(); g != nil {
			return g.place()
		}
	}
	return r.node
}

// tier is where a task of this priority sits first.
func (c *GroupConfig) tier(priority sched.Milli) (right, other string) {
	if priority >= c.Threshold {
		return tierReserved, tierDynamic
	}
	return tierDynamic, tierReserved
}

// dynamicGroups counts those that are there or on their way.
func (p *pool) dynamicGroups() int {
	n := 0
	for _, g := range p.groups {
		if g.tier == tierDynamic {
			n++
		}
	}
	return n
}

// syncGroups brings the places of a pool, and what is charged where, in step with its groups.
func (b *book) syncGroups(p *pool) {
	kept := map[sched.NodeID]bool{}
	for _, g := range p.groups {
		if g.stands() {
			kept[g.place()] = true
		}
	}
	for id := range p.places {
		if !kept[id] {
			b.nodes.Remove(id)
			delete(p.places, id)
		}
	}
	for id, charges := range p.groupCharges {
		for _, c := range charges {
			b.nodes.Adjust(c.node, c.amount)
		}
		delete(p.groupCharges, id)
	}
	for _, g := range p.groups {
		b.groupIn[g.uid] = p
		for i, n := range g.nodes {
			if i < len(g.spec.Bundles) {
				b.nodes.Adjust(sched.NodeID(n), g.spec.Bundles[i].Neg())
				p.groupCharges[g.uid] = append(p.groupCharges[g.uid], nodeCharge{sched.NodeID(n), g.spec.Bundles[i]})
			}
		}
		if !g.stands() {
			continue
		}
		id, size := g.place(), g.spec.sum()
		held := false
		for _, n := range g.nodes {
			held = held || b.holds[nodeKey{p.cluster, sched.NodeID(n)}].on()
		}
		room := size
		if p.places[id] {
			old, _ := b.nodes.Get(id)
			room = old.Room
		} else {
			for _, r := range p.rows {
				if r.charged.node == id {
					room = room.Sub(r.charged.amount)
				}
			}
		}
		p.places[id] = true
		b.nodes.Put(sched.Node{ID: id, Cluster: p.rooms(g.tier), Room: room, Total: size, Held: held || g.leaving})
	}
	for _, r := range p.rows {
		if r.indexed && r.onAgent() && r.charged.node != r.place() {
			b.reseat(r)
		}
	}
}

// reseat charges a row where it sits now.
func (b *book) reseat(r *row) {
	b.undate(r)
	b.unchargeNode(r)
	b.chargeNode(r)
	b.date(r)
	b.tellAgent(r)
}

// dropGroups takes a pool's places away.
func (b *book) dropGroups(p *pool) {
	p.groups = nil
	b.syncGroups(p)
}

// changeGroup alters a group, keeping places and charges in step, and writes it.
func (b *batch) changeGroup(p *pool, g *group, f func(*group)) *group {
	b.touchPool(p)
	next := *g
	f(&next)
	p.groups = slices.Clone(p.groups)
	at := slices.IndexFunc(p.groups, func(o *group) bool { return o.uid == g.uid })
	switch {
	case !next.ended.IsZero():
		p.groups = slices.Delete(p.groups, at, at+1)
	default:
		p.groups[at] = &next
	}
	b.writeGroup(p, &next)
	b.syncGroups(p)
	return &next
}

// addGroup puts a new group into a pool.
func (b *batch) addGroup(p *pool, g *group) {
	b.touchPool(p)
	p.groups = append(slices.Clone(p.groups), g)
	b.writeGroup(p, g)
	b.syncGroups(p)
}

// writeGroup has a group written as it is at the end of the batch.
func (b *batch) writeGroup(p *pool, g *group) {
	if b.groups == nil {
		b.groups = map[sched.ID]groupWrite{}
	}
	b.groups[g.uid] = groupWrite{p, g}
}

type groupWrite struct {
	pool *pool
	g    *group
}

func (w groupWrite) queue(ctx context.Context, q *dbgen.Queries) error {
	g := w.g
	ids := []pgtype.UUID{}
	for _, id := range g.occupants {
		ids = append(ids, pgUUID(id))
	}
	nodes := g.nodes
	if nodes == nil {
		nodes = []string{}
	}
	return q.WriteGroup(ctx, dbgen.WriteGroupParams{Uid: pgUUID(g.uid), NamespaceID: w.pool.space.id, PoolID: w.pool.id, PoolName: w.pool.name,
		Tier: g.tier, Bundles: g.spec.json(), Strategy: g.spec.Strategy, State: g.state, Attempt: int32(g.attempt), Nodes: nodes, Occupants: ids,
		Uses: int32(g.uses), Reuses: int32(g.reuses), Made: int32(g.made), Removed: int32(g.removed), Leaving: g.leaving, Code: g.code, Reason: g.reason,
		CreatedAt: g.created, ReadyAt: orNil(g.ready), IdleSince: orNil(g.idleSince), RetryAt: orNil(g.retry), EndedAt: orNil(g.ended)})
}

func groupFrom(r dbgen.PlacementGroup) *group {
	return &group{uid: r.Uid.Bytes, tier: r.Tier, spec: GroupSpec{bundlesOf(r.Bundles), r.Strategy}, state: r.State, attempt: int(r.Attempt), nodes: r.Nodes,
		occupants: idsOf(r.Occupants), uses: int(r.Uses), reuses: int(r.Reuses), made: int(r.Made), removed: int(r.Removed), leaving: r.Leaving,
		code: r.Code, reason: r.Reason, created: r.CreatedAt, ready: orZero(r.ReadyAt), idleSince: orZero(r.IdleSince), retry: orZero(r.RetryAt), ended: orZero(r.EndedAt)}
}

// newGroupOn, in a decision's node, asks for a dynamic group on that machine; againOn
// for a reserved one to be made again.
const (
	newGroupOn = placePrefix + "new@"
	againOn    = placePrefix + "again:" // uid@node
)

// decideAmongGroups is decide in a pool with placement groups.
func (b *batch) decideAmongGroups(r *row) sched.Decision {
	p, c := r.pool, r.space.core
	in, now := b.incoming(r), timeOf(b.now)
	at := func(rooms string) sched.Decision {
		in.Rooms = rooms
		return c.Decide(in, now)
	}
	if !r.wantsGroup || !p.grouping.Enable {
		first := at("")
		if first.Outcome == sched.Admit {
			return first
		}
		// A machine is better; but an idle group is room, too.
		dynamic, reserved := at(p.rooms(tierDynamic)), at(p.rooms(tierReserved))
		for _, want := range []sched.Outcome{sched.Admit, sched.Preempt} {
			for _, d := range []sched.Decision{first, dynamic, reserved} {
				if d.Outcome == want {
					return d
				}
			}
		}
		return first
	}
	right, other := p.grouping.tier(r.priority)
	d := at(p.rooms(right))
	if d.Outcome == sched.Admit {
		return d
	}
	machine := at("")
	if machine.Outcome == sched.Admit {
		if g := p.dormant(right, r.request); g != nil {
			machine.Node = sched.NodeID(againOn + uuidString(g.uid) + "@" + string(machine.Node))
			return machine
		}
		if p.grouping.Dynamic && p.dynamicGroups() < p.grouping.Most {
			machine.Node = newGroupOn + machine.Node
			return machine
		}
	}
	if !r.preemptForQuota && !p.free().Covers(r.request) {
		lack := p.free().Lacking(r.request)
		return sched.Decision{Outcome: sched.Refuse, Deficit: lack, Refusal: sched.Refusal{Code: sched.NoVictims, Short: lack,
			Message: fmt.Sprintf("needs %v; pool %s lacks %v of its quota, for which nobody is preempted (preempt_for_quota is off)", r.request, p.name, lack)}}
	}
	if d.Outcome == sched.Preempt {
		return d
	}
	if o := at(p.rooms(other)); o.Outcome != sched.Refuse {
		return o
	}
	if d.Refusal.Code == sched.NoNodeLargeEnough && p.grouping.Dynamic {
		// Not for ever: a dynamic group could be made if there were room, or fewer of them.
		d.Refusal.Code = sched.NoVictims
		if n := p.dynamicGroups(); n >= p.grouping.Most {
			d.Refusal.Message += fmt.Sprintf("; the pool has %d of at most %d dynamic ones", n, p.grouping.Most)
		} else {
			d.Refusal.Message += "; for another one " + machine.Refusal.Message
		}
	}
	return d
}

// dormant is a reserved group that was destroyed, large enough for a request.
func (p *pool) dormant(tier string, request sched.Resources) *group {
	for _, g := range p.groups {
		if g.tier == tier && g.state == groupRemoved && !g.leaving && g.spec.sum().Covers(request) {
			return g
		}
	}
	return nil
}

// machineOf is the machine that a decided place is on.
func (p *pool) machineOf(place sched.NodeID) sched.NodeID {
	id := string(place)
	if !strings.HasPrefix(id, placePrefix) {
		return place
	}
	if _, node, made := strings.Cut(id, "@"); made {
		return sched.NodeID(node)
	}
	for _, g := range p.groups {
		if g.place() == place {
			return g.node()
		}
	}
	return ""
}

// sit makes a row that was just reserved an occupant of the group that was decided on,
// which is made for it when there is none yet.
func (b *batch) sit(r *row, decided sched.NodeID) {
	place := string(decided)
	if !strings.HasPrefix(place, placePrefix) {
		return
	}
	p := r.pool
	if node, fresh := strings.CutPrefix(place, newGroupOn); fresh {
		b.addGroup(p, &group{uid: newID(), tier: tierDynamic, spec: GroupSpec{Bundles: []sched.Resources{r.request}, Strategy: p.strategy}, state: groupCreating, attempt: 1,
			nodes: nodesOf(node), occupants: []sched.ID{r.uid}, uses: 1, created: b.now})
		return
	}
	id, node, again := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(place, againOn), placePrefix), "@")
	for _, g := range p.groups {
		if uuidString(g.uid) != id {
			continue
		}
		b.changeGroup(p, g, func(g *group) {
			g.occupants = append(slices.Clone(g.occupants), r.uid)
			g.uses++
			switch {
			case again:
				g.state, g.attempt, g.nodes, g.code, g.reason = groupCreating, g.attempt+1, nodesOf(node), "", ""
			case g.sat():
				g.reuses++
			}
			if g.state == groupIdle {
				g.state, g.idleSince = groupOccupied, time.Time{}
			}
		})
		return
	}
}

func nodesOf(node string) []string {
	if node == "" {
		return nil
	}
	return []string{node}
}

// rise takes a row out of its group, which stays for the next one or goes.
func (b *batch) rise(r *row) {
	g := r.groupOf()
	if g == nil {
		return
	}
	p := r.pool
	b.changeGroup(p, g, func(g *group) {
		g.occupants = slices.DeleteFunc(slices.Clone(g.occupants), func(id sched.ID) bool { return id == r.uid })
		if len(g.occupants) == 0 && g.state == groupOccupied {
			g.state, g.idleSince = groupIdle, b.now
		}
	})
	b.tendGroups(p)
}
