package api

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Task is a task as answers have it. Lists leave out what can be large:
// actor_args, actor_kwargs, runtime_env, payload, result and saved_state.
type Task struct {
	UID               UID               `json:"uid" doc:"Identifies the task for ever."`
	Namespace         string            `json:"namespace" example:"default"`
	Kind              string            `json:"kind" enum:"task,registered" doc:"task: submitted here. registered: said to run on an agent."`
	TaskID            string            `json:"task_id" doc:"Unique among the live tasks of the namespace." example:"llama-7b-rlhf"`
	State             string            `json:"state" enum:"queued,reserved,launching,running,stopping,preempting,preempted,completed,failed,cancelled"`
	Phase             string            `json:"phase" doc:"Within the state: cancelling, saving, killing, waiting for victims. Often empty."`
	Code              string            `json:"code" doc:"Why it is in this state, for programs; empty when things just went well." example:"launch_timeout"`
	Reason            string            `json:"reason" doc:"The same for people."`
	Pool              string            `json:"pool" example:"train"`
	Managed           bool              `json:"managed" doc:"false: a registered task whose pool or agent is not ours; evaluated, never charged."`
	Priority          sched.Milli       `json:"priority" doc:"Higher goes first." example:"5"`
	Labels            map[string]string `json:"labels"`
	Resources         Units             `json:"resources" doc:"What it asked for."`
	Held              Units             `json:"held" doc:"What it charges its pool now."`
	Attempt           int               `json:"attempt" doc:"1 for the first; a requeued task counts on." example:"1"`
	MaxAttempts       int               `json:"max_attempts"`
	Preemptions       int               `json:"preemptions" doc:"How often it was preempted."`
	PreemptedBy       []UID             `json:"preempted_by" doc:"Uids of the tasks it made way for." nullable:"false"`
	Agent             TaskAgent         `json:"agent" doc:"What runs it. Ray's get_actor(actor_name, namespace=ray_namespace) gives its handle."`
	ActorClass        string            `json:"actor_class" example:"my_project.train:Trainer"`
	PickledName       string            `json:"pickled_name" doc:"Name of the class when it was sent pickled."`
	ActorArgs         json.RawMessage   `json:"actor_args,omitzero"`
	ActorKwargs       json.RawMessage   `json:"actor_kwargs,omitzero"`
	Entry             *EntryBody        `json:"entry,omitempty" doc:"The method called after every launch; left out when there is none."`
	RuntimeEnv        json.RawMessage   `json:"runtime_env,omitzero"`
	RayOptions        json.RawMessage   `json:"ray_options,omitzero"`
	UsePlacementGroup bool              `json:"use_placement_group"`
	PlacementGroup    *TaskSeat         `json:"placement_group,omitempty" doc:"The one that its agent sits in, or is about to; left out when it is in none."`
	Payload           json.RawMessage   `json:"payload,omitzero" doc:"Whatever was sent with it."`
	EstimatedDuration *float64          `json:"estimated_duration" nullable:"true" doc:"Seconds; null when none was given."`
	MaxRuntime        *float64          `json:"max_runtime" nullable:"true" doc:"Seconds; null when there is no limit."`
	OnPreempted       string            `json:"on_preempted" enum:"stop,requeue"`
	OnFailure         string            `json:"on_failure" enum:"stop,requeue"`
	Result            json.RawMessage   `json:"result,omitzero" doc:"What entry returned."`
	SavedState        json.RawMessage   `json:"saved_state,omitzero" doc:"What was saved when it was preempted."`
	QueueTimeout      *float64          `json:"queue_timeout" nullable:"true" doc:"Seconds it may wait; null when it waits for ever. Not in lists."`
	QueuePosition     *int              `json:"queue_position" nullable:"true" doc:"1 goes next; null when it is not in line."`
	Queue             *Queue            `json:"queue,omitempty" doc:"What a queued task waits for; left out for others."`
	SubmittedAt       Stamp             `json:"submitted_at"`
	QueuedAt          Stamp             `json:"queued_at"`
	StartedAt         Stamp             `json:"started_at" doc:"Of this attempt; null before it runs."`
	EndedAt           Stamp             `json:"ended_at"`
	SubmittedBy       string            `json:"submitted_by" example:"api"`
	Links             Links             `json:"links"`
}

