package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Dump writes down all that the book says, in an order that does not depend on how it came to be.
func (l *Ledger) Dump(ctx context.Context) (string, error) {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	err := l.lane.look(ctx, func(b *book) {
		b.lookAhead()
		for _, p := range b.pools {
			say("pool %s/%s %s %v targets %d version %d loaded %v: capacity %s reserved %s used %s borrowed %s lent %s names %v", p.space.name, p.name, p.cluster, p.labels,
				p.targets, p.version, p.loaded, p.capacity, p.reserved, p.used, p.borrowed, p.lent, slices.Sorted(slices.Values(p.names)))
			for _, x := range p.loans {
				say("pool %s borrows from %d: %s", p.name, x.lender, x.amount)
			}
			var queue []string
			for id := range p.line.All() {
				queue = append(queue, b.rows[id].taskID)
			}
			say("pool %s has %d rows, queue %v, %d ends, %s %s", p.name, len(p.rows), queue, p.ends.Len(), p.maxRuntime, p.hold.sentence("it"))
			known, _ := p.space.core.Pool(p.name)
			say("core: pool %s free %s", p.name, known.Free)
		}
		for id, r := range b.rows {
			say("%s", r.dump())
			if r.onAgent() && b.launched(r.launchID) != r {
				say("launch %s is not found", r.launchID)
			}
			if id != r.uid || r.pool != nil && r.pool.rows[r.at] != r || r.kind != KindAgent && r.space.tasks[r.taskID] != r {
				say("row %s is not where it should be", r.taskID)
			}
			task, running := r.space.core.Task(id)
			agent, settled := r.space.core.Agent(id)
			say("core: %s task %v %d %d, agent %v %s %s %v", r.taskID, running, task.Start, task.Estimate, settled, agent.Gives, agent.Node, agent.Settled)
		}
		for id, n := range b.total {
			node, _ := b.nodes.Get(id)
			say("node %s: %s of %s", id, node.Room, n.total)
		}
		for _, s := range b.spaces {
			say("namespace %s: policy %d, %d tasks, %d agents, %d in the core", s.name, s.policyVersion, len(s.tasks), len(s.agents), s.core.Len())
		}
		for id, room := range b.rooms {
			say("room on %s: %d ends", id, room.Len())
		}
		say("%d odd launches, %d working", len(b.launches), len(b.working))
	})
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}

func (r *row) dump() string {
	out := fmt.Sprintf("row %s %s %s/%s %s request %s: %s %q attempt %d priority %s %v held %s %s on %s as %s %s %s %s %d, %s, failed %d, preempted %d by %v, ends %q, %s %s, at %s %s %s, launch %s, entry %v, %v %v %v %d %s %x",
		uuidString(r.uid), r.kind, r.poolName, r.taskID, r.agentName, r.request, r.state, r.phase, r.attempt, r.priority, r.labels, r.held, r.heldAs, r.node, r.launchID,
		r.actorName, r.rayNS, r.actorID, r.pid, r.estimate, r.failures, r.preemptions, len(r.preemptedBy), r.ending, r.code, r.reason, r.submitted, r.queued, r.started, r.launch, r.hasEntry,
		r.onInsufficient, r.onPreempted, r.onFailure, r.maxAttempts, r.maxRuntime, r.bodyHash)
	victims := slices.Clone(r.victims)
	slices.SortFunc(victims, func(a, b sched.ID) int { return slices.Compare(a[:], b[:]) })
	out += fmt.Sprintf(", waits for %x, charges %s %s", victims, r.charged.node, r.charged.amount)
	if t := r.taking; t != nil {
		tasks := slices.Clone(t.tasks)
		slices.SortFunc(tasks, func(a, b sched.ID) int { return slices.Compare(a[:], b[:]) })
		out += fmt.Sprintf(", taken from %x by %x attempt %d: %s %s %v of %x", t.holder, t.by, t.attempt, t.phase, t.taken, t.loan, tasks)
	}
	return out
}

// LastOf is what a task remembers of those that preempted it.
func LastOf(ids []sched.ID, most int) []sched.ID { return lastOf(ids, most) }
