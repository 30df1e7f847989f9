package sched

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// A tree holds tasks by priority ↑, start ↓, name, id: the order in which equal
// scores are taken. Each branch knows the first task below it, the latest end
// and the most of each resource, and so the best score that can be below it,
// whatever the policy, the newcomer and the time are.
type tree struct {
	root branch
	n    int
}

const (
	leafSize  = 32
	innerSize = 16
)

// shape is what an agent gives of cpu, gpu and memory.
type shape [3]int64

func shapeOf(r Resources) shape { return shape{r.CPU, r.GPU, r.Memory} }

type item struct {
	priority Milli
	start    Time
	end      Time // start + estimate, 0 without one; before the start the estimate
	gives    shape
	e        *entry
}

type branch struct {
	priority Milli // with start and e: of the first task
	start    Time
	e        *entry
	end      Time  // the latest
	most     shape // of each resource
	sub      *block
}

// block is a leaf, which has items, or an inner one, which has kids.
type block struct {
	items []item
	kids  []branch
}

func compareKeys(p Milli, start Time, e *entry, q Milli, other Time, o *entry) int {
	if p != q {
		return cmp.Compare(p, q)
	}
	if start != other {
		return cmp.Compare(other, start)
	}
	if e == o {
		return 0
	}
	if d := strings.Compare(e.name, o.name); d != 0 {
		return d
	}
	return bytes.Compare(e.id[:], o.id[:])
}

func (it *item) compare(o *item) int {
	return compareKeys(it.priority, it.start, it.e, o.priority, o.start, o.e)
}

func (t *tree) insert(it item) {
	t.n++
	if t.root.sub == nil {
		t.root.sub = &block{items: make([]item, 0, 4)}
	}
	right := t.root.sub.insert(&it)
	t.root = t.root.sub.summary()
	if right != nil {
		b := &block{kids: make([]branch, 0, innerSize)}
		b.kids = append(b.kids, t.root, right.summary())
		t.root = b.summary()
	}
}

// remove takes out an item that is there.
func (t *tree) remove(it item) {
	t.n--
	t.root.sub.remove(&it)
	for len(t.root.sub.kids) == 1 {
		t.root.sub = t.root.sub.kids[0].sub
	}
	if t.n == 0 {
		t.root = branch{}
		return
	}
	t.root = t.root.sub.summary()
}

func (t *tree) each(f func(*item)) {
	if t.root.sub != nil {
		t.root.sub.each(f)
	}
}

func (b *block) each(f func(*item)) {
	for i := range b.items {
		f(&b.items[i])
	}
	for i := range b.kids {
		b.kids[i].sub.each(f)
	}
}

// treeOf builds a tree of items in order.
func treeOf(items []item) tree {
	t := tree{n: len(items)}
	var level []branch
	for part := range slices.Chunk(items, leafSize*3/4) {
		b := &block{items: append(make([]item, 0, leafSize), part...)}
		level = append(level, b.summary())
	}
	for len(level) > 1 {
		var next []branch
		for part := range slices.Chunk(level, innerSize*3/4) {
			b := &block{kids: append(make([]branch, 0, innerSize), part...)}
			next = append(next, b.summary())
		}
		level = next
	}
	if len(level) == 1 {
		t.root = level[0]
	}
	return t
}

func (b *block) summary() branch {
	s := branch{sub: b}
	if len(b.items) > 0 {
		first := &b.items[0]
		s.priority, s.start, s.e = first.priority, first.start, first.e
		for i := range b.items {
			s.widen(b.items[i].end, &b.items[i].gives)
		}
	} else if len(b.kids) > 0 {
		first := &b.kids[0]
		s.priority, s.start, s.e = first.priority, first.start, first.e
		for i := range b.kids {
			s.widen(b.kids[i].end, &b.kids[i].most)
		}
	}
	return s
}

func (s *branch) widen(end Time, gives *shape) {
	s.end = max(s.end, end)
	for d := range gives {
		s.most[d] = max(s.most[d], gives[d])
	}
}

// kid is the only one an item can be below.
func (b *block) kid(it *item) int {
	lo, hi := 1, len(b.kids)
	for lo < hi {
		mid := (lo + hi) / 2
		k := &b.kids[mid]
		if compareKeys(k.priority, k.start, k.e, it.priority, it.start, it.e) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

func (b *block) place(it *item) int {
	lo, hi := 0, len(b.items)
	for lo < hi {
		mid := (lo + hi) / 2
		if b.items[mid].compare(it) < 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// insert returns a new right neighbour when the block had to be split.
func (b *block) insert(it *item) *block {
	if len(b.kids) == 0 {
		at := b.place(it)
		if len(b.items) < leafSize {
			b.items = slices.Insert(b.items, at, *it)
			return nil
		}
		right := &block{items: append(make([]item, 0, leafSize), b.items[leafSize/2:]...)}
		clear(b.items[leafSize/2:])
		b.items = b.items[:leafSize/2]
		if at <= leafSize/2 {
			b.items = slices.Insert(b.items, at, *it)
		} else {
			right.items = slices.Insert(right.items, at-leafSize/2, *it)
		}
		return right
	}
	at := b.kid(it)
	more := b.kids[at].sub.insert(it)
	b.kids[at] = b.kids[at].sub.summary()
	if more == nil {
		return nil
	}
	at++
	if len(b.kids) < innerSize {
		b.kids = slices.Insert(b.kids, at, more.summary())
		return nil
	}
	right := &block{kids: append(make([]branch, 0, innerSize), b.kids[innerSize/2:]...)}
	clear(b.kids[innerSize/2:])
	b.kids = b.kids[:innerSize/2]
	if at <= innerSize/2 {
		b.kids = slices.Insert(b.kids, at, more.summary())
	} else {
		right.kids = slices.Insert(right.kids, at-innerSize/2, more.summary())
	}
	return right
}

func (b *block) remove(it *item) {
	if len(b.kids) == 0 {
		at := b.place(it)
		b.items = slices.Delete(b.items, at, at+1)
		return
	}
	at := b.kid(it)
	sub := b.kids[at].sub
	sub.remove(it)
	if len(sub.items) == 0 && len(sub.kids) == 0 {
		b.kids = slices.Delete(b.kids, at, at+1)
		return
	}
	b.kids[at] = sub.summary()
	switch {
	case at+1 < len(b.kids) && b.merge(at):
	case at > 0:
		b.merge(at - 1)
	}
}

// merge joins two neighbours that are half empty together.
func (b *block) merge(at int) bool {
	left, right := b.kids[at].sub, b.kids[at+1].sub
	if len(left.items)+len(right.items) > leafSize/2 || len(left.kids)+len(right.kids) > innerSize/2 {
		return false
	}
	left.items = append(left.items, right.items...)
	left.kids = append(left.kids, right.kids...)
	b.kids[at] = left.summary()
	b.kids = slices.Delete(b.kids, at+1, at+2)
	return true
}
