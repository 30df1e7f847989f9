package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// take turns the victims of a decision over to a preemptor: their quota becomes
// its reservation at once, in the transaction that admits it, so nobody else can
// take it; their agents are then cancelled, saved, killed and seen gone.
func (b *batch) take(r *row, victims []sched.Victim) {
	for _, v := range victims {
		if v.Loan {
			b.lend(b.rows[v.Agent].pool, r.pool, v.Takes)
		}
	}
	b.wait(r, b.takeAgents(r, victims))
}

// takeAgents does so but for the loans, and gives the agents' rows.
func (b *batch) takeAgents(r *row, victims []sched.Victim) []sched.ID {
	holders := make([]sched.ID, 0, len(victims))
	for _, v := range victims {
		h := b.rows[v.Agent]
		t := &taking{holder: h.uid, by: r.uid, byTask: r.taskID, attempt: r.attempt, phase: phaseDecided, was: h.state,
			taken: v.Takes, loan: v.Loan, result: map[sched.ID]takeResult{}}
		for _, c := range v.Tasks {
			t.tasks = append(t.tasks, c.Task)
		}
		holders = append(holders, h.uid)
		left := h.held.Sub(v.Takes)
		b.hold(h, left, h.heldAs)
		mark := func(x *row) {
			x.state, x.phase, x.taking = Preempting, phaseDecided, t
			x.reason = "making way for " + r.taskID
		}
		b.change(h, mark)
		for i, c := range v.Tasks {
			task := b.rows[c.Task]
			if task != h {
				b.change(task, mark)
			}
			taken := sched.Resources{}
			if i == 0 {
				taken = v.Takes // the quota is written once per agent
			}
			b.preempted(task, r, t, c, taken, "")
		}
		if h.pool.space == r.pool.space {
			h.pool.recent = append(slices.Clone(h.pool.recent), b.now)
		}
		b.takeJob(h)
	}
	return holders
}

// wait makes a reserved row wait until agents are gone.
func (b *batch) wait(r *row, holders []sched.ID) {
	b.change(r, func(r *row) {
		r.victims = holders
		r.phase = phaseWaiting
		r.reason = fmt.Sprintf("waits until %s made way", b.names(holders))
	})
}

func (b *batch) names(holders []sched.ID) string {
	out := ""
	for i, id := range holders {
		if i == 3 {
			return fmt.Sprintf("%s and %d more", out, len(holders)-i)
		}
		if i > 0 {
			out += ", "
		}
		h := b.rows[id]
		if h == nil {
			continue
		}
		if h.taskID != "" {
			out += h.taskID
		} else {
			out += h.agentName
		}
	}
	return out
}

// preempted writes the record of one task that has to make way.
func (b *batch) preempted(task, by *row, t *taking, c sched.Candidate, taken sched.Resources, actor string) {
	p := Preemption{Namespace: task.space.name, VictimUID: task.uid, VictimTask: task.taskID, AgentName: task.agentName, Pool: task.poolName,
		Priority: task.priority, Reason: string(c.Reason), Score: c.Score, PolicyVersion: task.space.policyVersion, Phase: phaseDecided,
		Taken: taken, Loan: t.loan, DecidedAt: b.now, Actor: actor}
	words := "Preempted by hand"
	if by != nil {
		p.PreemptorUID, p.PreemptorTask, p.PreemptorPool = by.uid, by.taskID, by.poolName
		p.Explanation, _ = json.Marshal(explain(c, task.space.core.Policy()))
		words = fmt.Sprintf("Makes way for %s: %s", by.taskID, sentence(c))
	} else if t.drained {
		words = "Has to go: " + t.byTask + " is drained"
	}
	attempt := 0
	if by != nil {
		attempt = by.attempt
	}
	key := takenTask{task.uid, task.attempt}
	turn := b.handoverOf(key)
	turn.begin = append(turn.begin, newPreemption{p: p, space: task.space.id, victimAttempt: task.attempt, preemptorAttempt: attempt, agent: t.holder})
	b.turns[key]++
	b.event(task, string(Preempting), actor, p.Reason, words, p.Explanation)
}

