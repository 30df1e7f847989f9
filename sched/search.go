package sched

import (
	"math"
	"slices"
	"strings"
)

// search yields the tasks a newcomer may take, or the agents, best first. Trees
// are opened as far as the next answer needs; it may be asked for another at any
// time.
type search struct {
	x        *index
	c        *Core // who asks, by whose rules
	n        *newcomer
	deciding bool
	cluster  string // of the newcomer's pool, when deciding
	want     want
	exact    bool // keys are made by the weight of the rules

	sources  []source
	heap     []open
	spots    []spot    // of beginOn
	need     Resources // of beginOn
	top      []Micro   // the best scores of tasks found, taken or not; see expect
	expected int
	floor    Micro // what scores less is not needed
	hand     open  // the best of those just found, if it has an entry
	classes  []judgedClass
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
	group          *group
	highest, above Milli // priorities: above < p ≤ highest
	now            Time  // 0 for tasks that have not begun
	want           shape
	byLabel        bool
	all            bool // from the forest of all pools: some of its pools are asked by themselves
	loose          bool // shapes say nothing
	vague          bool // of a class of earlier label rules: scores are upper bounds
}

// open is a subtree, or an entry, and the best score that may be there.
type open struct {
	score    Micro
	priority Milli
	start    Time
	e        *entry // the task, or the first below
	fork     *fork
	sub      *block
	source   int32
	settled  bool // an agent with several tasks, and the least of its scores
}

type judgedClass struct {
	*class
	byLabel, outranked, vague bool
}

const lowest = -maxPriority - 1

// begin begins a search among all that may be taken; only one is under way at a
// time.
func (x *index) begin(n *newcomer, deciding bool, cluster string, w want) *search {
	s := x.prepare(n, deciding, cluster, w)
	r := &s.c.rules
	home := x.pools[n.Pool]
	crossing := r.EnableCrossPoolPreemption || r.mayOutrank(n.Labels)
	if crossing && (len(x.pools) > 1 || home == nil) {
		as := source{highest: lowest, above: lowest}
		if r.EnableCrossPoolPreemption {
			as.highest = n.Priority - r.CrossPoolPriorityThreshold
		}
		safe := s.safePools()
		together := safe*8 <= x.all.n
		if together { // else most of what is there would be found in vain
			all := as
			all.all = true
			s.add(&x.all, all, false)
		}
		each := func(f *forest) {
			if f == home || f.n == 0 || !f.apart && together {
				return
			}
			if name := f.poolName(); !r.protected[name] && !s.limited(name) {
				s.add(f, as, false)
			}
		}
		if together {
			for _, f := range x.apart {
				each(f)
			}
		} else {
			for _, f := range x.pools {
				each(f)
			}
		}
		if home != nil && !home.apart && together && !s.limited(n.Pool) {
			// Most of its own pool's tasks are in the forest of all pools.
			s.add(home, source{highest: n.Priority - r.SamePoolPriorityThreshold, above: as.highest}, true)
			home = nil
		}
	}
	if home != nil && !s.limited(n.Pool) {
		s.add(home, source{highest: n.Priority - r.SamePoolPriorityThreshold, above: lowest}, false)
	}
	for i := range s.sources {
		if o, ok := s.judge(int32(i), &s.sources[i].group.top.sum); ok {
			o.fork = &s.sources[i].group.top
			s.heap = append(s.heap, o)
		}
	}
	s.heapify()
	return s
}

// beginOn begins a search among agents on some nodes, each with a want of its own.
// A node is opened when the best it may have comes up.
func (x *index) beginOn(n *newcomer, cluster string, spots []spot, need Resources) *search {
	s := x.prepare(n, true, cluster, want{kind: wantAll})
	s.spots, s.need = spots, need
	s.whole()
	for i := range spots {
		f := x.nodes[spots[i].node.ID]
		if f == nil {
			continue
		}
		if f.more {
			s.openNode(i)
			continue
		}
		lack := &spots[i].lack
		s.sources[0].want = shape{narrow(max(need.CPU, lack.CPU)), narrow(max(need.GPU, lack.GPU)), narrow(max(need.Memory, lack.Memory))}
		if o, ok := s.judge(0, &f.sum); ok {
			o.source = int32(-1 - i)
			s.up(o)
		}
	}
	return s
}

