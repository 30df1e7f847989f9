package ledger

import (
	"context"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

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
	Uses, Reuses, Created, Removed int64
}

// Groups is what a pool has of placement groups.
type Groups struct {
	Enabled  bool
	Config   GroupConfig
	Items    []Group // the newest first
	Tiers    map[string]GroupStats
	Reserves sched.Resources // what those that stand reserve on machines
	Waiting  int             // tasks in line that want one
}

// Sum is the statistics of both tiers.
func (g Groups) Sum() (all GroupStats) {
	for _, t := range g.Tiers {
		all.Total, all.Available, all.Allocated = all.Total+t.Total, all.Available+t.Available, all.Allocated+t.Allocated
		all.Uses, all.Reuses, all.Created, all.Removed = all.Uses+t.Uses, all.Reuses+t.Reuses, all.Created+t.Created, all.Removed+t.Removed
	}
	return all
}

// shownGroups bounds a list of groups that are gone.
const shownGroups = 200

// PoolGroups reads the placement groups of a pool; with ended also the latest that are gone.
func (l *Ledger) PoolGroups(ctx context.Context, ns, name string, ended bool) (Groups, error) {
	out := Groups{Tiers: map[string]GroupStats{tierReserved: {}, tierDynamic: {}}}
	var id int64
	tasks := map[sched.ID]string{}
	if err := l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		if s == nil || s.pools[name] == nil {
			return
		}
		p := s.pools[name]
		id, out.Enabled, out.Config = p.id, p.grouping.Enable, p.grouping
		for _, g := range p.groups {
			t := out.Tiers[g.tier]
			t.Total++
			switch g.state {
			case groupIdle:
				t.Available++
			case groupOccupied:
				t.Allocated++
			}
			out.Tiers[g.tier] = t
			if g.state == groupIdle || g.state == groupOccupied {
				out.Reserves = out.Reserves.Add(g.spec.sum())
			}
			for _, o := range g.occupants {
				if r := b.rows[o]; r != nil {
					tasks[o] = r.taskID
					if r.taskID == "" {
						tasks[o] = r.agentName
					}
				}
			}
		}
		for _, r := range p.rows {
			if r.state == Queued && r.wantsGroup {
				out.Waiting++
			}
		}
	}); err != nil {
		return out, err
	}
	if id == 0 {
		return out, refuse(ErrUnknownPool, "there is no pool %q in namespace %q", name, ns)
	}
	rows, err := l.q.GroupsOfPool(ctx, dbgen.GroupsOfPoolParams{PoolID: id, Ended: ended, RowLimit: shownGroups})
	if err != nil {
		return out, l.lane.outward(err)
	}
	for _, row := range rows {
		g := groupFrom(row)
		item := Group{UID: g.uid, Name: g.name(), Tier: g.tier, Bundles: g.spec.Bundles, Strategy: g.spec.Strategy, State: g.state, Attempt: g.attempt, Nodes: g.nodes,
			Uses: g.uses, Reuses: g.reuses, Made: g.made, Removed: g.removed, Leaving: g.leaving, Code: g.code, Reason: g.reason,
			CreatedAt: g.created, ReadyAt: g.ready, IdleSince: g.idleSince, EndedAt: g.ended}
		for _, o := range g.occupants {
			if tasks[o] != "" {
				item.TaskIDs = append(item.TaskIDs, tasks[o])
			}
		}
		out.Items = append(out.Items, item)
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
	return out, nil
}
