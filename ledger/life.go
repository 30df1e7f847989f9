package ledger

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Started is what is known of an agent that is ready.
type Started struct {
	ActorName string
	RayNS     string
	ActorID   string
	Node      sched.NodeID
	PID       int
	Warm      bool
	Launch    time.Duration // how long the launch took
	Group     []string      // the node of each bundle of its placement group
}

func (s *Started) groupNodes() []string {
	if s.Group == nil {
		return nodesOf(string(s.Node))
	}
	return s.Group
}

// find gives the live row of an attempt, or why there is none.
func (b *batch) find(uid sched.ID, attempt int) (*row, error) {
	r := b.rows[uid]
	if r == nil {
		return nil, refuse(ErrUnknownTask, "no live task has uid %s", uuidString(uid))
	}
	if r.attempt != attempt {
		return nil, refuse(ErrWrongState, "attempt %d is over, the task is at attempt %d", attempt, r.attempt)
	}
	return r, nil
}

// launching notes that an agent is on its way, for launches that take a while.
func (b *batch) launching(uid sched.ID, attempt int) error {
	r, err := b.find(uid, attempt)
	if err != nil {
		return err
	}
	if r.state != Reserved || len(r.victims) > 0 {
		return nil
	}
	b.change(r, func(r *row) { r.state = Launching })
	b.event(r, string(Launching), "", "", "Launching "+r.agentName, nil)
	return nil
}

// ready commits a reservation: the agent runs. It reports whether the entry is to be called.
func (b *batch) ready(uid sched.ID, attempt int, s Started) error {
	r, err := b.find(uid, attempt)
	if err != nil {
		return err
	}
	if r.state == Running {
		return nil
	}
	if (r.state != Reserved && r.state != Launching) || len(r.victims) > 0 {
		return refuse(ErrWrongState, "the task is %s", r.state)
	}
	b.start(r, func(r *row) {
		r.state, r.phase, r.code, r.reason = Running, "", "", ""
		r.started = b.now
		r.actorName, r.rayNS, r.actorID, r.node, r.pid = s.ActorName, s.RayNS, s.ActorID, s.Node, s.PID
	})
	if len(r.took) > 0 {
		b.arrived = append(b.arrived, r)
	}
	if g := r.groupOf(); g != nil && g.state == groupCreating {
		b.groupMade(r.pool, g, s.groupNodes())
	}
	b.event(r, string(Running), "", "", "Running on node "+short(string(s.Node)), map[string]any{
		"node": s.Node, "pid": s.PID, "actor_name": s.ActorName, "warm_worker": s.Warm, "launch_ms": float64(s.Launch.Microseconds()) / 1000})
	return nil
}

func short(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}

// launchFailed gives quota back after an agent did not come up, and says why. Its
// victims, if it took any, are to run again from their saved state.
func (b *batch) launchFailed(uid sched.ID, attempt int, code, message string, revivals []*row) error {
	r, err := b.find(uid, attempt)
	if err != nil {
		return err
	}
	if (r.state != Reserved && r.state != Launching) || len(r.victims) > 0 {
		return refuse(ErrWrongState, "the task is %s", r.state)
	}
	b.failed(r, code, message)
	b.revive(r, revivals)
	return nil
}

// failed ends an attempt that went wrong: again later, or for good.
func (b *batch) failed(r *row, code, message string) {
	b.release(r)
	b.leaveGang(r)
	b.endRegistered(r, "its agent is gone: "+message)
	if code == codeUnhealthy && r.kind == KindAgent {
		b.remake(r, message)
		return
	}
	tries := r.onFailure == Requeue && r.failures+1 < r.maxAttempts || code == codeUnhealthy
	if tries && r.kind == KindTask {
		b.change(r, func(r *row) { r.failures++ })
		b.event(r, "attempt_failed", "", code, fmt.Sprintf("Attempt %d failed: %s", r.attempt, message), nil)
		wait := r.backoff()
		if wait == 0 {
			b.requeue(r, code, message)
			return
		}
		b.later(r, timeOf(b.now.Add(wait)))
		b.requeue(r, codeBackoff, fmt.Sprintf("attempt %d failed (%s: %s); is tried again in %s", r.attempt, code, message, wait.Round(time.Millisecond)))
		return
	}
	b.finish(r, Failed, code, message)
}

// revive relaunches the victims of a preemptor that could not be launched. ended are
// those among them that are not live any more, as rows read for this.
func (b *batch) revive(p *row, ended []*row) {
	for _, r := range ended {
		if b.rows[r.uid] != nil || r.state != Preempted || r.space.tasks[r.taskID] != nil || r.kind != KindTask {
			continue
		}
		b.adopt(r)
		b.change(r, func(r *row) {
			r.state, r.ended = Queued, time.Time{}
			r.queued = b.now
			r.code, r.reason = "preemptor_failed", p.taskID+" could not be launched"
		})
		b.event(r, string(Queued), "", "preemptor_failed", "Comes back: "+p.taskID+", which it made way for, could not be launched", nil)
		b.freed(r.pool)
	}
}