// whole makes the first source one that is good for all groups of a node.
func (s *search) whole() {
	src := source{group: &group{}, highest: s.highest(), above: lowest, now: s.n.now}
	if s.c.rules.mayOutrank(s.n.Labels) {
		src.highest, src.byLabel = maxPriority, true
	}
	s.wants(&src)
	s.sources = append(s.sources[:0], src)
	s.heap, s.hand = s.heap[:0], open{}
}

// highest is the priority up to which some pool's tasks may be taken by theirs.
func (s *search) highest() Milli {
	r := &s.c.rules
	if r.EnableCrossPoolPreemption {
		return s.n.Priority - min(r.SamePoolPriorityThreshold, r.CrossPoolPriorityThreshold)
	}
	return s.n.Priority - r.SamePoolPriorityThreshold
}

// addNode adds all that is on a node.
func (s *search) addNode(f *forest) { s.add(f, source{highest: s.highest(), above: lowest}, false) }

// open opens what was added.
func (s *search) open() {
	for i := range s.sources {
		if o, ok := s.judge(int32(i), &s.sources[i].group.top.sum); ok {
			o.fork = &s.sources[i].group.top
			s.push(o)
		}
	}
}

// openNode opens a node of beginOn.
func (s *search) openNode(i int) {
	s.want.Resources = s.need.Max(s.spots[i].lack)
	first := len(s.sources)
	s.addNode(s.x.nodes[s.spots[i].node.ID])
	for i := first; i < len(s.sources); i++ {
		if o, ok := s.judge(int32(i), &s.sources[i].group.top.sum); ok {
			o.fork = &s.sources[i].group.top
			s.push(o)
		}
	}
}

// some reports whether there is anything to take.
func (s *search) some() bool {
	kind := s.want.kind
	s.want.kind, s.floor = wantAnything, math.MinInt64
	s.heap, s.hand = s.heap[:0], open{}
	s.open()
	_, _, ok := s.next()
	s.want.kind = kind
	return ok
}

// most is how much all together give at most, of what is asked for; it looks no
// further once that is enough.
func (s *search) most(asked Resources) Resources {
	var sum [len(shape{})]int64
	var other Resources
	for i := range s.sources {
		src := &s.sources[i]
		for _, a := range asked.Other {
			if gives(src.group.others, a.Name) {
				other = other.With(a.Name, math.MaxInt64/4)
			}
		}
		s.sum(src, int32(i), &src.group.top, &sum, &asked)
	}
	other.CPU, other.GPU, other.Memory = sum[0], sum[1], sum[2]
	return other
}

func (s *search) sum(src *source, i int32, f *fork, sum *[len(shape{})]int64, asked *Resources) {
	if sum[0] >= asked.CPU && sum[1] >= asked.GPU && sum[2] >= asked.Memory {
		return
	}
	if _, ok := s.judge(i, &f.sum); !ok {
		return
	}
	switch {
	case f.sum.last <= src.highest && f.sum.priority > src.above && s.floor == math.MinInt64:
		f.sum.addTo(sum)
	case f.cell == nil:
		s.sum(src, i, &f.kids[0], sum, asked)
		s.sum(src, i, &f.kids[1], sum, asked)
	default:
		s.sumBlock(src, i, f.cell.root.sub, sum)
	}
}

// addTo adds up what is given; of amounts that were cut down, infinitely much.
func (b *branch) addTo(sum *[len(shape{})]int64) {
	for d := range sum {
		if b.most[d] == math.MaxInt32 {
			sum[d] = math.MaxInt64 / 4
		}
		sum[d] = min(sum[d]+b.sum[d], math.MaxInt64/4)
	}
}

