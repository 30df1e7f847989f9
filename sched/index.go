package sched

import (
	"math"
	"slices"
	"strings"
)

// The index answers what the scan answers, without looking at everything.
//
// Tasks lie in forests: one for each pool, one for all small pools that others
// may take from, and one for each node. A forest groups them by what decides
// whether a rule applies, the label values the policy talks about above all, and
// each group by what their agents give, in cells; so a search opens only trees
// that may hold an answer, and best first. Everything else a rule asks is asked
// of what a search finds.
//
// It follows what is put at once, or nearly: changes are noted and made a few
// hundred at a time, and what changed back costs nothing.
type index struct {
	core    *Core // whose policy it is made for
	entries map[ID]*entry
	seats   map[ID]*entry // by agent: those with several tasks, or one of another pool
	dirty   []ID
	all     forest
	pools   map[string]*forest
	nodes   map[NodeID]*forest
	apart   []*forest // of pools; see forest
	classes map[string]*class
	naming  *naming // by which tasks are classed
	weight  Milli   // by which keys are made
	restive []*forest
	reweigh []*forest // whose keys are made by another weight

	search search // reused
	asked  int    // counts searches
}

// entry is a task as it is indexed, or an agent with several tasks by one of them.
// What the task and the agent said then, they still say: new ones replace them.
type entry struct {
	task   *Task
	agent  *Agent // nil unless it can be taken
	inAll  *group // nil when its pool stands apart
	inPool *group
	inNode *group // nil while it cannot be taken, or its node is unknown
}

// class are label values about which the policy says the same.
type class struct {
	labels Labels
	naming *naming
}

// naming are the label values rules speak of.
type naming struct{ rules []labelRule }

// covers reports whether classes made by it tell apart what the rules do.
func (n *naming) covers(rules []labelRule) bool {
	for _, r := range rules {
		at := slices.IndexFunc(n.rules, func(o labelRule) bool { return o.key == r.key })
		for value := range r.named {
			if at < 0 || !n.rules[at].named[value] {
				return false
			}
		}
	}
	return true
}

// sizes are where one way of doing things gets better than another.
type sizes struct {
	scan  int // below so many tasks everything is looked at
	cell  int // above so many, a cell of different shapes is split
	apart int // a pool of so many tasks, and a quarter of all, stands apart
	dirty int // so many changes are made at a time
	step  int // so much is done at each question to follow a new policy
	walk  int // after so many agents, nodes are looked at one by one
}

var usualSizes = sizes{scan: 1_000, cell: 128, apart: 10_000, dirty: 200, step: 256, walk: 2_000}

// ready returns the index, up to date; nil when there are so few tasks that a
// scan is as good.
func (c *Core) ready() *index {
	if c.live != nil {
		return c.live.ready()
	}
	c.grow()
	if c.index != nil {
		c.index.update()
		c.index.step(c.sizes.step)
	}
	return c.index
}

// grow makes an index when there are enough tasks, and forgets it when there are few.
func (c *Core) grow() {
	switch {
	case c.index != nil:
		if len(c.tasks) < c.sizes.scan/2 {
			c.index = nil
		}
	case len(c.tasks) >= c.sizes.scan:
		c.index = &index{core: c, entries: map[ID]*entry{}, seats: map[ID]*entry{}, pools: map[string]*forest{},
			nodes: map[NodeID]*forest{}, classes: map[string]*class{}, naming: &naming{c.rules.labels}, weight: c.rules.RemainingTimeWeight}
		for id := range c.tasks {
			c.index.place(id)
		}
	}
}

// Build brings the index up to date with all that was put, and with the policy.
// It is never needed: the index follows by itself, a little with every change and
// every question. It is for the end of loading, and for tests.
func (c *Core) Build() {
	if c.grow(); c.index != nil {
		c.index.update()
		c.index.step(math.MaxInt)
	}
}

