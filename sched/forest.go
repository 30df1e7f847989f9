package sched

import (
	"math"
	"slices"
	"sort"
)

// forest holds tasks by what decides whether a rule applies, in groups.
type forest struct {
	list []*group
	by   map[groupKey]*group // once the list is long
	n    int
	sum  branch // of a node: of all running tasks
	more bool   // of a node: there are tasks that have not begun

	// Of a pool: home says whether its tasks belong into the forest of all pools;
	// apart, that this forest is asked in any case, because they are not, or not
	// all of them are there yet.
	home, apart bool
	changing    bool // is being brought in order; see index.step

	asked int  // by which search
	safe  bool // … and whether it may take nothing there
}

type groupKey struct {
	class   *class
	cluster string
	others  string // names of the custom resources given
	takable bool   // Decide may look at it: one task alone on a settled agent of its pool
	seat    bool   // stands for an agent with several tasks, or one of another pool
	waiting bool   // not started
	home    bool   // also in the forest of all pools
	times   uint8  // how often it was preempted, as far as that can be counted
}

// group holds tasks in cells of like agents: in one, until there are many.
type group struct {
	groupKey
	in  *forest
	n   int
	top fork
}

// fork leads a shape to its cell, and sums up what is below.
type fork struct {
	sum  branch
	up   *fork
	kids *[2]fork // nil when there is a cell
	cell *cell
	at   int64 // less goes left
	dim  int8  // by which resource; or by priority
	deep int8  // how many forks are above
}

type cell struct {
	tree
	mixed bool // may hold different shapes
}

func (f *forest) find(key groupKey) *group {
	if f.by != nil {
		return f.by[key]
	}
	for _, g := range f.list {
		if g.groupKey == key {
			return g
		}
	}
	return nil
}

func (f *forest) group(key groupKey) *group {
	if g := f.find(key); g != nil {
		return g
	}
	g := &group{groupKey: key, in: f, top: fork{cell: &cell{}}}
	f.list = append(f.list, g)
	if f.by != nil {
		f.by[key] = g
	} else if len(f.list) > 12 {
		f.by = map[groupKey]*group{}
		for _, g := range f.list {
			f.by[g.groupKey] = g
		}
	}
	return g
}

func (g *group) insert(it *item, x *index) {
	g.n++
	g.in.n++
	f := g.fork(it)
	c := f.cell
	if c.n > 0 && c.root.most != it.gives {
		c.mixed = true
	}
	c.insert(it, x.weight)
	f.sum = c.root
	for up := f.up; up != nil; up = up.up {
		up.sum.admit(it, x.weight)
	}
	if c.mixed && c.n > x.core.sizes.cell {
		f.split(x)
	}
}

func (g *group) remove(it *item, x *index) {
	g.n--
	g.in.n--
	f := g.fork(it)
	c := f.cell
	c.remove(it, x.weight)
	f.sum = c.root
	if c.n == 0 {
		c.mixed = false
	}
	if f.up != nil && c.n < x.core.sizes.cell/8 {
		f = f.up.shrink(x)
		f.sum = f.total()
	}
	for f = f.up; f != nil; f = f.up {
		sum := f.total()
		if sum == f.sum {
			break
		}
		f.sum = sum
	}
	if g.n == 0 {
		g.in.list = slices.DeleteFunc(g.in.list, func(o *group) bool { return o == g })
		if g.in.by != nil {
			delete(g.in.by, g.groupKey)
		}
	}
}

func (g *group) fork(it *item) *fork {
	f := &g.top
	for f.cell == nil {
		f = &f.kids[f.side(it)]
	}
	return f
}

func (f *fork) side(it *item) int {
	v := int64(it.priority)
	if f.dim != byPriority {
		v = int64(it.gives[f.dim])
	}
	if v < f.at {
		return 0
	}
	return 1
}

// total sums up all groups of running tasks, and says whether there are others.
func (f *forest) total() (sum branch, others bool) {
	for _, g := range f.list {
		switch {
		case g.waiting:
			others = true
		case g.n == 0:
		case sum.e == nil:
			sum = g.top.sum
		default:
			a, b := sum, g.top.sum
			if compareKeys(b.priority, b.start, b.e, a.priority, a.start, a.e) < 0 {
				a, b = b, a
			}
			sum = a
			sum.join(&b)
		}
	}
	return sum, others
}

func (f *fork) total() branch {
	if f.cell != nil {
		return f.cell.root
	}
	a, b := &f.kids[0].sum, &f.kids[1].sum
	if compareKeys(b.priority, b.start, b.e, a.priority, a.start, a.e) < 0 {
		a, b = b, a
	}
	sum := *a
	sum.sub = nil
	sum.join(b)
	return sum
}

// shrink makes one cell of two where little is left; where it cannot, of one
// that is empty, what is beside it.
func (f *fork) shrink(x *index) *fork {
	lo, hi := &f.kids[0], &f.kids[1]
	if lo.cell != nil && hi.cell != nil && lo.cell.n+hi.cell.n <= x.core.sizes.cell/4 {
		items := make([]item, 0, lo.cell.n+hi.cell.n)
		f.each(func(it *item) { items = append(items, *it) })
		slices.SortFunc(items, func(a, b item) int { return a.compare(&b) })
		f.cell, f.kids = &cell{tree: treeOf(items, x.weight), mixed: mixed(items)}, nil
		return f
	}
	rest := lo
	if lo.cell != nil && lo.cell.n == 0 {
		rest = hi
	} else if hi.cell == nil || hi.cell.n > 0 {
		return f
	}
	f.kids, f.cell, f.dim, f.at = rest.kids, rest.cell, rest.dim, rest.at
	if f.cell == nil {
		f.kids[0].up, f.kids[1].up = f, f
	}
	return f
}

func (f *fork) each(do func(*item)) {
	if f.cell != nil {
		f.cell.each(do)
		return
	}
	f.kids[0].each(do)
	f.kids[1].each(do)
}

// split makes two cells of one, if it holds different shapes.
func (f *fork) split(x *index) {
	items := make([]item, 0, f.cell.n)
	f.cell.each(func(it *item) { items = append(items, *it) })
	if !mixed(items) {
		f.cell.mixed = false
		return
	}
	f.dim, f.at = border(items, f.deep%4 == 0)
	var parts [2][]item
	for i := range items {
		side := f.side(&items[i])
		parts[side] = append(parts[side], items[i])
	}
	f.cell, f.kids = nil, &[2]fork{}
	for i := range parts {
		c := &cell{tree: treeOf(parts[i], x.weight), mixed: mixed(parts[i])}
		f.kids[i] = fork{sum: c.root, up: f, cell: c, deep: min(f.deep+1, math.MaxInt8-3)}
	}
	f.sum = f.total()
}

// byPriority is the dimension of a fork that is no resource.
const byPriority = int8(len(shape{}))

// border is where to halve items of different shapes: by priority, if they should
// be and it does, or in the resource in which they are widest, if that halves
// them, between the values nearest to the middle.
func border(items []item, priority bool) (dim int8, at int64) {
	if middle := items[len(items)/2].priority; priority && items[0].priority < middle {
		if first := sort.Search(len(items), func(i int) bool { return items[i].priority >= middle }); first > len(items)/8 {
			return byPriority, int64(middle)
		}
	}
	values := make([]int32, len(items))
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
			dim, width, at = int8(d), ratio, int64(values[border])
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
