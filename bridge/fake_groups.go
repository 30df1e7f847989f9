package bridge

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// fakeGroup is a placement group in a fake cluster; one that is over stays as word that its name was used.
type fakeGroup struct {
	req   GroupRequest
	owner string
	nodes []string    // of each bundle; nil until it is placed, and when it is over
	free  []Resources // in each bundle
	err   *Error      // why it is over
	done  chan struct{}
	timer *time.Timer
	then  []func() // called once it is placed or over, with the cluster locked
}

// LoseGroup removes a placement group behind the bridge's back.
func (c *FakeCluster) LoseGroup(name, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.groups[name]; g != nil && g.nodes != nil {
		c.loseGroup(g, reason)
	}
}

func (c *FakeCluster) loseGroup(g *fakeGroup, reason string) {
	c.endGroup(g, errf(CodeGroupLost, "placement group %s is not there: %s", g.req.Name, reason))
	c.publish(g.owner, Event{Type: EventGroupLost, Name: g.req.Name, Reason: reason})
}

// EnsureGroup implements Bridge.
func (f *Fake) EnsureGroup(ctx context.Context, req GroupRequest) (Group, error) {
	if err := req.Validate(); err != nil {
		return Group{}, err
	}
	if err := f.begin(ctx, "ensure_group", req.Name); err != nil {
		return Group{}, err
	}
	c := f.Cluster
	g := c.ensure(f, req)
	done, broken := g.done, f.broken
	if err := f.finished("ensure_group"); err != nil {
		return Group{}, err
	}
	if done != nil {
		if err := f.wait(ctx, broken, done); err != nil {
			return Group{}, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.err != nil {
		return Group{}, g.err
	}
	return g.group(), nil
}

// RemoveGroup implements Bridge.
func (f *Fake) RemoveGroup(ctx context.Context, name string, _ time.Duration) error {
	if err := f.begin(ctx, "remove_group", name); err != nil {
		return err
	}
	c := f.Cluster
	gone := errf(CodeGroupLost, "placement group %s is not there: it was removed", name)
	switch g := c.groups[name]; {
	case g == nil:
		c.groups[name] = &fakeGroup{req: GroupRequest{Name: name}, owner: f.deployment, err: gone}
	case g.owner == f.deployment && g.err == nil:
		c.endGroup(g, gone)
	}
	return f.finished("remove_group")
}

// Groups implements Bridge.
func (f *Fake) Groups(ctx context.Context) ([]Group, error) {
	if err := f.begin(ctx, "groups", ""); err != nil {
		return nil, err
	}
	var list []Group
	for _, g := range f.Cluster.groups {
		if g.owner == f.deployment && g.err == nil {
			list = append(list, g.group())
		}
	}
	slices.SortFunc(list, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	return list, f.finished("groups")
}

func (g *fakeGroup) group() Group {
	out := Group{Name: g.req.Name, State: GroupPending, Bundles: g.req.Bundles, Nodes: slices.Clone(g.nodes)}
	if g.nodes != nil {
		out.State = GroupCreated
	}
	return out
}

// ensure gives a group, which may be on its way (then done is set) or over.
func (c *FakeCluster) ensure(f *Fake, req GroupRequest) *fakeGroup {
	if g := c.groups[req.Name]; g != nil {
		return g
	}
	g := &fakeGroup{req: req, owner: f.deployment}
	c.groups[req.Name] = g
	if c.placeGroup(g) {
		return g
	}
	if whole := req.pieces(); slices.ContainsFunc(whole, func(r Resources) bool { return !c.couldFit(r) }) || req.Strategy == "STRICT_SPREAD" && len(whole) > len(c.order) {
		c.endGroup(g, errf(CodeGroupTimeout, "no node of the cluster could ever hold placement group %s (%v)", req.Name, req.Bundles))
		return g
	}
	g.done = make(chan struct{})
	c.waitingGroups = append(c.waitingGroups, g)
	timeout := cmp.Or(req.Timeout, DefaultGroupTimeout)
	g.timer = time.AfterFunc(timeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if g.done != nil {
			c.endGroup(g, errf(CodeGroupTimeout, "placement group %s (%v) did not find room within %s", req.Name, req.Bundles, timeout))
		}
	})
	return g
}

// pieces are what must each be on one node.
func (r *GroupRequest) pieces() []Resources {
	if r.Strategy != "STRICT_PACK" {
		return r.Bundles
	}
	whole := Resources{}
	for _, b := range r.Bundles {
		whole.add(b, 1)
	}
	return []Resources{whole}
}

func (r Resources) add(more Resources, times int64) {
	for k, v := range more {
		r[k] += times * v
	}
}

func (r Resources) covers(wanted Resources) bool {
	for k, v := range wanted {
		if v > r[k] {
			return false
		}
	}
	return true
}

// placeGroup finds nodes for all bundles of a group, by its strategy.
func (c *FakeCluster) placeGroup(g *fakeGroup) bool {
	order := slices.Clone(c.order)
	if i := slices.Index(order, g.req.NodeID); i > 0 {
		order = slices.Insert(slices.Delete(order, i, i+1), 0, g.req.NodeID)
	}
	var nodes []string
	taken := map[string]int{}
	undo := func() {
		for i, id := range nodes {
			c.nodes[id].used.add(g.req.Bundles[i], -1)
		}
		nodes, taken = nil, map[string]int{}
	}
	put := func(bundle Resources, at []string) bool {
		for _, id := range at {
			if n := c.nodes[id]; n.fits(bundle) {
				n.used.add(bundle, 1)
				nodes = append(nodes, id)
				taken[id]++
				return true
			}
		}
		return false
	}
	all := func(at func() []string) bool {
		for _, b := range g.req.Bundles {
			if !put(b, at()) {
				undo()
				return false
			}
		}
		return true
	}
	spread := func() []string {
		slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(taken[a], taken[b]) })
		return order
	}
	found := false
	switch g.req.Strategy {
	case "SPREAD":
		found = all(spread)
	case "STRICT_SPREAD":
		found = all(func() []string {
			return slices.DeleteFunc(slices.Clone(order), func(id string) bool { return taken[id] > 0 })
		})
	default:
		for _, id := range slices.Clone(order) {
			if found = all(func() []string { return []string{id} }); found {
				break
			}
		}
		if !found && g.req.Strategy != "STRICT_PACK" {
			found = all(func() []string { return order })
		}
	}
	if !found {
		return false
	}
	g.nodes = nodes
	for _, b := range g.req.Bundles {
		g.free = append(g.free, maps.Clone(b))
	}
	c.tellOthers(g.owner)
	c.settleGroup(g)
	return true
}

