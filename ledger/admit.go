package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// admission is one submission on its way through a lane.
type admission struct {
	uid  sched.ID
	ns   string
	kind Kind
	sub  Submission
	hash string

	task Task // the answer
}

// incoming is a row as the core is asked about it.
func (b *book) incoming(r *row) sched.Incoming {
	in := sched.Incoming{ID: r.uid, Name: r.taskID, Pool: r.poolName, Priority: r.priority, Labels: r.labels, Request: r.request, PreemptedBy: b.elders(r)}
	if r.kind == KindAgent {
		// An agent without a task has no priority: it takes room, it never takes it from others.
		in.Priority, in.Labels = -1<<40, nil
	}
	return in
}

// decide says what the core would do for a row that asks for room now.
func (b *batch) decide(r *row) sched.Decision {
	if b.loading {
		return b.decideEarly(r)
	}
	b.minute(r.space)
	if r.pool.grouped() {
		return b.decideAmongGroups(r)
	}
	return r.space.core.Decide(b.incoming(r), timeOf(b.now))
}

// minute lets the core know what its pools lost lately, where the policy asks.
func (b *batch) minute(s *space) {
	if s.core.Policy().MaxPreemptionsPerMinute > 0 {
		b.countRecent(s)
	}
}

// elders are the tasks r must never take: those that preempted it and, through live
// and waiting tasks, those that preempted them. Else tasks evict each other for ever.
func (b *book) elders(r *row) []sched.ID {
	if len(r.preemptedBy) == 0 {
		return nil
	}
	seen := map[sched.ID]bool{r.uid: true}
	var out []sched.ID
	next := r.preemptedBy
	for len(next) > 0 {
		var further []sched.ID
		for _, id := range next {
			if seen[id] {
				continue
			}
			seen[id] = true
			out = append(out, id)
			if e := b.rows[id]; e != nil {
				further = append(further, e.preemptedBy...)
			}
		}
		next = further
	}
	return out
}

// countRecent tells the core how many tasks each pool lost within the last minute.
func (b *batch) countRecent(s *space) {
	for _, p := range s.pools {
		if len(p.recent) == 0 {
			continue
		}
		p.recent = slices.DeleteFunc(slices.Clone(p.recent), func(t time.Time) bool { return b.now.Sub(t) >= time.Minute })
		b.poolChanged(p)
	}
}

// submit admits, queues or refuses one submission.
func (b *batch) submit(a *admission) error {
	r, err := b.newcomer(a)
	if r == nil {
		return err
	}
	d := b.ask(r)
	if d.Outcome == sched.Refuse {
		if r.pool.grouped() && r.pool.free().Covers(r.request) {
			b.wantRoom(r.pool)
		}
		if a.sub.OnInsufficient == Queue && waitable(d.Refusal.Code) {
			b.enqueueNew(r, a, d.Refusal)
			return nil
		}
		return refusal(d)
	}
	b.lockVictims(d)
	r.state = Reserved
	b.prepare(r, d.Node)
	b.place(r, a)
	b.sit(r, d.Node)
	b.grant(r, d, &a.sub.Spec, a.sub.Actor)
	a.task = b.task(r, &a.sub.Spec)
	a.task.Created = true
	return nil
}

// newcomer makes a row of a submission. There is none when the same one is there
// already, which is the answer then.
func (b *batch) newcomer(a *admission) (*row, error) {
	s := b.spaces[a.ns]
	if s == nil {
		return nil, refuse(ErrUnknownPool, "namespace %q has no pool %q: create it first", a.ns, a.sub.Pool)
	}
	if old := s.tasks[a.sub.TaskID]; old != nil && a.kind == KindTask {
		if old.kind == KindTask && old.bodyHash == a.hash {
			a.task = b.task(old, &a.sub.Spec)
			return nil, nil
		}
		return nil, refuse(ErrTaskExists, "a task %q is already %s with another body: choose another task_id, or wait until it has ended", a.sub.TaskID, old.state)
	}
	p := s.pools[a.sub.Pool]
	if p == nil {
		return nil, refuse(ErrUnknownPool, "there is no pool %q in namespace %q: create it first", a.sub.Pool, a.ns)
	}
	b.need(p)
	if err := closedTo(s.name, s.state); err != nil {
		return nil, err
	}
	name := a.sub.AgentName
	if name == "" {
		name = p.name + "-agent-" + fmt.Sprintf("%x", a.uid[10:])
	}
	if old := s.agents[name]; old != nil {
		return nil, refuse(ErrAgentExists, "an agent %q is already %s: choose another name, or delete it first", name, old.state)
	}
	request := a.sub.Request
	if a.kind == KindAgent && request.IsZero() {
		request = p.agentSize()
	}
	r := &row{
		uid: a.uid, space: s, taskID: a.sub.TaskID, pool: p, bodyHash: a.hash, submitted: b.now,
		terms: b.terms.of(terms{kind: a.kind, poolName: p.name, request: request,
			onInsufficient: a.sub.OnInsufficient, onPreempted: a.sub.OnPreempted, onFailure: a.sub.OnFailure,
			maxAttempts: a.sub.MaxAttempts, maxRuntime: a.sub.MaxRuntime, launch: a.sub.LaunchTimeout, hasEntry: a.sub.Spec.Entry != nil,
			wantsGroup: a.sub.Spec.UsePlacementGroup, preemptForQuota: !a.sub.Spec.KeepQuota}),
		life: life{agentName: name, attempt: 1, priority: a.sub.Priority, labels: a.sub.Labels, estimate: a.sub.Estimate, state: Queued},
	}
	if a.kind == KindAgent {
		r.taskID = ""
	}

	if !a.sub.usual() {
		r.extras = &extras{queueTimeout: a.sub.QueueTimeout, retryBackoff: orUsual(a.sub.RetryBackoff)}
	}
	return r, nil
}

