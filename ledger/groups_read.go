package ledger

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Tiers of placement groups: those a pool keeps for what is important, and those made for a task.
const (
	TierReserved = tierReserved
	TierDynamic  = tierDynamic
)

// Seat is the placement group that the agent of a task sits in, or will.
type Seat struct {
	Group string // its name in Ray
	Tier  string // reserved, dynamic
}

// Sitter is an agent in a placement group; TaskID is empty for one that waits for work.
type Sitter struct {
	UID               sched.ID
	TaskID, AgentName string
	State             State
}

// Group is a placement group as people read it.
type Group struct {
	UID           sched.ID
	Name          string // in Ray
	Tier          string
	Bundles       []sched.Resources
	Strategy      string
	State         string
	Attempt       int
	Nodes         []string
	TaskIDs       []string // of those that sit in it, or will
	Sitting       []Sitter // the same, with what else is known of them
	Uses, Reuses  int
	Made, Removed int
	Leaving       bool
	Code, Reason  string
	CreatedAt     time.Time
	ReadyAt       time.Time
	IdleSince     time.Time
	EndedAt       time.Time
}

// GroupStats are sums over the placement groups of a pool, of one tier or of both.
type GroupStats struct {
	Total, Available, Allocated    int // those of now
	Waiting                        int // tasks in line that want one
	Uses, Reuses, Created, Removed int64
}

// GroupTotals is what the placement groups of a pool come to now.
type GroupTotals struct {
	Enabled                     bool
	Total, Available, Allocated int
	Reserves                    sched.Resources // on machines
	Unused                      sched.Resources // the part of it in which nobody sits: no quota is charged for that
}

// Groups is what a pool has of placement groups.
type Groups struct {
	GroupTotals
	Config GroupConfig
	Items  []Group // those of now, then those that are gone; of each the newest first
	Tiers  map[string]GroupStats
}

// Sum is the statistics of both tiers.
func (g Groups) Sum() (all GroupStats) {
	for _, t := range g.Tiers {
		all.Total, all.Available, all.Allocated = all.Total+t.Total, all.Available+t.Available, all.Allocated+t.Allocated
		all.Waiting += t.Waiting
		all.Uses, all.Reuses, all.Created, all.Removed = all.Uses+t.Uses, all.Reuses+t.Reuses, all.Created+t.Created, all.Removed+t.Removed
	}
	return all
}

// add counts one that is a pool's now.
func (t *GroupTotals) add(g *group) {
	var reserves sched.Resources
	for i := range min(len(g.nodes), len(g.spec.Bundles)) {
		reserves = reserves.Add(g.spec.Bundles[i])
	}
	t.Total++
	t.Reserves = t.Reserves.Add(reserves)
	if len(g.occupants) == 0 {
		t.Unused = t.Unused.Add(reserves)
	}
	switch g.state {
	case groupIdle:
		t.Available++
	case groupOccupied:
		t.Allocated++
	}
}

// seatOf is a row's place in a group, nil for none.
func seatOf(r *row) *Seat {
	if r.pool == nil || len(r.pool.groups) == 0 {
		return nil
	}
	if g := r.groupOf(); g != nil {
		return &Seat{g.name(), g.tier}
	}
	return nil
}

// readSeat is the same as a query has it.
func readSeat(s string) *Seat {
	tier, name, ok := strings.Cut(s, " ")
	if !ok {
		return nil
	}
	return &Seat{name, tier}
}

// waitingForGroups counts the tasks in line that want a group, by the tier where they would sit first.
func (p *pool) waitingForGroups() map[string]int {
	n := map[string]int{tierReserved: 0, tierDynamic: 0}
	for _, r := range p.rows {
		if r.state == Queued && r.wantsGroup {
			tier, _ := p.grouping.tier(r.priority)
			n[tier]++
		}
	}
	return n
}

// shownGroups bounds a list of groups that are gone.
const shownGroups = 200

