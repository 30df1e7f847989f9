package ledger

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

const (
	groupsEvery = time.Second      // groups are looked at for what time alone makes due
	groupRetry  = 10 * time.Second // before a reserved group that could not be made is tried again
)

// codeDestroy marks a group that is to be removed when its agent goes.
const codeDestroy = "destroy"

// ErrUnknownGroup is a report on a placement group that is over.
var ErrUnknownGroup = &Error{Code: "unknown_group"}

// tendGroups brings a pool's groups in step with its configuration and with time.
func (b *batch) tendGroups(p *pool) {
	c := p.grouping
	if p.space.state != spaceOpen {
		c.Enable = false
	}
	// Reserved ones: each wanted one is there once.
	spare := []*group{}
	for _, g := range p.groups {
		if g.tier == tierReserved && !g.leaving {
			spare = append(spare, g)
		}
	}
	if c.Enable {
		for _, s := range c.Reserved {
			if s.Strategy == "" {
				s.Strategy = p.strategy
			}
			at := slices.IndexFunc(spare, func(g *group) bool { return g.spec.Strategy == s.Strategy && bytes.Equal(g.spec.json(), s.json()) })
			if at >= 0 {
				spare = slices.Delete(spare, at, at+1)
				continue
			}
			g := &group{uid: newID(), tier: tierReserved, spec: s, state: groupCreating, attempt: 1, created: b.now}
			b.addGroup(p, g)
			b.poolEvent(p, "pg.created", "", "Makes a reserved placement group of "+s.sum().String())
			b.groupJob(p, g)
		}
	}
	for _, g := range spare {
		b.leave(p, g, "no_longer_configured", "no longer in the pool's configuration")
	}
	// Dynamic ones: not too many, and none that idles for long.
	surplus := 0
	for _, g := range p.groups {
		if g.tier == tierDynamic && !g.leaving {
			surplus++
		}
	}
	if c.Enable && c.Dynamic {
		surplus -= c.Most
	}
	for _, idleOnly := range []bool{true, false} {
		for _, g := range p.groups {
			if g.tier == tierDynamic && !g.leaving && surplus > 0 && (g.state == groupIdle || !idleOnly) {
				surplus--
				b.leave(p, g, "surplus", "more than the pool may have")
			}
		}
	}
	for _, g := range slices.Clone(p.groups) {
		if g = p.group(g.uid); g == nil {
			continue
		}
		switch {
		case len(g.occupants) > 0:
		case g.state == groupCreating && g.uses > 0 && g.made == 0, g.state == groupIdle && (g.leaving || g.code == codeDestroy):
			b.releaseGroup(p, g)
		case g.state == groupIdle && g.tier == tierDynamic && (!c.Reuse || !b.now.Before(g.idleSince.Add(c.Idle))):
			b.leave(p, g, "idle", fmt.Sprintf("nobody sat in it for %g s", c.Idle.Seconds()))
		case g.state == groupIdle && !c.Reuse && g.sat():
			b.releaseGroup(p, g) // the next one gets a fresh one
		case (g.state == groupFailed || g.state == groupRemoved) && g.leaving:
			b.endGroup(p, g)
		case g.state == groupFailed && !b.now.Before(g.retry):
			b.makeGroupAgain(p, g)
		}
	}
}

// unmake counts that Ray has it no more, if Ray ever had.
func (g *group) unmake() {
	if g.made > g.removed {
		g.removed++
	}
}

// leave has a group removed as soon as nobody sits in it.
func (b *batch) leave(p *pool, g *group, code, reason string) {
	g = b.changeGroup(p, g, func(g *group) { g.leaving, g.code, g.reason = true, code, reason })
	switch {
	case len(g.occupants) > 0 || g.state == groupReleasing:
	case g.state == groupFailed || g.state == groupRemoved:
		b.endGroup(p, g)
	default:
		b.releaseGroup(p, g)
	}
}

// releaseGroup has a group that is empty removed in Ray.
func (b *batch) releaseGroup(p *pool, g *group) {
	g = b.changeGroup(p, g, func(g *group) { g.state, g.idleSince = groupReleasing, time.Time{} })
	b.groupJob(p, g)
}

func (b *batch) endGroup(p *pool, g *group) {
	b.changeGroup(p, g, func(g *group) { g.state, g.nodes, g.ended = groupRemoved, nil, b.now })
}

// makeGroupAgain starts another making of a reserved group.
func (b *batch) makeGroupAgain(p *pool, g *group) {
	g = b.changeGroup(p, g, func(g *group) {
		g.state, g.attempt, g.nodes, g.code, g.reason, g.retry = groupCreating, g.attempt+1, nil, "", "", time.Time{}
	})
	b.groupJob(p, g)
}

// riseAll takes rows that have no agent any more out of their groups.
func (b *batch) riseAll() {
	for i := 0; i < len(b.changed); i++ {
		r := b.changed[i].row
		if r.pool != nil && len(r.pool.groups) > 0 && !(r.indexed && r.onAgent()) && r.groupOf() != nil {
			b.rise(r)
			b.freed(r.pool)
		}
	}
}

