package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// PreemptRequest names a running task, or the agent it runs on.
type PreemptRequest struct {
	TaskID    string
	AgentName string
	// Reason is what an evaluation gave as the rule, under which it counts; "" = manual.
	Reason sched.Reason
	Actor  string
}

// Preempt cancels and saves a task by hand; its agent stays. It returns when that
// is done, or with what is known when ctx ends.
func (l *Ledger) Preempt(ctx context.Context, ns string, p PreemptRequest) (Preemption, error) {
	taskID := p.TaskID
	if taskID == "" {
		on, err := l.q.TasksOnAgents(ctx, dbgen.TasksOnAgentsParams{Namespace: ns, Names: []string{p.AgentName}})
		if err != nil {
			return Preemption{}, l.lane.outward(err)
		}
		if len(on) == 0 {
			if _, err := l.Agent(ctx, ns, p.AgentName); err != nil {
				return Preemption{}, err
			}
			return Preemption{}, refuse(ErrUnknownTask, "agent %q runs no task", p.AgentName)
		}
		taskID = deref(on[0].TaskID)
	}
	attempt := 0
	var uid sched.ID
	var ch <-chan struct{}
	var unwatch func()
	_, err := l.on(ctx, ns, taskID, func(b *batch, r *row) error {
		if p.AgentName != "" && r.agentName != p.AgentName {
			return refuse(ErrWrongState, "task %q runs on agent %q, not on %q", r.taskID, r.agentName, p.AgentName)
		}
		uid, attempt = r.uid, r.attempt
		if unwatch != nil {
			unwatch()
		}
		ch, unwatch = l.watch(r.uid)
		return b.preemptByHand(r, p.Reason, p.Actor)
	})
	if unwatch != nil {
		defer unwatch()
	}
	if err != nil {
		return Preemption{}, err
	}
	for {
		row, err := l.q.PreemptionOfVictim(ctx, dbgen.PreemptionOfVictimParams{VictimUid: pgUUID(uid), VictimAttempt: int32(attempt)})
		if errors.Is(err, pgx.ErrNoRows) {
			return Preemption{}, errForgotten
		}
		if err != nil {
			return Preemption{}, l.lane.outward(err)
		}
		if out := preemptionOf(row, ns); out.Phase == phaseGone || out.Phase == phaseUndone {
			return out, nil
		} else if ctx.Err() != nil {
			return out, nil
		}
		select {
		case <-ch:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return Preemption{}, ctx.Err()
		}
	}
}
