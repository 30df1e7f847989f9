package ledger

import (
	"context"
	"errors"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// on runs do on a live task of a namespace, under the locks it needs.
func (l *Ledger) on(ctx context.Context, ns, taskID string, do func(*batch, *row) error) (Task, error) {
	var out Task
	var uid sched.ID
	if err := l.soon(ctx, ns, taskID); err != nil {
		return out, err
	}
	err := l.find(ctx, &call{
		plan: func(b *book) []*pool {
			if s := b.spaces[ns]; s != nil {
				return rowPools(b, s.tasks[taskID])
			}
			return nil
		},
		do: func(b *batch) error {
			var r *row
			if s := b.spaces[ns]; s != nil {
				r = s.tasks[taskID]
			}
			if r == nil {
				return refuse(ErrUnknownTask, "there is no live task %q in namespace %q", taskID, ns)
			}
			b.need(rowPools(b.book, r)...)
			uid = r.uid
			return do(b, r)
		},
	}, l.whereTask(ctx, ns, taskID))
	if err != nil {
		return out, err
	}
	return l.taskByUID(ctx, uid)
}

// Complete ends a task as done: a submission's agent is stopped, a registered task's stays.
// Completing a task that has ended already answers it as it is.
func (l *Ledger) Complete(ctx context.Context, ns, taskID, actor string) (Task, error) {
	return l.end(ctx, ns, taskID, Completed, actor)
}

// Cancel ends a task whatever it does: it leaves the queue, or its agent is stopped.
func (l *Ledger) Cancel(ctx context.Context, ns, taskID, actor string) (Task, error) {
	return l.end(ctx, ns, taskID, Cancelled, actor)
}

func (l *Ledger) end(ctx context.Context, ns, taskID string, to State, actor string) (Task, error) {
	reason := ""
	if to == Cancelled && actor != "" {
		reason = "by " + actor
	}
	t, err := l.on(ctx, ns, taskID, func(b *batch, r *row) error { return b.stop(r, to, "", reason, actor) })
	if errors.Is(err, ErrUnknownTask) {
		return l.Task(ctx, ns, taskID)
	}
	return t, err
}

// Patch changes priority, labels or estimate of a live task.
func (l *Ledger) Patch(ctx context.Context, ns, taskID string, p TaskPatch) (Task, error) {
	if p.Labels != nil {
		if err := cleanLabels(*p.Labels); err != nil {
			return Task{}, err
		}
	}
	return l.on(ctx, ns, taskID, func(b *batch, r *row) error { b.patch(r, p); return nil })
}

// Restore runs a preempted task again from its saved state, as soon as there is room.
func (l *Ledger) Restore(ctx context.Context, ns, taskID, actor string) (Task, error) {
	t, err := l.Task(ctx, ns, taskID)
	if err != nil {
		return Task{}, err
	}
	err = l.find(ctx, &call{
		plan: poolOf(ns, t.Pool),
		do: func(b *batch) error {
			// Under the pool's lock, so what is read is what is.
			rows, err := l.reread(ctx, []sched.ID{t.UID})
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				return refuse(ErrUnknownPool, "pool %q of task %q is gone: submit the task anew", t.Pool, taskID)
			}
			return b.restore(rows[0], actor)
		},
	}, l.wherePool(ctx, ns, t.Pool))
	if err != nil {
		return Task{}, err
	}
	return l.taskByUID(ctx, t.UID)
}

// reread makes rows of tasks that may have ended. Only a lane may call it.
func (l *Ledger) reread(ctx context.Context, uids []sched.ID) ([]*row, error) {
	if len(uids) == 0 {
		return nil, nil
	}
	var out []*row
	err := newRowReader(l.lane.book.byID, l.lane.book.pools).each(ctx, l.pool, func(r *row) error {
		out = append(out, r)
		return nil
	}, dbgen.TasksByUIDSQL, pgUUIDs(uids))
	return out, err
}
