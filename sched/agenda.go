package sched

import (
	"cmp"
	"iter"
	"slices"
)

// Agenda is what is expected to happen, by time, with an amount for each entry:
// when how much of a pool's quota, or of a node's room, comes free. What never
// ends, as far as anybody knows, is not in it. The zero value is empty. All calls
// but All take O(log n).
type Agenda struct {
	tree order
}

// Put enters an id at a time, in place of an entry it had.
func (a *Agenda) Put(id ID, at Time, amount Resources) {
	a.tree.put(&mark{id: id, key: int64(at), amount: amount})
}

// Entry is one entry of an agenda.
type Entry struct {
	ID     ID
	At     Time
	Amount Resources
}

// Fill makes an agenda of entries with ids of their own, in place of what it had:
// quicker than to put one after the other.
func (a *Agenda) Fill(entries []Entry) {
	marks := make([]mark, len(entries))
	sorted := make([]*mark, len(entries))
	for i, e := range entries {
		marks[i] = mark{id: e.ID, key: int64(e.At), amount: e.Amount}
		sorted[i] = &marks[i]
	}
	a.tree.fill(sorted)
}

// Remove takes an id out; unknown ones are ignored.
func (a *Agenda) Remove(id ID) { a.tree.remove(id) }

// Len is the number of entries.
func (a *Agenda) Len() int { return a.tree.root.count() }

// At tells when an id is entered.
func (a *Agenda) At(id ID) (Time, bool) {
	if e := a.tree.by[id]; e != nil {
		return Time(e.key), true
	}
	return 0, false
}

// First is the earliest entry.
func (a *Agenda) First() (id ID, at Time, ok bool) {
	if e := a.tree.first(); e != nil {
		return e.id, Time(e.key), true
	}
	return ID{}, 0, false
}

// Due yields who is entered at a time or before it, earliest first.
func (a *Agenda) Due(at Time) iter.Seq[ID] {
	return func(yield func(ID) bool) {
		for e := range a.tree.all() {
			if Time(e.key) > at || !yield(e.id) {
				return
			}
		}
	}
}

// All yields the entries by time.
func (a *Agenda) All() iter.Seq2[Time, Resources] {
	return func(yield func(Time, Resources) bool) {
		for e := range a.tree.all() {
			if !yield(Time(e.key), e.amount) {
				return
			}
		}
	}
}

// covering returns the earliest time at which have, with everything that was
// entered up to then, covers want; and the sum of all entries up to that time.
func (a *Agenda) covering(have, want Resources) (at Time, sum Resources, ok bool) {
	e := a.tree.root
	if !have.Add(e.total()).Covers(want) {
		return 0, Resources{}, false
	}
	for e != nil {
		with := sum.Add(e.left.total())
		if e.left != nil && have.Add(with).Covers(want) {
			e = e.left
			continue
		}
		sum = with.Add(e.amount)
		if have.Add(sum).Covers(want) {
			at = Time(e.key)
			break
		}
		e = e.right
	}
	return at, a.until(at), true
}

// until is the sum of all entries up to a time.
func (a *Agenda) until(at Time) (sum Resources) {
	for e := a.tree.root; e != nil; {
		if Time(e.key) > at {
			e = e.left
			continue
		}
		sum = sum.Add(e.left.total()).Add(e.amount)
		e = e.right
	}
	return sum
}

// order keeps entries sorted by key, then, and id. It is a treap: a search tree
// on those, a heap on a number mixed from the id, so that its shape depends on
// nothing but what is in it.
type order struct {
	root *mark
	by   map[ID]*mark
}

type mark struct {
	id     ID
	key    int64
	then   int64
	amount Resources

	priority    Milli // of what waits; see Line
	heap        uint64
	size        int
	sum         Resources
	left, right *mark
}

func (e *mark) count() int {
	if e == nil {
		return 0
	}
	return e.size
}

func (e *mark) total() Resources {
	if e == nil {
		return Resources{}
	}
	return e.sum
}

