package sched

import (
	"container/heap"
	"math"
	"reflect"
	"slices"
	"strings"
)

// The index answers what the scan answers, without looking at everything.
//
// Tasks lie in forests: one for all pools that are not protected, and one for
// each pool. A forest groups them by what decides whether a rule applies, the
// label values the policy talks about above all, and each group by what their
// agents give, in cells; so a search opens only trees that may hold an answer,
// and best first. Everything else a rule asks is asked of what a search finds.
//
// It is brought up to date when it is asked: what changes meanwhile is only
// noted, and what changed back costs nothing.
type index struct {
	core    *Core
	entries map[ID]*entry
	dirty   []ID
	all     forest
	pools   map[string]*forest
	classes map[string]*class
	rules   int             // counts changes of the label rules
	behind  []ID            // tasks whose class may be one of earlier label rules
	odd     map[ID]struct{} // agents with several tasks, or one of another pool: looked at one by one
	now     Time            // when it was last asked
	fresh   freshHeap       // tasks that were in their minimum runtime, first start first

	search search // reused
}

// entry is a task as it is indexed.
type entry struct {
	task    *Task
	agent   *Agent // nil unless it can be taken
	id      ID
	name    string
	agentID ID
	pool    string
	item    item
	inAll   *group // nil: its pool is protected
	inPool  *group
}

// class are label values about which the policy says the same.
type class struct {
	labels Labels
	rules  int // by which; see index
}

type groupKey struct {
	class   *class
	cluster string
	others  string // names of the custom resources given
	takable bool   // Decide may look at it: one task alone on a settled agent of its pool
	waiting bool   // not started
	fresh   bool   // within the minimum runtime
}

type forest struct {
	groups map[groupKey]*group
	list   []*group
}

// group holds tasks in cells of like agents: in one, until there are many.
type group struct {
	groupKey
	n     int
	top   *fork
	cells []*cell
}

// fork leads a shape to its cell.
type fork struct {
	dim    int
	at     int64 // less goes left
	lo, hi *fork
	cell   *cell
}

type cell struct {
	tree
	mixed bool // may hold different shapes
}

// sizes are where one way of doing things gets better than another.
type sizes struct {
	scan int // below so many tasks everything is looked at
	cell int // above so many, a cell of different shapes is split
	vain int // after so many looked at in vain, and a few per cent of all, a scan is as good
	step int // so many tasks at a time follow new label rules
}

var usualSizes = sizes{scan: 1_000, cell: 2_000, vain: 4_000, step: 100}

// ready returns the index as of now; nil when there are so few tasks that a scan is as good.
func (c *Core) ready(now Time) *index {
	if len(c.tasks) < c.sizes.scan {
		if len(c.tasks) < c.sizes.scan/2 {
			c.index = nil
		}
		return nil
	}
	if c.index == nil {
		x := &index{core: c, entries: make(map[ID]*entry, len(c.tasks)), pools: map[string]*forest{},
			classes: map[string]*class{}, odd: map[ID]struct{}{}}
		x.build(now)
		c.index = x
	}
	c.index.update(now)
	return c.index
}

// Build brings the index up to date with all that was put, now rather than when
// the first question is asked: call it when loading is done. It is never needed
// for a right answer. After a call, and with whatever was put since, questions
// are answered without a stall.
func (c *Core) Build(now Time) { c.ready(max(now, 0)) }

// build places all tasks at once.
func (x *index) build(now Time) {
	x.now = now
	c := x.core
	items := make([]item, 0, len(c.tasks))
	for id, t := range c.tasks {
		described, key := x.describe(t, now)
		e := &described
		if key.fresh {
			x.fresh = append(x.fresh, freshTask{t.Start, id})
		}
		e.item.e = e
		x.entries[id] = e
		x.look(t.Agent)
		e.inPool = x.forest(t.Pool).group(key)
		if !c.rules.protected[t.Pool] {
			e.inAll = x.all.group(key)
		}
		items = append(items, e.item)
	}
	heap.Init(&x.fresh)
	slices.SortFunc(items, func(a, b item) int { return a.compare(&b) })
	parts := map[*group][]item{}
	for i := range items {
		e := items[i].e
		parts[e.inPool] = append(parts[e.inPool], items[i])
		if e.inAll != nil {
			parts[e.inAll] = append(parts[e.inAll], items[i])
		}
	}
	for g, part := range parts {
		g.fill(part, c.sizes.cell)
	}
}