// Queue is what a queued task is told, as of the moment it is read.
type Queue struct {
	Position *int   `json:"position" nullable:"true" doc:"1 goes next; null while it waits until it is tried again."`
	Code     string `json:"code" doc:"Why it waits, for programs: no_victims, victims_insufficient, room_reserved, queued_behind, pool_held, backoff, …" example:"no_victims"`
	Reason   string `json:"reason" doc:"The same for people." example:"needs 2 cpu; 1 cpu is free in pool train; nothing may be preempted: …"`
	ETA      Stamp  `json:"eta" doc:"When it is expected to start; null when that cannot be known."`
	Note     string `json:"note" doc:"What the ETA rests on, or why there is none." example:"if what runs takes as long as estimated"`
}

// TaskAgent is the agent of a task.
type TaskAgent struct {
	Name         string `json:"name" example:"train-agent-3b1d7e5f"`
	ActorName    string `json:"actor_name" doc:"Ray's name of the actor; empty until it is launched."`
	RayNamespace string `json:"ray_namespace"`
	ActorID      string `json:"actor_id"`
	NodeID       string `json:"node_id"`
	PID          int    `json:"pid" doc:"Process id on its node, 0 until it is known."`
}

// EntryBody is the method to call.
type EntryBody struct {
	Method string          `json:"method" minLength:"1" maxLength:"200" example:"run"`
	Args   json.RawMessage `json:"args,omitzero" doc:"Array of positional arguments."`
	Kwargs json.RawMessage `json:"kwargs,omitzero" doc:"Object of named arguments."`
}

// taskDoc is the whole task.
func taskDoc(t ledger.Task) Task {
	out := taskRow(t)
	out.ActorArgs, out.ActorKwargs, out.RuntimeEnv = orNil(t.Spec.Args), orNil(t.Spec.Kwargs), orNil(t.Spec.RuntimeEnv)
	out.Payload, out.Result, out.SavedState = orNil(t.Spec.Payload), orNil(t.Result), orNil(t.SavedState)
	return out
}

// taskRow is the task in a list.
func taskRow(t ledger.Task) Task {
	out := Task{
		UID: UID(t.UID), Namespace: t.Namespace, Kind: string(t.Kind), TaskID: t.TaskID, State: string(t.State), Phase: t.Phase,
		Code: t.Code, Reason: t.Reason, Pool: t.Pool, Managed: t.Managed, Priority: t.Priority, Labels: t.Labels,
		Resources: Units(t.Request), Held: Units(t.Held), Attempt: t.Attempt, MaxAttempts: t.MaxAttempts, Preemptions: t.Preemptions,
		Agent:      TaskAgent{t.AgentName, t.ActorName, t.RayNS, t.ActorID, t.Node, t.PID},
		ActorClass: t.Spec.ActorClass, PickledName: t.Spec.PickledName, RayOptions: orNil(t.Spec.RayOptions), UsePlacementGroup: t.Spec.UsePlacementGroup, PlacementGroup: seatDoc(t.Seat),
		EstimatedDuration: secondsOrNull(t.Estimate), MaxRuntime: secondsOrNull(t.MaxRuntime), QueueTimeout: secondsOrNull(t.QueueTimeout), OnPreempted: t.OnPreempted, OnFailure: t.OnFailure,
		SubmittedAt: Stamp(t.SubmittedAt), QueuedAt: Stamp(t.QueuedAt), StartedAt: Stamp(t.StartedAt), EndedAt: Stamp(t.EndedAt),
		SubmittedBy: t.Actor, Links: linksTo(t.Namespace, "tasks", t.TaskID),
	}
	if e := t.Spec.Entry; e != nil {
		out.Entry = &EntryBody{Method: e.Method, Args: orNil(e.Args), Kwargs: orNil(e.Kwargs)}
	}
	for _, id := range t.PreemptedBy {
		out.PreemptedBy = append(out.PreemptedBy, UID(id))
	}
	if t.State == ledger.Queued {
		if t.QueuePosition > 0 {
			out.QueuePosition = &t.QueuePosition
		}
		out.Queue = &Queue{out.QueuePosition, t.Code, t.Reason, Stamp(t.ETA), t.ETANote}
	}
	return out
}

// orNil makes an empty document an absent one; as it is, it would not be JSON.
func orNil(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	return raw
}

func secondsOrNull(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}