func (e *mark) update() {
	e.size = 1 + e.left.count() + e.right.count()
	e.sum = e.amount
	if e.left != nil {
		e.sum = e.sum.Add(e.left.sum)
	}
	if e.right != nil {
		e.sum = e.sum.Add(e.right.sum)
	}
}

func (e *mark) compare(o *mark) int {
	return cmp.Or(cmp.Compare(e.key, o.key), cmp.Compare(e.then, o.then), slices.Compare(e.id[:], o.id[:]))
}

func (o *order) put(e *mark) {
	o.remove(e.id)
	if o.by == nil {
		o.by = map[ID]*mark{}
	}
	o.by[e.id] = e
	e.heap = blended(e.id)
	o.root = insert(o.root, e)
}

// fill makes the tree of entries from left to right: what is still open is the rightmost path.
func (o *order) fill(marks []*mark) {
	slices.SortFunc(marks, (*mark).compare)
	o.by = make(map[ID]*mark, len(marks))
	var open []*mark
	closed := func() *mark {
		last := open[len(open)-1]
		open = open[:len(open)-1]
		last.update()
		return last
	}
	for _, e := range marks {
		o.by[e.id] = e
		e.heap = blended(e.id)
		for len(open) > 0 && open[len(open)-1].heap < e.heap {
			e.left = closed()
		}
		if len(open) > 0 {
			open[len(open)-1].right = e
		}
		open = append(open, e)
	}
	o.root = nil
	for len(open) > 0 {
		o.root = closed()
	}
}

func (o *order) remove(id ID) {
	e := o.by[id]
	if e == nil {
		return
	}
	delete(o.by, id)
	o.root = without(o.root, e)
}

func (o *order) first() *mark {
	e := o.root
	for e != nil && e.left != nil {
		e = e.left
	}
	return e
}

func (o *order) all() iter.Seq[*mark] {
	return func(yield func(*mark) bool) {
		var path []*mark
		for e := o.root; e != nil || len(path) > 0; {
			for ; e != nil; e = e.left {
				path = append(path, e)
			}
			e = path[len(path)-1]
			path = path[:len(path)-1]
			if !yield(e) {
				return
			}
			e = e.right
		}
	}
}

// before counts the entries in front of one that is there.
func (o *order) before(of *mark) (n int) {
	for e := o.root; e != nil; {
		switch c := of.compare(e); {
		case c < 0:
			e = e.left
		case c > 0:
			n += e.left.count() + 1
			e = e.right
		default:
			return n + e.left.count()
		}
	}
	return n
}

func insert(at, e *mark) *mark {
	switch {
	case at == nil:
		e.left, e.right = nil, nil
		e.update()
		return e
	case e.heap > at.heap:
		e.left, e.right = split(at, e)
		e.update()
		return e
	case e.compare(at) < 0:
		at.left = insert(at.left, e)
	default:
		at.right = insert(at.right, e)
	}
	at.update()
	return at
}

func split(at, by *mark) (left, right *mark) {
	if at == nil {
		return nil, nil
	}
	if at.compare(by) < 0 {
		at.right, right = split(at.right, by)
		left = at
	} else {
		left, at.left = split(at.left, by)
		right = at
	}
	at.update()
	return left, right
}

func without(at, e *mark) *mark {
	switch c := e.compare(at); {
	case c < 0:
		at.left = without(at.left, e)
	case c > 0:
		at.right = without(at.right, e)
	default:
		return joined(at.left, at.right)
	}
	at.update()
	return at
}

func joined(l, r *mark) *mark {
	switch {
	case l == nil:
		return r
	case r == nil:
		return l
	case l.heap > r.heap:
		l.right = joined(l.right, r)
		l.update()
		return l
	}
	r.left = joined(l, r.left)
	r.update()
	return r
}

// blended spreads an id over 64 bits.
func blended(id ID) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range id {
		h = (h ^ uint64(b)) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}