// Follow does a part of what is left to do after a change of the policy, for a
// millisecond or so, and reports whether anything is left. Questions are answered
// rightly meanwhile, and each of them does a little of it, but some slower. Call it
// when there is nothing better to do.
func (c *Core) Follow() (left bool) {
	if c.grow(); c.index == nil {
		return false
	}
	c.index.update()
	c.index.step(10 * c.sizes.step)
	return len(c.index.restive) > 0 || len(c.index.reweigh) > 0
}

// touch notes that a task has changed.
func (c *Core) touch(id ID) {
	x := c.index
	if x == nil {
		return
	}
	if n := len(x.dirty); n > 0 && x.dirty[n-1] == id {
		return
	}
	x.dirty = append(x.dirty, id)
}

// touchAgent notes that what may be said of an agent's tasks has changed.
func (c *Core) touchAgent(id ID) {
	if c.index == nil {
		return
	}
	for _, t := range c.on[id] {
		c.touch(t.ID)
	}
}

// touchPool notes that what may be said of a pool's tasks has changed.
func (c *Core) touchPool(name string) {
	if c.index == nil || c.index.pools[name] == nil {
		return
	}
	f := c.index.pools[name]
	for _, g := range f.list {
		g.top.each(func(it *item) { c.index.dirty = append(c.index.dirty, it.e.task.ID) })
	}
}

// noted makes changes once there are some. It is called when the core is whole.
func (c *Core) noted() {
	if c.index == nil {
		c.grow()
	} else if len(c.index.dirty) >= c.sizes.dirty {
		c.index.update()
	}
}

func (x *index) update() {
	for _, id := range x.dirty {
		x.place(id)
	}
	if cap(x.dirty) > 10_000 {
		x.dirty = nil
	}
	x.dirty = x.dirty[:0]
}

// place puts a task where it belongs now, if it is not there.
func (x *index) place(id ID) {
	t, old := x.core.tasks[id], x.entries[id]
	var before, after ID
	if old != nil {
		before = old.task.Agent
	}
	switch {
	case t != nil:
		after = t.Agent
		e, key := x.describe(t)
		x.entries[id] = x.settle(old, e, key, t.Pool)
	case old != nil:
		x.take(old)
		delete(x.entries, id)
	}
	if old != nil && (t == nil || before != after) {
		x.look(before)
	}
	if t != nil {
		x.look(after)
	}
}

// settle puts an entry into the forests where it belongs; old is where it was.
func (x *index) settle(old *entry, e entry, key groupKey, pool string) *entry {
	home := x.pool(pool)
	key.home = home.home
	var node NodeID
	if key.takable {
		node = e.agent.Node
	}
	if old != nil {
		was, is := old.item(), e.item()
		is.e = old
		if was == is && old.inPool.groupKey == key && old.inPool.in == home && old.task.ID == e.task.ID && old.task.Name == e.task.Name &&
			(e.agent == nil) == (old.agent == nil) && (!key.takable || old.agent.Node == node) {
			old.task, old.agent = e.task, e.agent
			return old
		}
		x.take(old)
		home = x.pool(pool) // taking may have been the end of it
		key.home = home.home
	} else {
		old = &entry{}
	}
	*old = e
	it := old.item()
	if key.home {
		old.inAll = x.all.group(key)
		old.inAll.insert(&it, x)
	}
	old.inPool = home.group(key)
	old.inPool.insert(&it, x)
	if node != "" {
		f := x.nodes[node]
		if f == nil {
			f = &forest{}
			x.nodes[node] = f
		}
		old.inNode = f.group(key)
		old.inNode.insert(&it, x)
		f.sum, f.more = f.total()
	}
	x.weighPool(pool, home)
	return old
}

// take removes an entry from its forests.
func (x *index) take(e *entry) {
	it := e.item()
	if e.inAll != nil {
		e.inAll.remove(&it, x)
	}
	home := e.inPool.in
	e.inPool.remove(&it, x)
	pool := e.task.Pool
	if e.inPool.seat {
		pool = e.agent.Pool
	}
	if e.inNode != nil {
		f := e.inNode.in
		if e.inNode.remove(&it, x); f.n == 0 {
			delete(x.nodes, e.agent.Node)
		}
		f.sum, f.more = f.total()
	}
	e.inAll, e.inPool, e.inNode = nil, nil, nil
	if home.n == 0 {
		delete(x.pools, pool)
		x.apart = slices.DeleteFunc(x.apart, func(f *forest) bool { return f == home })
		home.apart = false
		return
	}
	x.weighPool(pool, home)
}

