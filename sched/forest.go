package sched

import (
	"math"
	"slices"
)

// forest holds tasks by what decides whether a rule applies, in groups.
type forest struct {
	list []*group
	by   map[groupKey]*group // once the list is long
	n    int

	// Of a pool: home says whether its tasks belong into the forest of all pools;
	// apart, that this forest is asked in any case, because they are not, or not
	// all of them are there yet.
	home, apart bool
	changing    bool // is being brought in order; see index.step
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
	sum    branch
	up     *fork
	lo, hi *fork // nil when there is a cell
	cell   *cell
	dim    int
	at     int32 // less goes left
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
	f := g.fork(it.gives)
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
	f := g.fork(it.gives)
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

func (g *group) fork(s shape) *fork {
	f := &g.top
	for f.cell == nil {
		if s[f.dim] < f.at {
			f = f.lo
		} else {
			f = f.hi
		}
	}
	return f
}

func (f *fork) total() branch {
	if f.cell != nil {
		return f.cell.root
	}
	a, b := &f.lo.sum, &f.hi.sum
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
	if f.lo.cell != nil && f.hi.cell != nil && f.lo.cell.n+f.hi.cell.n <= x.core.sizes.cell/4 {
		items := make([]item, 0, f.lo.cell.n+f.hi.cell.n)
		f.each(func(it *item) { items = append(items, *it) })
		slices.SortFunc(items, func(a, b item) int { return a.compare(&b) })
		f.cell, f.lo, f.hi = &cell{tree: treeOf(items, x.weight), mixed: mixed(items)}, nil, nil
		return f
	}
	rest := f.lo
	if f.lo.cell != nil && f.lo.cell.n == 0 {
		rest = f.hi
	} else if f.hi.cell == nil || f.hi.cell.n > 0 {
		return f
	}
	f.lo, f.hi, f.cell, f.dim, f.at = rest.lo, rest.hi, rest.cell, rest.dim, rest.at
	if f.cell == nil {
		f.lo.up, f.hi.up = f, f
	}
	return f
}

func (f *fork) each(do func(*item)) {
	if f.cell != nil {
		f.cell.each(do)
		return
	}
	f.lo.each(do)
	f.hi.each(do)
}

// split makes two cells of one, if it holds different shapes.
func (f *fork) split(x *index) {
	items := make([]item, 0, f.cell.n)
	f.cell.each(func(it *item) { items = append(items, *it) })
	if !mixed(items) {
		f.cell.mixed = false
		return
	}
	d, at := border(items)
	var parts [2][]item
	for i := range items {
		half := 0
		if items[i].gives[d] >= at {
			half = 1
		}
		parts[half] = append(parts[half], items[i])
	}
	f.cell, f.dim, f.at = nil, d, at
	for i, to := range []**fork{&f.lo, &f.hi} {
		c := &cell{tree: treeOf(parts[i], x.weight), mixed: mixed(parts[i])}
		*to = &fork{sum: c.root, up: f, cell: c}
	}
	f.sum = f.total()
}

// border is where to halve items of different shapes: in the resource in which
// they are widest, if that halves them, between the values nearest to the middle.
func border(items []item) (dim int, at int32) {
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