func (s *search) sumBlock(src *source, i int32, b *block, sum *[len(shape{})]int64) {
	for j := range b.kids {
		k := &b.kids[j]
		if _, ok := s.judge(i, k); !ok {
			continue
		}
		if k.last <= src.highest && k.priority > src.above && s.floor == math.MinInt64 {
			k.addTo(sum)
			continue
		}
		s.sumBlock(src, i, k.sub, sum)
	}
	for j := range b.items {
		it := &b.items[j]
		if it.priority > src.highest {
			return
		}
		if _, ok := s.judgeItem(i, it); ok {
			b := it.summary(0)
			b.addTo(sum)
		}
	}
}

func (x *index) prepare(n *newcomer, deciding bool, cluster string, w want) *search {
	s := &x.search
	clear(s.heap)
	clear(s.sources)
	clear(s.classes)
	*s = search{x: x, c: n.core, n: n, deciding: deciding, cluster: cluster, want: w, floor: math.MinInt64,
		sources: s.sources[:0], heap: s.heap[:0], classes: s.classes[:0], top: s.top[:0]}
	x.asked++
	s.exact = x.weight == s.c.rules.RemainingTimeWeight
	return s
}

// limited reports whether a pool lost so many tasks lately that all are safe.
func (s *search) limited(pool string) bool {
	r := &s.c.rules
	return r.MaxPreemptionsPerMinute > 0 && s.c.pools[pool].Preempted >= r.MaxPreemptionsPerMinute
}

// safe reports whether nothing may be taken from the pool of an entry; most of the
// time that is known already.
func (s *search) safe(home *forest, e *entry) bool {
	if home.asked != s.x.asked {
		home.asked = s.x.asked
		name := e.task.Pool
		if e.inPool.seat {
			name = e.agent.Pool
		}
		home.safe = name != s.n.Pool && s.c.rules.protected[name] || s.limited(name)
	}
	return home.safe
}

// safePools is how many tasks the forest of all pools holds of such as the rules
// keep safe, or that are on their way out of it.
func (s *search) safePools() (tasks int) {
	x, r := s.x, &s.c.rules
	for _, f := range x.apart {
		if f.changing {
			tasks += f.n
		}
	}
	if s.c.live != nil {
		for name := range r.protected {
			if f := x.pools[name]; f != nil && !f.apart {
				tasks += f.n
			}
		}
	}
	if r.MaxPreemptionsPerMinute > 0 {
		for name := range s.c.hot {
			if f := x.pools[name]; f != nil && !f.apart && s.limited(name) {
				tasks += f.n
			}
		}
	}
	return tasks
}

// poolName is the pool a forest is of.
func (f *forest) poolName() string {
	g := f.list[0]
	e := g.top.sum.e
	if g.seat {
		return e.agent.Pool
	}
	return e.task.Pool
}

// add opens the groups of a forest. rest: those that outrank by label are
// elsewhere too.
func (s *search) add(f *forest, as source, rest bool) {
	r := &s.c.rules
	for _, g := range f.list {
		switch {
		case g.waiting && r.MinRuntimeSeconds > 0,
			s.deciding && (!g.takable || g.cluster != s.cluster),
			!s.deciding && g.seat,
			r.MaxPreemptionsPerTask > 0 && int(g.times) >= r.MaxPreemptionsPerTask && !g.seat:
			continue
		}
		k := s.judgeClass(g.class)
		src := as
		src.group, src.byLabel, src.vague = g, k.byLabel, k.vague
		switch {
		case k.byLabel:
			if src.highest = maxPriority; rest {
				continue
			}
		case k.outranked:
			continue
		}
		if src.highest <= src.above {
			continue
		}
		if !g.waiting {
			src.now = s.n.now
		}
		if !s.wants(&src) {
			continue
		}
		s.sources = append(s.sources, src)
	}
}

// expect says how many answers will be asked for: once so many are found, what
// scores less is not looked at. Only where all that is found can be taken.
func (s *search) expect(n int) {
	c, r := s.c, &s.c.rules
	_, live := c.tasks[s.n.ID]
	if n > 64 || live || c.live != nil || len(s.n.blocked) > 0 || len(s.n.taken) > 0 || len(s.x.restive) > 0 || len(s.want.Other) > 1 ||
		r.MaxPreemptionsPerMinute > 0 || r.MaxPreemptionsPerTask > countedTimes || r.SamePoolPriorityThreshold > r.CrossPoolPriorityThreshold ||
		max(s.want.CPU, s.want.GPU, s.want.Memory) >= math.MaxInt32 || len(s.want.Other) == 1 && s.want.Other[0].Value >= math.MaxInt32 {
		return
	}
	s.expected = n
}