// explanation is how a score is made up, as people read it.
type explanation struct {
	Rule      string  `json:"rule"`
	Delta     float64 `json:"delta_priority"`
	Base      float64 `json:"score_base"`
	Kappa     float64 `json:"remaining_time_weight"`
	Remaining float64 `json:"remaining_seconds"`
	Score     float64 `json:"score"`
	LabelKey  string  `json:"label_key,omitempty"`
	LabelBy   string  `json:"label_by,omitempty"`
	LabelOver string  `json:"label_over,omitempty"`
	Sentence  string  `json:"sentence"`
}

func explain(c sched.Candidate, p sched.Policy) explanation {
	return explanation{Rule: string(c.Reason), Delta: c.Delta.Float(), Base: c.Base.Float(), Kappa: p.RemainingTimeWeight.Float(),
		Remaining: float64(c.Remaining) / 1000, Score: c.Score.Float(), LabelKey: c.LabelKey, LabelBy: c.LabelBy, LabelOver: c.LabelOver, Sentence: sentence(c)}
}

func sentence(c sched.Candidate) string {
	why := ""
	switch {
	case c.LabelKey != "":
		why = fmt.Sprintf("label %s: %s ≻ %s", c.LabelKey, c.LabelBy, c.LabelOver)
	case c.Reason == "cross_pool_preemption":
		why = "priority, across pools"
	default:
		why = "priority, same pool"
	}
	return fmt.Sprintf("%s · Δ %s → %s + κ·remaining %.1f s · score %s", why, c.Delta, c.Base, float64(c.Remaining)/1000, c.Score)
}

func (b *batch) takeJob(h *row) {
	t := h.taking
	policy := h.space.core.Policy()
	j := Job{Kind: JobTake, UID: h.uid, Attempt: h.attempt, LaunchID: h.launchID, Pool: h.poolName, Namespace: h.space.name, TaskID: h.taskID,
		AgentName: h.agentName, Phase: t.phase, KeepAgent: t.byHand(), Decided: b.now,
		CancelTimeout: policy.CancelTimeout.Duration(), SaveTimeout: policy.SaveTimeout.Duration()}
	if h.pool != nil {
		j.Cluster = h.pool.cluster
	}
	for _, id := range t.tasks {
		if r := b.rows[id]; r != nil {
			j.Tasks = append(j.Tasks, JobTask{UID: r.uid, TaskID: r.taskID, Pool: r.poolName})
		}
	}
	b.job(j)
}

// TakeReport says how far the taking of an agent is: the phase that begins, and
// what the one before it brought, by task.
type TakeReport struct {
	Phase  string // cancelling, saving, killing
	Cancel map[sched.ID]CancelOutcome
	Saved  map[sched.ID]SaveOutcome
}

// CancelOutcome is what the cancel of one task brought.
type CancelOutcome struct {
	Success bool
	Error   string
}

// SaveOutcome is what saving one task brought; State is a JSON object.
type SaveOutcome struct {
	State json.RawMessage
	Error string
}

// takePhase persists that the next phase of a handover begins.
func (b *batch) takePhase(uid sched.ID, attempt int, rep TakeReport) error {
	h := b.rows[uid]
	if h == nil || h.attempt != attempt || h.state != Preempting || h.taking == nil {
		return refuse(ErrWrongState, "the agent is not being taken")
	}
	return b.advance(h, rep)
}