// entryDone hears that an entry returned or raised.
func (b *batch) entryDone(uid sched.ID, attempt int, failed bool, message string, result json.RawMessage, cancelled bool) error {
	r, err := b.find(uid, attempt)
	if err != nil {
		return err
	}
	if r.kind == KindAgent {
		return nil // of a task that was preempted by hand and left its agent
	}
	to, code := Completed, ""
	if failed {
		to, code = Failed, "entry_failed"
	}
	switch r.state {
	case Running:
		b.stopping(r, to, code, message, "")
	case Preempting:
		if cancelled || failed {
			return nil // it ended because it was told to
		}
		b.change(r, func(r *row) { r.ending, r.code, r.reason = to, code, message })
	default:
		return nil
	}
	if result != nil {
		b.writes = append(b.writes, resultWrite{r.uid, result})
	}
	return nil
}

// agentDied hears that an agent ended and nobody had asked for it.
func (b *batch) agentDied(uid sched.ID, attempt int, code, reason string) error {
	r, err := b.find(uid, attempt)
	if err != nil {
		return err
	}
	if r.state == Running {
		b.failed(r, code, reason)
	}
	return nil
}

// stopping begins the end of a row that has, or may have, an agent.
func (b *batch) stopping(r *row, to State, code, reason, actor string) {
	launched := r.state == Running || r.state == Launching || (r.state == Reserved && len(r.victims) == 0)
	b.change(r, func(r *row) {
		r.state, r.ending, r.code, r.reason = Stopping, to, code, reason
	})
	words := map[State]string{Completed: "Completed; stopping its agent", Failed: "Failed: " + reason + "; stopping its agent", Cancelled: "Cancelled; stopping its agent"}[to]
	b.event(r, string(Stopping), actor, code, words, nil)
	if launched {
		b.job(Job{Kind: JobStop, UID: r.uid, Attempt: r.attempt, LaunchID: r.launchID, Namespace: r.space.name, Pool: r.poolName, Cluster: r.pool.cluster, TaskID: r.taskID})
	}
}

// stop ends a task because somebody asked: target is Completed or Cancelled.
func (b *batch) stop(r *row, target State, code, reason, actor string) error {
	switch {
	case r.kind == KindRegistered:
		b.finishBy(r, target, code, reason, actor)
	case r.state == Queued:
		if target == Completed {
			return refuse(ErrWrongState, "task %q is queued, it never ran: cancel it instead", r.taskID)
		}
		b.finishBy(r, target, code, reason, actor)
	case r.state == Stopping && r.code == codeUnhealthy: // it was to come back
		b.change(r, func(r *row) { r.ending, r.code, r.reason = target, code, reason })
		b.event(r, "ending", actor, code, "Will be "+string(target)+" when its agent is gone", nil)
	case r.state == Stopping:
		if target == Cancelled || r.ending == target {
			return nil
		}
		return refuse(ErrWrongState, "task %q is already stopping and will be %s", r.taskID, r.ending)
	case r.state == Preempting:
		b.change(r, func(r *row) { r.ending, r.code, r.reason = target, code, reason })
		b.event(r, "ending", actor, code, "Will be "+string(target)+" when its agent is gone", nil)
	case r.state == Reserved && len(r.victims) > 0:
		if len(b.waitingWith(r)) == 1 && b.undo(r, r.taskID+" was cancelled") {
			b.release(r)
			b.finishBy(r, target, code, reason, actor)
			return nil
		}
		b.stopping(r, target, code, reason, actor)
	default:
		b.stopping(r, target, code, reason, actor)
	}
	return nil
}

// gone hears that an agent was seen gone: only now its quota is free.
func (b *batch) gone(uid sched.ID, attempt int, revivals []*row) error {
	r, err := b.find(uid, attempt)
	if err != nil {
		return err
	}
	switch r.state {
	case Stopping:
		b.release(r)
		b.endRegistered(r, "its agent was stopped")
		neverRan := r.started.IsZero() && r.ending != Completed
		if r.ending == Failed {
			code, reason := r.code, r.reason
			b.failed(r, code, reason)
		} else {
			b.finish(r, r.ending, r.code, r.reason)
		}
		if neverRan {
			b.revive(r, revivals)
		}
	case Preempting:
		b.victimGone(r)
	default:
		return refuse(ErrWrongState, "the task is %s", r.state)
	}
	return nil
}

func (b *batch) finish(r *row, to State, code, reason string) { b.finishBy(r, to, code, reason, "") }