// count notes the score of a task that can be taken.
func (s *search) count(score Micro) {
	if len(s.top) == s.expected && score <= s.floor {
		return
	}
	at := len(s.top)
	for at > 0 && s.top[at-1] < score {
		at--
	}
	if len(s.top) < s.expected {
		s.top = append(s.top, 0)
	}
	copy(s.top[at+1:], s.top[at:])
	s.top[at] = score
	if len(s.top) == s.expected {
		s.floor = s.top[s.expected-1]
	}
}

// wants says what a source has to give; false when it does not.
func (s *search) wants(src *source) bool {
	w := &s.want
	if w.kind == wantAnything {
		return true
	}
	src.want = shape{narrow(w.CPU), narrow(w.GPU), narrow(w.Memory)}
	first, _, _ := strings.Cut(src.group.others, "\x00")
	for _, a := range w.Other {
		switch {
		case a.Value <= 0:
		case a.Name == first:
			src.want[3] = narrow(a.Value)
		case gives(src.group.others, a.Name):
			src.loose = true
		case w.kind == wantAll:
			return false
		}
	}
	return true
}

// narrow asks for less from now on.
func (s *search) narrow(r Resources) {
	s.want.Resources = r
	for i := range s.sources {
		s.sources[i].loose = false
		s.wants(&s.sources[i])
	}
}