// place puts a new row in the book, with what few rows have.
func (b *batch) place(r *row, a *admission) {
	b.add(r, &a.sub.Spec, a.sub.Actor)
	if r.extras != nil {
		r.extras.write(b, r.uid)
	}
}

func (b *batch) enqueueNew(r *row, a *admission, why sched.Refusal) {
	r.queued = b.now
	r.code, r.reason = string(why.Code), why.Message
	b.place(r, a)
	b.event(r, string(Queued), a.sub.Actor, r.code, "Queued: "+r.reason, nil)
	a.task = b.task(r, &a.sub.Spec)
	a.task.Created, a.task.QueuePosition = true, r.pool.line.Position(r.uid)
	if a.task.QueuePosition <= maxTold {
		b.outlooks(r.pool, []*row{r}, b.now)[r.uid].tell(&a.task)
	} else {
		a.task.ETANote = "read the task to be told"
	}
}

// refusal turns the core's refusal into the answer a caller gets.
func refusal(d sched.Decision) *Error {
	e := &Error{Code: ErrInsufficient.Code, Message: d.Refusal.Message, Detail: d.Refusal}
	switch d.Refusal.Code {
	case "request_too_large", "no_node_large_enough", "unknown_pool", "pool_held", codeLoading:
		e.Code = string(d.Refusal.Code)
	}
	return e
}

// lockVictims makes sure every pool a decision touches is locked before anything changes.
func (b *batch) lockVictims(d sched.Decision) {
	var touched []*pool
	for _, v := range d.Victims {
		if h := b.rows[v.Agent]; h != nil {
			touched = append(touched, h.pool)
			for _, l := range h.pool.loans {
				touched = append(touched, b.pools[l.lender])
			}
		}
	}
	b.need(touched...)
}

// prepare names the attempt's agent before it is reserved.
func (b *batch) prepare(r *row, node sched.NodeID) {
	r.node = r.pool.machineOf(node)
	r.launchID = fmt.Sprintf("%s.%d", uuidString(r.uid), r.attempt)
	r.actorID, r.pid, r.actorName, r.rayNS = "", 0, "", ""
	r.code, r.reason, r.phase = "", "", ""
	r.started, r.granted = time.Time{}, timeOf(b.now)
	// The agent of an attempt that was preempted by hand stays, and its name with it.
	taken := func(name string) bool {
		other := r.space.agents[name]
		return other != nil && other != r
	}
	if taken(r.agentName) {
		uid, name := r.uid, r.agentName
		for n := r.attempt; taken(name); n++ {
			name = fmt.Sprintf("%s-%d", r.agentName, n)
		}
		r.agentName = name
		b.first = append(b.first, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error {
			return q.RenameAgent(ctx, dbgen.RenameAgentParams{Uid: pgUUID(uid), AgentName: name})
		}))
	}
}

// grant gives an indexed, reserved row its quota, taking the decision's victims for it.
// actor is who asked, "" when it was the queue's turn.
func (b *batch) grant(r *row, d sched.Decision, spec *Spec, actor string) {
	if d.Outcome == sched.Preempt {
		b.take(r, d.Victims)
	}
	b.hold(r, r.request, "reserved")
	b.event(r, string(Reserved), actor, "", "Reserved "+r.request.String()+" in "+r.poolName, r.seat())
	if len(r.victims) == 0 {
		b.launchJob(r, spec)
	}
}

func (b *batch) launchJob(r *row, spec *Spec) {
	b.job(Job{Kind: JobLaunch, UID: r.uid, Attempt: r.attempt, LaunchID: r.launchID, Pool: r.poolName, Namespace: r.space.name,
		Cluster: r.pool.cluster, TaskID: r.taskID, AgentName: r.agentName, Labels: r.labels, Request: r.request, Node: r.node,
		Timeout: r.launch, Spec: spec, Decided: b.now, Group: r.jobGroup()})
}

// jobGroup is the placement group a launch goes into, nil for none.
func (r *row) jobGroup() *JobGroup {
	if g := r.groupOf(); g != nil {
		return r.pool.wanted(g)
	}
	return nil
}

// seat is where a reserved row is to sit, for its timeline.
func (r *row) seat() map[string]any {
	out := map[string]any{"node": r.node}
	if g := r.groupOf(); g != nil {
		out["placement_group"], out["tier"], out["reused"] = g.name(), g.tier, g.made > 0
	}
	return out
}

// agentSize is the default size of an agent: capacity / target_agents.
func (p *pool) agentSize() sched.Resources {
	if p.targets <= 1 {
		return p.capacity
	}
	size := sched.Resources{}
	p.capacity.Each(func(name string, v int64) { size = size.With(name, v/int64(p.targets)) })
	return size
}
