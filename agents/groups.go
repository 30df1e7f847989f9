package agents

import (
	"errors"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// groupRequest is the wire form of a placement group.
func groupRequest(g *ledger.JobGroup) bridge.GroupRequest {
	out := bridge.GroupRequest{Name: g.Name, Strategy: g.Strategy, NodeID: string(g.Node), Timeout: g.Timeout}
	for _, b := range g.Bundles {
		out.Bundles = append(out.Bundles, wireResources(b))
	}
	return out
}

// makeGroup makes a placement group for which no launch waits.
func (p *Pool) makeGroup(j ledger.Job) {
	began := time.Now()
	out, err := p.again(func() (any, error) { return p.b.EnsureGroup(p.ctx, groupRequest(j.Group)) })
	if p.ctx.Err() != nil {
		return // whoever leads next finds the group under its name
	}
	if err != nil {
		p.o.Metrics.groupFailed(string(bridge.CodeOf(err)))
		code, message := explain(err)
		_ = p.report("group failed", func() error { return p.l.GroupFailed(p.ctx, j.UID, j.Attempt, code, message) })
		return
	}
	p.o.Metrics.groupMade(time.Since(began))
	err = p.report("group made", func() error { return p.l.GroupMade(p.ctx, j.UID, j.Attempt, out.(bridge.Group).Nodes) })
	if errors.Is(err, ledger.ErrUnknownGroup) {
		p.removeGroup(j.Group.Name) // nobody wants it any more
	}
}

// dropGroup removes a placement group and says so once it was seen gone.
func (p *Pool) dropGroup(j ledger.Job) {
	if p.removeGroup(j.Group.Name) {
		_ = p.report("group gone", func() error { return p.l.GroupGone(p.ctx, j.UID, j.Attempt) })
	}
}

// removeGroup asks until the group was seen gone; only the end of the server stops it.
func (p *Pool) removeGroup(name string) bool {
	return p.insist("a placement group", name, func() error { return p.b.RemoveGroup(p.ctx, name, killTimeout) })
}

// groupLost says that a placement group is gone that nobody told to go. The ledger may
// have given up this one already.
func (p *Pool) groupLost(name, reason string) {
	held, err := p.l.HeldGroups(p.ctx, p.o.Cluster)
	p.complain("reading placement groups", err)
	for _, g := range held {
		if g.Name == name {
			p.lost(g, reason)
		}
	}
}

func (p *Pool) lost(g ledger.HeldGroup, reason string) {
	p.o.Metrics.groupLost()
	p.log.Warn("a placement group is lost", "cluster", p.o.Cluster, "group", g.Name, "reason", reason)
	_ = p.report("group lost", func() error { return p.l.GroupLost(p.ctx, g.UID, g.Attempt, reason) })
}

// reconcileGroups compares Ray's placement groups with the ledger's, both ways.
func (p *Pool) reconcileGroups() error {
	// As with agents: what stood before the list was made must be on it, what is on it
	// must be wanted after.
	before, err := p.l.HeldGroups(p.ctx, p.o.Cluster)
	if err != nil {
		return err
	}
	list, err := p.b.Groups(p.ctx)
	if err != nil {
		return err
	}
	after, err := p.l.HeldGroups(p.ctx, p.o.Cluster)
	if err != nil {
		return err
	}
	there := make(map[string]bridge.Group, len(list))
	for _, g := range list {
		there[g.Name] = g
	}
	wanted := make(map[string]bool, len(after))
	for _, g := range after {
		wanted[g.Name] = true
	}
	for _, g := range before {
		switch one, ok := there[g.Name]; {
		case !g.Stands || ok && one.State == bridge.GroupCreated:
		case ok: // Ray would place it anew somewhere: where it is to be is decided again
			wanted[g.Name] = false
			p.lost(g, "a node that it was on is gone")
		default:
			p.lost(g, "it is not in the Ray cluster any more")
		}
	}
	for _, g := range list {
		if !wanted[g.Name] {
			p.log.Warn("removing a placement group the ledger does not know", "group", g.Name)
			p.complain("removing a stray placement group", p.b.RemoveGroup(p.ctx, g.Name, killTimeout))
		}
	}
	return nil
}
