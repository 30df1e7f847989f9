package sched

import (
	"container/heap"
	"fmt"
	"iter"
)

// RoomReserved: there is room, but a task that waits in front counts on it.
const RoomReserved Code = "room_reserved"

// Waiting is a task in line.
type Waiting struct {
	ID       ID
	Priority Milli
	Since    Time // when it was submitted
	Request  Resources
}

// Line is the queue of one pool: higher priority first, then who waits longest.
// With an ageing weight, priority grows while a task waits, for all at the same
// pace: who is in front of whom never changes by itself. The zero value is empty;
// its calls take O(log n), but for SetAgeing and All.
type Line struct {
	ageing Milli // priority per minute
	tree   order
}

// SetAgeing says how much priority a task gains for each minute it waits.
func (l *Line) SetAgeing(weight Milli) {
	if weight == l.ageing {
		return
	}
	l.ageing = weight
	old := l.tree
	l.tree = order{}
	for e := range old.all() {
		l.Put(Waiting{e.id, e.priority, Time(e.then), e.amount})
	}
}

// standing orders the line: what a task's priority comes to, less the share of
// time, which is the same for all. Lower is in front.
func (l *Line) standing(w Waiting) int64 {
	return int64(l.ageing)*int64(min(max(w.Since, 0), maxStart))/60_000 - int64(bounded(w.Priority))
}

// Put adds a task, or moves it to where it now belongs.
func (l *Line) Put(w Waiting) {
	l.tree.put(&mark{id: w.ID, key: l.standing(w), then: int64(w.Since), amount: w.Request, priority: w.Priority})
}

// Remove takes a task out; unknown ones are ignored.
func (l *Line) Remove(id ID) { l.tree.remove(id) }

// Len is how many wait.
func (l *Line) Len() int { return l.tree.root.count() }

// Head is who is next.
func (l *Line) Head() (ID, bool) {
	if e := l.tree.first(); e != nil {
		return e.id, true
	}
	return ID{}, false
}

// Position is 1 for the head, 0 for a task that is not in line.
func (l *Line) Position(id ID) int {
	if e := l.tree.by[id]; e != nil {
		return l.tree.before(e) + 1
	}
	return 0
}

// Leads reports whether a newcomer would be in front of everybody.
func (l *Line) Leads(w Waiting) bool {
	e := l.tree.first()
	return e == nil || (&mark{id: w.ID, key: l.standing(w), then: int64(w.Since)}).compare(e) < 0
}

// All yields who waits, in order.
func (l *Line) All() iter.Seq[ID] {
	return func(yield func(ID) bool) {
		for e := range l.tree.all() {
			if !yield(e.id) {
				return
			}
		}
	}
}

// Fits reports whether a request has quota in a pool, and room on a node, as things are.
func (c *Core) Fits(pool string, request Resources) bool {
	p, ok := c.pools[pool]
	if !ok {
		return false
	}
	_, fits := c.fits(request.Positive(), &p, "")
	return fits
}

// Ends is what is known of when things end. Entries are what estimates say;
// what has no estimate is in neither agenda.
type Ends struct {
	// Quota of the pool that comes free.
	Quota *Agenda
	// Borrowed is what the pool has of others: what comes free goes back first.
	Borrowed Resources
	// Room of a node that comes free; nil when nothing is known of it. Without the
	// function nodes do not matter.
	Room func(NodeID) *Agenda
}

// Reservation is what the head of a line counts on. Nobody behind it may start
// if that could make it wait longer; see Backfill.
type Reservation struct {
	// Known says that estimates tell when there will be room: At, now or later.
	Known bool
	At    Time
	// Node is where, "" when that is open or the cluster has no known nodes.
	Node NodeID

	pool  string
	quota *Agenda
	spare Resources // quota of the pool that others may use for as long as they like
	rooms []spareRoom
}

type spareRoom struct {
	node  *Node
	spare Resources
}