// touch notes that a task has changed.
func (c *Core) touch(id ID) {
	if c.index != nil {
		if d := c.index.dirty; len(d) > 0 && d[len(d)-1] == id {
			return
		}
		c.index.dirty = append(c.index.dirty, id)
		if len(c.index.dirty) > 100_000 {
			c.index.update(c.index.now)
		}
	}
}

// touchAgent notes that what may be said of an agent's tasks has changed.
func (c *Core) touchAgent(id ID) {
	if c.index != nil {
		for _, t := range c.on[id] {
			c.touch(t.ID)
		}
	}
}

// touchPool notes that what may be said of a pool's tasks has changed.
func (c *Core) touchPool(name string) {
	if c.index == nil || c.index.pools[name] == nil {
		return
	}
	for _, g := range c.index.pools[name].list {
		for _, cell := range g.cells {
			cell.each(func(it *item) { c.index.dirty = append(c.index.dirty, it.e.id) })
		}
	}
}

// repolicy notes what a new policy changes. Thresholds and weights change
// nothing; protected pools move; with other label rules, tasks get other classes
// little by little, and until then count as what they might be.
func (c *Core) repolicy(old *rules) {
	if c.index == nil {
		return
	}
	if !reflect.DeepEqual(old.labels, c.rules.labels) {
		x := c.index
		x.rules++
		x.classes = map[string]*class{}
		x.behind = x.behind[:0]
		for id := range x.entries {
			x.behind = append(x.behind, id)
		}
	}
	for name := range c.index.pools {
		if old.protected[name] != c.rules.protected[name] {
			c.touchPool(name)
		}
	}
}

func (x *index) update(now Time) {
	x.now = now
	least := Time(x.core.policy.MinRuntimeSeconds)
	for len(x.fresh) > 0 && (least == 0 || now-x.fresh[0].start >= least) {
		x.dirty = append(x.dirty, heap.Pop(&x.fresh).(freshTask).id)
	}
	for _, id := range x.dirty {
		x.place(id, now)
	}
	for range min(len(x.behind), x.core.sizes.step) {
		last := len(x.behind) - 1
		x.place(x.behind[last], now)
		x.behind = x.behind[:last]
	}
	if cap(x.dirty) > 10_000 {
		x.dirty = nil
	}
	x.dirty = x.dirty[:0]
}

// place puts a task where it belongs now, if it is not there.
func (x *index) place(id ID, now Time) {
	old := x.entries[id]
	t := x.core.tasks[id]
	if t == nil {
		if old != nil {
			x.remove(old)
			delete(x.entries, id)
			x.look(old.agentID)
		}
		return
	}
	e, key := x.describe(t, now)
	if key.fresh && (old == nil || !old.inPool.fresh || old.item.start != t.Start) {
		heap.Push(&x.fresh, freshTask{t.Start, id})
	}
	protected := x.core.rules.protected[t.Pool]
	at := &entry{}
	if old != nil {
		if agent := old.agentID; agent != t.Agent {
			x.look(agent)
		}
		i := &old.item
		if old.name == e.name && old.pool == e.pool && i.priority == e.item.priority && i.start == e.item.start && i.end == e.item.end &&
			i.gives == e.item.gives && old.inPool.groupKey == key && (old.inAll == nil) == protected {
			old.task, old.agent, old.agentID = t, e.agent, t.Agent
			x.look(t.Agent)
			return
		}
		x.remove(old)
		at = old
	}
	*at = e
	at.item.e = at
	x.entries[id] = at
	if !protected {
		at.inAll = x.all.group(key)
		at.inAll.insert(at.item, x.core.sizes.cell)
	}
	at.inPool = x.forest(t.Pool).group(key)
	at.inPool.insert(at.item, x.core.sizes.cell)
	x.look(t.Agent)
}

