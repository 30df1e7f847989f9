// Package sched is the decision core: who runs, who makes way, and why.
//
// It is pure. It does no I/O, reads no clock, starts no goroutine and imports
// nothing else of ours; callers hand in the time and everything it may know.
// The ledger owns one Core per namespace and keeps it in step with Postgres;
// evaluate, what-if, explain and replay ask the same code.
//
// Amounts are fixed-point (see Resources, Milli) so that a threshold compares
// exactly and two replicas always choose the same victims.
package sched

// ID identifies a task or an agent: the 16 bytes of its UUID.
type ID [16]byte

// NodeID is Ray's hexadecimal node id.
type NodeID string

// Milli is a fixed-point number in thousandths: priorities and thresholds.
type Milli int64

// Time is milliseconds since the Unix epoch; 0 means unknown.
type Time int64

// Labels are a task's key=value pairs. They are never modified once given to the core.
type Labels map[string]string

// Pool is what the core must know of a pool.
type Pool struct {
	Name    string // unique within the core's namespace
	Cluster string
	// Free is quota nobody holds: capacity + borrowed − lent − reserved − used.
	// It may be negative after a pool was shrunk.
	Free Resources
	// Ceiling is capacity: what the pool could ever give without a loan.
	Ceiling Resources
	Labels  Labels
	// Preempted is how many of its tasks were preempted in the last minute
	// (max_preemptions_per_minute); the caller keeps the clock.
	Preempted int
}

// Node is a machine of a Ray cluster. Room is what is physically left on it
// when everything that is placed there, or on its way there, is counted.
type Node struct {
	ID      NodeID
	Cluster string
	Room    Resources
	Total   Resources
	// Held means that nothing may start there.
	Held bool
}

// Agent holds quota and sits on a node; one or more tasks run on it.
type Agent struct {
	ID   ID
	Name string
	Pool string
	Node NodeID // "" while unknown
	// Gives is what its pool gets back, and its node has free, once it is gone.
	// Zero for an unmanaged agent: it is evaluated but frees nothing.
	Gives Resources
	// Settled is false while the agent cannot be taken (itself waiting for victims, stopping, …).
	Settled bool
}

// Task is a live task as the core sees it.
type Task struct {
	ID       ID
	Name     string // the task_id people see; the last tie-breaker
	Agent    ID     // the Agent it runs on; several tasks may share one
	Pool     string // may name a pool the core was never given (unmanaged)
	Priority Milli
	Labels   Labels
	// Start is when it began running; 0 (reserved, launching) counts as just started.
	Start Time
	// Estimate is its estimated duration in milliseconds; 0 = none given, remaining counts as 0.
	Estimate Time
	// PreemptedBy are tasks it must never preempt: those that preempted it, and theirs.
	PreemptedBy []ID
	// Preemptions counts how often this task was preempted (max_preemptions_per_task).
	Preemptions int
}

// Incoming is a task asking for room.
type Incoming struct {
	ID       ID
	Name     string
	Pool     string
	Priority Milli
	Labels   Labels
	Request  Resources // negative amounts count as nothing
	// PreemptedBy are tasks it must never preempt: those that preempted it, and
	// theirs. The core follows the PreemptedBy of live tasks by itself; it cannot
	// know of queued ones, so the caller adds theirs.
	PreemptedBy []ID
	// Rooms names the places to look at when they are not the machines of the pool's
	// cluster, such as its placement groups: the nodes with this name as their Cluster.
	// Where there are none, there is no room.
	Rooms string
}