// Reserve says when and where a task that does not fit will, going by when what
// runs is expected to end. Estimates in the past count as ending any moment.
func (c *Core) Reserve(head Incoming, ends Ends, now Time) *Reservation {
	request := head.Request.Positive()
	pool := c.pools[head.Pool]
	r := &Reservation{Known: true, At: now, pool: head.Pool, quota: ends.Quota, spare: spared(pool.Free, request)}
	if !pool.Free.Covers(request) {
		own := pool.Free.Sub(ends.Borrowed)
		at, sum, ok := ends.Quota.covering(own, request)
		if r.Known = ok; ok {
			r.At = max(now, at)
			r.spare = spared(own.Add(sum), request)
		}
	}
	nodes := c.places(&pool, head.Rooms)
	if len(nodes) == 0 || ends.Room == nil {
		return r
	}
	var best *Node
	var bestAt Time
	var bestRoom Resources
	var large []*Node
	for _, n := range nodes {
		if n.Held || !n.Room.Covers(request) && !n.Total.Covers(request) {
			continue
		}
		large = append(large, n)
		at, room := now, n.Room
		if !n.Room.Covers(request) {
			agenda := ends.Room(n.ID)
			if agenda == nil {
				continue
			}
			when, sum, ok := agenda.covering(n.Room, request)
			if !ok {
				continue
			}
			at, room = max(now, when), n.Room.Add(sum)
		}
		if best == nil || at < bestAt {
			best, bestAt, bestRoom = n, at, room
		}
	}
	if best == nil { // nobody knows where: it must not get worse anywhere
		r.Known = false
		for _, n := range large {
			r.rooms = append(r.rooms, spareRoom{n, spared(n.Room, request)})
		}
		return r
	}
	r.Node, r.At = best.ID, max(r.At, bestAt)
	r.rooms = []spareRoom{{best, spared(bestRoom, request)}}
	return r
}

// spared is what is left of have for others. Where have falls short of want,
// that is nothing; of what nobody asks for it is all.
func spared(have, want Resources) Resources {
	return zip(have, want, func(have, want int64) int64 {
		if want <= 0 {
			return have
		}
		return max(have-want, 0)
	})
}

// Backfill decides about a task that is not at the head of its pool's line: it
// starts only if the head cannot be delayed by that. Either it is expected to
// end (end; 0 = nobody knows) before the head's room is there, or it uses only
// what is spare then. It may preempt, but nobody whose end the head counts on.
// For whom room is kept is said by name.
func (c *Core) Backfill(in Incoming, end Time, r *Reservation, name string, now Time) Decision {
	d := c.Decide(in, now)
	if d.Outcome == Refuse || r.Known && end != 0 && end <= r.At {
		return d
	}
	c.within(r, func() { d = c.Decide(in, now) })
	if d.Outcome == Admit || d.Outcome == Preempt && !r.countsOn(d.Victims) {
		return d
	}
	return refuse(r.refusal(in.Request.Positive(), name, now))
}

// maxBackfill is how many of those behind the head are looked at each time.
const maxBackfill = 100

// BackfillLine lets those behind the head of a pool's line start that fit now. start
// decides about one of them by Backfill, under what the head counts on by then, and
// reports whether it started. may leaves out who cannot start by itself.
func (c *Core) BackfillLine(pool string, l *Line, may func(ID) bool, reserve func() *Reservation, start func(ID, *Reservation) bool) {
	if l.Len() < 2 || c.pools[pool].Free.Positive().IsZero() {
		return
	}
	var fit []*mark // chosen before one starts: that takes it out of the line
	seen := 0
	for e := range l.tree.all() {
		if seen++; seen > 1+maxBackfill {
			break
		}
		if seen > 1 && may(e.id) && c.Fits(pool, e.amount) {
			fit = append(fit, e)
		}
	}
	var kept *Reservation
	for _, e := range fit {
		if !c.Fits(pool, e.amount) {
			continue
		}
		if kept == nil {
			kept = reserve()
		}
		if start(e.id, kept) {
			kept = nil
		}
	}
}