// item is how trees know it.
func (e *entry) item() item {
	it := item{priority: e.task.Priority, start: e.task.Start, e: e}
	if e.task.Estimate > 0 {
		it.end = e.task.Start + e.task.Estimate
	}
	if e.agent != nil {
		it.gives = shapeOf(&e.agent.Gives)
	}
	return it
}

// describe says how a task is indexed, and among which.
func (x *index) describe(t *Task) (entry, groupKey) {
	e := entry{task: t}
	pool, known := x.core.pools[t.Pool]
	key := x.key(t)
	key.cluster = pool.Cluster
	if a := x.core.agents[t.Agent]; a != nil && known && a.Settled && a.Pool == t.Pool && !a.Gives.IsZero() && len(x.core.on[t.Agent]) == 1 {
		key.takable, key.others = true, otherNames(a.Gives)
		e.agent = a
	}
	return e, key
}

func (x *index) key(t *Task) groupKey {
	return groupKey{class: x.classOf(t.Labels), waiting: t.Start == 0, times: uint8(min(max(t.Preemptions, 0), countedTimes))}
}

// countedTimes is how often a task may be preempted until the index stops counting.
const countedTimes = 7

// look indexes an agent by itself when its only task does not stand for it: by
// the one of highest priority, whose score is seldom far from the least.
func (x *index) look(id ID) {
	a, tasks := x.core.agents[id], x.core.on[id]
	if len(tasks) == 0 || len(tasks) == 1 && (a == nil || tasks[0].Pool == a.Pool) {
		if len(x.seats) > 0 && x.seats[id] != nil {
			x.take(x.seats[id])
			delete(x.seats, id)
		}
		return
	}
	old := x.seats[id]
	var pool Pool
	known := false
	if a != nil {
		pool, known = x.core.pools[a.Pool]
	}
	if a == nil || a.Gives.IsZero() {
		if old != nil {
			x.take(old)
			delete(x.seats, id)
		}
		return
	}
	top := slices.MinFunc(tasks, func(t, o *Task) int {
		if t.Priority != o.Priority {
			return int(max(min(o.Priority-t.Priority, 1), -1))
		}
		return strings.Compare(string(t.ID[:]), string(o.ID[:]))
	})
	key := x.key(top)
	key.cluster, key.others, key.takable, key.seat = pool.Cluster, otherNames(a.Gives), known && a.Settled, true
	if old != nil && old.agent.Pool != a.Pool {
		x.take(old)
		old = nil
	}
	x.seats[id] = x.settle(old, entry{task: top, agent: a}, key, a.Pool)
}

// classOf keeps of the labels only values the rules name.
func (x *index) classOf(l Labels) *class {
	var buf [64]byte
	key := buf[:0]
	for _, rule := range x.naming.rules {
		if v, has := l[rule.key]; has && rule.named[v] {
			key = append(append(append(append(key, rule.key...), 0), v...), 0)
		}
	}
	k := x.classes[string(key)]
	if k == nil {
		k = &class{Labels{}, x.naming}
		for _, rule := range x.naming.rules {
			if v, has := l[rule.key]; has && rule.named[v] {
				k.labels[rule.key] = v
			}
		}
		x.classes[string(key)] = k
	}
	return k
}

func otherNames(r Resources) string {
	if len(r.Other) == 0 {
		return ""
	}
	if len(r.Other) == 1 {
		return r.Other[0].Name
	}
	var b strings.Builder
	for i, a := range r.Other {
		if i > 0 {
			b.WriteByte(0)
		}
		b.WriteString(a.Name)
	}
	return b.String()
}
