package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// States of a Hold.
const (
	Held     = "held"     // nothing starts; what runs goes on
	Draining = "draining" // nothing starts, and at the deadline what still runs is taken
)

// reasonDrained is the reason of a preemption for nobody's gain, and the code of who was preempted so.
const reasonDrained = "drained"

// Hold says that nothing may start in a pool, or on a node. The zero value says that it may.
type Hold struct {
	State    string // "", Held or Draining
	Reason   string
	Actor    string
	Since    time.Time
	Deadline time.Time // of a drain; zero: what runs ends by itself
}

// HoldRequest holds, drains or, with an empty State, resumes a pool or a node.
type HoldRequest struct {
	State    string
	Reason   string
	Deadline *time.Duration // from now; only of a drain
	Actor    string
}

func (h *HoldRequest) check() error {
	if err := clean("reason", h.Reason, 1000); err != nil {
		return err
	}
	if h.Deadline != nil && (*h.Deadline < 0 || *h.Deadline > 366*24*time.Hour) {
		return invalid("deadline", "is %s: give seconds from now, from 0 to a year", *h.Deadline)
	}
	return nil
}

type hold struct {
	state, reason, actor string
	since, until         time.Time
}

func (h hold) on() bool { return h.state != "" }

// over reports whether what still runs there must go.
func (h hold) over(now time.Time) bool {
	return h.state == Draining && !h.until.IsZero() && !now.Before(h.until)
}

func (h hold) public() Hold { return Hold{h.state, h.reason, h.actor, h.since, h.until} }

// sentence says who holds what, and why.
func (h hold) sentence(what string) string {
	s := what + " is " + map[string]string{Held: "held", Draining: "being drained"}[h.state]
	if h.actor != "" {
		s += " by " + h.actor
	}
	if h.reason != "" {
		s += " (" + h.reason + ")"
	}
	return s + ": nothing starts there until it is resumed"
}

// next is the hold that a request makes of this one.
func (h hold) next(r HoldRequest, what string, now time.Time) (hold, error) {
	if r.State == "" {
		if !h.on() {
			return h, refuse(ErrWrongState, "%s is not held: there is nothing to resume", what)
		}
		return hold{}, nil
	}
	n := hold{state: r.State, reason: r.Reason, actor: r.Actor, since: now}
	if h.on() {
		n.since = h.since
	}
	if r.Deadline != nil && r.State == Draining {
		n.until = now.Add(*r.Deadline)
	}
	return n, nil
}

// said describes a change, as a type of event and a sentence.
func (h hold) said(kind, name, actor string, now time.Time) (typ, words string) {
	subject := strings.ToUpper(kind[:1]) + kind[1:] + " " + name
	switch {
	case !h.on():
		return kind + ".resumed", subject + " starts tasks again"
	case h.state == Held:
		typ, words = kind+".held", subject+" is held: nothing starts there"
	case h.until.IsZero():
		typ, words = kind+".draining", subject+" is drained: nothing starts there, what runs may end by itself"
	default:
		typ, words = kind+".draining", fmt.Sprintf("%s is drained: nothing starts there, and what still runs in %s is taken", subject, h.until.Sub(now).Round(time.Second))
	}
	if h.reason != "" {
		words += " (" + h.reason + ")"
	}
	return typ, words
}

// HoldPool holds, drains or resumes a pool. Holding one that is held replaces reason
// and deadline; resuming one that is not is refused with wrong_state.
func (l *Ledger) HoldPool(ctx context.Context, ns, name string, r HoldRequest) (Pool, error) {
	if err := r.check(); err != nil {
		return Pool{}, err
	}
	err := l.find(ctx, &call{plan: poolOf(ns, name), do: func(b *batch) error {
		p, err := b.openPool(ns, name)
		if err != nil {
			return err
		}
		next, err := p.hold.next(r, "pool "+name, b.now)
		if err != nil {
			return err
		}
		b.touchPool(p)
		p.hold = next
		u := dbgen.HoldPoolParams{ID: p.id, Hold: next.state, HoldReason: next.reason, HoldActor: next.actor, HeldAt: orNil(next.since), DrainUntil: orNil(next.until)}
		b.writes = append(b.writes, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error { return q.HoldPool(ctx, u) }))
		typ, words := next.said("pool", name, r.Actor, b.now)
		b.poolEvent(p, typ, r.Actor, words)
		b.freed(p)
		return nil
	}}, l.wherePool(ctx, ns, name))
	if err != nil {
		return Pool{}, err
	}
	return l.Pool(ctx, ns, name)
}

