package ledger

import (
	"context"
	"strconv"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

type newPreemption struct {
	p                               Preemption
	space                           int64
	victimAttempt, preemptorAttempt int
	agent                           sched.ID
}

// takenTask names a preemption: the task and which of its attempts makes way.
type takenTask struct {
	victim  sched.ID
	attempt int
}

// handovers are what a batch writes of preemptions in one turn: how far those are
// that were there, then those that begin. Within a batch a task may be given back
// and taken again: what is written of the second one waits for the next turn.
type handovers struct {
	move  map[takenTask]preemptionUpdate
	begin []newPreemption
}

// handoverOf is the turn in which something is written of a task's preemption.
func (b *batch) handoverOf(key takenTask) *handovers {
	if b.turns == nil {
		b.turns = map[takenTask]int{}
	}
	for len(b.handovers) <= b.turns[key] {
		b.handovers = append(b.handovers, handovers{move: map[takenTask]preemptionUpdate{}})
	}
	return &b.handovers[b.turns[key]]
}

type preemptionUpdate struct {
	phase                  string
	res                    takeResult
	cancelled, saved, gone time.Time
}

// queuePreemptions writes how far handovers are, which begin, and whose preemptor runs.
func (b *batch) queuePreemptions(ctx context.Context, q *dbgen.Queries) error {
	for _, turn := range b.handovers {
		if len(turn.move) > 0 {
			if err := q.UpdatePreemptions(ctx, turn.moved()); err != nil {
				return err
			}
		}
		if len(turn.begin) > 0 {
			if err := q.InsertPreemptions(ctx, turn.begun(b.now)); err != nil {
				return err
			}
		}
	}
	if len(b.arrived) > 0 {
		a := dbgen.PreemptorsRunningParams{Now: b.now}
		for _, r := range b.arrived {
			a.PreemptorUids = append(a.PreemptorUids, pgUUID(r.uid))
			a.Attempts = append(a.Attempts, int32(r.attempt))
		}
		return q.PreemptorsRunning(ctx, a)
	}
	return nil
}

func (h *handovers) moved() dbgen.UpdatePreemptionsParams {
	var a dbgen.UpdatePreemptionsParams
	for k, w := range h.move {
		success := ""
		if w.res.cancelSuccess != nil {
			success = strconv.FormatBool(*w.res.cancelSuccess)
		}
		a.VictimUids = append(a.VictimUids, pgUUID(k.victim))
		a.VictimAttempts = append(a.VictimAttempts, int32(k.attempt))
		a.Phases = append(a.Phases, w.phase)
		a.CancelSuccesses = append(a.CancelSuccesses, success)
		a.CancelErrors = append(a.CancelErrors, w.res.cancelError)
		a.SaveErrors = append(a.SaveErrors, w.res.saveError)
		a.SavedStates = append(a.SavedStates, w.res.savedState)
		a.CancelledAts = append(a.CancelledAts, w.cancelled)
		a.SavedAts = append(a.SavedAts, w.saved)
		a.GoneAts = append(a.GoneAts, w.gone)
	}
	return a
}

func (h *handovers) begun(now time.Time) dbgen.InsertPreemptionsParams {
	a := dbgen.InsertPreemptionsParams{DecidedAt: now}
	for _, w := range h.begin {
		a.NamespaceIds = append(a.NamespaceIds, w.space)
		a.PreemptorUids = append(a.PreemptorUids, pgUUID(w.p.PreemptorUID))
		a.PreemptorTasks = append(a.PreemptorTasks, w.p.PreemptorTask)
		a.PreemptorPools = append(a.PreemptorPools, w.p.PreemptorPool)
		a.PreemptorAttempts = append(a.PreemptorAttempts, int32(w.preemptorAttempt))
		a.VictimUids = append(a.VictimUids, pgUUID(w.p.VictimUID))
		a.VictimTasks = append(a.VictimTasks, w.p.VictimTask)
		a.VictimAttempts = append(a.VictimAttempts, int32(w.victimAttempt))
		a.AgentUids = append(a.AgentUids, pgUUID(w.agent))
		a.AgentNames = append(a.AgentNames, w.p.AgentName)
		a.PoolNames = append(a.PoolNames, w.p.Pool)
		a.Priorities = append(a.Priorities, int64(w.p.Priority))
		a.Reasons = append(a.Reasons, w.p.Reason)
		a.Scores = append(a.Scores, int64(w.p.Score))
		a.Explanations = append(a.Explanations, w.p.Explanation)
		a.PolicyVersions = append(a.PolicyVersions, int32(w.p.PolicyVersion))
		a.Phases = append(a.Phases, w.p.Phase)
		a.Takens = append(a.Takens, w.p.Taken.AppendJSON(nil))
		a.Loans = append(a.Loans, w.p.Loan)
		a.Actors = append(a.Actors, w.p.Actor)
	}
	return a
}