// describe says how a task is indexed, and among which.
func (x *index) describe(t *Task, now Time) (entry, groupKey) {
	e := entry{task: t, id: t.ID, name: t.Name, agentID: t.Agent, pool: t.Pool}
	pool, known := x.core.pools[t.Pool]
	key := groupKey{class: x.classOf(t.Labels), cluster: pool.Cluster, waiting: t.Start == 0}
	if a := x.core.agents[t.Agent]; a != nil && known && a.Settled && a.Pool == t.Pool && !a.Gives.IsZero() && len(x.core.on[t.Agent]) == 1 {
		key.takable, key.others = true, otherNames(a.Gives)
		e.agent, e.item.gives = a, shapeOf(a.Gives)
	}
	if least := Time(x.core.policy.MinRuntimeSeconds); least > 0 && t.Start > 0 && now-t.Start < least {
		key.fresh = true
	}
	e.item.priority, e.item.start = t.Priority, t.Start
	if t.Estimate > 0 {
		e.item.end = t.Start + t.Estimate
	}
	return e, key
}

func (x *index) forest(pool string) *forest {
	f := x.pools[pool]
	if f == nil {
		f = &forest{}
		x.pools[pool] = f
	}
	return f
}

// look decides whether an agent has to be looked at by itself.
func (x *index) look(id ID) {
	a, tasks := x.core.agents[id], x.core.on[id]
	if a != nil && !a.Gives.IsZero() && (len(tasks) > 1 || len(tasks) == 1 && tasks[0].Pool != a.Pool) {
		x.odd[id] = struct{}{}
	} else if len(x.odd) > 0 {
		delete(x.odd, id)
	}
}

func (x *index) remove(e *entry) {
	if e.inAll != nil {
		e.inAll.remove(e.item, x.core.sizes.cell)
		x.all.drop(e.inAll)
	}
	f := x.pools[e.pool]
	e.inPool.remove(e.item, x.core.sizes.cell)
	f.drop(e.inPool)
	if len(f.list) == 0 {
		delete(x.pools, e.pool)
	}
}