// finishBy ends a row that holds nothing any more.
func (b *batch) finishBy(r *row, to State, code, reason, actor string) {
	ran := ""
	if !r.started.IsZero() {
		ran = " after " + b.now.Sub(r.started).Round(time.Millisecond).String()
	}
	b.change(r, func(r *row) {
		r.state, r.phase, r.ending, r.code, r.reason = to, "", "", code, reason
		r.ended = b.now
		r.taking, r.victims = nil, nil
	})
	words := map[State]string{Completed: "Completed" + ran, Failed: "Failed" + ran, Cancelled: "Cancelled" + ran, Preempted: "Preempted" + ran}[to]
	if reason != "" {
		words += ": " + reason
	}
	b.event(r, string(to), actor, code, words, nil)
}

// endRegistered ends what was registered on an agent that is gone.
func (b *batch) endRegistered(h *row, reason string) {
	if h.pool == nil || h.kind == KindRegistered {
		return
	}
	for _, r := range b.registeredOn(h) {
		b.finish(r, Failed, "agent_gone", reason)
	}
}

// register says that a task runs on an agent. It charges nothing of its own.
func (b *batch) register(uid sched.ID, ns string, g Registration, hash string, answer *Task) error {
	s := b.spaces[ns]
	if err := closedTo(ns, s.state); err != nil {
		return err
	}
	spec := &Spec{Payload: g.Payload}
	if old := s.tasks[g.TaskID]; old != nil {
		switch {
		case old.kind == KindRegistered && old.bodyHash == hash:
			*answer = b.task(old, spec)
			return nil
		case old.kind == KindRegistered:
			// Registering again replaces what was said before.
			b.finish(old, Completed, "replaced", "registered again")
		default:
			return refuse(ErrTaskExists, "a submitted task %q is already %s: choose another task_id", g.TaskID, old.state)
		}
	}
	r := &row{uid: uid, space: s, taskID: g.TaskID, bodyHash: hash, submitted: b.now,
		terms: b.terms.of(terms{kind: KindRegistered, poolName: g.Pool, onPreempted: Stop, onFailure: Stop, onInsufficient: Fail, maxAttempts: 1}),
		life:  life{agentName: g.AgentName, state: Running, attempt: 1, priority: g.Priority, labels: g.Labels, estimate: g.Estimate, started: b.now}}
	if h := s.agents[g.AgentName]; h != nil && h.state == Running && h.poolName == g.Pool {
		r.pool, r.agentUID, r.node = h.pool, h.uid, h.node
		r.launchID, r.actorName, r.rayNS, r.actorID, r.pid = h.launchID, h.actorName, h.rayNS, h.actorID, h.pid
	}
	b.need(r.pool)
	b.add(r, spec, g.Actor)
	where := "on an agent that is not ours"
	if r.pool != nil {
		where = "on agent " + r.agentName
	}
	b.event(r, "registered", g.Actor, "", "Registered as running "+where, nil)
	*answer = b.task(r, spec)
	return nil
}

// preemptByHand begins to cancel and save a task whose agent stays.
func (b *batch) preemptByHand(r *row, reason sched.Reason, actor string) error {
	if r.state != Running {
		return refuse(ErrWrongState, "task %q is %s: only a running task can be preempted", r.taskID, r.state)
	}
	candidate := sched.Candidate{Task: r.uid, TaskName: r.taskID, Agent: r.agentID(), AgentName: r.agentName, Pool: r.poolName, Priority: r.priority, Reason: reason}
	if reason == "" {
		candidate.Reason = "manual"
	}
	if r.pool == nil { // unmanaged: its agent cannot be told, but its state can be kept
		no := false
		t := &taking{holder: r.uid, tasks: []sched.ID{r.uid}, phase: phaseSaving, was: Running,
			result: map[sched.ID]takeResult{r.uid: {cancelSuccess: &no, cancelError: "agent " + r.agentName + " is not managed here, so nobody told it to stop: stop its task yourself"}}}
		b.change(r, func(r *row) { r.state, r.phase, r.reason, r.taking = Preempting, phaseSaving, "preempted by hand", t })
		b.preempted(r, nil, t, candidate, sched.Resources{}, actor)
		b.updatePreemption(r, t, time.Time{})
		b.job(b.jobOf(r)[0])
		return nil
	}
	h := b.rows[r.agentID()]
	if h == nil || h.state != Running {
		return refuse(ErrWrongState, "the agent of task %q is on its way out", r.taskID)
	}
	t := &taking{holder: h.uid, tasks: []sched.ID{r.uid}, phase: phaseDecided, was: Running, result: map[sched.ID]takeResult{}}
	if h == r {
		h = b.detach(r, t)
	} else {
		b.change(r, func(r *row) { r.state, r.taking = Preempting, t })
	}
	b.change(r, func(r *row) { r.phase, r.reason = phaseDecided, "preempted by hand" })
	b.preempted(r, nil, t, candidate, sched.Resources{}, actor)
	policy := r.space.core.Policy()
	b.job(Job{Kind: JobTake, UID: r.uid, Attempt: r.attempt, LaunchID: r.launchID, Pool: r.poolName, Cluster: h.pool.cluster, Namespace: r.space.name,
		TaskID: r.taskID, AgentName: r.agentName, Phase: phaseDecided, KeepAgent: true, Decided: b.now,
		CancelTimeout: policy.CancelTimeout.Duration(), SaveTimeout: policy.SaveTimeout.Duration(),
		Tasks: []JobTask{{UID: r.uid, TaskID: r.taskID, Pool: r.poolName}}})
	return nil
}

