package sched

import (
	"reflect"
	"slices"
)

// This file keeps the index in step with the policy, little by little: nothing
// may stop admissions. What is not in order yet, searches know of.

// pool returns the forest of a pool's tasks.
func (x *index) pool(name string) *forest {
	f := x.pools[name]
	if f == nil {
		f = &forest{}
		x.pools[name] = f
		x.weighPool(name, f)
		if f.home && f.apart { // it is empty: nothing to wait for
			x.join(f)
		}
	}
	return f
}

// weighPool decides whether a pool's tasks belong into the forest of all pools:
// not when it is protected, and not when it is so large that it is better asked
// by itself.
func (x *index) weighPool(name string, f *forest) {
	large := f.n >= x.core.sizes.apart && f.n >= len(x.entries)/4
	if !large && !f.home && f.n > 0 { // it stays apart until it is half of that
		large = f.n >= x.core.sizes.apart/2 && f.n >= len(x.entries)/8
	}
	home := !large && !x.core.rules.protected[name]
	if home == f.home && (home || f.apart) {
		return
	}
	f.home = home
	if !f.apart {
		f.apart = true
		x.apart = append(x.apart, f)
	}
	x.unsettle(f)
}

func (x *index) join(f *forest) {
	f.apart = false
	x.apart = slices.DeleteFunc(x.apart, func(o *forest) bool { return o == f })
}

func (x *index) unsettle(f *forest) {
	if !f.changing {
		f.changing = true
		x.restive = append(x.restive, f)
	}
}

// repolicy notes what a new policy changes. Thresholds and limits change
// nothing; pools that are protected now, or no more, stand apart until they have
// moved; with label rules that speak of other values tasks get other classes, and
// until then count as what they might be; another weight makes searches look at
// more until keys are made by it.
func (c *Core) repolicy(old *rules) {
	x := c.index
	if x == nil {
		return
	}
	if x.weight != c.rules.RemainingTimeWeight {
		x.weight = c.rules.RemainingTimeWeight
		x.reweigh = append(x.reweigh[:0], &x.all)
		for _, f := range x.pools {
			x.reweigh = append(x.reweigh, f)
		}
		for _, f := range x.nodes {
			x.reweigh = append(x.reweigh, f)
		}
	}
	renamed := !x.naming.covers(c.rules.labels)
	if renamed {
		x.naming = &naming{c.rules.labels}
		x.classes = map[string]*class{}
	}
	if renamed || !reflect.DeepEqual(old.protected, c.rules.protected) {
		for name, f := range x.pools {
			x.weighPool(name, f)
			if renamed {
				x.unsettle(f)
			}
		}
	}
}

// Units of what step does: making a leaf's keys is quick, a task's move is not.
const (
	leafCost = 1
	moveCost = 16
)

// step does so much of what a change of the policy has left to do.
func (x *index) step(most int) {
	for len(x.restive) > 0 && most > 0 {
		f := x.restive[0]
		at := slices.IndexFunc(f.list, func(g *group) bool { return g.class.naming != x.naming || g.home != f.home })
		if at < 0 {
			x.restive = x.restive[1:]
			f.changing = false
			if f.home && f.apart {
				x.join(f)
			}
			continue
		}
		some := f.list[at].some()
		for _, e := range some {
			if e.inPool.seat {
				x.look(e.agent.ID)
			} else {
				x.place(e.task.ID)
			}
		}
		most -= len(some) * moveCost
	}
	for len(x.reweigh) > 0 && most > 0 {
		last := len(x.reweigh) - 1
		f, done := x.reweigh[last], true
		for _, g := range f.list {
			done = g.top.reweigh(x.weight, &most) && done
		}
		if done {
			f.sum, f.more = f.total()
			x.reweigh = x.reweigh[:last]
		}
	}
	if len(x.restive) == 0 {
		x.restive = nil
	}
}

// some are the tasks of one leaf.
func (g *group) some() []*entry {
	f := &g.top
	for f.cell == nil {
		f = &f.kids[0]
	}
	b := f.cell.root.sub
	for b.kids != nil {
		b = b.kids[0].sub
	}
	out := make([]*entry, len(b.items))
	for i := range b.items {
		out[i] = b.items[i].e
	}
	return out
}

// reweigh makes keys by a weight, as long as most lasts.
func (f *fork) reweigh(weight Milli, most *int) bool {
	if f.sum.weight == weight {
		return true
	}
	if *most <= 0 {
		return false
	}
	done := true
	if f.cell != nil {
		*most -= leafCost * f.cell.root.reweigh(weight, *most/leafCost)
		done = f.cell.root.weight == weight || f.cell.n == 0
	} else {
		lo := f.kids[0].reweigh(weight, most)
		done = f.kids[1].reweigh(weight, most) && lo
	}
	f.sum = f.total()
	return done
}