// BackfillGang is Backfill for a gang. end is when the last of it is expected to end.
func (c *Core) BackfillGang(in []Incoming, end Time, r *Reservation, name string, now Time) Gang {
	g := c.DecideGang(in, now)
	if g.Outcome == Refuse || r.Known && end != 0 && end <= r.At {
		return g
	}
	c.within(r, func() { g = c.DecideGang(in, now) })
	var victims []Victim
	for _, v := range g.Victims {
		victims = append(victims, v.Victim)
	}
	if g.Outcome == Admit || g.Outcome == Preempt && !r.countsOn(victims) {
		return g
	}
	var all Resources
	for _, n := range in {
		all = all.Add(n.Request.Positive())
	}
	return Gang{Outcome: Refuse, Refused: len(in) - 1, Refusal: r.refusal(all, name, now)}
}

// within asks something as if only what is spare were free.
func (c *Core) within(r *Reservation, ask func()) {
	pool := c.pools[r.pool]
	narrow := pool
	narrow.Free = pool.Free.Min(r.spare)
	c.pools[r.pool] = narrow
	rooms := make([]Resources, len(r.rooms))
	for i, s := range r.rooms {
		rooms[i] = s.node.Room
		s.node.Room = s.node.Room.Min(s.spare)
	}
	ask()
	c.pools[r.pool] = pool
	for i, s := range r.rooms {
		s.node.Room = rooms[i]
	}
}

func (r *Reservation) refusal(request Resources, name string, now Time) Refusal {
	when := "when is not known"
	if r.Known {
		when = "it starts in about " + seconds(max(r.At-now, 0)) + " s"
	}
	return Refusal{Code: RoomReserved, Short: request,
		Message: fmt.Sprintf("needs %v; what is free in pool %s is kept for %s, which waits in front of it (%s)", request, r.pool, name, when)}
}

// countsOn reports whether the head waits for one of these to end.
func (r *Reservation) countsOn(victims []Victim) bool {
	for _, v := range victims {
		if at, ok := r.quota.At(v.Agent); ok && r.Known && at <= r.At {
			return true
		}
		for _, s := range r.rooms {
			if r.Known && v.Node == s.node.ID && v.Node == r.Node {
				return true
			}
		}
	}
	return false
}

// Expected is a task in line, and how long it will run.
type Expected struct {
	Request  Resources
	Duration Time // 0 = nobody knows
}

// Forecast says when tasks in line will start if everything ends as estimated and
// they start in their order; 0 = cannot be known. It looks at quota alone.
func Forecast(free Resources, ends Ends, line []Expected, now Time) []Time {
	out := make([]Time, len(line))
	free = free.Sub(ends.Borrowed)
	next, stop := iter.Pull2(ends.Quota.All())
	defer stop()
	at, amount, more := next()
	var started finishes
	t := now
	for i, w := range line {
		request := w.Request.Positive()
		for !free.Covers(request) {
			switch {
			case more && (len(started) == 0 || at <= started[0].at):
				t, free = max(t, at), free.Add(amount)
				at, amount, more = next()
			case len(started) > 0:
				f := heap.Pop(&started).(finish)
				t, free = max(t, f.at), free.Add(f.amount)
			default:
				return out
			}
		}
		out[i] = t
		free = free.Sub(request)
		if w.Duration > 0 {
			heap.Push(&started, finish{t + w.Duration, request})
		}
	}
	return out
}

type finish struct {
	at     Time
	amount Resources
}

type finishes []finish

func (f finishes) Len() int           { return len(f) }
func (f finishes) Less(i, j int) bool { return f[i].at < f[j].at }
func (f finishes) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *finishes) Push(x any)        { *f = append(*f, x.(finish)) }
func (f *finishes) Pop() any {
	old := *f
	x := old[len(old)-1]
	*f = old[:len(old)-1]
	return x
}
