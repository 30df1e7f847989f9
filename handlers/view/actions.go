package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// preemptWait is how long a page waits to see that a preemption by hand began. Saving
// may take a minute; the task's page shows how it goes on.
const preemptWait = 2 * time.Second

func actor(ctx context.Context) string {
	if name := pages.User(ctx); name != "" {
		return name
	}
	return "dashboard"
}

// submitFields are the fields of the form of a task.
var submitFields = []string{
	"task_id", "pool", "actor_class", "actor_args", "actor_kwargs", "entry_method", "entry_args", "entry_kwargs", "cpu", "gpu", "memory", "resources",
	"priority", "labels", "estimated_duration", "max_runtime", "on_insufficient", "on_preempted", "on_failure", "max_attempts", "runtime_env", "queue_timeout", "retry_backoff", "placement_group",
}

// SubmitTask submits what the form says.
func (v *View) SubmitTask(ctx context.Context, ns string, t web.NewTask) (string, error) {
	s, err := submission(ctx, t)
	if err != nil {
		return "", err
	}
	made, err := v.l.Submit(ctx, ns, s)
	v.frames.forget(ns)
	byCode := map[string]string{"unknown_pool": "pool", "task_exists": "task_id"}
	return made.TaskID, v.onForm(ctx, err, byCode, submitFields...)
}

func submission(ctx context.Context, t web.NewTask) (ledger.Submission, error) {
	request, err := amounts(t.Request)
	if err != nil {
		return ledger.Submission{}, err
	}
	priority, err := sched.MilliFromFloat(t.Priority)
	if err != nil {
		return ledger.Submission{}, invalid("priority", sentence(err.Error()))
	}
	for _, doc := range []struct {
		field string
		raw   json.RawMessage
		kind  byte
	}{{"actor_args", t.Args, '['}, {"actor_kwargs", t.Kwargs, '{'}, {"entry_args", t.EntryArgs, '['}, {"entry_kwargs", t.EntryKwargs, '{'}, {"runtime_env", t.RuntimeEnv, '{'}} {
		if len(doc.raw) > 0 && (!json.Valid(doc.raw) || doc.raw[0] != doc.kind) {
			return ledger.Submission{}, invalid(doc.field, map[byte]string{'[': "It should be a JSON list.", '{': "It should be a JSON object."}[doc.kind])
		}
	}
	s := ledger.Submission{TaskID: t.TaskID, Pool: t.Pool, Request: request, Priority: priority, Labels: t.Labels,
		Spec:     ledger.Spec{ActorClass: t.ActorClass, Args: t.Args, Kwargs: t.Kwargs, RuntimeEnv: t.RuntimeEnv, UsePlacementGroup: t.PlacementGroup, KeepQuota: t.KeepQuota},
		Estimate: t.Estimate, MaxRuntime: t.MaxRuntime, OnInsufficient: t.OnInsufficient, OnPreempted: t.OnPreempted, OnFailure: t.OnFailure,
		MaxAttempts: t.MaxAttempts, QueueTimeout: t.QueueTimeout, RetryBackoff: t.RetryBackoff, Actor: actor(ctx)}
	if t.EntryMethod != "" {
		s.Spec.Entry = &ledger.Entry{Method: t.EntryMethod, Args: t.EntryArgs, Kwargs: t.EntryKwargs}
	}
	return s, nil
}

// live finds the live task that an action names by id or uid. A page may be old: the
// uid of a task that ended must not act on another that has its id by now.
func (v *View) live(ctx context.Context, ns, id string) (ledger.TaskReport, error) {
	t, err := v.l.TaskReport(ctx, ns, id)
	if err != nil {
		return t, v.refused(ctx, err)
	}
	if !t.State.Live() {
		return t, &pages.Refusal{ErrorCode: "wrong_state", Message: fmt.Sprintf("%s is %s already.", t.TaskID, t.State)}
	}
	return t, nil
}

// CompleteTask ends a task as done.
func (v *View) CompleteTask(ctx context.Context, ns, id string) error {
	return v.end(ctx, ns, id, v.l.Complete)
}

// CancelTask ends a task whatever it does.
func (v *View) CancelTask(ctx context.Context, ns, id string) error {
	return v.end(ctx, ns, id, v.l.Cancel)
}

func (v *View) end(ctx context.Context, ns, id string, do func(ctx context.Context, ns, id, actor string) (ledger.Task, error)) error {
	t, err := v.live(ctx, ns, id)
	if err != nil {
		return err
	}
	_, err = do(ctx, ns, t.TaskID, actor(ctx))
	return v.refused(ctx, err)
}

// PreemptTask begins to cancel and save a task; its agent stays.
func (v *View) PreemptTask(ctx context.Context, ns, id string) error {
	t, err := v.live(ctx, ns, id)
	if err != nil {
		return err
	}
	begun, cancel := context.WithTimeout(ctx, preemptWait)
	defer cancel()
	_, err = v.l.Preempt(begun, ns, ledger.PreemptRequest{TaskID: t.TaskID, Actor: actor(ctx)})
	if err == nil || ctx.Err() != nil || begun.Err() == nil {
		return v.refused(ctx, err)
	}
	// It takes longer than a page waits. Did it begin?
	now, readErr := v.l.TaskReport(ctx, ns, uid(t.UID))
	if readErr != nil {
		return v.refused(ctx, errors.Join(readErr, err))
	}
	if now.State == ledger.Running && now.Attempt == t.Attempt {
		return &pages.Refusal{ErrorCode: "preemption_unavailable", Message: "The preemption could not begin in time. Try again."}
	}
	return nil
}

// SetPriority changes the priority of a live task.
func (v *View) SetPriority(ctx context.Context, ns, id string, priority float64) error {
	p, err := sched.MilliFromFloat(priority)
	if err != nil {
		return invalid("priority", sentence(err.Error()))
	}
	t, err := v.live(ctx, ns, id)
	if err != nil {
		return err
	}
	_, err = v.l.Patch(ctx, ns, t.TaskID, ledger.TaskPatch{Priority: &p, Actor: actor(ctx)})
	return v.onForm(ctx, err, nil, "priority")
}

// DeleteAgent stops an agent.
func (v *View) DeleteAgent(ctx context.Context, ns, name string, force bool) error {
	if _, err := v.l.Agent(ctx, ns, name); err != nil {
		return v.refused(ctx, err)
	}
	err := v.l.DeleteAgent(ctx, ns, name, force, false, actor(ctx))
	v.frames.forget(ns)
	return v.refused(ctx, err)
}
