package api

import (
	"context"
	"encoding/json"

	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// EvaluationBody describes a task that might arrive.
type EvaluationBody struct {
	Pool      string            `json:"pool" doc:"The pool it would be submitted to; need not exist." example:"train"`
	Priority  *float64          `json:"priority,omitempty" doc:"5 when left out."`
	Labels    map[string]string `json:"labels,omitempty"`
	Resources *Amounts          `json:"resources,omitempty" doc:"With resources, the answer also has the decision: whether it fits, and whom exactly it would take. Without, every eligible task is a candidate."`
	Limit     int               `json:"limit,omitempty" minimum:"0" maximum:"10000" doc:"The most candidates; 100 when left out."`
}

// Candidate is a task that would have to make way if asked, and why.
type Candidate struct {
	TaskID        string      `json:"task_id" example:"batch-job"`
	TaskUID       UID         `json:"task_uid"`
	AgentName     string      `json:"agent_name" example:"agent-1"`
	PoolName      string      `json:"pool_name" example:"train"`
	Priority      sched.Milli `json:"priority"`
	PreemptScore  sched.Micro `json:"preempt_score" doc:"score_base + κ · remaining_time."`
	Reason        string      `json:"reason" enum:"label_based_preemption,same_pool_preemption,cross_pool_preemption"`
	RemainingTime float64     `json:"remaining_time" doc:"Seconds of its estimate that are left; 0 when it gave none."`
	PriorityDelta sched.Milli `json:"priority_delta" doc:"The incoming priority − its own."`
	ScoreBase     sched.Milli `json:"score_base" doc:"priority_delta, but by label at least label_priority_threshold."`
	Label         *LabelRule  `json:"label,omitempty" doc:"The label rule; left out when it is another rule."`
}

// LabelRule is the rule by which one label value may preempt another.
type LabelRule struct {
	Key  string `json:"key" example:"tier"`
	By   string `json:"by" doc:"Value of the incoming task." example:"premium"`
	Over string `json:"over" doc:"Value of the victim." example:"batch"`
}

func candidateDoc(c sched.Candidate) Candidate {
	out := Candidate{TaskID: c.TaskName, TaskUID: UID(c.Task), AgentName: c.AgentName, PoolName: c.Pool, Priority: c.Priority,
		PreemptScore: c.Score, Reason: string(c.Reason), RemainingTime: float64(c.Remaining) / 1000, PriorityDelta: c.Delta, ScoreBase: c.Base}
	if c.LabelKey != "" {
		out.Label = &LabelRule{c.LabelKey, c.LabelBy, c.LabelOver}
	}
	return out
}

// Decision says whether a task would run, where, and at whose cost.
type Decision struct {
	Outcome     string   `json:"outcome" enum:"admit,preempt,refuse" doc:"admit: fits as things are. preempt: fits once the victims are gone. refuse: does not fit."`
	NodeID      string   `json:"node_id" doc:"Where there is, or will be, room; empty when no nodes are known."`
	Deficit     Units    `json:"deficit" doc:"Quota its pool lacks."`
	RoomDeficit Units    `json:"room_deficit" doc:"What the node lacks before victims are gone."`
	Victims     []Victim `json:"victims" nullable:"false"`
	Refusal     *Refusal `json:"refusal,omitempty" doc:"Only when the outcome is refuse."`
}

// Victim is an agent that would make way, with everything that runs on it.
type Victim struct {
	AgentName    string      `json:"agent_name"`
	PoolName     string      `json:"pool_name"`
	NodeID       string      `json:"node_id"`
	Gives        Units       `json:"gives" doc:"What is freed."`
	Takes        Units       `json:"takes" doc:"What of it the incoming task needs as quota."`
	Loan         bool        `json:"loan" doc:"It is lent by another pool."`
	PreemptScore sched.Micro `json:"preempt_score"`
	Tasks        []Candidate `json:"tasks" nullable:"false"`
}

// Refusal says why a task neither fits nor may make room.
type Refusal struct {
	Code       string         `json:"code" enum:"unknown_pool,request_too_large,no_node_large_enough,no_victims,victims_insufficient,room_reserved,pool_held"`
	Message    string         `json:"message"`
	Missing    Units          `json:"missing" doc:"What stays missing when everything that may be preempted is gone."`
	Considered int            `json:"considered" doc:"Live tasks looked at."`
	Counted    bool           `json:"counted" doc:"False when there are too many tasks to count for an answer in time: eligible and safe then say nothing."`
	Eligible   int            `json:"eligible" doc:"Those that may be preempted."`
	Safe       map[string]int `json:"safe" doc:"The others by why they are safe: protected, below_threshold, outranks_by_label, cross_pool_off, below_min_score, preempted_it, too_often, too_fresh, pool_rate, unmanaged, unsettled, other_cluster, shares_agent."`
}

func refusalDoc(r sched.Refusal) *Refusal {
	out := &Refusal{Code: string(r.Code), Message: r.Message, Missing: Units(r.Short), Considered: r.Considered, Counted: !r.Uncounted, Eligible: r.Eligible, Safe: map[string]int{}}
	for name, n := range map[string]int{
		"protected": r.Protected, "below_threshold": r.BelowThreshold, "outranks_by_label": r.OutrankByLabel, "cross_pool_off": r.CrossPoolOff,
		"below_min_score": r.BelowMinScore, "preempted_it": r.PreemptedIt, "too_often": r.TooOften, "too_fresh": r.TooFresh, "pool_rate": r.PoolRate,
		"unmanaged": r.Unmanaged, "unsettled": r.Unsettled, "other_cluster": r.OtherCluster, "shares_agent": r.SharesAgent,
	} {
		if n > 0 {
			out.Safe[name] = n
		}
	}
	return out
}

func decisionDoc(d sched.Decision) *Decision {
	out := &Decision{Outcome: string(d.Outcome), NodeID: string(d.Node), Deficit: Units(d.Deficit), RoomDeficit: Units(d.RoomDeficit), Victims: []Victim{}}
	for _, v := range d.Victims {
		out.Victims = append(out.Victims, Victim{v.AgentName, v.Pool, string(v.Node), Units(v.Gives), Units(v.Takes), v.Loan, v.Score, mapped(v.Tasks, candidateDoc)})
	}
	if d.Outcome == sched.Refuse {
		out.Refusal = refusalDoc(d.Refusal)
	}
	return out
}

// explanation puts the facts of a refusal into the API's shapes and units.
func explanation(detail any) any {
	switch d := detail.(type) {
	case sched.Refusal:
		return refusalDoc(d)
	case *sched.Refusal:
		if d == nil {
			return nil
		}
		return refusalDoc(*d)
	case sched.Decision:
		return decisionDoc(d)
	case *sched.Decision:
		if d == nil {
			return nil
		}
		return decisionDoc(*d)
	case jobs.Placement:
		return placementDoc(&d)
	case *jobs.Placement:
		return placementDoc(d)
	case []sched.Change:
		return mapped(d, fieldChange)
	}
	return detail
}

// Evaluation answers whether a task that might arrive could make room.
type Evaluation struct {
	ShouldPreempt bool        `json:"should_preempt" doc:"Without resources: somebody may be preempted. With: it does not fit as things are, and preempting would help."`
	Candidates    []Candidate `json:"candidates" nullable:"false" doc:"Best first: highest score, then lowest priority, then latest start."`
	Decision      *Decision   `json:"decision,omitempty" doc:"Only when resources were given."`
	PolicyVersion int         `json:"policy_version"`
}

// ExecutionBody names the task to preempt.
type ExecutionBody struct {
	TaskID    string `json:"task_id,omitempty" doc:"The task. One of task_id and agent_name is needed; with both, the task must run on that agent." example:"batch-job"`
	AgentName string `json:"agent_name,omitempty" doc:"The agent it runs on." example:"agent-1"`
	Reason    string `json:"reason,omitempty" enum:"label_based_preemption,same_pool_preemption,cross_pool_preemption,manual" doc:"The rule an evaluation named for it, under which it is counted; manual when left out."`
}

// PreemptResult is what preempting by hand brought.
type PreemptResult struct {
	Success       bool            `json:"success" doc:"The task was preempted. Also true when its cancel failed: its state is saved all the same."`
	TaskID        string          `json:"task_id"`
	AgentName     string          `json:"agent_name"`
	PoolName      string          `json:"pool_name"`
	CancelSuccess bool            `json:"cancel_success" doc:"The agent said that it stopped, in time."`
	SavedState    json.RawMessage `json:"saved_state" doc:"What the task saved; null when there is none."`
	Error         string          `json:"error" doc:"Why cancelling or saving failed; empty when both went well."`
	PreemptionID  int64           `json:"preemption_id"`
	Phase         string          `json:"phase" doc:"gone once it is over; another phase when the request ended before."`
}

// Preemption is one task that made way: decision, phases and outcome.
type Preemption struct {
	ID              int64           `json:"id"`
	Namespace       string          `json:"namespace"`
	TaskID          string          `json:"task_id" doc:"The task that made way."`
	TaskUID         UID             `json:"task_uid"`
	PreemptorTaskID string          `json:"preemptor_task_id" doc:"The task it made way for; empty when it was asked for by hand."`
	PreemptorUID    UID             `json:"preemptor_uid"`
	PreemptorPool   string          `json:"preemptor_pool"`
	AgentName       string          `json:"agent_name"`
	PoolName        string          `json:"pool_name"`
	Priority        sched.Milli     `json:"priority"`
	Reason          string          `json:"reason" enum:"label_based_preemption,same_pool_preemption,cross_pool_preemption,manual"`
	PreemptScore    sched.Micro     `json:"preempt_score"`
	Explanation     json.RawMessage `json:"explanation" doc:"How the score came about; null for one by hand."`
	PolicyVersion   int             `json:"policy_version"`
	Phase           string          `json:"phase" enum:"decided,cancelling,saving,killing,gone,undone"`
	Taken           Units           `json:"taken" doc:"Quota that went to the preemptor."`
	Loan            bool            `json:"loan"`
	CancelSuccess   *bool           `json:"cancel_success" nullable:"true" doc:"null until the agent answered."`
	CancelError     string          `json:"cancel_error"`
	SaveError       string          `json:"save_error"`
	SavedState      json.RawMessage `json:"saved_state"`
	DecidedAt       Stamp           `json:"decided_at"`
	CancelledAt     Stamp           `json:"cancelled_at"`
	SavedAt         Stamp           `json:"saved_at"`
	GoneAt          Stamp           `json:"gone_at"`
	RunningAt       Stamp           `json:"running_at" doc:"When the preemptor ran."`
	Actor           string          `json:"actor"`
}

func preemptionDoc(p ledger.Preemption) Preemption {
	return Preemption{ID: p.ID, Namespace: p.Namespace, TaskID: p.VictimTask, TaskUID: UID(p.VictimUID), PreemptorTaskID: p.PreemptorTask,
		PreemptorUID: UID(p.PreemptorUID), PreemptorPool: p.PreemptorPool, AgentName: p.AgentName, PoolName: p.Pool, Priority: p.Priority,
		Reason: p.Reason, PreemptScore: p.Score, Explanation: orNull(p.Explanation), PolicyVersion: p.PolicyVersion, Phase: p.Phase,
		Taken: Units(p.Taken), Loan: p.Loan, CancelSuccess: p.CancelSuccess, CancelError: p.CancelError, SaveError: p.SaveError,
		SavedState: orNull(p.SavedState), DecidedAt: Stamp(p.DecidedAt), CancelledAt: Stamp(p.CancelledAt), SavedAt: Stamp(p.SavedAt),
		GoneAt: Stamp(p.GoneAt), RunningAt: Stamp(p.RunningAt), Actor: p.Actor}
}

// Stats are figures of preemption since the namespace began.
type Stats struct {
	Total     int64    `json:"total_preemptions" doc:"All of them, by hand included."`
	SamePool  int64    `json:"same_pool_preemptions" doc:"By reason; each counts once."`
	CrossPool int64    `json:"cross_pool_preemptions"`
	Label     int64    `json:"label_preemptions"`
	Failed    int64    `json:"failed_cancels" doc:"Victims whose cancel failed or did not answer in time."`
	Running   int64    `json:"running_tasks" doc:"Tasks that run now."`
	Recent    []Recent `json:"recent_preemptions" nullable:"false" doc:"Newest first."`
}

// Recent is a preemption as statistics show it.
type Recent struct {
	Timestamp       float64         `json:"timestamp" doc:"Seconds since the Unix epoch." example:"1772357400.25"`
	TaskID          string          `json:"task_id"`
	PreemptorTaskID string          `json:"preemptor_task_id"`
	AgentName       string          `json:"agent_name"`
	PoolName        string          `json:"pool_name"`
	Priority        sched.Milli     `json:"priority"`
	Reason          string          `json:"reason"`
	CancelSuccess   *bool           `json:"cancel_success" nullable:"true"`
	SavedState      json.RawMessage `json:"saved_state"`
}

func statsDoc(s ledger.Stats) Stats {
	return Stats{Total: s.Total, SamePool: s.SamePool, CrossPool: s.CrossPool, Label: s.Label, Failed: s.FailedCancels, Running: s.RunningTasks,
		Recent: mapped(s.Recent, func(p ledger.Preemption) Recent {
			return Recent{Timestamp: float64(p.DecidedAt.UnixMilli()) / 1000, TaskID: p.VictimTask, PreemptorTaskID: p.PreemptorTask, AgentName: p.AgentName,
				PoolName: p.Pool, Priority: p.Priority, Reason: p.Reason, CancelSuccess: p.CancelSuccess, SavedState: orNull(p.SavedState)}
		})}
}

// preempt answers once the task is cancelled and saved.
func (a *API) preempt(ctx context.Context, ns, taskID, agentName, reason string) (*Doc[PreemptResult], error) {
	p, err := a.ledger.Preempt(ctx, ns, ledger.PreemptRequest{TaskID: taskID, AgentName: agentName, Reason: sched.Reason(reason), Actor: actor(ctx)})
	if err != nil {
		return nil, err
	}
	out := PreemptResult{Success: p.Phase != "undone", TaskID: p.VictimTask, AgentName: p.AgentName, PoolName: p.Pool,
		CancelSuccess: p.CancelSuccess != nil && *p.CancelSuccess, SavedState: orNull(p.SavedState), Error: p.CancelError, PreemptionID: p.ID, Phase: p.Phase}
	if p.SaveError != "" {
		if out.Error != "" {
			out.Error += "; "
		}
		out.Error += p.SaveError
	}
	return &Doc[PreemptResult]{Body: out}, nil
}

func (a *API) registerPreemption() {
	register(a, operation{id: "evaluate-preemption", method: "POST", path: "/preemption/evaluate", tag: "Preemption",
		summary: "Evaluate preemption", about: "Asks who would make way for a task, without changing anything.",
		request: `{"pool": "train", "priority": 8, "labels": {"tier": "premium"}, "resources": {"cpu": 2, "memory": 4096}}`,
	}, func(ctx context.Context, in *struct {
		Scope
		Body EvaluationBody
	}) (*Doc[Evaluation], error) {
		var f faults
		b := in.Body
		f.name("body", "pool", b.Pool)
		f.labels(b.Labels)
		e := ledger.Evaluation{Pool: b.Pool, Priority: f.priority("priority", orDefault(b.Priority, defaultPriority)), Labels: b.Labels, Limit: b.Limit}
		if e.Limit == 0 {
			e.Limit = 100
		}
		if b.Resources != nil {
			r := f.resources("resources", *b.Resources)
			e.Request = &r
		}
		if err := f.err(); err != nil {
			return nil, err
		}
		res, err := a.ledger.Evaluate(ctx, in.Namespace, e)
		if err != nil {
			return nil, err
		}
		out := Evaluation{ShouldPreempt: res.ShouldPreempt, Candidates: mapped(res.Candidates, candidateDoc), PolicyVersion: res.PolicyVersion}
		if res.Decision != nil {
			out.Decision = decisionDoc(*res.Decision)
		}
		return &Doc[Evaluation]{Body: out}, nil
	})

	register(a, operation{id: "execute-preemption", method: "POST", path: "/preemption/execute", tag: "Preemption",
		summary: "Preempt a task by hand", about: "Cancels the task and saves its state; its agent stays, idle, until it is deleted or gets its next task. Answers when that is done.",
		codes: []string{"unknown_task", "unknown_agent", "wrong_state", "bridge_unavailable"}, request: `{"task_id": "batch-job", "agent_name": "agent-1"}`,
	}, func(ctx context.Context, in *struct {
		Scope
		Body ExecutionBody
	}) (*Doc[PreemptResult], error) {
		var f faults
		f.optionalName("body", "task_id", in.Body.TaskID)
		f.optionalName("body", "agent_name", in.Body.AgentName)
		if in.Body.TaskID == "" && in.Body.AgentName == "" {
			f.add("body", "task_id", "is missing; name the task, or its agent_name")
		}
		if err := f.err(); err != nil {
			return nil, err
		}
		return a.preempt(ctx, in.Namespace, in.Body.TaskID, in.Body.AgentName, in.Body.Reason)
	})

	register(a, operation{id: "list-preemptions", method: "GET", path: "/preemptions", tag: "Preemption",
		summary: "List preemptions", about: "Newest first.",
	}, func(ctx context.Context, in *struct {
		Scope
		Paging
	}) (*Doc[List[Preemption]], error) {
		var f faults
		if in.checkPaging(&f); f.err() != nil {
			return nil, f.err()
		}
		page, err := a.ledger.Preemptions(ctx, in.Namespace, in.Limit, in.Cursor)
		return doc(list(mapped(page.Items, preemptionDoc), page.Next), err)
	})

	register(a, operation{id: "get-preemption-stats", method: "GET", path: "/preemptions/stats", tag: "Preemption",
		summary: "Read preemption statistics", about: "Counts since the namespace began, and the latest preemptions.",
	}, func(ctx context.Context, in *struct{ Scope }) (*Doc[Stats], error) {
		s, err := a.ledger.Stats(ctx, in.Namespace)
		return doc(statsDoc(s), err)
	})

	register(a, operation{id: "get-preemption", method: "GET", path: "/preemptions/{id}", tag: "Preemption",
		summary: "Read a preemption", about: "One task that made way: why it was chosen, how far it is, what it saved.", codes: []string{"not_found"},
	}, func(ctx context.Context, in *struct {
		Scope
		ID int64 `path:"id" doc:"Id of the preemption." example:"42"`
	}) (*Doc[Preemption], error) {
		p, err := a.ledger.Preemption(ctx, in.Namespace, in.ID)
		return doc(preemptionDoc(p), err)
	})
}