// Event is one thing that happened.
type Event struct {
	ID            int64           `json:"id" doc:"Grows; resume a stream after it."`
	At            Stamp           `json:"at"`
	Namespace     string          `json:"namespace"`
	Type          string          `json:"type" doc:"A task's new state, or what happened within one: phase:cancelling, registered, pool.created, policy.changed, …" example:"running"`
	TaskID        string          `json:"task_id" doc:"Empty for events that are not about a task."`
	TaskUID       UID             `json:"task_uid"`
	Pool          string          `json:"pool"`
	Attempt       int             `json:"attempt"`
	Actor         string          `json:"actor" doc:"Who did it; empty for the scheduler." example:"api"`
	Code          string          `json:"code"`
	Message       string          `json:"message" doc:"For people."`
	Detail        json.RawMessage `json:"detail,omitzero"`
	PolicyVersion int             `json:"policy_version" doc:"The policy it happened under; 0 when none was asked."`
}

func eventDoc(e ledger.Event) Event {
	return Event{ID: e.ID, At: Stamp(e.At), Namespace: e.Namespace, Type: e.Type, TaskID: e.TaskID, TaskUID: UID(e.TaskUID), Pool: e.Pool,
		Attempt: e.Attempt, Actor: e.Actor, Code: e.Code, Message: e.Message, Detail: orNil(e.Detail), PolicyVersion: e.PolicyVersion}
}

// TaskPath names a task.
type TaskPath struct {
	Scope
	TaskID string `path:"task_id" doc:"Id of the task, percent-encoded. Names the live task, or else the latest with this id." example:"llama-7b-rlhf"`
}

func (p *TaskPath) check(f *faults) {
	p.Scope.check(f)
	f.name("path", "task_id", p.TaskID)
}

// TaskQuery narrows a list of tasks.
type TaskQuery struct {
	Scope
	Paging
	State []string `query:"state" doc:"Only these states, separated by commas." enum:"queued,reserved,launching,running,stopping,preempting,preempted,completed,failed,cancelled"`
	Live  bool     `query:"live" doc:"Only tasks that have not ended."`
	Pool  string   `query:"pool" doc:"Only tasks of this pool."`
	Text  string   `query:"q" doc:"Only tasks whose id contains this."`
	Label []string `query:"label,explode" doc:"Only tasks with this label, as key=value; repeat it for several."`

	labels sched.Labels
}

func (q *TaskQuery) check(f *faults) {
	q.Scope.check(f)
	q.checkPaging(f)
	f.optionalName("query", "pool", q.Pool)
	f.optionalName("query", "q", q.Text)
	for _, l := range q.Label {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" || unprintable(l) != "" {
			f.add("query", "label", "%.200q is not key=value", l)
			continue
		}
		if q.labels == nil {
			q.labels = sched.Labels{}
		}
		q.labels[k] = v
	}
}

// TaskChange is the part of a live task that people change.
type TaskChange struct {
	Priority          *float64           `json:"priority,omitempty" doc:"The new priority; who may preempt whom follows at once."`
	Labels            *map[string]string `json:"labels,omitempty" doc:"Replaces all labels."`
	EstimatedDuration *float64           `json:"estimated_duration,omitempty" doc:"Seconds from the start of the attempt; 0 takes the estimate away."`
}

// RegistrationBody says that a task runs on an agent.
type RegistrationBody struct {
	AgentName         string            `json:"agent_name" doc:"The agent it runs on; need not be one of ours." example:"agent-1"`
	Pool              string            `json:"pool" doc:"The pool it counts as part of; need not exist." example:"train"`
	Priority          *float64          `json:"priority,omitempty" doc:"5 when left out."`
	Labels            map[string]string `json:"labels,omitempty" doc:"At most 64; keys up to 200 characters, values up to 1,000."`
	EstimatedDuration *float64          `json:"estimated_duration,omitempty" doc:"Seconds it will run; without one it counts as having none left."`
	Payload           json.RawMessage   `json:"payload,omitzero" doc:"Whatever should be kept with it."`
}

// LogQuery asks for output.
type LogQuery struct {
	TaskPath
	Stream string `query:"stream" enum:"stdout,stderr" default:"stdout" doc:"Which output."`
	Offset int64  `query:"offset" doc:"First byte; negative: that many bytes from the end."`
	Limit  int64  `query:"limit" minimum:"1" maximum:"1048576" default:"65536" doc:"The most bytes."`
}