// advance moves the handover that h is part of to its next phase.
func (b *batch) advance(h *row, rep TakeReport) error {
	t := *h.taking
	t.phase = rep.Phase
	t.result = map[sched.ID]takeResult{}
	for _, id := range t.tasks {
		res := h.taking.result[id]
		if c, ok := rep.Cancel[id]; ok {
			ok := c.Success
			res.cancelSuccess, res.cancelError = &ok, c.Error
		}
		if s, ok := rep.Saved[id]; ok {
			res.savedState, res.saveError = s.State, s.Error
		}
		t.result[id] = res
	}
	switch rep.Phase {
	case phaseSaving:
		t.cancelled = b.now
	case phaseKilling:
		t.saved = b.now
	}
	b.setTaking(h, &t)
	for _, id := range t.tasks {
		task := b.rows[id]
		if task == nil {
			continue
		}
		b.updatePreemption(task, &t, time.Time{})
		message := map[string]string{phaseCancelling: "Cancelling", phaseSaving: "Saving its state", phaseKilling: "Stopping its agent"}[rep.Phase]
		res := t.result[id]
		code := ""
		switch {
		case rep.Phase == phaseSaving && res.cancelSuccess != nil && !*res.cancelSuccess:
			code, message = "cancel_failed", message+"; cancel failed: "+res.cancelError
		case rep.Phase == phaseKilling && res.saveError != "":
			code, message = "save_failed", message+"; saving failed: "+res.saveError
		}
		b.event(task, "phase:"+rep.Phase, "", code, message, nil)
	}
	return nil
}

func (b *batch) setTaking(h *row, t *taking) {
	b.change(h, func(r *row) { r.taking, r.phase = t, t.phase })
	for _, id := range t.tasks {
		if task := b.rows[id]; task != nil && task != h {
			b.change(task, func(r *row) { r.taking, r.phase = t, t.phase })
		}
	}
}

func (b *batch) updatePreemption(task *row, t *taking, gone time.Time) {
	res := t.result[task.uid]
	key := takenTask{task.uid, task.attempt}
	b.handoverOf(key).move[key] = preemptionUpdate{phase: t.phase, res: res, cancelled: t.cancelled, saved: t.saved, gone: gone}
}

// victimGone ends the handover of one agent that was seen gone: what it still held
// is free, its tasks are preempted or wait again, and its preemptor may start
// when this was the last one it waited for.
func (b *batch) victimGone(h *row) {
	t := *h.taking
	t.phase = phaseGone
	b.release(h)
	for _, id := range t.tasks {
		task := b.rows[id]
		if task == nil {
			continue
		}
		b.updatePreemption(task, &t, b.now)
		b.makeWay(task, &t)
	}
	if h.kind == KindAgent && h.state.Live() {
		b.finish(h, Cancelled, t.code(), "its agent: "+t.words())
	}
	b.endRegistered(h, "its agent: "+t.words())

	p := b.rows[t.by]
	if p == nil || p.attempt != t.attempt {
		return
	}
	b.change(p, func(p *row) { p.took = append(slices.Clone(p.took), t.tasks...) })
	for _, w := range b.waitingWith(p) {
		b.oneGone(w, h.uid)
	}
}

// oneGone lets a preemptor start when the last agent it waited for is gone.
func (b *batch) oneGone(p *row, holder sched.ID) {
	b.change(p, func(p *row) {
		p.victims = slices.DeleteFunc(slices.Clone(p.victims), func(id sched.ID) bool { return id == holder })
	})
	if len(p.victims) > 0 {
		return
	}
	switch p.state {
	case Reserved:
		b.leaveGang(p)
		b.change(p, func(p *row) { p.phase, p.reason = "", "" })
		b.launchJob(p, nil)
	case Stopping: // cancelled while it waited; it never had an agent
		b.job(Job{Kind: JobStop, UID: p.uid, Attempt: p.attempt, LaunchID: p.launchID, Namespace: p.space.name, Pool: p.poolName, Cluster: p.pool.cluster})
	}
}

// makeWay ends one preempted task's attempt.
func (b *batch) makeWay(task *row, t *taking) {
	res := t.result[task.uid]
	if res.savedState != nil {
		b.writes = append(b.writes, savedStateWrite{task.uid, res.savedState})
	}
	by := task.preemptedBy
	if t.by != (sched.ID{}) {
		by = append(slices.Clone(by), t.by)
		if p := b.rows[t.by]; p != nil {
			by = append(by, p.preemptedBy...)
			for _, w := range b.waitingWith(p) {
				if w != p {
					by = append(by, w.uid)
				}
			}
		}
	}
	b.change(task, func(r *row) {
		r.preemptions++
		r.preemptedBy = lastOf(by, maxElders)
	})
	b.leaveGang(task)
	switch {
	case task.ending != "":
		b.finish(task, task.ending, task.code, task.reason)
	case task.onPreempted == Requeue && task.kind == KindTask:
		b.requeue(task, t.code(), t.words()+"; resumes from its saved state when there is room")
	default:
		b.finish(task, Preempted, t.code(), t.words())
	}
}

