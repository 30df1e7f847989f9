package ledger

import (
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// JobKind says what the agents package is asked to do.
type JobKind int

const (
	// JobLaunch makes the agent of a reserved row; answer with Ready or LaunchFailed.
	JobLaunch JobKind = iota
	// JobTake carries a decided preemption through its phases; report with TakePhase and Gone.
	JobTake
	// JobStop removes the agent of a stopping row; answer with Gone.
	JobStop
	// JobMakeGroup makes a placement group; answer with GroupMade or GroupFailed.
	JobMakeGroup
	// JobDropGroup removes one; answer with GroupGone.
	JobDropGroup
)

// Job is work on one agent. The row in Postgres is the durable form; a Job is only
// its announcement, so losing one costs time and never correctness.
type Job struct {
	Kind     JobKind
	UID      sched.ID // the row that holds the agent
	Attempt  int
	LaunchID string // "" for a task whose agent is not ours: there is only its state to keep
	Pool     string
	// For JobLaunch. Spec is nil when it has to be read (after a restart, a requeue).
	Namespace string
	Cluster   string
	TaskID    string
	AgentName string
	Labels    sched.Labels
	Request   sched.Resources
	Node      sched.NodeID
	Timeout   time.Duration
	Spec      *Spec
	Decided   time.Time // when it was decided, for latencies
	// For jobs about a placement group, and for launches into one, which make it when it is not there.
	Group *JobGroup
	// For JobTake.
	Tasks         []JobTask
	Phase         string // where to go on
	KeepAgent     bool   // by hand: cancel and save, the agent stays
	CancelTimeout time.Duration
	SaveTimeout   time.Duration
}

// JobGroup is a placement group as Ray is asked for it.
type JobGroup struct {
	Name     string
	Bundles  []sched.Resources
	Strategy string
	Node     sched.NodeID // where it should be
	Timeout  time.Duration
}

// JobTask is one task on an agent that is being taken.
type JobTask struct {
	UID    sched.ID
	TaskID string
	Pool   string
}
