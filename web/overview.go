package web

import "time"

// Overview is the first page.
type Overview struct {
	Running, Launching, Queued, Preempting int
	Notes                                  []Note // what needs a look, worst first
	Pools                                  []Pool // the fullest first
	Clusters                               []Cluster
	Fleet                                  ClusterList     // where jobs may go: the first few
	Preemptions                            PreemptionCount // last 24 hours
	Before                                 int             // preemptions in the 24 hours before those
	Hours                                  []Hour          // 24, oldest first
	P50, P99                               time.Duration   // preemption decided → preemptor running, last 24 hours; 0: none
	Phases                                 []Phase         // medians
	GPULost, GPUUsed                       float64         // GPU-hours of the last 24 hours: run in attempts thrown away without saved state, and all; Used 0: unknown
	Pending, GPUPending                    bool            // the figures of the day, or of the GPUs, are still being added up
	Recent                                 []Event
}

// PreemptionCount counts preemptions by reason.
type PreemptionCount struct{ Label, SamePool, CrossPool, Manual int }

// Total adds them up.
func (c PreemptionCount) Total() int { return c.Label + c.SamePool + c.CrossPool + c.Manual }

// Hour is one hour's preemptions.
type Hour struct {
	Start time.Time
	PreemptionCount
}

// Cluster is a Ray cluster and whether it answers.
type Cluster struct {
	Name   string
	State  string // connected, connecting, down
	Detail string // "4 nodes · Ray 2.50", or what is wrong
	Nodes  int
	Total  Resources
	Used   Resources
}

// Event is one line of the feed.
type Event struct {
	ID     string // opaque, for paging
	At     time.Time
	Type   string // a State, or a word for what happened within one
	Task   string // "" for events about something else
	Pool   string
	Actor  string
	Text   Line
	Took   time.Duration // 0: does not apply
	Policy int           // version in force, 0: does not apply
}

// EventFilter narrows the feed.
type EventFilter struct {
	Task, Pool, Type string
	Cursor           string
	Limit            int
}

// EventList is one page of the feed, newest first.
type EventList struct {
	Items []Event
	Next  string
}