func (s *search) judgeClass(k *class) *judgedClass {
	for i := range s.classes {
		if s.classes[i].class == k {
			return &s.classes[i]
		}
	}
	r := &s.c.rules
	j := judgedClass{class: k}
	// One made by other rules may be told apart by these all the same.
	known := slices.IndexFunc(s.classes, func(o judgedClass) bool { return o.naming == k.naming })
	switch {
	case known >= 0:
		j.vague = s.classes[known].vague
	case k.naming != s.x.naming || s.c.live != nil:
		j.vague = !k.naming.covers(r.labels)
	}
	if j.vague {
		j.byLabel = r.mayOutrank(s.n.Labels)
	} else {
		_, _, _, j.byLabel = r.outranks(s.n.Labels, k.labels)
		if !j.byLabel {
			_, _, _, j.outranked = r.outranks(k.labels, s.n.Labels)
		}
	}
	s.classes = append(s.classes, j)
	return &s.classes[len(s.classes)-1]
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

// judge says how good the best of a subtree can be; false when nothing there can
// be taken, or is of interest.
func (s *search) judge(source int32, b *branch) (open, bool) {
	src := &s.sources[source]
	r := &s.c.rules
	if b.priority > src.highest || b.e == nil || !s.of(src, &b.most) ||
		r.MinRuntimeSeconds > 0 && s.n.now-b.oldest < Time(r.MinRuntimeSeconds) {
		return open{}, false
	}
	base := Micro(s.n.Priority-b.priority) * 1000
	time := Micro(r.RemainingTimeWeight) * Micro(max(b.end-src.now, 0))
	score := base + time
	if s.exact && b.weight == s.x.weight {
		score = max(base, Micro(s.n.Priority)*1000+b.key-Micro(b.weight)*Micro(src.now))
	}
	if src.byLabel {
		score = max(score, Micro(r.LabelPriorityThreshold)*1000+time)
	} else if score < r.leastScore {
		return open{}, false
	}
	if score < s.floor {
		return open{}, false
	}
	start := b.start
	if src.group.waiting {
		start = s.n.now
	}
	return open{score: score, priority: b.priority, start: start, e: b.e, source: source}, true
}

// judgeItem is judge for one task.
func (s *search) judgeItem(source int32, it *item) (open, bool) {
	src := &s.sources[source]
	r := &s.c.rules
	if it.priority <= src.above || !s.of(src, &it.gives) || r.MinRuntimeSeconds > 0 && s.n.now-it.start < Time(r.MinRuntimeSeconds) {
		return open{}, false
	}
	base := s.n.Priority - it.priority
	if src.byLabel {
		base = max(base, r.LabelPriorityThreshold)
	}
	score := Micro(base)*1000 + Micro(r.RemainingTimeWeight)*Micro(max(it.end-src.now, 0))
	if score < s.floor || score < r.leastScore && !src.byLabel {
		return open{}, false
	}
	if s.expected > 0 && !src.loose && !src.vague && !src.group.seat {
		s.count(score)
	}
	start := it.start
	if src.group.waiting {
		start = s.n.now
	}
	return open{score: score, priority: it.priority, start: start, e: it.e, source: source}, true
}

// of reports whether so much, or a part of it, may be of interest.
func (s *search) of(src *source, most *shape) bool {
	w := &src.want
	switch s.want.kind {
	case wantAll:
		return most[0] >= w[0] && most[1] >= w[1] && most[2] >= w[2] && most[3] >= w[3]
	case wantSome:
		return src.loose || w[0] > 0 && most[0] > 0 || w[1] > 0 && most[1] > 0 || w[2] > 0 && most[2] > 0 || w[3] > 0 && most[3] > 0
	}
	return true
}

// next returns the best task not seen yet; or, when deciding, the best agent, by
// the task that is worth the least.
func (s *search) next() (*Agent, Candidate, bool) {
	for {
		o, ok := s.pop()
		if !ok {
			return nil, Candidate{}, false
		}
		if o.fork != nil {
		} else if o.sub != nil {
			if len(o.sub.kids) == 0 {
			}
		} else {
		}
		switch {
		case o.source < 0:
			s.openNode(int(-1 - o.source))
			continue
		case o.fork != nil:
			s.branch(&o)
			continue
		case o.sub != nil:
			s.expand(&o)
			continue
		}
		src := &s.sources[o.source]
		e := o.e
		if home := e.inPool.in; src.all && home.apart || s.safe(home, e) || s.deciding && s.n.taken[e.agent.ID] {
			continue
		}
		if src.group.seat {
			var tally Tally
			v, ok := s.c.seat(s.n, e.agent.ID, s.cluster, &tally)
			if !ok {
				continue
			}
			if !o.settled {
				s.push(open{score: v.least.Score, priority: v.least.Priority, start: v.least.Start, source: o.source, settled: true,
					e: &entry{task: s.c.tasks[v.least.Task], agent: e.agent, inPool: e.inPool}})
				continue
			}
			return e.agent, v.least, true
		}
		v, safe := s.c.judge(s.n, e.task, e.task.Pool)
		if safe != "" {
			continue
		}
		if src.vague && v.Score < o.score {
			o.score = v.Score
			s.push(o)
			continue
		}
		return e.agent, v, true
	}
}

// branch opens a fork.
func (s *search) branch(o *open) {
	f := o.fork
	if f.cell != nil {
		s.expand(&open{sub: f.cell.root.sub, source: o.source})
		return
	}
	for i := range f.kids {
		if p, ok := s.judge(o.source, &f.kids[i].sum); ok {
			p.fork = &f.kids[i]
			s.push(p)
		}
	}
}

func (s *search) expand(o *open) {
	src := &s.sources[o.source]
	for i := range o.sub.kids {
		k := &o.sub.kids[i]
		if k.priority > src.highest {
			return
		}
		if i+1 < len(o.sub.kids) && o.sub.kids[i+1].priority <= src.above {
			continue
		}
		if p, ok := s.judge(o.source, k); ok {
			p.sub = k.sub
			s.push(p)
		}
	}
	for i := range o.sub.items {
		it := &o.sub.items[i]
		if it.priority > src.highest {
			return
		}
		if p, ok := s.judgeItem(o.source, it); ok {
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
	return o.closed() && !p.closed()
}

func (o *open) closed() bool { return o.fork != nil || o.sub != nil || o.source < 0 }
