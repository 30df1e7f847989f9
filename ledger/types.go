package ledger

import (
	"encoding/json"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// State is where a task is in its life (docs/architecture.md has the picture).
type State string

// The states of a task. The first six are live: they may hold quota.
const (
	Queued     State = "queued"
	Reserved   State = "reserved"
	Launching  State = "launching"
	Running    State = "running"
	Stopping   State = "stopping"
	Preempting State = "preempting"
	Preempted  State = "preempted"
	Completed  State = "completed"
	Failed     State = "failed"
	Cancelled  State = "cancelled"
)

// Live reports whether a task in this state still counts: it waits, runs or is on its way out.
func (s State) Live() bool {
	switch s {
	case Queued, Reserved, Launching, Running, Stopping, Preempting:
		return true
	}
	return false
}

// Kind says what a row of the tasks table stands for.
type Kind string

const (
	// KindTask is a submission: one agent made for one task.
	KindTask Kind = "task"
	// KindRegistered is work that somebody says runs on an agent; it holds nothing of its own.
	KindRegistered Kind = "registered"
	// KindAgent is an agent that waits for work: it holds quota and has no task.
	KindAgent Kind = "agent"
)

// What to do when something happens to a task.
const (
	Fail    = "fail"    // on_insufficient: answer with an error
	Queue   = "queue"   // on_insufficient: wait
	Stop    = "stop"    // on_preempted, on_failure: end there
	Requeue = "requeue" // on_preempted, on_failure: try again, with the saved state if there is one
)

// Spec is what runs: everything the launch needs beyond quota. It is stored as given.
type Spec struct {
	ActorClass        string          `json:"actor_class,omitempty"` // "module:Class"
	Pickled           []byte          `json:"-"`                     // cloudpickle of (class, args, kwargs); kept in its own column
	PickledName       string          `json:"pickled_name,omitempty"`
	Methods           json.RawMessage `json:"methods,omitempty"`
	Args              json.RawMessage `json:"actor_args,omitempty"`   // JSON array
	Kwargs            json.RawMessage `json:"actor_kwargs,omitempty"` // JSON object
	Entry             *Entry          `json:"entry,omitempty"`
	RuntimeEnv        json.RawMessage `json:"runtime_env,omitempty"`
	RayOptions        json.RawMessage `json:"ray_options,omitempty"`
	UsePlacementGroup bool            `json:"use_placement_group,omitempty"`
	KeepQuota         bool            `json:"keep_quota,omitempty"` // with a placement group: nobody is preempted for quota
	Payload           json.RawMessage `json:"payload,omitempty"`
}

// Entry is the method called after every launch and restore; its return completes the task.
type Entry struct {
	Method string          `json:"method"`
	Args   json.RawMessage `json:"args,omitempty"`
	Kwargs json.RawMessage `json:"kwargs,omitempty"`
}

// Submission asks for a task to be run.
type Submission struct {
	TaskID         string
	Pool           string
	Request        sched.Resources
	Priority       sched.Milli
	Labels         sched.Labels
	AgentName      string // "" = made from pool and uid
	Spec           Spec
	Estimate       time.Duration // 0 = none given
	MaxRuntime     time.Duration // 0 = no limit
	OnInsufficient string        // fail (default) | queue
	OnPreempted    string        // stop (default) | requeue
	OnFailure      string        // stop (default) | requeue
	MaxAttempts    int           // 0 = 1 with on_failure stop, 3 with requeue
	LaunchTimeout  time.Duration // 0 = 60 s
	Actor          string        // who asks, for the event

	// Left out of the fingerprint when they are not given: bodies from before they existed stay the same.
	QueueTimeout time.Duration  `json:",omitzero"` // failed when it waited that long; 0 = waits for ever
	RetryBackoff *time.Duration `json:",omitzero"` // before the second attempt, doubled for each later one; nil = 1 s
}

// AgentSubmission asks for an agent that waits for work.
type AgentSubmission struct {
	Name          string
	Pool          string
	Request       sched.Resources // zero = the pool's default agent size
	Labels        sched.Labels
	Spec          Spec
	LaunchTimeout time.Duration
	Actor         string
}

// Registration says that a task runs on an agent; both may be unknown to us (unmanaged).
type Registration struct {
	TaskID    string
	AgentName string
	Pool      string
	Priority  sched.Milli
	Labels    sched.Labels
	Estimate  time.Duration
	Payload   json.RawMessage
	Actor     string
}

// Task is a task as people read it.
type Task struct {
	UID         sched.ID
	Namespace   string
	Kind        Kind
	TaskID      string
	Pool        string
	Managed     bool // false: a registered task whose pool or agent is not ours
	State       State
	Phase       string // what a preempting or reserved task is doing: cancelling, saving, killing, waiting for victims
	Attempt     int
	Priority    sched.Milli
	Labels      sched.Labels
	Request     sched.Resources
	Held        sched.Resources
	AgentName   string
	ActorName   string // Ray's name of the actor of this attempt
	RayNS       string // Ray namespace of that actor
	ActorID     string
	Node        string
	Seat        *Seat // in a placement group; nil for none
	PID         int
	Spec        Spec
	Estimate    time.Duration
	MaxRuntime  time.Duration
	OnPreempted string
	OnFailure   string
	MaxAttempts int
	Preemptions int // times preempted so far
	PreemptedBy []sched.ID
	Code        string // stable code of why it is in this state, when it did not just go well
	Reason      string // the same for people
	Result      json.RawMessage
	SavedState  json.RawMessage
	SubmittedAt time.Time
	QueuedAt    time.Time
	StartedAt   time.Time // of this attempt; zero before it runs
	EndedAt     time.Time
	Actor       string // who submitted it
	// QueuePosition is filled for queued tasks, 1 for the head; 0 for one that is not in
	// line yet, because it waits until it is tried again.
	QueuePosition int
	ETA           time.Time // when a queued task is expected to start; zero when that cannot be known
	ETANote       string    // why it cannot be known, or what it rests on
	QueueTimeout  time.Duration
	RetryBackoff  time.Duration
	// Created says, in the answer to a submission, that it made this task: false when
	// the same body had been submitted before.
	Created bool
}

// Agent is what holds quota and runs tasks.
type Agent struct {
	UID        sched.ID
	Name       string
	Namespace  string
	Pool       string
	State      State
	Request    sched.Resources
	Labels     sched.Labels
	Node       string
	ActorName  string
	RayNS      string
	ActorID    string
	PID        int
	TaskIDs    []string
	CreatedAt  time.Time
	ReadyAt    time.Time
	Code       string
	Reason     string
	ActorClass string
}

// Balance is one resource of one pool, in the resource's fixed-point unit.
// reserved + used ≤ capacity + borrowed − lent always holds; the database checks it.
type Balance struct {
	Resource                                 string
	Capacity, Reserved, Used, Borrowed, Lent int64
}

// Loan is quota of one pool in use by another of the same cluster.
type Loan struct {
	Lender, Borrower, Resource string
	Amount                     int64
}

// Pool is a pool as people read it.
type Pool struct {
	Namespace         string
	Name              string
	Cluster           string
	Labels            sched.Labels
	TargetAgents      int
	PlacementStrategy string
	PGPoolConfig      json.RawMessage
	MaxRuntime        time.Duration // of each task; 0 = no bound
	Hold              Hold
	Balances          []Balance // cpu, gpu, memory first, then by name
	Loans             []Loan
	Groups            *GroupTotals // nil without any
	Version           int64
	Running           int
	Queued            int
	CreatedAt         time.Time
}

// PoolSpec creates or changes a pool. Nil fields of an update stay as they are.
type PoolSpec struct {
	Name              string
	Cluster           *string
	Labels            *sched.Labels
	Capacity          *sched.Resources
	TargetAgents      *int
	PlacementStrategy *string
	PGPoolConfig      *json.RawMessage
	MaxRuntime        *time.Duration // 0 = no bound
	Actor             string
}

// Event is one transition, as the timeline and the feed show it.
type Event struct {
	ID            int64
	At            time.Time
	Namespace     string
	TaskUID       sched.ID
	TaskID        string
	Pool          string
	Attempt       int
	Type          string // a State, or something that happened within one: phase:cancelling, registered, pool.created, policy.changed, …
	Actor         string
	Code          string
	Message       string
	Detail        json.RawMessage
	PolicyVersion int
}

// Preemption is one task that made way: decision, phases and outcome.
type Preemption struct {
	ID            int64
	Namespace     string
	PreemptorUID  sched.ID // zero for one asked for by hand
	PreemptorTask string
	PreemptorPool string
	VictimUID     sched.ID
	VictimTask    string
	AgentName     string
	Pool          string
	Priority      sched.Milli
	Reason        string // sched.Reason, or "manual"
	Score         sched.Micro
	Explanation   json.RawMessage
	PolicyVersion int
	Phase         string // decided, cancelling, saving, killing, gone, undone
	Taken         sched.Resources
	Loan          bool
	CancelSuccess *bool
	CancelError   string
	SaveError     string
	SavedState    json.RawMessage
	DecidedAt     time.Time
	CancelledAt   time.Time
	SavedAt       time.Time
	GoneAt        time.Time
	RunningAt     time.Time // when the preemptor was running
	Actor         string

	// Only reports fill these.
	PreemptorAttempt, VictimAttempt int
	CancellingAt                    time.Time // when the victim was told to stop
	StateSize                       int64     // of the saved state as JSON, in bytes; lists say 1 for any
}

// PolicyVersion is one immutable version of a namespace's policy.
type PolicyVersion struct {
	Version   int
	Policy    sched.Policy
	Author    string
	Comment   string
	CreatedAt time.Time
	Warnings  []string
}

// Stats are the seeds' preemption figures.
type Stats struct {
	Total, SamePool, CrossPool, Label, FailedCancels int64
	RunningTasks                                     int64
	Recent                                           []Preemption
}

// Page is one page of a list; Next is "" on the last.
type Page[T any] struct {
	Items []T
	Next  string
}

// TaskFilter narrows a list of tasks. Zero fields do not narrow.
type TaskFilter struct {
	States []State
	Live   bool // any live state
	Pool   string
	Text   string // substring of the task id
	Labels sched.Labels
	Limit  int // default 50, at most 500
	Cursor string
}
