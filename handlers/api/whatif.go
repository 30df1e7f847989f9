package api

import (
	"context"
	"encoding/json"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// WhatIfBody supposes a task, another policy, or both.
type WhatIfBody struct {
	Task   *SupposedTask `json:"task,omitempty" doc:"A task that is asked about instead of submitted. Left out: what the draft would mean for tasks that wait and run now."`
	Policy *PolicyFields `json:"policy,omitempty" doc:"A draft: fields that replace those of the active policy, each as a whole; or all of them."`
	Limit  int           `json:"limit,omitempty" minimum:"0" maximum:"200" doc:"The most items of each list; 20 when left out."`
}

// SupposedTask is a task that is asked about instead of submitted.
type SupposedTask struct {
	TaskID    string             `json:"task_id,omitempty" doc:"A queued task: what is left out here is taken from it." example:"waiting-job"`
	Pool      string             `json:"pool,omitempty" doc:"The pool it would be submitted to." example:"train"`
	Priority  *float64           `json:"priority,omitempty" doc:"5 when left out."`
	Labels    *map[string]string `json:"labels,omitempty"`
	Resources *Amounts           `json:"resources,omitempty" doc:"Without, there is no decision, only who may be preempted."`
}

// WhatIf is what would be decided.
type WhatIf struct {
	PolicyVersion int             `json:"policy_version" doc:"The active policy."`
	Changes       []FieldChange   `json:"changes" nullable:"false" doc:"What the draft would change in it."`
	Warnings      []string        `json:"warnings" nullable:"false" doc:"What is allowed in the draft but probably not meant."`
	LiveTasks     int             `json:"live_tasks"`
	Task          *Supposed       `json:"task,omitempty" doc:"The task as it was asked about; left out without one."`
	Active        *Judgement      `json:"active,omitempty" doc:"Under the active policy; left out without a task."`
	Draft         *Judgement      `json:"draft,omitempty" doc:"Under the draft, from the same state; left out without a task or a draft."`
	Queue         *WhatIfQueue    `json:"queue,omitempty" doc:"With a draft alone: tasks that wait."`
	Running       *WhatIfExposure `json:"running,omitempty" doc:"With a draft alone: tasks that run."`
}

// Supposed is a supposed task, complete.
type Supposed struct {
	TaskID    string            `json:"task_id"`
	Pool      string            `json:"pool"`
	Priority  sched.Milli       `json:"priority"`
	Labels    map[string]string `json:"labels" nullable:"false"`
	Resources Units             `json:"resources"`
}

// Judgement is what one policy says of a supposed task.
type Judgement struct {
	Decision *Decision      `json:"decision,omitempty" doc:"Left out when no resources were asked for."`
	Judged   int            `json:"judged" doc:"Live tasks looked at: all of them, or a sample of 1,000."`
	Eligible int            `json:"eligible" doc:"How many of these may be preempted."`
	Safe     map[string]int `json:"safe" nullable:"false" doc:"The others by code."`
	Tasks    []Verdict      `json:"tasks" nullable:"false" doc:"The best of the eligible, then safe ones of every kind."`
}

// Verdict is what a policy says of one live task.
type Verdict struct {
	Candidate
	Eligible bool   `json:"eligible"`
	Taken    bool   `json:"taken" doc:"It would be preempted."`
	Code     string `json:"code" doc:"Why it is safe: itself, preempted_it_before, protected_pool, outranks_by_label, cross_pool_off, below_threshold, below_min_score, preempted_too_often, too_fresh, pool_rate_limited, agent_unmanaged, agent_not_settled, other_cluster, shares_agent; empty when it is eligible."`
	Message  string `json:"message" doc:"The same as a sentence, and what would have to change."`
}

// WhatIfQueue is what would become of tasks that wait, each asked by itself as things are.
type WhatIfQueue struct {
	Waiting int           `json:"waiting" doc:"Tasks that wait in all."`
	Items   []QueueEffect `json:"items" nullable:"false" doc:"Those asked, the first in line of each pool before the second; what changes is listed first."`
}

// QueueEffect is what would become of one queued task.
type QueueEffect struct {
	TaskID   string      `json:"task_id"`
	TaskUID  UID         `json:"task_uid"`
	PoolName string      `json:"pool_name"`
	Priority sched.Milli `json:"priority"`
	Position int         `json:"position"`
	Changed  bool        `json:"changed"`
	Active   *Decision   `json:"active"`
	Draft    *Decision   `json:"draft"`
}

// WhatIfExposure says which running tasks a draft exposes, and which it protects.
type WhatIfExposure struct {
	Judged    int           `json:"judged" doc:"Running tasks compared: all of them, or a sample of 500."`
	Newcomers int           `json:"newcomers" doc:"Kinds of newcomers they were compared with, by pool, priority and labels: like the tasks that wait and run now, at most 20."`
	Takeable  int           `json:"takeable" doc:"Running tasks that some newcomer could take under the draft, and cannot now."`
	Protected int           `json:"protected" doc:"Running tasks that some newcomer can take now, and could not under the draft."`
	Items     []ExposedTask `json:"items" nullable:"false"`
}

// ExposedTask is a running task that changes.
type ExposedTask struct {
	TaskID    string      `json:"task_id"`
	PoolName  string      `json:"pool_name"`
	Priority  sched.Milli `json:"priority"`
	Change    string      `json:"change" enum:"takeable,protected"`
	By        string      `json:"by" doc:"A task like those newcomers."`
	ByPool    string      `json:"by_pool"`
	Newcomers int         `json:"newcomers" doc:"For how many kinds of newcomers it changes."`
	Active    string      `json:"active" doc:"What the active policy says of it, for that newcomer."`
	Draft     string      `json:"draft" doc:"What the draft says."`
}

func judgementDoc(j *ledger.Judgement) *Judgement {
	if j == nil {
		return nil
	}
	out := &Judgement{Judged: j.Judged, Eligible: j.Eligible, Safe: map[string]int{}, Tasks: mapped(j.Verdicts, func(v sched.Verdict) Verdict {
		return Verdict{candidateDoc(v.Candidate), v.Eligible, v.Taken, string(v.Code), v.Message}
	})}
	for code, n := range j.Safe {
		out.Safe[string(code)] = n
	}
	if j.Decision != nil {
		out.Decision = decisionDoc(*j.Decision)
	}
	return out
}

func whatIfDoc(a ledger.WhatIfAnswer) WhatIf {
	out := WhatIf{PolicyVersion: a.PolicyVersion, Changes: mapped(a.Changes, fieldChange), Warnings: a.Warnings, LiveTasks: a.Live, Active: judgementDoc(a.Active), Draft: judgementDoc(a.Draft)}
	if out.Warnings == nil {
		out.Warnings = []string{}
	}
	if t := a.Task; t != nil {
		out.Task = &Supposed{TaskID: t.Name, Pool: t.Pool, Priority: t.Priority, Labels: t.Labels, Resources: Units(t.Request)}
		if out.Task.Labels == nil {
			out.Task.Labels = map[string]string{}
		}
		return out
	}
	out.Queue = &WhatIfQueue{Waiting: a.Queued, Items: mapped(a.Queue, func(e ledger.QueueEffect) QueueEffect {
		return QueueEffect{e.TaskID, UID(e.UID), e.Pool, e.Priority, e.Position, e.Changed, decisionDoc(e.Active), decisionDoc(e.Draft)}
	})}
	out.Running = &WhatIfExposure{Judged: a.Shift.Judged, Newcomers: a.Shift.Profiles, Takeable: a.Shift.Takeable, Protected: a.Shift.Protected,
		Items: mapped(a.Shift.Items, func(x ledger.ExposedTask) ExposedTask {
			change := "protected"
			if x.Takeable {
				change = "takeable"
			}
			return ExposedTask{x.TaskID, x.Pool, x.Priority, change, x.By, x.ByPool, x.ByCount, x.Active, x.Draft}
		})}
	return out
}

func (a *API) registerWhatIf() {
	register(a, operation{id: "what-if", method: "POST", path: "/policy/what-if", tag: "Policy",
		summary: "Ask what would happen",
		about: "Supposes a task, a draft of the policy, or both, against the state of this moment: whether the task would run and where, whom it would preempt and why, and why not the others, under the active policy and under the draft. " +
			"With a draft alone: what would become of the tasks that wait, and which running ones would become takeable or protected. Changes nothing. " +
			"What is looked at is bounded (1,000 tasks for one newcomer, the limit for the queue), so that asking does not hold up admissions.",
		codes:   []string{"unknown_task", "wrong_state"},
		request: `{"task": {"pool": "train", "priority": 8, "resources": {"gpu": 2}}, "policy": {"same_pool_priority_threshold": 2}}`,
	}, func(ctx context.Context, in *struct {
		Scope
		Body WhatIfBody
	}) (*Doc[WhatIf], error) {
		var f faults
		w := ledger.WhatIf{Limit: in.Body.Limit}
		if in.Body.Task == nil && in.Body.Policy == nil {
			f.add("body", "task", "is missing; suppose a task, or a draft of the policy, or both")
		}
		if t := in.Body.Task; t != nil {
			w.Task = f.supposed(t)
		}
		if err := f.err(); err != nil {
			return nil, err
		}
		if in.Body.Policy != nil {
			// As in PATCH: checked here only to name the fields as they were sent.
			if _, _, err := sched.DefaultPolicy().Patch(*in.Body.Policy); err != nil {
				return nil, policyFaults(err)
			}
			w.Draft = json.RawMessage(*in.Body.Policy)
		}
		out, err := a.ledger.WhatIf(ctx, in.Namespace, w)
		return doc(whatIfDoc(out), err)
	})
}

func (f *faults) supposed(t *SupposedTask) *ledger.Supposed {
	out := &ledger.Supposed{TaskID: t.TaskID, Pool: t.Pool}
	f.optionalName("body", "task.task_id", t.TaskID)
	if t.TaskID == "" {
		f.name("body", "task.pool", t.Pool)
	} else {
		f.optionalName("body", "task.pool", t.Pool)
	}
	if t.Priority != nil {
		p := f.priority("task.priority", *t.Priority)
		out.Priority = &p
	}
	if t.Labels != nil {
		f.labels(*t.Labels)
		labels := sched.Labels(*t.Labels)
		out.Labels = &labels
	}
	if t.Resources != nil {
		r := f.resources("task.resources", *t.Resources)
		out.Request = &r
	}
	return out
}
