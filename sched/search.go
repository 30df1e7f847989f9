package sched

import (
	"slices"
	"strings"
)

// search yields the tasks a newcomer may take, best first. Trees are opened as
// far as the next answer needs; it may be asked for another at any time.
type search struct {
	x        *index
	n        *newcomer
	deciding bool
	cluster  string // of the newcomer's pool, when deciding
	want     want

	sources []source
	heap    []open
	left    int // how many more may be looked at in vain
	spent   bool
}

// want is what an agent has to give to be of interest.
type want struct {
	kind wantKind
	Resources
}

type wantKind int

const (
	wantAnything wantKind = iota
	wantAll               // at least all of it
	wantSome              // something of it
)

// source is what holds for all tasks of a group.
type source struct {
	highest Milli // priority
	byLabel bool
	waiting bool
	all     bool // from the forest of all pools: the newcomer's own is elsewhere
	loose   bool // shapes say nothing
	vague   bool // of a class of earlier label rules: scores are upper bounds
}

// open is a subtree, or a task, and the best score that may be there.
type open struct {
	score    Micro
	priority Milli
	start    Time
	sub      *block
	e        *entry // the task, or the first below
	source   int32
}

// search begins one; only one is under way at a time.
func (x *index) begin(n *newcomer, deciding bool, cluster string, w want) *search {
	s := &x.search
	clear(s.heap)
	*s = search{x: x, n: n, deciding: deciding, cluster: cluster, want: w, sources: s.sources[:0], heap: s.heap[:0],
		left: x.core.sizes.vain + len(x.entries)/32}
	c := x.core
	r := &c.rules
	limited := func(pool string) bool {
		return r.MaxPreemptionsPerMinute > 0 && c.pools[pool].Preempted >= r.MaxPreemptionsPerMinute
	}
	others := true
	if r.MaxPreemptionsPerMinute > 0 {
		others = false
		for name := range x.pools {
			if name != n.Pool && !limited(name) {
				others = true
				break
			}
		}
	}
	if others && (r.EnableCrossPoolPreemption || len(r.labels) > 0) && (len(x.pools) > 1 || x.pools[n.Pool] == nil) {
		s.add(&x.all, true)
	}
	if own := x.pools[n.Pool]; own != nil && !limited(n.Pool) {
		s.add(own, false)
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
	return s
}

func (s *search) add(f *forest, all bool) {
	r := &s.x.core.rules
	var last *class
	var byLabel, outranked bool
	for _, g := range f.list {
		if g.fresh || g.waiting && r.MinRuntimeSeconds > 0 || s.deciding && (!g.takable || g.cluster != s.cluster) {
			continue
		}
		vague := g.class.rules != s.x.rules
		switch {
		case vague:
			last, byLabel, outranked = nil, r.mayOutrank(s.n.Labels), false
		case g.class != last:
			last = g.class
			_, _, _, byLabel = r.outranks(s.n.Labels, last.labels)
			_, _, _, outranked = r.outranks(last.labels, s.n.Labels)
		}
		src := source{byLabel: byLabel, waiting: g.waiting, all: all, vague: vague}
		switch {
		case byLabel:
			src.highest = maxPriority
		case outranked || all && !r.EnableCrossPoolPreemption:
			continue
		case all:
			src.highest = s.n.Priority - r.CrossPoolPriorityThreshold
		default:
			src.highest = s.n.Priority - r.SamePoolPriorityThreshold
		}
		switch s.want.kind {
		case wantAll:
			if slices.ContainsFunc(s.want.Other, func(a Amount) bool { return !gives(g.others, a.Name) }) {
				continue
			}
		case wantSome:
			src.loose = slices.ContainsFunc(s.want.Other, func(a Amount) bool { return gives(g.others, a.Name) })
		}
		s.sources = append(s.sources, src)
		for _, c := range g.cells {
			if c.n > 0 {
				if o, ok := s.judge(int32(len(s.sources)-1), c.root.priority, c.root.start, c.root.end, &c.root.most); ok {
					o.sub, o.e = c.root.sub, c.root.e
					s.heap = append(s.heap, o)
				}
			}
		}
	}
}

// gives looks for a name among those of a groupKey.
func gives(others, name string) bool {
	for others != "" {
		next, rest, _ := strings.Cut(others, "\x00")
		if next == name {
			return true
		}
		others = rest
	}
	return false
}

// judge says how good a task may be of that priority or worse, that end or an
// earlier one, and that gives as much or less.
func (s *search) judge(source int32, priority Milli, start, end Time, most *shape) (open, bool) {
	src := &s.sources[source]
	if priority > src.highest || !s.of(src, most) {
		return open{}, false
	}
	r := &s.x.core.rules
	remaining := end
	if src.waiting {
		start = s.n.now
	} else {
		remaining = max(end-s.n.now, 0)
	}
	base := s.n.Priority - priority
	if src.byLabel {
		base = max(base, r.LabelPriorityThreshold)
	}
	score := Micro(base)*1000 + Micro(r.RemainingTimeWeight)*Micro(remaining)
	if score < r.leastScore && !src.byLabel {
		return open{}, false
	}
	return open{score: score, priority: priority, start: start, source: source}, true
}

// of reports whether so much, or a part of it, may be of interest.
func (s *search) of(src *source, most *shape) bool {
	w := &s.want
	switch {
	case w.kind == wantAll:
		return most[0] >= w.CPU && most[1] >= w.GPU && most[2] >= w.Memory
	case w.kind == wantSome && !src.loose:
		return w.CPU > 0 && most[0] > 0 || w.GPU > 0 && most[1] > 0 || w.Memory > 0 && most[2] > 0
	}
	return true
}

// next returns the best task not seen yet. spent tells whether the search gave
// up because so many were looked at in vain that a scan is as good.
func (s *search) next() (*entry, Candidate, bool) {
	for len(s.heap) > 0 {
		o := s.pop()
		if o.sub != nil {
			s.expand(&o)
			continue
		}
		src := &s.sources[o.source]
		if s.deciding {
			if s.n.taken[o.e.agent.ID] {
				s.vain()
				continue
			}
			g := &o.e.agent.Gives
			switch s.want.kind {
			case wantAll:
				if len(s.want.Other) > 0 && !g.Covers(s.want.Resources) {
					s.vain()
					continue
				}
			case wantSome:
				if !g.Intersects(s.want.Resources) {
					s.vain()
					continue
				}
			}
		}
		if src.all && o.e.pool == s.n.Pool {
			s.vain()
			continue
		}
		if v, safe := s.x.core.judge(s.n, o.e.task, o.e.pool); safe == "" {
			if src.vague && v.Score < o.score {
				o.score = v.Score
				s.push(o)
				continue
			}
			return o.e, v, true
		}
		s.vain()
	}
	return nil, Candidate{}, false
}

func (s *search) vain() {
	if s.left--; s.left < 0 {
		s.heap, s.spent = s.heap[:0], true
	}
}

func (s *search) expand(o *open) {
	for i := range o.sub.kids {
		k := &o.sub.kids[i]
		if k.priority > s.sources[o.source].highest {
			return
		}
		if p, ok := s.judge(o.source, k.priority, k.start, k.end, &k.most); ok {
			p.sub, p.e = k.sub, k.e
			s.push(p)
		}
	}
	for i := range o.sub.items {
		it := &o.sub.items[i]
		if it.priority > s.sources[o.source].highest {
			return
		}
		if p, ok := s.judge(o.source, it.priority, it.start, it.end, &it.gives); ok {
			p.e = it.e
			s.push(p)
		}
	}
}

// before orders as Candidate.compare does; a subtree comes before the task that
// is its first, so that a task is only taken when nothing closed can be better.
func (o *open) before(p *open) bool {
	switch {
	case o.score != p.score:
		return o.score > p.score
	case o.priority != p.priority:
		return o.priority < p.priority
	case o.start != p.start:
		return o.start > p.start
	case o.e != p.e:
		return compareKeys(0, 0, o.e, 0, 0, p.e) < 0
	}
	return o.sub != nil && p.sub == nil
}

func (s *search) push(o open) {
	s.heap = append(s.heap, o)
	h, i := s.heap, len(s.heap)-1
	for i > 0 {
		up := (i - 1) / 2
		if !o.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = o
}

func (s *search) pop() open {
	top := s.heap[0]
	last := len(s.heap) - 1
	s.heap[0] = s.heap[last]
	s.heap[last] = open{}
	s.heap = s.heap[:last]
	if last > 0 {
		s.down(0)
	}
	return top
}

func (s *search) down(i int) {
	h := s.heap
	o := h[i]
	for {
		kid := 2*i + 1
		if kid >= len(h) {
			break
		}
		if kid+1 < len(h) && h[kid+1].before(&h[kid]) {
			kid++
		}
		if !h[kid].before(&o) {
			break
		}
		h[i] = h[kid]
		i = kid
	}
	h[i] = o
}

// candidates is Candidates by the index, with a limit; false when a scan is as good.
func (x *index) candidates(n *newcomer, limit int) ([]Candidate, bool) {
	out := make([]Candidate, 0, min(limit, len(x.entries)))
	s := x.begin(n, false, "", want{})
	for len(out) < limit {
		_, v, ok := s.next()
		if !ok {
			break
		}
		v.AgentName = x.core.agentName(v.Agent)
		out = append(out, v)
	}
	if len(out) == 0 {
		out = nil
	}
	return out, !s.spent
}