// LogChunk is a piece of output.
type LogChunk struct {
	TaskID     string `json:"task_id"`
	Stream     string `json:"stream"`
	Text       string `json:"text" doc:"What was printed; bytes that are not UTF-8 are replaced."`
	Offset     int64  `json:"offset" doc:"The offset asked for."`
	NextOffset int64  `json:"next_offset" doc:"Where to read on, in bytes."`
	Ended      bool   `json:"ended" doc:"Nothing will follow."`
}

func (a *API) registerTasks(v1 chi.Router) {
	a.registerSubmit(v1)

	register(a, operation{id: "list-tasks", method: "GET", path: "/tasks", tag: "Tasks",
		summary: "List tasks", about: "Newest first. Large fields are left out; read the task for them.", query: "state=running,queued&pool=train",
	}, func(ctx context.Context, in *TaskQuery) (*Doc[List[Task]], error) {
		filter := ledger.TaskFilter{Live: in.Live, Pool: in.Pool, Text: in.Text, Labels: in.labels, Limit: in.Limit, Cursor: in.Cursor}
		for _, s := range in.State {
			filter.States = append(filter.States, ledger.State(s))
		}
		page, err := a.ledger.Tasks(ctx, in.Namespace, filter)
		return doc(list(mapped(page.Items, taskRow), page.Next), err)
	})

	register(a, operation{id: "get-task", method: "GET", path: "/tasks/{task_id}", tag: "Tasks",
		summary: "Read a task", about: "The live task of this id, or else the latest. With `wait` the answer comes once it is running or has ended, at the latest after that time.",
		codes: []string{"unknown_task"},
	}, func(ctx context.Context, in *struct {
		TaskPath
		WaitParam
	}) (*Doc[Task], error) {
		wait, err := in.duration()
		if err != nil {
			return nil, err
		}
		t, err := a.ledger.Task(ctx, in.Namespace, in.TaskID)
		if err == nil && wait > 0 {
			t, err = a.waitTask(ctx, in.Namespace, t, wait)
		}
		return doc(taskDoc(t), err)
	})

	register(a, operation{id: "change-task", method: "PATCH", path: "/tasks/{task_id}", tag: "Tasks",
		summary: "Change a live task", about: "Replaces the fields given.", codes: []string{"unknown_task", "wrong_state"},
		request: `{"priority": 8}`,
	}, func(ctx context.Context, in *struct {
		TaskPath
		Body TaskChange
	}) (*Doc[Task], error) {
		var f faults
		p := ledger.TaskPatch{Actor: actor(ctx)}
		if in.Body.Priority != nil {
			v := f.priority("priority", *in.Body.Priority)
			p.Priority = &v
		}
		if in.Body.Labels != nil {
			f.labels(*in.Body.Labels)
			l := sched.Labels(*in.Body.Labels)
			p.Labels = &l
		}
		if in.Body.EstimatedDuration != nil {
			v := f.seconds("estimated_duration", *in.Body.EstimatedDuration)
			p.Estimate = &v
		}
		if err := f.err(); err != nil {
			return nil, err
		}
		t, err := a.ledger.Patch(ctx, in.Namespace, in.TaskID, p)
		return doc(taskDoc(t), err)
	})

	action := func(id, verb, method, path, summary, about string, do func(ctx context.Context, ns, taskID, actor string) (ledger.Task, error)) {
		register(a, operation{id: id, method: method, path: path, tag: "Tasks", summary: summary, about: about,
			codes: []string{"unknown_task", "wrong_state", "bridge_unavailable"},
		}, func(ctx context.Context, in *TaskPath) (*Doc[Task], error) {
			t, err := do(ctx, in.Namespace, in.TaskID, actor(ctx))
			return doc(taskDoc(t), err)
		})
	}
	action("cancel-task", "cancel", "DELETE", "/tasks/{task_id}", "Cancel a task",
		"Ends a live task; its agent is asked to stop and then removed. Answers at once: read the task to see it gone.", a.ledger.Cancel)
	action("complete-task", "complete", "POST", "/tasks/{task_id}/complete", "Complete a task",
		"Ends a running task as done. A submitted task's agent is stopped too; a registered task's agent stays.", a.ledger.Complete)
	action("restore-task", "restore", "POST", "/tasks/{task_id}/restore", "Restore a preempted task",
		"A preempted task runs again from its saved state as soon as there is room.", a.ledger.Restore)

	register(a, operation{id: "preempt-task", method: "POST", path: "/tasks/{task_id}/preempt", tag: "Tasks",
		summary: "Preempt a task by hand", about: "Cancels the task and saves its state; its agent stays, idle. Answers when that is done.",
		codes: []string{"unknown_task", "wrong_state", "bridge_unavailable"},
	}, func(ctx context.Context, in *TaskPath) (*Doc[PreemptResult], error) {
		return a.preempt(ctx, in.Namespace, in.TaskID, "", "")
	})

	register(a, operation{id: "register-task", method: "PUT", path: "/tasks/{task_id}/register", tag: "Tasks",
		summary: "Register a running task", about: "Says that a task runs on an agent. It charges nothing of its own, and may name agents and pools that were not made here: it is then evaluated, never charged.",
		codes:   []string{"task_exists", "wrong_state"},
		request: `{"agent_name": "agent-1", "pool": "train", "priority": 1, "labels": {"tier": "batch"}, "estimated_duration": 60}`,
	}, func(ctx context.Context, in *struct {
		TaskPath
		Body RegistrationBody
	}) (*Doc[Task], error) {
		var f faults
		b := in.Body
		f.name("body", "agent_name", b.AgentName)
		f.name("body", "pool", b.Pool)
		f.labels(b.Labels)
		r := ledger.Registration{TaskID: in.TaskID, AgentName: b.AgentName, Pool: b.Pool, Labels: b.Labels, Payload: given(b.Payload), Actor: actor(ctx),
			Priority: f.priority("priority", orDefault(b.Priority, defaultPriority)), Estimate: f.seconds("estimated_duration", orDefault(b.EstimatedDuration, 0))}
		if err := f.err(); err != nil {
			return nil, err
		}
		t, err := a.ledger.Register(ctx, in.Namespace, r)
		return doc(taskDoc(t), err)
	})

	register(a, operation{id: "list-task-events", method: "GET", path: "/tasks/{task_id}/events", tag: "Tasks",
		summary: "Read a task's timeline", about: "Every transition of the task, oldest first, on one page.", codes: []string{"unknown_task"},
	}, func(ctx context.Context, in *TaskPath) (*Doc[List[Event]], error) {
		events, err := a.ledger.TaskEvents(ctx, in.Namespace, in.TaskID)
		return doc(list(mapped(events, eventDoc), ""), err)
	})

	register(a, operation{id: "read-task-logs", method: "GET", path: "/tasks/{task_id}/logs", tag: "Tasks",
		summary: "Read a task's output", about: "What its agent printed, while it runs and after it ended. Read on from `next_offset` until `ended`.",
		codes: []string{"unknown_task", "bridge_unavailable"}, query: "stream=stderr&offset=-4096",
	}, func(ctx context.Context, in *LogQuery) (*Doc[LogChunk], error) {
		text, next, ended, err := a.logs.Logs(ctx, in.Namespace, in.TaskID, in.Stream, in.Offset, in.Limit)
		return doc(LogChunk{in.TaskID, in.Stream, text, in.Offset, next, ended}, err)
	})
}

// WaitParam lets a request wait for a task or an agent.
type WaitParam struct {
	Wait string `query:"wait" doc:"Wait until it is running or has ended, at most this long: 30s, 1m30s, or seconds. More than 10 minutes counts as 10 minutes." example:"30s"`
}

func (p *WaitParam) duration() (time.Duration, error) {
	d, bad := parseWait(p.Wait)
	if bad != "" {
		var f faults
		f.add("query", "wait", "%s", bad)
		return 0, f.err()
	}
	return d, nil
}

// waitTask gives the task once it is running or has ended, or as it is when the time is up.
func (a *API) waitTask(ctx context.Context, ns string, t ledger.Task, wait time.Duration) (ledger.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return a.waitUntil(ctx, ns, t)
}

// waitUntil is waitTask until ctx ends.
func (a *API) waitUntil(ctx context.Context, ns string, t ledger.Task) (ledger.Task, error) {
	if t.State == ledger.Running || !t.State.Live() {
		return t, nil
	}
	return a.ledger.WaitTask(ctx, ns, t.UID)
}

func orDefault(v *float64, def float64) float64 {
	if v == nil {
		return def
	}
	return *v
}