// Node is a machine as people read it.
type Node struct {
	ID      sched.NodeID
	Cluster string
	Total   sched.Resources
	Free    sched.Resources // of its room; never negative
	Agents  int             // of ours, on it or on their way there
	Known   bool            // false: held, but not in its cluster now
	Hold    Hold
}

// Nodes lists the machines of all clusters, by cluster and id.
func (l *Ledger) Nodes(ctx context.Context) ([]Node, error) {
	var out []Node
	err := l.lane.look(ctx, func(b *book) {
		on := map[sched.NodeID]int{}
		for _, r := range b.rows {
			if r.onAgent() {
				on[r.node]++
			}
		}
		for id, t := range b.total {
			node, _ := b.nodes.Get(id)
			out = append(out, Node{ID: id, Cluster: t.cluster, Total: t.total, Free: node.Room.Positive(), Agents: on[id], Known: true,
				Hold: b.holds[nodeKey{t.cluster, id}].public()})
		}
		for k, h := range b.holds {
			if t, known := b.total[k.id]; !known || t.cluster != k.cluster {
				out = append(out, Node{ID: k.id, Cluster: k.cluster, Agents: on[k.id], Hold: h.public()})
			}
		}
	})
	slices.SortFunc(out, func(a, b Node) int {
		if c := strings.Compare(a.Cluster, b.Cluster); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	return out, err
}

// HoldNode holds, drains or resumes a machine. Other servers follow within seconds.
func (l *Ledger) HoldNode(ctx context.Context, id sched.NodeID, r HoldRequest) (Node, error) {
	if err := r.check(); err != nil {
		return Node{}, err
	}
	var key nodeKey
	err := l.lane.submit(ctx, &call{plan: func(*book) []*pool { return nil }, do: func(b *batch) error {
		key = nodeKey{id: id}
		if t, known := b.total[id]; known {
			key.cluster = t.cluster
		} else {
			for k := range b.holds {
				if k.id == id {
					key = k
				}
			}
		}
		if key.cluster == "" {
			return refuse(ErrUnknownNode, "no cluster has a node %q: GET /nodes lists them", id)
		}
		next, err := b.holds[key].next(r, "node "+string(id), b.now)
		if err != nil {
			return err
		}
		b.writes = append(b.writes, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error {
			if !next.on() {
				return q.ResumeNode(ctx, dbgen.ResumeNodeParams{Cluster: key.cluster, NodeID: string(id)})
			}
			return q.HoldNode(ctx, dbgen.HoldNodeParams{Cluster: key.cluster, NodeID: string(id), Hold: next.state, HoldReason: next.reason,
				HoldActor: next.actor, HeldAt: next.since, DrainUntil: orNil(next.until)})
		}))
		typ, words := next.said("node", string(id), r.Actor, b.now)
		for _, s := range b.spaces {
			for _, p := range s.pools {
				if p.cluster == key.cluster {
					b.events = append(b.events, Event{At: b.now, Namespace: s.name, Type: typ, Actor: r.Actor, Message: words, PolicyVersion: s.policyVersion})
					break
				}
			}
		}
		b.then = append(b.then, func() { b.holdNode(key, next) })
		return nil
	}})
	if err != nil {
		return Node{}, err
	}
	l.news.changed()
	if r.State == "" {
		if err := l.moveQueues(ctx, key.cluster); err != nil {
			return Node{}, err
		}
	}
	all, err := l.Nodes(ctx)
	if err != nil {
		return Node{}, err
	}
	if at := slices.IndexFunc(all, func(n Node) bool { return n.ID == id && n.Cluster == key.cluster }); at >= 0 {
		return all[at], nil
	}
	return Node{ID: id, Cluster: key.cluster}, nil // it is gone, and so is its hold
}

// moveQueues lets all lines of a cluster move.
func (l *Ledger) moveQueues(ctx context.Context, cluster string) error {
	return l.lane.submit(ctx, &call{plan: queuesOf(cluster), do: func(b *batch) error { b.freedOn(cluster); return nil }})
}

// queuesOf plans for the pools of a cluster in which somebody waits.
func queuesOf(cluster string) func(*book) []*pool {
	return func(b *book) []*pool {
		var out []*pool
		for _, p := range b.pools {
			if p.cluster == cluster && p.line.Len() > 0 {
				out = append(out, p)
			}
		}
		return out
	}
}

func (b *batch) freedOn(cluster string) {
	for _, p := range b.pools {
		if p.cluster == cluster && b.locked[p.id] {
			b.freed(p)
		}
	}
}

func (b *book) holdNode(k nodeKey, h hold) {
	if h.on() {
		b.holds[k] = h
	} else {
		delete(b.holds, k)
	}
	if n, known := b.nodes.Get(k.id); known && n.Cluster == k.cluster && n.Held != h.on() {
		n.Held = h.on()
		b.nodes.Put(n)
		for _, p := range b.pools {
			if p.cluster == k.cluster && len(p.groups) > 0 {
				b.syncGroups(p)
			}
		}
	}
}

// loadHolds reads which nodes are held. Only a lane may call it.
func (l *lane) loadHolds(ctx context.Context, q *dbgen.Queries) error {
	rows, err := q.HeldNodes(ctx)
	if err != nil {
		return err
	}
	now := map[nodeKey]hold{}
	for _, r := range rows {
		now[nodeKey{r.Cluster, sched.NodeID(r.NodeID)}] = hold{r.Hold, r.HoldReason, r.HoldActor, r.HeldAt, orZero(r.DrainUntil)}
	}
	for k := range l.book.holds {
		if _, still := now[k]; !still {
			l.book.holdNode(k, hold{})
		}
	}
	for k, h := range now {
		l.book.holdNode(k, h)
	}
	return nil
}

// drainOf is the drain a row's agent must make way for now.
func (b *book) drainOf(r *row, now time.Time) (h hold, what string) {
	if r.pool == nil {
		return hold{}, ""
	}
	if r.pool.hold.over(now) {
		return r.pool.hold, "pool " + r.poolName
	}
	if h := b.holds[nodeKey{r.pool.cluster, r.node}]; h.over(now) {
		return h, "node " + string(r.node)
	}
	return hold{}, ""
}

// overstayed lists agents that sit where a drain's deadline has passed.
func (b *book) overstayed(now time.Time) (out []sched.ID) {
	note := func(r *row) {
		if r.onAgent() && r.settled() && len(out) < maxBatch {
			out = append(out, r.uid)
		}
	}
	for _, p := range b.pools {
		if p.hold.over(now) {
			for _, r := range p.rows {
				note(r)
			}
		}
	}
	for k, h := range b.holds {
		node, known := b.nodes.Get(k.id)
		if !h.over(now) || known && node.Room.Equal(b.total[k.id].usable) {
			continue
		}
		for _, r := range b.rows {
			if r.node == k.id && r.pool != nil && r.pool.cluster == k.cluster {
				note(r)
			}
		}
	}
	return out
}

// evict takes agents for nobody's gain. Their tasks are saved and, with on_preempted
// requeue, wait in line again; an agent without a task is stopped.
func (b *batch) evict(ids []sched.ID) {
	for _, id := range ids {
		h := b.rows[id]
		if h == nil || !h.onAgent() || !h.settled() {
			continue
		}
		b.need(h.pool)
		why, what := b.drainOf(h, b.now)
		if !why.on() {
			continue
		}
		tasks := []*row{h}
		if h.kind == KindAgent {
			tasks = b.registeredOn(h)
		}
		if len(tasks) == 0 {
			_ = b.stop(h, Cancelled, reasonDrained, what+" is drained", why.actor)
			continue
		}
		t := &taking{holder: h.uid, phase: phaseDecided, was: h.state, drained: true, byTask: what, result: map[sched.ID]takeResult{}}
		for _, task := range tasks {
			t.tasks = append(t.tasks, task.uid)
		}
		mark := func(r *row) {
			r.state, r.phase, r.taking = Preempting, phaseDecided, t
			r.reason = what + " is drained"
		}
		if h.kind == KindAgent {
			b.change(h, mark)
		}
		for _, task := range tasks {
			b.change(task, mark)
			b.preempted(task, nil, t, sched.Candidate{Task: task.uid, Reason: reasonDrained}, sched.Resources{}, why.actor)
		}
		b.takeJob(h)
	}
}

// registeredOn lists the tasks registered on an agent, in a fixed order.
func (b *book) registeredOn(h *row) (on []*row) {
	on = slices.Clone(b.guests[h.uid])
	slices.SortFunc(on, func(x, y *row) int { return slices.Compare(x.uid[:], y.uid[:]) })
	return on
}
