package sched

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
)

// A tree holds tasks by priority ↑, start ↓, name, id: the order in which equal
// scores are taken. Each branch knows the best score that can be below it,
// whoever asks and whenever.
type tree struct {
	root branch
	n    int
}

const (
	leafSize  = 32
	innerSize = 16
)

// shape is what an agent gives of cpu, gpu, memory and the first custom resource
// of its group, cut down to 32 bits: an upper bound tells whom not to look at.
type shape [4]int32

func shapeOf(r *Resources) shape {
	s := shape{narrow(r.CPU), narrow(r.GPU), narrow(r.Memory)}
	if len(r.Other) > 0 {
		s[3] = narrow(r.Other[0].Value)
	}
	return s
}

func narrow(v int64) int32 { return int32(min(max(v, 0), math.MaxInt32)) }

type item struct {
	priority Milli
	start    Time
	end      Time // start + estimate, 0 without one; before the start the estimate
	gives    shape
	e        *entry
}

// key orders tasks that have time left by score, whoever asks.
func (it *item) key(weight Milli) Micro { return Micro(weight)*Micro(it.end) - Micro(it.priority)*1000 }

// branch sums up what is below it. What every search asks for comes first, in one
// line of the cache.
type branch struct {
	priority Milli // with start and e: of the first task
	key      Micro // the highest, by weight
	end      Time  // the latest
	weight   Milli // −1: keys below are by several
	most     shape // of each resource
	e        *entry
	start    Time
	sub      *block
	oldest   Time  // the earliest start
	last     Milli // the highest priority
	sum      [len(shape{})]int64
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
	if d := strings.Compare(e.task.Name, o.task.Name); d != 0 {
		return d
	}
	return bytes.Compare(e.task.ID[:], o.task.ID[:])
}

func (it *item) compare(o *item) int {
	return compareKeys(it.priority, it.start, it.e, o.priority, o.start, o.e)
}

func (t *tree) insert(it *item, weight Milli) {
	t.n++
	if t.root.sub == nil {
		t.root.sub = &block{items: make([]item, 0, 2)}
		t.root.sub.items = append(t.root.sub.items, *it)
		t.root = t.root.sub.summary(weight)
		return
	}
	right := t.root.sub.insert(it, weight)
	if right == nil {
		t.root.admit(it, weight)
		return
	}
	b := &block{kids: make([]branch, 0, 4)}
	b.kids = append(b.kids, t.root.sub.summary(weight), right.summary(weight))
	t.root = b.summary(weight)
}