// detach lets a submission's agent outlive its task: a row of its own takes over
// the agent and its quota, and the task runs on it as a registered one would.
func (b *batch) detach(r *row, t *taking) *row {
	a := &row{uid: newID(), space: r.space, pool: r.pool, submitted: b.now,
		terms: b.terms.of(terms{kind: KindAgent, poolName: r.poolName, request: r.request, onPreempted: Stop, onFailure: Stop, onInsufficient: Fail,
			maxAttempts: 1, launch: r.launch}),
		life: life{agentName: r.agentName, state: Running, attempt: r.attempt, labels: r.labels, node: r.node, launchID: r.launchID, actorName: r.actorName,
			rayNS: r.rayNS, actorID: r.actorID, pid: r.pid, started: r.started}}
	held := r.held
	b.hold(r, sched.Resources{}, "")
	t.holder = a.uid
	b.change(r, func(r *row) { r.state, r.taking = Preempting, t })
	a.held, a.heldAs = held, "used"
	b.touchPool(a.pool)
	a.pool.used = a.pool.used.Add(held)
	b.add(a, &Spec{}, "")
	b.poolChanged(a.pool)
	b.event(a, "agent.detached", "", "", "Agent "+a.agentName+" stays when its task "+r.taskID+" is preempted", nil)
	return a
}

// taken by hand: the phases are done, the agent stays.
func (b *batch) handDone(uid sched.ID, attempt int, saved SaveOutcome) error {
	r := b.rows[uid]
	if r == nil || r.attempt != attempt || r.state != Preempting || r.taking == nil {
		return refuse(ErrWrongState, "the task is not being preempted")
	}
	t := *r.taking
	t.phase, t.saved = phaseGone, b.now
	res := t.result[uid]
	res.savedState, res.saveError = saved.State, saved.Error
	t.result = map[sched.ID]takeResult{uid: res}
	b.updatePreemption(r, &t, b.now)
	b.makeWay(r, &t)
	return nil
}

// restore runs a preempted task again from its saved state.
func (b *batch) restore(r *row, actor string) error {
	if other := r.space.tasks[r.taskID]; other != nil {
		return refuse(ErrWrongState, "task %q is already %s", r.taskID, other.state)
	}
	if r.kind != KindTask || r.state != Preempted {
		return refuse(ErrWrongState, "task %q is %s: only a preempted submission can be restored", r.taskID, r.state)
	}
	if r.pool == nil {
		return refuse(ErrUnknownPool, "pool %q of task %q is gone: submit the task anew", r.poolName, r.taskID)
	}
	if err := closedTo(r.space.name, r.space.state); err != nil {
		return err
	}
	b.adopt(r)
	b.change(r, func(r *row) {
		r.state, r.ended, r.queued = Queued, time.Time{}, b.now
		r.code, r.reason = "restored", "restored by "+actor
	})
	b.event(r, string(Queued), actor, "restored", "Restored by hand; resumes from its saved state when there is room", nil)
	b.freed(r.pool)
	return nil
}

// TaskPatch changes a live task. Nil fields stay.
type TaskPatch struct {
	Priority *sched.Milli
	Labels   *sched.Labels
	Estimate *time.Duration
	Actor    string
}

func (b *batch) patch(r *row, p TaskPatch) {
	said := ""
	say := func(format string, args ...any) {
		if said != "" {
			said += ", "
		}
		said += fmt.Sprintf(format, args...)
	}
	b.change(r, func(r *row) {
		if p.Priority != nil && *p.Priority != r.priority {
			say("priority %s → %s", r.priority, *p.Priority)
			r.priority = *p.Priority
		}
		if p.Labels != nil {
			say("labels changed")
			r.labels = *p.Labels
		}
		if p.Estimate != nil && *p.Estimate != r.estimate {
			say("estimate %s → %s", r.estimate, *p.Estimate)
			r.estimate = *p.Estimate
		}
	})
	if said != "" {
		b.event(r, "changed", p.Actor, "", "Changed: "+said, nil)
		if r.pool != nil {
			b.freed(r.pool)
		}
	}
}