// settleGroup lets those go on who wait for a group.
func (c *FakeCluster) settleGroup(g *fakeGroup) {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.done != nil {
		close(g.done)
		g.done = nil
	}
	then := g.then
	g.then = nil
	for _, f := range then {
		f()
	}
}

// endGroup makes a group over, and ends what sits in it.
func (c *FakeCluster) endGroup(g *fakeGroup, why *Error) {
	g.err = why
	nodes := g.nodes
	g.nodes, g.free = nil, nil
	for _, a := range c.agents {
		switch {
		case a.group != g:
		case a.status.State == StateLaunching:
			c.fail(a, why)
		case a.status.State == StateReady:
			c.end(a, why.Message, true)
		}
	}
	for i, id := range nodes {
		c.nodes[id].used.add(g.req.Bundles[i], -1)
	}
	c.waitingGroups = slices.DeleteFunc(c.waitingGroups, func(w *fakeGroup) bool { return w == g })
	c.tellOthers(g.owner)
	c.settleGroup(g)
	c.placeWaiting()
}

// sit places an agent in its group: in the first bundle with room for it, or cut to the largest in any.
func (c *FakeCluster) sit(a *fakeAgent) bool {
	g := a.group
	wanted := a.req.Resources
	if !slices.ContainsFunc(g.req.Bundles, func(b Resources) bool { return b.covers(wanted) }) {
		weight := func(b Resources) (sum int64) {
			for k, v := range wanted {
				sum += b[k] * v
			}
			return sum
		}
		largest := slices.MaxFunc(g.req.Bundles, func(a, b Resources) int { return cmp.Compare(weight(a), weight(b)) })
		wanted = maps.Clone(wanted)
		for k, v := range wanted {
			wanted[k] = min(v, largest[k])
		}
	}
	for i, free := range g.free {
		if free.covers(wanted) {
			free.add(wanted, -1)
			a.bundle, a.seat = i, wanted
			a.status.NodeID = g.nodes[i]
			c.start(a)
			return true
		}
	}
	return false
}