// remove takes out an item that is there.
func (t *tree) remove(it *item, weight Milli) {
	t.n--
	t.root.sub.remove(it, weight)
	for len(t.root.sub.kids) == 1 {
		t.root.sub = t.root.sub.kids[0].sub
	}
	if t.n == 0 {
		t.root = branch{}
		return
	}
	t.root = t.root.sub.summary(weight)
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
func treeOf(items []item, weight Milli) tree {
	t := tree{n: len(items)}
	var level []branch
	for part := range slices.Chunk(items, leafSize*3/4) {
		b := &block{items: append(make([]item, 0, len(part)+len(part)/3), part...)}
		level = append(level, b.summary(weight))
	}
	for len(level) > 1 {
		var next []branch
		for part := range slices.Chunk(level, innerSize*3/4) {
			b := &block{kids: append(make([]branch, 0, innerSize), part...)}
			next = append(next, b.summary(weight))
		}
		level = next
	}
	if len(level) == 1 {
		t.root = level[0]
	}
	return t
}

func (b *block) summary(weight Milli) branch {
	var s branch
	if len(b.items) > 0 {
		s = b.items[0].summary(weight)
		for i := range b.items[1:] {
			s.widen(&b.items[i+1], weight)
		}
	} else if len(b.kids) > 0 {
		s = b.kids[0]
		for i := range b.kids[1:] {
			s.join(&b.kids[i+1])
		}
	}
	s.sub = b
	return s
}

func (it *item) summary(weight Milli) branch {
	return branch{priority: it.priority, start: it.start, e: it.e, end: it.end, oldest: it.start, key: it.key(weight), weight: weight, most: it.gives,
		last: it.priority, sum: [len(shape{})]int64{int64(it.gives[0]), int64(it.gives[1]), int64(it.gives[2]), int64(it.gives[3])}}
}

// widen counts an item in that is not the first.
func (s *branch) widen(it *item, weight Milli) {
	s.end = max(s.end, it.end)
	s.oldest = min(s.oldest, it.start)
	s.key = max(s.key, it.key(weight))
	s.last = max(s.last, it.priority)
	for d := range s.most {
		s.most[d] = max(s.most[d], it.gives[d])
		s.sum[d] += int64(it.gives[d])
	}
}

// admit counts an item in.
func (s *branch) admit(it *item, weight Milli) {
	if compareKeys(it.priority, it.start, it.e, s.priority, s.start, s.e) < 0 {
		s.priority, s.start, s.e = it.priority, it.start, it.e
	}
	s.widen(it, weight)
	if s.weight != weight {
		s.weight = -1
	}
}

// join counts in what another sums up, all but the first.
func (s *branch) join(o *branch) {
	s.end = max(s.end, o.end)
	s.oldest = min(s.oldest, o.oldest)
	s.key = max(s.key, o.key)
	s.last = max(s.last, o.last)
	if s.weight != o.weight {
		s.weight = -1
	}
	for d := range s.most {
		s.most[d] = max(s.most[d], o.most[d])
		s.sum[d] += o.sum[d]
	}
}

// reweigh computes keys by another weight, of so many leaves at most; it returns
// how many that were.
func (b *branch) reweigh(weight Milli, most int) (done int) {
	if b.sub == nil || b.weight == weight || most <= 0 {
		return 0
	}
	for i := range b.sub.kids {
		done += b.sub.kids[i].reweigh(weight, most-done)
	}
	if b.sub.kids == nil {
		done = 1
	}
	*b = b.sub.summary(weight)
	return done
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
func (b *block) insert(it *item, weight Milli) *block {
	if len(b.kids) == 0 {
		at := b.place(it)
		if len(b.items) < leafSize {
			b.items = insertAt(b.items, at, *it, leafSize)
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
	more := b.kids[at].sub.insert(it, weight)
	if more == nil {
		b.kids[at].admit(it, weight)
		return nil
	}
	b.kids[at] = b.kids[at].sub.summary(weight)
	at++
	if len(b.kids) < innerSize {
		b.kids = insertAt(b.kids, at, more.summary(weight), innerSize)
		return nil
	}
	right := &block{kids: append(make([]branch, 0, innerSize), b.kids[innerSize/2:]...)}
	clear(b.kids[innerSize/2:])
	b.kids = b.kids[:innerSize/2]
	if at <= innerSize/2 {
		b.kids = slices.Insert(b.kids, at, more.summary(weight))
	} else {
		right.kids = slices.Insert(right.kids, at-innerSize/2, more.summary(weight))
	}
	return right
}

// insertAt is slices.Insert that doubles what it holds, up to most.
func insertAt[T any](s []T, at int, v T, most int) []T {
	if len(s) == cap(s) {
		s = append(make([]T, 0, min(max(2*len(s), 4), most)), s...)
	}
	return slices.Insert(s, at, v)
}

func (b *block) remove(it *item, weight Milli) {
	if len(b.kids) == 0 {
		at := b.place(it)
		b.items = slices.Delete(b.items, at, at+1)
		return
	}
	at := b.kid(it)
	sub := b.kids[at].sub
	sub.remove(it, weight)
	if len(sub.items) == 0 && len(sub.kids) == 0 {
		b.kids = slices.Delete(b.kids, at, at+1)
		return
	}
	b.kids[at] = sub.summary(weight)
	switch {
	case at+1 < len(b.kids) && b.merge(at, weight):
	case at > 0:
		b.merge(at-1, weight)
	}
}

// merge joins two neighbours that are half empty together.
func (b *block) merge(at int, weight Milli) bool {
	left, right := b.kids[at].sub, b.kids[at+1].sub
	if len(left.items)+len(right.items) > leafSize/2 || len(left.kids)+len(right.kids) > innerSize/2 {
		return false
	}
	left.items = append(left.items, right.items...)
	left.kids = append(left.kids, right.kids...)
	b.kids[at] = left.summary(weight)
	b.kids = slices.Delete(b.kids, at+1, at+2)
	return true
}
