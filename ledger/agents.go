package ledger

import (
	"context"
	"errors"

	"github.com/schedulemesh/schedulemesh/sched"
)

// CreateAgent makes an agent that waits for work.
func (l *Ledger) CreateAgent(ctx context.Context, ns string, a AgentSubmission) (Agent, error) {
	s := Submission{TaskID: a.Name, Pool: a.Pool, Request: a.Request, Labels: a.Labels, AgentName: a.Name, Spec: a.Spec,
		LaunchTimeout: a.LaunchTimeout, Actor: a.Actor}
	if s.TaskID == "" {
		return Agent{}, invalid("name", "is missing")
	}
	if a.Request.IsZero() {
		s.Request = sched.Resources{CPU: 1} // replaced by the pool's agent size
	}
	if err := s.check(); err != nil {
		return Agent{}, err
	}
	s.Request = a.Request
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return Agent{}, err
	}
	adm := &admission{uid: newID(), ns: ns, kind: KindAgent, sub: s}
	err := l.find(ctx, &call{plan: poolOf(ns, s.Pool), do: func(b *batch) error { return b.submit(adm) }}, l.wherePool(ctx, ns, s.Pool))
	if err != nil {
		return Agent{}, err
	}
	return l.agentByUID(ctx, ns, adm.uid)
}

// DeleteAgent stops an agent, found by its name or its task's id. With a task still
// running on it, force is needed. One that is already gone is a success. destroyGroup
// has the placement group that it sits in removed as well.
func (l *Ledger) DeleteAgent(ctx context.Context, ns, name string, force, destroyGroup bool, actor string) error {
	find := func(b *book) *row {
		s := b.spaces[ns]
		if s == nil {
			return nil
		}
		if r := s.agents[name]; r != nil {
			return r
		}
		if r := s.tasks[name]; r != nil {
			return b.rows[r.agentID()]
		}
		return nil
	}
	if err := l.soon(ctx, ns, name); err != nil {
		return err
	}
	err := l.find(ctx, &call{
		plan: func(b *book) []*pool { return rowPools(b, find(b)) },
		do: func(b *batch) error {
			r := find(b.book)
			if r == nil {
				return refuse(ErrUnknownAgent, "there is no agent %q in namespace %q", name, ns)
			}
			if r.pool == nil {
				return nil
			}
			b.need(rowPools(b.book, r)...)
			if !force {
				if r.kind == KindTask && r.state != Stopping {
					return refuse(ErrWrongState, "agent %q runs task %q: complete or preempt the task first, or use force", r.agentName, r.taskID)
				}
				if on := b.registeredOn(r); len(on) > 0 {
					return refuse(ErrWrongState, "agent %q runs task %q: complete or preempt the task first, or use force", r.agentName, on[0].taskID)
				}
			}
			if destroyGroup {
				b.destroyGroup(r)
			}
			return b.stop(r, Cancelled, "agent_deleted", "its agent was deleted", actor)
		},
	}, l.whereAgent(ctx, ns, name))
	if errors.Is(err, ErrUnknownAgent) {
		return nil
	}
	return err
}