// PoolGroups reads the placement groups of a pool; with ended also the latest that are gone.
func (l *Ledger) PoolGroups(ctx context.Context, ns, name string, ended bool) (Groups, error) {
	out := Groups{Tiers: map[string]GroupStats{}}
	var id int64
	if err := l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		if s == nil || s.pools[name] == nil {
			return
		}
		p := s.pools[name]
		id, out.Enabled, out.Config = p.id, p.grouping.Enable, p.grouping
		for tier, n := range p.waitingForGroups() {
			out.Tiers[tier] = GroupStats{Waiting: n}
		}
	}); err != nil {
		return out, err
	}
	if id == 0 {
		return out, refuse(ErrUnknownPool, "there is no pool %q in namespace %q", name, ns)
	}
	rows, err := l.q.GroupsOf(ctx, []int64{id})
	if err != nil {
		return out, l.lane.outward(err)
	}
	slices.Reverse(rows)
	tiers := map[string]*GroupTotals{tierReserved: {}, tierDynamic: {}}
	for _, row := range rows {
		g := groupFrom(row)
		out.add(g)
		tiers[g.tier].add(g)
	}
	if ended {
		gone, err := l.q.EndedGroups(ctx, dbgen.EndedGroupsParams{PoolID: id, RowLimit: shownGroups})
		if err != nil {
			return out, l.lane.outward(err)
		}
		rows = append(rows, gone...)
	}
	if out.Items, err = l.shown(ctx, rows); err != nil {
		return out, err
	}
	sums, err := l.q.GroupSums(ctx, id)
	if err != nil {
		return out, l.lane.outward(err)
	}
	for _, s := range sums {
		t := out.Tiers[s.Tier]
		t.Uses, t.Reuses, t.Created, t.Removed = s.Uses, s.Reuses, s.Made, s.Removed
		out.Tiers[s.Tier] = t
	}
	for tier, now := range tiers {
		t := out.Tiers[tier]
		t.Total, t.Available, t.Allocated = now.Total, now.Available, now.Allocated
		out.Tiers[tier] = t
	}
	return out, nil
}

// shown makes groups of their rows, with who sits in them.
func (l *Ledger) shown(ctx context.Context, rows []dbgen.PlacementGroup) (out []Group, err error) {
	var uids []sched.ID
	for _, row := range rows {
		uids = append(uids, idsOf(row.Occupants)...)
	}
	found, err := l.q.Occupants(ctx, pgUUIDs(uids))
	if err != nil {
		return nil, l.lane.outward(err)
	}
	sitters := map[sched.ID]Sitter{}
	for _, t := range found {
		sitters[t.Uid.Bytes] = Sitter{t.Uid.Bytes, deref(t.TaskID), t.AgentName, State(t.State)}
	}
	for _, row := range rows {
		g := groupFrom(row)
		item := Group{UID: g.uid, Name: g.name(), Tier: g.tier, Bundles: g.spec.Bundles, Strategy: g.spec.Strategy, State: g.state, Attempt: g.attempt, Nodes: g.nodes,
			Uses: g.uses, Reuses: g.reuses, Made: g.made, Removed: g.removed, Leaving: g.leaving, Code: g.code, Reason: g.reason,
			CreatedAt: g.created, ReadyAt: g.ready, IdleSince: g.idleSince, EndedAt: g.ended}
		for _, o := range g.occupants {
			s, ok := sitters[o]
			if !ok {
				continue
			}
			item.Sitting = append(item.Sitting, s)
			if s.TaskID == "" {
				s.TaskID = s.AgentName
			}
			item.TaskIDs = append(item.TaskIDs, s.TaskID)
		}
		out = append(out, item)
	}
	return out, nil
}

// tellGroups adds what the placement groups of pools come to; at has the pools by their ids.
func tellGroups(rows []dbgen.PlacementGroup, pools []Pool, at map[int64]int) {
	for i := range pools {
		if c, err := ParseGroups(pools[i].PGPoolConfig); err == nil && c.Enable {
			pools[i].Groups = &GroupTotals{Enabled: true}
		}
	}
	for _, row := range rows {
		p := &pools[at[row.PoolID]]
		if p.Groups == nil {
			p.Groups = &GroupTotals{}
		}
		p.Groups.add(groupFrom(row))
	}
}