// classOf keeps of the labels only values the rules name.
func (x *index) classOf(l Labels) *class {
	var buf [64]byte
	key := buf[:0]
	for _, rule := range x.core.rules.labels {
		if v, has := l[rule.key]; has && rule.named[v] {
			key = append(append(append(append(key, rule.key...), 0), v...), 0)
		}
	}
	k := x.classes[string(key)]
	if k == nil {
		k = &class{Labels{}, x.rules}
		for _, rule := range x.core.rules.labels {
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
	var b strings.Builder
	for _, a := range r.Other {
		b.WriteString(a.Name)
		b.WriteByte(0)
	}
	return b.String()
}

func (f *forest) group(key groupKey) *group {
	if g := f.groups[key]; g != nil {
		return g
	}
	if f.groups == nil {
		f.groups = map[groupKey]*group{}
	}
	g := &group{groupKey: key}
	g.reset()
	f.groups[key] = g
	f.list = append(f.list, g)
	return g
}

func (f *forest) drop(g *group) {
	if g.n > 0 {
		return
	}
	delete(f.groups, g.groupKey)
	f.list = slices.DeleteFunc(f.list, func(o *group) bool { return o == g })
}

func (g *group) reset() {
	only := &cell{}
	g.n, g.top, g.cells = 0, &fork{cell: only}, []*cell{only}
}

func (g *group) fork(s shape) *fork {
	f := g.top
	for f.cell == nil {
		if s[f.dim] < f.at {
			f = f.lo
		} else {
			f = f.hi
		}
	}
	return f
}

func (g *group) insert(it item, most int) {
	g.n++
	f := g.fork(it.gives)
	c := f.cell
	if c.n > 0 && c.root.most != it.gives {
		c.mixed = true
	}
	c.insert(it)
	if c.mixed && c.n > most {
		g.split(f, most)
	}
}

func (g *group) remove(it item, most int) {
	g.n--
	c := g.fork(it.gives).cell
	c.remove(it)
	if c.n == 0 {
		c.mixed = false
	}
	if len(g.cells) > 8 && g.n < len(g.cells)*most/16 { // it has shrunk
		var all []item
		for _, c := range g.cells {
			c.each(func(it *item) { all = append(all, *it) })
		}
		slices.SortFunc(all, func(a, b item) int { return a.compare(&b) })
		g.fill(all, most)
	}
}

// fill puts items, in order, into an empty group.
func (g *group) fill(items []item, most int) {
	g.n, g.cells = len(items), nil
	g.top = g.grow(items, most)
}

// grow makes cells of items in order.
func (g *group) grow(items []item, most int) *fork {
	if len(items) > most && mixed(items) {
		d, at := border(items)
		var lo, hi []item
		for i := range items {
			if items[i].gives[d] < at {
				lo = append(lo, items[i])
			} else {
				hi = append(hi, items[i])
			}
		}
		return &fork{dim: d, at: at, lo: g.grow(lo, most), hi: g.grow(hi, most)}
	}
	c := &cell{tree: treeOf(items), mixed: mixed(items)}
	g.cells = append(g.cells, c)
	return &fork{cell: c}
}

// split makes several cells of one, if it holds different shapes.
func (g *group) split(f *fork, most int) {
	items := make([]item, 0, f.cell.n)
	f.cell.each(func(it *item) { items = append(items, *it) })
	if !mixed(items) {
		f.cell.mixed = false
		return
	}
	g.cells = slices.DeleteFunc(g.cells, func(c *cell) bool { return c == f.cell })
	*f = *g.grow(items, most)
}

// border is where to halve items of different shapes: in the resource in which
// they are widest, if that halves them, between the values nearest to the middle.
func border(items []item) (dim int, at int64) {
	if len(items) > 10_000 { // a few of them show it as well
		some := make([]item, 0, 1_024)
		for i := 0; i < len(items); i += len(items)/1_000 + 1 {
			some = append(some, items[i])
		}
		if mixed(some) {
			items = some
		}
	}
	values := make([]int64, len(items))
	width := 0.0
	for d := range (shape{}) {
		for i := range items {
			values[i] = items[i].gives[d]
		}
		slices.Sort(values)
		low, high := values[0], values[len(values)-1]
		if low == high {
			continue
		}
		half := len(values) / 2
		left, _ := slices.BinarySearch(values, values[half])
		right, _ := slices.BinarySearch(values, values[half]+1)
		border := left
		if left == 0 || right < len(values) && right-half < half-left {
			border = right
		}
		ratio := math.Log(float64(high+1) / float64(low+1))
		if smaller := min(border, len(values)-border); smaller*8 < len(values) {
			ratio /= 100 // lopsided: only if there is nothing better
		}
		if ratio > width {
			dim, width, at = d, ratio, values[border]
		}
	}
	return dim, at
}

func mixed(items []item) bool {
	for i := range items {
		if items[i].gives != items[0].gives {
			return true
		}
	}
	return false
}

type freshTask struct {
	start Time
	id    ID
}

type freshHeap []freshTask

func (h freshHeap) Len() int           { return len(h) }
func (h freshHeap) Less(i, j int) bool { return h[i].start < h[j].start }
func (h freshHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *freshHeap) Push(v any)        { *h = append(*h, v.(freshTask)) }
func (h *freshHeap) Pop() any {
	old := *h
	v := old[len(old)-1]
	*h = old[:len(old)-1]
	return v
}