// groupMade notes that Ray has made a group.
func (b *batch) groupMade(p *pool, g *group, nodes []string) {
	if g.state != groupCreating {
		return
	}
	b.changeGroup(p, g, func(g *group) {
		g.state, g.ready, g.nodes, g.code, g.reason = groupIdle, b.now, nodes, "", ""
		g.made++
		if len(g.occupants) > 0 {
			g.state = groupOccupied
		} else {
			g.idleSince = b.now
		}
	})
	if len(g.occupants) == 0 {
		b.poolEvent(p, "pg.ready", "", "A "+g.tier+" placement group of "+g.spec.sum().String()+" is there")
	}
	b.freed(p)
}

// groupGone notes that a group was seen gone that was to go.
func (b *batch) groupGone(p *pool, g *group) {
	if g.state != groupReleasing {
		return
	}
	b.poolEvent(p, "pg.removed", "", "A "+g.tier+" placement group of "+g.spec.sum().String()+" is removed")
	if g.tier == tierDynamic || g.leaving {
		b.changeGroup(p, g, func(g *group) {
			g.state, g.nodes, g.ended = groupRemoved, nil, b.now
			g.unmake()
		})
	} else {
		destroyed := g.code == codeDestroy
		g = b.changeGroup(p, g, func(g *group) {
			g.state, g.nodes, g.code, g.reason = groupRemoved, nil, "", ""
			g.unmake()
			if destroyed {
				g.reason = "destroyed; is made again when it is needed"
			}
		})
		if !destroyed {
			b.makeGroupAgain(p, g)
		}
	}
	b.freed(p)
	b.tendGroups(p)
}

// groupFailed notes that Ray could not make a group.
func (b *batch) groupFailed(p *pool, g *group, code, reason string) {
	if g.state != groupCreating || len(g.occupants) > 0 {
		return // its task is told by its launch
	}
	b.changeGroup(p, g, func(g *group) {
		g.state, g.nodes, g.code, g.reason, g.retry = groupFailed, nil, code, reason, b.now.Add(groupRetry)
	})
	b.poolEvent(p, "pg.failed", "", "A placement group could not be made: "+reason)
	b.tendGroups(p)
}

// groupLost notes that a group is gone that nobody told to go. What sat in it is told
// of by its own death; a reserved one is made again.
func (b *batch) groupLost(p *pool, g *group, reason string) {
	if g.state != groupIdle && g.state != groupOccupied {
		return
	}
	b.poolEvent(p, "pg.lost", "", "A placement group is lost: "+reason)
	for _, id := range g.occupants {
		if r := b.rows[id]; r != nil {
			b.event(r, "pg.lost", "", "group_lost", "Its placement group is lost: "+reason, nil)
		}
	}
	g = b.changeGroup(p, g, func(g *group) {
		g.occupants, g.nodes = nil, nil
		g.unmake()
		g.state, g.code, g.reason = groupRemoved, "group_lost", reason
		if g.tier == tierDynamic || g.leaving {
			g.ended = b.now
		}
	})
	if g.ended.IsZero() {
		b.makeGroupAgain(p, g)
	}
	b.tendGroups(p)
}

// groupJob has a group made, or removed.
func (b *batch) groupJob(p *pool, g *group) { b.job(b.jobOfGroup(p, g)) }

func (b *book) jobOfGroup(p *pool, g *group) Job {
	kind := JobMakeGroup
	if g.state == groupReleasing {
		kind = JobDropGroup
	}
	return Job{Kind: kind, UID: g.uid, Attempt: g.attempt, Pool: p.name, Namespace: p.space.name, Cluster: p.cluster, Group: p.wanted(g)}
}

// wanted is what a job says of a group.
func (p *pool) wanted(g *group) *JobGroup {
	return &JobGroup{Name: g.name(), Bundles: g.spec.Bundles, Strategy: g.spec.Strategy, Node: g.node(), Timeout: p.grouping.Timeout}
}

// groupWork is what groups need done that is not part of a launch.
func (b *book) groupWork() (jobs []Job) {
	for _, p := range b.pools {
		for _, g := range p.groups {
			if g.state == groupReleasing || g.state == groupCreating && len(g.occupants) == 0 {
				jobs = append(jobs, b.jobOfGroup(p, g))
			}
		}
	}
	return jobs
}

// onGroup reports about one making of a group, under its pool's lock.
func (l *Ledger) onGroup(ctx context.Context, uid sched.ID, attempt int, do func(*batch, *pool, *group)) error {
	return l.lane.submit(ctx, &call{
		plan: func(b *book) []*pool {
			if p := b.groupIn[uid]; p != nil {
				return []*pool{p}
			}
			return nil
		},
		do: func(b *batch) error {
			p := b.groupIn[uid]
			if p == nil || b.pools[p.id] != p {
				return refuse(ErrUnknownGroup, "there is no placement group %s", uuidString(uid))
			}
			b.need(p)
			g := p.group(uid)
			if g == nil || g.attempt != attempt {
				return refuse(ErrUnknownGroup, "placement group %s is over", uuidString(uid))
			}
			do(b, p, g)
			return nil
		},
	})
}