// maxElders bounds what a task remembers of those that preempted it. Who preempted it
// so long ago, and was not among them again since, is no part of a loop.
const maxElders = 256

// lastOf keeps each id once, where it came last, and at most so many of them.
func lastOf(ids []sched.ID, most int) []sched.ID {
	seen := make(map[sched.ID]bool, len(ids))
	var out []sched.ID
	for _, id := range slices.Backward(ids) {
		if !seen[id] && len(out) < most {
			seen[id] = true
			out = append(out, id)
		}
	}
	slices.Reverse(out)
	return out
}

// code and words say why a task had to go.
func (t *taking) code() string {
	if t.drained {
		return reasonDrained
	}
	return "preempted"
}

func (t *taking) words() string {
	switch {
	case t.drained && t.byTask == "": // after a restart
		return "preempted because its pool or node is drained"
	case t.drained:
		return "preempted because " + t.byTask + " is drained"
	case t.byHand():
		return "preempted by hand"
	}
	return "preempted by " + t.byTask
}

// requeue puts a task that lost its agent back in line.
func (b *batch) requeue(r *row, code, reason string) {
	b.change(r, func(r *row) {
		r.state, r.phase, r.ending = Queued, "", ""
		r.queued = b.now
		r.code, r.reason = code, reason
		r.taking, r.victims, r.took = nil, nil, nil
		r.node, r.actorID, r.pid = "", "", 0
	})
	b.event(r, string(Queued), "", code, "Queued again: "+reason, nil)
	b.freed(r.pool)
}

// undo puts everything back as it was before a preemption, which is possible
// until the first cancel is sent. It reports whether it could.
func (b *batch) undo(p *row, reason string) bool {
	type back struct {
		h *row
		t *taking
	}
	var all []back
	forward := false
	for _, id := range p.victims {
		h := b.rows[id]
		if h == nil || h.taking == nil || h.taking.phase != phaseDecided {
			return false
		}
		b.need(h.pool)
		all = append(all, back{h, h.taking})
	}
	for _, w := range b.waitingWith(p) {
		b.hold(w, sched.Resources{}, "")
	}
	for _, v := range all {
		if v.t.loan {
			// What the borrower repaid meanwhile is free in the lender's pool, unless somebody took it.
			b.giveBack(v.h.pool, p.pool, v.t.taken)
		}
		if !v.h.pool.free().Covers(v.t.taken) {
			// Cannot happen in one pool; across pools the lender may have promised it again. Forward, then,
			// and not for what the preemptor does next.
			forward = true
			continue
		}
		as := "used"
		if v.t.was != Running {
			as = "reserved"
		}
		b.hold(v.h, v.h.held.Add(v.t.taken), as)
		restore := func(r *row) {
			r.taking, r.phase, r.reason = nil, "", ""
			r.state = v.t.was
		}
		b.change(v.h, restore)
		for _, id := range v.t.tasks {
			task := b.rows[id]
			if task == nil {
				continue
			}
			if task != v.h {
				b.change(task, restore)
				b.change(task, func(r *row) { r.state = Running })
			}
			t := *v.t
			t.phase = phaseUndone
			b.updatePreemption(task, &t, time.Time{})
			b.event(task, string(task.state), "", "preemption_undone", "Goes on: "+reason, nil)
		}
	}
	for _, w := range b.waitingWith(p) {
		b.change(w, func(w *row) {
			w.victims, w.phase = nil, ""
			if forward {
				w.attempt++
			}
		})
	}
	b.repay(p.pool)
	b.freed(p.pool)
	return true
}