// GroupMade says that Ray has made a placement group, and on which node each bundle is.
func (l *Ledger) GroupMade(ctx context.Context, uid sched.ID, attempt int, nodes []string) error {
	return l.onGroup(ctx, uid, attempt, func(b *batch, p *pool, g *group) { b.groupMade(p, g, nodes) })
}

// GroupFailed says that a placement group could not be made; nothing of it is left.
func (l *Ledger) GroupFailed(ctx context.Context, uid sched.ID, attempt int, code, reason string) error {
	return l.onGroup(ctx, uid, attempt, func(b *batch, p *pool, g *group) { b.groupFailed(p, g, code, reason) })
}

// GroupGone says that a placement group that was to go was seen gone.
func (l *Ledger) GroupGone(ctx context.Context, uid sched.ID, attempt int) error {
	return l.onGroup(ctx, uid, attempt, func(b *batch, p *pool, g *group) { b.groupGone(p, g) })
}

// GroupLost says that a placement group is gone that nobody told to go.
func (l *Ledger) GroupLost(ctx context.Context, uid sched.ID, attempt int, reason string) error {
	return l.onGroup(ctx, uid, attempt, func(b *batch, p *pool, g *group) { b.groupLost(p, g, reason) })
}

// HeldGroup is a placement group that the ledger believes to exist.
type HeldGroup struct {
	UID     sched.ID
	Attempt int
	Name    string
	Stands  bool // Ray has made it; else it is on its way in or out
}

// HeldGroups lists the placement groups of a cluster, to compare with Ray's.
func (l *Ledger) HeldGroups(ctx context.Context, cluster string) (out []HeldGroup, err error) {
	err = l.lane.look(ctx, func(b *book) {
		for _, p := range b.pools {
			if p.cluster != cluster {
				continue
			}
			for _, g := range p.groups {
				if g.state != groupRemoved && g.state != groupFailed {
					out = append(out, HeldGroup{g.uid, g.attempt, g.name(), g.state == groupIdle || g.state == groupOccupied})
				}
			}
		}
	})
	return out, err
}

// keepGroups does what time alone makes due, and what a server that died left to do.
func (l *Ledger) keepGroups(ctx context.Context) {
	for {
		select {
		case <-time.After(groupsEvery):
		case <-ctx.Done():
			return
		}
		now := l.now()
		due := func(b *book) (out []*pool) {
			for _, p := range b.pools {
				if p.lacksReserved() || slices.ContainsFunc(p.groups, func(g *group) bool { return p.due(g, now) }) {
					out = append(out, p)
				}
			}
			return out
		}
		some := false
		if err := l.lane.look(ctx, func(b *book) { some = len(due(b)) > 0 }); err != nil || !some {
			continue
		}
		err := l.lane.submit(ctx, &call{plan: due, do: func(b *batch) error {
			for _, p := range due(b.book) {
				b.need(p)
				b.tendGroups(p)
			}
			return nil
		}})
		if err != nil && ctx.Err() == nil {
			l.log.Warn("looking after placement groups failed and is tried again", "error", err)
		}
	}
}

// lacksReserved tells that fewer groups are reserved than configured: the pool's making is a
// transaction of its own, and the server may die before the next one, which makes its groups.
func (p *pool) lacksReserved() bool {
	if !p.grouping.Enable || p.space.state != spaceOpen {
		return false
	}
	n := len(p.grouping.Reserved)
	for _, g := range p.groups {
		if g.tier == tierReserved && !g.leaving {
			n--
		}
	}
	return n > 0
}

// due tells that time has made something due for a group.
func (p *pool) due(g *group, now time.Time) bool {
	if len(g.occupants) > 0 {
		return false
	}
	switch g.state {
	case groupFailed:
		return !now.Before(g.retry)
	case groupIdle:
		return g.leaving || g.tier == tierDynamic && !now.Before(g.idleSince.Add(p.grouping.Idle))
	}
	return false
}

// wantRoom has idle dynamic groups of a pool removed because a task lacks room.
func (b *batch) wantRoom(p *pool) {
	for _, g := range slices.Clone(p.groups) {
		if g.tier == tierDynamic && g.state == groupIdle && !g.leaving {
			b.leave(p, g, "room_needed", "its room is needed")
		}
	}
}

// destroyGroup has the group of a row's agent removed when the agent goes.
func (b *batch) destroyGroup(r *row) {
	g := r.groupOf()
	if g == nil {
		return
	}
	b.changeGroup(r.pool, g, func(g *group) {
		g.code, g.reason = codeDestroy, "is removed with its agent"
		g.leaving = g.leaving || g.tier == tierDynamic
	})
}

// forgetGroups is for a pool that is deleted: what Ray has of it goes too.
func (b *batch) forgetGroups(p *pool) {
	for _, g := range p.groups {
		if g.state != groupRemoved && g.state != groupFailed {
			j := b.jobOfGroup(p, g)
			j.Kind = JobDropGroup
			b.job(j)
		}
	}
	id, now := p.id, b.now
	b.writes = append(b.writes, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error {
		return q.DropGroups(ctx, dbgen.DropGroupsParams{PoolID: id, Now: now})
	}))
}
